// All passes. Each is described in the source file with its name.
#pragma once

#include "graph/graph.h"

namespace ortrain {

bool common_subexpression_elimination(Model& model);
bool fold_transpose(Model& model);
bool fuse_attention(Model& model);
bool fuse_conv_activation(Model& model);
bool fuse_conv_batch_normalization(Model& model);
bool fuse_gelu(Model& model);
bool fuse_layer_normalization(Model& model);
bool fuse_product(Model& model);
bool hoist_selection(Model& model);
bool inline_if(Model& model);
bool remove_identity(Model& model);
bool save_activation_derivatives(Model& model);
bool schedule_weight_gradients(Model& model);
bool winograd(Model& model);

}  // namespace ortrain
