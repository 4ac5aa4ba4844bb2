// Matrix products: how operands are read, and the operations that FusedProduct applies to the product.
#pragma once

#include <vector>

#include "op/operator.h"

namespace ortrain {

// A batch of products Y[b] = A[b] B[b]: every operand is read through strides, in elements; a stride of 0
// along a batch axis repeats the operand. Y is row-major.
struct Product {
  int64_t m = 1, n = 1, k = 1;
  Shape batch;
  std::vector<int64_t> a_batch, b_batch;
  int64_t a_row = 0, a_column = 0, b_row = 0, b_column = 0;

  int64_t batches() const { return element_count(batch); }
  int64_t work() const { return batches() * m * n * k; }
};

struct Transposes {
  bool a = false, b = false, a_batch = false, b_batch = false;
};

// The flags of FusedMatMul and Gemm; MatMul has none. Flags of operands of rank 1 are ignored. transBatch:
// the first axis moves after the batch axes, so [M, batch..., K] is read as [batch..., M, K]; trans: then the
// last two axes are swapped.
Transposes read_transposes(const Node& node);
// The product of inputs 0 and 1. Rejects shapes that do not fit.
Product read_product(const NodeContext& c);
// The shape of op(A) op(B).
Shape product_shape(const NodeContext& c);

// FusedProduct adds its inputs 2 and 3 to the product Y, and multiplies the sum by its input 4.
constexpr size_t kFirstAddend = 2, kFactor = 4;
struct TailOperand {
  size_t input;
  bool row;   // one element per column, for all rows
  bool full;  // one element per element of Y; neither: broadcast in some other way
};

std::vector<TailOperand> read_tail(const NodeContext& c);

}  // namespace ortrain
