// Attention (com.microsoft), whose operands are products of one input:
//
//     (input, weights, bias, mask_index, past, attention_bias) → output, present
//
//     [Q K V] = input weights + bias,    output = MultiHeadAttention(Q, K, V, …)
//
// past and present each hold the keys, followed by the values.
#include "op/decomposition.h"
#include "ops/common/decomposed.h"

namespace ortrain {
namespace {

constexpr size_t kBias = 2, kPadding = 3, kPast = 4, kScoreBias = 5, kPastLength = 6;

void decompose(DecompositionContext& e) {
  const Node& node = e.node();
  if (e.has_x(kPastLength)) e.reject("input past_sequence_length (a shared buffer) is not supported");
  if (node.int_or("do_rotary", 0) != 0) e.reject("attribute do_rotary is not supported");
  Name product = e("MatMul", {e.x(0), e.x(1)});
  if (e.has_x(kBias)) product = e("Add", {product, e.x(kBias)});

  std::vector<int64_t> sizes = node.ints_or("qkv_hidden_sizes", {});
  if (sizes.empty()) {
    const auto dims = e.dims(e.x(1));
    const int64_t all = dims && !dims->empty() ? dims->back().value : -1;
    if (all < 0 || all % 3 != 0)
      e.reject("the dimensions of its weights must be known and the last one a multiple of 3, found ", all);
    sizes.assign(3, all / 3);
  }
  if (sizes.size() != 3)
    e.reject("attribute qkv_hidden_sizes must hold three values, found ", to_string(sizes));
  Names operands = split_last_axis(e, product, sizes);

  const auto given = [&](size_t i) { return e.has_x(i) ? e.x(i) : ""; };
  operands.insert(operands.end(), {"", given(kPadding), given(kScoreBias)});
  const Attributes first = {{"axis", int64_t{0}}};
  if (e.has_x(kPast))
    for (const int64_t part : {int64_t{0}, int64_t{1}})
      operands.push_back(e("Gather", {e.x(kPast), e.constant(Tensor::scalar(part))}, first));
  Attributes kept;
  for (const char* name : {"num_heads", "unidirectional", "mask_filter_value", "scale"})
    if (const auto at = node.attributes.find(name); at != node.attributes.end()) kept.insert(*at);
  const bool presents = e.has_y(1);
  const Names made = e.emit("MultiHeadAttention", operands, presents ? 3 : 1, kept, kMicrosoft);
  e.set(0, made[0]);
  if (presents) e.set(1, e("Concat", {e.unsqueeze(made[1], {0}), e.unsqueeze(made[2], {0})}, first));
}

ORTRAIN_DECOMPOSITION(
    "Attention",
    "input, weights, bias?, mask_index?, past?, attention_bias?, past_sequence_length? -> output, present?",
    decompose);

}  // namespace
}  // namespace ortrain
