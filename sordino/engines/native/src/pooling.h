// Max and average pooling.
#pragma once
#include <algorithm>
#include <limits>

#include "work.h"

namespace sordino {

struct Pooling : Layer {
  Index kernel_y, kernel_x, stride_y, stride_x, padding_y, padding_x;
  bool takes_maximum;

  void forward(Work& work) const override {
    const Tensor &from = work.tensor(in), &to = work.tensor(out);
    const int vectors = work.vectors;
    for_windows(from, to, [&](Index c, Index oy, Index ox, Index y0, Index y1, Index x0, Index x1) {
      Floats* y = work.values(to) + to.at(c, oy, ox) * vectors;
      const Floats* x = work.values(from) + from.at(c, 0, 0) * vectors;
      for (int v = 0; v < vectors; v++) {
        const Floats pooled = takes_maximum ? maximum(x + v, from, vectors, y0, y1, x0, x1) : mean(x + v, from, vectors, y0, y1, x0, x1);
        y[v] = activated(pooled, to.activation);
      }
    });
  }

  void backward(Work& work) const override {
    if (!carries_back) return;
    const Tensor &from = work.tensor(in), &to = work.tensor(out);
    const int vectors = work.vectors;
    Floats* g = work.gradients(from);
    // Where gradients overwrite the values, every window writes all of its own pixels and no others; else windows may overlap or leave
    // pixels out, and add up.
    if (from.apart && !adds) {
      for_rows(from, from, vectors, [&](Index at, Index, Index n) { std::fill(g + at, g + at + n, Floats{}); });
    }
    for_windows(from, to, [&](Index c, Index oy, Index ox, Index y0, Index y1, Index x0, Index x1) {
      const Floats* d = work.gradients(to) + to.at(c, oy, ox) * vectors;
      const Index corner = from.at(c, 0, 0) * vectors;
      const Floats* x = work.values(from) + corner;
      for (int v = 0; v < vectors; v++) {
        const Floats top = takes_maximum ? maximum(x + v, from, vectors, y0, y1, x0, x1) : Floats{};
        const Floats share = d[v] * (1.0f / (float)(kernel_y * kernel_x));
        Ints open = Ints{} - 1;  // lanes in which the first greatest value is still to come
        for (Index y = y0; y < y1; y++) {
          for (Index xx = x0; xx < x1; xx++) {
            const Index at = (y * from.row() + xx) * vectors + v;
            const Floats value = x[at];
            Ints hit = open & (Ints)(value == top);
            open &= ~hit;
            const Floats own = carried_back(takes_maximum ? kept(d[v], hit) : share, from.activation, value);
            g[corner + at] = from.apart ? g[corner + at] + own : own;
          }
        }
      }
    });
  }

 private:
  template <class F>
  INLINE void for_windows(const Tensor& from, const Tensor& to, F f) const {
    for (Index c = 0; c < to.channels; c++) {
      for (Index oy = 0; oy < to.height; oy++) {
        const Index y = oy * stride_y - padding_y, y0 = std::max<Index>(y, 0), y1 = std::min(y + kernel_y, from.height);
        for (Index ox = 0; ox < to.width; ox++) {
          const Index x = ox * stride_x - padding_x, x0 = std::max<Index>(x, 0), x1 = std::min(x + kernel_x, from.width);
          f(c, oy, ox, y0, y1, x0, x1);
        }
      }
    }
  }

  // A NaN anywhere in the window is the result, as in torch: a value that is not finite must not get lost on its way to the loss.
  static INLINE Floats maximum(const Floats* x, const Tensor& t, int vectors, Index y0, Index y1, Index x0, Index x1) {
    Floats top = splat(-std::numeric_limits<float>::infinity()), poison{};
    for (Index y = y0; y < y1; y++) {
      for (Index xx = x0; xx < x1; xx++) {
        const Floats value = x[(y * t.row() + xx) * vectors];
        top = greater_of(value, top);
        poison = (Floats)((Ints)poison | ((Ints)value & (Ints)(value != value)));
      }
    }
    return (Floats)((Ints)top | (Ints)poison);
  }

  INLINE Floats mean(const Floats* x, const Tensor& t, int vectors, Index y0, Index y1, Index x0, Index x1) const {
    Floats sum{};
    for (Index y = y0; y < y1; y++) {
      for (Index xx = x0; xx < x1; xx++) sum += x[(y * t.row() + xx) * vectors];
    }
    return sum * (1.0f / (float)(kernel_y * kernel_x));
  }
};

}  // namespace sordino
