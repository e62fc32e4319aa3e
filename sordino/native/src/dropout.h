// Dropout, as sordino/models/dropout.py does it: a value is dropped where a word of a keystream is
// small. Every example has a keystream to itself, so that blocks of any size drop the same.
#pragma once
#include "random.h"
#include "work.h"

namespace sordino {

struct Dropout : Layer {
  // Words below drop a value.
  uint32_t threshold;
  // What the others are multiplied by.
  float scale;
  // Where the layer begins in the keystream of an example, and how many blocks it reads.
  Index first_block;
  Index blocks;

  // A factor for every word, kept for the way back.
  Index saved_vectors() const override { return 16 * blocks; }

  void forward(Work& work) const override {
    const Tensor& from = work.tensor(in);
    const Tensor& to = work.tensor(out);
    const Floats* x = work.values(from);
    Floats* y = work.values(to);
    if (!work.mask_key) {
      for_rows(from, to, work.vectors, [&](Index a, Index b, Index n) {
        for (Index i = 0; i < n; i++) y[b + i] = activate(x[a + i], to.activation);
      });
      return;
    }
    draw_factors(work);
    const Floats* factor = factors(work);
    for_rows(from, to, work.vectors, [&](Index a, Index b, Index n) {
      for (Index i = 0; i < n; i++) y[b + i] = activate(x[a + i] * factor[i], to.activation);
      factor += n;
    });
  }

  void backward(Work& work) const override {
    if (!carries_back) return;
    const Tensor& from = work.tensor(in);
    const Tensor& to = work.tensor(out);
    const Floats* x = work.values(from);
    const Floats* d = work.gradients(to);
    Floats* g = work.gradients(from);
    const Floats* factor = work.mask_key ? factors(work) : nullptr;
    for_rows(from, to, work.vectors, [&](Index a, Index b, Index n) {
      for (Index i = 0; i < n; i++) {
        const Floats inner = factor ? d[b + i] * factor[i] : d[b + i];
        const Floats result = carry_back(inner, from.activation, x[a + i]);
        g[a + i] = adds ? g[a + i] + result : result;
      }
      if (factor) factor += n;
    });
  }

 private:
  Floats* factors(const Work& work) const {
    return (Floats*)(work.saved + first_saved * work.vectors);
  }

  // Writes 0 or the scale for every value of every example of the block.
  void draw_factors(const Work& work) const {
    const Floats kept = splat(scale);
    for (int v = 0; v < work.vectors; v++) {
      const uint32_t example = (uint32_t)(work.first_example + v * LANES);
      for (Index block = 0; block < blocks; block++) {
        Words x[16];
        const uint32_t counter = (uint32_t)(first_block + block);
        make_blocks_of_examples({work.mask_key, {work.step, example, 0}}, counter, x);
        Floats* to = factors(work) + 16 * block * work.vectors + v;
        UNROLL for (int r = 0; r < 16; r++) {
          to[r * work.vectors] = keep_where(kept, (Ints)(x[r] >= threshold));
        }
      }
    }
  }
};

}  // namespace sordino
