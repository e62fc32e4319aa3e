// What leaves a client: its model with noise, or its update with noise on a grid of integers.
#pragma once
#include "discrete.h"
#include "faults.h"
#include "jobs.h"
#include "plan.h"
#include "random.h"

namespace sordino {

// Writes uploads. It keeps the memory of its draws between them.
class Uploader {
 public:
  explicit Uploader(const Plan& plan) : plan_(plan) {}

  // The update on a grid, with discrete noise on every coordinate, as integer_uploads.py makes it.
  void write_integers(const Job& job, const double* exact) {
    exact_ = exact;
    const Index count = plan_.parameters;
    const double share = faulty_noise(1.0);
    if (!job.rule->grid_noise || share == 0.0) {
      std::fill(job.integers, job.integers + count, 0);
      return add_update(job, 0, count);
    }
    const uint32_t round = faulty_round((uint32_t)job.round);
    const Address address{job.upload_key, {(uint32_t)job.client, round, 0}};
    const auto draw = [&](auto add) {
      discrete_.draw(*job.rule->grid_noise, address, job.lane, count, job.integers, add);
    };
    // Faults of test builds apart, every piece of the noise gets its update while it is in cache.
    if (share == 1.0) return draw([&](Index from, Index to) { add_update(job, from, to); });
    draw([](Index, Index) {});
    for (Index i = 0; i < count; i++) job.integers[i] *= share;
    add_update(job, 0, count);
  }

  // The model with noise on every coordinate, rounded to float32 once.
  void write_model(const Job& job, const double* exact) {
    const uint32_t round = faulty_round((uint32_t)job.round);
    const Address address{job.upload_key, {(uint32_t)job.client, round, 0}};
    NoiseStream noise(address, {}, first_value(job, NORMAL, plan_.parameters));
    // The noise goes through the parameters in their trained order, as numpy draws it.
    const double sigma = faulty_noise(job.rule->upload_noise);
    for (const ParameterRun& run : plan_.runs) {
      Index count = 0;
      for (Index at = 0; at < run.length; at += count) {
        count = run.length - at;
        const double* z = sigma > 0 ? noise.take(count, count) : nullptr;
        const double* w = exact + run.start + at;
        float* out = job.result + run.flat + at;
        for (Index i = 0; i < count; i++) out[i] = (float)(z ? w[i] + sigma * z[i] : w[i]);
      }
    }
  }

 private:
  // Adds a part of the update to the integers that are there. Parts are asked for in order.
  void add_update(const Job& job, Index from, Index to) {
    if (from == 0) next_run_ = 0;
    while (from < to) {
      const ParameterRun& run = plan_.runs[next_run_];
      const Index skipped = from - run.flat;
      const Index count = std::min(to - from, run.length - skipped);
      round_update(job, exact_ + run.start + skipped, from, count);
      from += count;
      next_run_ += skipped + count == run.length;
    }
  }

  // Adds a run of the update in steps of the grid: weighted, rounded to the nearest step, and
  // clamped to the grid's largest coordinate.
  static void round_update(const Job& job, const double* w, Index at, Index count) {
    const double limit = job.rule->grid_limit;
    const double scale = job.rule->grid_scale;
    const double weight = job.weight;
    const float* start = job.start + at;
    int64_t* out = job.integers + at;
    for (Index i = 0; i < count; i++) {
      const double steps = std::rint((w[i] - (double)start[i]) * weight * scale);
      // NaN, which a clamp would keep, counts as no move; infinities count as the largest.
      const double known = steps == steps ? steps : 0.0;
      out[i] += (int64_t)std::clamp(known, -limit, limit);
    }
  }

  const Plan& plan_;
  DiscreteDraws discrete_;
  // The weights of the update that is being written.
  const double* exact_ = nullptr;
  // Which run of parameters the next part of an update begins in.
  std::size_t next_run_ = 0;
};

}  // namespace sordino
