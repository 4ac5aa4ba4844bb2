// How attention nodes describe their operands and settings, for the operators that are based on
// backend/cpu/attention/attention_kernel.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention_kernel.h"
#include "op/operator.h"

namespace ortrain {

// An operand as [batch, heads, rows, size], whatever the rank and the order in which it is stored in memory.
struct HeadsView {
  int64_t batch = 1, heads = 1, rows = 0, size = 0;
  HeadSteps steps;
};

// A value of shape [batch, rows, heads * size] or [batch, heads, rows, size]; `count` is the number of heads,
// the attribute `name` of the node, which a value of the first shape needs.
HeadsView heads_of(const NodeContext& c, const Shape& shape, const char* what, const char* name,
                   int64_t count);

// Queries, keys and values as one attention; reads scale (1/sqrt(size) if it is 0), softcap, is_causal,
// left_window_size, right_window_size and softmax_precision.
Attention read_attention(const NodeContext& c, const HeadsView& q, const HeadsView& k, const HeadsView& v);

// The mask at input i, bool or of the type of the scores, which broadcasts to [batch, heads, queries, keys].
// If `padded`, the last dimension of the mask may be smaller; queries do not see keys beyond the mask.
void read_mask(const NodeContext& c, size_t i, bool padded, Attention& a);

// Input i as the number of keys of each sample: int64 [batch].
void expect_lengths(const NodeContext& c, size_t i, const Attention& a);
void check_lengths(const std::string& label, const int64_t* lengths, const Attention& a);

// A kernel of attention: fills in the operands of a run.
Kernel attention_kernel(KernelContext& c, const Attention& a,
                        std::function<AttentionForward(const Frame&)> operands);

// Splits the gradient of keys or values [batch, heads, past + new, size] into the gradient of the past keys
// or values, input `past`, and the gradient of the new ones.
Names split_past(GradientContext& g, Name gradient, Name past);

// A score whose weight is 0 beside any other score.
inline constexpr double kUnseen = -1e30;

// AttentionGrad as separate steps (ops/attention/attention_decomposition.cpp).
void decompose_attention_gradient(DecompositionContext& e);

}  // namespace ortrain
