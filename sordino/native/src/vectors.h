// Vectors as wide as the machine's registers, and the few functions on them that layers need.
//
// Everything is written with the vector extensions of GCC and Clang. An intrinsic is used only
// where a plain loop is not turned into the one instruction that does it. NaN and infinity keep
// their meaning throughout: the build uses no -ffast-math.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define UNROLL _Pragma("GCC unroll 32")
#define INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define INLINE_LAMBDA __attribute__((always_inline))

namespace sordino {

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int LANES = 8;
constexpr int REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int LANES = 4;
constexpr int REGISTERS = 32;
#else
constexpr int LANES = 4;
constexpr int REGISTERS = 16;
#endif
constexpr int HALF = LANES / 2;

using Index = std::ptrdiff_t;

// All are as wide as a register, but for the halves. The loose ones may begin at any element.
typedef float Floats __attribute__((vector_size(LANES * 4), may_alias));
typedef float LooseFloats __attribute__((vector_size(LANES * 4), may_alias, aligned(4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4), may_alias));
typedef uint32_t Words __attribute__((vector_size(LANES * 4), may_alias));
typedef uint64_t Longs __attribute__((vector_size(LANES * 4), may_alias));
typedef double Doubles __attribute__((vector_size(LANES * 4), may_alias));
typedef double LooseDoubles __attribute__((vector_size(LANES * 4), may_alias, aligned(8)));
typedef float HalfFloats __attribute__((vector_size(HALF * 4), may_alias, aligned(4)));

INLINE Floats splat(float a) { return Floats{} + a; }
INLINE Doubles splat(double a) { return Doubles{} + a; }

INLINE Floats select(Ints mask, Floats a, Floats b) {
  return (Floats)(((Ints)a & mask) | ((Ints)b & ~mask));
}

// The value where the mask is set, else 0, whether or not the value is a number.
INLINE Floats keep_where(Floats a, Ints mask) { return (Floats)((Ints)a & mask); }

INLINE Floats absolute_value(Floats a) { return (Floats)((Ints)a & 0x7fffffff); }

// Of two numbers the greater; if either is NaN, the second.
INLINE Floats greater_of(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
  return (Floats)_mm_max_ps((__m128)a, (__m128)b);
#else
  return select(a > b, a, b);
#endif
}

INLINE Doubles square_root(Doubles a) {
#if defined(__AVX512F__)
  return (Doubles)_mm512_sqrt_pd((__m512d)a);
#elif defined(__AVX2__)
  return (Doubles)_mm256_sqrt_pd((__m256d)a);
#elif defined(__x86_64__)
  return (Doubles)_mm_sqrt_pd((__m128d)a);
#else
  Doubles root;
  UNROLL for (int i = 0; i < HALF; i++) root[i] = __builtin_sqrt(a[i]);
  return root;
#endif
}

// An empty statement that the compiler cannot see through: it keeps a value in a register, and a
// product apart from a later sum.
INLINE void pin(Floats& v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#elif defined(__x86_64__)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
}

// ---- a vector of floats as two vectors of doubles

struct Wide {
  Doubles low;
  Doubles high;
};

// GCC makes four instructions of a plain conversion: two halves of a half and their joining.
INLINE Doubles to_doubles(HalfFloats a) {
#if defined(__AVX512F__)
  return (Doubles)_mm512_cvtps_pd((__m256)a);
#elif defined(__AVX2__)
  return (Doubles)_mm256_cvtps_pd((__m128)a);
#else
  return __builtin_convertvector(a, Doubles);
#endif
}

INLINE HalfFloats to_floats(Doubles a) {
#if defined(__AVX512F__)
  return (HalfFloats)_mm512_cvtpd_ps((__m512d)a);
#elif defined(__AVX2__)
  return (HalfFloats)_mm256_cvtpd_ps((__m256d)a);
#else
  return __builtin_convertvector(a, HalfFloats);
#endif
}

template <int... L>
INLINE Wide widen(Floats a, std::integer_sequence<int, L...>) {
  const HalfFloats low = (HalfFloats)__builtin_shufflevector(a, a, L...);
  const HalfFloats high = (HalfFloats)__builtin_shufflevector(a, a, (HALF + L)...);
  return {to_doubles(low), to_doubles(high)};
}
INLINE Wide widen(Floats a) { return widen(a, std::make_integer_sequence<int, HALF>{}); }

template <int... L>
INLINE Floats narrow(Doubles low, Doubles high, std::integer_sequence<int, L...>) {
  const HalfFloats first = to_floats(low);
  const HalfFloats second = to_floats(high);
  return (Floats)__builtin_shufflevector(first, second, L...);
}
INLINE Floats narrow(Wide w) {
  return narrow(w.low, w.high, std::make_integer_sequence<int, LANES>{});
}

INLINE void add(Wide& sum, Floats a) {
  const Wide w = widen(a);
  sum.low += w.low;
  sum.high += w.high;
}

INLINE void add_squares(Wide& sum, Floats a) {
  const Wide w = widen(a);
  sum.low += w.low * w.low;
  sum.high += w.high * w.high;
}

INLINE double sum_of_lanes(Doubles a) {
  double sum = 0;
  UNROLL for (int i = 0; i < HALF; i++) sum += a[i];
  return sum;
}

INLINE float sum_of_lanes(Floats a) {
  float sum = 0;
  UNROLL for (int i = 0; i < LANES; i++) sum += a[i];
  return sum;
}

// ---- transposing and reducing as many vectors as there are lanes, by log2(lanes) shuffles each

template <int S, int N, class V, int... L>
INLINE V first_of(V a, V b, std::integer_sequence<int, L...>) {
  return (V)__builtin_shufflevector(a, b, ((L & S) == 0 ? L : N + L - S)...);
}
template <int S, int N, class V, int... L>
INLINE V second_of(V a, V b, std::integer_sequence<int, L...>) {
  return (V)__builtin_shufflevector(a, b, ((L & S) == 0 ? L + S : N + L)...);
}

template <int N, class V, int S = N / 2>
INLINE void transpose(V* row) {
  if constexpr (S > 0) {
    using Lanes = std::make_integer_sequence<int, N>;
    UNROLL for (int i = 0; i < N; i++) {
      if (i & S) continue;
      const V a = row[i];
      const V b = row[i + S];
      row[i] = first_of<S, N>(a, b, Lanes{});
      row[i + S] = second_of<S, N>(a, b, Lanes{});
    }
    transpose<N, V, S / 2>(row);
  }
}

// Lane l of the result is the sum over the lanes of row[l], of which there are N.
template <int N, class V, int S = N / 2>
INLINE V sum_rows(V* row) {
  if constexpr (S > 0) {
    using Lanes = std::make_integer_sequence<int, N>;
    UNROLL for (int i = 0; i < S; i++) {
      const V first = first_of<S, N>(row[i], row[i + S], Lanes{});
      const V second = second_of<S, N>(row[i], row[i + S], Lanes{});
      row[i] = first + second;
    }
    return sum_rows<N, V, S / 2>(row);
  }
  return row[0];
}

// ---- functions, to about a unit in the last place of float32

// Cody and Waite's reduction to |x| <= ln(2) / 2, then a polynomial. NaN stays NaN; beyond
// [-87, 88] the result saturates.
INLINE Floats exponential(Floats x) {
  x = select(x > splat(88.0f), splat(88.0f), x);
  x = select(x < splat(-87.0f), splat(-87.0f), x);
  Floats turns = x * 1.44269504f;
  turns += select(turns > Floats{}, splat(0.5f), splat(-0.5f));
  const Ints n = __builtin_convertvector(select(x == x, turns, Floats{}), Ints);
  const Floats whole = __builtin_convertvector(n, Floats);
  x -= whole * 0.693359375f;
  x -= whole * -2.12194440e-4f;
  Floats y = splat(1.9875691500e-4f);
  y = y * x + 1.3981999507e-3f;
  y = y * x + 8.3334519073e-3f;
  y = y * x + 4.1665795894e-2f;
  y = y * x + 1.6666665459e-1f;
  y = y * x + 5.0000001201e-1f;
  y = y * x * x + x + 1.0f;
  return select(y == y, (Floats)((Words)y + ((Words)n << 23)), y);
}

// For positive normal numbers. It serves the value of a loss alone, on which no gradient depends.
INLINE Floats logarithm(Floats x) {
  Floats y;
  UNROLL for (int i = 0; i < LANES; i++) y[i] = __builtin_logf(x[i]);
  return y;
}

// A rational function on [-7.9, 7.9], outside of which tanh is 1 in float32.
INLINE Floats hyperbolic_tangent(Floats x) {
  const float end = 7.90531110763549805f;
  x = select(x > splat(end), splat(end), x);
  x = select(x < splat(-end), splat(-end), x);
  const Floats z = x * x;
  Floats p = splat(-2.76076847742355e-16f);
  p = p * z + 2.00018790482477e-13f;
  p = p * z - 8.60467152213735e-11f;
  p = p * z + 5.12229709037114e-08f;
  p = p * z + 1.48572235717979e-05f;
  p = p * z + 6.37261928875436e-04f;
  p = p * z + 4.89352455891786e-03f;
  Floats q = splat(1.19825839466702e-06f);
  q = q * z + 1.18534705686654e-04f;
  q = q * z + 2.26843463243900e-03f;
  q = q * z + 4.89352518554385e-03f;
  return p * x / q;
}

INLINE Floats logistic(Floats x) { return 1.0f / (1.0f + exponential(-x)); }

// The normal distribution function. With z = |x| / sqrt(2): below 1 by the Taylor series of erf(z),
// beyond by a Chebyshev fit to log(erfc(z)) of relative error 1.2e-7 (Numerical Recipes, section
// 6.2), so that small tails keep their digits.
INLINE Floats normal_distribution(Floats x) {
  constexpr float SERIES[11] = {1.12837917f,     -0.376126389f,    0.112837917f,   -0.0268661706f,
                                0.00522397763f,  -0.000854832702f, 0.00012055333f, -1.49256504e-05f,
                                1.64621144e-06f, -1.63658447e-07f, 1.48071928e-08f};
  constexpr float FIT[10] = {-1.26551223f, 1.00002368f,  0.37409196f, 0.09678418f,  -0.18628806f,
                             0.27886807f,  -1.13520398f, 1.48851587f, -0.82215223f, 0.17087277f};
  const Floats z = absolute_value(x) * 0.707106781f;
  const Floats square = z * z;
  Floats series = splat(SERIES[10]);
  UNROLL for (int n = 9; n >= 0; n--) series = series * square + SERIES[n];
  const Floats t = 1.0f / (1.0f + 0.5f * z);
  Floats fit = splat(FIT[9]);
  UNROLL for (int n = 8; n >= 0; n--) fit = fit * t + FIT[n];
  const Floats upper_tail = 0.5f * t * exponential(fit - square);
  const Ints near = z < splat(1.0f);
  const Floats half = select(near, 0.5f * z * series, 0.5f - upper_tail);
  const Floats tail = select(near, 0.5f - half, upper_tail);
  return select(x > Floats{}, 0.5f + half, tail);
}

}  // namespace sordino
