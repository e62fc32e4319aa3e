// Activations on their own, and sums of two tensors.
#pragma once
#include "work.h"

namespace sordino {

// An activation as a layer. `kind` NONE copies a tensor with a frame to one without.
struct Elementwise : Layer {
  Activation kind = NONE;

  void forward(Work& work) const override {
    const Tensor& from = work.tensor(in);
    const Tensor& to = work.tensor(out);
    const Floats* x = work.values(from);
    Floats* y = work.values(to);
    for_rows(from, to, work.vectors, [&](Index a, Index b, Index n) {
      for (Index i = 0; i < n; i++) y[b + i] = activate(x[a + i], kind);
    });
  }

  void backward(Work& work) const override {
    if (!carries_back) return;
    const Tensor& from = work.tensor(in);
    const Tensor& to = work.tensor(out);
    const Floats* x = work.values(from);
    const Floats* d = work.gradients(to);
    Floats* g = work.gradients(from);
    for_rows(from, to, work.vectors, [&](Index a, Index b, Index n) {
      for (Index i = 0; i < n; i++) {
        const Floats inner = differentiate(d[b + i], x[a + i]);
        const Floats result = carry_back(inner, from.activation, x[a + i]);
        g[a + i] = adds ? g[a + i] + result : result;
      }
    });
  }

 private:
  // The values of `out` may be overwritten already, so the activation is computed again.
  INLINE Floats differentiate(Floats gradient, Floats x) const {
    if (kind != GELU) return carry_back(gradient, kind, activate(x, kind));
    return gradient * (normal_distribution(x) + x * 0.398942280f * exponential(-0.5f * x * x));
  }
};

// The sum of two tensors, as where a residual connection ends.
struct Sum : Layer {
  int second = 0;
  bool second_carries_back = true;
  bool second_adds = false;

  void forward(Work& work) const override {
    const Tensor& a = work.tensor(in);
    const Tensor& b = work.tensor(second);
    const Tensor& to = work.tensor(out);
    for (Index c = 0; c < to.channels; c++) {
      for (Index y = 0; y < to.height; y++) {
        const Floats* left = work.values(a) + a.at(c, y, 0) * work.vectors;
        const Floats* right = work.values(b) + b.at(c, y, 0) * work.vectors;
        Floats* result = work.values(to) + to.at(c, y, 0) * work.vectors;
        for (Index i = 0; i < to.width * work.vectors; i++) {
          result[i] = activate(left[i] + right[i], to.activation);
        }
      }
    }
  }

  void backward(Work& work) const override {
    if (carries_back) pass_gradient(work, work.tensor(in), adds);
    if (second_carries_back) pass_gradient(work, work.tensor(second), second_adds);
  }

 private:
  // Both summands get the gradient of the sum, each through the activation before it.
  void pass_gradient(Work& work, const Tensor& from, bool adds_to_others) const {
    const Tensor& to = work.tensor(out);
    const Floats* x = work.values(from);
    const Floats* d = work.gradients(to);
    Floats* g = work.gradients(from);
    for_rows(from, to, work.vectors, [&](Index a, Index b, Index n) {
      for (Index i = 0; i < n; i++) {
        const Floats result = carry_back(d[b + i], from.activation, x[a + i]);
        g[a + i] = adds_to_others ? g[a + i] + result : result;
      }
    });
  }
};

}  // namespace sordino
