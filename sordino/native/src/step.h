// Local training: batches, their gradients and the clip. It does in one thread what
// sordino/federation/rules does in torch; steps are in update.h, what is sent in upload.h.
#pragma once
#include "faults.h"
#include "jobs.h"
#include "memory.h"
#include "plan.h"
#include "random.h"
#include "records.h"
#include "update.h"
#include "upload.h"

namespace sordino {

// What clips did to the gradients of a training.
struct ClipCounts {
  int64_t clipped = 0;
  int64_t clips = 0;
  int64_t nonfinite = 0;
};

// The norm of a gradient of the whole batch, added up in float64: l1 if `absolute`, otherwise l2.
inline double find_norm(const float* gradient, Index count, bool absolute) {
  Wide even{};
  Wide odd{};
  const Floats* g = (const Floats*)gradient;
  const Index n = count / LANES;
  const auto take = [absolute](Wide& sum, Floats v) {
    if (absolute) {
      add(sum, absolute_value(v));
    } else {
      add_squares(sum, v);
    }
  };
  Index i = 0;
  for (; i + 1 < n; i += 2) {
    take(even, g[i]);
    take(odd, g[i + 1]);
  }
  if (i < n) take(even, g[i]);
  const double sum = sum_of_lanes(even.low + even.high) + sum_of_lanes(odd.low + odd.high);
  return absolute ? sum : std::sqrt(sum);
}

// Trains clients, one after the other, on one thread. It keeps its memory between clients; no other
// state passes from one to the next.
class Trainer {
 public:
  Trainer(const Plan& plan)
      : plan_(plan),
        pixels_(plan.pixels * plan.vectors * LANES),
        weights_(plan.padded_parameters),
        gradient_(plan.padded_parameters),
        sums_(plan.lane_sums * plan.vectors * LANES),
        saved_(plan.saved * plan.vectors * LANES),
        packed_(plan.packed),
        input_rows_(plan.input_rows * plan.vectors),
        loader_(plan, work_),
        updater_(plan, work_),
        uploader_(plan) {
    work_.vectors = plan.vectors;
    work_.tensors = &plan.tensors;
    work_.pixels = (Floats*)pixels_.data();
    work_.weights = weights_.data();
    work_.gradient = gradient_.data();
    work_.packed = packed_.data();
    work_.input_rows = input_rows_.data();
    work_.sums = (Floats*)sums_.data();
    work_.saved = (Floats*)saved_.data();
  }

  // Does a job: trains one client for one round, and writes what the job asks for.
  void train(Job& job) {
    const Rule& rule = *job.rule;
    const Records& records = *job.data;
    const uint32_t client = (uint32_t)job.client;
    const uint32_t round = (uint32_t)job.round;
    // Trainings share a keystream: the batches of one lie behind those of the one before, and an
    // index takes two words.
    const uint64_t first_word = 2 * (uint64_t)(job.lane * rule.steps * rule.batch);
    Keystream draws({job.batch_key, {client, round, 0}}, first_word);
    ClipCounts counts;
    updater_.begin(job);
    work_.mask_key = job.mask_key;
    const int64_t* rows = job.rows;
    const int64_t steps = faulty_steps(rule.steps, job.client);
    for (int64_t step = 0; step < steps; step++) {
      const Index count = job.rows ? job.counts[step] : rule.batch;
      const int64_t* batch = job.rows ? rows : draw_batch(draws, job, count);
      if (job.rows) rows += count;
      work_.step = (uint32_t)step;
      const ClippedGradient gradient = clip_gradient(rule, records, batch, count, counts);
      const Address address{job.step_key, {client, faulty_round(round), (uint32_t)step}};
      const NoiseShape shape = faulty_shape(shape_of(rule));
      NoiseStream noise(address, shape, first_value(job, shape.law, plan_.parameters));
      updater_.take_step(rule, job, step, gradient, noise);
    }
    write_results(job, counts);
  }

  // The mean loss of a batch and the gradient that a first step would use, before noise. For tests
  // and for checking a translation.
  double gradient(const Rule& rule, const Records& records, const float* weights,
                  const int64_t* rows, Index count, const uint8_t* mask_key, float* out) {
    updater_.load_weights(weights);
    work_.mask_key = mask_key;
    work_.step = 0;
    ClipCounts counts;
    const ClippedGradient gradient = clip_gradient(rule, records, rows, count, counts);
    std::vector<double> values;
    for (const ParameterRun& run : plan_.runs) {
      values.resize(run.length);
      gradient.read(run.start, run.length, values.data());
      std::copy(values.begin(), values.end(), out + run.flat);
    }
    return loss_ / (double)count;
  }

  // The outputs of the network for at most a block of records.
  void outputs(const Records& records, const float* weights, const int64_t* rows, Index count,
               float* out) {
    updater_.load_weights(weights);
    // Nothing is dropped where nothing is learnt.
    work_.mask_key = nullptr;
    loader_.load(records, rows, count);
    for (const auto& layer : plan_.layers) layer->forward(work_);
    const Floats* z = work_.values(plan_.tensors.back());
    const Index outputs = plan_.outputs();
    for (Index b = 0; b < count; b++) {
      for (Index j = 0; j < outputs; j++) {
        out[b * outputs + j] = z[j * work_.vectors + b / LANES][b % LANES];
      }
    }
  }

 private:
  // Blocks of examples whose clipped gradients are added up plainly before a compensated addition.
  static constexpr Index BLOCKS_IN_GROUP = 16;

  static NoiseShape shape_of(const Rule& rule) {
    return {(NoiseLaw)rule.step_law, rule.stair_fall, rule.stair_place};
  }

  // The records of a step: distinct, and drawn anew for every step.
  const int64_t* draw_batch(Keystream& draws, const Job& job, Index count) {
    batch_.resize(count);
    shuffle_.draw(draws, count, job.population, batch_.data());
    for (Index i = 0; i < count; i++) batch_[i] = job.records[batch_[i]];
    return batch_.data();
  }

  // ---- the clipped gradient

  // The gradient of these records. It is in this trainer's memory until the next one is made.
  ClippedGradient clip_gradient(const Rule& rule, const Records& records, const int64_t* rows,
                                Index count, ClipCounts& counts) {
    loss_ = 0;
    work_.per_example = rule.per_example != 0;
    if (work_.per_example) return clip_every_example(rule, records, rows, count, counts);
    const double scale = clip_batch(rule, records, rows, count, counts);
    return {work_.gradient, nullptr, scale};
  }

  // Leaves the gradient of the mean loss in work_.gradient, and returns the factor of its clip.
  double clip_batch(const Rule& rule, const Records& records, const int64_t* rows, Index count,
                    ClipCounts& counts) {
    counts.clips++;
    for (Index first = 0; first < count; first += work_.block_size()) {
      work_.fresh = first == 0;
      work_.first_example = first;
      loader_.load(records, rows + first, std::min(work_.block_size(), count - first));
      pass_block(records, rows + first, 1.0f / (float)count);
    }
    // An empty batch has left the gradient of the step before.
    if (count == 0) return 0.0;
    for (const auto& layer : plan_.layers) layer->finish_step(work_);
    const double norm = find_norm(work_.gradient, plan_.padded_parameters, rule.norm == 1);
    // A gradient that is not finite counts as zero: the step then depends on the data no more than
    // a clipped one.
    if (!std::isfinite(norm)) {
      counts.nonfinite++;
      return 0.0;
    }
    // Not to the clip itself but a little below, so that rounding cannot pass what is priced.
    const double clip = faulty_clip(rule.clip);
    counts.clipped += norm > clip;
    return norm > 0 ? std::min(1.0, clip * CLIP_FRACTION / norm) : 1.0;
  }

  // The sum of the clipped gradients of all examples over the rule's divisor. Blocks are added up
  // in groups: plainly within one, with compensation from group to group (docs/theory.md#c7).
  ClippedGradient clip_every_example(const Rule& rule, const Records& records, const int64_t* rows,
                                     Index count, ClipCounts& counts) {
    counts.clips += count;
    if (count == 0) return {work_.gradient, nullptr, 0.0};
    const double divisor = rule.divisor > 0 ? rule.divisor : (double)count;
    scaled_.ensure(plan_.scaled * plan_.vectors * LANES);
    work_.scaled = scaled_.data();
    example_sum_.begin(plan_.padded_parameters);
    int64_t bad = 0;
    Index blocks = 0;
    for (Index first = 0; first < count; first += work_.block_size()) {
      work_.fresh = blocks % BLOCKS_IN_GROUP == 0;
      work_.first_example = first;
      if (work_.fresh) work_.clipped_sum = example_sum_.open_part();
      loader_.load(records, rows + first, std::min(work_.block_size(), count - first));
      pass_block(records, rows + first, 1.0f);
      bad += add_clipped_examples(rule, divisor, counts);
      blocks++;
    }
    const double* sum = example_sum_.finish();
    counts.nonfinite += bad;
    // Examples that are not finite have been left out; a sum that is not finite all the same must
    // not reach the model.
    const bool counts_as_zero = bad > 0 && !is_finite(sum);
    return {work_.gradient, sum, counts_as_zero ? 0.0 : 1.0};
  }

  bool is_finite(const double* sum) const {
    const double* end = sum + plan_.padded_parameters;
    return std::all_of(sum, end, [](double value) { return std::isfinite(value); });
  }

  // Takes a block of examples forward to the loss, and its gradient back through all layers.
  void pass_block(const Records& records, const int64_t* rows, float scale) {
    for (const auto& layer : plan_.layers) layer->forward(work_);
    const Answers answers{records.labels, records.targets};
    loss_ += apply_loss(plan_.loss, work_, plan_.tensors.back(), answers, rows, scale);
    for (auto layer = plan_.layers.rbegin(); layer != plan_.layers.rend(); ++layer) {
      (*layer)->backward(work_);
    }
  }

  // Adds the clipped gradients of the examples of a block, and returns how many were not finite.
  // First every layer adds its part of the norms, then all are scaled by factors of the whole.
  int64_t add_clipped_examples(const Rule& rule, double divisor, ClipCounts& counts) {
    Norms norms{{}, rule.norm == 1};
    for (const auto& layer : plan_.layers) layer->add_norms(work_, norms);
    const double clip = faulty_clip(rule.clip);
    ClipFactors factors;
    int64_t bad = 0;
    for (int v = 0; v < work_.vectors; v++) {
      for (int l = 0; l < LANES; l++) {
        const double sum = l < HALF ? norms.sum[v].low[l] : norms.sum[v].high[l - HALF];
        const double norm = rule.norm == 1 ? sum : std::sqrt(sum);
        const bool live = v * LANES + l < work_.examples;
        // Longer ones count as not finite, as in sordino/models/clipping.py.
        const bool finite = std::isfinite(norm) && norm <= clip * LONGEST_IN_CLIPS;
        double factor = 0.0;
        if (live && finite) {
          const bool over = norm > clip * CLIP_FRACTION;
          factor = (over ? clip * CLIP_FRACTION / norm : 1.0) / divisor;
        }
        if (l < HALF) {
          factors.factor[v].low[l] = factor;
        } else {
          factors.factor[v].high[l - HALF] = factor;
        }
        factors.finite[v][l] = live && finite ? -1 : 0;
        counts.clipped += live && finite && norm > clip;
        bad += live && !finite;
      }
    }
    for (const auto& layer : plan_.layers) layer->add_clipped(work_, factors);
    return bad;
  }

  // ---- what leaves the client

  void write_results(Job& job, const ClipCounts& counts) {
    job.clipped = counts.clipped;
    job.clips = counts.clips;
    job.nonfinite = counts.nonfinite;
    updater_.write_moments(job);
    const double* exact = updater_.exact();
    if (job.exact) {
      for (const ParameterRun& run : plan_.runs) {
        std::memcpy(job.exact + run.flat, exact + run.start, sizeof(double) * run.length);
      }
    }
    if (job.result) uploader_.write_model(job, exact);
    if (job.integers) uploader_.write_integers(job, exact);
  }

  const Plan& plan_;
  Work work_;
  Memory<float> pixels_;
  Memory<float> weights_;
  Memory<float> gradient_;
  Memory<float> sums_;
  Memory<float> saved_;
  Memory<float> packed_;
  Memory<float> input_rows_;
  Memory<double> scaled_;
  RecordLoader loader_;
  Updater updater_;
  Uploader uploader_;
  CompensatedSum example_sum_;
  std::vector<int64_t> batch_;
  Shuffle shuffle_;
  // The sum of the losses of the last batch.
  double loss_ = 0;
};

}  // namespace sordino
