// The C interface, which sordino/engines/native/library.py loads. It is compiled once for every instruction set, each time to a
// library of its own, so that no function compiled for one processor can be picked up by a library for another.
#pragma once
#include <mutex>

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

  template <class F>
  int work(int64_t threads, int64_t tasks, F f) try {
    std::lock_guard<std::mutex> lock(busy);
    const int64_t wanted = std::max<int64_t>(1, std::min(threads, tasks));
    while ((int64_t)trainers.size() < wanted) trainers.push_back(std::make_unique<Trainer>(plan));
    return share_out((int)wanted, tasks, [&](int thread, long task) { f(*trainers[thread], task); }) ? 0 : 1;
  } catch (const std::bad_alloc&) {
    return 1;
  }
};

}  // namespace

// As in library.py: a new number whenever a structure or a function changes.
EXPORT int64_t sordino_version() { return 5; }

EXPORT int64_t sordino_lanes() { return LANES; }

// Which of the libraries this processor can run: 0 the portable one, 1 AVX2, 2 AVX-512.
EXPORT int64_t sordino_processor() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return avx512 ? 2 : avx2 ? 1 : 0;
#else
  return 0;
#endif
}

EXPORT Handle* sordino_plan(const int64_t* tensors, int64_t tensor_count, const int64_t* layers, int64_t layer_count, int64_t vectors,
                            int64_t loss) try {
  return new Handle{Plan(tensors, tensor_count, layers, layer_count, (int)vectors, (Loss)loss), {}, {}};
} catch (const std::bad_alloc&) {
  return nullptr;
}

EXPORT void sordino_release(Handle* handle) { delete handle; }

EXPORT int64_t sordino_parameters(const Handle* handle) { return handle->plan.parameters; }

// Bytes that one thread holds for its work.
EXPORT int64_t sordino_memory(const Handle* handle) {
  const Plan& p = handle->plan;
  return ((p.pixels + p.lane_sums + p.saved) * LANES + p.turned) * p.vectors * 4 + p.packed * 4 + p.padded_parameters * 24;
}

// Trains every job; 0, or 1 if there was no memory.
EXPORT int64_t sordino_train(Handle* handle, Job* jobs, int64_t count, int64_t threads) {
  return handle->work(threads, count, [&](Trainer& trainer, long job) { trainer.train(jobs[job]); });
}

EXPORT int64_t sordino_gradient(Handle* handle, const Records* records, const Rule* rule, const float* weights, const int64_t* rows,
                                int64_t count, float* gradient, double* loss) {
  return handle->work(1, 1, [&](Trainer& trainer, long) { *loss = trainer.gradient(*rule, *records, weights, rows, count, gradient); });
}

// The outputs for some records, one record a row.
EXPORT int64_t sordino_outputs(Handle* handle, const Records* records, const float* weights, const int64_t* rows, int64_t count,
                               float* outputs, int64_t threads) {
  const Index block = handle->plan.vectors * LANES, each = handle->plan.outputs();
  return handle->work(threads, parts(count, block), [&](Trainer& trainer, long task) {
    const Index first = task * block;
    trainer.outputs(*records, weights, rows + first, std::min(block, (Index)count - first), outputs + first * each);
  });
}

EXPORT void sordino_keystream(const uint8_t* key, const uint32_t* nonce, uint32_t* words, int64_t first, int64_t count) {
  Keystream stream({key, {nonce[0], nonce[1], nonce[2]}}, (uint64_t)first);
  for (int64_t i = 0; i < count; i++) words[i] = stream.word();
}

EXPORT void sordino_normals(const uint8_t* key, const uint32_t* nonce, double* normals, int64_t first, int64_t count) {
  Normals stream({key, {nonce[0], nonce[1], nonce[2]}}, (uint64_t)first);
  for (Index at = 0, got; at < count; at += got) {
    const double* some = stream.some(count - at, got);
    std::memcpy(normals + at, some, sizeof(double) * got);
  }
}

EXPORT void sordino_subsets(const uint8_t* key, const uint32_t* nonce, int64_t* chosen, int64_t count, int64_t size, int64_t population) {
  Keystream stream({key, {nonce[0], nonce[1], nonce[2]}});
  Shuffle shuffle;
  for (int64_t i = 0; i < count; i++) shuffle.draw(stream, size, population, chosen + i * size);
}
