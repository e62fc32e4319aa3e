// Group normalisation. Lanes are examples, so the statistics of an example are sums within its lane.
#pragma once
#include "work.h"

namespace sordino {

struct GroupNormalisation : LaneGradients {
  Index channels, groups;
  double epsilon;

  Index saved_vectors() const override { return 3 * groups; }

  void forward(Work& work) const override {
    const Tensor &from = work.tensor(in), &to = work.tensor(out);
    const int vectors = work.vectors;
    const double count = (double)(each() * from.height * from.width);
    for (Index group = 0; group < groups; group++) {
      for (int v = 0; v < vectors; v++) {
        const Statistics found = measured(work, group, v, count);
        *statistics(work, group, v) = found;
        for_group(from, group, vectors, [&](Index c, Index at, Index y, Index x) {
          const Floats normal = found.normal(work.values(from)[at + v]);
          const Floats scaled = weight.exists() ? normal * work.weights[weight.start + c] + work.weights[bias.start + c] : normal;
          work.values(to)[to.at(c, y, x) * vectors + v] = activated(scaled, to.activation);
        });
      }
    }
  }

  void backward(Work& work) const override {
    const Tensor &from = work.tensor(in), &to = work.tensor(out);
    const int vectors = work.vectors;
    const double count = (double)(each() * from.height * from.width);
    for (int v = 0; v < vectors; v++) {
      Floats* own = own_sums(work, v);
      if (sums_start(work) && (v == 0 || work.per_example)) std::fill(own, own + lane_sums(), Floats{});
      for (Index group = 0; group < groups; group++) {
        const Statistics found = *statistics(work, group, v);
        Wide sum{}, product{};  // of the scaled gradients; of them and the normal values
        for_group(from, group, vectors, [&](Index c, Index at, Index y, Index x) {
          const Floats d = work.gradients(to)[to.at(c, y, x) * vectors + v], normal = found.normal(work.values(from)[at + v]);
          if (weight.exists()) own[c] += d * normal, own[channels + c] += d;
          const Floats scaled = weight.exists() ? d * work.weights[weight.start + c] : d;
          add(sum, scaled), add(product, scaled * normal);
        });
        if (!carries_back) continue;
        const Floats mean = narrowed(over(sum, count)), slope = narrowed(over(product, count));
        for_group(from, group, vectors, [&](Index c, Index at, Index y, Index x) {
          const Floats value = work.values(from)[at + v];
          const Floats d = work.gradients(to)[to.at(c, y, x) * vectors + v];
          const Floats scaled = weight.exists() ? d * work.weights[weight.start + c] : d;
          const Floats inner = (scaled - mean - found.normal(value) * slope) * found.inverse;
          const Floats result = carried_back(inner, from.activation, value);
          Floats& g = work.gradients(from)[at + v];
          g = adds ? g + result : result;
        });
      }
    }
  }

 private:
  // Values may lie far from zero and close to each other, so the mean is kept with the digits that a float loses.
  struct Statistics {
    Floats mean, rest, inverse;
    INLINE Floats normal(Floats value) const { return (value - mean - rest) * inverse; }
  };

  Index each() const { return channels / groups; }
  Statistics* statistics(const Work& work, Index group, int vector) const {
    return (Statistics*)(work.saved + first_saved * work.vectors) + group * work.vectors + vector;
  }
  static INLINE Wide over(Wide sum, double count) { return {sum.low / count, sum.high / count}; }

  Statistics measured(const Work& work, Index group, int v, double count) const {
    const Tensor& from = work.tensor(in);
    const Floats* values = work.values(from);
    Wide sum{}, rest{}, square{};
    for_group(from, group, work.vectors, [&](Index, Index at) { add(sum, values[at + v]); });
    const Floats mean = narrowed(over(sum, count));
    for_group(from, group, work.vectors, [&](Index, Index at) { add(rest, values[at + v] - mean); });
    rest = over(rest, count);
    for_group(from, group, work.vectors, [&](Index, Index at) {
      const Wide off = widened(values[at + v] - mean);
      square.low += (off.low - rest.low) * (off.low - rest.low), square.high += (off.high - rest.high) * (off.high - rest.high);
    });
    const Wide variance = over(square, count);
    return {mean, narrowed(rest), narrowed({1.0 / square_root(variance.low + epsilon), 1.0 / square_root(variance.high + epsilon)})};
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
