// Linear layers. Their input has no frame, so it is a plain matrix [feature][example].
#pragma once
#include "work.h"

namespace sordino {

struct Linear : Layer {
  Index inputs, outputs;

  static constexpr Index TILE = 48;  // columns of the weights that are copied together, see back()
  Index packed_floats() const override { return outputs * TILE; }
  Index turned_floats(const std::vector<Tensor>&) const override { return padded(inputs) * LANES; }

  void forward(Work& work) const override {
    const Tensor& to = work.tensor(out);
    const int vectors = work.vectors;
    Floats* values = work.values(to);
    LinearForward task{work.values(work.tensor(in)), nullptr, nullptr, nullptr, to.activation, inputs, weight.stride};
    split(outputs, most_rows(vectors), [&](Index start, Index rows) {
      task.weights = work.weights + weight.start + start * weight.stride;
      task.bias = bias.exists() ? work.weights + bias.start + start : nullptr;
      task.out = values + start * vectors;
      run(task, rows, vectors);
    });
    if (to.activation > RELU) {
      for (Index i = 0; i < outputs * vectors; i++) values[i] = activated(values[i], to.activation);
    }
  }

  void backward(Work& work) const override {
    if (!work.per_example) add_weight_gradients(work, true);
    if (carries_back) back(work);
  }

  // The gradient of one example is the outer product of its input and its output gradient, so its norm is a product of norms.
  void add_norms(Work& work, Norms& norms) const override {
    const Floats *x = work.values(work.tensor(in)), *d = work.gradients(work.tensor(out));
    for (int v = 0; v < work.vectors; v++) {
      const Wide own = norms.of(x + v, inputs, work.vectors), back = norms.of(d + v, outputs, work.vectors);
      const double constant = bias.exists() ? 1.0 : 0.0;  // the bias is the weight of an input of 1
      norms.sum[v].low += (own.low + constant) * back.low;
      norms.sum[v].high += (own.high + constant) * back.high;
    }
  }

  void add_clipped(Work& work, const Scales& scales) const override {
    const int vectors = work.vectors;
    Floats *x = work.values(work.tensor(in)), *d = work.gradients(work.tensor(out));
    bool all_finite = true;
    for (int v = 0; v < vectors; v++) {
      for (int l = 0; l < LANES; l++) all_finite &= scales.finite[v][l] != 0;
      for (Index j = 0; j < outputs; j++) d[j * vectors + v] = kept(d[j * vectors + v] * scales.factor[v], scales.finite[v]);
    }
    for (int v = 0; v < vectors && !all_finite; v++) {  // 0 times infinity must not come back
      for (Index i = 0; i < inputs; i++) x[i * vectors + v] = kept(x[i * vectors + v], scales.finite[v]);
    }
    add_weight_gradients(work, all_finite);
  }

 private:
  void back(Work& work) const {
    const Tensor &from = work.tensor(in), &to = work.tensor(out);
    const int vectors = work.vectors, most = most_rows(vectors);
    Correlation<true> task{};
    task.in = work.gradients(to), task.in_channel = vectors, task.channels = outputs;
    task.back = from.activation, task.adds = adds;
    task.rows = task.chunks = 1, task.out_channel = vectors;
    const auto columns = [&](const float* weights, Index stride, Index first, Index count) {
      task.weight_channel = stride;
      split(count, most, [&](Index start, Index rows) {
        task.weights = weights + start;
        task.out = work.gradients(from) + (first + start) * vectors;
        task.results = from.activation == NONE ? nullptr : work.values(from) + (first + start) * vectors;
        run(task, rows, vectors);
      });
    };
    const float* weights = work.weights + weight.start;
    if (outputs * weight.stride <= 65536) return columns(weights, weight.stride, 0, inputs);
    // Rows of a large matrix lie so far apart that they fall on the same lines of the cache: copy a strip of columns first.
    for (Index first = 0; first < inputs; first += TILE) {
      const Index count = inputs - first < TILE ? inputs - first : TILE;
      for (Index j = 0; j < outputs; j++) {
        std::memcpy(work.packed + j * TILE, weights + j * weight.stride + first, sizeof(float) * count);
      }
      columns(work.packed, TILE, first, count);
    }
  }

  // `from_records`: a first layer may read the records themselves, in which nothing has been put to zero.
  void add_weight_gradients(Work& work, bool from_records) const {
    const int vectors = work.vectors;
    const float* input_rows[MAX_EXAMPLES];
    turn_inputs(work, input_rows, from_records);
    const Floats* d = work.gradients(work.tensor(out));
    LinearGradients task{input_rows, work.examples, nullptr, vectors * LANES, nullptr, weight.stride, 0, work.fresh};
    split(outputs, MAX_ROWS, [&](Index start, Index rows) {  // outputs outside: gradients are stored in order
      task.gradient = (const float*)(d + start * vectors);
      task.sums = work.gradient + weight.start + start * weight.stride;
      split(padded(inputs) / LANES, most_columns((int)rows), [&](Index first, Index columns) {
        task.feature = first * LANES;
        run(task, rows, columns);
      });
    });
    if (!bias.exists()) return;
    for (Index j = 0; j < outputs; j++) {
      Floats sum = d[j * vectors];
      for (int v = 1; v < vectors; v++) sum += d[j * vectors + v];
      float* g = work.gradient + bias.start + j;
      *g = total(sum) + (work.fresh ? 0.0f : *g);
    }
  }

  // The inputs with one example a row. In the first layer these are the records, where their rows are whole vectors.
  void turn_inputs(Work& work, const float** input_rows, bool from_records) const {
    if (from_records && in == 0 && (work.rows_are_padded || inputs % LANES == 0)) {
      for (int b = 0; b < work.examples; b++) input_rows[b] = work.rows[b];
      return;
    }
    const Floats* x = work.values(work.tensor(in));
    const int vectors = work.vectors;
    const Index width = padded(inputs);
    for (int v = 0; v < parts(work.examples, LANES); v++) {
      for (Index i = 0; i < width; i += LANES) {
        Floats row[LANES];
        if (i + LANES <= inputs) {
          UNROLL for (int l = 0; l < LANES; l++) row[l] = x[(i + l) * vectors + v];
        } else {
          UNROLL for (int l = 0; l < LANES; l++) row[l] = i + l < inputs ? x[(i + l) * vectors + v] : Floats{};
        }
        transpose<LANES>(row);
        UNROLL for (int l = 0; l < LANES; l++) *(Floats*)(work.turned + (v * LANES + l) * width + i) = row[l];
      }
    }
    for (int b = 0; b < work.examples; b++) input_rows[b] = work.turned + b * width;
  }
};

}  // namespace sordino
