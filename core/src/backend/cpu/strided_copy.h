// Copying between two strided views of the same shape: the basis of transposing, slicing, concatenating,
// repeating and broadcasting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/error.h"
#include "runtime/shape.h"

namespace ortrain {

// Prepared once; a call copies, threaded if that pays off, and allocates nothing.
//
// Neighbouring dimensions without a gap in both views are merged first. The rest is copied as runs of
// contiguous bytes, as tiles if the views are contiguous along different dimensions, or element by element.
class StridedCopy {
 public:
  // One side: the offset of its first element and the steps between elements, in elements. A step may be
  // negative or, for the source, zero.
  struct View {
    int64_t offset = 0;
    std::vector<int64_t> strides;
  };

  // `width` is the number of bytes of an element: 1, 2, 4, 8 or 16.
  StridedCopy(size_t width, const Shape& dims, const View& source, const View& target);

  void operator()(const std::byte* source, std::byte* target) const;

 private:
  struct Loop {
    int64_t dim, source, target;  // steps in bytes
  };
  enum class Way { kNothing, kOneRun, kRuns, kTiles, kElements };

  void merge();
  void plan();
  void cut(int64_t piece, size_t position);

  Way way_ = Way::kNothing;
  int64_t source_offset_ = 0, target_offset_ = 0;  // bytes
  int64_t width_ = 0;                              // bytes of the piece that moves as one
  // The loops around the inner work, outermost first. One of them, cut_loop_, steps through inner_ in pieces
  // of piece_ items.
  std::vector<Loop> loops_;
  size_t cut_loop_ = 0;
  Loop inner_{1, 0, 0};
  Loop across_{1, 0, 0};  // kTiles: the dimension along which the target is contiguous
  int64_t piece_ = 1;
  int64_t units_ = 1;  // product of the dimensions of loops_
};

// Copies or zeroes a block of memory, threaded if it is large. The blocks do not overlap.
void copy_bytes(std::byte* target, const std::byte* source, size_t bytes);
void zero_bytes(std::byte* target, size_t bytes);

// Calls f(T{}) with the unsigned type of `width` bytes.
template <typename F>
void visit_width(size_t width, F&& f) {
  switch (width) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
    default:
      fail(ErrorCode::kNotImplemented, "copying elements of ", width, " bytes is not supported");
  }
}

}  // namespace ortrain
