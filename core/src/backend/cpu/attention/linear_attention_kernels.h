// Kernels of LinearAttention: attention whose past is a matrix per head of keys, read and written token by
// token.
#pragma once

#include <cstddef>
#include <cstdint>

#include "op/operator.h"

namespace ortrain {

// The sizes and the rule of a node. Its operands are query, key, value, past state, decay and rate, as
// inputs `first` to `first` + 5.
struct LinearAttention {
  static constexpr size_t kPast = 3, kDecay = 4, kRate = 5;  // behind `first`

  size_t first = 0;
  int64_t batch = 0, tokens = 0, heads = 0, kv_heads = 0, size = 0, v_size = 0;
  double scale = 1;
  bool gated = false, delta = false;
  int64_t decays = 1;  // values per head and token: 1, or one per row of the state
  int64_t rates = 1;   // values per token: 1 for all heads, or one per head
  DType dtype = DType::kFloat;

  int64_t group() const { return heads / kv_heads; }
  int64_t state() const { return size * v_size; }
  // Tokens between two states that the gradient keeps.
  int64_t run() const {
    int64_t n = 1;
    while (n * n < tokens) ++n;
    return n;
  }
};

// query, key, value, past state, decay, rate → Y and, where it is read, the state after the last token.
Kernel linear_attention(KernelContext& c, const LinearAttention& a);
// dY, dpresent and the same six → their gradients. Either of the first two may be left out; the gradient of
// the rate is per head.
Kernel linear_attention_grad(KernelContext& c, const LinearAttention& a);

}  // namespace ortrain
