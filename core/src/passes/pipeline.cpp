// The passes in the order in which they run, and why in this order.
//
// No pass fuses chains of elementwise operators: such operators work in place where they can, and matrix
// products and convolutions absorb those that follow them.
#include "passes/pass.h"
#include "passes/passes.h"

namespace ortrain {
namespace {

constexpr Pass kArtifactPasses[] = {
    // The nodes of a branch can only be matched once they are in the graph.
    {"inline_if", inline_if},
    // Single nodes have better gradients than the steps they are written as. Nothing in one pattern is part
    // of the other.
    {"fuse_layer_normalization", fuse_layer_normalization},
    {"fuse_gelu", fuse_gelu},
    // After the fusions: a normalization in one node treats positions independently; its separate steps do
    // not.
    {"hoist_selection", hoist_selection, PassLevel::kExtended, "select_early"},
};

constexpr Pass kSessionPasses[] = {
    // Later patterns then need not look through nodes that only rename.
    {"remove_identity", remove_identity, PassLevel::kBasic},
    // Before attention and products become nodes that this pass does not look through.
    {"hoist_selection", hoist_selection, PassLevel::kExtended, "select_early"},
    // Patterns require values with a single reader, which duplicate nodes would hide.
    {"common_subexpression_elimination", common_subexpression_elimination, PassLevel::kBasic, "merge_twins"},
    // Weights that a loop carries are constants of its body from here on.
    {"hoist_invariants", hoist_invariants, PassLevel::kBasic},
    // Before convolutions and products are fused with anything else.
    {"fuse_quantized_conv", fuse_quantized_conv, PassLevel::kExtended, "", true},
    // The same.
    {"fuse_quantized_product", fuse_quantized_product, PassLevel::kExtended, "", true},
    // Before transpositions are folded into the products that it consists of.
    {"fuse_cross_entropy", fuse_cross_entropy},
    // The same.
    {"fuse_attention", fuse_attention},
    // Before fuse_product, which also fuses the multiplication by the derivative.
    {"save_activation_derivatives", save_activation_derivatives, PassLevel::kExtended, "keep_slopes"},
    // Before fuse_product, which would fuse the multiplication with the mask.
    {"fuse_clip_gradient", fuse_clip_gradient},
    // Before fuse_product: this brings an addend after a transposition next to its product.
    {"fold_transpose", fold_transpose},
    // Models that were not trained here have the steps that it is written as.
    {"fuse_gelu", fuse_gelu},
    // What follows a bias is fused with the convolution that has it.
    {"fuse_conv_bias", fuse_conv_bias},
    // A normalization between a convolution and its activation must be removed before these are fused.
    {"fuse_conv_batch_normalization", fuse_conv_batch_normalization},
    {"fuse_conv_activation", fuse_conv_activation},
    // With the biases and activations that convolutions have by now.
    {"fuse_separable_conv", fuse_separable_conv},
    {"fuse_product", fuse_product},
    // The order of nodes is decided once the nodes no longer change.
    {"schedule_weight_gradients", schedule_weight_gradients, PassLevel::kExtended,
     "early_parameter_gradients"},
    // Marks the remaining convolutions.
    {"winograd", winograd},
    // When it is known which nodes compute the gradients: nothing may change what they read.
    {"bound_gradients", bound_gradients},
    // After the bounds, which know the node that this pass replaces.
    {"accumulate_rows", accumulate_rows},
};

}  // namespace

std::span<const Pass> passes_of(PassPhase phase) {
  return phase == PassPhase::kArtifact ? std::span<const Pass>(kArtifactPasses) : kSessionPasses;
}

}  // namespace ortrain
