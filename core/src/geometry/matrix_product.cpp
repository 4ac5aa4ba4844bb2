#include "geometry/matrix_product.h"

#include <algorithm>
#include <utility>

namespace ortrain {
namespace {

// One operand as rows x columns after the batch axes, with transpositions undone.
struct Operand {
  Shape batch;
  std::vector<int64_t> batch_strides;
  int64_t rows, columns, row_stride, column_stride;
};

// transBatch: the first axis moves after the batch axes, so [M, batch..., K] is read as [batch..., M, K];
// trans: then the last two axes are swapped. Operands of rank 1 are a row on the left, a column on the right.
Operand read_operand(const Shape& shape, bool left, bool trans, bool trans_batch) {
  std::vector<int64_t> strides = strides_of(shape);
  if (shape.size() == 1)
    return left ? Operand{{}, {}, 1, shape[0], shape[0], 1} : Operand{{}, {}, shape[0], 1, 1, 1};
  Shape dims = shape;
  if (trans_batch && shape.size() > 2) {
    std::rotate(dims.begin(), dims.begin() + 1, dims.end() - 1);
    std::rotate(strides.begin(), strides.begin() + 1, strides.end() - 1);
  }
  const size_t r = dims.size();
  Operand out{{dims.begin(), dims.end() - 2},
              {strides.begin(), strides.end() - 2},
              dims[r - 2],
              dims[r - 1],
              strides[r - 2],
              strides[r - 1]};
  if (trans) {
    std::swap(out.rows, out.columns);
    std::swap(out.row_stride, out.column_stride);
  }
  return out;
}

}  // namespace

Transposes read_transposes(const Node& node) {
  return {node.int_or("transA", 0) != 0, node.int_or("transB", 0) != 0, node.int_or("transBatchA", 0) != 0,
          node.int_or("transBatchB", 0) != 0};
}

Product read_product(const NodeContext& c) {
  const Shape &a_shape = c.shape(0), &b_shape = c.shape(1);
  c.expect(!a_shape.empty() && !b_shape.empty(), "its operands must have at least one axis, found ",
           to_string(a_shape), " and ", to_string(b_shape));
  const Transposes t = read_transposes(c.node());
  const Operand a = read_operand(a_shape, true, t.a, t.a_batch),
                b = read_operand(b_shape, false, t.b, t.b_batch);
  c.expect(a.columns == b.rows, "inner dimensions differ: the left operand ", to_string(a_shape), " has ",
           counted(a.columns, "column"), t.a ? " (transposed)" : "", ", the right operand ",
           to_string(b_shape), " has ", counted(b.rows, "row"), t.b ? " (transposed)" : "");
  Product p;
  p.m = a.rows, p.n = b.columns, p.k = a.columns;
  p.a_row = a.row_stride, p.a_column = a.column_stride, p.b_row = b.row_stride, p.b_column = b.column_stride;
  const size_t rank = std::max(a.batch.size(), b.batch.size());
  p.batch.resize(rank), p.a_batch.assign(rank, 0), p.b_batch.assign(rank, 0);
  for (size_t i = 0; i < rank; ++i) {
    const size_t at = rank - 1 - i;
    const bool in_a = i < a.batch.size(), in_b = i < b.batch.size();
    const int64_t x = in_a ? a.batch[a.batch.size() - 1 - i] : 1,
                  y = in_b ? b.batch[b.batch.size() - 1 - i] : 1;
    c.expect(x == y || x == 1 || y == 1, "batch axes of ", to_string(a_shape), " and ", to_string(b_shape),
             " do not broadcast: dimensions ", x, " and ", y, " differ and neither is 1");
    p.batch[at] = x == 1 ? y : x;
    if (in_a && x != 1) p.a_batch[at] = a.batch_strides[a.batch.size() - 1 - i];
    if (in_b && y != 1) p.b_batch[at] = b.batch_strides[b.batch.size() - 1 - i];
  }
  return p;
}

Shape product_shape(const NodeContext& c) {
  c.expect(c.dtype(0) == c.dtype(1), "its operands must have the same type, found ", to_string(c.dtype(0)),
           " and ", to_string(c.dtype(1)));
  const Product p = read_product(c);
  Shape y = p.batch;
  if (c.rank(0) > 1) y.push_back(p.m);
  if (c.rank(1) > 1) y.push_back(p.n);
  return y;
}

std::vector<TailOperand> read_tail(const NodeContext& c) {
  std::vector<TailOperand> tail;
  const Shape y = product_shape(c);
  for (size_t i = kFirstAddend; i <= kFactor; ++i) {
    if (!c.has_input(i)) continue;
    const Shape& shape = c.shape(i);
    const bool row = !y.empty() && !shape.empty() && shape.back() == y.back() && c.size(i) == y.back() &&
                     shape.size() <= y.size();
    tail.push_back({i, row && shape != y, shape == y});
  }
  return tail;
}

}  // namespace ortrain
