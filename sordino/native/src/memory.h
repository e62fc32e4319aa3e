// Memory of one thread, and sums in it that lose next to nothing.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <new>

#include "vectors.h"

namespace sordino {

// An array, aligned to cache lines and zero at first.
template <class T>
class Memory {
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
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  T* data() const { return data_; }
  Index size() const { return size_; }
  // Makes room for at least `size`. What was there is lost if it has to grow.
  void ensure(Index size) {
    if (size_ < size) *this = Memory(size);
  }

 private:
  T* data_ = nullptr;
  Index size_ = 0;
};

// A sum of any number of vectors, whose rounding does not grow with that number: what every
// addition loses is found exactly (Knuth's TwoSum) and added at the end. docs/theory.md#c7
// bounds how far the sums of neighbouring batches come apart.
class CompensatedSum {
 public:
  // Makes room for a new sum of vectors whose length is a multiple of LANES.
  void begin(Index size) {
    total_.ensure(size);
    size_ = size;
    parts_ = 0;
  }

  // Where the next vector is to be written, whole, before anything else is called.
  double* open_part() {
    parts_++;
    if (parts_ == 1) return total_.data();
    if (parts_ == 2) {
      part_.ensure(size_);
      lost_.ensure(size_);
      std::fill(lost_.data(), lost_.data() + size_, 0.0);
    } else {
      add_part();
    }
    return part_.data();
  }

  // The sum of all vectors.
  const double* finish() {
    if (parts_ > 1) {
      add_part();
      for (Index i = 0; i < size_; i++) total_.data()[i] += lost_.data()[i];
    }
    return total_.data();
  }

 private:
  void add_part() {
    Doubles* total = (Doubles*)total_.data();
    Doubles* lost = (Doubles*)lost_.data();
    const Doubles* part = (const Doubles*)part_.data();
    for (Index i = 0; i < size_ / HALF; i++) {
      const Doubles sum = total[i] + part[i];
      const Doubles added = sum - total[i];
      lost[i] += (total[i] - (sum - added)) + (part[i] - added);
      total[i] = sum;
    }
  }

  Memory<double> total_;
  Memory<double> part_;
  Memory<double> lost_;
  Index size_ = 0;
  int64_t parts_ = 0;
};

}  // namespace sordino
