// AttentionGrad as separate steps, for the derivative of the gradient of attention:
//
//     S = scale Q Kᵀ,  S := cap tanh(S / cap),  S := S + mask,  P = softmax(S)
//     dV = Pᵀ dY,  dP = dY Vᵀ,  dS = P (dP - Σ dP P),  dQ = scale dS K,  dK = scale dSᵀ Q
//
// Keys that a query does not see have weight zero; a query that sees nothing has no weights.
#include <cmath>

#include "op/decomposition.h"
#include "op/gradient_expression.h"
#include "ops/attention/attention_node.h"
#include "ops/common/decomposed.h"

namespace ortrain {
namespace {

constexpr size_t kMask = 4, kLengths = 5, kPastKey = 7, kDropoutKey = 10;

// An operand as [batch, heads, rows, size], and back.
struct Heads {
  DecompositionContext& e;
  Name value;  // in the shape of the input
  int64_t rank, heads, size;

  Heads(DecompositionContext& e, Name value, const char* name)
      : e(e), value(value), rank(need_rank(e, value)), heads(e.node().int_or(name, 0)) {
    const std::vector<Dim> dims = *e.dims(value);
    if (rank == 4) heads = dims[1].value;
    size = dims.back().value;
    if (rank == 3) size = size < 0 || heads < 1 ? -1 : size / heads;
    if (heads < 1 || size < 0)
      e.reject("for its derivative, the heads and the last dimension of \"", value, "\" must be known");
  }
  static Attributes swapped() { return {{"perm", std::vector<int64_t>{0, 2, 1, 3}}}; }

  Expression apart() const {
    if (rank == 4) return {e, value};
    return {e, e("Transpose", {e("Reshape", {value, e.int64s({0, 0, heads, size})})}, swapped())};
  }
  Name together(const Expression& gradient) const {
    if (rank == 4) return gradient;
    return reshape_to(e, e("Transpose", {gradient}, swapped()), e("Shape", {value}));
  }
};

// Which keys a query sees, as determined by positions, lengths and a bool mask; empty: all.
Name seen_keys(DecompositionContext& e, Name scores) {
  const Node& node = e.node();
  Name seen;
  const auto also = [&](Name more) { seen = seen.empty() ? more : e("And", {seen, more}); };
  const auto place = [&](int64_t axis) {
    const Name count = as_scalar(e, dims_of(e, scores, axis, axis + 1));
    return e("Range",
             {e.constant(Tensor::scalar(int64_t{0})), count, e.constant(Tensor::scalar(int64_t{1}))});
  };
  const int64_t left = node.int_or("left_window_size", -1),
                right = node.int_or("is_causal", 0) != 0 ? 0 : node.int_or("right_window_size", -1);
  const Name keys = left >= 0 || right >= 0 || e.has_x(kLengths) ? place(3) : "";
  const Name lengths = e.has_x(kLengths) ? e.unsqueeze(e.x(kLengths), {1, 2, 3}) : "";
  if (left >= 0 || right >= 0) {
    Name queries = e.unsqueeze(place(2), {1});
    if (!lengths.empty()) queries = e("Add", {queries, e("Sub", {lengths, dims_of(e, scores, 2, 3)})});
    if (e.has_x(kPastKey)) queries = e("Add", {queries, dims_of(e, e.x(kPastKey), 2, 3)});
    if (right >= 0) also(e("LessOrEqual", {keys, e("Add", {queries, e.int64s({right})})}));
    if (left >= 0) also(e("GreaterOrEqual", {keys, e("Sub", {queries, e.int64s({left})})}));
  }
  if (!lengths.empty()) also(e("Less", {keys, lengths}));
  if (e.has_x(kMask) && e.dtype(e.x(kMask)) == DType::kBool) also(e.x(kMask));
  return seen;
}

}  // namespace

void decompose_attention_gradient(DecompositionContext& e) {
  const Node& node = e.node();
  if (node.int_or("fused", 0) != 0 || e.has_x(kDropoutKey))
    e.reject("second derivatives of fused attention are not supported");
  const Heads of_q(e, e.x(1), "q_num_heads"), of_k(e, e.x(2), "kv_num_heads"),
      of_v(e, e.x(3), "kv_num_heads");
  if (of_q.heads % of_k.heads != 0 || of_k.heads != of_v.heads)
    e.reject("keys and values must have the same number of heads, a divisor of the ",
             counted(of_q.heads, "head"), " of the queries; found ", of_k.heads, " and ", of_v.heads);
  if (e.has_x(kMask) && node.int_or("padded_mask", 0) != 0) {
    const auto mask = e.dims(e.x(kMask));
    if (!mask || mask->empty() || !mask->back().same((*e.dims(e.x(2)))[of_k.rank == 4 ? 2 : 1]))
      e.reject("for its derivative, the mask must cover all keys");
  }
  // Neighbouring heads of queries share a head of keys: element h of the result is head h / shared.
  const int64_t shared = of_q.heads / of_k.heads;
  const auto repeated = [&](const Expression& x) {
    if (shared == 1) return x;
    std::vector<int64_t> heads;
    for (int64_t h = 0; h < of_q.heads; ++h) heads.push_back(h / shared);
    return Expression(e, e("Gather", {x, e.int64s(heads)}, {{"axis", int64_t{1}}}));
  };
  const auto summed = [&](const Expression& x) {
    if (shared == 1) return x;
    Names parts;
    for (int64_t first = 0; first < shared; ++first) {
      std::vector<int64_t> heads;
      for (int64_t h = first; h < of_q.heads; h += shared) heads.push_back(h);
      parts.push_back(e("Gather", {x, e.int64s(heads)}, {{"axis", int64_t{1}}}));
    }
    return Expression(e, e("Sum", parts));
  };
  const auto across = [&](const Expression& x) {
    return x.call("Transpose", {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
  };

  const Expression q = of_q.apart(), k = repeated(of_k.apart()), v = repeated(of_v.apart());
  // dY is stored like Q, with the size of V.
  Expression dy(e, e.x(0));
  if (of_q.rank == 3)
    dy = Expression(
        e, e("Transpose", {e("Reshape", {dy, e.int64s({0, 0, of_q.heads, of_v.size})})}, Heads::swapped()));
  const float given = node.float_or("scale", 0);
  const double scale =
                   given != 0 ? static_cast<double>(given) : 1 / std::sqrt(static_cast<double>(of_q.size)),
               cap = static_cast<double>(node.float_or("softcap", 0));
  Expression scores = scale * q.call("MatMul", across(k));
  Expression derivative = scores;
  if (cap != 0) {
    const Expression t = (scores / cap).call("Tanh");
    scores = cap * t;
    derivative = 1.0 - t * t;
  }
  const Name seen = seen_keys(e, scores);
  if (e.has_x(kMask) && e.dtype(e.x(kMask)) != DType::kBool) scores = scores + Expression(e, e.x(kMask));
  if (!seen.empty()) scores = Expression(e, seen).choose(scores, scores.number(kUnseen));
  Expression weights = scores.call("Softmax", {{"axis", int64_t{-1}}});
  if (!seen.empty()) weights = weights * Expression(e, seen).as(weights);

  const Expression of_weights = dy.call("MatMul", across(v));
  const Expression total(e, e.reduce_sum(of_weights * weights, {3}, true));
  const Expression of_scores = weights * (of_weights - total);
  const Expression of_product = scale * (cap != 0 ? of_scores * derivative : of_scores);
  if (e.has_y(0)) e.set(0, of_q.together(of_product.call("MatMul", k)));
  if (e.has_y(1)) e.set(1, of_k.together(summed(across(of_product).call("MatMul", q))));
  if (e.has_y(2)) e.set(2, of_v.together(summed(across(weights).call("MatMul", dy))));
  if (e.has_y(3)) e.set(3, of_scores);
}

}  // namespace ortrain
