// Scaled dot-product attention and its gradient, one head at a time. Nothing of size queries x keys is
// stored.
//
//     S = scale Q Kᵀ,  S := cap tanh(S / cap),  S := S + mask,  P = softmax(S),  Y = drop(P) V
//
// A. Vaswani et al., "Attention is all you need", 2017. Queries are processed in blocks whose scores stay in
// the second-level cache, as in T. Dao et al., "FlashAttention", 2022; a block sees all of its keys, so the
// softmax is exact. The backward pass recomputes the probabilities of a block. Keys at the ends that a mask
// hides from all queries of a block are left out, so that a causal mask costs as little as the attribute for
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "runtime/dtype.h"

namespace ortrain {

// How an operand [batch, heads, rows, size] is stored in memory: steps in elements. Elements of a row are
// neighbours.
struct HeadSteps {
  int64_t batch = 0, head = 0, row = 0;
};

// The steps of a row-major [batch, heads, rows, size].
inline HeadSteps heads_first(int64_t heads, int64_t rows, int64_t size) {
  return {heads * rows * size, rows * size, size};
}
// The steps of a row-major [batch, rows, heads, size].
inline HeadSteps rows_first(int64_t heads, int64_t rows, int64_t size) {
  return {heads * rows * size, size, heads * size};
}

enum class AttentionMask {
  kNone,
  kAdded,  // values of the type of the scores, added to them
  kBool,   // false: the score is replaced
};

struct Attention {
  DType dtype = DType::kFloat;  // float or double
  int64_t batch = 1, heads = 1, kv_heads = 1, queries = 0, keys = 0, size = 0, v_size = 0;
  HeadSteps q, k, v, y;
  double scale = 1;
  double cap = 0;  // of the scores; 0: none
  // Query i is at position i + offset among the keys and sees those from `left` before it to `right` after
  // it; -1: no bound. If the lengths of the batch are given, keys beyond them are not seen.
  int64_t left = -1, right = -1, offset = 0;
  bool offset_by_length = false;  // offset = length - queries
  AttentionMask mask = AttentionMask::kNone;
  int64_t mask_batch = 0, mask_head = 0, mask_query = 0, mask_key = 0;  // steps, in elements
  int64_t mask_keys = 0;                                                // keys after these are not seen
  bool inverted_mask = false;                                           // of bool: true replaces the score
  double replaced = -std::numeric_limits<double>::infinity();  // the score where a bool mask is false
  bool double_softmax = false;                                 // of scores in float
  bool pairs = false;  // float operands of products are rounded to bfloat16; sums and softmax are in float
};

// Dropout of the probabilities: element p of [batch, heads, queries, keys] is kept as Dropout keeps element
// p.
struct AttentionDropout {
  double ratio = 0;
  uint64_t key = 0, high = 0;  // of the random numbers
};

// Which of the intermediate values is output, as [batch, heads, queries, keys]: those of ONNX's
// qk_matmul_output_mode.
enum class AttentionScores { kProduct = 0, kCapped = 1, kMasked = 2, kProbabilities = 3 };

struct AttentionForward {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *mask = nullptr;
  const int64_t* lengths = nullptr;
  AttentionDropout dropout;
  void* y = nullptr;
  AttentionScores shown = AttentionScores::kProduct;
  void* scores = nullptr;  // null: not needed
};

struct AttentionBackward {
  const void *dy = nullptr, *q = nullptr, *k = nullptr, *v = nullptr, *mask = nullptr;
  const int64_t* lengths = nullptr;
  AttentionDropout dropout;
  const void* probabilities = nullptr;  // of the forward pass, before dropout, if they were kept
  // In the order of q, k and v. Null: not needed.
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  void* dmask = nullptr;  // [batch, heads, queries, mask_keys]
};

// Whether this processor and its kernels have an instruction for Attention::pairs.
bool attention_takes_pairs();

// Bytes of memory that a run needs besides its operands. `threads` may differ from the number of threads in a
// run.
size_t attention_scratch(const Attention& a, bool backward, int threads);
void run_attention(const Attention& a, const AttentionForward& f, int threads, void* scratch);
void run_attention_gradient(const Attention& a, const AttentionBackward& b, int threads, void* scratch);

}  // namespace ortrain
