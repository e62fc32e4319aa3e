// Local training: the gradient of a batch, its clip, the update, the noise. What sordino/federation/local.py does, in one thread.
#pragma once
#include <cstdlib>
#include <new>

#include "plan.h"
#include "random.h"

namespace sordino {

// Clipping aims this much inside the ball, so that rounding in float32 cannot leave it (as in federation/local.py).
constexpr double INSIDE = 1.0 - 1e-6;
// Gradients of examples that are longer, in clips, count as not finite: float32 has no precise number to scale them by.
constexpr double LONGEST = 0x1p100;

enum Optimiser : int64_t { SGD = 0, MOMENTUM = 1, ADAM = 2, ADAGRAD = 3 };

// The structures below are filled in by sordino/engines/native/kernel.py; every field has eight bytes.

struct Records {
  const void* x;
  int64_t are_bytes;
  const float *scale, *shift;  // of every value of a record; null if records are used as they are
  const int64_t* labels;
  const float* targets;
};

struct Rule {
  int64_t steps, batch;
  int64_t per_example;  // clip the gradient of every example, not of the batch
  int64_t norm;         // 1 or 2
  double clip;
  double divisor;  // of a sum of clipped examples; 0: their number
  double proximal, weight_decay;
  int64_t optimiser;
  double momentum, second_momentum, epsilon;  // first two: decay rates of the moments
  double step_noise;                          // on every gradient
  double upload_noise;                        // on the result
  const double* rates;
};

// One client's training of one round, in one of any number of independent trainings.
struct Job {
  const Records* data;
  const Rule* rule;
  const float* start;
  const float* centre;     // what every step is pulled to; null: the start
  const double *exact_start, *exact_centre;  // the same, not rounded; null: they are what float32 says
  float* result;           // the model with its noise; or null
  double* exact;           // the model without it, not rounded; or null
  float *first, *second;   // moments, as they were and as they become; null: zero at first, and forgotten
  int64_t taken;           // steps that the moments have seen
  const int64_t* records;  // of the client
  int64_t population;
  const int64_t *rows, *counts;  // the batches, where they are not drawn here
  const float* correction;       // control variates: added to every clipped gradient; or null
  const uint8_t *batch_key, *step_key, *upload_key;
  int64_t client, round;
  int64_t lane;  // which of the trainings that share the keys this is: draws of one are followed by those of the next, of the same width
  int64_t clipped, clips, nonfinite;  // what happened
};

struct Tally {
  int64_t clipped = 0, clips = 0, nonfinite = 0;
};

template <class T>
class Memory {  // aligned to cache lines, zero at first
 public:
  explicit Memory(Index size = 0) : size_(size) {
    if (size == 0) return;
    const std::size_t bytes = (size * sizeof(T) + 63) / 64 * 64;
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (!data_) throw std::bad_alloc();
    std::memset((void*)data_, 0, bytes);
  }
  ~Memory() { std::free(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_), std::swap(size_, other.size_);
    return *this;
  }
  T* data() const { return data_; }
  Index size() const { return size_; }
  void ensure(Index size) {
    if (size_ < size) *this = Memory(size);
  }

 private:
  T* data_ = nullptr;
  Index size_ = 0;
};

inline double norm_of(const float* gradient, Index count, bool absolute) {
  Wide even{}, odd{};
  const Floats* g = (const Floats*)gradient;
  const Index n = count / LANES;
  const auto take = [absolute](Wide& sum, Floats v) {
    if (absolute) {
      add(sum, (Floats)((Ints)v & 0x7fffffff));
    } else {
      add_squares(sum, v);
    }
  };
  Index i = 0;
  for (; i + 1 < n; i += 2) take(even, g[i]), take(odd, g[i + 1]);
  if (i < n) take(even, g[i]);
  const double sum = total(even.low + even.high) + total(odd.low + odd.high);
  return absolute ? sum : std::sqrt(sum);
}

// One thread's hands. They keep their memory between clients; no state passes from one to the next.
class Trainer {
 public:
  Trainer(const Plan& plan)
      : plan_(plan), pixels_(plan.pixels * plan.vectors * LANES), weights_(plan.padded_parameters), gradient_(plan.padded_parameters),
        sums_(plan.lane_sums * plan.vectors * LANES), saved_(plan.saved * plan.vectors * LANES), packed_(plan.packed),
        turned_(plan.turned * plan.vectors), exact_(plan.padded_parameters) {
    work_.vectors = plan.vectors, work_.tensors = &plan.tensors, work_.pixels = (Floats*)pixels_.data();
    work_.weights = weights_.data(), work_.gradient = gradient_.data(), work_.packed = packed_.data(), work_.turned = turned_.data();
    work_.sums = (Floats*)sums_.data(), work_.saved = (Floats*)saved_.data();
  }

  void train(Job& job) {
    const Rule& rule = *job.rule;
    const Records& records = *job.data;
    const uint32_t client = (uint32_t)job.client, round = (uint32_t)job.round;
    Keystream draws({job.batch_key, {client, round, 0}}, 2 * (uint64_t)(job.lane * rule.steps * rule.batch));
    Tally tally;
    start(job);
    const int64_t* rows = job.rows;
    for (int64_t step = 0; step < rule.steps; step++) {
      const Index count = job.rows ? job.counts[step] : rule.batch;
      const int64_t* batch = job.rows ? rows : drawn(draws, job, count);
      rows = job.rows ? rows + count : nullptr;
      const double scale = clipped_gradient(rule, records, batch, count, tally);
      Normals noise({job.step_key, {client, round, (uint32_t)step}}, first_normal(job));
      update(rule, job, rule.rates[step], step, scale, noise);
    }
    finish(job, tally);
  }

  // The mean loss of a batch and the gradient that a step would use, before noise. For tests and for checking a translation.
  double gradient(const Rule& rule, const Records& records, const float* weights, const int64_t* rows, Index count, float* out) {
    for (const Run& run : plan_.runs) std::memcpy(work_.weights + run.start, weights + run.flat, sizeof(float) * run.length);
    Tally tally;
    const double scale = clipped_gradient(rule, records, rows, count, tally);
    for (const Run& run : plan_.runs) {
      for (Index i = 0; i < run.length; i++) {
        const double g = rule.per_example && count > 0 ? sum_.data()[run.start + i] : (double)work_.gradient[run.start + i];
        out[run.flat + i] = scale == 0.0 ? 0.0f : (float)(scale * g);
      }
    }
    return loss_ / (double)count;
  }

  // The outputs of the network for at most a block of records.
  void outputs(const Records& records, const float* weights, const int64_t* rows, Index count, float* out) {
    for (const Run& run : plan_.runs) std::memcpy(work_.weights + run.start, weights + run.flat, sizeof(float) * run.length);
    load(records, rows, count);
    for (const auto& layer : plan_.layers) layer->forward(work_);
    const Floats* z = work_.values(plan_.tensors.back());
    for (Index b = 0; b < count; b++) {
      for (Index j = 0; j < plan_.outputs(); j++) out[b * plan_.outputs() + j] = z[j * work_.vectors + b / LANES][b % LANES];
    }
  }

  Index block() const { return work_.vectors * LANES; }

 private:
  void start(const Job& job) {
    for (const Run& run : plan_.runs) {
      std::memcpy(work_.weights + run.start, job.start + run.flat, sizeof(float) * run.length);
      double* exact = exact_.data() + run.start;
      for (Index i = 0; i < run.length; i++) exact[i] = job.exact_start ? job.exact_start[run.flat + i] : (double)job.start[run.flat + i];
    }
    if (job.rule->optimiser == SGD) return;
    moments_.ensure(2 * plan_.padded_parameters);
    std::fill(moments_.data(), moments_.data() + 2 * plan_.padded_parameters, 0.0);
    each_moment(job, [](double& held, float& given) { held = given; });
  }

  // f(the moment here, the moment of the job) for those that the job has.
  template <class F>
  void each_moment(const Job& job, F f) {
    float* const given[2] = {job.first, job.second};
    for (int m = 0; m < 2; m++) {
      for (const Run& run : plan_.runs) {
        double* held = moments_.data() + m * plan_.padded_parameters + run.start;
        for (Index i = 0; given[m] && i < run.length; i++) f(held[i], given[m][run.flat + i]);
      }
    }
  }

  // Normals come in pairs, so every training's row has an even length.
  uint64_t first_normal(const Job& job) const { return (uint64_t)(job.lane * (plan_.parameters + plan_.parameters % 2)); }

  const int64_t* drawn(Keystream& draws, const Job& job, Index count) {
    batch_.resize(count);
    shuffle_.draw(draws, count, job.population, batch_.data());
    for (Index i = 0; i < count; i++) batch_[i] = job.records[batch_[i]];
    return batch_.data();
  }

  // Leaves a gradient in work_.gradient and returns what it has still to be multiplied by; 0 says that it counts as zero.
  double clipped_gradient(const Rule& rule, const Records& records, const int64_t* rows, Index count, Tally& tally) {
    work_.per_example = rule.per_example != 0;
    if (work_.per_example) sum_.ensure(plan_.padded_parameters);
    loss_ = 0;
    int64_t bad = 0;
    tally.clips += work_.per_example ? count : 1;
    for (Index first = 0; first < count; first += block()) {
      work_.fresh = work_.per_example || first == 0;
      load(records, rows + first, std::min(block(), count - first));
      pass(records, rows + first, work_.per_example ? 1.0f : 1.0f / (float)count);
      if (work_.per_example) bad += clip_examples(rule, rule.divisor > 0 ? rule.divisor : (double)count, tally);
      if (work_.per_example) add_block(first == 0);
    }
    if (count == 0) return 0.0;
    for (const auto& layer : plan_.layers) layer->finish(work_);
    tally.nonfinite += bad;
    if (work_.per_example && bad == 0) return 1.0;
    if (work_.per_example) return sum_is_finite() ? 1.0 : 0.0;
    const double norm = norm_of(work_.gradient, plan_.padded_parameters, rule.norm == 1);
    // A gradient that is not finite counts as zero: the step then depends on the data no more than a clipped one.
    tally.nonfinite += !std::isfinite(norm);
    if (!std::isfinite(norm)) return 0.0;
    tally.clipped += norm > rule.clip;
    return norm > 0 ? std::min(1.0, rule.clip * INSIDE / norm) : 1.0;
  }

  // Blocks of clipped examples add up in float64: in float32 the sum of a large batch moves by more than the clip when one is replaced.
  void add_block(bool fresh) {
    const Floats* g = (const Floats*)work_.gradient;
    Doubles* sum = (Doubles*)sum_.data();
    for (Index i = 0; i < plan_.padded_parameters / LANES; i++) {
      const Wide more = widened(g[i]);
      sum[2 * i] = fresh ? more.low : sum[2 * i] + more.low;
      sum[2 * i + 1] = fresh ? more.high : sum[2 * i + 1] + more.high;
    }
  }

  bool sum_is_finite() const {
    return std::all_of(sum_.data(), sum_.data() + plan_.padded_parameters, [](double value) { return std::isfinite(value); });
  }

  void pass(const Records& records, const int64_t* rows, float scale) {
    for (const auto& layer : plan_.layers) layer->forward(work_);
    loss_ += apply_loss(plan_.loss, work_, plan_.tensors.back(), {records.labels, records.targets}, rows, scale);
    for (auto layer = plan_.layers.rbegin(); layer != plan_.layers.rend(); ++layer) (*layer)->backward(work_);
  }

  // Adds the clipped gradients of the examples of a block; returns how many were not finite.
  int64_t clip_examples(const Rule& rule, double divisor, Tally& tally) {
    Norms norms{{}, rule.norm == 1};
    for (const auto& layer : plan_.layers) layer->add_norms(work_, norms);
    Scales scales;
    int64_t bad = 0;
    for (int v = 0; v < work_.vectors; v++) {
      for (int l = 0; l < LANES; l++) {
        const double sum = l < HALF ? norms.sum[v].low[l] : norms.sum[v].high[l - HALF], norm = rule.norm == 1 ? sum : std::sqrt(sum);
        const bool live = v * LANES + l < work_.examples, finite = std::isfinite(norm) && norm <= rule.clip * LONGEST;
        scales.factor[v][l] = (float)((norm > rule.clip * INSIDE ? rule.clip * INSIDE / norm : 1.0) / divisor);
        scales.finite[v][l] = live && finite ? -1 : 0;
        tally.clipped += live && finite && norm > rule.clip;
        bad += live && !finite;
      }
    }
    for (const auto& layer : plan_.layers) layer->add_clipped(work_, scales);
    return bad;
  }

  // ---- records

  void load(const Records& records, const int64_t* rows, Index count) {
    work_.examples = (int)count;
    const Index size = plan_.record_size();
    work_.rows_are_padded = records.are_bytes != 0 || records.scale != nullptr;
    if (work_.rows_are_padded) {
      staged_.ensure(block() * padded(size));
      for (Index b = 0; b < count; b++) stage(records, rows[b], staged_.data() + b * padded(size));
    }
    for (Index b = 0; b < count; b++) {
      work_.rows[b] = work_.rows_are_padded ? staged_.data() + b * padded(size) : (const float*)records.x + rows[b] * size;
    }
    turn();
  }

  // x * scale + shift, rounded after each as torch does.
  void stage(const Records& records, int64_t row, float* to) const {
    const Index size = plan_.record_size();
    for (Index i = 0; i < size; i += LANES) {
      const Index n = std::min<Index>(LANES, size - i);
      Floats x{}, scale{}, shift{};
      if (records.are_bytes) {
        const uint8_t* from = (const uint8_t*)records.x + row * size + i;
        for (Index l = 0; l < n; l++) x[l] = (float)from[l];
      } else {
        std::memcpy(&x, (const float*)records.x + row * size + i, sizeof(float) * n);
      }
      if (records.scale) {
        std::memcpy(&scale, records.scale + i, sizeof(float) * n);
        std::memcpy(&shift, records.shift + i, sizeof(float) * n);
        x *= scale;
        pin(x);
        x += shift;
      }
      *(Floats*)(to + i) = x;
    }
  }

  // Records, one a row, to the first tensor, one an example's lane.
  void turn() {
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
          UNROLL for (int l = 0; l < LANES; l++) row[l] = *(const LooseFloats*)(work_.rows[v * LANES + l] + i);
        } else {
          for (int l = 0; l < LANES; l++) {
            row[l] = Floats{};
            if (l < live) std::memcpy(&row[l], work_.rows[v * LANES + l] + i, sizeof(float) * n);
          }
        }
        transpose<LANES>(row);
        if (!framed && n == LANES) {
          UNROLL for (int l = 0; l < LANES; l++) values[(i + l) * work_.vectors + v] = row[l];
        } else {
          for (Index l = 0; l < n; l++) values[plan_.input_places[i + l] * work_.vectors + v] = row[l];
        }
      }
    }
  }

  // ---- the update

  static constexpr Index PIECE = 256;  // parameters that are updated together: what lies between is in the first-level cache

  // Steps add up in float64: in float32 a step would be rounded against the weights by more than a small rate times the clip.
  void update(const Rule& rule, const Job& job, double rate, int64_t step, double scale, Normals& noise) {
    const bool plain = !rule.per_example && rule.optimiser == SGD && rule.step_noise == 0 && rule.proximal == 0 && rule.weight_decay == 0 && !job.correction;
    if (plain) return plain_update(rate * scale);
    for (const Run& run : plan_.runs) {
      for (Index at = 0, count; at < run.length; at += count) {
        count = std::min(PIECE, run.length - at);
        double move[PIECE];
        const double* z = rule.step_noise > 0 ? noise.some(count, count) : nullptr;
        const float* g = work_.gradient + run.start + at;
        const double* sum = rule.per_example ? sum_.data() + run.start + at : nullptr;
        for (Index i = 0; i < count; i++) move[i] = scale != 0.0 ? scale * (sum ? sum[i] : (double)g[i]) : 0.0;
        for (Index i = 0; z && i < count; i++) move[i] += rule.step_noise * z[i];
        for (Index i = 0; job.correction && i < count; i++) move[i] += job.correction[run.flat + at + i];
        double* w = exact_.data() + run.start + at;
        const float* centre = (job.centre ? job.centre : job.start) + run.flat + at;
        const double* exact_centre = exact_centre_of(job);
        const double pull = rule.proximal, decay = rule.weight_decay;
        if (exact_centre) {
          exact_centre += run.flat + at;
          for (Index i = 0; i < count; i++) move[i] += pull * (w[i] - exact_centre[i]) + decay * w[i];
        } else {
          for (Index i = 0; i < count; i++) move[i] += pull * (w[i] - (double)centre[i]) + decay * w[i];
        }
        if (rule.optimiser != SGD) through_moments(rule, job.taken + step + 1, run.start + at, count, move);
        for (Index i = 0; i < count; i++) w[i] -= rate * move[i];
        for (Index i = 0; i < count; i++) work_.weights[run.start + at + i] = (float)w[i];
      }
    }
  }

  // What every step is pulled to, where it is known in float64.
  static const double* exact_centre_of(const Job& job) {
    if (job.exact_centre || job.centre) return job.exact_centre;
    return job.exact_start;
  }

  void plain_update(double rate) {
    if (rate == 0) return;
    Doubles* w = (Doubles*)exact_.data();
    const Floats* g = (const Floats*)work_.gradient;
    Floats* rounded = (Floats*)work_.weights;
    for (Index i = 0; i < plan_.padded_parameters / LANES; i++) {
      const Wide move = widened(g[i]);
      w[2 * i] -= rate * move.low, w[2 * i + 1] -= rate * move.high;
      rounded[i] = narrowed({w[2 * i], w[2 * i + 1]});
    }
  }

  // `taken`: steps that the moments have seen, this one included.
  void through_moments(const Rule& rule, int64_t taken, Index at, Index count, double* move) {
    double *first = moments_.data() + at, *second = first + plan_.padded_parameters;
    if (rule.optimiser == MOMENTUM) {
      for (Index i = 0; i < count; i++) move[i] = first[i] = rule.momentum * first[i] + move[i];
      return;
    }
    if (rule.optimiser == ADAGRAD) {
      for (Index i = 0; i < count; i++) {
        second[i] += move[i] * move[i];
        move[i] /= std::sqrt(second[i]) + rule.epsilon;
      }
      return;
    }
    const double b1 = rule.momentum, b2 = rule.second_momentum;
    const double grown1 = 1.0 - std::pow(b1, (double)taken), grown2 = 1.0 - std::pow(b2, (double)taken);
    for (Index i = 0; i < count; i++) {
      first[i] = b1 * first[i] + (1.0 - b1) * move[i];
      second[i] = b2 * second[i] + (1.0 - b2) * move[i] * move[i];
      move[i] = first[i] / grown1 / (std::sqrt(second[i] / grown2) + rule.epsilon);
    }
  }

  // The vector that leaves the client: its model with noise on every coordinate, rounded to float32 once.
  void finish(Job& job, const Tally& tally) {
    if (job.rule->optimiser != SGD) each_moment(job, [](const double& held, float& given) { given = (float)held; });
    for (const Run& run : plan_.runs) {
      if (job.exact) std::memcpy(job.exact + run.flat, exact_.data() + run.start, sizeof(double) * run.length);
    }
    job.clipped = tally.clipped, job.clips = tally.clips, job.nonfinite = tally.nonfinite;
    if (!job.result) return;
    Normals noise({job.upload_key, {(uint32_t)job.client, (uint32_t)job.round, 0}}, first_normal(job));
#ifdef SORDINO_TEST_SILENT_UPLOADS  // a broken kernel, for the test that an audit notices it
    const double sigma = 0.0;
#else
    const double sigma = job.rule->upload_noise;
#endif
    for (const Run& run : plan_.runs) {
      for (Index at = 0, count; at < run.length; at += count) {
        count = run.length - at;
        const double* z = sigma > 0 ? noise.some(count, count) : nullptr;
        const double* w = exact_.data() + run.start + at;
        float* out = job.result + run.flat + at;
        for (Index i = 0; i < count; i++) out[i] = (float)(z ? w[i] + sigma * z[i] : w[i]);
      }
    }
  }

  const Plan& plan_;
  Work work_;
  Memory<float> pixels_, weights_, gradient_, sums_, saved_, packed_, turned_, staged_;
  Memory<double> exact_, moments_, sum_;
  std::vector<int64_t> batch_;
  Shuffle shuffle_;
  double loss_ = 0;
};

}  // namespace sordino
