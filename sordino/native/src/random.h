// The draws of sordino/randomness.py: the ChaCha20 keystream of RFC 8439, as noise and subsets.
//
// Lanes are blocks: block counters n, n + 1, ... run side by side, and every quarter round is the
// same instruction in all of them.
#pragma once
#include <vector>

#include "jobs.h"
#include "vectors.h"

namespace sordino {

// A keystream is addressed by a key of 32 bytes and the nonce (client, round, step).
struct Address {
  const uint8_t* key;
  uint32_t nonce[3];
};

INLINE Words rotate_left(Words x, int by) { return (x << by) | (x >> (32 - by)); }

INLINE void quarter_round(Words& a, Words& b, Words& c, Words& d) {
  a += b;
  d = rotate_left(d ^ a, 16);
  c += d;
  b = rotate_left(b ^ c, 12);
  a += b;
  d = rotate_left(d ^ a, 8);
  c += d;
  b = rotate_left(b ^ c, 7);
}

// ChaCha20 has twenty rounds.
constexpr int DOUBLE_ROUNDS = 10;

// Blocks side by side: from lane to lane, and from set to set, word `PLACE` of their state counts
// up. After all quarter rounds of half a double round of a set, it calls meanwhile(): work that a
// processor does beside the arithmetic.
template <int PLACE, int SETS, class F>
INLINE void mix_blocks(const Address& at, uint32_t counter, Words (*x)[16], F meanwhile) {
  uint32_t s[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
  std::memcpy(s + 4, at.key, 32);
  s[12] = counter;
  std::memcpy(s + 13, at.nonce, 12);
  Words counted[SETS];
  UNROLL for (int n = 0; n < SETS; n++) {
    UNROLL for (int l = 0; l < LANES; l++) counted[n][l] = s[PLACE] + n * LANES + l;
    UNROLL for (int i = 0; i < 16; i++) x[n][i] = Words{} + s[i];
    x[n][PLACE] = counted[n];
  }
  for (int double_round = 0; double_round < DOUBLE_ROUNDS; double_round++) {
    UNROLL for (int n = 0; n < SETS; n++) {
      UNROLL for (int i = 0; i < 4; i++) {
        quarter_round(x[n][i], x[n][4 + i], x[n][8 + i], x[n][12 + i]);
      }
      meanwhile();
    }
    UNROLL for (int n = 0; n < SETS; n++) {
      UNROLL for (int i = 0; i < 4; i++) {
        quarter_round(x[n][i], x[n][4 + (i + 1) % 4], x[n][8 + (i + 2) % 4],
                      x[n][12 + (i + 3) % 4]);
      }
      meanwhile();
    }
  }
  UNROLL for (int n = 0; n < SETS; n++) {
    UNROLL for (int i = 0; i < 16; i++) x[n][i] += i == PLACE ? counted[n] : Words{} + s[i];
  }
}

// Word i of block `counter + l` is in lane l of x[i].
INLINE void make_blocks(const Address& at, uint32_t counter, Words x[16]) {
  mix_blocks<12, 1>(at, counter, (Words(*)[16])x, []() INLINE_LAMBDA {});
}

// For long keystreams: each quarter round waits for itself, and two sets wait together.
constexpr int SETS = 2;

// Word i of block `counter + n LANES + l` is in lane l of x[n][i].
template <class F>
INLINE void make_many_blocks(const Address& at, uint32_t counter, Words x[SETS][16], F meanwhile) {
  mix_blocks<12, SETS>(at, counter, x, meanwhile);
}

// Word i of block `counter` of the nonce whose second part is greater by l is in lane l of x[i].
INLINE void make_blocks_of_examples(const Address& at, uint32_t counter, Words x[16]) {
  mix_blocks<14, 1>(at, counter, (Words(*)[16])x, []() INLINE_LAMBDA {});
}

// The keystream in its order, some blocks at a time.
class Keystream {
 public:
  explicit Keystream(const Address& at, uint64_t first_word = 0)
      : at_(at), counter_((uint32_t)(first_word / 16)), skipped_((int)(first_word % 16)) {}

  uint32_t next_word() {
    if (next_ == 16 * LANES) refill();
    const uint32_t word = words_[next_];
    next_++;
    return word;
  }
  uint64_t next_long() {
    const uint64_t low = next_word();
    const uint64_t high = next_word();
    return low | high << 32;
  }

 private:
  NOINLINE void refill() {
    Words x[16];
    make_blocks(at_, counter_, x);
    for (int l = 0; l < LANES; l++) {
      for (int i = 0; i < 16; i++) words_[16 * l + i] = x[i][l];
    }
    counter_ += LANES;
    next_ = skipped_;
    skipped_ = 0;
  }

  Address at_;
  uint32_t counter_;
  // Words of the first block that come before the first that is wanted.
  int skipped_;
  int next_ = 16 * LANES;
  uint32_t words_[16 * LANES];
};

// ---- normals

// The bits of the doubles 1, 2^52 and sqrt(1/2), and of a mantissa: numbers are taken apart and put
// together by whole-number arithmetic.
constexpr uint64_t ONE = 0x3ff0000000000000;
constexpr uint64_t TWO_TO_52 = 0x4330000000000000;
constexpr uint64_t ROOT_OF_HALF = 0x3fe6a09e667f3bcd;
constexpr uint64_t MANTISSA = 0x000fffffffffffff;

// The upper 52 bits of a word as the midpoint (k + 1/2) / 2^52.
INLINE Doubles unit_interval(Longs words) {
  return (Doubles)((words >> 12) | ONE) - (1.0 - 0x1p-53);
}

// log(x) of numbers in (0, 1): x = 2^e m with m in [1/sqrt(2), sqrt(2)), and log m = 2 artanh s,
// s = (m - 1) / (m + 1), s^2 < 0.03.
INLINE Doubles logarithm(Doubles x) {
  // The sum carries into the exponent from 1/sqrt(2) on, which is where e grows by one.
  const Longs shifted = (Longs)x + (ONE - ROOT_OF_HALF);
  const Doubles e = (Doubles)((shifted >> 52) | TWO_TO_52) - (0x1p52 + 1023);
  const Doubles m = (Doubles)((shifted & MANTISSA) + ROOT_OF_HALF);
  const Doubles s = (m - 1.0) / (m + 1.0);
  const Doubles z = s * s;
  Doubles series = splat(1.0 / 23);
  UNROLL for (int k = 10; k >= 0; k--) series = series * z + 1.0 / (2 * k + 1);
  return e * 0x1.62e42fefa39efp-1 + 2.0 * s * series;
}

// sin(pi y) for |y| <= 1/2, by the coefficients in sordino/uniform_words.py.
INLINE Doubles sine_half_turn(Doubles y) {
  constexpr double SINE[10] = {
      3.141592653589793,       -5.167712780049969,      2.550164039877345,
      -0.5992645293207919,     0.08214588661112819,     -0.007370430945714348,
      0.00046630280576761234,  -2.1915353447830204e-05, 7.952054001475508e-07,
      -2.2948428997269856e-08,
  };
  const Doubles square = y * y;
  Doubles sum = splat(SINE[9]);
  UNROLL for (int k = 8; k >= 0; k--) sum = sum * square + SINE[k];
  return sum * y;
}

// Box and Muller: a pair of words to a pair of normals.
INLINE void make_normal_pair(Longs first, Longs second, Doubles& a, Doubles& b) {
  const Doubles radius = square_root(-2.0 * logarithm(unit_interval(first)));
  const Doubles cosine = -sine_half_turn(unit_interval(second) - 0.5);
  // The sine from the cosine, at 0 where rounding makes the difference negative; its sign is the
  // lowest bit of the word, which unit_interval does not read.
  const Doubles rest = 1.0 - cosine * cosine;
  const Doubles sine = square_root((Doubles)((Longs)rest & (Longs)(rest > Doubles{})));
  a = radius * cosine;
  b = radius * (Doubles)((Longs)sine ^ (second << 63));
}

// Words of 64 bits of which the lower halves are in one vector and the upper halves in another.
template <int... L>
INLINE void interleave(Words low, Words high, Longs out[2], std::integer_sequence<int, L...>) {
  out[0] = (Longs)__builtin_shufflevector(low, high, (L / 2 + (L & 1) * LANES)...);
  out[1] = (Longs)__builtin_shufflevector(low, high, (HALF + L / 2 + (L & 1) * LANES)...);
}

// ---- other noise

// A law of scale 1, as the rule has it (jobs.h).
struct NoiseShape {
  NoiseLaw law = NORMAL;
  double fall = 0;
  double place = 0;
};

// The sign is the lowest bit of a word, which unit_interval does not read.
INLINE Doubles give_sign(Longs word, Doubles magnitude) {
  return (Doubles)((Longs)magnitude ^ (word << 63));
}

// By the inverse of the distribution function of |X|, which is exponential.
INLINE Doubles make_laplace(Longs word) { return give_sign(word, -logarithm(unit_interval(word))); }

// The whole part of numbers from 0 to 2^51: adding 2^52 rounds to the nearest, and what was rounded
// up is put back.
INLINE Doubles whole_part(Doubles x) {
  const Doubles rounded = (x + 0x1p52) - 0x1p52;
  return rounded - (Doubles)((Longs)(rounded > x) & (Longs)splat(1.0));
}

// A geometric number of widths, then a place in the upper or the lower stair. The whole part may
// differ from numpy's by one where the logarithms differ in their last digit: once in 10^14 words.
INLINE Doubles make_stair(Longs first, Longs second, const NoiseShape& shape, double upper) {
  const double nu = shape.place;
  const Doubles widths = whole_part(-logarithm(unit_interval(first)) / shape.fall);
  const Doubles place = unit_interval(second);
  const Doubles in_upper = nu * (place / upper);
  const Doubles in_lower = nu + (1.0 - nu) * ((place - upper) / (1.0 - upper));
  const Longs is_upper = (Longs)(place < splat(upper));
  const Longs within = ((Longs)in_upper & is_upper) | ((Longs)in_lower & ~is_upper);
  return give_sign(first, widths + (Doubles)within);
}

// ---- a stream of noise

// Noise of one law and scale 1, in the order of sordino/randomness.py and sordino/mechanisms: a
// block of the keystream gives eight normals or Laplace values, or four values of a staircase.
class NoiseStream {
 public:
  explicit NoiseStream(const Address& at, const NoiseShape& shape = {}, uint64_t first = 0)
      : at_(at),
        shape_(shape),
        each_(shape.law == STAIRCASE ? 4 : 8),
        upper_(shape.place / (shape.place + (1 - shape.place) * std::exp(-shape.fall))),
        counter_((uint32_t)(first / each_)),
        skipped_((int)(first % each_)),
        next_(each_ * SETS * LANES) {}

  // Returns where the next values are; `got` says how many, at most `wanted`.
  const double* take(Index wanted, Index& got) {
    const int held = each_ * SETS * LANES;
    if (next_ == held) refill();
    const double* here = buffer_ + next_;
    got = wanted < held - next_ ? wanted : held - next_;
    next_ += (int)got;
    return here;
  }

 private:
  NOINLINE void refill() {
    Words x[SETS][16];
    make_many_blocks(at_, counter_, x, []() INLINE_LAMBDA {});
    for (int n = 0; n < SETS; n++) store_set(x[n], buffer_ + n * each_ * LANES);
    counter_ += SETS * LANES;
    next_ = skipped_;
    skipped_ = 0;
  }

  void store_set(const Words x[16], double* to) const {
    Doubles z[2][8];
    switch (shape_.law) {
      case NORMAL:
        make_normals(x, z);
        break;
      case LAPLACE:
        make_laplaces(x, z);
        break;
      case STAIRCASE:
        make_stairs(x, z);
        break;
    }
    if (each_ == 8) {
      store_eights(z, to);
    } else {
      store_fours(z, to);
    }
  }

  using Lanes = std::make_integer_sequence<int, LANES>;

  void make_normals(const Words x[16], Doubles z[2][8]) const {
    UNROLL for (int pair = 0; pair < 4; pair++) {
      Longs first[2];
      Longs second[2];
      interleave(x[4 * pair], x[4 * pair + 1], first, Lanes{});
      interleave(x[4 * pair + 2], x[4 * pair + 3], second, Lanes{});
      UNROLL for (int h = 0; h < 2; h++) {
        make_normal_pair(first[h], second[h], z[h][2 * pair], z[h][2 * pair + 1]);
      }
    }
  }

  void make_laplaces(const Words x[16], Doubles z[2][8]) const {
    UNROLL for (int r = 0; r < 8; r++) {
      Longs words[2];
      interleave(x[2 * r], x[2 * r + 1], words, Lanes{});
      UNROLL for (int h = 0; h < 2; h++) z[h][r] = make_laplace(words[h]);
    }
  }

  void make_stairs(const Words x[16], Doubles z[2][8]) const {
    UNROLL for (int r = 0; r < 4; r++) {
      Longs first[2];
      Longs second[2];
      interleave(x[4 * r], x[4 * r + 1], first, Lanes{});
      interleave(x[4 * r + 2], x[4 * r + 3], second, Lanes{});
      UNROLL for (int h = 0; h < 2; h++) z[h][r] = make_stair(first[h], second[h], shape_, upper_);
    }
  }

  // Lanes are blocks; in memory the values of a block are adjacent.
  static void store_eights(Doubles z[2][8], double* to) {
    for (int h = 0; h < 2; h++) {
      for (int r = 0; r < 8; r += HALF) {
        transpose<HALF>(z[h] + r);
        UNROLL for (int l = 0; l < HALF; l++) {
          *(LooseDoubles*)(to + 8 * (h * HALF + l) + r) = z[h][r + l];
        }
      }
    }
  }

  static void store_fours(const Doubles z[2][8], double* to) {
    for (int h = 0; h < 2; h++) {
      for (int l = 0; l < HALF; l++) {
        for (int r = 0; r < 4; r++) to[4 * (h * HALF + l) + r] = z[h][r][l];
      }
    }
  }

  Address at_;
  NoiseShape shape_;
  // How many values a block of the keystream gives.
  int each_;
  // The probability of the upper stair of a width; of a staircase only.
  double upper_;
  uint32_t counter_;
  // Values of the first block that come before the first that is wanted.
  int skipped_;
  int next_;
  alignas(64) double buffer_[8 * SETS * LANES];
};

// The first value of a training's row of a keystream that several trainings share. Normals come in
// pairs, so their rows have even lengths.
inline uint64_t first_value(const Job& job, NoiseLaw law, Index parameters) {
  const Index unused = law == NORMAL ? parameters % 2 : 0;
  return (uint64_t)(job.lane * (parameters + unused));
}

// ---- subsets

// Distinct numbers below a population, as sordino/randomness.py draws them: the first places of a
// Fisher-Yates shuffle. The shuffled numbers are put back after every subset, so that a draw costs
// what it draws and not the population.
class Shuffle {
 public:
  void draw(Keystream& stream, Index size, Index population, int64_t* chosen) {
    // No keystream is spent where there is no choice, as in sordino/randomness.py.
    if (size == population) {
      for (Index i = 0; i < size; i++) chosen[i] = i;
      return;
    }
    while ((Index)order_.size() < population) order_.push_back((int64_t)order_.size());
    swaps_.resize(size);
    for (Index place = 0; place < size; place++) {
      swaps_[place] = place + draw_below(stream, (uint64_t)(population - place));
      std::swap(order_[place], order_[swaps_[place]]);
      chosen[place] = order_[place];
    }
    for (Index place = size - 1; place >= 0; place--) {
      std::swap(order_[place], order_[swaps_[place]]);
    }
  }

 private:
  // The upper half of the product of a word of 64 bits and the span, which is below 2^32.
  static Index draw_below(Keystream& stream, uint64_t span) {
    const uint64_t word = stream.next_long();
    const uint64_t high = (word >> 32) * span;
    const uint64_t low = ((word & 0xffffffff) * span) >> 32;
    return (Index)((high + low) >> 32);
  }

  std::vector<int64_t> order_;
  std::vector<Index> swaps_;
};

}  // namespace sordino
