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

// The records that a client's rows point into.
struct Records {
  // The values, one record a row: bytes, or floats.
  const void* x;
  int64_t are_bytes;
  // A factor and a summand for every value of a record; null where records need neither.
  const float* scale;
  const float* shift;
  // The answers of all records; which of the two are read depends on the loss.
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

// What a client does in a round.
struct Rule {
  int64_t steps;
  int64_t batch;
  // Whether the gradient of every example is clipped, and not that of the batch.
  int64_t per_example;
  // Which norm the clip limits: 1 for l1, 2 for l2.
  int64_t norm;
  double clip;
  // What a sum of clipped examples is divided by; 0: their number.
  double divisor;
  // How strongly a step is pulled to the centre, and the weights to zero.
  double proximal;
  double weight_decay;
  int64_t optimizer;
  // Decay rates of the first and the second moments.
  double momentum;
  double second_momentum;
  double epsilon;
  // The scale of the noise on every step's gradient, and on the result.
  double step_noise;
  double upload_noise;
  // The law of the noise on every gradient; of a staircase, by how much the logarithm of its
  // density falls once in every width, and where in a width.
  int64_t step_law;
  double stair_fall;
  double stair_place;
  // A grid of integers for the update: how many of its steps make a length of 1, the largest
  // coordinate in steps, and the law of the noise; null: no noise.
  double grid_scale;
  double grid_limit;
  const Digits* grid_noise;
  // The learning rate of every step.
  const double* rates;
};

// One client's training of one round, in one of any number of independent trainings.
struct Job {
  const Records* data;
  const Rule* rule;
  const float* start;
  // The model that every step is pulled to; null: the start.
  const float* centre;
  // Start and centre in float64; null: they are what float32 says.
  const double* exact_start;
  const double* exact_centre;
  // Where the model goes with its noise; null: nowhere.
  float* result;
  // Where the model goes without noise, in float64; null: nowhere.
  double* exact;
  // Where the update goes, on the rule's grid and with its noise; null: nowhere. Before the noise
  // it is multiplied by the client's weight.
  int64_t* integers;
  double weight;
  // The optimizer's moments, read at the start and written at the end; null: they are zero at
  // first, and forgotten.
  float* first;
  float* second;
  // How many steps the moments have seen in earlier rounds.
  int64_t taken;
  // The client's records, as rows of the data, and how many there are.
  const int64_t* records;
  int64_t population;
  // The batches, one behind the other, and their sizes, where they are not drawn here.
  const int64_t* rows;
  const int64_t* counts;
  // Control variates, added to every clipped gradient; or null.
  const float* correction;
  // The keys of the draws: batches, noise in steps, noise on the upload.
  const uint8_t* batch_key;
  const uint8_t* step_key;
  const uint8_t* upload_key;
  // The key of what dropouts drop in this round; null: they drop nothing.
  const uint8_t* mask_key;
  int64_t client;
  int64_t round;
  // Which of the trainings that share the keys this is: the draws of one are followed by those of
  // the next, of the same width.
  int64_t lane;
  // Written at the end: how many gradients were clipped, were looked at, were not finite.
  int64_t clipped;
  int64_t clips;
  int64_t nonfinite;
};

}  // namespace sordino
