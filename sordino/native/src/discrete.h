// Discrete Gaussian noise, as sordino/mechanisms/discrete_gaussian.py draws it: no floating point
// between the key and the integer, and the same work for every vector of a length.
#pragma once
#include "blocks.h"
#include "jobs.h"
#include "memory.h"
#include "random.h"

namespace sordino {

// Entries of the table of 2^steps - 1 numbers of 128 bits that a number reaches. Every search
// makes the same comparisons, whatever is searched for.
INLINE int64_t count_reached(uint64_t drawn_high, uint64_t drawn_low, const Digits& law) {
  const unsigned __int128 drawn = (unsigned __int128)drawn_high << 64 | drawn_low;
  int64_t reached = 0;
  for (int64_t step = (int64_t)1 << (law.search_steps - 1); step > 0; step >>= 1) {
    const int64_t at = reached + step - 1;
    const unsigned __int128 entry = (unsigned __int128)law.high[at] << 64 | law.low[at];
    // A mask, not a branch: what is drawn must not be seen in the time that it takes.
    reached += step & -(int64_t)(drawn >= entry);
  }
  return reached;
}

// Draws vectors. It keeps its memory between them.
class DiscreteDraws {
 public:
  // The draws of a training, whose row of the keystream follows those of the trainings before it.
  void draw(const Digits& law, const Address& at, int64_t lane, Index count, int64_t* draws) {
    const uint64_t words = law.guides + 2 * law.searches;
    add_up(law, read(at, 2 * lane * words, 2 * words), count, draws);
  }

  // Vectors of sums of digits in base 8. The keystream begins with 16 bits of every digit, one
  // place of the base after the other; after `guides` words come two words for each of `searches`
  // digits that 16 bits do not decide about.
  void add_up(const Digits& law, const uint64_t* words, Index count, int64_t* draws) {
    undecided_.ensure(count);
    const uint16_t* firsts = (const uint16_t*)words;
    const uint64_t* rest = words + law.guides;
    int64_t searched = 0;
    for (int64_t digit = 0; digit < law.digits; digit++) {
      const uint16_t* first = firsts + digit * count;
      const int64_t shift = 3 * digit;
      const Index open = digit == 0 ? look_up<true>(law, first, shift, count, draws)
                                    : look_up<false>(law, first, shift, count, draws);
      for (Index n = 0; n < open && searched < law.searches; n++) {
        const Index i = undecided_.data()[n];
        const uint64_t* two = rest + 2 * searched++;
        int64_t reached = count_reached((uint64_t)first[i] << 48 | two[0] >> 16, two[1], law);
        // The largest number of all reaches the padding, which is no entry.
        if (reached > 2 * law.largest) reached = 2 * law.largest;
        // It was added up as -1.
        draws[i] += (reached + 1) * ((int64_t)1 << shift);
      }
    }
    search_idly(law, rest, searched);
  }

 private:
  // Digits that are looked up before they are added up, which is done side by side.
  static constexpr Index GROUP = 64;

  // Adds a digit to every draw, or writes the first; returns how many are undecided, and notes
  // which.
  template <bool FIRST>
  INLINE Index look_up(const Digits& law, const uint16_t* first, int64_t shift, Index count,
                       int64_t* draws) {
    int16_t reached[GROUP];
    Index open = 0;
    for (Index at = 0; at < count; at += GROUP) {
      const Index size = std::min(GROUP, count - at);
      int16_t signs = 0;
      if (size == GROUP) {
        read_guide(law.guide, first + at, reached);
        UNROLL for (Index i = 0; i < GROUP; i++) signs |= reached[i];
      } else {
        for (Index i = 0; i < size; i++) signs |= reached[i] = law.guide[first[at + i]];
      }
      for (Index i = 0; i < size; i++) {
        const int64_t digit = (reached[i] - law.largest) * ((int64_t)1 << shift);
        draws[at + i] = FIRST ? digit : draws[at + i] + digit;
      }
      if (signs >= 0) continue;
      for (Index i = 0; i < size; i++) {
        undecided_.data()[open] = (int32_t)(at + i);
        open += reached[i] < 0;
      }
    }
    return open;
  }

  // Four at a time, since loads are what this waits for.
  static INLINE void read_guide(const int16_t* guide, const uint16_t* first, int16_t* reached) {
    UNROLL for (Index i = 0; i < GROUP; i += 4) {
      uint64_t four;
      std::memcpy(&four, first + i, sizeof four);
      UNROLL for (int l = 0; l < 4; l++) reached[i + l] = guide[(uint16_t)(four >> (16 * l))];
    }
  }

  // What is left is searched for all the same, so that the work does not depend on the draws.
  static void search_idly(const Digits& law, const uint64_t* rest, int64_t searched) {
    int64_t idle = 0;
    for (; searched < law.searches; searched++) {
      idle += count_reached(rest[2 * searched] >> 16, rest[2 * searched + 1], law);
    }
    // Nothing reads the result; this keeps the compiler from leaving the searches out.
    asm volatile("" : : "r"(idle));
  }

  // Words of 32 bits of a keystream, in memory.
  const uint64_t* read(const Address& at, uint64_t first_word, uint64_t count) {
    const uint64_t skipped = first_word % 16;
    const uint64_t blocks = count_parts(skipped + count, 16 * LANES) * LANES;
    keystream_.ensure((Index)(16 * blocks));
    uint32_t* out = keystream_.data();
    uint32_t counter = (uint32_t)(first_word / 16);
    for (uint64_t block = 0; block < blocks; block += LANES) {
      Words x[16];
      make_blocks(at, counter + (uint32_t)block, x);
      // Lanes are blocks; in memory the words of a block are adjacent.
      for (int r = 0; r < 16; r += LANES) {
        transpose<LANES>((Floats*)x + r);
        UNROLL for (int l = 0; l < LANES; l++) {
          *(Words*)(out + 16 * (block + l) + r) = x[r + l];
        }
      }
    }
    // Words of a row are whole: rows begin at even places.
    return (const uint64_t*)(out + skipped);
  }

  Memory<uint32_t> keystream_;
  Memory<int32_t> undecided_;
};

}  // namespace sordino
