// LinearAttention: attention that keeps the past as a matrix S [size, v_size] per head of keys, and reads and
// writes the matrix token by token,
//
//     S := e^g S                          with a decay g (rules gated, gated_delta)
//     u  = v, or b (v - Sᵀ k)             with an update rate b (rules delta, gated_delta)
//     S := S + k uᵀ,   o = scale Sᵀ q     for the queries of each head that shares the keys
//
// S. Yang et al., "Gated delta networks", 2025.
#include <cmath>

#include "backend/cpu/attention/linear_attention_kernels.h"

namespace ortrain {
namespace {

constexpr size_t kPast = LinearAttention::kPast, kDecay = LinearAttention::kDecay,
                 kRate = LinearAttention::kRate;

// Query, key, value, past state, decay and rate are inputs `first` to `first` + 5.
LinearAttention read(const NodeContext& c, size_t first) {
  LinearAttention a;
  a.first = first;
  const Node& node = c.node();
  a.heads = node.int_or("q_num_heads", 0), a.kv_heads = node.int_or("kv_num_heads", 0);
  c.expect(a.kv_heads > 0 && a.heads > 0 && a.heads % a.kv_heads == 0,
           "q_num_heads must be a positive multiple of kv_num_heads, found ", a.heads, " and ", a.kv_heads);
  const std::string rule = node.string_or("update_rule", "gated_delta");
  a.gated = rule == "gated" || rule == "gated_delta", a.delta = rule == "delta" || rule == "gated_delta";
  c.expect(a.gated || a.delta || rule == "linear",
           "update_rule must be linear, gated, delta or gated_delta, found '", rule, "'");
  a.dtype = c.dtype(first);
  const Shape &q = c.shape(first), &k = c.shape(first + 1), &v = c.shape(first + 2);
  c.expect(q.size() == 3 && q[2] >= a.heads && q[2] % a.heads == 0, "query must have shape [batch, tokens, ",
           a.heads, " * size], found ", to_string(q));
  a.batch = q[0], a.tokens = q[1], a.size = q[2] / a.heads;
  c.expect(k == Shape{a.batch, a.tokens, a.kv_heads * a.size}, "key must have shape ",
           to_string(Shape{a.batch, a.tokens, a.kv_heads * a.size}), ", found ", to_string(k));
  c.expect(v.size() == 3 && v[0] == a.batch && v[1] == a.tokens && v[2] % a.kv_heads == 0,
           "value must have shape [", a.batch, ", ", a.tokens, ", ", a.kv_heads, " * size], found ",
           to_string(v));
  a.v_size = v[2] / a.kv_heads;
  const float scale = node.float_or("scale", 0);
  a.scale = scale != 0 ? static_cast<double>(scale) : 1 / std::sqrt(static_cast<double>(a.size));
  if (c.has_input(first + kPast)) {
    const Shape state = {a.batch, a.kv_heads, a.size, a.v_size};
    c.expect(c.shape(first + kPast) == state, "past_state must have shape ", to_string(state), ", found ",
             to_string(c.shape(first + kPast)));
  }
  c.expect(c.has_input(first + kDecay) == a.gated, "update_rule ", rule, a.gated ? " needs" : " takes no",
           " decay");
  c.expect(c.has_input(first + kRate) == a.delta, "update_rule ", rule, a.delta ? " needs" : " takes no",
           " beta");
  if (a.gated) {
    const Shape& shape = c.shape(first + kDecay);
    a.decays = shape.size() == 3 && shape[2] == a.kv_heads * a.size ? a.size : 1;
    c.expect(shape == Shape{a.batch, a.tokens, a.kv_heads * a.decays}, "decay must have ", a.kv_heads, " or ",
             counted(a.kv_heads * a.size, "value"), " per token, found shape ", to_string(shape));
  }
  if (a.delta) {
    const Shape& shape = c.shape(first + kRate);
    a.rates = shape.size() == 3 && shape[2] == a.kv_heads ? a.kv_heads : 1;
    c.expect(shape == Shape{a.batch, a.tokens, a.rates}, "beta must have 1 or ", counted(a.kv_heads, "value"),
             " per token, found shape ", to_string(shape));
  }
  for (size_t i = first; i < first + 6; ++i)
    c.expect(!c.has_input(i) || c.dtype(i) == a.dtype, "its inputs must have the same type, found ",
             to_string(a.dtype), " and ", c.has_input(i) ? to_string(c.dtype(i)) : "");
  return a;
}

void shape(ShapeContext& c) {
  const LinearAttention a = read(c, 0);
  c.output(0, a.dtype, {a.batch, a.tokens, a.heads * a.v_size});
  if (c.has_output(1)) c.output(1, a.dtype, {a.batch, a.kv_heads, a.size, a.v_size});
}

void gradient(GradientContext& g) {
  Names inputs = {g.dy(0), g.dy(1)};
  for (size_t i = 0; i <= kRate; ++i) inputs.push_back(g.has_x(i) ? g.x(i) : "");
  while (inputs.back().empty()) inputs.pop_back();
  const Names made = g.emit("LinearAttentionGrad", inputs, kRate + 1, g.node().attributes, kMicrosoft);
  for (size_t i = 0; i < kRate; ++i)
    if (g.has_x(i) && g.needs(i)) g.set(i, made[i]);
  if (g.has_x(kRate) && g.needs(kRate)) g.set(kRate, g.unbroadcast(made[kRate], made[kRate], kRate));
}

ORTRAIN_OPERATOR({.type = "LinearAttention",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = [](KernelContext& c) { return linear_attention(c, read(c, 0)); }}});

// LinearAttentionGrad(dY, dpresent, query, key, value, past, decay, beta) → the gradients of the last six.
// Inputs dY and dpresent may be left out. The gradient of beta is per head.
constexpr size_t kFirst = 2;

void gradient_shape(ShapeContext& c) {
  const LinearAttention a = read(c, kFirst);
  const auto expect = [&](size_t i, const Shape& wanted) {
    c.expect(!c.has_input(i) || c.shape(i) == wanted, "the gradient at input ", i, " must have shape ",
             to_string(wanted), ", found ", c.has_input(i) ? to_string(c.shape(i)) : "");
  };
  const Shape state = {a.batch, a.kv_heads, a.size, a.v_size};
  expect(0, {a.batch, a.tokens, a.heads * a.v_size});
  expect(1, state);
  for (size_t o = 0; o < kRate; ++o)
    if (c.has_output(o))
      c.output(o, a.dtype, o == kPast ? state : c.has_input(kFirst + o) ? c.shape(kFirst + o) : Shape{0});
  if (c.has_output(kRate)) c.output(kRate, a.dtype, {a.batch, a.tokens, a.kv_heads});
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "LinearAttentionGrad",
                  .signature = "dY?, dpresent_state?, query, key, value, past_state?, decay?, beta? -> "
                               "dquery, dkey, dvalue, dpast_state, ddecay, dbeta",
                  .rules = {.shape = gradient_shape},
                  .kernels = {
                      .cpu = [](KernelContext& c) { return linear_attention_grad(c, read(c, kFirst)); }}});

}  // namespace
}  // namespace ortrain
