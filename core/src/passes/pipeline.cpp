// The passes in the order in which they run, and why in this order.
//
// No pass fuses chains of elementwise operators: such operators work in place where they can, and matrix
// products and convolutions absorb those that follow them.
#include <initializer_list>

#include "op/operator.h"
#include "passes/pass.h"
#include "passes/passes.h"

namespace ortrain {
namespace {

using Run = bool (*)(Model&);

bool find_nothing(Model&) { return false; }

// A pass that changes something only in models with one of these operators, of ONNX or of com.microsoft: a
// build that has none of them leaves the pass out.
constexpr Run needing(std::initializer_list<std::string_view> operators, Run run) {
  for (const std::string_view type : operators)
    if (is_built("", type) || is_built(kMicrosoft, type)) return run;
  return find_nothing;
}

// A pass of the artifact phase.
constexpr Run making_artifacts(Run run) { return kArtifactsPart.is_built ? run : find_nothing; }

constexpr Pass kArtifactPasses[] = {
    // The nodes of a branch can only be matched once they are in the graph.
    {"inline_if", making_artifacts(inline_if)},
    // The pieces then have gradients that are tensors.
    {"split_sequence", making_artifacts(split_sequence)},
    // A single node has a better gradient than the steps that it replaces. The patterns of these passes do
    // not overlap.
    {"fuse_layer_normalization", making_artifacts(fuse_layer_normalization)},
    {"fuse_gelu", making_artifacts(fuse_gelu)},
    // After the fusions: a normalization in one node treats positions independently; its separate steps do
    // not.
    {"hoist_selection", making_artifacts(hoist_selection), PassLevel::kExtended, "select_early"},
};

constexpr Pass kSessionPasses[] = {
    // Later patterns then need not look through nodes that only rename values.
    {"remove_identity", remove_identity, PassLevel::kBasic},
    // Before attention and products become nodes that this pass does not look through.
    {"hoist_selection", needing({"Gather", "Slice"}, hoist_selection), PassLevel::kExtended, "select_early"},
    // Patterns require values with a single reader, which duplicate nodes would hide.
    {"common_subexpression_elimination", common_subexpression_elimination, PassLevel::kBasic, "merge_twins"},
    // Before passes that look for operations on the pieces.
    {"split_sequence", needing({"SplitToSequence"}, split_sequence)},
    // Weights that a loop carries are constants of its body from here on.
    {"hoist_invariants", needing({"Loop"}, hoist_invariants), PassLevel::kBasic},
    // Before convolutions and products are fused with anything else.
    {"fuse_quantized_conv", needing({"QuantizeLinear"}, fuse_quantized_conv), PassLevel::kExtended, "", true},
    // Before products are fused with anything else.
    {"fuse_quantized_product", needing({"DequantizeLinear"}, fuse_quantized_product), PassLevel::kExtended,
     "", true},
    // Before transpositions are folded into the products of the pattern.
    {"fuse_cross_entropy", needing({"Transpose"}, fuse_cross_entropy)},
    // Before transpositions are folded into the products of attention.
    {"fuse_attention", needing({"Softmax"}, fuse_attention)},
    // Before fuse_product, which would fuse the products.
    {"fuse_swish", needing({"SigmoidGrad"}, fuse_swish)},
    // Before fuse_product, which also fuses the multiplication by the derivative.
    {"save_activation_derivatives",
     needing({"GeluGrad", "FastGeluGrad", "QuickGeluGrad"}, save_activation_derivatives),
     PassLevel::kExtended, "keep_slopes"},
    // Before fuse_product, which would fuse the multiplication with the mask.
    {"fuse_clip_gradient", needing({"Cast"}, fuse_clip_gradient)},
    // Before fuse_product, which would fuse the multiplication by the slope.
    {"fuse_hard_swish_gradient", needing({"HardSwish"}, fuse_hard_swish_gradient)},
    // After fuse_clip_gradient, whose node this pass replaces.
    {"fuse_batch_normalization_clip", needing({"BatchNormInternal"}, fuse_batch_normalization_clip)},
    // After fuse_batch_normalization_clip, which looks for the gradient of the activation next to its own.
    {"pool_activation_gradients", needing({"MaxPoolGrad"}, pool_activation_gradients)},
    // Before fuse_product: this brings an addend after a transposition next to its product.
    {"fold_transpose", needing({"Transpose"}, fold_transpose)},
    // Models whose artifacts were not made here still have the separate steps of Gelu.
    {"fuse_gelu", needing({"Erf", "Tanh"}, fuse_gelu)},
    // Before products and convolutions are fused with the nodes around them.
    {"fuse_group_normalization", needing({"InstanceNormalization"}, fuse_group_normalization)},
    // Once a convolution has its bias, the node after the addition can be fused with it.
    {"fuse_conv_bias", needing({"Conv"}, fuse_conv_bias)},
    // A normalization between a convolution and its activation must be removed before these are fused.
    {"fuse_conv_batch_normalization", needing({"BatchNormalization"}, fuse_conv_batch_normalization)},
    {"fuse_conv_activation", needing({"Conv"}, fuse_conv_activation)},
    // After the passes that give convolutions their biases and activations.
    {"fuse_separable_conv",
     kDepthwisePart.is_built ? needing({"Conv", "FusedConv"}, fuse_separable_conv) : find_nothing},
    // Before fuse_product, which would fuse the adapters' products with the sum.
    {"fuse_adapter", needing({"MatMulNBits"}, fuse_adapter)},
    {"fuse_product", fuse_product},
    // The order of nodes is decided once the nodes no longer change.
    {"schedule_weight_gradients", schedule_weight_gradients, PassLevel::kExtended,
     "early_parameter_gradients"},
    // Marks the remaining convolutions.
    {"winograd", winograd},
    // Once the nodes that compute gradients are final, since later passes must not change their inputs.
    {"bound_gradients", bound_gradients},
    // After bound_gradients, which looks for the nodes that this pass replaces.
    {"accumulate_rows", needing({"GatherGrad"}, accumulate_rows)},
};

}  // namespace

std::span<const Pass> passes_of(PassPhase phase) {
  return phase == PassPhase::kArtifact ? std::span<const Pass>(kArtifactPasses) : kSessionPasses;
}

}  // namespace ortrain
