// Reduction: sums, extremes and products over axes of a row-major tensor, vectorized and threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/dtype.h"
#include "runtime/shape.h"

namespace ortrain {

enum class Reduce { kSum, kSumSquare, kSumAbs, kMax, kMin, kProd };

// One prepared reduction of float or double, or of floats that are kept in bfloat16 (DType::kBFloat16) to
// float. Partial results of short blocks are combined in double, so that the relative error of a sum does not
// grow with its length.
class Reduction {
 public:
  // Reduces the axes of `shape` that are marked.
  Reduction(Reduce op, DType dtype, const Shape& shape, const std::vector<bool>& reduced);
  // Sums a tensor of shape `from` to shape `to`, which broadcasts to it.
  static Reduction sum_to(const Shape& from, const Shape& to, DType dtype);

  // Memory that run() needs besides input and output.
  size_t scratch_bytes() const;
  // y may not overlap x.
  void run(const void* x, void* y, void* scratch) const;

 private:
  struct Axis {
    int64_t dim, stride;
  };
  template <typename V, typename T>
  void run_typed(const V* x, T* y, double* partial) const;
  int64_t offset(const std::vector<Axis>& axes, int64_t index) const;

  Reduce op_;
  DType dtype_;
  // Merged axes, outermost first: which make the outputs, and which are summed away.
  std::vector<Axis> kept_, reduced_;
  // The innermost axis: `length_` neighbours that are reduced to one, or a row of columns that stay apart.
  bool columns_ = false;
  int64_t length_ = 1;
  int64_t outputs_ = 1;  // products of the dimensions in kept_ ...
  int64_t terms_ = 1;    // ... and in reduced_
  int64_t parts_ = 1;    // into how many parts one output's work is cut, so that every thread has some
};

}  // namespace ortrain
