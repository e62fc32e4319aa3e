// The C interface, which sordino/native/library.py loads. It is compiled once for every instruction
// set, each time to a separate library, so that no function compiled for one processor can be
// picked up by a library for another.
#pragma once
#include <mutex>

#include "layout.h"
#include "step.h"
#include "threads.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace sordino;

namespace {

// A plan and the memory of the threads that have worked on it.
struct Handle {
  Plan plan;
  std::vector<std::unique_ptr<Trainer>> trainers;
  std::mutex busy;

  // Calls f(trainer, task) for every task; 0, or 1 if there was no memory.
  template <class F>
  int run(int64_t threads, int64_t tasks, F f) try {
    std::lock_guard<std::mutex> lock(busy);
    const int64_t wanted = std::max<int64_t>(1, std::min(threads, tasks));
    while ((int64_t)trainers.size() < wanted) trainers.push_back(std::make_unique<Trainer>(plan));
    const auto call = [&](int thread, long task) { f(*trainers[thread], task); };
    return run_tasks((int)wanted, tasks, call) ? 0 : 1;
  } catch (const std::bad_alloc&) {
    return 1;
  }
};

Address make_address(const uint8_t* key, const uint32_t* nonce) {
  return {key, {nonce[0], nonce[1], nonce[2]}};
}

}  // namespace

// As in library.py: a new number whenever a function changes, or what is promised of a sum.
EXPORT int64_t sordino_version() { return 11; }

// Where fields are and which numbers names have, a line each (layout.h).
EXPORT const char* sordino_layout() { return describe_layout().c_str(); }

// Whether this is a test build, which can be made to misbehave (faults.h).
EXPORT int64_t sordino_has_faults() { return HAS_FAULTS; }

EXPORT int64_t sordino_lanes() { return LANES; }

// Which of the libraries this processor can run: 0 the portable one, 1 AVX2, 2 AVX-512.
EXPORT int64_t sordino_processor() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) return 2;
  return avx2 ? 1 : 0;
#else
  return 0;
#endif
}

EXPORT Handle* sordino_plan(const TensorRow* tensors, int64_t tensor_count, const LayerRow* layers,
                            int64_t layer_count, int64_t vectors, int64_t loss) try {
  Plan plan(tensors, tensor_count, layers, layer_count, (int)vectors, (Loss)loss);
  return new Handle{std::move(plan), {}, {}};
} catch (const std::bad_alloc&) {
  return nullptr;
}

EXPORT void sordino_release(Handle* handle) { delete handle; }

EXPORT int64_t sordino_parameters(const Handle* handle) { return handle->plan.parameters; }

// Bytes that one thread holds for its work.
EXPORT int64_t sordino_memory(const Handle* handle) {
  const Plan& p = handle->plan;
  const Index lane_vectors = p.pixels + p.lane_sums + p.saved + 2 * p.scaled;
  const Index floats = (lane_vectors * LANES + p.input_rows) * p.vectors + p.packed;
  // Weights and gradient in float32, exact weights and three vectors of a sum in float64.
  const Index bytes_per_parameter = 2 * sizeof(float) + 4 * sizeof(double);
  return floats * (Index)sizeof(float) + p.padded_parameters * bytes_per_parameter;
}

// Trains every job; 0, or 1 if there was no memory.
EXPORT int64_t sordino_train(Handle* handle, Job* jobs, int64_t count, int64_t threads) {
  return handle->run(threads, count, [&](Trainer& trainer, long job) { trainer.train(jobs[job]); });
}

EXPORT int64_t sordino_gradient(Handle* handle, const Records* records, const Rule* rule,
                                const float* weights, const int64_t* rows, int64_t count,
                                const uint8_t* mask_key, float* gradient, double* loss) {
  return handle->run(1, 1, [&](Trainer& trainer, long) {
    *loss = trainer.gradient(*rule, *records, weights, rows, count, mask_key, gradient);
  });
}

// The outputs for some records, one record a row.
EXPORT int64_t sordino_outputs(Handle* handle, const Records* records, const float* weights,
                               const int64_t* rows, int64_t count, float* outputs,
                               int64_t threads) {
  const Index block = handle->plan.vectors * LANES;
  const Index each = handle->plan.outputs();
  return handle->run(threads, count_parts(count, block), [&](Trainer& trainer, long task) {
    const Index first = task * block;
    const Index size = std::min(block, (Index)count - first);
    trainer.outputs(*records, weights, rows + first, size, outputs + first * each);
  });
}

// ---- draws, for comparison with sordino/randomness.py

EXPORT void sordino_keystream(const uint8_t* key, const uint32_t* nonce, uint32_t* words,
                              int64_t first, int64_t count) {
  Keystream stream(make_address(key, nonce), (uint64_t)first);
  for (int64_t i = 0; i < count; i++) words[i] = stream.next_word();
}

// Noise of scale 1.
EXPORT void sordino_noise(const uint8_t* key, const uint32_t* nonce, int64_t law, double fall,
                          double place, double* values, int64_t first, int64_t count) {
  const NoiseShape shape{(NoiseLaw)law, fall, place};
  NoiseStream stream(make_address(key, nonce), shape, (uint64_t)first);
  Index got = 0;
  for (Index at = 0; at < count; at += got) {
    const double* next = stream.take(count - at, got);
    std::memcpy(values + at, next, sizeof(double) * got);
  }
}

EXPORT void sordino_subsets(const uint8_t* key, const uint32_t* nonce, int64_t* chosen,
                            int64_t count, int64_t size, int64_t population) {
  Keystream stream(make_address(key, nonce));
  Shuffle shuffle;
  for (int64_t i = 0; i < count; i++) shuffle.draw(stream, size, population, chosen + i * size);
}

// Sums of digits from a keystream that is given.
EXPORT int64_t sordino_digits(const Digits* law, const uint64_t* words, int64_t count,
                              int64_t* draws) try {
  DiscreteDraws().add_up(*law, words, count, draws);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}
