// Max and average pooling.
#pragma once
#include <algorithm>
#include <limits>

#include "work.h"

namespace sordino {

struct Pooling : Layer {
  Index kernel_y;
  Index kernel_x;
  Index stride_y;
  Index stride_x;
  Index padding_y;
  Index padding_x;
  bool takes_maximum;

  void forward(Work& work) const override {
    call_specialised(work, [&](auto size, auto maximum) {
      forward_windows<size(), maximum()>(work);
    });
  }

  void backward(Work& work) const override {
    if (!carries_back) return;
    // Where gradients overwrite the values, every window writes all of its own pixels and no
    // others; else windows may overlap or leave pixels out, and add up.
    const bool apart = work.tensor(in).apart;
    call_specialised(work, [&](auto size, auto maximum) {
      if (apart) {
        backward_windows<size(), maximum(), true>(work);
      } else {
        backward_windows<size(), maximum(), false>(work);
      }
    });
  }

 private:
  // Windows of two by two are nearly all there are in practice: their loops are unrolled. The kind
  // of pooling is known to the compiler too, which keeps branches out of loops that do little else.
  template <class F>
  void call_specialised(const Work& work, F f) const {
    using std::integral_constant;
    const Tensor& from = work.tensor(in);
    const Tensor& to = work.tensor(out);
    const bool whole_rows = (to.height - 1) * stride_y + 2 <= from.height;
    const bool whole_columns = (to.width - 1) * stride_x + 2 <= from.width;
    const bool two_by_two = kernel_y == 2 && kernel_x == 2;
    const bool no_padding = padding_y == 0 && padding_x == 0;
    const bool small = two_by_two && no_padding && whole_rows && whole_columns;
    if (small && takes_maximum) return f(integral_constant<int, 2>{}, std::true_type{});
    if (small) return f(integral_constant<int, 2>{}, std::false_type{});
    if (takes_maximum) return f(integral_constant<int, 0>{}, std::true_type{});
    f(integral_constant<int, 0>{}, std::false_type{});
  }

  // Rows and columns of a window, from its first pixel; K other than 0 fixes both.
  template <int K>
  struct Window {
    Index height;
    Index width;
    Index row;

    template <class F>
    INLINE void for_pixels(F f) const {
      if constexpr (K > 0) {
        UNROLL for (int y = 0; y < K; y++) {
          UNROLL for (int x = 0; x < K; x++) f(y * row + x);
        }
      } else {
        for (Index y = 0; y < height; y++) {
          for (Index x = 0; x < width; x++) f(y * row + x);
        }
      }
    }
  };

  // Calls f(pixel of the output, first pixel of the window, window); windows end at the border.
  template <int K, class F>
  INLINE void for_windows(const Tensor& from, const Tensor& to, F f) const {
    for (Index c = 0; c < to.channels; c++) {
      for (Index oy = 0; oy < to.height; oy++) {
        const Index y = oy * stride_y - padding_y;
        const Index y0 = std::max<Index>(y, 0);
        const Index y1 = std::min(y + kernel_y, from.height);
        for (Index ox = 0; ox < to.width; ox++) {
          const Index x = ox * stride_x - padding_x;
          const Index x0 = std::max<Index>(x, 0);
          const Index x1 = std::min(x + kernel_x, from.width);
          const Window<K> window{y1 - y0, x1 - x0, from.row()};
          f(to.at(c, oy, ox), from.at(c, y0, x0), window);
        }
      }
    }
  }

  // A NaN anywhere in the window is the result, as in torch: a value that is not finite must not
  // get lost on its way to the loss.
  template <int K>
  static INLINE Floats find_maximum(const Floats* x, const Window<K>& window, int vectors) {
    Ints poison{};
    window.for_pixels([&](Index pixel) {
      const Floats value = x[pixel * vectors];
      poison |= (Ints)value & (Ints)(value != value);
    });
    return (Floats)((Ints)find_number_maximum(x, window, vectors) | poison);
  }

  template <int K>
  static INLINE Floats find_number_maximum(const Floats* x, const Window<K>& window, int vectors) {
    Floats top = splat(-std::numeric_limits<float>::infinity());
    window.for_pixels([&](Index pixel) { top = greater_of(x[pixel * vectors], top); });
    return top;
  }

  template <int K, bool MAXIMUM>
  void forward_windows(Work& work) const {
    const Tensor& from = work.tensor(in);
    const Tensor& to = work.tensor(out);
    const int vectors = work.vectors;
    const float share = 1.0f / (float)(kernel_y * kernel_x);
    const Activation activation = to.activation;
    const Floats* values = work.values(from);
    Floats* pooled = work.values(to);
    const auto pool = [&](Index result, Index first, const Window<K>& window) INLINE_LAMBDA {
      for (int v = 0; v < vectors; v++) {
        const Floats* x = values + first * vectors + v;
        Floats y{};
        if constexpr (MAXIMUM) {
          y = find_maximum(x, window, vectors);
        } else {
          window.for_pixels([&](Index pixel) { y += x[pixel * vectors]; });
          y *= share;
        }
        pooled[result * vectors + v] = activate_in_loop(y, activation);
      }
    };
    for_windows<K>(from, to, pool);
    if (activation > RELU) {
      for_rows(to, to, vectors, [&](Index at, Index, Index n) {
        for (Index i = at; i < at + n; i++) pooled[i] = activate(pooled[i], activation);
      });
    }
  }

  template <int K, bool MAXIMUM, bool APART>
  void backward_windows(Work& work) const {
    const Tensor& from = work.tensor(in);
    const Tensor& to = work.tensor(out);
    const int vectors = work.vectors;
    const float share = 1.0f / (float)(kernel_y * kernel_x);
    const Activation activation = from.activation;
    const Floats* values = work.values(from);
    const Floats* d = work.gradients(to);
    Floats* gradients = work.gradients(from);
    if (APART && !adds) {
      for_rows(from, from, vectors, [&](Index at, Index, Index n) {
        std::fill(gradients + at, gradients + at + n, Floats{});
      });
    }
    const auto spread = [&](Index result, Index first, const Window<K>& window) INLINE_LAMBDA {
      for (int v = 0; v < vectors; v++) {
        const Floats* x = values + first * vectors + v;
        Floats* g = gradients + first * vectors + v;
        const Floats gradient = d[result * vectors + v];
        const Floats top = MAXIMUM ? find_number_maximum(x, window, vectors) : Floats{};
        // Lanes in which the first greatest value is still to come.
        Ints open = Ints{} - 1;
        window.for_pixels([&](Index pixel) {
          const Floats value = x[pixel * vectors];
          Floats part = gradient * share;
          if constexpr (MAXIMUM) {
            const Ints hit = open & (Ints)(value == top);
            open &= ~hit;
            part = keep_where(gradient, hit);
          }
          if (activation != NONE) part = carry_back(part, activation, value);
          g[pixel * vectors] = APART ? g[pixel * vectors] + part : part;
        });
      }
    };
    for_windows<K>(from, to, spread);
  }
};

}  // namespace sordino
