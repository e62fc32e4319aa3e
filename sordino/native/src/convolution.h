// Convolutions of any kernel, stride and padding. No patches are copied out: with the examples
// innermost every tap is a shifted row.
#pragma once
#include <algorithm>

#include "work.h"

namespace sordino {

struct Convolution : LaneGradients {
  Index channels;
  Index filters;
  Index kernel_y;
  Index kernel_x;
  Index stride_y;
  Index stride_x;
  Index padding_y;
  Index padding_x;

  Index taps() const { return kernel_y * kernel_x; }
  Index packed_floats() const override { return filters * channels * taps(); }

  // Strip by strip of rows, and in each a block of filters at a time, so that the inputs of a strip
  // are in the second-level cache for all filters.
  void forward(Work& work) const override {
    const Tensor& from = work.tensor(in);
    const Tensor& to = work.tensor(out);
    const int vectors = work.vectors;
    pack_forward(work.weights + weight.start, work.packed);
    const Floats* x = work.values(from) + from.at(0, -padding_y, -padding_x) * vectors;
    Floats* y = work.values(to) + to.at(0, 0, 0) * vectors;
    Correlation<false> task{};
    task.activation = to.activation;
    task.in_row = stride_y * from.row() * vectors;
    task.out_row = to.row() * vectors;
    task.out_channel = to.plane() * vectors;
    task.channels = channels;
    task.in_channel = from.plane() * vectors;
    task.taps_y = kernel_y;
    task.in_tap_y = from.row() * vectors;
    task.taps_x = kernel_x;
    task.in_tap_x = vectors;
    const Index row_vectors = channels * from.row() * stride_y * vectors;
    const Index strip = strip_rows(row_vectors, kernel_y, to.height);
    for (Index first = 0; first < to.height; first += strip) {
      task.rows = std::min(strip, to.height - first);
      for_parts(filters, MAX_ROWS, [&](Index start, Index rows) {
        task.weights = work.packed + start * channels * taps();
        task.bias = bias.exists() ? work.weights + bias.start + start : nullptr;
        task.weight_x = rows;
        task.weight_y = kernel_x * rows;
        task.weight_channel = taps() * rows;
        task.in = x + first * task.in_row;
        task.out = y + start * task.out_channel + first * task.out_row;
        if (stride_x == 1) {
          correlate_row(task, rows, to.width * vectors);
        } else {
          correlate_pixels(task, rows, to.width, vectors, stride_x * vectors, vectors);
        }
      });
    }
    if (to.activation > RELU) {
      Floats* values = work.values(to);
      for_rows(to, to, vectors, [&](Index at, Index, Index n) {
        for (Index i = at; i < at + n; i++) values[i] = activate(values[i], to.activation);
      });
    }
  }

  void backward(Work& work) const override {
    const int sets = work.per_example ? work.vectors : 1;
    for (int v = 0; v < sets; v++) add_weight_gradients(work, v);
    if (carries_back) carry_gradient(work);
  }

 private:
  // Bytes of input that are worked on together, so that they stay in the second-level cache.
  static constexpr Index STRIP_BYTES = 700000;

  // Rows of output that need no more input than that.
  static Index strip_rows(Index vectors_per_row, Index kernel, Index height) {
    const Index rows = STRIP_BYTES / (vectors_per_row * LANES * 4) - kernel + 1;
    return std::clamp<Index>(rows, 1, height);
  }

  // [block of filters][channel][tap][filter of the block]
  void pack_forward(const float* from, float* to) const {
    const Index each = channels * taps();
    for_parts(filters, MAX_ROWS, [&](Index start, Index rows) {
      float* block = to + start * each;
      for (Index r = 0; r < rows; r++) {
        for (Index t = 0; t < each; t++) block[t * rows + r] = from[(start + r) * each + t];
      }
    });
  }

  // [block of channels][filter][tap, last first][channel of the block]
  void pack_backward(const float* from, float* to) const {
    for_parts(channels, MAX_ROWS, [&](Index start, Index rows) {
      float* block = to + start * filters * taps();
      for (Index f = 0; f < filters; f++) {
        for (Index r = 0; r < rows; r++) {
          const float* kernel = from + (f * channels + start + r) * taps();
          for (Index t = 0; t < taps(); t++) {
            block[(f * taps() + t) * rows + r] = kernel[taps() - 1 - t];
          }
        }
      }
    });
  }

  // The taps of the reversed kernel that meet a pixel of the input along one axis: tap `first`,
  // then every `stride`-th, `count` of them. The first one meets output `output`.
  struct Meeting {
    Index first;
    Index count;
    Index output;

    bool same_taps(const Meeting& other) const {
      return first == other.first && count == other.count;
    }
  };

  // Tap k of the kernel meets output o where pixel + padding = o stride + k; reversed, it is tap
  // kernel - 1 - k.
  static Meeting find_meeting(Index pixel, Index kernel, Index stride, Index padding,
                              Index outputs) {
    const Index place = pixel + padding;
    // The first output, ceil((place - kernel + 1) / stride), but not below 0.
    const Index low = place - kernel + 1 <= 0 ? 0 : (place - kernel + stride) / stride;
    const Index high = std::min(outputs - 1, place / stride);
    const Index count = high >= low ? high - low + 1 : 0;
    return {kernel - 1 - (place - low * stride), count, low};
  }

  // The gradient of the input: every pixel gathers from the outputs that it went into. In the
  // interior all rows and pixels meet the same taps and go in chunks; at borders, and with strides,
  // pixel by pixel with the taps that meet it: padding the gradient would cost more.
  void carry_gradient(Work& work) const {
    const Tensor& from = work.tensor(in);
    const Tensor& to = work.tensor(out);
    const int vectors = work.vectors;
    pack_backward(work.weights + weight.start, work.packed);
    Correlation<false> task{};
    task.activation_before = from.activation;
    task.adds = adds;
    task.in_row = to.row() * vectors;
    task.out_row = from.row() * vectors;
    task.out_channel = from.plane() * vectors;
    task.in_channel = to.plane() * vectors;
    task.in_tap_y = to.row() * vectors;
    task.in_tap_x = vectors;
    const Index strip = strip_rows(filters * to.row() * vectors, kernel_y, from.height);
    Index rows = 1;
    for (Index y = 0; y < from.height; y += rows) {
      const Meeting meeting = find_meeting(y, kernel_y, stride_y, padding_y, to.height);
      const Index most = std::min(strip, from.height - y);
      rows = 1;
      while (stride_y == 1 && rows < most &&
             find_meeting(y + rows, kernel_y, 1, padding_y, to.height).same_taps(meeting)) {
        rows++;
      }
      task.rows = rows;
      task.taps_y = meeting.count;
      carry_rows(work, task, y, meeting);
    }
  }

  // Some rows of the input, all of which meet the same taps.
  void carry_rows(Work& work, const Correlation<false>& task, Index y, const Meeting& my) const {
    const Tensor& from = work.tensor(in);
    const Tensor& to = work.tensor(out);
    const int vectors = work.vectors;
    for_parts(channels, MAX_ROWS, [&](Index start, Index block) {
      Correlation<false> part = task;
      part.weight_channel = taps() * block;
      part.weight_y = stride_y * kernel_x * block;
      part.weight_x = stride_x * block;
      Index pixels = 1;
      for (Index x = 0; x < from.width; x += pixels) {
        const Meeting mx = find_meeting(x, kernel_x, stride_x, padding_x, to.width);
        pixels = 1;
        while (stride_x == 1 && x + pixels < from.width &&
               find_meeting(x + pixels, kernel_x, 1, padding_x, to.width).same_taps(mx)) {
          pixels++;
        }
        part.taps_x = mx.count;
        part.in = work.gradients(to);
        part.weights = work.packed + start * filters * taps();
        if (my.count > 0 && mx.count > 0) {
          part.channels = filters;
          part.in += to.at(0, my.output, mx.output) * vectors;
          part.weights += (my.first * kernel_x + mx.first) * block;
        } else {
          part.channels = 0;
        }
        const Index place = from.at(start, y, x) * vectors;
        part.out = work.gradients(from) + place;
        part.results = from.activation == NONE ? nullptr : work.values(from) + place;
        correlate_row(part, block, pixels * vectors);
      }
    });
  }

  // Adds the weight gradients of the batch, or of the examples of one vector: for every filter and
  // tap the products of the output's gradient with the input under the tap.
  void add_weight_gradients(Work& work, int vector) const {
    const Tensor& from = work.tensor(in);
    const Tensor& to = work.tensor(out);
    const int vectors = work.vectors;
    const Index each = channels * taps();
    Floats* sums = lane_sums(work, vector);
    const Floats* x = work.values(from) + from.at(0, -padding_y, -padding_x) * vectors;
    const Floats* d = work.gradients(to) + to.at(0, 0, 0) * vectors;
    // Without strides the pixels and vectors of a row are one run; else every vector of examples
    // is a run with steps.
    const bool one_run = stride_x == 1 && !work.per_example;
    const int first_vector = one_run ? 0 : vector;
    const int last_vector = one_run || work.per_example ? first_vector + 1 : vectors;
    TapGradients task{};
    task.gradient_channel = to.plane() * vectors;
    task.gradient_row = to.row() * vectors;
    task.in_row = stride_y * from.row() * vectors;
    task.pixels = one_run ? to.width * vectors : to.width;
    task.gradient_step = one_run ? 1 : vectors;
    task.in_step = one_run ? 1 : stride_x * vectors;
    task.sums_row = each;
    // A strip of rows, so that the gradients of a block of filters and the inputs under them stay
    // in the second-level cache.
    const Index row_vectors = (MAX_ROWS * to.row() + from.row() * stride_y) * vectors;
    const Index strip = strip_rows(row_vectors, kernel_y, to.height);
    for (int v = first_vector; v < last_vector; v++) {
      for (Index y = 0; y < to.height; y += strip) {
        task.rows = std::min(strip, to.height - y);
        task.fresh = v == first_vector && y == 0 && sums_begin(work);
        for_parts(filters, MAX_ROWS, [&](Index filter, Index rows) {
          task.gradient = d + filter * task.gradient_channel + y * task.gradient_row + v;
          for_parts(each, most_columns((int)rows), [&](Index tap, Index columns) {
            for (Index t = 0; t < columns; t++) {
              const Index channel = (tap + t) / taps();
              const Index ky = (tap + t) % taps() / kernel_x;
              const Index kx = (tap + t) % kernel_x;
              const Index line = channel * from.plane() + (y * stride_y + ky) * from.row();
              task.tap[t] = x + (line + kx) * vectors + v;
            }
            task.sums = sums + filter * each + tap;
            run_block(task, rows, columns);
          });
        });
      }
    }
    if (bias.exists()) add_bias_gradients(work, vector, sums + filters * each);
  }

  // The sum of the output's gradient over all pixels, in two sums, so that an addition need not
  // wait for the one before.
  void add_bias_gradients(Work& work, int vector, Floats* sums) const {
    const Tensor& to = work.tensor(out);
    const int vectors = work.vectors;
    const int step = work.per_example ? vectors : 1;
    const int first = work.per_example ? vector : 0;
    const Index n = to.width * vectors;
    for (Index f = 0; f < filters; f++) {
      Floats even = sums_begin(work) ? Floats{} : sums[f];
      Floats odd{};
      for (Index y = 0; y < to.height; y++) {
        const Floats* d = work.gradients(to) + to.at(f, y, 0) * vectors + first;
        Index i = 0;
        for (; i + step < n; i += 2 * step) {
          even += d[i];
          odd += d[i + step];
        }
        if (i < n) even += d[i];
      }
      sums[f] = even + odd;
    }
  }
};

}  // namespace sordino
