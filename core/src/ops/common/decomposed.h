// Helpers for decompositions of fused operators.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "op/node_writer.h"

namespace ortrain {

// A value of one element as a scalar of rank 0.
Name as_scalar(NodeWriter& e, Name value);

// The value, cast to the element type of `like`; the value itself if it already has that type.
Name cast_like(NodeWriter& e, Name value, Name like);

// The activation that a fused node names in its attribute `activation`, with its own attributes as
// activation_alpha, activation_beta, activation_gamma and activation_axis. Without such an attribute, the
// value itself.
Name apply_activation(NodeWriter& e, Name value);

// Softmax over `axis` or, with `flat`, over that axis and all axes after it, as before version 13.
Name softmax(NodeWriter& e, Name value, int64_t axis, bool flat);

// A reduction other than a sum: its axes are an attribute before version 18.
Name reduce(NodeWriter& e, std::string_view type, Name value, List<int64_t> axes, bool keepdims);

// [N, d..., C] as [N, C, d...], and back. Needs the rank.
Name channels_first(NodeWriter& e, Name value);
Name channels_last(NodeWriter& e, Name value, int64_t rank);

// The rank of a value; rejects the node if it is not known.
int64_t need_rank(const NodeWriter& e, const std::string& value);

// Parts of these sizes along the last axis.
Names split_last_axis(NodeWriter& e, Name value, const std::vector<int64_t>& sizes);

inline constexpr int64_t kToTheLast = INT32_MAX;

// The dimensions [begin, end) of a value, as an int64 vector.
Name dims_of(NodeWriter& e, Name value, int64_t begin, int64_t end);

// The values `front`, then the dimensions of a value from `begin` on; a constant if they are known.
Name with_dims_after(NodeWriter& e, List<int64_t> front, Name value, int64_t begin);

// The value reshaped to the dimensions in an int64 vector, taken literally.
Name reshape_to(NodeWriter& e, Name value, Name shape);

}  // namespace ortrain
