// How much memory a Program may ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/dtype.h"
#include "runtime/shape.h"

namespace ortrain {

class NodeContext;
class Sequence;

// The bytes that the machine can hold, in memory and swapped out; SIZE_MAX if that is not known.
size_t machine_memory();

struct ProgramLimits {
  uint64_t elements = uint64_t{1} << 40;  // of one value
  size_t bytes = machine_memory();        // of the values of a Program that are not inputs or model state
};

// Dimensions of one value: a fixed limit, because time and memory of many kernels grow with their square.
inline constexpr size_t kMaxRank = 64;

// Checks a value that no node makes: an input or a part of the model's state. Throws if it has no elements
// and the limit forbids its shape. A value with elements already has memory, so it needs no limit.
void check_given_value(const std::string& name, const Shape& shape, const ProgramLimits& limits);

// Throws if the limits forbid that output o of the node has this type and shape, or is this sequence.
void check_value(const NodeContext& c, size_t o, DType dtype, const Shape& shape,
                 const ProgramLimits& limits);
void check_value(const NodeContext& c, size_t o, const Sequence& sequence, const ProgramLimits& limits);

}  // namespace ortrain
