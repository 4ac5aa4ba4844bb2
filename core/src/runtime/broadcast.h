// Broadcasting: traversing N operands together to fill one row-major output.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "runtime/error.h"
#include "runtime/shape.h"

namespace ortrain {

// The output as rows of `row()` elements; within a row each operand either advances with the output or stays
// at one element. Axes along which all operands advance alike are merged, so that equal shapes and scalars
// give one row.
template <size_t N>
class Broadcast {
 public:
  Broadcast(const std::array<Shape, N>& operands, const Shape& target) : size_(element_count(target)) {
    std::array<std::vector<int64_t>, N> strides;
    for (size_t k = 0; k < N; ++k) strides[k] = broadcast_strides(operands[k], target);
    for (size_t axis = target.size(); axis-- > 0;) {
      const int64_t dim = target[axis];
      if (dim == 1) continue;
      std::array<int64_t, N> steps;
      for (size_t k = 0; k < N; ++k) steps[k] = strides[k][axis];
      if (rank_ && continues(axes_[rank_ - 1], steps)) {
        axes_[rank_ - 1].dim *= dim;
      } else {
        require(rank_ < kMaxAxes, ErrorCode::kNotImplemented, "broadcasting to shape ", to_string(target),
                " takes more than ", kMaxAxes, " axes that cannot be merged");
        axes_[rank_++] = {dim, steps};
      }
    }
    // A single element: one row of one.
    if (!rank_) axes_[rank_++] = {1, {}};
  }

  int64_t size() const { return size_; }
  int64_t row() const { return axes_[0].dim; }
  // 1 if operand k advances along a row, 0 if it stays.
  int64_t step(size_t k) const { return axes_[0].steps[k]; }

  // Calls f(position in the output, positions in the operands, count) for the (parts of) rows of [begin,
  // end).
  template <typename F>
  void walk(int64_t begin, int64_t end, F&& f) const {
    if (begin >= end) return;
    const size_t outer = rank_ - 1;
    int64_t inside = begin % row(), rest = begin / row();
    std::array<int64_t, kMaxAxes> index;
    std::array<int64_t, N> offsets{};
    for (size_t i = 0; i < outer; ++i) {
      index[i] = rest % axes_[i + 1].dim;
      rest /= axes_[i + 1].dim;
      for (size_t k = 0; k < N; ++k) offsets[k] += index[i] * axes_[i + 1].steps[k];
    }
    while (begin < end) {
      const int64_t count = std::min(row() - inside, end - begin);
      std::array<int64_t, N> at = offsets;
      for (size_t k = 0; k < N; ++k) at[k] += inside * step(k);
      f(begin, at, count);
      begin += count;
      inside = 0;
      for (size_t i = 0; i < outer; ++i) {
        for (size_t k = 0; k < N; ++k) offsets[k] += axes_[i + 1].steps[k];
        if (++index[i] < axes_[i + 1].dim) break;
        for (size_t k = 0; k < N; ++k) offsets[k] -= axes_[i + 1].dim * axes_[i + 1].steps[k];
        index[i] = 0;
      }
    }
  }

 private:
  // Fixed, so that nothing is allocated.
  static constexpr size_t kMaxAxes = 16;
  struct Axis {
    int64_t dim = 0;
    std::array<int64_t, N> steps{};
  };
  // Whether an axis with these steps continues where the inner one ends, for every operand.
  static bool continues(const Axis& inner, const std::array<int64_t, N>& steps) {
    for (size_t k = 0; k < N; ++k)
      if (steps[k] != inner.steps[k] * inner.dim) return false;
    return true;
  }

  int64_t size_;
  size_t rank_ = 0;
  std::array<Axis, kMaxAxes> axes_;  // innermost first
};

}  // namespace ortrain
