// Group normalisation. Lanes are examples, so the statistics of an example are sums within its lane.
#pragma once
#include "work.h"

namespace sordino {

struct GroupNormalisation : LaneGradients {
  Index channels, groups;
  float epsilon;

  Index saved_vectors() const override { return 2 * groups; }

  void forward(Work& work) const override {
    const Tensor &from = work.tensor(in), &to = work.tensor(out);
    const int vectors = work.vectors;
    for (Index group = 0; group < groups; group++) {
      for (int v = 0; v < vectors; v++) {
        const float count = (float)(each() * from.height * from.width);
        Floats mean{}, square{};
        for_group(from, group, vectors, [&](Index, Index at) { mean += work.values(from)[at + v]; });
        mean /= count;
        for_group(from, group, vectors, [&](Index, Index at) {
          const Floats off = work.values(from)[at + v] - mean;
          square += off * off;
        });
        const Floats inverse = 1.0f / square_root(square / count + epsilon);
        statistics(work, group, v)[0] = mean, statistics(work, group, v)[1] = inverse;
        for_group(from, group, vectors, [&](Index c, Index at, Index y, Index x) {
          const Floats normal = (work.values(from)[at + v] - mean) * inverse;
          const Floats scaled = weight.exists() ? normal * work.weights[weight.start + c] + work.weights[bias.start + c] : normal;
          work.values(to)[to.at(c, y, x) * vectors + v] = activated(scaled, to.activation);
        });
      }
    }
  }

  void backward(Work& work) const override {
    const Tensor &from = work.tensor(in), &to = work.tensor(out);
    const int vectors = work.vectors;
    for (int v = 0; v < vectors; v++) {
      Floats* own = own_sums(work, v);
      if (sums_start(work) && (v == 0 || work.per_example)) std::fill(own, own + lane_sums(), Floats{});
      for (Index group = 0; group < groups; group++) {
        const Floats mean = statistics(work, group, v)[0], inverse = statistics(work, group, v)[1];
        Floats sum{}, product{};  // of the scaled gradients; of them and the normal values
        for_group(from, group, vectors, [&](Index c, Index at, Index y, Index x) {
          const Floats d = work.gradients(to)[to.at(c, y, x) * vectors + v];
          const Floats normal = (work.values(from)[at + v] - mean) * inverse;
          if (weight.exists()) own[c] += d * normal, own[channels + c] += d;
          const Floats scaled = weight.exists() ? d * work.weights[weight.start + c] : d;
          sum += scaled, product += scaled * normal;
        });
        if (!carries_back) continue;
        const float count = (float)(each() * from.height * from.width);
        sum /= count, product /= count;
        for_group(from, group, vectors, [&](Index c, Index at, Index y, Index x) {
          const Floats value = work.values(from)[at + v], normal = (value - mean) * inverse;
          const Floats d = work.gradients(to)[to.at(c, y, x) * vectors + v];
          const Floats scaled = weight.exists() ? d * work.weights[weight.start + c] : d;
          const Floats result = carried_back((scaled - sum - normal * product) * inverse, from.activation, value);
          Floats& g = work.gradients(from)[at + v];
          g = adds ? g + result : result;
        });
      }
    }
  }

 private:
  Index each() const { return channels / groups; }
  Floats* statistics(const Work& work, Index group, int vector) const {
    return work.saved + first_saved * work.vectors + 2 * (group * work.vectors + vector);
  }

  // Calls f(channel, place) or f(channel, place, y, x) for every pixel of a group.
  template <class F>
  INLINE void for_group(const Tensor& t, Index group, int vectors, F f) const {
    for (Index c = group * each(); c < (group + 1) * each(); c++) {
      for (Index y = 0; y < t.height; y++) {
        for (Index x = 0; x < t.width; x++) {
          const Index at = t.at(c, y, x) * vectors;
          if constexpr (std::is_invocable_v<F, Index, Index>) {
            f(c, at);
          } else {
            f(c, at, y, x);
          }
        }
      }
    }
  }
};

}  // namespace sordino
