// Blocks of registers: the inner loops in which nearly all time is spent.
//
// Each keeps ROWS x COLUMNS accumulators in registers, loads COLUMNS vectors and multiplies each by
// ROWS numbers, so that most instructions are multiply-adds. The sizes are template parameters; all
// other shapes are known at run time only. Remainders are avoided by splitting a dimension into
// near-equal parts (10 = 5 + 5, not 8 + 2), so that there is no tail code.
#pragma once
#include <array>

#include "vectors.h"

namespace sordino {

constexpr int MAX_ROWS = REGISTERS == 32 ? 8 : 6;
constexpr int MAX_COLUMNS = REGISTERS == 32 ? 6 : 4;

// Whether accumulators, a row of values and one factor fit the registers.
constexpr bool fits_registers(int rows, int columns) {
  return rows * columns + columns + 1 <= (REGISTERS == 32 ? 31 : 16);
}
// Whether a block is among those that are used: with 32 registers, at most 24 accumulators.
constexpr bool is_fast(int rows, int columns) {
  return fits_registers(rows, columns) && (REGISTERS != 32 || rows * columns <= 24);
}

// The most columns of such a block by its rows; below, the most rows by its columns.
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

constexpr Index count_parts(Index size, Index most) { return (size + most - 1) / most; }
constexpr Index padded_size(Index size) { return count_parts(size, LANES) * LANES; }

// Calls f(start, size) for near-equal parts of at most `most`.
template <class F>
INLINE void for_parts(Index size, Index most, F f) {
  const Index n = count_parts(size, most);
  Index start = 0;
  for (Index part = 0; part < n; part++) {
    const Index length = size / n + (part < size % n);
    f(start, length);
    start += length;
  }
}

// One function for every size of block, in a table: a size is chosen while the program runs, from
// those that loops were compiled for.
template <class Task, int ROWS, int COLUMNS>
NOINLINE void run_sized(Task& task) {
  if constexpr (fits_registers(ROWS, COLUMNS)) task.template run<ROWS, COLUMNS>();
}
template <class Task, int... I>
constexpr std::array<void (*)(Task&), sizeof...(I)> block_table(std::integer_sequence<int, I...>) {
  return {&run_sized<Task, I / MAX_COLUMNS + 1, I % MAX_COLUMNS + 1>...};
}
// Runs the task's loop that was compiled for blocks of this size.
template <class Task>
INLINE void run_block(Task& task, Index rows, Index columns) {
  using Sizes = std::make_integer_sequence<int, MAX_ROWS * MAX_COLUMNS>;
  static constexpr auto table = block_table<Task>(Sizes{});
  table[(rows - 1) * MAX_COLUMNS + columns - 1](task);
}

// ---- activations, which the loops below apply to what they store

enum Activation : int32_t { NONE = 0, RELU = 1, TANH = 2, SIGMOID = 3, GELU = 4 };

// Applies those that are cheap enough for an inner loop. The others are applied to a layer's
// outputs afterwards.
INLINE Floats activate_in_loop(Floats v, Activation kind) {
  return kind == RELU ? greater_of(Floats{}, v) : v;
}

INLINE Floats activate(Floats v, Activation kind) {
  switch (kind) {
    case RELU:
      return greater_of(Floats{}, v);
    case TANH:
      return hyperbolic_tangent(v);
    case SIGMOID:
      return logistic(v);
    case GELU:
      return v * normal_distribution(v);
    default:
      return v;
  }
}

// Carries a gradient back through an activation of which only the result is known (never GELU).
INLINE Floats carry_back(Floats gradient, Activation kind, Floats result) {
  switch (kind) {
    case RELU:
      return keep_where(gradient, result > Floats{});
    case TANH:
      return gradient - gradient * result * result;
    case SIGMOID:
      return gradient * result * (1.0f - result);
    default:
      return gradient;
  }
}

// ---- correlation: outputs and input gradients of a convolution, input gradients of a linear layer

// Lanes are examples. A row of pixels is contiguous, so the columns of a block may span pixels and
// vectors of examples alike. POINT says that there is one tap, which spares the two inner loops.
template <bool POINT>
struct Correlation {
  const Floats* in;
  Floats* out;
  // [channel][tap y][tap x][row of the block]
  const float* weights;
  // What the sums begin with; null: zero.
  const float* bias;
  Activation activation;
  // Where not null: what the activation before gave, through which `out` is carried back.
  const Floats* results;
  Activation activation_before;
  // Whether to add to what `out` holds.
  bool adds;
  // Rows of pixels and chunks of a row, and from each to the next in the input and the output.
  Index rows;
  Index in_row;
  Index out_row;
  Index chunks;
  Index in_chunk;
  Index out_chunk;
  // From one channel of the output, a row of the block, to the next.
  Index out_channel;
  // Channels and taps that are added up, and from each to the next in the input and the weights.
  Index channels;
  Index in_channel;
  Index taps_y;
  Index in_tap_y;
  Index taps_x;
  Index in_tap_x;
  Index weight_channel;
  Index weight_y;
  Index weight_x;

  template <int ROWS, int COLUMNS>
  INLINE void run() const {
    for (Index y = 0; y < rows; y++) {
      for (Index chunk = 0; chunk < chunks; chunk++) {
        Floats sum[ROWS][COLUMNS];
        UNROLL for (int r = 0; r < ROWS; r++) {
          const Floats b = bias ? splat(bias[r]) : Floats{};
          UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = b;
        }
        add_products<ROWS, COLUMNS>(sum, in + y * in_row + chunk * in_chunk);
        const Index place = y * out_row + chunk * out_chunk;
        UNROLL for (int r = 0; r < ROWS; r++) {
          UNROLL for (int c = 0; c < COLUMNS; c++) {
            const Index at = place + r * out_channel + c;
            Floats v = activate_in_loop(sum[r][c], activation);
            if (results) v = carry_back(v, activation_before, results[at]);
            if (adds) v += out[at];
            out[at] = v;
          }
        }
      }
    }
  }

  template <int ROWS, int COLUMNS>
  INLINE void add_products(Floats (&sum)[ROWS][COLUMNS], const Floats* plane) const {
    // Copies, so that the compiler need not read them again after every store.
    const Index inner_x = taps_x;
    const Index step_x = in_tap_x;
    const Index step_y = in_tap_y;
    const Index step_weight = weight_x;
    const float* plane_weights = weights;
    for (Index channel = 0; channel < channels; channel++) {
      if constexpr (POINT) {
        multiply<ROWS, COLUMNS>(sum, plane, plane_weights);
      } else {
        const Floats* line = plane;
        const float* line_weights = plane_weights;
        for (Index ty = 0; ty < taps_y; ty++) {
          const Floats* tap = line;
          const float* tap_weights = line_weights;
          for (Index tx = 0; tx < inner_x; tx++) {
            multiply<ROWS, COLUMNS>(sum, tap, tap_weights);
            tap += step_x;
            tap_weights += step_weight;
          }
          line += step_y;
          line_weights += weight_y;
        }
      }
      plane += in_channel;
      plane_weights += weight_channel;
    }
  }

  template <int ROWS, int COLUMNS>
  static INLINE void multiply(Floats (&sum)[ROWS][COLUMNS], const Floats* values,
                              const float* factors) {
    Floats a[COLUMNS];
    UNROLL for (int c = 0; c < COLUMNS; c++) a[c] = values[c];
    UNROLL for (int r = 0; r < ROWS; r++) {
      UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] += a[c] * factors[r];
    }
  }
};

// One row of `length` vectors, in chunks of near-equal size.
INLINE void correlate_row(Correlation<false> task, Index channels_out, Index length) {
  const Index n = count_parts(length, most_columns((int)channels_out));
  const Index columns = length / n;
  const Index longer = length % n;
  if (longer > 0) {
    task.chunks = longer;
    task.in_chunk = columns + 1;
    task.out_chunk = columns + 1;
    run_block(task, channels_out, columns + 1);
    const Index done = longer * (columns + 1);
    task.in += done;
    task.out += done;
    if (task.results) task.results += done;
  }
  task.chunks = n - longer;
  task.in_chunk = columns;
  task.out_chunk = columns;
  run_block(task, channels_out, columns);
}

// Pixel by pixel, for strides: the columns are the vectors of examples of one pixel.
INLINE void correlate_pixels(Correlation<false> task, Index channels_out, Index pixels,
                             Index vectors, Index in_step, Index out_step) {
  task.chunks = pixels;
  task.in_chunk = in_step;
  task.out_chunk = out_step;
  const int most = most_rows((int)vectors);
  if (channels_out <= most) return run_block(task, channels_out, vectors);
  // Blocks of fewer rows read every `channels_out`-th weight: the packing is by the larger block.
  for_parts(channels_out, most, [&](Index start, Index rows) {
    Correlation<false> part = task;
    part.weights += start;
    part.out += start * task.out_channel;
    if (part.bias) part.bias += start;
    if (part.results) part.results += start * task.out_channel;
    run_block(part, rows, vectors);
  });
}

// ---- outputs of a linear layer: rows of the weight matrix times examples

struct LinearForward {
  const Floats* in;
  Floats* out;
  const float* weights;
  const float* bias;
  Activation activation;
  Index inputs;
  Index weight_row;

  template <int ROWS, int COLUMNS>
  INLINE void run() const {
    Floats sum[ROWS][COLUMNS];
    const float* row[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
      row[r] = weights + r * weight_row;
      const Floats b = bias ? splat(bias[r]) : Floats{};
      UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = b;
    }
    const Floats* p = in;
    const Index n = inputs;
    for (Index i = 0; i < n; i++) {
      Floats a[COLUMNS];
      UNROLL for (int c = 0; c < COLUMNS; c++) a[c] = p[c];
      UNROLL for (int r = 0; r < ROWS; r++) {
        const float w = row[r][i];
        UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] += a[c] * w;
      }
      p += COLUMNS;
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
      UNROLL for (int c = 0; c < COLUMNS; c++) {
        out[r * COLUMNS + c] = activate_in_loop(sum[r][c], activation);
      }
    }
  }
};

// ---- weight gradients of a convolution: output channels times taps, each a pointer into the input

// Sums stay apart per lane. Over a batch they are reduced once a step; with one vector of examples
// they are the gradients of these examples.
struct TapGradients {
  // Where the input under each tap begins; the columns of the block.
  const Floats* tap[MAX_COLUMNS];
  const Floats* gradient;
  Index gradient_channel;
  Index rows;
  Index in_row;
  Index gradient_row;
  Index pixels;
  Index in_step;
  Index gradient_step;
  Floats* sums;
  Index sums_row;
  // Whether to begin at zero, and not at what `sums` holds.
  bool fresh;

  template <int ROWS, int COLUMNS>
  INLINE void run() const {
    Floats sum[ROWS][COLUMNS];
    UNROLL for (int r = 0; r < ROWS; r++) {
      UNROLL for (int c = 0; c < COLUMNS; c++) {
        sum[r][c] = fresh ? Floats{} : sums[r * sums_row + c];
      }
    }
    const Floats* p[COLUMNS];
    const Floats* d[ROWS];
    UNROLL for (int c = 0; c < COLUMNS; c++) p[c] = tap[c];
    UNROLL for (int r = 0; r < ROWS; r++) d[r] = gradient + r * gradient_channel;
    const Index from_step = in_step;
    const Index to_step = gradient_step;
    const Index end = pixels * gradient_step;
    for (Index y = 0; y < rows; y++) {
      Index from = 0;
      for (Index at = 0; at < end; at += to_step) {
        Floats a[COLUMNS];
        UNROLL for (int c = 0; c < COLUMNS; c++) a[c] = p[c][from];
        UNROLL for (int r = 0; r < ROWS; r++) {
          Floats g = d[r][at];
          // Else GCC loads it again for every product.
          pin(g);
          UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] += g * a[c];
        }
        from += from_step;
      }
      UNROLL for (int c = 0; c < COLUMNS; c++) p[c] += in_row;
      UNROLL for (int r = 0; r < ROWS; r++) d[r] += gradient_row;
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
      UNROLL for (int c = 0; c < COLUMNS; c++) sums[r * sums_row + c] = sum[r][c];
    }
  }
};

// ---- weight gradients of a linear layer: lanes are input features, so that the rows of the matrix
// are stored whole

// The gradient of the batch, in float32.
struct LinearGradients {
  // One pointer per example.
  const float* const* inputs;
  Index examples;
  // [output][example]
  const float* gradient;
  Index gradient_row;
  float* sums;
  Index sums_row;
  Index feature;
  // Whether to begin at zero, and not at what `sums` holds.
  bool fresh;

  template <int ROWS, int COLUMNS>
  INLINE void run() const {
    Floats sum[ROWS][COLUMNS];
    const float* d[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) d[r] = gradient + r * gradient_row;
    float* place = sums + feature;
    const Index stride = sums_row;
    const Index first = feature;
    UNROLL for (int r = 0; r < ROWS; r++) {
      UNROLL for (int c = 0; c < COLUMNS; c++) {
        sum[r][c] = fresh ? Floats{} : ((Floats*)(place + r * stride))[c];
      }
    }
    const Index n = examples;
    for (Index b = 0; b < n; b++) {
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

// The sum of gradients that were clipped one by one, in float64 (docs/theory.md#c7): columns are
// half a vector of features wide.
struct ClippedGradients {
  // One pointer per example.
  const float* const* inputs;
  Index examples;
  // [output][example], clipped.
  const double* gradient;
  Index gradient_row;
  double* sums;
  Index sums_row;
  Index feature;
  // Whether to replace what `sums` holds, and not to add to it.
  bool fresh;

  template <int ROWS, int COLUMNS>
  INLINE void run() const {
    Doubles sum[ROWS][COLUMNS];
    const double* d[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
      d[r] = gradient + r * gradient_row;
      UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = Doubles{};
    }
    const Index first = feature;
    const Index n = examples;
    for (Index b = 0; b < n; b++) {
      const HalfFloats* p = (const HalfFloats*)(inputs[b] + first);
      Doubles a[COLUMNS];
      UNROLL for (int c = 0; c < COLUMNS; c++) a[c] = to_doubles(p[c]);
      UNROLL for (int r = 0; r < ROWS; r++) {
        const double g = d[r][b];
        UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] += a[c] * g;
      }
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
      Doubles* place = (Doubles*)(sums + r * sums_row + first);
      UNROLL for (int c = 0; c < COLUMNS; c++) {
        place[c] = fresh ? sum[r][c] : place[c] + sum[r][c];
      }
    }
  }
};

}  // namespace sordino
