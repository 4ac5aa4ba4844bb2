// All passes. Each is described in the source file with its name.
#pragma once

#include <string>

#include "graph/graph.h"

namespace ortrain {

bool accumulate_rows(Model& model);
bool bound_gradients(Model& model);
bool common_subexpression_elimination(Model& model);
bool fold_transpose(Model& model);
bool fuse_adapter(Model& model);
bool fuse_attention(Model& model);
bool fuse_batch_normalization_clip(Model& model);
bool fuse_clip_gradient(Model& model);
bool fuse_conv_activation(Model& model);
bool fuse_conv_batch_normalization(Model& model);
bool fuse_conv_bias(Model& model);
bool fuse_cross_entropy(Model& model);
bool fuse_gelu(Model& model);
bool fuse_group_normalization(Model& model);
bool fuse_hard_swish_gradient(Model& model);
bool fuse_layer_normalization(Model& model);
bool fuse_product(Model& model);
bool fuse_quantized_conv(Model& model);
bool fuse_quantized_product(Model& model);
bool fuse_separable_conv(Model& model);
bool fuse_swish(Model& model);
bool hoist_invariants(Model& model);
bool hoist_selection(Model& model);
bool inline_if(Model& model);
bool pool_activation_gradients(Model& model);
bool remove_identity(Model& model);
bool save_activation_derivatives(Model& model);
bool schedule_weight_gradients(Model& model);
bool split_sequence(Model& model);
bool winograd(Model& model);

// The input of a graph that holds the bound of the gradient in an accumulation buffer (bound_gradients).
inline std::string name_of_bound(const std::string& buffer) { return buffer + ".bound"; }
// The input of a graph that holds the set of rows of the buffer that may differ from zero (accumulate_rows).
inline std::string name_of_rows(const std::string& buffer) { return buffer + ".rows"; }

}  // namespace ortrain
