// Records on their way into the network: normalised as the data set says, then transposed so that
// every example has a lane.
#pragma once
#include <algorithm>

#include "jobs.h"
#include "memory.h"
#include "plan.h"

namespace sordino {

// Fills the first tensor of a thread's memory, a block of records at a time.
class RecordLoader {
 public:
  RecordLoader(const Plan& plan, Work& work) : plan_(plan), work_(work) {}

  // Loads the records of these rows. Lanes beyond them become zero.
  void load(const Records& records, const int64_t* rows, Index count) {
    work_.examples = (int)count;
    const Index size = plan_.record_size();
    work_.records_are_padded = records.are_bytes != 0 || records.scale != nullptr;
    if (work_.records_are_padded) {
      staged_.ensure(work_.block_size() * padded_size(size));
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

 private:
  // x * scale + shift, rounded after each as torch does: `pin` keeps the compiler from joining both
  // to one multiply-add.
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

  // Moves the records, one a row, to the first tensor, where every example has a lane: LANES values
  // of LANES records at a time, by shuffles in registers.
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
        // Whole vectors are loaded at once; at the edges nothing beyond a record may be read.
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
        // Without a frame of zeros values keep their order; else the plan knows their places.
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

  const Plan& plan_;
  Work& work_;
  // Normalised records, each padded to whole vectors.
  Memory<float> staged_;
};

}  // namespace sordino
