// A network as the kernel runs it: tensors, layers in order, and where everything stands in a thread's memory.
//
// The tables come from sordino/engines/native/translate.py, which decides all of it (fusions, frames, who overwrites what) and has
// checked that the shapes fit.
#pragma once
#include "convolution.h"
#include "elementwise.h"
#include "linear.h"
#include "losses.h"
#include "normalisation.h"
#include "pooling.h"

namespace sordino {

constexpr int TENSOR_FIELDS = 7, LAYER_FIELDS = 16;
enum Kind : int64_t { LINEAR = 0, CONVOLUTION = 1, MAX_POOL = 2, MEAN_POOL = 3, ELEMENTWISE = 4, SUM = 5, GROUP_NORM = 6 };

// Parameters that stand side by side in the trained vector and in a thread's memory.
struct Run {
  Index flat, start, length;
};

class Plan {
 public:
  std::vector<Tensor> tensors;
  std::vector<std::unique_ptr<Layer>> layers;
  std::vector<Run> runs;  // in the order of the trained vector
  std::vector<int32_t> input_places;
  int vectors;
  Loss loss;
  Index parameters = 0, padded_parameters = 0;
  Index pixels = 0, lane_sums = 0, saved = 0, packed = 0, turned = 0;

  Plan(const int64_t* tensor_table, Index tensor_count, const int64_t* layer_table, Index layer_count, int block_vectors, Loss kind)
      : vectors(block_vectors), loss(kind) {
    for (Index i = 0; i < tensor_count; i++, tensor_table += TENSOR_FIELDS) {
      const int64_t* t = tensor_table;
      tensors.push_back({t[0], t[1], t[2], t[3], t[4], (Activation)t[5], t[6] != 0});
    }
    for (Index i = 0; i < layer_count; i++, layer_table += LAYER_FIELDS) layers.push_back(made(layer_table));
    place_tensors();
    place_parameters();
    for (auto& layer : layers) {
      layer->place_sums(lane_sums), lane_sums += layer->lane_sums();
      layer->place_saved(saved), saved += layer->saved_vectors();
      packed = std::max(packed, layer->packed_floats()), turned = std::max(turned, layer->turned_floats(tensors));
    }
    const Tensor& first = tensors.front();
    for (Index c = 0; c < first.channels; c++) {
      for (Index y = 0; y < first.height; y++) {
        for (Index x = 0; x < first.width; x++) input_places.push_back((int32_t)first.at(c, y, x));
      }
    }
  }

  Index record_size() const { return tensors.front().size(); }
  Index outputs() const { return tensors.back().size(); }

 private:
  std::unique_ptr<Layer> made(const int64_t* f) const {
    const Tensor &from = tensors[f[1]], &to = tensors[f[3]];
    const int64_t *more = f + 10, weight = f[8], bias = f[9];
    std::unique_ptr<Layer> layer;
    switch ((Kind)f[0]) {
      case LINEAR: {
        auto made = std::make_unique<Linear>();
        made->inputs = from.size(), made->outputs = to.size();
        made->weight = {weight, made->outputs, made->inputs};
        if (bias >= 0) made->bias = {bias, 1, made->outputs};
        layer = std::move(made);
        break;
      }
      case CONVOLUTION: {
        auto made = std::make_unique<Convolution>();
        made->channels = from.channels, made->filters = to.channels;
        made->kernel_y = more[0], made->kernel_x = more[1], made->stride_y = more[2], made->stride_x = more[3];
        made->padding_y = more[4], made->padding_x = more[5];
        made->weight = {weight, 1, made->filters * made->channels * made->taps()};
        if (bias >= 0) made->bias = {bias, 1, made->filters};
        layer = std::move(made);
        break;
      }
      case MAX_POOL:
      case MEAN_POOL: {
        auto made = std::make_unique<Pooling>();
        made->kernel_y = more[0], made->kernel_x = more[1], made->stride_y = more[2], made->stride_x = more[3];
        made->padding_y = more[4], made->padding_x = more[5];
        made->takes_maximum = f[0] == MAX_POOL;
        layer = std::move(made);
        break;
      }
      case ELEMENTWISE: {
        auto made = std::make_unique<Elementwise>();
        made->kind = (Activation)more[0];
        layer = std::move(made);
        break;
      }
      case SUM: {
        auto made = std::make_unique<Sum>();
        made->second = (int)f[2], made->second_carries_back = f[6] != 0, made->second_adds = f[7] != 0;
        layer = std::move(made);
        break;
      }
      case GROUP_NORM: {
        auto made = std::make_unique<GroupNormalisation>();
        double epsilon;
        std::memcpy(&epsilon, more + 1, sizeof epsilon);
        made->channels = from.channels, made->groups = more[0], made->epsilon = epsilon;
        if (weight >= 0) made->weight = {weight, 1, made->channels}, made->bias = {bias, 1, made->channels};
        layer = std::move(made);
        break;
      }
    }
    layer->in = (int)f[1], layer->out = (int)f[3], layer->carries_back = f[4] != 0, layer->adds = f[5] != 0;
    return layer;
  }

  void place_tensors() {
    for (Tensor& t : tensors) {
      t.values = t.gradients = pixels;
      pixels += t.pixels();
      if (t.apart) t.gradients = pixels, pixels += t.pixels();
    }
  }

  void place_parameters() {
    for (auto& layer : layers) {
      for (Place* place : {&layer->weight, &layer->bias}) {
        if (!place->exists()) continue;
        place->start = padded_parameters, place->stride = padded(place->length);
        padded_parameters += place->rows * place->stride;
        parameters += place->rows * place->length;
        const bool whole = place->stride == place->length;  // no gaps: all rows are one run
        const Index length = whole ? place->rows * place->length : place->length;
        for (Index r = 0; r < (whole ? 1 : place->rows); r++) {
          runs.push_back({place->flat + r * length, place->start + r * place->stride, length});
        }
      }
    }
    std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.flat < b.flat; });
  }
};

}  // namespace sordino
