// Local training: the gradient of a batch, its clip, the update, the noise. It does in one thread
// what sordino/federation/rules does in torch.
#pragma once
#include "discrete.h"
#include "faults.h"
#include "jobs.h"
#include "memory.h"
#include "plan.h"
#include "random.h"

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
        exact_(plan.padded_parameters) {
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

  void train(Job& job) {
    const Rule& rule = *job.rule;
    const Records& records = *job.data;
    const uint32_t client = (uint32_t)job.client;
    const uint32_t round = (uint32_t)job.round;
    const uint64_t first_word = 2 * (uint64_t)(job.lane * rule.steps * rule.batch);
    Keystream draws({job.batch_key, {client, round, 0}}, first_word);
    ClipCounts counts;
    load_start(job);
    work_.mask_key = job.mask_key;
    const int64_t* rows = job.rows;
    const int64_t steps = faulty_steps(rule.steps, job.client);
    for (int64_t step = 0; step < steps; step++) {
      const Index count = job.rows ? job.counts[step] : rule.batch;
      const int64_t* batch = job.rows ? rows : draw_batch(draws, job, count);
      if (job.rows) rows += count;
      work_.step = (uint32_t)step;
      const double scale = clip_gradient(rule, records, batch, count, counts);
      const Address address{job.step_key, {client, faulty_round(round), (uint32_t)step}};
      const NoiseShape shape = faulty_shape(shape_of(rule));
      NoiseStream noise(address, shape, first_value(job, shape.law));
      take_step(rule, job, step, scale, noise);
    }
    write_results(job, counts);
  }

  // The mean loss of a batch and the gradient that a first step would use, before noise. For tests
  // and for checking a translation.
  double gradient(const Rule& rule, const Records& records, const float* weights,
                  const int64_t* rows, Index count, const uint8_t* mask_key, float* out) {
    load_weights(weights);
    work_.mask_key = mask_key;
    work_.step = 0;
    ClipCounts counts;
    const double scale = clip_gradient(rule, records, rows, count, counts);
    for (const ParameterRun& run : plan_.runs) {
      for (Index i = 0; i < run.length; i++) {
        const Index at = run.start + i;
        const double g = clipped_sum_ ? clipped_sum_[at] : (double)work_.gradient[at];
        out[run.flat + i] = scale == 0.0 ? 0.0f : (float)(scale * g);
      }
    }
    return loss_ / (double)count;
  }

  // The outputs of the network for at most a block of records.
  void outputs(const Records& records, const float* weights, const int64_t* rows, Index count,
               float* out) {
    load_weights(weights);
    work_.mask_key = nullptr;
    load_records(records, rows, count);
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
  // Parameters that are updated together: what lies between is in the first-level cache.
  static constexpr Index PIECE = 256;

  Index block_size() const { return work_.vectors * LANES; }

  void load_weights(const float* weights) {
    for (const ParameterRun& run : plan_.runs) {
      std::memcpy(work_.weights + run.start, weights + run.flat, sizeof(float) * run.length);
    }
  }

  void load_start(const Job& job) {
    load_weights(job.start);
    for (const ParameterRun& run : plan_.runs) {
      double* exact = exact_.data() + run.start;
      const double* given = job.exact_start ? job.exact_start + run.flat : nullptr;
      const float* rounded = job.start + run.flat;
      for (Index i = 0; i < run.length; i++) exact[i] = given ? given[i] : (double)rounded[i];
    }
    if (job.rule->optimizer == SGD) return;
    moments_.ensure(2 * plan_.padded_parameters);
    std::fill(moments_.data(), moments_.data() + 2 * plan_.padded_parameters, 0.0);
    for_moments(job, [](double& held, float& given) { held = given; });
  }

  // Calls f(the moment here, the moment of the job) for those that the job has.
  template <class F>
  void for_moments(const Job& job, F f) {
    float* const given[2] = {job.first, job.second};
    for (int m = 0; m < 2; m++) {
      if (!given[m]) continue;
      for (const ParameterRun& run : plan_.runs) {
        double* held = moments_.data() + m * plan_.padded_parameters + run.start;
        for (Index i = 0; i < run.length; i++) f(held[i], given[m][run.flat + i]);
      }
    }
  }

  static NoiseShape shape_of(const Rule& rule) {
    return {(NoiseLaw)rule.step_law, rule.stair_fall, rule.stair_place};
  }

  // The first value of a training's row. Normals come in pairs, so their rows have even lengths.
  uint64_t first_value(const Job& job, NoiseLaw law) const {
    const Index unused = law == NORMAL ? plan_.parameters % 2 : 0;
    return (uint64_t)(job.lane * (plan_.parameters + unused));
  }

  const int64_t* draw_batch(Keystream& draws, const Job& job, Index count) {
    batch_.resize(count);
    shuffle_.draw(draws, count, job.population, batch_.data());
    for (Index i = 0; i < count; i++) batch_[i] = job.records[batch_[i]];
    return batch_.data();
  }

  // ---- the clipped gradient

  // Leaves a gradient in work_.gradient, or clipped_sum_ where examples are clipped, and returns
  // the factor that it has still to be multiplied by; 0 says that it counts as zero.
  double clip_gradient(const Rule& rule, const Records& records, const int64_t* rows, Index count,
                       ClipCounts& counts) {
    loss_ = 0;
    clipped_sum_ = nullptr;
    work_.per_example = rule.per_example != 0;
    if (work_.per_example) return clip_every_example(rule, records, rows, count, counts);
    return clip_batch(rule, records, rows, count, counts);
  }

  double clip_batch(const Rule& rule, const Records& records, const int64_t* rows, Index count,
                    ClipCounts& counts) {
    counts.clips++;
    for (Index first = 0; first < count; first += block_size()) {
      work_.fresh = first == 0;
      work_.first_example = first;
      load_records(records, rows + first, std::min(block_size(), count - first));
      pass_block(records, rows + first, 1.0f / (float)count);
    }
    if (count == 0) return 0.0;
    for (const auto& layer : plan_.layers) layer->finish_step(work_);
    const double norm = find_norm(work_.gradient, plan_.padded_parameters, rule.norm == 1);
    // A gradient that is not finite counts as zero: the step then depends on the data no more than
    // a clipped one.
    if (!std::isfinite(norm)) {
      counts.nonfinite++;
      return 0.0;
    }
    const double clip = faulty_clip(rule.clip);
    counts.clipped += norm > clip;
    return norm > 0 ? std::min(1.0, clip * CLIP_FRACTION / norm) : 1.0;
  }

  double clip_every_example(const Rule& rule, const Records& records, const int64_t* rows,
                            Index count, ClipCounts& counts) {
    counts.clips += count;
    if (count == 0) return 0.0;
    const double divisor = rule.divisor > 0 ? rule.divisor : (double)count;
    scaled_.ensure(plan_.scaled * plan_.vectors * LANES);
    work_.scaled = scaled_.data();
    example_sum_.begin(plan_.padded_parameters);
    int64_t bad = 0;
    Index blocks = 0;
    for (Index first = 0; first < count; first += block_size()) {
      work_.fresh = blocks % BLOCKS_IN_GROUP == 0;
      work_.first_example = first;
      if (work_.fresh) work_.clipped_sum = example_sum_.open_part();
      load_records(records, rows + first, std::min(block_size(), count - first));
      pass_block(records, rows + first, 1.0f);
      bad += add_clipped_examples(rule, divisor, counts);
      blocks++;
    }
    clipped_sum_ = example_sum_.finish();
    counts.nonfinite += bad;
    // Examples that are not finite have been left out; a sum that is not finite all the same must
    // not reach the model.
    return (bad == 0 || sum_is_finite()) ? 1.0 : 0.0;
  }

  bool sum_is_finite() const {
    const double* end = clipped_sum_ + plan_.padded_parameters;
    return std::all_of(clipped_sum_, end, [](double value) { return std::isfinite(value); });
  }

  void pass_block(const Records& records, const int64_t* rows, float scale) {
    for (const auto& layer : plan_.layers) layer->forward(work_);
    const Answers answers{records.labels, records.targets};
    loss_ += apply_loss(plan_.loss, work_, plan_.tensors.back(), answers, rows, scale);
    for (auto layer = plan_.layers.rbegin(); layer != plan_.layers.rend(); ++layer) {
      (*layer)->backward(work_);
    }
  }

  // Adds the clipped gradients of the examples of a block; returns how many were not finite.
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

  // ---- records

  void load_records(const Records& records, const int64_t* rows, Index count) {
    work_.examples = (int)count;
    const Index size = plan_.record_size();
    work_.records_are_padded = records.are_bytes != 0 || records.scale != nullptr;
    if (work_.records_are_padded) {
      staged_.ensure(block_size() * padded_size(size));
      for (Index b = 0; b < count; b++) {
        float* place = staged_.data() + b * padded_size(size);
        normalise_record(records, rows[b], place);
        work_.records[b] = place;
      }
    } else {
      for (Index b = 0; b < count; b++) {
        work_.records[b] = (const float*)records.x + rows[b] * size;
      }
    }
    transpose_records();
  }

  // x * scale + shift, rounded after each as torch does.
  void normalise_record(const Records& records, int64_t row, float* to) const {
    const Index size = plan_.record_size();
    for (Index i = 0; i < size; i += LANES) {
      const Index n = std::min<Index>(LANES, size - i);
      Floats x{};
      if (records.are_bytes) {
        const uint8_t* from = (const uint8_t*)records.x + row * size + i;
        for (Index l = 0; l < n; l++) x[l] = (float)from[l];
      } else {
        std::memcpy(&x, (const float*)records.x + row * size + i, sizeof(float) * n);
      }
      if (records.scale) {
        Floats scale{};
        Floats shift{};
        std::memcpy(&scale, records.scale + i, sizeof(float) * n);
        std::memcpy(&shift, records.shift + i, sizeof(float) * n);
        x *= scale;
        pin(x);
        x += shift;
      }
      *(Floats*)(to + i) = x;
    }
  }

  // Moves the records, one a row, to the first tensor, where every example has a lane.
  void transpose_records() {
    const Tensor& first = plan_.tensors.front();
    const Index size = plan_.record_size();
    Floats* values = work_.values(first);
    const bool framed = first.frame_y + first.frame_x > 0;
    for (int v = 0; v < work_.vectors; v++) {
      const Index live = std::clamp<Index>(work_.examples - v * LANES, 0, LANES);
      for (Index i = 0; i < size; i += LANES) {
        const Index n = std::min<Index>(LANES, size - i);
        Floats row[LANES];
        if (live == LANES && n == LANES) {
          UNROLL for (int l = 0; l < LANES; l++) {
            row[l] = *(const LooseFloats*)(work_.records[v * LANES + l] + i);
          }
        } else {
          for (int l = 0; l < LANES; l++) {
            row[l] = Floats{};
            if (l < live) std::memcpy(&row[l], work_.records[v * LANES + l] + i, sizeof(float) * n);
          }
        }
        transpose<LANES>(row);
        if (!framed && n == LANES) {
          UNROLL for (int l = 0; l < LANES; l++) values[(i + l) * work_.vectors + v] = row[l];
        } else {
          for (Index l = 0; l < n; l++) {
            values[plan_.input_places[i + l] * work_.vectors + v] = row[l];
          }
        }
      }
    }
  }

  // ---- the update

  // Steps add up in float64: in float32 a step would be rounded against the weights by more than a
  // small rate times the clip.
  void take_step(const Rule& rule, const Job& job, int64_t step, double scale,
                 NoiseStream& noise) {
    const double rate = faulty_rate(rule.rates[step]);
    const double sigma = faulty_noise(rule.step_noise);
    const float* corrections = faulty_correction(job.correction);
    const bool pulls = rule.proximal != 0 || rule.weight_decay != 0;
    const bool adds_nothing = rule.step_noise == 0 && !pulls && !corrections;
    if (!rule.per_example && rule.optimizer == SGD && adds_nothing) {
      return take_plain_step(rate * scale);
    }
    for (const ParameterRun& run : plan_.runs) {
      Index count = 0;
      for (Index at = 0; at < run.length; at += count) {
        count = std::min(PIECE, run.length - at);
        double move[PIECE];
        const double* z = rule.step_noise > 0 ? noise.take(count, count) : nullptr;
        read_gradient(scale, run.start + at, count, move);
        if (z) {
          for (Index i = 0; i < count; i++) move[i] += sigma * z[i];
        }
        if (corrections) {
          const float* correction = corrections + run.flat + at;
          for (Index i = 0; i < count; i++) move[i] += correction[i];
        }
        double* w = exact_.data() + run.start + at;
        if (pulls) add_pull(rule, job, run.flat + at, count, w, move);
        if (rule.optimizer != SGD) {
          apply_moments(rule, job.taken + step + 1, run.start + at, count, move);
        }
        for (Index i = 0; i < count; i++) w[i] -= rate * move[i];
        for (Index i = 0; i < count; i++) work_.weights[run.start + at + i] = (float)w[i];
      }
    }
  }

  void read_gradient(double scale, Index at, Index count, double* move) const {
    const float* g = work_.gradient + at;
    const double* sum = clipped_sum_ ? clipped_sum_ + at : nullptr;
    if (scale == 0.0) {
      std::fill(move, move + count, 0.0);
    } else if (sum) {
      for (Index i = 0; i < count; i++) move[i] = scale * sum[i];
    } else {
      for (Index i = 0; i < count; i++) move[i] = scale * (double)g[i];
    }
  }

  // Adds the pull to the centre and the decay of weights, both outside the clip.
  static void add_pull(const Rule& rule, const Job& job, Index at, Index count, const double* w,
                       double* move) {
    const double pull = rule.proximal;
    const double decay = rule.weight_decay;
    const double* exact_centre = find_exact_centre(job);
    if (exact_centre) {
      exact_centre += at;
      for (Index i = 0; i < count; i++) {
        move[i] += pull * (w[i] - exact_centre[i]) + decay * w[i];
      }
      return;
    }
    const float* centre = (job.centre ? job.centre : job.start) + at;
    for (Index i = 0; i < count; i++) {
      move[i] += pull * (w[i] - (double)centre[i]) + decay * w[i];
    }
  }

  // What every step is pulled to, where it is known in float64.
  static const double* find_exact_centre(const Job& job) {
    if (job.exact_centre || job.centre) return job.exact_centre;
    return job.exact_start;
  }

  void take_plain_step(double rate) {
    if (rate == 0) return;
    Doubles* w = (Doubles*)exact_.data();
    const Floats* g = (const Floats*)work_.gradient;
    Floats* rounded = (Floats*)work_.weights;
    for (Index i = 0; i < plan_.padded_parameters / LANES; i++) {
      const Wide move = widen(g[i]);
      w[2 * i] -= rate * move.low;
      w[2 * i + 1] -= rate * move.high;
      rounded[i] = narrow({w[2 * i], w[2 * i + 1]});
    }
  }

  // `taken`: steps that the moments have seen, this one included.
  void apply_moments(const Rule& rule, int64_t taken, Index at, Index count, double* move) {
    double* first = moments_.data() + at;
    double* second = first + plan_.padded_parameters;
    if (rule.optimizer == MOMENTUM) {
      for (Index i = 0; i < count; i++) {
        first[i] = rule.momentum * first[i] + move[i];
        move[i] = first[i];
      }
      return;
    }
    if (rule.optimizer == ADAGRAD) {
      for (Index i = 0; i < count; i++) {
        second[i] += move[i] * move[i];
        move[i] /= std::sqrt(second[i]) + rule.epsilon;
      }
      return;
    }
    const double b1 = rule.momentum;
    const double b2 = rule.second_momentum;
    const double share1 = 1.0 - std::pow(b1, (double)taken);
    const double share2 = 1.0 - std::pow(b2, (double)taken);
    for (Index i = 0; i < count; i++) {
      first[i] = b1 * first[i] + (1.0 - b1) * move[i];
      second[i] = b2 * second[i] + (1.0 - b2) * move[i] * move[i];
      move[i] = first[i] / share1 / (std::sqrt(second[i] / share2) + rule.epsilon);
    }
  }

  // ---- what leaves the client

  void write_results(Job& job, const ClipCounts& counts) {
    job.clipped = counts.clipped;
    job.clips = counts.clips;
    job.nonfinite = counts.nonfinite;
    if (job.rule->optimizer != SGD) {
      for_moments(job, [](const double& held, float& given) { given = (float)held; });
    }
    if (job.exact) {
      for (const ParameterRun& run : plan_.runs) {
        const double* exact = exact_.data() + run.start;
        std::memcpy(job.exact + run.flat, exact, sizeof(double) * run.length);
      }
    }
    if (job.result) write_upload(job);
    if (job.integers) write_integers(job);
  }

  // The update on a grid, with discrete noise on every coordinate, as integer_uploads.py makes it.
  void write_integers(const Job& job) {
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
    if (share == 1.0) return draw([&](Index from, Index to) { add_update(job, from, to); });
    draw([](Index, Index) {});
    for (Index i = 0; i < count; i++) job.integers[i] *= share;
    add_update(job, 0, count);
  }

  // Adds a part of the update to the integers that are there. Parts are asked for in order.
  void add_update(const Job& job, Index from, Index to) {
    if (from == 0) next_run_ = 0;
    while (from < to) {
      const ParameterRun& run = plan_.runs[next_run_];
      const Index skipped = from - run.flat;
      const Index count = std::min(to - from, run.length - skipped);
      round_update(job, exact_.data() + run.start + skipped, from, count);
      from += count;
      next_run_ += skipped + count == run.length;
    }
  }

  static void round_update(const Job& job, const double* w, Index at, Index count) {
    const double limit = job.rule->grid_limit;
    const double scale = job.rule->grid_scale;
    const double weight = job.weight;
    const float* start = job.start + at;
    int64_t* out = job.integers + at;
    for (Index i = 0; i < count; i++) {
      const double steps = std::rint((w[i] - (double)start[i]) * weight * scale);
      // What is no number counts as no move.
      const double known = steps == steps ? steps : 0.0;
      out[i] += (int64_t)std::clamp(known, -limit, limit);
    }
  }

  // The model with noise on every coordinate, rounded to float32 once.
  void write_upload(const Job& job) {
    const uint32_t round = faulty_round((uint32_t)job.round);
    const Address address{job.upload_key, {(uint32_t)job.client, round, 0}};
    NoiseStream noise(address, {}, first_value(job, NORMAL));
    const double sigma = faulty_noise(job.rule->upload_noise);
    for (const ParameterRun& run : plan_.runs) {
      Index count = 0;
      for (Index at = 0; at < run.length; at += count) {
        count = run.length - at;
        const double* z = sigma > 0 ? noise.take(count, count) : nullptr;
        const double* w = exact_.data() + run.start + at;
        float* out = job.result + run.flat + at;
        for (Index i = 0; i < count; i++) out[i] = (float)(z ? w[i] + sigma * z[i] : w[i]);
      }
    }
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
  Memory<float> staged_;
  // The weights in float64, of which weights_ is the rounding.
  Memory<double> exact_;
  Memory<double> moments_;
  Memory<double> scaled_;
  CompensatedSum example_sum_;
  // The sum of this step's clipped examples; null where the batch is clipped as a whole.
  const double* clipped_sum_ = nullptr;
  std::vector<int64_t> batch_;
  Shuffle shuffle_;
  DiscreteDraws discrete_;
  // Which run of parameters the next part of an update begins in.
  std::size_t next_run_ = 0;
  double loss_ = 0;
};

}  // namespace sordino
