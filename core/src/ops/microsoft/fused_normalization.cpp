// Normalizations fused with the operators before or after them (com.microsoft): SkipLayerNormalization,
// SkipSimplifiedLayerNormalization, EmbedLayerNormalization, GroupNorm, SkipGroupNorm; and
// InvertibleLayerNormalizationGrad.
#include "op/decomposition.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "ops/common/decomposed.h"

namespace ortrain {
namespace {

constexpr float kEpsilon = 1e-12f;

Attributes over_last_axis(const Node& node) {
  return {{"axis", int64_t{-1}}, {"epsilon", node.float_or("epsilon", kEpsilon)}};
}

// The sum that is normalized: X + skip, + bias (input b) if there is one.
Name skip_sum(DecompositionContext& e, size_t b) {
  const Name sum = e("Add", {e.x(0), e.x(1)});
  return e.has_x(b) ? e("Add", {sum, e.x(b)}) : sum;
}

// norm(X + skip + bias); mean, 1 / standard deviation, and the sum
void skip_layer_normalization(DecompositionContext& e) {
  const Name sum = skip_sum(e, 4);
  const auto y =
      e.emit("LayerNormalization", {sum, e.x(2), e.has_x(3) ? e.x(3) : ""}, 3, over_last_axis(e.node()));
  for (size_t o = 0; o < 3; ++o) e.set(o, y[o]);
  e.set(3, sum);
}

void skip_simplified_layer_normalization(DecompositionContext& e) {
  const Name sum = skip_sum(e, 3);
  const auto y = e.emit("SimplifiedLayerNormalization", {sum, e.x(2)}, 2, over_last_axis(e.node()));
  e.set(0, y[0]);
  e.set(2, y[1]);
  e.set(3, sum);
}

// norm(words[ids] + positions[position] + segments[segment]); without an input for position, position counts
// from 0. Output 1 is the number of positions per row that the mask leaves, output 2 the sum.
void embed_layer_normalization(DecompositionContext& e) {
  const std::string &ids = e.x(0), &words = e.x(2), &positions = e.x(3);
  const Name word = e("Gather", {words, ids});
  const Name position = e.has_x(8)
                            ? e("Gather", {positions, e.x(8)})
                            : e("Slice", {positions, e.int64s({0}), dims_of(e, ids, 1, 2), e.int64s({0})});
  Name sum = e("Add", {word, position});
  e.state_like(sum, word);
  if (e.has_x(4) != e.has_x(1))
    e.reject("segment_ids and segment_embedding must be given together, found one of them");
  if (e.has_x(4)) sum = e("Add", {sum, e("Gather", {e.x(4), e.x(1)})});
  e.set(0, e("LayerNormalization", {sum, e.x(5), e.x(6)}, over_last_axis(e.node())));
  if (e.has_y(1)) {
    const Name mask = e.has_x(7) ? e.x(7) : e("Sub", {ids, ids});
    e.set(1, e.reduce_sum(mask, {1}, false));
  }
  e.set(2, sum);
}

// X or, with `Skips`, the sum of X, skip and bias, normalized over groups of channels, with a scale and a
// shift for each channel; then x sigmoid(x) if activation is 1.
template <bool Skips>
void group_norm(DecompositionContext& e) {
  const int64_t groups = e.node().int_or("groups", 0), activation = e.node().int_or("activation", 0);
  if (groups < 1) e.reject("groups must be 1 or more, found ", groups);
  if (activation != 0 && activation != 1)
    e.reject("activation must be 0 (none) or 1 (x sigmoid(x)), found ", activation);
  const bool last = e.node().int_or("channels_last", 1) != 0;
  const int64_t rank = need_rank(e, e.x(0));
  Name sum = e.x(0);
  // One value per channel, shaped to broadcast over X.
  const auto of_channel = [&](Name value) {
    std::vector<int64_t> behind;
    for (int64_t i = 1; !last && i < rank - 1; ++i) behind.push_back(i);
    const Name typed = cast_like(e, value, e.x(0));
    return Expression(e, behind.empty() ? typed : e.unsqueeze(typed, behind));
  };
  if (Skips) {
    sum = e("Add", {sum, e.x(3)});
    if (e.has_x(4)) sum = e("Add", {sum, of_channel(e.x(4))});
    e.set(1, sum);
  }
  const Name first = last ? channels_first(e, sum) : sum;
  const Name grouped = e("Reshape", {first, e.int64s({0, groups, -1})});
  const auto each_group = [&](double value) {
    return e("Expand", {e.scalar_like(e.x(0), value), e.int64s({groups})});
  };
  const Name normal = e("InstanceNormalization", {grouped, each_group(1), each_group(0)},
                        {{"epsilon", e.node().float_or("epsilon", 1e-5f)}});
  Name y = reshape_to(e, normal, e("Shape", {first}));
  if (last) y = channels_last(e, y, rank);
  const Expression z = Expression(e, y) * of_channel(e.x(1)) + of_channel(e.x(2));
  e.set(0, activation ? z * z.call("Sigmoid") : z);
}

// The gradient of LayerNormalization from its output. The normalized values n = (Y - bias) / scale are also
// the normalized values of n / inv_std, whose mean is 0, so the gradient is computed with X = n / inv_std.
void invertible_layer_normalization_gradient(DecompositionContext& e) {
  const Expression y(e, e.x(1)), scale(e, e.x(2)), bias(e, e.x(3)), inv_std(e, e.x(4));
  const Expression x = Expression(e, cast_like(e, (y - bias) / scale, inv_std)) / inv_std;
  const auto gradients =
      e.emit("LayerNormalizationGrad", {e.x(0), cast_like(e, x, e.x(0)), e.x(2), inv_std - inv_std, e.x(4)},
             3, {{"axis", e.node().int_or("axis", -1)}}, kMicrosoft);
  for (size_t o = 0; o < 3; ++o) e.set(o, gradients[o]);
}

ORTRAIN_DECOMPOSITION("SkipLayerNormalization",
                      "input, skip, gamma, beta?, bias? -> output, mean?, inv_std_var?, input_skip_bias_sum?",
                      skip_layer_normalization);
ORTRAIN_DECOMPOSITION("SkipSimplifiedLayerNormalization",
                      "input, skip, gamma, bias? -> output, mean?, inv_std_var?, input_skip_bias_sum?",
                      skip_simplified_layer_normalization);
ORTRAIN_DECOMPOSITION("EmbedLayerNormalization",
                      "input_ids, segment_ids?, word_embedding, position_embedding, segment_embedding?, "
                      "gamma, beta, mask?, position_ids? -> output, mask_index?, embedding_sum?",
                      embed_layer_normalization);
ORTRAIN_DECOMPOSITION("GroupNorm", "X, gamma, beta -> Y", group_norm<false>);
ORTRAIN_DECOMPOSITION("SkipGroupNorm", "X, gamma, beta, skip, bias? -> Y, S?", group_norm<true>);
ORTRAIN_DECOMPOSITION("InvertibleLayerNormalizationGrad",
                      "Y_grad, Y, scale, bias, inv_std_var -> X_grad, scale_grad, bias_grad",
                      invertible_layer_normalization_gradient);

}  // namespace
}  // namespace ortrain
