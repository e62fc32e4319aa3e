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
    const auto read_firsts = [&](uint64_t byte, Index, uint16_t* firsts, auto look_up) {
      make_firsts(at, row + byte, firsts, look_up);
    };
    add_up(law, read_firsts, count, draws, add_update);
    search(law, read_keystream(at, row + 8 * law.guides, 16 * law.searches), draws);
  }

  // The draws that a keystream in memory gives.
  void add_up(const Digits& law, const uint64_t* words, Index count, int64_t* draws) {
    const auto read_firsts = [=](uint64_t byte, Index size, uint16_t* firsts, auto look_up) {
      std::memcpy(firsts, (const uint8_t*)words + byte, sizeof(uint16_t) * size);
      for (int part = 0; part < PARTS; part++) look_up();
    };
    add_up(law, read_firsts, count, draws, [](Index, Index) {});
    search(law, words + law.guides, draws);
  }

 private:
  // As in sordino/protocol/grids.py.
  static constexpr Index MOST_DIGITS = 12;
  // Draws that are made together. The first bits of a digit of them are a little less than the
  // bytes of some blocks, so that as many blocks have them wherever they begin in one.
  static constexpr Index PIECE = 960;
  static constexpr Index BLOCKS = 32;
  // While blocks are made, the digits before are looked up in so many parts: the one waits for
  // arithmetic, the other for loads.
  static constexpr Index PARTS = BLOCKS / LANES * DOUBLE_ROUNDS * 2;
  static_assert(2 * PIECE + 64 <= 64 * BLOCKS && PIECE % PARTS == 0, "all digits are looked up");
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

  // One digit of a piece: the first bits of their numbers, where they are looked up, and what is
  // found there.
  struct Looked {
    alignas(64) uint16_t firsts[PIECE];
    alignas(64) uint16_t places[PIECE];
    alignas(64) uint8_t magnitudes[PIECE];
  };

  // Vectors of sums of digits in base 8. The keystream begins with 16 bits of every digit, one
  // place of the base after the other; after `guides` words come two words for each of `searches`
  // digits that 16 bits do not decide about, which are listed here. read_firsts(byte, size, firsts,
  // look_up) reads first bits, and calls look_up() for every part of what was read before.
  template <class R, class F>
  void add_up(const Digits& law, R read_firsts, Index count, int64_t* draws, F add_update) {
    most_open_ = law.searches + PIECE;
    undecided_.ensure(law.digits * most_open_);
    std::fill(open_, open_ + MOST_DIGITS, 0);
    Looked looked[2]{};
    Looked* now = looked;
    Looked* next = looked + 1;
    const auto read = [&](Index at, int64_t digit, uint16_t* firsts, auto look_up) {
      const Index size = std::min(PIECE, count - at);
      read_firsts(2 * (digit * count + at), size, firsts, look_up);
    };
    if (count > 0) read(0, law.digits - 1, now->firsts, [] {});
    for (Index at = 0; at < count; at += PIECE) {
      const Index size = std::min(PIECE, count - at);
      // After the last piece the first is read again, and not used.
      const Index following = at + PIECE < count ? at + PIECE : 0;
      alignas(64) int16_t sum[PIECE];
      for (int64_t digit = law.digits - 1; digit >= 0; digit--) {
        find_places(*now);
        const uint16_t* place = now->places;
        uint8_t* magnitude = now->magnitudes;
        const auto look_up = [&]() INLINE_LAMBDA {
          constexpr Index SIZE = PIECE / PARTS;
          UNROLL for (Index i = 0; i < SIZE; i++) magnitude[i] = law.magnitudes[place[i]];
          place += SIZE;
          magnitude += SIZE;
        };
        const bool last = digit == 0;
        read(last ? following : at, last ? law.digits - 1 : digit - 1, next->firsts, look_up);
        note_undecided(law, digit, at, size, *now);
        // Horner's rule, for as many digits as 16 bits hold.
        const bool begins = digit == law.digits - 1 || digit % JOINED == JOINED - 1;
        join_digit(begins, *now, sum);
        if (digit % JOINED == 0) {
          add_sums(digit, digit + JOINED >= law.digits, sum, size, draws + at);
        }
        std::swap(now, next);
      }
      add_update(at, at + size);
    }
    list_searches(law);
  }

  // The law is symmetric, so that numbers and their complements have opposite digits: those with
  // the highest bit are looked up, the others by their complement.
  static INLINE void find_places(Looked& digit) {
    for (Index i = 0; i < PIECE; i++) {
      digit.places[i] = (digit.firsts[i] ^ minus_if_low(digit.firsts[i])) & 0x7fff;
    }
  }

  // -1 where the highest bit is 0, else 0.
  static INLINE int16_t minus_if_low(uint16_t first) { return (int16_t)~((int16_t)first >> 15); }

  static INLINE int16_t give_sign(uint16_t first, uint8_t magnitude) {
    const int16_t sign = minus_if_low(first);
    return (int16_t)((magnitude ^ sign) - sign);
  }

  // Lists the draws that have this digit undecided, behind those of the pieces before.
  INLINE void note_undecided(const Digits& law, int64_t digit, Index at, Index size,
                             const Looked& looked) {
    Search* list = undecided_.data() + digit * most_open_;
    Index open = open_[digit];
    for (Index i = 0; i < size; i += 64) {
      uint64_t found = find_undecided(looked.magnitudes + i);
      if (size - i < 64) found &= ((uint64_t)1 << (size - i)) - 1;
      for (; found != 0; found &= found - 1) {
        const Index which = i + __builtin_ctzll(found);
        list[open++] = {looked.firsts[which], (int16_t)(3 * digit), (int32_t)(at + which)};
      }
    }
    // No more are searched for.
    open_[digit] = std::min(open, (Index)law.searches);
  }

  // Digits before those that are there already, as if `UNDECIDED` were a magnitude.
  static INLINE void join_digit(bool begins, const Looked& digit, int16_t* sum) {
    for (Index i = 0; i < PIECE; i++) {
      const int above = begins ? 0 : 8 * sum[i];
      sum[i] = (int16_t)(above + give_sign(digit.firsts[i], digit.magnitudes[i]));
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
    const uint64_t* last[SIDE_BY_SIDE];
    for (Index n = 0; n < SIDE_BY_SIDE; n++) last[n] = law.high - 1;
    for (int64_t step = (int64_t)1 << (law.search_steps - 1); step > 0; step >>= 1) {
      UNROLL for (Index n = 0; n < SIDE_BY_SIDE; n++) {
        // A choice between two addresses, which compilers make without a branch: what is drawn must
        // not be seen in the time that it takes.
        const uint64_t* farther = last[n] + step;
        last[n] = *farther <= high[n] ? farther : last[n];
      }
    }
    for (Index n = 0; n < SIDE_BY_SIDE; n++) {
      reached[n] = last[n] - law.high + 1;
      // Where upper halves are equal the lower ones decide: once in 2^50 searches.
      while (reached[n] > 0 && law.high[reached[n] - 1] == high[n] &&
             law.low[reached[n] - 1] > low[n]) {
        reached[n]--;
      }
      // The largest number of all reaches the padding, which is no entry.
      reached[n] = std::min(reached[n], 2 * law.largest);
    }
  }

  // The first bits of a piece, from a byte of a keystream on.
  template <class F>
  static INLINE void make_firsts(const Address& at, uint64_t first_byte, uint16_t* firsts,
                                 F look_up) {
    alignas(64) uint32_t made[16 * BLOCKS];
    make_keystream(at, (uint32_t)(first_byte / 64), BLOCKS, made, look_up);
    std::memcpy(firsts, (const uint8_t*)made + first_byte % 64, sizeof(uint16_t) * PIECE);
  }

  // The words of the searches, which lie behind the first bits of all digits.
  const uint64_t* read_keystream(const Address& at, uint64_t first_byte, uint64_t bytes) {
    const uint64_t skipped = first_byte % 64;
    const Index blocks = count_parts(skipped + bytes, 64 * SETS * LANES) * SETS * LANES;
    keystream_.ensure(16 * blocks);
    const auto nothing = []() INLINE_LAMBDA {};
    make_keystream(at, (uint32_t)(first_byte / 64), blocks, keystream_.data(), nothing);
    return (const uint64_t*)((const uint8_t*)keystream_.data() + skipped);
  }

  template <class F>
  static INLINE void make_keystream(const Address& at, uint32_t counter, Index blocks,
                                    uint32_t* to, F meanwhile) {
    for (Index block = 0; block < blocks; block += SETS * LANES) {
      Words x[SETS][16];
      make_many_blocks(at, counter + (uint32_t)block, x, meanwhile);
      for (int n = 0; n < SETS; n++) store_blocks(x[n], to + 16 * (block + n * LANES));
    }
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
