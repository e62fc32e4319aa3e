// Losses: the last tensor's values are replaced by the gradient of the loss with respect to them.
#pragma once
#include "work.h"

namespace sordino {

// GIVEN: records are losses themselves, as the worst cases of audits are (sordino/audit).
enum Loss : int32_t {
  CROSS_ENTROPY = 0,
  BINARY_CROSS_ENTROPY = 1,
  SQUARED_ERROR = 2,
  GIVEN = 3,
};

// The right answers of all records: class numbers, or `outputs` quantities each.
struct Answers {
  const int64_t* labels;
  const float* targets;
};

// The last tensor of a block of examples, and which records these are. Gradients are multiplied by
// `scale`.
struct LastTensor {
  Floats* z;
  Index outputs;
  int vectors;
  const int64_t* records;
  int examples;
  float scale;

  int examples_in(int vector) const {
    const int left = examples - vector * LANES;
    return left < LANES ? left : LANES;
  }
  int64_t record(int vector, int lane) const { return records[vector * LANES + lane]; }
};

// Set in the first `count` lanes: those that hold an example.
INLINE Ints lanes_below(Index count) {
  Ints lane;
  UNROLL for (int l = 0; l < LANES; l++) lane[l] = l;
  return (Ints)(lane < (Ints{} + (int32_t)count));
}

// The gradient is softmax less the right answer. The greatest output is subtracted first, so that
// no exponential overflows. Idle lanes get no gradient.
inline double apply_cross_entropy(const LastTensor& last, const int64_t* labels) {
  Floats* z = last.z;
  const int vectors = last.vectors;
  double loss = 0;
  for (int v = 0; v < vectors; v++) {
    const Ints live = lanes_below(last.examples - v * LANES);
    Ints label{};
    for (int l = 0; l < last.examples_in(v); l++) label[l] = (int32_t)labels[last.record(v, l)];
    Floats top = z[v];
    for (Index j = 1; j < last.outputs; j++) top = greater_of(top, z[j * vectors + v]);
    Floats sum{};
    Floats right{};
    for (Index j = 0; j < last.outputs; j++) {
      const Floats shifted = z[j * vectors + v] - top;
      right += keep_where(shifted, (Ints)(label == (int32_t)j));
      z[j * vectors + v] = exponential(shifted);
      sum += z[j * vectors + v];
    }
    loss += sum_of_lanes(keep_where(logarithm(sum) - right, live));
    const Floats factor = last.scale / sum;
    for (Index j = 0; j < last.outputs; j++) {
      const Floats target = keep_where(splat(last.scale), (Ints)(label == (int32_t)j));
      const Floats g = z[j * vectors + v] * factor - target;
      z[j * vectors + v] = keep_where(g, live);
    }
  }
  return loss;
}

// A record's loss is its output, or half its target times the square of that where the target, a
// curvature, is not zero.
inline double apply_given_losses(const LastTensor& last, const float* targets) {
  double loss = 0;
  for (int v = 0; v < last.vectors; v++) {
    const Ints live = lanes_below(last.examples - v * LANES);
    Floats curvature{};
    for (int l = 0; l < last.examples_in(v); l++) curvature[l] = targets[last.record(v, l)];
    const Floats x = last.z[v];
    const Ints curved = (Ints)(curvature != Floats{});
    const Floats value = keep_where(x, ~curved) + 0.5f * curvature * x * x;
    loss += sum_of_lanes(keep_where(value, live));
    const Floats slope = keep_where(splat(1.0f), ~curved) + curvature * x;
    last.z[v] = keep_where(slope * last.scale, live);
  }
  return loss;
}

// Squared error and binary cross-entropy, each the mean over the outputs of a record. The latter is
// written with exp(-|x|), which does not overflow.
inline double apply_quantities(Loss kind, const LastTensor& last, const float* targets) {
  double loss = 0;
  const float each = 1.0f / (float)last.outputs;
  for (int v = 0; v < last.vectors; v++) {
    const Ints live = lanes_below(last.examples - v * LANES);
    for (Index j = 0; j < last.outputs; j++) {
      Floats target{};
      for (int l = 0; l < last.examples_in(v); l++) {
        target[l] = targets[last.record(v, l) * last.outputs + j];
      }
      Floats& z = last.z[j * last.vectors + v];
      const Floats x = z;
      if (kind == SQUARED_ERROR) {
        loss += each * sum_of_lanes(keep_where((x - target) * (x - target), live));
        z = keep_where((x - target) * (2.0f * each * last.scale), live);
      } else {
        const Floats rest = logarithm(1.0f + exponential(-absolute_value(x)));
        const Floats value = greater_of(Floats{}, x) - x * target + rest;
        loss += each * sum_of_lanes(keep_where(value, live));
        z = keep_where((logistic(x) - target) * (each * last.scale), live);
      }
    }
  }
  return loss;
}

// The sum of the losses of the examples; their gradients are multiplied by `scale`.
inline double apply_loss(Loss kind, Work& work, const Tensor& tensor, const Answers& answers,
                         const int64_t* records, float scale) {
  const LastTensor last{work.values(tensor), tensor.size(),  work.vectors,
                        records,             work.examples, scale};
  if (kind == CROSS_ENTROPY) return apply_cross_entropy(last, answers.labels);
  if (kind == GIVEN) return apply_given_losses(last, answers.targets);
  return apply_quantities(kind, last, answers.targets);
}

}  // namespace sordino
