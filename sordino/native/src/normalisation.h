// Normalisation of groups of channels, or of whole layers. Lanes are examples, so the statistics of
// an example are sums in its lane.
#pragma once
#include <algorithm>

#include "work.h"

namespace sordino {

struct Normalisation : LaneGradients {
  Index channels;
  Index groups;
  double epsilon;
  // Whether every pixel of a group has its scale and shift, the same in all groups; else every
  // channel has.
  bool scales_pixels;

  Index scale_count(const Tensor& t) const {
    return scales_pixels ? (Index)group_size(t) : channels;
  }

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
        for_group(from, to, group, vectors, [&](Index at, Index goes, Index scale) {
          Floats value = found.normalise(work.values(from)[at + v]);
          if (weight.exists()) value = value * work.weights[weight.start + scale];
          if (bias.exists()) value = value + work.weights[bias.start + scale];
          work.values(to)[goes + v] = activate(value, to.activation);
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
        // The sums of the scaled gradients, and of their products with the normal values: both
        // means are taken off the gradient of the input.
        Wide sum{};
        Wide product{};
        for_group(from, to, group, vectors, [&](Index at, Index goes, Index scale) {
          const Floats d = work.gradients(to)[goes + v];
          const Floats normal = found.normalise(work.values(from)[at + v]);
          if (weight.exists()) sums[scale] += d * normal;
          if (bias.exists()) sums[weight.size() + scale] += d;
          const Floats scaled = scale_gradient(work, d, scale);
          add(sum, scaled);
          add(product, scaled * normal);
        });
        if (!carries_back) continue;
        const Floats mean = narrow(divide(sum, count));
        const Floats slope = narrow(divide(product, count));
        for_group(from, to, group, vectors, [&](Index at, Index goes, Index scale) {
          const Floats value = work.values(from)[at + v];
          const Floats d = work.gradients(to)[goes + v];
          const Floats scaled = scale_gradient(work, d, scale);
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
  INLINE Floats scale_gradient(const Work& work, Floats d, Index scale) const {
    return weight.exists() ? d * work.weights[weight.start + scale] : d;
  }
  static INLINE Wide divide(Wide sum, double count) { return {sum.low / count, sum.high / count}; }

  // Mean and inverse standard deviation of a group, in three passes: the mean, what its rounding to
  // a float left out, and the squares about both.
  Statistics measure_group(const Work& work, Index group, int v, double count) const {
    const Tensor& from = work.tensor(in);
    const Floats* values = work.values(from);
    Wide sum{};
    Wide rest{};
    Wide square{};
    const auto for_values = [&](auto f) INLINE_LAMBDA {
      for_group(from, from, group, work.vectors,
                [&](Index at, Index, Index) { f(values[at + v]); });
    };
    for_values([&](Floats value) { add(sum, value); });
    const Floats mean = narrow(divide(sum, count));
    for_values([&](Floats value) { add(rest, value - mean); });
    rest = divide(rest, count);
    for_values([&](Floats value) {
      const Wide off = widen(value - mean);
      square.low += (off.low - rest.low) * (off.low - rest.low);
      square.high += (off.high - rest.high) * (off.high - rest.high);
    });
    const Wide variance = divide(square, count);
    const Wide inverse{1.0 / square_root(variance.low + epsilon),
                       1.0 / square_root(variance.high + epsilon)};
    return {mean, narrow(rest), narrow(inverse)};
  }

  // Calls f(place in a, place in b, number of its scale) for every pixel of a group.
  template <class F>
  INLINE void for_group(const Tensor& a, const Tensor& b, Index group, int vectors, F f) const {
    const Index first = group * group_channels();
    Index pixel = 0;
    for (Index c = first; c < first + group_channels(); c++) {
      for (Index y = 0; y < a.height; y++) {
        for (Index x = 0; x < a.width; x++) {
          f(a.at(c, y, x) * vectors, b.at(c, y, x) * vectors, scales_pixels ? pixel : c);
          pixel++;
        }
      }
    }
  }
};

}  // namespace sordino
