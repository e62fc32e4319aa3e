// How the kernel's structures lie in memory, and which numbers its enumerations and constants have.
// sordino/native/layout.py says the same from its side, and a difference is refused at load.
#pragma once
#include <cstddef>
#include <cstdio>
#include <string>

#include "jobs.h"
#include "plan.h"

namespace sordino {

// Lines of a name and a number.
class Layout {
 public:
  void add(const char* name, int64_t value) {
    text_ += std::string(name) + " " + std::to_string(value) + "\n";
  }
  void add(const char* name, double value) {
    char digits[64];
    std::snprintf(digits, sizeof digits, "%a", value);
    text_ += std::string(name) + " " + digits + "\n";
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

#define SORDINO_SIZE(type) layout.add(#type, (int64_t)sizeof(type))
#define SORDINO_FIELD(type, field) layout.add(#type "." #field, (int64_t)offsetof(type, field))
#define SORDINO_NUMBER(type, name) layout.add(#type "." #name, (int64_t)name)
#define SORDINO_CONSTANT(name) layout.add(#name, name)

inline void describe_tables(Layout& layout) {
  SORDINO_SIZE(TensorRow);
  SORDINO_FIELD(TensorRow, channels);
  SORDINO_FIELD(TensorRow, height);
  SORDINO_FIELD(TensorRow, width);
  SORDINO_FIELD(TensorRow, frame_y);
  SORDINO_FIELD(TensorRow, frame_x);
  SORDINO_FIELD(TensorRow, activation);
  SORDINO_FIELD(TensorRow, apart);
  SORDINO_SIZE(LayerRow);
  SORDINO_FIELD(LayerRow, kind);
  SORDINO_FIELD(LayerRow, first);
  SORDINO_FIELD(LayerRow, second);
  SORDINO_FIELD(LayerRow, output);
  SORDINO_FIELD(LayerRow, first_carries_back);
  SORDINO_FIELD(LayerRow, first_adds);
  SORDINO_FIELD(LayerRow, second_carries_back);
  SORDINO_FIELD(LayerRow, second_adds);
  SORDINO_FIELD(LayerRow, weight);
  SORDINO_FIELD(LayerRow, bias);
  SORDINO_FIELD(LayerRow, settings);
}

inline void describe_records(Layout& layout) {
  SORDINO_SIZE(Records);
  SORDINO_FIELD(Records, x);
  SORDINO_FIELD(Records, are_bytes);
  SORDINO_FIELD(Records, scale);
  SORDINO_FIELD(Records, shift);
  SORDINO_FIELD(Records, labels);
  SORDINO_FIELD(Records, targets);
}

inline void describe_rule(Layout& layout) {
  SORDINO_SIZE(Rule);
  SORDINO_FIELD(Rule, steps);
  SORDINO_FIELD(Rule, batch);
  SORDINO_FIELD(Rule, per_example);
  SORDINO_FIELD(Rule, norm);
  SORDINO_FIELD(Rule, clip);
  SORDINO_FIELD(Rule, divisor);
  SORDINO_FIELD(Rule, proximal);
  SORDINO_FIELD(Rule, weight_decay);
  SORDINO_FIELD(Rule, optimizer);
  SORDINO_FIELD(Rule, momentum);
  SORDINO_FIELD(Rule, second_momentum);
  SORDINO_FIELD(Rule, epsilon);
  SORDINO_FIELD(Rule, step_noise);
  SORDINO_FIELD(Rule, upload_noise);
  SORDINO_FIELD(Rule, step_law);
  SORDINO_FIELD(Rule, stair_fall);
  SORDINO_FIELD(Rule, stair_place);
  SORDINO_FIELD(Rule, grid_scale);
  SORDINO_FIELD(Rule, grid_limit);
  SORDINO_FIELD(Rule, grid_noise);
  SORDINO_FIELD(Rule, rates);
}

inline void describe_digits(Layout& layout) {
  SORDINO_SIZE(Digits);
  SORDINO_FIELD(Digits, digits);
  SORDINO_FIELD(Digits, guides);
  SORDINO_FIELD(Digits, searches);
  SORDINO_FIELD(Digits, magnitudes);
  SORDINO_FIELD(Digits, high);
  SORDINO_FIELD(Digits, low);
  SORDINO_FIELD(Digits, search_steps);
  SORDINO_FIELD(Digits, largest);
}

inline void describe_job(Layout& layout) {
  SORDINO_SIZE(Job);
  SORDINO_FIELD(Job, data);
  SORDINO_FIELD(Job, rule);
  SORDINO_FIELD(Job, start);
  SORDINO_FIELD(Job, centre);
  SORDINO_FIELD(Job, exact_start);
  SORDINO_FIELD(Job, exact_centre);
  SORDINO_FIELD(Job, result);
  SORDINO_FIELD(Job, exact);
  SORDINO_FIELD(Job, integers);
  SORDINO_FIELD(Job, weight);
  SORDINO_FIELD(Job, first);
  SORDINO_FIELD(Job, second);
  SORDINO_FIELD(Job, taken);
  SORDINO_FIELD(Job, records);
  SORDINO_FIELD(Job, population);
  SORDINO_FIELD(Job, rows);
  SORDINO_FIELD(Job, counts);
  SORDINO_FIELD(Job, correction);
  SORDINO_FIELD(Job, batch_key);
  SORDINO_FIELD(Job, step_key);
  SORDINO_FIELD(Job, upload_key);
  SORDINO_FIELD(Job, mask_key);
  SORDINO_FIELD(Job, client);
  SORDINO_FIELD(Job, round);
  SORDINO_FIELD(Job, lane);
  SORDINO_FIELD(Job, clipped);
  SORDINO_FIELD(Job, clips);
  SORDINO_FIELD(Job, nonfinite);
}

inline void describe_numbers(Layout& layout) {
  SORDINO_NUMBER(Kind, LINEAR);
  SORDINO_NUMBER(Kind, CONVOLUTION);
  SORDINO_NUMBER(Kind, MAX_POOL);
  SORDINO_NUMBER(Kind, MEAN_POOL);
  SORDINO_NUMBER(Kind, ELEMENTWISE);
  SORDINO_NUMBER(Kind, SUM);
  SORDINO_NUMBER(Kind, NORMALISATION);
  SORDINO_NUMBER(Kind, DROPOUT);
  SORDINO_NUMBER(Activation, NONE);
  SORDINO_NUMBER(Activation, RELU);
  SORDINO_NUMBER(Activation, TANH);
  SORDINO_NUMBER(Activation, SIGMOID);
  SORDINO_NUMBER(Activation, GELU);
  SORDINO_NUMBER(Loss, CROSS_ENTROPY);
  SORDINO_NUMBER(Loss, BINARY_CROSS_ENTROPY);
  SORDINO_NUMBER(Loss, SQUARED_ERROR);
  SORDINO_NUMBER(Loss, GIVEN);
  SORDINO_NUMBER(OptimizerKind, SGD);
  SORDINO_NUMBER(OptimizerKind, MOMENTUM);
  SORDINO_NUMBER(OptimizerKind, ADAM);
  SORDINO_NUMBER(OptimizerKind, ADAGRAD);
  SORDINO_NUMBER(NoiseLaw, NORMAL);
  SORDINO_NUMBER(NoiseLaw, LAPLACE);
  SORDINO_NUMBER(NoiseLaw, STAIRCASE);
  SORDINO_CONSTANT(CLIP_FRACTION);
  SORDINO_CONSTANT(LONGEST_IN_CLIPS);
}

inline const std::string& describe_layout() {
  static const std::string text = [] {
    Layout layout;
    describe_tables(layout);
    describe_records(layout);
    describe_rule(layout);
    describe_digits(layout);
    describe_job(layout);
    describe_numbers(layout);
    return layout.text();
  }();
  return text;
}

}  // namespace sordino
