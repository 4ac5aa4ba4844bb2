// Matrix products: MatMul, Gemm, com.microsoft FusedMatMul, and FusedProduct, which passes/fuse_product.cpp
// creates from a matrix product and the additions or multiplications that follow the product. Their kernels
// are listed in backend/cpu/implementations.cpp.
#include <algorithm>
#include <numeric>
#include <span>

#include "geometry/matrix_product.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/opset.h"
#include "op/session_domain.h"
#include "op/standard_form.h"
#include "op/sum_of_products.h"
#include "ops/common/decomposed.h"
#include "runtime/broadcast.h"

namespace ortrain {

namespace {

void matmul_shape(ShapeContext& c) { c.output(0, c.dtype(0), product_shape(c)); }

void gemm_shape(ShapeContext& c) {
  c.expect(c.rank(0) == 2 && c.rank(1) == 2, "its operands must be matrices, found ", to_string(c.shape(0)),
           " and ", to_string(c.shape(1)));
  c.expect(c.dtype(0) == c.dtype(1) && (!c.has_input(2) || c.dtype(2) == c.dtype(0)),
           "its inputs must have the same type, found ", to_string(c.dtype(0)), ", ", to_string(c.dtype(1)),
           c.has_input(2) ? " and " + to_string(c.dtype(2)) : "");
  const Product p = read_product(c);
  if (c.has_input(2)) {
    const Shape& bias = c.shape(2);
    const Shape y = {p.m, p.n};
    bool fits = bias.size() <= 2;
    for (size_t i = 0; fits && i < bias.size(); ++i) {
      const int64_t wanted = y[2 - bias.size() + i];
      fits = bias[i] == wanted || bias[i] == 1;
    }
    c.expect(fits, "input C must broadcast to ", to_string(y), ", found ", to_string(bias));
  }
  c.output(0, c.dtype(0), {p.m, p.n});
}

void fused_product_shape(ShapeContext& c) {
  Shape y = product_shape(c);
  for (const TailOperand& operand : read_tail(c)) {
    c.expect(c.dtype(operand.input) == c.dtype(0), "its inputs must have the same type, found ",
             to_string(c.dtype(0)), " and ", to_string(c.dtype(operand.input)));
    y = broadcast(y, c.shape(operand.input));
  }
  c.output(0, c.dtype(0), std::move(y));
}

// -----------------------------------------------------------------------------------------------------------
// Gradients. With Y = alpha op(A) op(B):  d op(A) = alpha dY op(B)ᵀ,  d op(B) = alpha op(A)ᵀ dY.

Attributes flags(bool trans_a, bool trans_b, float alpha) {
  return {{"transA", int64_t{trans_a}}, {"transB", int64_t{trans_b}}, {"alpha", alpha}};
}

// dA and dB of a matrix product, each computed by one operator (Gemm, or FusedMatMul for batches).
struct ProductGradient {
  GradientContext& g;
  const char* type;
  const char* domain;
  Transposes t;
  float alpha;

  Name of_a(Name dy) const {
    return t.a ? g(type, {g.x(1), dy}, flags(t.b, true, alpha), domain)
               : g(type, {dy, g.x(1)}, flags(false, !t.b, alpha), domain);
  }
  Name of_b(Name dy) const {
    return t.b ? g(type, {dy, g.x(0)}, flags(true, t.a, alpha), domain)
               : g(type, {g.x(0), dy}, flags(!t.a, false, alpha), domain);
  }
};

// Sums a gradient with the batch axes of the product over those along which operand i was repeated.
Name sum_batches(GradientContext& g, Name gradient, size_t i) {
  const auto own = g.dims(g.x(i)), other = g.dims(g.x(1 - i));
  if (own && other) {
    bool same = own->size() >= other->size();
    for (size_t k = 3; same && k <= other->size(); ++k)
      same =
          (*own)[own->size() - k].same((*other)[other->size() - k]) || (*other)[other->size() - k].value == 1;
    if (same) return gradient;
  }
  return g.unbroadcast(gradient, gradient, i);
}

// The gradient if an operand has one axis: it is reshaped to a matrix first.
void vector_gradient(GradientContext& g, int64_t a_rank, int64_t b_rank, const Transposes& t, float alpha) {
  const Name dy = g.dy(0);
  if (a_rank == 1 && b_rank == 1) {
    const auto scaled = [&](const Expression& product) {
      return alpha == 1 ? product : product * static_cast<double>(alpha);
    };
    const Expression d(g, dy), a(g, g.x(0)), b(g, g.x(1));
    if (g.needs(0)) g.set(0, scaled(d * b));
    if (g.needs(1)) g.set(1, scaled(d * a));
  } else if (a_rank == 1) {  // [K] x [..., K, N] → [..., N]
    const Name rows = g.unsqueeze(dy, {b_rank - 2});
    if (g.needs(0)) {
      const Name each =
          g("FusedMatMul", {rows, g.x(1)}, flags(false, !t.b, alpha), kMicrosoft);  // [..., 1, K]
      std::vector<int64_t> axes;
      for (int64_t i = 0; i < b_rank - 1; ++i) axes.push_back(i);
      g.set(0, g.reduce_sum(each, axes, false));
    }
    if (g.needs(1)) {
      const Name column = g.unsqueeze(g.x(0), {1});
      g.set(1, t.b ? g("FusedMatMul", {rows, column}, flags(true, true, alpha), kMicrosoft)
                   : g("FusedMatMul", {column, rows}, flags(false, false, alpha), kMicrosoft));
    }
  } else {  // [..., M, K] x [K] → [..., M]
    const Name columns = g.unsqueeze(dy, {a_rank - 1});
    if (g.needs(0)) {
      const Name row = g.unsqueeze(g.x(1), {0});
      g.set(0, t.a ? g("FusedMatMul", {row, columns}, flags(true, true, alpha), kMicrosoft)
                   : g("FusedMatMul", {columns, row}, flags(false, false, alpha), kMicrosoft));
    }
    if (g.needs(1)) {
      const Name each =
          g("FusedMatMul", {g.x(0), columns}, flags(!t.a, false, alpha), kMicrosoft);  // [..., K, 1]
      std::vector<int64_t> axes = {a_rank - 1};
      for (int64_t i = 0; i < a_rank - 2; ++i) axes.push_back(i);
      g.set(1, g.reduce_sum(each, axes, false));
    }
  }
}

// If the batch axes follow the rows, [M, batch..., K], the operand is first transposed to [batch..., M, K],
// and its gradient is transposed back at the end.
void transposed_batch_gradient(GradientContext& g, int64_t a_rank, int64_t b_rank, const Transposes& t,
                               float alpha) {
  const int64_t ranks[] = {a_rank, b_rank};
  const bool transposed[] = {t.a_batch && a_rank > 2, t.b_batch && b_rank > 2};
  std::string operand[2];
  const auto order = [&](int i, bool back) {
    std::vector<int64_t> axes(static_cast<size_t>(ranks[i]));
    std::iota(axes.begin(), axes.end(), 0);
    if (back)
      std::rotate(axes.begin(), axes.end() - 2, axes.end() - 1);
    else
      std::rotate(axes.begin(), axes.begin() + 1, axes.end() - 1);
    return Attributes{{"perm", axes}};
  };
  for (int i = 0; i < 2; ++i)
    operand[i] = transposed[i] ? g("Transpose", {g.x(static_cast<size_t>(i))}, order(i, false))
                               : g.x(static_cast<size_t>(i));
  const auto product = [&](const std::string& x, const std::string& y, bool trans_x, bool trans_y) {
    return g("FusedMatMul", {x, y}, flags(trans_x, trans_y, alpha), kMicrosoft);
  };
  const Name dy = g.dy(0);
  const auto set = [&](int i, const std::string& gradient) {
    const Name own = g.unbroadcast(gradient, gradient, operand[i]);
    g.set(static_cast<size_t>(i), transposed[i] ? g("Transpose", {own}, order(i, true)) : own);
  };
  if (g.needs(0)) set(0, t.a ? product(operand[1], dy, t.b, true) : product(dy, operand[1], false, !t.b));
  if (g.needs(1)) set(1, t.b ? product(dy, operand[0], true, t.a) : product(operand[0], dy, !t.a, false));
}

// The gradients of a product of matrices.
ProductGradient matrix_gradient(GradientContext& g, const Transposes& t, float alpha) {
  if (g.opset() < since::kGemmWithoutC) return {g, "FusedMatMul", kMicrosoft, t, alpha};
  return {g, "Gemm", "", t, alpha};
}

void matmul_gradient(GradientContext& g) {
  const Transposes t = read_transposes(g.node());
  const float alpha = g.node().float_or("alpha", 1);
  const auto a_rank = g.rank(g.x(0)), b_rank = g.rank(g.x(1));
  if (!a_rank || !b_rank)
    g.reject(
        "the ranks of its operands are not known, and the gradient depends on them; run ONNX shape inference "
        "on the "
        "model first");
  if (*a_rank == 1 || *b_rank == 1) return vector_gradient(g, *a_rank, *b_rank, t, alpha);
  if ((t.a_batch && *a_rank > 2) || (t.b_batch && *b_rank > 2))
    return transposed_batch_gradient(g, *a_rank, *b_rank, t, alpha);

  const Name dy = g.dy(0);
  if (*a_rank == 2 && *b_rank == 2) {
    const ProductGradient gradient = matrix_gradient(g, t, alpha);
    if (g.needs(0)) g.set(0, gradient.of_a(dy));
    if (g.needs(1)) g.set(1, gradient.of_b(dy));
    return;
  }
  const ProductGradient gradient{g, "FusedMatMul", kMicrosoft, t, alpha};
  if (g.needs(0)) g.set(0, sum_batches(g, gradient.of_a(dy), 0));
  if (!g.needs(1)) return;
  if (*b_rank == 2 && !t.a) {
    // All batches share the same B, so the sum over them is part of one product.
    const Attributes keep_last = {{"axis", *a_rank - 1}};
    const Name a = g("Flatten", {g.x(0)}, keep_last), d = g("Flatten", {dy}, keep_last);
    const ProductGradient plain = matrix_gradient(g, t, alpha);
    g.set(1, t.b ? g(plain.type, {d, a}, flags(true, false, alpha), plain.domain)
                 : g(plain.type, {a, d}, flags(true, false, alpha), plain.domain));
    return;
  }
  g.set(1, sum_batches(g, gradient.of_b(dy), 1));
}

void gemm_gradient(GradientContext& g) {
  const Name dy = g.dy(0);
  const ProductGradient gradient =
      matrix_gradient(g, read_transposes(g.node()), g.node().float_or("alpha", 1));
  if (g.needs(0)) g.set(0, gradient.of_a(dy));
  if (g.needs(1)) g.set(1, gradient.of_b(dy));
  if (!g.needs(2)) return;
  const float beta = g.node().float_or("beta", 1);
  const Expression d(g, dy);
  g.set(2, g.unbroadcast(beta == 1 ? d : d * static_cast<double>(beta), g.y(0), 2));
}

// -----------------------------------------------------------------------------------------------------------
// FusedMatMul with operators of ONNX.

// The operand, transposed: if `batch`, the first axis (the rows) is moved behind the batch axes; then, if
// `matrix`, the last two axes are swapped.
Name transposed(DecompositionContext& e, Name value, bool matrix, bool batch) {
  const int64_t rank = need_rank(e, value);
  if (rank < 2 || (!matrix && (!batch || rank == 2))) return value;
  std::vector<int64_t> axes(static_cast<size_t>(rank));
  std::iota(axes.begin(), axes.end(), 0);
  if (batch) std::rotate(axes.begin(), axes.begin() + 1, axes.end() - 1);
  if (matrix) std::swap(axes[axes.size() - 2], axes.back());
  return e("Transpose", {value}, {{"perm", axes}});
}

void fused_matmul_form(DecompositionContext& e) {
  const Transposes t = read_transposes(e.node());
  const double alpha = static_cast<double>(e.node().float_or("alpha", 1));
  const Expression product(
      e, e("MatMul", {transposed(e, e.x(0), t.a, t.a_batch), transposed(e, e.x(1), t.b, t.b_batch)}));
  e.set(0, alpha == 1 ? product : product * alpha);
}

// -----------------------------------------------------------------------------------------------------------
// Traits.

// A row of the product needs only the same row of A.
std::optional<InputPositions> matmul_positions(const PositionQuery& q) {
  if (q.rank(0) < 2 || q.rank(1) < 2 || q.axis == q.rank() - 1) return std::nullopt;
  InputPositions found{{-1, -1}};
  if (q.axis == q.rank() - 2)
    found.axes[0] = q.rank(0) - 2;
  else if (!add_broadcast(q, 0, found) || !add_broadcast(q, 1, found))
    return std::nullopt;
  return found;
}

std::optional<InputPositions> gemm_positions(const PositionQuery& q) {
  if (q.axis != 0) return std::nullopt;
  InputPositions found{std::vector<int64_t>(q.inputs.size(), -1)};
  found.axes[0] = q.node.int_or("transA", 0) != 0 ? 1 : 0;
  if (q.has_input(2) && !add_broadcast(q, 2, found)) return std::nullopt;
  return found;
}

// For each element of Y, one multiplication and one addition per element of a row of A.
Operations product_operations(const Node& node, std::span<const Shape* const> inputs, const Shape& y) {
  if (inputs.empty() || !inputs[0] || inputs[0]->empty()) return {};
  const Shape& a = *inputs[0];
  const bool transposed = a.size() > 1 && node.int_or("transA", 0) != 0;
  return {2 * static_cast<double>(element_count(y)) *
          static_cast<double>(a[transposed ? a.size() - 2 : a.size() - 1])};
}

// The rule does not cover FusedProduct with a factor, by which the sum is multiplied.
std::vector<ProductTerm> matmul_terms(const Node& node, size_t) {
  if (node.has_input(kFactor)) return {};
  std::vector<ProductTerm> terms = {{{0, 1}, static_cast<double>(node.float_or("alpha", 1))}};
  for (size_t i = kFirstAddend; i < kFactor; ++i)
    if (node.has_input(i)) terms.push_back({{i}, 1, false});
  return terms;
}

std::vector<ProductTerm> gemm_terms(const Node& node, size_t output) {
  const bool scaled = node.has_input(2) && node.float_or("beta", 1) != 1;
  return scaled ? std::vector<ProductTerm>() : matmul_terms(node, output);
}

ORTRAIN_OPERATOR_FACT(ProductTermsRule, "", "MatMul", matmul_terms);
ORTRAIN_OPERATOR_FACT(ProductTermsRule, kMicrosoft, "FusedMatMul", matmul_terms);
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "FusedMatMul", {cold<fused_matmul_form>});
ORTRAIN_OPERATOR_FACT(ProductTermsRule, "", "Gemm", gemm_terms);
ORTRAIN_OPERATOR_FACT(ProductTermsRule, kSessionDomain, "FusedProduct", matmul_terms);

ORTRAIN_OPERATOR({.type = "MatMul",
                  .rules = {.shape = matmul_shape, .gradient = matmul_gradient},
                  .traits = {
                      .takes_bf16 = true, .positions = matmul_positions, .operations = product_operations}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "FusedMatMul",
                  .signature = "A, B -> Y",
                  .rules = {.shape = matmul_shape, .gradient = matmul_gradient},
                  .traits = {.takes_bf16 = true, .operations = product_operations}});
ORTRAIN_OPERATOR({.type = "Gemm",
                  .rules = {.shape = gemm_shape, .gradient = gemm_gradient},
                  .traits = {
                      .takes_bf16 = true, .positions = gemm_positions, .operations = product_operations}});
ORTRAIN_OPERATOR({.domain = kSessionDomain,
                  .type = "FusedProduct",
                  .signature = "A, B, addend?, second_addend?, factor? -> Y",
                  .rules = {.shape = fused_product_shape},
                  .traits = {.takes_bf16 = true, .operations = product_operations}});

}  // namespace

}  // namespace ortrain
