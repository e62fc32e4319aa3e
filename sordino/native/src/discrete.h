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
  // Of every piece of the vector it calls add_update(from, to), which may add to these draws, while
  // they are in the first-level cache.
  template <class F>
  void draw(const Digits& law, const Address& at, int64_t lane, Index count, int64_t* draws,
            F add_update) {
    const uint64_t row = 8 * lane * (law.guides + 2 * law.searches);
    const auto read = [&](uint64_t byte, uint64_t bytes) {
      return read_keystream(at, row + byte, bytes);
    };
    add_up(law, read, count, draws, add_update);
  }

  // The draws that a keystream in memory gives.
  void add_up(const Digits& law, const uint64_t* words, Index count, int64_t* draws) {
    const auto read = [=](uint64_t byte, uint64_t) { return (const uint8_t*)words + byte; };
    add_up(law, read, count, draws, [](Index, Index) {});
  }

 private:
  static constexpr Index MOST_DIGITS = 12;
  // Draws that are made together. The first bits of a digit are a little less than 2048 bytes, so
  // that as much keystream has them wherever they begin in a block of it.
  static constexpr Index PIECE = 960;
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

  // Vectors of sums of digits in base 8. The keystream begins with 16 bits of every digit, one
  // place of the base after the other; after `guides` words come two words for each of `searches`
  // digits that 16 bits do not decide about. read(byte, bytes) says where a part of it is.
  template <class R, class F>
  void add_up(const Digits& law, R read, Index count, int64_t* draws, F add_update) {
    most_open_ = law.searches + PIECE;
    undecided_.ensure(law.digits * most_open_);
    std::fill(open_, open_ + MOST_DIGITS, 0);
    for (Index at = 0; at < count; at += PIECE) {
      const Index size = std::min(PIECE, count - at);
      alignas(64) int16_t sum[PIECE];
      for (int64_t digit = law.digits - 1; digit >= 0; digit--) {
        alignas(64) uint16_t firsts[PIECE];
        alignas(64) uint8_t magnitudes[PIECE];
        std::memcpy(firsts, read(2 * (digit * count + at), 2 * size), 2 * size);
        look_up(law, firsts, magnitudes);
        note_undecided(law, digit, at, size, firsts, magnitudes);
        // Horner's rule, for as many digits as 16 bits hold.
        const bool begins = digit == law.digits - 1 || digit % JOINED == JOINED - 1;
        join_digit(begins, firsts, magnitudes, sum);
        if (digit % JOINED == 0) add_sums(digit, digit + JOINED >= law.digits, sum, size, draws + at);
      }
      add_update(at, at + size);
    }
    list_searches(law);
    search(law, (const uint64_t*)read(8 * law.guides, 16 * law.searches), draws);
  }

  // The law is symmetric, so that numbers and their complements have opposite digits: those with
  // the highest bit are looked up, the others by their complement.
  static INLINE void look_up(const Digits& law, const uint16_t* firsts, uint8_t* magnitudes) {
    alignas(64) uint16_t places[PIECE];
    for (Index i = 0; i < PIECE; i++) places[i] = (firsts[i] ^ minus_if_low(firsts[i])) & 0x7fff;
    UNROLL for (Index i = 0; i < PIECE; i++) magnitudes[i] = law.magnitudes[places[i]];
  }

  // -1 where the highest bit is 0, else 0.
  static INLINE int16_t minus_if_low(uint16_t first) { return (int16_t)~((int16_t)first >> 15); }

  static INLINE int16_t give_sign(uint16_t first, uint8_t magnitude) {
    const int16_t sign = minus_if_low(first);
    return (int16_t)((magnitude ^ sign) - sign);
  }

  // Lists the draws that have this digit undecided, behind those of the pieces before.
  INLINE void note_undecided(const Digits& law, int64_t digit, Index at, Index size,
                             const uint16_t* firsts, const uint8_t* magnitudes) {
    Search* list = undecided_.data() + digit * most_open_;
    Index open = open_[digit];
    for (Index i = 0; i < size; i += 64) {
      uint64_t found = find_undecided(magnitudes + i);
      if (size - i < 64) found &= ((uint64_t)1 << (size - i)) - 1;
      for (; found != 0; found &= found - 1) {
        const Index which = i + __builtin_ctzll(found);
        list[open++] = {firsts[which], (int16_t)(3 * digit), (int32_t)(at + which)};
      }
    }
    // No more are searched for.
    open_[digit] = std::min(open, (Index)law.searches);
  }

  // Digits before those that are there already, as if `UNDECIDED` were a magnitude.
  static INLINE void join_digit(bool begins, const uint16_t* firsts, const uint8_t* magnitudes,
                                int16_t* sum) {
    if (begins) {
      for (Index i = 0; i < PIECE; i++) sum[i] = give_sign(firsts[i], magnitudes[i]);
    } else {
      for (Index i = 0; i < PIECE; i++) {
        sum[i] = (int16_t)(8 * sum[i] + give_sign(firsts[i], magnitudes[i]));
      }
    }
  }

  // Adds sums of digits of which the lowest is at a place of the base; or writes the first.
  static INLINE void add_sums(int64_t digit, bool writes, const int16_t* sum, Index size,
                              int64_t* draws) {
    const int shift = (int)(3 * digit);
    for (Index i = 0; i < size; i++) {
      const uint64_t shifted = (uint64_t)(int64_t)sum[i] << shift;
      draws[i] = (int64_t)(writes ? shifted : (uint64_t)draws[i] + shifted);
    }
  }

  // The searches in their order: digit by digit, draw by draw.
  void list_searches(const Digits& law) {
    searches_.ensure(law.searches);
    wanted_ = 0;
    for (int64_t digit = 0; digit < law.digits; digit++) {
      const Search* list = undecided_.data() + digit * most_open_;
      const Index size = std::min(open_[digit], (Index)law.searches - wanted_);
      std::copy(list, list + size, searches_.data() + wanted_);
      wanted_ += size;
    }
  }

  // Puts digits in the place of `UNDECIDED`. What is left of the searches is made all the same, so
  // that the work does not depend on the draws.
  void search(const Digits& law, const uint64_t* rest, int64_t* draws) const {
    const Search* searches = searches_.data();
    for (Index begin = 0; begin < law.searches; begin += SIDE_BY_SIDE) {
      const Index size = std::min(SIDE_BY_SIDE, (Index)law.searches - begin);
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

  // Bytes of a keystream, in memory until the next are asked for.
  const uint8_t* read_keystream(const Address& at, uint64_t first_byte, uint64_t bytes) {
    const uint64_t skipped = first_byte % 64;
    const uint64_t together = SETS * LANES;
    const uint64_t blocks = count_parts(skipped + bytes, 64 * together) * together;
    keystream_.ensure((Index)(16 * blocks));
    uint32_t* out = keystream_.data();
    const uint32_t counter = (uint32_t)(first_byte / 64);
    for (uint64_t block = 0; block < blocks; block += together) {
      Words x[SETS][16];
      make_many_blocks(at, counter + (uint32_t)block, x);
      for (int n = 0; n < SETS; n++) store_blocks(x[n], out + 16 * (block + n * LANES));
    }
    return (const uint8_t*)out + skipped;
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
  // What is undecided, digit by digit: room for `most_open_` each, of which `open_` are there.
  Memory<Search> undecided_;
  Index most_open_ = 0;
  Index open_[MOST_DIGITS];
  Memory<Search> searches_;
  Index wanted_ = 0;
};

}  // namespace sordino
