#include "runtime/shape.h"

#include <algorithm>
#include <cstdint>

#include "runtime/error.h"

namespace ortrain {

namespace {
// The most elements of a shape: leaves room for sums of a few dimensions and for bytes of elements, of which
// the widest have 16.
constexpr int64_t kMostElements = std::min<uint64_t>(uint64_t{1} << 56, SIZE_MAX / 16);
}  // namespace

int64_t element_count(const Shape& shape, size_t begin, size_t end) {
  int64_t count = 1;
  bool empty = false;
  for (size_t i = begin; i < end; ++i) {
    empty |= shape[i] == 0;
    const bool fits = shape[i] >= 0 &&
                      !__builtin_mul_overflow(count, std::max<int64_t>(shape[i], 1), &count) &&
                      count <= kMostElements;
    if (!fits) [[unlikely]]  // the text is costly to make
      fail(ErrorCode::kInvalidArgument, "the number of elements of shape ", to_string(shape),
           " cannot be represented: the most are ", kMostElements);
  }
  return empty ? 0 : count;
}

int64_t element_count(const Shape& shape) { return element_count(shape, 0, shape.size()); }

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += std::string(i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

Shape broadcast(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    require(x == y || x == 1 || y == 1, ErrorCode::kInvalidArgument, "shapes ", to_string(a), " and ",
            to_string(b), " do not broadcast: dimensions ", x, " and ", y, " differ and neither is 1");
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

int64_t normalize_axis(int64_t axis, int64_t rank, const std::string& what) {
  require(axis >= -rank && axis < rank, ErrorCode::kInvalidArgument, what, ": axis ", axis, " is outside [",
          -rank, ", ", rank - 1, "] of a tensor of rank ", rank);
  return axis < 0 ? axis + rank : axis;
}

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    // Steps are computed modulo 2^64. A shape for which they overflow is rejected as soon as its elements are
    // needed.
    step = static_cast<int64_t>(static_cast<uint64_t>(step) * static_cast<uint64_t>(shape[i]));
  }
  return strides;
}

std::vector<int64_t> broadcast_strides(const Shape& shape, const Shape& target) {
  const std::vector<int64_t> own = strides_of(shape);
  std::vector<int64_t> out(target.size(), 0);
  const size_t offset = target.size() - shape.size();
  for (size_t i = 0; i < shape.size(); ++i) out[offset + i] = shape[i] == 1 ? 0 : own[i];
  return out;
}

}  // namespace ortrain
