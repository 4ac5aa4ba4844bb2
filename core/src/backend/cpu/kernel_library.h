// The functions that the CPU's kernels take from a library, if this build has one
// (backend/cpu/implementations.cpp).
#pragma once

#include <cstdint>

#include "backend/cpu/bf16_products.h"
#include "backend/cpu/matmul/portable_matmul.h"
#include "op/operator.h"

namespace ortrain {

struct KernelLibrary {
  const char* name;
  // Layouts in bfloat16: row-major, and in the order in which input i is stored.
  LayoutPtr (*bf16_row_major)(const Shape& shape);
  LayoutPtr (*bf16_layout)(const KernelContext& c, size_t i);
  Bf16Products (*bf16_products)();
  // y = alpha a b + beta y on this thread (backend/cpu/matmul/product.h). Returns false if it cannot.
  bool (*product)(int64_t m, int64_t n, int64_t k, float alpha, MatrixView<const float> a,
                  MatrixView<const float> b, float beta, float* y, int64_t y_row);
};

// The library of this build; null if it has none.
const KernelLibrary* kernel_library();

// The order in which a node with weights (Traits::weights) of shape `w` needs them, in float; null:
// row-major. It is that of the forward pass and of the gradient for an X of common dimensions. For others the
// node may need another order, and converts the weights as it does row-major ones. An order that needs
// padding is never proposed.
LayoutPtr weights_order(const Node& node, const Shape& w);

}  // namespace ortrain
