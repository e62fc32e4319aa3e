// Discrete Gaussian noise, as sordino/mechanisms/discrete_gaussian.py draws it: no floating point
// between the key and the integer, and the same work for every vector of a length.
#pragma once
#include "blocks.h"
#include "jobs.h"
#include "memory.h"
#include "random.h"

namespace sordino {

// A magnitude that is not known by 16 bits.
constexpr uint8_t UNDECIDED = 255;

// Bit i says whether byte i of 64 is `UNDECIDED`.
INLINE uint64_t find_undecided(const uint8_t* bytes) {
#if defined(__AVX512BW__)
  return _mm512_cmpeq_epi8_mask(_mm512_loadu_si512(bytes), _mm512_set1_epi8((char)UNDECIDED));
#elif defined(__x86_64__)
  uint64_t found = 0;
  const __m128i wanted = _mm_set1_epi8((char)UNDECIDED);
  UNROLL for (int i = 0; i < 64; i += 16) {
    const __m128i sixteen = _mm_loadu_si128((const __m128i*)(bytes + i));
    found |= (uint64_t)_mm_movemask_epi8(_mm_cmpeq_epi8(sixteen, wanted)) << i;
  }
  return found;
#else
  uint64_t found = 0;
  for (int i = 0; i < 64; i++) found |= (uint64_t)(bytes[i] == UNDECIDED) << i;
  return found;
#endif
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
    const uint16_t* firsts = (const uint16_t*)words;
    most_open_ = law.searches + BLOCK;
    undecided_.ensure(law.digits * most_open_);
    Index open[MOST_DIGITS] = {};
    for (Index at = 0; at < count; at += BLOCK) {
      const Index size = std::min(BLOCK, count - at);
      alignas(64) uint8_t magnitudes[MOST_DIGITS][BLOCK];
      // The last block may read more than is left: the words of the searches.
      for (int64_t digit = 0; digit < law.digits; digit++) {
        look_up(law, firsts + digit * count + at, magnitudes[digit]);
      }
      for (int64_t digit = 0; digit < law.digits; digit++) {
        const Index found = note_undecided(digit, open[digit], at, size, magnitudes[digit]);
        // No more are searched for.
        open[digit] = std::min(found, (Index)law.searches);
      }
      join_digits(law, firsts + at, count, magnitudes, size, draws + at);
    }
    list_searches(law, firsts, count, open);
    search(law, words + law.guides, draws);
  }

 private:
  static constexpr Index MOST_DIGITS = 12;
  // Draws that are made together: what lies between is in the first-level cache.
  static constexpr Index BLOCK = 256;
  // Digits whose sum 16 bits hold: 255 (1 + 8 + 64) < 2^15.
  static constexpr int64_t JOINED = 3;
  // Numbers that are searched for side by side, since every step waits for the one before.
  static constexpr Index SIDE_BY_SIDE = 8;

  // A digit that is to be searched for: the first 16 bits of its number, its place in the base in
  // bits, and the draw that it belongs to.
  struct Search {
    uint16_t first;
    int16_t shift;
    int32_t draw;
  };

  // The law is symmetric, so that numbers and their complements have opposite digits: those with
  // the highest bit are looked up, the others by their complement.
  static INLINE void look_up(const Digits& law, const uint16_t* firsts, uint8_t* magnitudes) {
    alignas(64) uint16_t places[BLOCK];
    for (Index i = 0; i < BLOCK; i++) places[i] = (firsts[i] ^ minus_if_low(firsts[i])) & 0x7fff;
    UNROLL for (Index i = 0; i < BLOCK; i++) magnitudes[i] = law.magnitudes[places[i]];
  }

  // -1 where the highest bit is 0, else 0.
  static INLINE int16_t minus_if_low(uint16_t first) { return (int16_t)~((int16_t)first >> 15); }

  static INLINE int16_t give_sign(uint16_t first, uint8_t magnitude) {
    const int16_t sign = minus_if_low(first);
    return (int16_t)((magnitude ^ sign) - sign);
  }

  // Lists which draws of a block have this digit undecided, behind those that are listed; returns
  // how many are listed then.
  INLINE Index note_undecided(int64_t digit, Index open, Index at, Index size,
                              const uint8_t* magnitudes) {
    int32_t* list = undecided_.data() + digit * most_open_;
    for (Index i = 0; i < size; i += 64) {
      uint64_t found = find_undecided(magnitudes + i);
      if (size - i < 64) found &= ((uint64_t)1 << (size - i)) - 1;
      for (; found != 0; found &= found - 1) {
        list[open++] = (int32_t)(at + i + __builtin_ctzll(found));
      }
    }
    return open;
  }

  // Sums of digits, as if `UNDECIDED` were a magnitude.
  static INLINE void join_digits(const Digits& law, const uint16_t* firsts, Index count,
                                 const uint8_t (*magnitudes)[BLOCK], Index size, int64_t* draws) {
    alignas(64) int64_t sums[BLOCK];
    for (int64_t begin = 0; begin < law.digits; begin += JOINED) {
      alignas(64) int16_t part[BLOCK];
      // Horner's rule.
      const int64_t last = std::min(begin + JOINED, law.digits) - 1;
      for (int64_t digit = last; digit >= begin; digit--) {
        const uint16_t* first = firsts + digit * count;
        const uint8_t* magnitude = magnitudes[digit];
        const int16_t factor = digit == last ? 0 : 8;
        for (Index i = 0; i < BLOCK; i++) {
          const int16_t above = factor == 0 ? 0 : part[i];
          part[i] = (int16_t)(factor * above + give_sign(first[i], magnitude[i]));
        }
      }
      const int64_t unit = (int64_t)1 << (3 * begin);
      if (begin == 0) {
        for (Index i = 0; i < BLOCK; i++) sums[i] = part[i];
      } else {
        for (Index i = 0; i < BLOCK; i++) sums[i] += part[i] * unit;
      }
    }
    std::memcpy(draws, sums, sizeof(int64_t) * size);
  }

  // The searches in their order: digit by digit, draw by draw. What is left is searched for all
  // the same, so that the work does not depend on the draws.
  void list_searches(const Digits& law, const uint16_t* firsts, Index count, const Index* open) {
    searches_.ensure(law.searches + SIDE_BY_SIDE);
    wanted_ = 0;
    for (int64_t digit = 0; digit < law.digits; digit++) {
      const int32_t* list = undecided_.data() + digit * most_open_;
      for (Index n = 0; n < open[digit] && wanted_ < law.searches; n++) {
        const uint16_t first = firsts[digit * count + list[n]];
        searches_.data()[wanted_++] = {first, (int16_t)(3 * digit), list[n]};
      }
    }
  }

  void search(const Digits& law, const uint64_t* rest, int64_t* draws) const {
    const Search* searches = searches_.data();
    for (Index begin = 0; begin < law.searches; begin += SIDE_BY_SIDE) {
      const Index size = std::min(SIDE_BY_SIDE, law.searches - begin);
      uint64_t high[SIDE_BY_SIDE] = {};
      uint64_t low[SIDE_BY_SIDE] = {};
      for (Index n = 0; n < size; n++) {
        const uint64_t* two = rest + 2 * (begin + n);
        high[n] = (uint64_t)searches[begin + n].first << 48 | two[0] >> 16;
        low[n] = two[1];
      }
      int64_t reached[SIDE_BY_SIDE];
      count_reached(law, high, low, reached);
      for (Index n = 0; n < size && begin + n < wanted_; n++) {
        const Search& one = searches[begin + n];
        const int64_t added = give_sign(one.first, UNDECIDED);
        draws[one.draw] += (reached[n] - law.largest - added) * ((int64_t)1 << one.shift);
      }
    }
  }

  // Entries of the table of 2^steps - 1 numbers of 128 bits that numbers reach. Every search makes
  // the same comparisons, whatever is searched for.
  static NOINLINE void count_reached(const Digits& law, const uint64_t* high, const uint64_t* low,
                                     int64_t* reached) {
    for (Index n = 0; n < SIDE_BY_SIDE; n++) reached[n] = 0;
    for (int64_t step = (int64_t)1 << (law.search_steps - 1); step > 0; step >>= 1) {
      UNROLL for (Index n = 0; n < SIDE_BY_SIDE; n++) {
        // A mask, not a branch: what is drawn must not be seen in the time that it takes.
        reached[n] += step & -(int64_t)(law.high[reached[n] + step - 1] <= high[n]);
      }
    }
    for (Index n = 0; n < SIDE_BY_SIDE; n++) {
      // Where upper halves are equal the lower ones decide: once in 2^50 searches.
      while (reached[n] > 0 && law.high[reached[n] - 1] == high[n] &&
             law.low[reached[n] - 1] > low[n]) {
        reached[n]--;
      }
      // The largest number of all reaches the padding, which is no entry.
      reached[n] = std::min(reached[n], 2 * law.largest);
    }
  }

  // Words of 32 bits of a keystream, in memory.
  const uint64_t* read(const Address& at, uint64_t first_word, uint64_t count) {
    const uint64_t skipped = first_word % 16;
    const uint64_t together = SETS * LANES;
    const uint64_t blocks = count_parts(skipped + count, 16 * together) * together;
    keystream_.ensure((Index)(16 * blocks));
    uint32_t* out = keystream_.data();
    uint32_t counter = (uint32_t)(first_word / 16);
    for (uint64_t block = 0; block < blocks; block += together) {
      Words x[SETS][16];
      make_many_blocks(at, counter + (uint32_t)block, x);
      for (int n = 0; n < SETS; n++) store_blocks(x[n], out + 16 * (block + n * LANES));
    }
    // Words of a row are whole: rows begin at even places.
    return (const uint64_t*)(out + skipped);
  }

  // Lanes are blocks; in memory the words of a block are adjacent.
  static INLINE void store_blocks(const Words x[16], uint32_t* to) {
    UNROLL for (int r = 0; r < 16; r += LANES) {
      Words rows[LANES];
      UNROLL for (int l = 0; l < LANES; l++) rows[l] = x[r + l];
      transpose<LANES>(rows);
      UNROLL for (int l = 0; l < LANES; l++) *(Words*)(to + 16 * l + r) = rows[l];
    }
  }

  Memory<uint32_t> keystream_;
  // Of every digit, which draws have it undecided: room for `most_open_` each.
  Memory<int32_t> undecided_;
  Index most_open_ = 0;
  Memory<Search> searches_;
  Index wanted_ = 0;
};

}  // namespace sordino
