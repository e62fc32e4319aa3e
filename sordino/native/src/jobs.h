// What the kernel is asked to do. sordino/native/kernel.py fills these structures in; layout.h
// tells it where every field is, so that a difference is noticed when the library is loaded.
#pragma once
#include <cstdint>

namespace sordino {

// Clipping aims at this fraction of the clip, so that rounding cannot pass what is priced
// (docs/theory.md#c7). As in sordino/models/clipping.py.
constexpr double CLIP_FRACTION = 1.0 - 1e-6;
// Gradients of examples that are longer, in clips, count as not finite. As there.
constexpr double LONGEST_IN_CLIPS = 0x1p100;

enum OptimizerKind : int64_t { SGD = 0, MOMENTUM = 1, ADAM = 2, ADAGRAD = 3 };

enum NoiseLaw : int64_t { NORMAL = 0, LAPLACE = 1, STAIRCASE = 2 };

struct Records {
  // Bytes or floats.
  const void* x;
  int64_t are_bytes;
  // Of every value of a record; null if records are used as they are.
  const float* scale;
  const float* shift;
  const int64_t* labels;
  const float* targets;
};

// The law of noise of integers: sums of digits in base 8, looked up in a table of 2^search_steps -
// 1 entries; a digit is the number of entries that it reaches less `largest`. `magnitudes` says by
// the lower 15 of 16 bits, of which the highest is 1, what a digit is; 255 where others matter.
struct Digits {
  int64_t digits;
  // Words of the keystream with the first bits of all digits, and how many are searched for.
  int64_t guides;
  int64_t searches;
  const uint8_t* magnitudes;
  const uint64_t* high;
  const uint64_t* low;
  int64_t search_steps;
  int64_t largest;
};

struct Rule {
  int64_t steps;
  int64_t batch;
  // Clip the gradient of every example, not of the batch.
  int64_t per_example;
  // 1 or 2.
  int64_t norm;
  double clip;
  // Of a sum of clipped examples; 0: their number.
  double divisor;
  double proximal;
  double weight_decay;
  int64_t optimizer;
  // Decay rates of the first and the second moments.
  double momentum;
  double second_momentum;
  double epsilon;
  // The scale of the noise on every gradient, and on the result.
  double step_noise;
  double upload_noise;
  // The law of the noise on every gradient; of a staircase, by how much the logarithm of its
  // density falls once in every width, and where in a width.
  int64_t step_law;
  double stair_fall;
  double stair_place;
  // A grid of integers for the update: steps to a length of 1, and the largest coordinate. The
  // noise on it; null: none.
  double grid_scale;
  double grid_limit;
  const Digits* grid_noise;
  const double* rates;
};

// One client's training of one round, in one of any number of independent trainings.
struct Job {
  const Records* data;
  const Rule* rule;
  const float* start;
  // What every step is pulled to; null: the start.
  const float* centre;
  // The same two, not rounded; null: they are what float32 says.
  const double* exact_start;
  const double* exact_centre;
  // The model with its noise; or null.
  float* result;
  // The model without it, not rounded; or null.
  double* exact;
  // The update on the rule's grid, with its noise; or null. It is multiplied by the client's
  // weight.
  int64_t* integers;
  double weight;
  // Moments, as they were and as they become; null: zero at first, and forgotten.
  float* first;
  float* second;
  // Steps that the moments have seen.
  int64_t taken;
  // The records of the client, and how many they are.
  const int64_t* records;
  int64_t population;
  // The batches, one behind the other, and their sizes, where they are not drawn here.
  const int64_t* rows;
  const int64_t* counts;
  // Control variates, added to every clipped gradient; or null.
  const float* correction;
  const uint8_t* batch_key;
  const uint8_t* step_key;
  const uint8_t* upload_key;
  // Of what dropouts drop in this round; null: nothing.
  const uint8_t* mask_key;
  int64_t client;
  int64_t round;
  // Which of the trainings that share the keys this is: the draws of one are followed by those of
  // the next, of the same width.
  int64_t lane;
  // What happened: gradients that were clipped, that were looked at, that were not finite.
  int64_t clipped;
  int64_t clips;
  int64_t nonfinite;
};

}  // namespace sordino
