// The weights of one training in float64, and the steps that change them.
#pragma once
#include "faults.h"
#include "jobs.h"
#include "memory.h"
#include "plan.h"
#include "random.h"

namespace sordino {

// The gradient of a step after its clip, laid out as a thread's parameters.
struct ClippedGradient {
  // Of the whole batch.
  const float* batch;
  // The sum of clipped examples; null where the batch is clipped as a whole.
  const double* examples;
  // What either has still to be multiplied by. 0 says that the gradient counts as zero, whatever
  // values it has: 0 times infinity would be NaN.
  double scale;

  // Writes `count` of its values from place `at` on.
  void read(Index at, Index count, double* to) const {
    if (scale == 0.0) {
      std::fill(to, to + count, 0.0);
    } else if (examples) {
      for (Index i = 0; i < count; i++) to[i] = scale * examples[at + i];
    } else {
      for (Index i = 0; i < count; i++) to[i] = scale * (double)batch[at + i];
    }
  }
};

// Makes steps. Steps add up in float64: in float32 a step would be rounded against the weights by
// more than a small rate times the clip. The network computes with the weights rounded to float32.
class Updater {
 public:
  Updater(const Plan& plan, Work& work)
      : plan_(plan), work_(work), exact_(plan.padded_parameters) {}

  // Gives the network these weights, without a training.
  void load_weights(const float* weights) {
    for (const ParameterRun& run : plan_.runs) {
      std::memcpy(work_.weights + run.start, weights + run.flat, sizeof(float) * run.length);
    }
  }

  // Begins a training: at its start, with the moments that the job hands on.
  void begin(const Job& job) {
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

  // Hands the moments back to the job, where it keeps them.
  void write_moments(const Job& job) {
    if (job.rule->optimizer == SGD) return;
    for_moments(job, [](const double& held, float& given) { given = (float)held; });
  }

  // The weights, padded as the plan says.
  const double* exact() const { return exact_.data(); }

  // Moves the weights by the rate times gradient, noise, control variates and pulls, or by what an
  // optimizer makes of their sum.
  void take_step(const Rule& rule, const Job& job, int64_t step, const ClippedGradient& gradient,
                 NoiseStream& noise) {
    const double rate = faulty_rate(rule.rates[step]);
    const double sigma = faulty_noise(rule.step_noise);
    const float* corrections = faulty_correction(job.correction);
    const bool pulls = rule.proximal != 0 || rule.weight_decay != 0;
    const bool adds_nothing = rule.step_noise == 0 && !pulls && !corrections;
    if (!rule.per_example && rule.optimizer == SGD && adds_nothing) {
      return take_plain_step(gradient.batch, rate * gradient.scale);
    }
    for (const ParameterRun& run : plan_.runs) {
      Index count = 0;
      for (Index at = 0; at < run.length; at += count) {
        count = std::min(PIECE, run.length - at);
        double move[PIECE];
        const double* z = rule.step_noise > 0 ? noise.take(count, count) : nullptr;
        gradient.read(run.start + at, count, move);
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

 private:
  // Parameters that are updated together: what lies between is in the first-level cache.
  static constexpr Index PIECE = 256;

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

  // Adds the pull to the centre and the decay of weights. Both are outside the clip, since they
  // depend on the weights alone and not on records.
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

  // A step of the clipped gradient alone: whole vectors, gaps between rows included.
  void take_plain_step(const float* gradient, double rate) {
    // Nothing to add, even where the gradient is not finite.
    if (rate == 0) return;
    Doubles* w = (Doubles*)exact_.data();
    const Floats* g = (const Floats*)gradient;
    Floats* rounded = (Floats*)work_.weights;
    for (Index i = 0; i < plan_.padded_parameters / LANES; i++) {
      const Wide move = widen(g[i]);
      w[2 * i] -= rate * move.low;
      w[2 * i + 1] -= rate * move.high;
      rounded[i] = narrow({w[2 * i], w[2 * i + 1]});
    }
  }

  // Replaces a sum of gradients by the move that the optimizer makes of it. `taken` counts the
  // steps that the moments have seen, this one included.
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
    // Adam. Moments begin at zero, and the shares correct for that.
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

  const Plan& plan_;
  Work& work_;
  // The weights, of which work_.weights is the rounding.
  Memory<double> exact_;
  // The first moments of all parameters, then the second; empty for plain descent.
  Memory<double> moments_;
};

}  // namespace sordino
