// Group normalisation. Lanes are examples, so the statistics of an example are sums in its lane.
#pragma once
#include <algorithm>
#include <type_traits>

#include "work.h"

namespace sordino {

struct GroupNormalisation : LaneGradients {
  Index channels;
  Index groups;
  double epsilon;

  Index saved_vectors() const override { return 3 * groups; }

  void forward(Work& work) const override {
    const Tensor& from = work.tensor(in);
    const Tensor& to = work.tensor(out);
    const int vectors = work.vectors;
    const double count = group_size(from);
    for (Index group = 0; group < groups; group++) {
      for (int v = 0; v < vectors; v++) {
        const Statistics found = measure_group(work, group, v, count);
        *statistics(work, group, v) = found;
        for_group(from, group, vectors, [&](Index c, Index at, Index y, Index x) {
          Floats value = found.normalise(work.values(from)[at + v]);
          if (weight.exists()) {
            value = value * work.weights[weight.start + c] + work.weights[bias.start + c];
          }
          work.values(to)[to.at(c, y, x) * vectors + v] = activate(value, to.activation);
        });
      }
    }
  }

  void backward(Work& work) const override {
    const Tensor& from = work.tensor(in);
    const Tensor& to = work.tensor(out);
    const int vectors = work.vectors;
    const double count = group_size(from);
    for (int v = 0; v < vectors; v++) {
      Floats* sums = lane_sums(work, v);
      if (sums_begin(work) && (v == 0 || work.per_example)) {
        std::fill(sums, sums + lane_sum_count(), Floats{});
      }
      for (Index group = 0; group < groups; group++) {
        const Statistics found = *statistics(work, group, v);
        // Of the scaled gradients, and of their products with the normal values.
        Wide sum{};
        Wide product{};
        for_group(from, group, vectors, [&](Index c, Index at, Index y, Index x) {
          const Floats d = work.gradients(to)[to.at(c, y, x) * vectors + v];
          const Floats normal = found.normalise(work.values(from)[at + v]);
          if (weight.exists()) {
            sums[c] += d * normal;
            sums[channels + c] += d;
          }
          const Floats scaled = scale_gradient(work, d, c);
          add(sum, scaled);
          add(product, scaled * normal);
        });
        if (!carries_back) continue;
        const Floats mean = narrow(divide(sum, count));
        const Floats slope = narrow(divide(product, count));
        for_group(from, group, vectors, [&](Index c, Index at, Index y, Index x) {
          const Floats value = work.values(from)[at + v];
          const Floats d = work.gradients(to)[to.at(c, y, x) * vectors + v];
          const Floats scaled = scale_gradient(work, d, c);
          const Floats inner = (scaled - mean - found.normalise(value) * slope) * found.inverse;
          const Floats result = carry_back(inner, from.activation, value);
          Floats& g = work.gradients(from)[at + v];
          g = adds ? g + result : result;
        });
      }
    }
  }

 private:
  // Values may lie far from zero and close to each other, so the mean is kept with the digits that
  // a float loses.
  struct Statistics {
    Floats mean;
    Floats rest;
    Floats inverse;

    INLINE Floats normalise(Floats value) const { return (value - mean - rest) * inverse; }
  };

  Index group_channels() const { return channels / groups; }
  double group_size(const Tensor& t) const {
    return (double)(group_channels() * t.height * t.width);
  }
  Statistics* statistics(const Work& work, Index group, int vector) const {
    Statistics* first = (Statistics*)(work.saved + first_saved * work.vectors);
    return first + group * work.vectors + vector;
  }
  INLINE Floats scale_gradient(const Work& work, Floats d, Index channel) const {
    return weight.exists() ? d * work.weights[weight.start + channel] : d;
  }
  static INLINE Wide divide(Wide sum, double count) { return {sum.low / count, sum.high / count}; }

  Statistics measure_group(const Work& work, Index group, int v, double count) const {
    const Tensor& from = work.tensor(in);
    const Floats* values = work.values(from);
    Wide sum{};
    Wide rest{};
    Wide square{};
    for_group(from, group, work.vectors, [&](Index, Index at) { add(sum, values[at + v]); });
    const Floats mean = narrow(divide(sum, count));
    for_group(from, group, work.vectors, [&](Index, Index at) {
      add(rest, values[at + v] - mean);
    });
    rest = divide(rest, count);
    for_group(from, group, work.vectors, [&](Index, Index at) {
      const Wide off = widen(values[at + v] - mean);
      square.low += (off.low - rest.low) * (off.low - rest.low);
      square.high += (off.high - rest.high) * (off.high - rest.high);
    });
    const Wide variance = divide(square, count);
    const Wide inverse{1.0 / square_root(variance.low + epsilon),
                       1.0 / square_root(variance.high + epsilon)};
    return {mean, narrow(rest), narrow(inverse)};
  }

  // Calls f(channel, place) or f(channel, place, y, x) for every pixel of a group.
  template <class F>
  INLINE void for_group(const Tensor& t, Index group, int vectors, F f) const {
    const Index first = group * group_channels();
    for (Index c = first; c < first + group_channels(); c++) {
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
