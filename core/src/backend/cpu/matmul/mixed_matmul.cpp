// Kernels of matrix products in mixed precision.
#include <algorithm>
#include <utility>

#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/matmul/mixed_product.h"
#include "backend/cpu/tuning.h"

namespace ortrain {
namespace {

constexpr size_t kMostTerms = 3;

// Where a term of the product is.
struct TermSlot {
  StoredSlot values;
  Bias kind;
  float factor = 1;
  bool multiplies = false;
};

// Input i as it is stored, in row-major order.
StoredSlot fetch(KernelContext& c, size_t i) {
  const bool bf16 = lies_in_bf16(c, i);
  return {c.in(i, bf16 ? bf16_row_major(c.shape(i)) : nullptr), bf16};
}

// The result. It takes the memory of a term of the same size, if no other input is that value.
StoredSlot make_result(KernelContext& c, const std::vector<size_t>& full) {
  const bool bf16 = c.wants_bf16(0);
  const LayoutPtr layout = bf16 ? bf16_row_major(c.out_shape(0)) : nullptr;
  for (const size_t i : full) {
    const auto& inputs = c.node().inputs;
    if (lies_in_bf16(c, i) == bf16 && std::count(inputs.begin(), inputs.end(), inputs[i]) == 1)
      return {c.out_inplace(0, {i}, layout), bf16};
  }
  return {c.out(0, layout), bf16};
}

// How a product is divided among threads.
struct Partition {
  int64_t rows = 1, columns = 1;

  explicit Partition(const Product& p) {
    const int64_t threads = max_threads(), r = mixed_rows(), n = mixed_columns();
    if (p.batches() >= threads) return;
    if (p.m >= p.n)
      rows = std::min(threads, (p.m + r - 1) / r);
    else
      columns = std::min(threads, (p.n + n - 1) / n);
  }
};

Kernel batched(const Product& p, float alpha, bool pairs, StoredSlot a, StoredSlot b,
               const std::vector<TermSlot>& terms, StoredSlot y) {
  return [=, partition = Partition(p)](const Frame& f) {
    const int64_t parts = partition.rows * partition.columns;
    const int64_t work = p.m * p.n * p.k / tuning::kMultiplications + p.m * p.k + p.k * p.n + p.m * p.n;
    parallel_for(p.batches() * parts, work / parts, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i / parts, x = i % parts / partition.columns, z = i % partition.columns;
        int64_t rest = at, from_a = 0, from_b = 0;
        for (size_t axis = p.batch.size(); axis-- > 0;) {
          const int64_t index = rest % p.batch[axis];
          rest /= p.batch[axis];
          from_a += index * p.a_batch[axis];
          from_b += index * p.b_batch[axis];
        }
        MixedTerm applied[kMostTerms];
        for (size_t t = 0; t < terms.size(); ++t) {
          const StoredInput values = terms[t].values.in(f);
          applied[t] = {terms[t].kind == Bias::kFull ? values.from(at * p.m * p.n) : values, terms[t].kind,
                        terms[t].factor, terms[t].multiplies};
        }
        const auto cut = [](int64_t size, int64_t step, int64_t part, int64_t of) {
          return std::min(size, (size + step - 1) / step * part / of * step);
        };
        mixed_product({p.m,
                       p.n,
                       p.k,
                       alpha,
                       {a.in(f).from(from_a), p.a_row, p.a_column},
                       {b.in(f).from(from_b), p.b_row, p.b_column},
                       pairs,
                       y.out(f).from(at * p.m * p.n),
                       {applied, terms.size()}},
                      cut(p.m, mixed_rows(), x, partition.rows),
                      cut(p.m, mixed_rows(), x + 1, partition.rows),
                      cut(p.n, mixed_columns(), z, partition.columns),
                      cut(p.n, mixed_columns(), z + 1, partition.columns));
      }
    });
  };
}

// Small products, and those with vectors, are computed in float.
std::optional<Kernel> product_kernel(KernelContext& c, const Addend& bias,
                                     const std::vector<TailOperand>& tail = {}) {
  if (!kHasKernels<BFloat16> || c.precision() == Precision::kFloat || c.dtype(0) != DType::kFloat)
    return std::nullopt;
  const Product p = simplify(read_product(c));
  if (p.work() <= tuning::kSmallBf16Product || p.m == 1 || p.n == 1 || p.k == 1) return std::nullopt;
  const auto kind_of = [&c](const TailOperand& o) {
    return o.full ? Bias::kFull : o.row ? Bias::kRow : c.size(o.input) == 1 ? Bias::kScalar : Bias::kNone;
  };
  if (std::any_of(tail.begin(), tail.end(), [&](const TailOperand& o) { return kind_of(o) == Bias::kNone; }))
    return std::nullopt;
  const bool pairs = c.precision() == Precision::kBf16;
  if (!pairs && !c.wants_bf16(0) && !lies_in_bf16(c, 0) && !lies_in_bf16(c, 1)) return std::nullopt;
  const StoredSlot a = fetch(c, 0), b = fetch(c, 1);
  std::vector<TermSlot> terms;
  std::vector<size_t> full;
  if (bias.kind != Bias::kNone) {
    terms.push_back({fetch(c, 2), bias.kind, bias.beta});
    if (bias.kind == Bias::kFull) full.push_back(2);
  }
  for (const TailOperand& operand : tail) {
    terms.push_back({fetch(c, operand.input), kind_of(operand), 1, operand.input == kFactor});
    if (operand.full) full.push_back(operand.input);
  }
  const StoredSlot y = make_result(c, full);
  return batched(p, c.node().float_or("alpha", 1), pairs, a, b, terms, y);
}

}  // namespace

std::optional<Kernel> mixed_matmul(KernelContext& c) { return product_kernel(c, {}); }
std::optional<Kernel> mixed_gemm(KernelContext& c) { return product_kernel(c, read_addend(c)); }
std::optional<Kernel> mixed_fused_product(KernelContext& c) { return product_kernel(c, {}, read_tail(c)); }

}  // namespace ortrain
