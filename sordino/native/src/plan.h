// A network as the kernel runs it: tensors, layers in order, and where everything is in a
// thread's memory.
//
// The tables come from sordino/native/program.py, which decides all of it (fusions, frames, which
// gradients overwrite values); sordino/native/translate.py has checked that the shapes fit.
#pragma once
#include "convolution.h"
#include "dropout.h"
#include "elementwise.h"
#include "linear.h"
#include "losses.h"
#include "normalisation.h"
#include "pooling.h"

namespace sordino {

// The kinds of layers in these tables.
enum Kind : int64_t {
  LINEAR = 0,
  CONVOLUTION = 1,
  MAX_POOL = 2,
  MEAN_POOL = 3,
  ELEMENTWISE = 4,
  SUM = 5,
  NORMALISATION = 6,
  DROPOUT = 7,
};

// A row of the table of tensors.
struct TensorRow {
  int64_t channels;
  int64_t height;
  int64_t width;
  int64_t frame_y;
  int64_t frame_x;
  int64_t activation;
  int64_t apart;
};

// A row of the table of layers. Parameters are offsets in the trained vector; -1: there are none.
struct LayerRow {
  int64_t kind;
  int64_t first;
  int64_t second;
  int64_t output;
  int64_t first_carries_back;
  int64_t first_adds;
  int64_t second_carries_back;
  int64_t second_adds;
  int64_t weight;
  int64_t bias;
  // Kernel, stride and padding, each for y and x; or groups, epsilon and whether
  // pixels are scaled; or threshold, scale and first block of a dropout; or the activation.
  int64_t settings[6];
};

// Parameters that are side by side in the trained vector and in a thread's memory.
struct ParameterRun {
  Index flat;
  Index start;
  Index length;
};

class Plan {
 public:
  std::vector<Tensor> tensors;
  std::vector<std::unique_ptr<Layer>> layers;
  // In the order of the trained vector.
  std::vector<ParameterRun> runs;
  // Where the values of a record go in the first tensor.
  std::vector<int32_t> input_places;
  int vectors;
  Loss loss;
  Index parameters = 0;
  Index padded_parameters = 0;
  // How much memory a thread needs, in the units of Layer.
  Index pixels = 0;
  Index lane_sums = 0;
  Index saved = 0;
  Index packed = 0;
  Index input_rows = 0;
  Index scaled = 0;

  Plan(const TensorRow* tensor_table, Index tensor_count, const LayerRow* layer_table,
       Index layer_count, int block_vectors, Loss kind)
      : vectors(block_vectors), loss(kind) {
    for (Index i = 0; i < tensor_count; i++) tensors.push_back(make_tensor(tensor_table[i]));
    for (Index i = 0; i < layer_count; i++) layers.push_back(make_layer(layer_table[i]));
    place_tensors();
    place_parameters();
    place_scratch();
    const Tensor& first = tensors.front();
    for (Index c = 0; c < first.channels; c++) {
      for (Index y = 0; y < first.height; y++) {
        for (Index x = 0; x < first.width; x++) {
          input_places.push_back((int32_t)first.at(c, y, x));
        }
      }
    }
  }

  Index record_size() const { return tensors.front().size(); }
  Index outputs() const { return tensors.back().size(); }

 private:
  static Tensor make_tensor(const TensorRow& row) {
    return {row.channels, row.height,  row.width,
            row.frame_y,  row.frame_x, (Activation)row.activation,
            row.apart != 0};
  }

  std::unique_ptr<Layer> make_layer(const LayerRow& row) const {
    std::unique_ptr<Layer> layer = make_kind(row);
    layer->in = (int)row.first;
    layer->out = (int)row.output;
    layer->carries_back = row.first_carries_back != 0;
    layer->adds = row.first_adds != 0;
    return layer;
  }

  std::unique_ptr<Layer> make_kind(const LayerRow& row) const {
    switch ((Kind)row.kind) {
      case LINEAR:
        return make_linear(row);
      case CONVOLUTION:
        return make_convolution(row);
      case MAX_POOL:
        return make_pooling(row, true);
      case MEAN_POOL:
        return make_pooling(row, false);
      case ELEMENTWISE:
        return make_elementwise(row);
      case SUM:
        return make_sum(row);
      case NORMALISATION:
        return make_normalisation(row);
      case DROPOUT:
        break;
    }
    return make_dropout(row);
  }

  std::unique_ptr<Layer> make_linear(const LayerRow& row) const {
    auto layer = std::make_unique<Linear>();
    layer->inputs = tensors[row.first].size();
    layer->outputs = tensors[row.output].size();
    layer->weight = {row.weight, layer->outputs, layer->inputs};
    if (row.bias >= 0) layer->bias = {row.bias, 1, layer->outputs};
    return layer;
  }

  // Convolutions and pooling have the same settings of their windows.
  template <class Windowed>
  static void set_windows(Windowed& layer, const LayerRow& row) {
    layer.kernel_y = row.settings[0];
    layer.kernel_x = row.settings[1];
    layer.stride_y = row.settings[2];
    layer.stride_x = row.settings[3];
    layer.padding_y = row.settings[4];
    layer.padding_x = row.settings[5];
  }

  std::unique_ptr<Layer> make_convolution(const LayerRow& row) const {
    auto layer = std::make_unique<Convolution>();
    layer->channels = tensors[row.first].channels;
    layer->filters = tensors[row.output].channels;
    set_windows(*layer, row);
    layer->weight = {row.weight, 1, layer->filters * layer->channels * layer->taps()};
    if (row.bias >= 0) layer->bias = {row.bias, 1, layer->filters};
    return layer;
  }

  static std::unique_ptr<Layer> make_pooling(const LayerRow& row, bool takes_maximum) {
    auto layer = std::make_unique<Pooling>();
    set_windows(*layer, row);
    layer->takes_maximum = takes_maximum;
    return layer;
  }

  static std::unique_ptr<Layer> make_elementwise(const LayerRow& row) {
    auto layer = std::make_unique<Elementwise>();
    layer->kind = (Activation)row.settings[0];
    return layer;
  }

  static std::unique_ptr<Layer> make_sum(const LayerRow& row) {
    auto layer = std::make_unique<Sum>();
    layer->second = (int)row.second;
    layer->second_carries_back = row.second_carries_back != 0;
    layer->second_adds = row.second_adds != 0;
    return layer;
  }

  std::unique_ptr<Layer> make_normalisation(const LayerRow& row) const {
    auto layer = std::make_unique<Normalisation>();
    const Tensor& from = tensors[row.first];
    layer->channels = from.channels;
    layer->groups = row.settings[0];
    // The table carries the bits of a double.
    std::memcpy(&layer->epsilon, &row.settings[1], sizeof layer->epsilon);
    layer->scales_pixels = row.settings[2] != 0;
    const Index scales = layer->scale_count(from);
    if (row.weight >= 0) layer->weight = {row.weight, 1, scales};
    if (row.bias >= 0) layer->bias = {row.bias, 1, scales};
    return layer;
  }

  std::unique_ptr<Layer> make_dropout(const LayerRow& row) const {
    auto layer = std::make_unique<Dropout>();
    layer->threshold = (uint32_t)row.settings[0];
    double scale;
    std::memcpy(&scale, &row.settings[1], sizeof scale);
    layer->scale = (float)scale;
    layer->first_block = row.settings[2];
    layer->blocks = count_parts(tensors[row.first].size(), 16);
    return layer;
  }

  // Gives every tensor a place for its values, and one for its gradients where they are apart.
  void place_tensors() {
    for (Tensor& t : tensors) {
      t.values = pixels;
      t.gradients = pixels;
      pixels += t.pixels();
      if (t.apart) {
        t.gradients = pixels;
        pixels += t.pixels();
      }
    }
  }

  // Gives every block of parameters a place in memory, and lists the runs of both layouts.
  void place_parameters() {
    for (auto& layer : layers) {
      for (ParameterBlock* block : {&layer->weight, &layer->bias}) {
        if (block->exists()) place_block(*block);
      }
    }
    const auto comes_first = [](const ParameterRun& a, const ParameterRun& b) {
      return a.flat < b.flat;
    };
    std::sort(runs.begin(), runs.end(), comes_first);
  }

  // Every row begins a new vector, so that loops over a row load whole vectors.
  void place_block(ParameterBlock& block) {
    block.start = padded_parameters;
    block.stride = padded_size(block.length);
    padded_parameters += block.rows * block.stride;
    parameters += block.size();
    // Without gaps all rows are one run.
    if (block.stride == block.length) {
      runs.push_back({block.flat, block.start, block.size()});
      return;
    }
    for (Index r = 0; r < block.rows; r++) {
      const Index flat = block.flat + r * block.length;
      runs.push_back({flat, block.start + r * block.stride, block.length});
    }
  }

  // Sums and statistics of all layers follow one another; the rest is used in turn.
  void place_scratch() {
    for (auto& layer : layers) {
      layer->place_sums(lane_sums);
      lane_sums += layer->lane_sum_count();
      layer->place_saved(saved);
      saved += layer->saved_vectors();
      packed = std::max(packed, layer->packed_floats());
      input_rows = std::max(input_rows, layer->input_row_floats());
      scaled = std::max(scaled, layer->scaled_vectors());
    }
  }
};

}  // namespace sordino
