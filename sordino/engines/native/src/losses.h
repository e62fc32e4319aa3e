// Losses: the last tensor's values are replaced by the gradient of the loss with respect to them.
#pragma once
#include "work.h"

namespace sordino {

// GIVEN: records are losses themselves, as the worst cases of audits are (sordino/audit/given_losses.py).
enum Loss : int32_t { CROSS_ENTROPY = 0, BINARY_CROSS_ENTROPY = 1, SQUARED_ERROR = 2, GIVEN = 3 };

// The right answers of all records: class numbers, or `outputs` quantities each.
struct Answers {
  const int64_t* labels;
  const float* targets;
};

INLINE Ints lanes_below(Index count) {
  Ints lane;
  UNROLL for (int l = 0; l < LANES; l++) lane[l] = l;
  return (Ints)(lane < (Ints{} + (int32_t)count));
}

inline double cross_entropy(Floats* z, Index outputs, int vectors, const int64_t* labels, const int64_t* records, int examples, float scale) {
  double loss = 0;
  for (int v = 0; v < vectors; v++) {
    const Ints live = lanes_below(examples - v * LANES);
    Ints label{};
    for (int l = 0; l < LANES && v * LANES + l < examples; l++) label[l] = (int32_t)labels[records[v * LANES + l]];
    Floats top = z[v];
    for (Index j = 1; j < outputs; j++) top = greater_of(top, z[j * vectors + v]);
    Floats sum{}, right{};
    for (Index j = 0; j < outputs; j++) {
      const Floats shifted = z[j * vectors + v] - top;
      right += kept(shifted, (Ints)(label == (int32_t)j));
      z[j * vectors + v] = exponential(shifted);
      sum += z[j * vectors + v];
    }
    loss += total(kept(logarithm(sum) - right, live));
    const Floats factor = scale / sum;
    for (Index j = 0; j < outputs; j++) {
      const Floats g = z[j * vectors + v] * factor - kept(splat(scale), (Ints)(label == (int32_t)j));
      z[j * vectors + v] = kept(g, live);
    }
  }
  return loss;
}

// A record's loss is its output, or half its target times the square of that where the target, a curvature, is not zero.
inline double given_losses(Floats* z, int vectors, const float* targets, const int64_t* records, int examples, float scale) {
  double loss = 0;
  for (int v = 0; v < vectors; v++) {
    const Ints live = lanes_below(examples - v * LANES);
    Floats curvature{};
    for (int l = 0; l < LANES && v * LANES + l < examples; l++) curvature[l] = targets[records[v * LANES + l]];
    const Floats x = z[v];
    const Ints bent = (Ints)(curvature != Floats{});
    loss += total(kept(kept(x, ~bent) + 0.5f * curvature * x * x, live));
    z[v] = kept((kept(splat(1.0f), ~bent) + curvature * x) * scale, live);
  }
  return loss;
}

// Both are means over the outputs of a record.
inline double quantities(Loss kind, Floats* z, Index outputs, int vectors, const float* targets, const int64_t* records, int examples, float scale) {
  double loss = 0;
  const float each = 1.0f / (float)outputs;
  for (int v = 0; v < vectors; v++) {
    const Ints live = lanes_below(examples - v * LANES);
    for (Index j = 0; j < outputs; j++) {
      Floats target{};
      for (int l = 0; l < LANES && v * LANES + l < examples; l++) target[l] = targets[records[v * LANES + l] * outputs + j];
      const Floats x = z[j * vectors + v];
      if (kind == SQUARED_ERROR) {
        loss += each * total(kept((x - target) * (x - target), live));
        z[j * vectors + v] = kept((x - target) * (2.0f * each * scale), live);
      } else {
        const Floats away = (Floats)((Ints)x & 0x7fffffff);
        loss += each * total(kept(greater_of(Floats{}, x) - x * target + logarithm(1.0f + exponential(-away)), live));
        z[j * vectors + v] = kept((logistic(x) - target) * (each * scale), live);
      }
    }
  }
  return loss;
}

// The sum of the losses of the examples; their gradients are multiplied by `scale`.
inline double apply_loss(Loss kind, Work& work, const Tensor& last, const Answers& answers, const int64_t* records, float scale) {
  Floats* z = work.values(last);
  if (kind == CROSS_ENTROPY) return cross_entropy(z, last.size(), work.vectors, answers.labels, records, work.examples, scale);
  if (kind == GIVEN) return given_losses(z, work.vectors, answers.targets, records, work.examples, scale);
  return quantities(kind, z, last.size(), work.vectors, answers.targets, records, work.examples, scale);
}

}  // namespace sordino
