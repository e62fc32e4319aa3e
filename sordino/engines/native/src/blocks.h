// Blocks of registers: the four inner loops in which nearly all time is spent.
//
// Each keeps ROWS x COLUMNS accumulators in registers, loads COLUMNS vectors and multiplies each by ROWS numbers, so that most
// instructions are multiply-adds. The sizes are template parameters, all other shapes are known at run time only; remainders are
// avoided by splitting a dimension into near-equal parts (10 = 5 + 5, not 8 + 2), so that there is no tail code.
#pragma once
#include <array>

#include "vectors.h"

namespace sordino {

constexpr int MAX_ROWS = REGISTERS == 32 ? 8 : 6, MAX_COLUMNS = REGISTERS == 32 ? 6 : 4;
constexpr bool fits(int rows, int columns) { return rows * columns + columns + 1 <= (REGISTERS == 32 ? 31 : 16); }
constexpr bool is_fast(int rows, int columns) { return fits(rows, columns) && (REGISTERS != 32 || rows * columns <= 24); }

constexpr int most_columns(int rows) {
  int columns = MAX_COLUMNS;
  while (columns > 1 && !is_fast(rows, columns)) columns--;
  return columns;
}
constexpr int most_rows(int columns) {
  int rows = MAX_ROWS;
  while (rows > 1 && !is_fast(rows, columns)) rows--;
  return rows;
}

constexpr Index parts(Index size, Index most) { return (size + most - 1) / most; }
constexpr Index padded(Index size) { return parts(size, LANES) * LANES; }

// Calls f(start, size) for near-equal parts of at most `most`.
template <class F>
INLINE void split(Index size, Index most, F f) {
  const Index n = parts(size, most);
  for (Index part = 0, start = 0; part < n; part++) {
    const Index length = size / n + (part < size % n);
    f(start, length);
    start += length;
  }
}

template <class Task, int ROWS, int COLUMNS>
NOINLINE void run_block(Task& task) {
  if constexpr (fits(ROWS, COLUMNS)) task.template run<ROWS, COLUMNS>();
}
template <class Task, int... I>
constexpr std::array<void (*)(Task&), sizeof...(I)> block_table(std::integer_sequence<int, I...>) {
  return {&run_block<Task, I / MAX_COLUMNS + 1, I % MAX_COLUMNS + 1>...};
}
// Runs the task's loop that was compiled for blocks of this size.
template <class Task>
INLINE void run(Task& task, Index rows, Index columns) {
  static constexpr auto table = block_table<Task>(std::make_integer_sequence<int, MAX_ROWS * MAX_COLUMNS>{});
  table[(rows - 1) * MAX_COLUMNS + columns - 1](task);
}

// ---- activations, which the loops below apply to what they store

enum Activation : int32_t { NONE = 0, RELU = 1, TANH = 2, SIGMOID = 3, GELU = 4 };

// Those that are cheap enough to stand in an inner loop; the others are applied to a layer's outputs afterwards.
INLINE Floats activated_in_loop(Floats v, Activation kind) { return kind == RELU ? greater_of(Floats{}, v) : v; }

INLINE Floats activated(Floats v, Activation kind) {
  switch (kind) {
    case RELU: return greater_of(Floats{}, v);
    case TANH: return hyperbolic_tangent(v);
    case SIGMOID: return logistic(v);
    case GELU: return v * normal_distribution(v);
    default: return v;
  }
}

// A gradient carried back through an activation of which only the result is kept (never GELU).
INLINE Floats carried_back(Floats gradient, Activation kind, Floats result) {
  switch (kind) {
    case RELU: return kept(gradient, result > Floats{});
    case TANH: return gradient - gradient * result * result;
    case SIGMOID: return gradient * result * (1.0f - result);
    default: return gradient;
  }
}

// ---- correlation: forward and input gradient of a convolution, input gradient of a linear layer

// Lanes are examples. A row of pixels is contiguous, so the columns of a block may span pixels and vectors of examples alike. POINT
// says that there is one tap, which spares the two inner loops.
template <bool POINT>
struct Correlation {
  const Floats* in;
  Floats* out;
  const float* weights;  // [channel][tap y][tap x][row of the block]
  const float* bias;     // or null
  Activation activation;
  const Floats* results;   // where not null: what the activation before gave, through which `out` is carried back
  Activation back;         // that activation
  bool adds;               // to what `out` holds
  Index rows, in_row, out_row;
  Index chunks, in_chunk, out_chunk;
  Index out_channel;
  Index channels, in_channel;
  Index taps_y, in_tap_y, taps_x, in_tap_x;
  Index weight_channel, weight_y, weight_x;

  template <int ROWS, int COLUMNS>
  INLINE void run() const {
    const Index inner_x = taps_x, step_x = in_tap_x, step_y = in_tap_y, step_w = weight_x;
    for (Index y = 0; y < rows; y++) {
      for (Index chunk = 0; chunk < chunks; chunk++) {
        Floats sum[ROWS][COLUMNS];
        UNROLL for (int r = 0; r < ROWS; r++) {
          Floats b = bias ? splat(bias[r]) : Floats{};
          UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = b;
        }
        const Floats* plane = in + y * in_row + chunk * in_chunk;
        const float* plane_weights = weights;
        for (Index channel = 0; channel < channels; channel++, plane += in_channel, plane_weights += weight_channel) {
          if constexpr (POINT) {
            multiply<ROWS, COLUMNS>(sum, plane, plane_weights);
          } else {
            const Floats* line = plane;
            const float* line_weights = plane_weights;
            for (Index ty = 0; ty < taps_y; ty++, line += step_y, line_weights += weight_y) {
              const Floats* tap = line;
              const float* tap_weights = line_weights;
              for (Index tx = 0; tx < inner_x; tx++, tap += step_x, tap_weights += step_w) {
                multiply<ROWS, COLUMNS>(sum, tap, tap_weights);
              }
            }
          }
        }
        const Index place = y * out_row + chunk * out_chunk;
        UNROLL for (int r = 0; r < ROWS; r++) {
          UNROLL for (int c = 0; c < COLUMNS; c++) {
            const Index at = place + r * out_channel + c;
            Floats v = activated_in_loop(sum[r][c], activation);
            if (results) v = carried_back(v, back, results[at]);
            if (adds) v += out[at];
            out[at] = v;
          }
        }
      }
    }
  }

  template <int ROWS, int COLUMNS>
  static INLINE void multiply(Floats (&sum)[ROWS][COLUMNS], const Floats* values, const float* factors) {
    Floats a[COLUMNS];
    UNROLL for (int c = 0; c < COLUMNS; c++) a[c] = values[c];
    UNROLL for (int r = 0; r < ROWS; r++) {
      UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] += a[c] * factors[r];
    }
  }
};

// One row of `length` vectors, in chunks of near-equal size.
INLINE void correlate_row(Correlation<false> task, Index channels_out, Index length) {
  const Index n = parts(length, most_columns((int)channels_out)), columns = length / n, longer = length % n;
  if (longer > 0) {
    task.chunks = longer, task.in_chunk = task.out_chunk = columns + 1;
    run(task, channels_out, columns + 1);
    const Index done = longer * (columns + 1);
    task.in += done, task.out += done;
    if (task.results) task.results += done;
  }
  task.chunks = n - longer, task.in_chunk = task.out_chunk = columns;
  run(task, channels_out, columns);
}

// Pixel by pixel, for strides: the columns are the vectors of examples of one pixel.
INLINE void correlate_pixels(Correlation<false> task, Index channels_out, Index pixels, Index vectors, Index in_step, Index out_step) {
  task.chunks = pixels, task.in_chunk = in_step, task.out_chunk = out_step;
  const int most = most_rows((int)vectors);
  if (channels_out <= most) return run(task, channels_out, vectors);
  // Blocks of fewer rows read every `channels_out`-th weight: the packing is by the larger block.
  split(channels_out, most, [&](Index start, Index rows) {
    Correlation<false> part = task;
    part.weights += start, part.out += start * task.out_channel;
    if (part.bias) part.bias += start;
    if (part.results) part.results += start * task.out_channel;
    run(part, rows, vectors);
  });
}

// ---- linear forward: rows of the weight matrix times examples

struct LinearForward {
  const Floats* in;
  Floats* out;
  const float* weights;
  const float* bias;
  Activation activation;
  Index inputs, weight_row;

  template <int ROWS, int COLUMNS>
  INLINE void run() const {
    Floats sum[ROWS][COLUMNS];
    const float* row[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
      row[r] = weights + r * weight_row;
      Floats b = bias ? splat(bias[r]) : Floats{};
      UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = b;
    }
    const Floats* p = in;
    for (Index i = 0, n = inputs; i < n; i++, p += COLUMNS) {
      Floats a[COLUMNS];
      UNROLL for (int c = 0; c < COLUMNS; c++) a[c] = p[c];
      UNROLL for (int r = 0; r < ROWS; r++) {
        const float w = row[r][i];
        UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] += a[c] * w;
      }
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
      UNROLL for (int c = 0; c < COLUMNS; c++) out[r * COLUMNS + c] = activated_in_loop(sum[r][c], activation);
    }
  }
};

// ---- weight gradient of a convolution: output channels times taps, any taps, each a pointer into the input

// Sums stay apart per lane: over examples they are reduced once per step, and with one vector of examples they are the gradients of
// these examples.
struct TapGradients {
  const Floats* tap[MAX_COLUMNS];
  const Floats* gradient;
  Index gradient_channel, rows, in_row, gradient_row, pixels, in_step, gradient_step;
  Floats* sums;
  Index sums_row;
  bool fresh;

  template <int ROWS, int COLUMNS>
  INLINE void run() const {
    Floats sum[ROWS][COLUMNS];
    UNROLL for (int r = 0; r < ROWS; r++) {
      UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = fresh ? Floats{} : sums[r * sums_row + c];
    }
    const Floats *p[COLUMNS], *d[ROWS];
    UNROLL for (int c = 0; c < COLUMNS; c++) p[c] = tap[c];
    UNROLL for (int r = 0; r < ROWS; r++) d[r] = gradient + r * gradient_channel;
    const Index from_step = in_step, to_step = gradient_step, end = pixels * gradient_step;
    for (Index y = 0; y < rows; y++) {
      for (Index at = 0, from = 0; at < end; at += to_step, from += from_step) {
        Floats a[COLUMNS];
        UNROLL for (int c = 0; c < COLUMNS; c++) a[c] = p[c][from];
        UNROLL for (int r = 0; r < ROWS; r++) {
          Floats g = d[r][at];
          pin(g);  // else GCC loads it again for every product
          UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] += g * a[c];
        }
      }
      UNROLL for (int c = 0; c < COLUMNS; c++) p[c] += in_row;
      UNROLL for (int r = 0; r < ROWS; r++) d[r] += gradient_row;
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
      UNROLL for (int c = 0; c < COLUMNS; c++) sums[r * sums_row + c] = sum[r][c];
    }
  }
};

// ---- weight gradient of a linear layer: lanes are input features, so that the rows of the matrix are stored whole

struct LinearGradients {
  const float* const* inputs;  // one pointer per example
  Index examples;
  const float* gradient;  // [output][example]
  Index gradient_row;
  float* sums;
  Index sums_row, feature;
  bool fresh;

  template <int ROWS, int COLUMNS>
  INLINE void run() const {
    Floats sum[ROWS][COLUMNS];
    const float* d[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) d[r] = gradient + r * gradient_row;
    float* place = sums + feature;
    const Index stride = sums_row, first = feature;
    UNROLL for (int r = 0; r < ROWS; r++) {
      UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = fresh ? Floats{} : ((Floats*)(place + r * stride))[c];
    }
    for (Index b = 0, n = examples; b < n; b++) {
      const LooseFloats* p = (const LooseFloats*)(inputs[b] + first);
      Floats a[COLUMNS];
      UNROLL for (int c = 0; c < COLUMNS; c++) a[c] = p[c];
      UNROLL for (int r = 0; r < ROWS; r++) {
        const float g = d[r][b];
        UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] += a[c] * g;
      }
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
      UNROLL for (int c = 0; c < COLUMNS; c++) ((Floats*)(place + r * stride))[c] = sum[r][c];
    }
  }
};

}  // namespace sordino
