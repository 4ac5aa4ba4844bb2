// GroupQueryAttention (com.microsoft), which language models for generation contain:
//
//     (query, key, value, past_key, past_value, seqlens_k, total_sequence_length, cos_cache, sin_cache,
//      position_ids, attention_bias, head_sink, k_scale, v_scale, q_norm_weight, k_norm_weight)
//         → output, present_key, present_value
//
// Causal attention, with fewer heads of keys than of queries, an optional window, and an optional
// normalization and rotation of queries and keys. Operands are [batch, positions, heads * size]; without key
// and value, query holds all three along its last axis. seqlens_k + 1 is the number of keys of each sample,
// and total_sequence_length the largest of them.
//
// Without past_key, position i of a text sees the positions up to i, so padding at the end of a text changes
// only the results at the padding. With past_key, the new keys are written behind the earlier keys of each
// sample, into a cache that has room for total_sequence_length keys.
#include "op/decomposition.h"
#include "ops/attention/attention_node.h"
#include "ops/common/decomposed.h"

namespace ortrain {
namespace {

constexpr size_t kKey = 1, kValue = 2, kPastKey = 3, kPastValue = 4, kLengths = 5, kTotal = 6, kCosines = 7,
                 kSines = 8, kPositions = 9, kScoreBias = 10, kSink = 11, kQueryNorm = 14, kKeyNorm = 15,
                 kNewLengths = 16;

struct Heads {
  int64_t queries, keys;
};

Heads heads_of(DecompositionContext& e) {
  const int64_t queries = e.node().int_or("num_heads", 0), keys = e.node().int_or("kv_num_heads", 0);
  if (queries < 1 || keys < 1 || queries % keys != 0)
    e.reject("kv_num_heads must divide num_heads, found ", keys, " and ", queries);
  return {queries, keys};
}

void reject_what_is_not_supported(DecompositionContext& e) {
  if (e.has_x(kSink) || e.node().int_or("smooth_softmax", 0) > 0)
    e.reject("input head_sink and attribute smooth_softmax are not supported");
  if (e.has_x(12) || e.has_x(13))
    e.reject("inputs k_scale and v_scale (a quantized cache) are not supported");
  if (e.has_x(kNewLengths)) e.reject("input query_seqlens is not supported");
  if (e.node().int_or("causal", 1) == 0) e.reject("attribute causal must be 1, found 0");
  if (e.has_x(kPastKey) && e.node().int_or("sliding_window_cache", 0) != 0)
    e.reject("attribute sliding_window_cache (a cache of the size of the window) is not supported");
  if (e.has_y(3)) e.reject("output output_qk is not supported");
  if (e.has_x(kKey) != e.has_x(kValue)) e.reject("inputs key and value must be given together");
  if (e.has_x(kQueryNorm) != e.has_x(kKeyNorm))
    e.reject("inputs q_norm_weight and k_norm_weight must be given together");
  if (e.has_x(kPastKey) != e.has_x(kPastValue))
    e.reject("inputs past_key and past_value must be given together");
}

// Queries, keys and values, [batch, positions, heads * size].
Names operands_of(DecompositionContext& e, const Heads& heads) {
  if (e.has_x(kKey)) return {e.x(0), e.x(kKey), e.x(kValue)};
  const auto dims = e.dims(e.x(0));
  const int64_t all = dims && !dims->empty() ? dims->back().value : -1,
                parts = heads.queries + 2 * heads.keys;
  if (all < 1 || all % parts != 0)
    e.reject(
        "the last dimension of query, which holds queries, keys and values, must be known and a multiple of ",
        parts, ", found ", all);
  const int64_t size = all / parts;
  return split_last_axis(e, e.x(0), {heads.queries * size, heads.keys * size, heads.keys * size});
}

Name as_int64(DecompositionContext& e, Name value) {
  return e("Cast", {value}, {{"to", static_cast<int64_t>(DType::kInt64)}});
}

// 0 to count - 1, for a count of shape [1].
Name up_to(DecompositionContext& e, Name count) {
  return e("Range", {e.constant(Tensor::scalar(int64_t{0})), as_scalar(e, count),
                     e.constant(Tensor::scalar(int64_t{1}))});
}

// The position of the first new token of each sample, [batch]. It is 0 where a text begins, also if texts
// shorter than the longest one are padded.
Name first_positions(DecompositionContext& e) {
  const Name added = dims_of(e, e.x(0), 1, 2);
  const Name begins = e("Equal", {as_int64(e, e("Reshape", {e.x(kTotal), e.int64s({1})})), added});
  const Name lengths = as_int64(e, e("Reshape", {e.x(kLengths), e.int64s({-1})}));
  return e("Where", {begins, e.int64s({0}), e("Add", {e("Sub", {lengths, added}), e.int64s({1})})});
}

// The positions of the new tokens, [batch, positions]; `first` is empty if all texts begin.
Name positions_of(DecompositionContext& e, Name first) {
  const Name along = up_to(e, dims_of(e, e.x(0), 1, 2));
  return first.empty() ? e("Expand", {along, dims_of(e, e.x(0), 0, 2)})
                       : e("Add", {e.unsqueeze(first, {1}), along});
}

// Each head divided by its root mean square, times a weight.
Name normalized(DecompositionContext& e, Name x, int64_t heads, size_t weight, const char* epsilon) {
  const Node& node = e.node();
  const Name apart = e("Reshape", {x, e.int64s({0, 0, heads, -1})});
  const Name y = e(
      "SimplifiedLayerNormalization", {apart, e.x(weight)},
      {{"axis", int64_t{-1}}, {"epsilon", node.float_or(epsilon, node.float_or("qk_norm_epsilon", 1e-6f))}});
  return e("Reshape", {y, e("Shape", {x})});
}

Name rotated(DecompositionContext& e, Name x, int64_t heads, Name positions) {
  const auto cache = e.dims(e.x(kCosines));
  if (!cache || cache->size() != 2 || !cache->back().known())
    e.reject("the dimensions of cos_cache must be known; run ONNX shape inference on the model first");
  const Name at = e.has_x(kPositions) ? e.x(kPositions) : positions;
  return e("RotaryEmbedding", {x, e.x(kCosines), e.x(kSines), at},
           {{"num_heads", heads},
            {"rotary_embedding_dim", 2 * cache->back().value},
            {"interleaved", e.node().int_or("rotary_interleaved", 0)}});
}

Name by_heads(DecompositionContext& e, Name x, int64_t heads) {
  const Name apart = e("Reshape", {x, e.int64s({0, 0, heads, -1})});
  return e("Transpose", {apart}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
}

// The keys or values of a cache and the new ones, [batch, heads, keys, size].
Name appended(DecompositionContext& e, Name past, Name added, int64_t heads, Name first) {
  const Name total = as_int64(e, e("Reshape", {e.x(kTotal), e.int64s({1})}));
  const Name more = e("Sub", {total, dims_of(e, past, 2, 3)});
  const Name room = e("Mul", {more, as_int64(e, e("Greater", {more, e.int64s({0})}))});
  const Name pads = e("Concat", {e.int64s({0, 0, 0, 0, 0, 0}), room, e.int64s({0})}, {{"axis", int64_t{0}}});
  return e("TensorScatter", {e("Pad", {past, pads}), by_heads(e, added, heads), first});
}

// What is added to the scores of keys in a cache, [batch or 1, heads or 1, positions, keys].
Name mask_of(DecompositionContext& e, Name keys, Name positions, int64_t window) {
  const Name queries = e.unsqueeze(positions, {1, 3}), places = up_to(e, dims_of(e, keys, 2, 3));
  Name seen = e("LessOrEqual", {places, queries});
  if (window >= 0)
    seen = e("And", {seen, e("GreaterOrEqual", {places, e("Sub", {queries, e.int64s({window})})})});
  const Name bias = e.has_x(kScoreBias) ? e.x(kScoreBias) : e.scalar_like(e.x(0), 0);
  return e("Where", {seen, bias, e.scalar_like(e.x(0), kUnseen)});
}

void decompose(DecompositionContext& e) {
  reject_what_is_not_supported(e);
  const Node& node = e.node();
  const Heads heads = heads_of(e);
  const bool joins = e.has_x(kPastKey);
  Names x = operands_of(e, heads);
  const Name first = joins ? first_positions(e) : "";
  const bool rotates = node.int_or("do_rotary", 0) != 0;
  const Name positions = joins || (rotates && !e.has_x(kPositions)) ? positions_of(e, first) : "";
  if (e.has_x(kQueryNorm)) {
    x[0] = normalized(e, x[0], heads.queries, kQueryNorm, "q_norm_epsilon");
    x[1] = normalized(e, x[1], heads.keys, kKeyNorm, "k_norm_epsilon");
  }
  if (rotates) {
    if (!e.has_x(kCosines) || !e.has_x(kSines)) e.reject("do_rotary requires inputs cos_cache and sin_cache");
    x[0] = rotated(e, x[0], heads.queries, positions);
    x[1] = rotated(e, x[1], heads.keys, positions);
  }
  for (const size_t i : {size_t{1}, size_t{2}}) {
    if (joins) x[i] = appended(e, e.x(i == 1 ? kPastKey : kPastValue), x[i], heads.keys, first);
    if (e.has_y(i)) e.set(i, joins ? x[i] : by_heads(e, x[i], heads.keys));
  }

  // The window counts the token itself, and left_window_size only the tokens before it.
  const int64_t window = node.int_or("local_window_size", -1) - 1;
  Attributes attributes = {{"q_num_heads", heads.queries},
                           {"kv_num_heads", heads.keys},
                           {"scale", node.float_or("scale", 0)},
                           {"softcap", node.float_or("softcap", 0)}};
  if (!joins) {
    attributes["is_causal"] = int64_t{1};
    if (window >= 0) attributes["left_window_size"] = window;
  }
  if (joins)
    x.push_back(mask_of(e, x[1], positions, window));
  else if (e.has_x(kScoreBias))
    x.push_back(e.x(kScoreBias));
  e.set(0, e("Attention", x, attributes));
}

ORTRAIN_DECOMPOSITION(
    "GroupQueryAttention",
    "query, key?, value?, past_key?, past_value?, seqlens_k, total_sequence_length, cos_cache?, "
    "sin_cache?, position_ids?, attention_bias?, head_sink?, k_scale?, v_scale?, q_norm_weight?, "
    "k_norm_weight?, query_seqlens? -> output, "
    "present_key?, present_value?, output_qk?",
    decompose);

}  // namespace
}  // namespace ortrain
