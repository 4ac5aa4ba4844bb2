// SparseToDenseMatMul (com.microsoft): the product of a sparse matrix and a dense matrix. Graphs have no
// sparse values, so a session replaces a node of SparseToDenseMatMul with
//
//     Y = SparseProduct(values [n], indices [n, 2], shape [M, K, 0], B)    Y = alpha op(A) op(B)
//
// where `shape` has no elements and states the shape of A. As in onnxruntime, alpha only applies to float.
#include <algorithm>
#include <array>
#include <string>

#include "op/operator.h"
#include "op/session_domain.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

void sparse_shape(ShapeContext& c) {
  c.reject("its input A is a tensor of shape ", to_string(c.shape(0)), ", expected a sparse tensor");
}

struct Product {
  bool transposed_a, transposed_b;
  int64_t rows, inner, columns;

  explicit Product(const NodeContext& c)
      : transposed_a(c.node().int_or("transA", 0) != 0), transposed_b(c.node().int_or("transB", 0) != 0) {
    const Shape &a = c.shape(2), &b = c.shape(3);
    c.expect(a.size() == 3 && b.size() == 2, "its inputs must be matrices, found shapes ", to_string(a),
             " and ", to_string(b));
    rows = a[transposed_a ? 1 : 0];
    inner = a[transposed_a ? 0 : 1];
    columns = b[transposed_b ? 0 : 1];
    c.expect(b[transposed_b ? 1 : 0] == inner, "A has shape ", to_string(Shape{a[0], a[1]}), " and B ",
             to_string(b), ", expected matrices that can be multiplied (transA is ", transposed_a ? 1 : 0,
             ", transB is ", transposed_b ? 1 : 0, ")");
  }
};

void shape(ShapeContext& c) {
  const Product p(c);
  c.expect(c.dtype(3) == c.dtype(0), "A has type ", to_string(c.dtype(0)), " and B ", to_string(c.dtype(3)),
           ", expected the same type");
  c.output(0, c.dtype(0), {p.rows, p.columns});
}

Kernel kernel(KernelContext& c) {
  const Product p(c);
  const int64_t count = c.size(0), width = c.shape(3)[1];
  const std::array<int64_t, 2> a = {c.shape(2)[0], c.shape(2)[1]};
  const Slot values = c.in(0), indices = c.in(1), b = c.in(3), y = c.out(0);
  const float alpha = c.node().float_or("alpha", 1);
  const std::string label = c.node().label();
  Kernel made;
  const bool known =
      visit_types<float, double, int32_t, int64_t, uint32_t, uint64_t>(c.dtype(0), [&](auto zero) {
        using T = decltype(zero);
        made = [=](const Frame& f) {
          const T *v = f.at<const T>(values), *from = f.at<const T>(b);
          const int64_t* at = f.at<const int64_t>(indices);
          T* to = f.at<T>(y);
          for (int64_t i = 0; i < 2 * count; ++i)  // the program may have changed them since the last run
            require(at[i] >= 0 && at[i] < a[i % 2], ErrorCode::kInvalidArgument, label, ": value ", i / 2,
                    " of A is in ", i % 2 == 0 ? "row " : "column ", at[i], ", expected an index in [0, ",
                    a[i % 2], ")");
          // Threads share the columns, because any two values may be in one row.
          parallel_for(p.columns, count + p.rows, [=](int64_t begin, int64_t end) {
            for (int64_t row = 0; row < p.rows; ++row)
              std::fill(to + row * p.columns + begin, to + row * p.columns + end, T{});
            for (int64_t i = 0; i < count; ++i) {
              const int64_t row = at[2 * i + (p.transposed_a ? 1 : 0)],
                            k = at[2 * i + (p.transposed_a ? 0 : 1)];
              T factor = v[i];
              if constexpr (std::is_same_v<T, float>) factor *= alpha;
              T* into = to + row * p.columns;
              for (int64_t j = begin; j < end; ++j)
                into[j] += factor * (p.transposed_b ? from[j * width + k] : from[k * width + j]);
            }
          });
        };
      });
  if (!known) c.reject_dtype(0);
  return made;
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "SparseToDenseMatMul",
                  .signature = "A, B -> Y | alpha: float?, transA: int?, transB: int?",
                  .rules = {.shape = sparse_shape}});
ORTRAIN_OPERATOR({.domain = kSessionDomain,
                  .type = "SparseProduct",
                  .signature = "values, indices, shape, B -> Y | alpha: float?, transA: int?, transB: int?",
                  .rules = {.shape = shape},
                  .kernels = {.cpu = kernel},
                  .made_from = {"SparseToDenseMatMul"}});

}  // namespace
}  // namespace ortrain
