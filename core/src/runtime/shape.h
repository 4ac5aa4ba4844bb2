// Shapes: the dimensions of a tensor, outermost first. A scalar has no dimensions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ortrain {

using Shape = std::vector<int64_t>;

// Product of the dimensions in [begin, end); 1 for an empty range. Throws if it overflows, also if only a
// dimension of 0 hides that: no product of some of the dimensions overflows then.
int64_t element_count(const Shape& shape);
int64_t element_count(const Shape& shape, size_t begin, size_t end);

// "[2, 3, 4]"
std::string to_string(const Shape& shape);

// The shape that two operands broadcast to by NumPy's rule; throws Error if they do not.
Shape broadcast(const Shape& a, const Shape& b);

// Maps an axis in [-rank, rank) to [0, rank); `what` names the caller in the error.
int64_t normalize_axis(int64_t axis, int64_t rank, const std::string& what);

// Row-major strides, in elements.
std::vector<int64_t> strides_of(const Shape& shape);

// Strides with which an operand of `shape` is read while iterating over `target`: 0 along broadcast axes.
std::vector<int64_t> broadcast_strides(const Shape& shape, const Shape& target);

}  // namespace ortrain
