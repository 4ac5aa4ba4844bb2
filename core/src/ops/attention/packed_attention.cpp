// Attention (com.microsoft), whose operands are products of one input:
//
//     (input, weights, bias, mask_index, past, attention_bias) → output, present
//
//     [Q K V] = input weights + bias,    output = MultiHeadAttention(Q, K, V, …)
//
// past and present each hold the keys, followed by the values. QAttention is the same of a quantized input
// and quantized weights.
#include "op/decomposition.h"
#include "ops/common/decomposed.h"

namespace ortrain {
namespace {

// The inputs of a node besides those of the product.
struct Rest {
  size_t padding, past, score_bias;
};

// The sizes of queries, keys and values, from the columns of the weights if the node does not state them.
std::vector<int64_t> sizes_of(DecompositionContext& e, Name weights) {
  std::vector<int64_t> sizes = e.node().ints_or("qkv_hidden_sizes", {});
  if (sizes.empty()) {
    const auto dims = e.dims(weights);
    const int64_t all = dims && !dims->empty() ? dims->back().value : -1;
    if (all < 0 || all % 3 != 0)
      e.reject("the dimensions of its weights must be known and the last one a multiple of 3, found ", all);
    sizes.assign(3, all / 3);
  }
  if (sizes.size() != 3)
    e.reject("attribute qkv_hidden_sizes must hold three values, found ", to_string(sizes));
  return sizes;
}

// Attention over queries, keys and values next to each other.
void attend(DecompositionContext& e, Name product, Name weights, const Rest& at) {
  const Node& node = e.node();
  if (node.int_or("do_rotary", 0) != 0) e.reject("attribute do_rotary is not supported");
  Names operands = split_last_axis(e, product, sizes_of(e, weights));
  const auto given = [&](size_t i) { return e.has_x(i) ? e.x(i) : ""; };
  operands.insert(operands.end(), {"", given(at.padding), given(at.score_bias)});
  const Attributes first = {{"axis", int64_t{0}}};
  if (e.has_x(at.past))
    for (const int64_t part : {int64_t{0}, int64_t{1}})
      operands.push_back(e("Gather", {e.x(at.past), e.constant(Tensor::scalar(part))}, first));
  Attributes kept;
  for (const char* name : {"num_heads", "unidirectional", "mask_filter_value", "scale"})
    if (const auto found = node.attributes.find(name); found != node.attributes.end()) kept.insert(*found);
  const bool presents = e.has_y(1);
  const Names made = e.emit("MultiHeadAttention", operands, presents ? 3 : 1, kept, kMicrosoft);
  e.set(0, made[0]);
  if (presents) e.set(1, e("Concat", {e.unsqueeze(made[1], {0}), e.unsqueeze(made[2], {0})}, first));
}

void attention(DecompositionContext& e) {
  constexpr size_t kBias = 2, kPastLength = 6;
  if (e.has_x(kPastLength)) e.reject("input past_sequence_length (a shared buffer) is not supported");
  Name product = e("MatMul", {e.x(0), e.x(1)});
  if (e.has_x(kBias)) product = e("Add", {product, e.x(kBias)});
  attend(e, product, e.x(1), {3, 4, 5});
}

// The product is one of integers: input and weights are quantized.
void quantized_attention(DecompositionContext& e) {
  constexpr size_t kBias = 2, kScale = 3, kWeightScale = 4, kZeroPoint = 6, kWeightZeroPoint = 7, kNone = 99;
  const auto given = [&](size_t i) { return e.has_x(i) ? e.x(i) : ""; };
  const Name product = e("MatMulIntegerToFloat",
                         {e.x(0), e.x(1), e.x(kScale), e.x(kWeightScale), given(kZeroPoint),
                          given(kWeightZeroPoint), e.x(kBias)},
                         {}, kMicrosoft);
  attend(e, product, e.x(1), {5, 8, kNone});
}

ORTRAIN_DECOMPOSITION(
    "Attention",
    "input, weights, bias?, mask_index?, past?, attention_bias?, past_sequence_length? -> output, present?",
    attention);
ORTRAIN_DECOMPOSITION("QAttention",
                      "input, weight, bias, input_scale, weight_scale, mask_index?, input_zero_point?, "
                      "weight_zero_point?, past? -> output, present?",
                      quantized_attention);

}  // namespace
}  // namespace ortrain
