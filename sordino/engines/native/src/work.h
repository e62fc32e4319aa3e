// What a layer works on: tensors with the examples innermost, parameters in padded rows, and one thread's memory for all of them.
#pragma once
#include <memory>
#include <vector>

#include "blocks.h"

namespace sordino {

constexpr int MAX_VECTORS = 4;  // vectors of examples that pass through the network together: a block of the batch
constexpr int MAX_EXAMPLES = MAX_VECTORS * LANES;

// Values of a block of examples: [channel][y][x][vector], a frame of zeros around every channel where a convolution pads. Strides and
// offsets count pixels; a pixel is `vectors` vectors.
struct Tensor {
  Index channels, height, width;
  Index frame_y, frame_x;
  Activation activation;  // which its values went through; whoever writes the gradient carries it back through this
  bool apart;             // gradients have a place of their own; else they overwrite the values, element by element
  Index values = 0, gradients = 0;

  Index row() const { return width + 2 * frame_x; }
  Index plane() const { return row() * (height + 2 * frame_y); }
  Index pixels() const { return plane() * channels; }
  Index at(Index channel, Index y, Index x) const { return channel * plane() + (y + frame_y) * row() + x + frame_x; }
  Index size() const { return channels * height * width; }
};

// Where some parameters stand: in the vector that is trained, and in a thread's memory, where every row begins a new vector.
struct Place {
  Index flat = -1;  // -1: there are none
  Index rows = 0, length = 0;
  Index start = 0, stride = 0;

  bool exists() const { return flat >= 0; }
};

// One thread's memory while it trains one client.
struct Work {
  int vectors = 0;
  int examples = 0;          // in this block; lanes beyond are idle
  bool fresh = true;         // the first block of a step: gradients are stored, not added
  bool per_example = false;  // gradients of examples are clipped one by one
  const std::vector<Tensor>* tensors = nullptr;
  Floats* pixels = nullptr;
  float* weights = nullptr;
  float* gradient = nullptr;
  Floats* sums = nullptr;     // gradients per lane, of layers that keep them (see LaneGradients)
  Floats* saved = nullptr;    // what normalisation keeps for the way back
  float* packed = nullptr;    // weights in the order of a block
  float* turned = nullptr;    // inputs of a linear layer, one example a row
  const float* rows[MAX_EXAMPLES];  // the records themselves
  bool rows_are_padded = false;     // to whole vectors

  const Tensor& tensor(int which) const { return (*tensors)[which]; }
  Floats* values(const Tensor& t) const { return pixels + t.values * vectors; }
  Floats* gradients(const Tensor& t) const { return pixels + t.gradients * vectors; }
};

// Per-example clipping, one entry per vector of examples.
struct Norms {
  Wide sum[MAX_VECTORS];
  bool absolute;  // l1: sums of absolute values; l2: of squares

  // The sum over `count` vectors, `step` apart.
  Wide of(const Floats* p, Index count, Index step) const {
    Wide even{}, odd{};
    Index i = 0;
    if (absolute) {
      for (; i < count; i++) add(even, (Floats)((Ints)p[i * step] & 0x7fffffff));
    } else {
      for (; i + 1 < count; i += 2) add_squares(even, p[i * step]), add_squares(odd, p[(i + 1) * step]);
      if (i < count) add_squares(even, p[i * step]);
    }
    return {even.low + odd.low, even.high + odd.high};
  }
};
struct Scales {
  Floats factor[MAX_VECTORS];
  Ints finite[MAX_VECTORS];  // examples whose gradient is not finite count as zero
};

struct Layer {
  int in = 0, out = 0;
  bool carries_back = true;  // somebody wants the gradient of `in`
  bool adds = false;         // another layer wrote to it already
  Place weight, bias;

  virtual ~Layer() = default;
  // How much of the shared scratch memory it needs, in floats or vectors per vector of examples.
  virtual Index packed_floats() const { return 0; }
  virtual Index turned_floats(const std::vector<Tensor>&) const { return 0; }
  virtual Index lane_sums() const { return 0; }
  virtual Index saved_vectors() const { return 0; }
  void place_sums(Index at) { first_sum = at; }
  void place_saved(Index at) { first_saved = at; }

  virtual void forward(Work& work) const = 0;
  // The gradient of the input; of the weights too, unless examples are clipped one by one.
  virtual void backward(Work& work) const = 0;
  virtual void finish(Work&) const {}                            // after the last block of a step
  virtual void add_norms(Work&, Norms&) const {}                 // per-example clipping, first what every example has
  virtual void add_clipped(Work&, const Scales&) const {}        // then the sum of what is left of it

 protected:
  Index first_sum = 0, first_saved = 0;
};

// Calls f(where in a, where in b, pixels) for every row of two tensors of the same shape; places count vectors.
template <class F>
INLINE void for_rows(const Tensor& a, const Tensor& b, int vectors, F f) {
  for (Index c = 0; c < a.channels; c++) {
    for (Index y = 0; y < a.height; y++) f(a.at(c, y, 0) * vectors, b.at(c, y, 0) * vectors, a.width * vectors);
  }
}

// ---- layers whose weight gradients are first summed lane by lane

struct LaneGradients : Layer {
  Index lane_sums() const override { return weight.rows * weight.length + (bias.exists() ? bias.length : 0); }

  void finish(Work& work) const override {
    if (work.per_example) return;
    const Floats* sum = work.sums + first_sum * work.vectors;
    reduce(&sum, nullptr, 1, weight, work.gradient, false);
    sum += weight.rows * weight.length;
    reduce(&sum, nullptr, 1, bias, work.gradient, false);
  }

  void add_norms(Work& work, Norms& norms) const override {
    for (int v = 0; v < work.vectors; v++) {
      const Wide own = norms.of(own_sums(work, v), lane_sums(), 1);
      norms.sum[v].low += own.low, norms.sum[v].high += own.high;
    }
  }

  void add_clipped(Work& work, const Scales& scales) const override {
    const Floats* sum[MAX_VECTORS];
    for (int v = 0; v < work.vectors; v++) sum[v] = own_sums(work, v);
    reduce(sum, &scales, work.vectors, weight, work.gradient, !work.fresh);
    for (int v = 0; v < work.vectors; v++) sum[v] += weight.rows * weight.length;
    reduce(sum, &scales, work.vectors, bias, work.gradient, !work.fresh);
  }

 protected:
  // One set of sums for the batch, or one for every vector of examples.
  Floats* own_sums(const Work& work, int vector) const {
    return work.sums + first_sum * work.vectors + (work.per_example ? vector * lane_sums() : 0);
  }
  bool sums_start(const Work& work) const { return work.per_example || work.fresh; }

 private:
  static void reduce(const Floats* const* sums, const Scales* scales, int count, const Place& place, float* gradient, bool adds) {
    if (!place.exists()) return;
    const Index n = place.rows * place.length;
    for (Index i = 0; i < n; i += LANES) {
      Floats row[LANES];
      const auto sum = [&](int l) {
        if (!scales) return sums[0][i + l];
        Floats all{};
        for (int s = 0; s < count; s++) all += kept(sums[s][i + l] * scales->factor[s], scales->finite[s]);
        return all;
      };
      if (i + LANES <= n) {
        UNROLL for (int l = 0; l < LANES; l++) row[l] = sum(l);
      } else {
        for (int l = 0; l < LANES; l++) row[l] = i + l < n ? sum(l) : Floats{};
      }
      Floats total = sordino::lane_sums(row);
      Floats* out = (Floats*)(gradient + place.start + i);
      *out = adds ? *out + total : total;
    }
  }
};

}  // namespace sordino
