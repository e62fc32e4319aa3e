// What layers work on: tensors with the examples innermost, parameters in padded rows, and one
// thread's memory for all of them.
#pragma once
#include <memory>
#include <vector>

#include "blocks.h"

namespace sordino {

// Vectors of examples that pass through the network together, at most: a block of the batch.
constexpr int MAX_VECTORS = 4;
constexpr int MAX_EXAMPLES = MAX_VECTORS * LANES;

// Values of a block of examples: [channel][y][x][vector], with a frame of zeros around every
// channel where a convolution pads. Strides and offsets count pixels; a pixel is `vectors` vectors.
struct Tensor {
  Index channels;
  Index height;
  Index width;
  Index frame_y;
  Index frame_x;
  // The activation that its values went through. A layer that writes the gradient carries it back
  // through this, too.
  Activation activation;
  // Whether gradients have memory apart from the values; else they overwrite them, element by
  // element.
  bool apart;
  // Where both begin in a thread's memory, in pixels.
  Index values = 0;
  Index gradients = 0;

  Index row() const { return width + 2 * frame_x; }
  Index plane() const { return row() * (height + 2 * frame_y); }
  Index pixels() const { return plane() * channels; }
  Index at(Index channel, Index y, Index x) const {
    return channel * plane() + (y + frame_y) * row() + x + frame_x;
  }
  Index size() const { return channels * height * width; }
};

// Where a layer's parameters are: in the vector that is trained, and in a thread's memory, where
// every row begins a new vector.
struct ParameterBlock {
  // The place in the trained vector; -1: the layer has no such parameters.
  Index flat = -1;
  Index rows = 0;
  // The length of a row, where the first begins in a thread's memory, and from row to row.
  Index length = 0;
  Index start = 0;
  Index stride = 0;

  bool exists() const { return flat >= 0; }
  Index size() const { return rows * length; }
};

// One thread's memory while it trains one client.
struct Work {
  int vectors = 0;
  // How many examples this block has; lanes beyond are idle.
  int examples = 0;
  // Whether gradients are stored, and not added to what is there: in the first block of a step, or
  // of a group (see Trainer).
  bool fresh = true;
  // Whether the gradients of examples are clipped one by one.
  bool per_example = false;
  const std::vector<Tensor>* tensors = nullptr;
  Floats* pixels = nullptr;
  float* weights = nullptr;
  // The gradient of the batch; laid out as `weights`.
  float* gradient = nullptr;
  // The sum of the gradients of examples that were clipped one by one; laid out as `gradient`.
  double* clipped_sum = nullptr;
  // What came back to a linear layer, times the factors of the clip.
  double* scaled = nullptr;
  // Gradients per lane, of layers that keep them (see LaneGradients).
  Floats* sums = nullptr;
  // What normalisation and dropout keep for the way back.
  Floats* saved = nullptr;
  // The key of what dropouts drop; null where nothing is dropped.
  const uint8_t* mask_key = nullptr;
  uint32_t step = 0;
  // Which example of the batch the block begins with.
  Index first_example = 0;
  // The weights of one layer in the order in which a block reads them.
  float* packed = nullptr;
  // Inputs of a linear layer, one example a row.
  float* input_rows = nullptr;
  // The records of the block, before they were transposed.
  const float* records[MAX_EXAMPLES];
  // Whether each is padded to whole vectors.
  bool records_are_padded = false;

  // How many examples a block has at most.
  Index block_size() const { return vectors * LANES; }
  const Tensor& tensor(int which) const { return (*tensors)[which]; }
  Floats* values(const Tensor& t) const { return pixels + t.values * vectors; }
  Floats* gradients(const Tensor& t) const { return pixels + t.gradients * vectors; }
};

// The norms of examples' gradients, one entry per vector of examples. They are sums of absolute
// values (l1), or of squares (l2).
struct Norms {
  Wide sum[MAX_VECTORS];
  bool absolute;

  // The sum over `count` vectors, `step` apart.
  Wide sum_over(const Floats* p, Index count, Index step) const {
    Wide even{};
    Wide odd{};
    Index i = 0;
    if (absolute) {
      for (; i < count; i++) add(even, absolute_value(p[i * step]));
    } else {
      for (; i + 1 < count; i += 2) {
        add_squares(even, p[i * step]);
        add_squares(odd, p[(i + 1) * step]);
      }
      if (i < count) add_squares(even, p[i * step]);
    }
    return {even.low + odd.low, even.high + odd.high};
  }
};

// What clipping multiplies every example by. In float64: with float32 all later sums are rounded
// otherwise when one example is replaced, by more than is priced.
struct ClipFactors {
  // A factor for every example; 0 where its gradient is not finite.
  Wide factor[MAX_VECTORS];
  // Set for examples whose gradient is finite. The others count as zero, which the factor alone
  // does not do: 0 times infinity is NaN.
  Ints finite[MAX_VECTORS];

  // Scales some values, one an example.
  INLINE Wide scale(Floats values, int vector) const {
    const Wide w = widen(keep_where(values, finite[vector]));
    return {w.low * factor[vector].low, w.high * factor[vector].high};
  }
};

// A layer of the network: it reads one tensor and writes another.
struct Layer {
  // Which tensors.
  int in = 0;
  int out = 0;
  // Whether the gradient of `in` is needed.
  bool carries_back = true;
  // Whether another layer has written to that gradient before.
  bool adds = false;
  ParameterBlock weight;
  ParameterBlock bias;

  virtual ~Layer() = default;

  // How much of the shared scratch memory it needs, in floats or vectors per vector of examples.
  virtual Index packed_floats() const { return 0; }
  virtual Index input_row_floats() const { return 0; }
  virtual Index scaled_vectors() const { return 0; }
  virtual Index lane_sum_count() const { return 0; }
  virtual Index saved_vectors() const { return 0; }
  void place_sums(Index at) { first_sum = at; }
  void place_saved(Index at) { first_saved = at; }

  virtual void forward(Work& work) const = 0;
  // The gradient of the input; of the weights too, unless examples are clipped one by one.
  virtual void backward(Work& work) const = 0;
  // After the last block of a step.
  virtual void finish_step(Work&) const {}
  // Clipping example by example: first the norm that every example has, then the clipped sum.
  virtual void add_norms(Work&, Norms&) const {}
  virtual void add_clipped(Work&, const ClipFactors&) const {}

 protected:
  Index first_sum = 0;
  Index first_saved = 0;
};

// Calls f(place in a, place in b, vectors) for every row of two tensors of the same shape.
template <class F>
INLINE void for_rows(const Tensor& a, const Tensor& b, int vectors, F f) {
  for (Index c = 0; c < a.channels; c++) {
    for (Index y = 0; y < a.height; y++) {
      f(a.at(c, y, 0) * vectors, b.at(c, y, 0) * vectors, a.width * vectors);
    }
  }
}

// ---- layers whose weight gradients are first summed lane by lane

// Lanes are examples, so a sum over examples is one over lanes. It costs shuffles, and is made
// once: at the end of a step; of a block, where examples are clipped one by one.
struct LaneGradients : Layer {
  Index lane_sum_count() const override {
    return weight.size() + (bias.exists() ? bias.length : 0);
  }

  void finish_step(Work& work) const override {
    if (work.per_example) return;
    const Floats* sum = work.sums + first_sum * work.vectors;
    const auto add = [&](Floats& row, Index i, int) INLINE_LAMBDA { row += sum[i]; };
    reduce_lanes<LANES, Floats>(weight, work.gradient, false, 1, add);
    sum += weight.size();
    reduce_lanes<LANES, Floats>(bias, work.gradient, false, 1, add);
  }

  void add_norms(Work& work, Norms& norms) const override {
    for (int v = 0; v < work.vectors; v++) {
      const Wide sum = norms.sum_over(lane_sums(work, v), lane_sum_count(), 1);
      norms.sum[v].low += sum.low;
      norms.sum[v].high += sum.high;
    }
  }

  void add_clipped(Work& work, const ClipFactors& factors) const override {
    const Floats* sum[MAX_VECTORS];
    for (int v = 0; v < work.vectors; v++) sum[v] = lane_sums(work, v);
    const auto add = [&](Doubles& row, Index i, int v) INLINE_LAMBDA {
      const Wide clipped = factors.scale(sum[v][i], v);
      row += clipped.low;
      row += clipped.high;
    };
    reduce_lanes<HALF, Doubles>(weight, work.clipped_sum, !work.fresh, work.vectors, add);
    for (int v = 0; v < work.vectors; v++) sum[v] += weight.size();
    reduce_lanes<HALF, Doubles>(bias, work.clipped_sum, !work.fresh, work.vectors, add);
  }

 protected:
  // One set of sums for the batch, or one for every vector of examples.
  Floats* lane_sums(const Work& work, int vector) const {
    Floats* first = work.sums + first_sum * work.vectors;
    return work.per_example ? first + vector * lane_sum_count() : first;
  }
  bool sums_begin(const Work& work) const { return work.per_example || work.fresh; }

 private:
  // Parameter i gets the sum over the N lanes of what add(row, i, v) adds for every vector v.
  template <int N, class V, class T, class F>
  static INLINE void reduce_lanes(const ParameterBlock& block, T* gradient, bool adds, int vectors,
                                  F add) {
    if (!block.exists()) return;
    const Index n = block.size();
    for (Index i = 0; i < n; i += N) {
      V row[N]{};
      for (int v = 0; v < vectors; v++) {
        if (i + N <= n) {
          UNROLL for (int l = 0; l < N; l++) add(row[l], i + l, v);
        } else {
          for (int l = 0; i + l < n; l++) add(row[l], i + l, v);
        }
      }
      const V total = sum_rows<N>(row);
      V* out = (V*)(gradient + block.start + i);
      *out = adds ? *out + total : total;
    }
  }
};

}  // namespace sordino
