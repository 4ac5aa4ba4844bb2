// Helpers of the operators that move elements (reshape, transpose, slice, gather ...).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/strided_copy.h"
#include "op/dynamic.h"
#include "op/operator.h"

namespace ortrain {

// Bytes of one element of input i; rejects types without a fixed size.
size_t width_of(const NodeContext& c, size_t i);

// Calls f(T{}) with the unsigned type as wide as the elements of input i.
template <typename F>
void visit_width(const NodeContext& c, size_t i, F&& f) {
  const size_t width = width_of(c, i);
  if (width > 8) c.reject_dtype(i);
  visit_width(width, f);
}

// Integers that are attribute `name` in older opsets and input i in newer opsets; nullopt if the node has
// neither. Throws DataDependent if the input is not known at compile time.
std::optional<std::vector<int64_t>> ints_of(const NodeContext& c, const std::string& name, size_t i);

// The integers of input i, which must be a known int32 or int64 tensor.
std::vector<int64_t> constant_ints(const NodeContext& c, size_t i);

// The single integer of input i.
int64_t constant_int(const NodeContext& c, size_t i);

// Attribute `axis`, counted from the front of a tensor of the given rank.
size_t axis_of(const NodeContext& c, int64_t otherwise, int64_t rank);

// The axes counted from the front, each at most once.
std::vector<int64_t> normalize_axes(const NodeContext& c, std::vector<int64_t> axes, int64_t rank);

// For operators that select slices along attribute `axis` of input 0, or elements of the flattened input if
// there is no such attribute: states the type of output 0, in which the size of the axis is unknown. False if
// the axis is invalid, which the run reports.
bool state_selected_slices(TypeContext& c);

// A kernel for outputs without elements.
Kernel nothing_to_do();

// Adds Shape(like), and Reshape(value, Shape(like)).
Name shape_of(GradientContext& g, Name like);
Name reshape_like(GradientContext& g, Name value, Name like);
// Adds Reshape(value, shape); every dimension in the value `shape` is taken literally, zero included.
Name reshape_to(GradientContext& g, Name value, Name shape);

// Adds zeros with the shape and type of the value `like`.
Name zeros_like(GradientContext& g, Name like);

// The gradient of output o, zeros if none reaches it.
Name dy_or_zeros(GradientContext& g, size_t o);

}  // namespace ortrain
