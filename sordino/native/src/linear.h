// Linear layers. Their input has no frame, so it is a plain matrix [feature][example].
#pragma once
#include "work.h"

namespace sordino {

struct Linear : Layer {
  Index inputs;
  Index outputs;

  // Columns of the weights that are copied together, see carry_gradient().
  static constexpr Index TILE = 48;
  // Floats of a weight matrix beyond which its columns are copied before they are read.
  static constexpr Index LARGE_MATRIX = 65536;

  Index packed_floats() const override { return outputs * TILE; }
  Index input_row_floats() const override { return padded_size(inputs) * LANES; }
  Index scaled_vectors() const override { return outputs; }

  void forward(Work& work) const override {
    const Tensor& to = work.tensor(out);
    const int vectors = work.vectors;
    Floats* values = work.values(to);
    LinearForward task{};
    task.in = work.values(work.tensor(in));
    task.activation = to.activation;
    task.inputs = inputs;
    task.weight_row = weight.stride;
    for_parts(outputs, most_rows(vectors), [&](Index start, Index rows) {
      task.weights = work.weights + weight.start + start * weight.stride;
      task.bias = bias.exists() ? work.weights + bias.start + start : nullptr;
      task.out = values + start * vectors;
      run_block(task, rows, vectors);
    });
    if (to.activation > RELU) {
      for (Index i = 0; i < outputs * vectors; i++) values[i] = activate(values[i], to.activation);
    }
  }

  void backward(Work& work) const override {
    if (!work.per_example) add_weight_gradients(work);
    if (carries_back) carry_gradient(work);
  }

  // The gradient of one example is the outer product of its input and its output gradient, so its
  // norm is a product of norms. The bias is the weight of an input of 1.
  void add_norms(Work& work, Norms& norms) const override {
    const Floats* x = work.values(work.tensor(in));
    const Floats* d = work.gradients(work.tensor(out));
    const double bias_input = bias.exists() ? 1.0 : 0.0;
    for (int v = 0; v < work.vectors; v++) {
      const Wide input = norms.sum_over(x + v, inputs, work.vectors);
      const Wide back = norms.sum_over(d + v, outputs, work.vectors);
      norms.sum[v].low += (input.low + bias_input) * back.low;
      norms.sum[v].high += (input.high + bias_input) * back.high;
    }
  }

  // The clipped sum is a product of matrices: what came back, scaled example by example, times the
  // inputs.
  void add_clipped(Work& work, const ClipFactors& factors) const override {
    const int vectors = work.vectors;
    Floats* x = work.values(work.tensor(in));
    const Floats* d = work.gradients(work.tensor(out));
    Wide* scaled = (Wide*)work.scaled;
    bool all_finite = true;
    for (int v = 0; v < vectors; v++) {
      for (int l = 0; l < LANES; l++) all_finite &= factors.finite[v][l] != 0;
      for (Index j = 0; j < outputs; j++) {
        scaled[j * vectors + v] = factors.scale(d[j * vectors + v], v);
      }
    }
    // A factor of 0 times an input of infinity must not come back.
    if (!all_finite) {
      for (int v = 0; v < vectors; v++) {
        for (Index i = 0; i < inputs; i++) {
          x[i * vectors + v] = keep_where(x[i * vectors + v], factors.finite[v]);
        }
      }
    }
    const float* input_rows[MAX_EXAMPLES];
    transpose_inputs(work, input_rows, all_finite);
    ClippedGradients task{};
    task.inputs = input_rows;
    task.examples = work.examples;
    task.gradient_row = vectors * LANES;
    task.sums_row = weight.stride;
    task.fresh = work.fresh;
    for_parts(outputs, MAX_ROWS, [&](Index start, Index rows) {
      task.gradient = work.scaled + start * vectors * LANES;
      task.sums = work.clipped_sum + weight.start + start * weight.stride;
      const Index columns_in_all = padded_size(inputs) / HALF;
      for_parts(columns_in_all, most_columns((int)rows), [&](Index first, Index columns) {
        task.feature = first * HALF;
        run_block(task, rows, columns);
      });
    });
    if (bias.exists()) add_clipped_bias(work, scaled);
  }

 private:
  // The sum over the examples of what came back, scaled.
  void add_clipped_bias(Work& work, const Wide* scaled) const {
    const int vectors = work.vectors;
    for (Index j = 0; j < outputs; j++) {
      Wide sum = scaled[j * vectors];
      for (int v = 1; v < vectors; v++) {
        sum.low += scaled[j * vectors + v].low;
        sum.high += scaled[j * vectors + v].high;
      }
      double& g = work.clipped_sum[bias.start + j];
      g = sum_of_lanes(sum.low + sum.high) + (work.fresh ? 0.0 : g);
    }
  }

  // The gradient of the input: the transposed weights times what came back, as a correlation of one
  // tap.
  void carry_gradient(Work& work) const {
    const Tensor& from = work.tensor(in);
    const Tensor& to = work.tensor(out);
    const int vectors = work.vectors;
    const int most = most_rows(vectors);
    Correlation<true> task{};
    task.in = work.gradients(to);
    task.in_channel = vectors;
    task.channels = outputs;
    task.activation_before = from.activation;
    task.adds = adds;
    task.rows = 1;
    task.chunks = 1;
    task.out_channel = vectors;
    const auto multiply_columns = [&](const float* weights, Index stride, Index first,
                                      Index count) {
      task.weight_channel = stride;
      for_parts(count, most, [&](Index start, Index rows) {
        const Index place = (first + start) * vectors;
        task.weights = weights + start;
        task.out = work.gradients(from) + place;
        task.results = from.activation == NONE ? nullptr : work.values(from) + place;
        run_block(task, rows, vectors);
      });
    };
    const float* weights = work.weights + weight.start;
    if (outputs * weight.stride <= LARGE_MATRIX) {
      return multiply_columns(weights, weight.stride, 0, inputs);
    }
    // Rows of a large matrix lie so far apart that they fall on the same lines of the cache: copy
    // a strip of columns first.
    for (Index first = 0; first < inputs; first += TILE) {
      const Index count = inputs - first < TILE ? inputs - first : TILE;
      for (Index j = 0; j < outputs; j++) {
        const float* row = weights + j * weight.stride + first;
        std::memcpy(work.packed + j * TILE, row, sizeof(float) * count);
      }
      multiply_columns(work.packed, TILE, first, count);
    }
  }

  // The gradient of the batch: what came back times the inputs, then its sum for the bias.
  void add_weight_gradients(Work& work) const {
    const int vectors = work.vectors;
    const float* input_rows[MAX_EXAMPLES];
    transpose_inputs(work, input_rows, true);
    const Floats* d = work.gradients(work.tensor(out));
    LinearGradients task{};
    task.inputs = input_rows;
    task.examples = work.examples;
    task.gradient_row = vectors * LANES;
    task.sums_row = weight.stride;
    task.fresh = work.fresh;
    // Outputs in the outer loop, so that gradients are stored in order.
    for_parts(outputs, MAX_ROWS, [&](Index start, Index rows) {
      task.gradient = (const float*)(d + start * vectors);
      task.sums = work.gradient + weight.start + start * weight.stride;
      const Index columns_in_all = padded_size(inputs) / LANES;
      for_parts(columns_in_all, most_columns((int)rows), [&](Index first, Index columns) {
        task.feature = first * LANES;
        run_block(task, rows, columns);
      });
    });
    if (!bias.exists()) return;
    for (Index j = 0; j < outputs; j++) {
      Floats sum = d[j * vectors];
      for (int v = 1; v < vectors; v++) sum += d[j * vectors + v];
      float* g = work.gradient + bias.start + j;
      *g = sum_of_lanes(sum) + (work.fresh ? 0.0f : *g);
    }
  }

  // The inputs with one example a row. In the first layer these are the records, where their rows
  // are whole vectors; but not where `from_records` is false, for in them nothing was put to zero.
  void transpose_inputs(Work& work, const float** input_rows, bool from_records) const {
    const bool whole_vectors = work.records_are_padded || inputs % LANES == 0;
    if (from_records && in == 0 && whole_vectors) {
      for (int b = 0; b < work.examples; b++) input_rows[b] = work.records[b];
      return;
    }
    const Floats* x = work.values(work.tensor(in));
    const int vectors = work.vectors;
    const Index width = padded_size(inputs);
    for (int v = 0; v < count_parts(work.examples, LANES); v++) {
      for (Index i = 0; i < width; i += LANES) {
        Floats row[LANES];
        if (i + LANES <= inputs) {
          UNROLL for (int l = 0; l < LANES; l++) row[l] = x[(i + l) * vectors + v];
        } else {
          UNROLL for (int l = 0; l < LANES; l++) {
            row[l] = i + l < inputs ? x[(i + l) * vectors + v] : Floats{};
          }
        }
        transpose<LANES>(row);
        UNROLL for (int l = 0; l < LANES; l++) {
          *(Floats*)(work.input_rows + (v * LANES + l) * width + i) = row[l];
        }
      }
    }
    for (int b = 0; b < work.examples; b++) input_rows[b] = work.input_rows + b * width;
  }
};

}  // namespace sordino
