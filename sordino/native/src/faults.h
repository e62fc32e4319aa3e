// Faults that a test build has and the shipped library has not: tests compile the kernel with
// -DSORDINO_TEST_FAULTS, choose one by the environment variable SORDINO_TEST_FAULT, and expect that
// an audit notices it. Without that flag every function below hands back what it was given.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "random.h"

namespace sordino {

#ifdef SORDINO_TEST_FAULTS

constexpr bool HAS_FAULTS = true;

inline bool has_fault(const char* name) {
  const char* chosen = std::getenv("SORDINO_TEST_FAULT");
  return chosen && std::strcmp(chosen, name) == 0;
}

// The scale of noise, in steps and on uploads.
inline double faulty_noise(double sigma) {
  if (has_fault("noise removed")) return 0.0;
  return has_fault("noise halved") ? sigma / 2 : sigma;
}

// The law of the noise in steps.
inline NoiseShape faulty_shape(NoiseShape shape) {
  if (has_fault("normal stand-in")) shape.law = NORMAL;
  return shape;
}

// The round that the noise is drawn for.
inline uint32_t faulty_round(uint32_t round) { return has_fault("noise drawn twice") ? 0 : round; }

inline double faulty_clip(double clip) { return has_fault("clip removed") ? 1e100 : clip; }

inline double faulty_rate(double rate) { return has_fault("rate doubled") ? 2 * rate : rate; }

// What is added to every step's gradient: a client's control variates.
inline const float* faulty_correction(const float* correction) {
  return has_fault("control variates left out") ? nullptr : correction;
}

// How many steps a client makes: one that makes none sends what it was given, and the mean goes
// without its work.
inline int64_t faulty_steps(int64_t steps, int64_t client) {
  return client == 0 && has_fault("client skipped") ? 0 : steps;
}

#else

constexpr bool HAS_FAULTS = false;

constexpr double faulty_noise(double sigma) { return sigma; }
inline NoiseShape faulty_shape(const NoiseShape& shape) { return shape; }
constexpr uint32_t faulty_round(uint32_t round) { return round; }
constexpr double faulty_clip(double clip) { return clip; }
constexpr double faulty_rate(double rate) { return rate; }
constexpr const float* faulty_correction(const float* correction) { return correction; }
constexpr int64_t faulty_steps(int64_t steps, int64_t) { return steps; }

#endif

}  // namespace sordino
