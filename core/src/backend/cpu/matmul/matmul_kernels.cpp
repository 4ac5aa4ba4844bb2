#include "backend/cpu/matmul/matmul_kernels.h"

#include <utility>

#include "backend/cpu/elementwise/functions.h"
#include "backend/cpu/matmul/product.h"
#include "runtime/broadcast.h"

namespace ortrain {

Product simplify(Product p) {
  Product q = p;
  q.batch.clear(), q.a_batch.clear(), q.b_batch.clear();
  for (size_t i = 0; i < p.batch.size(); ++i) {
    if (p.batch[i] == 1) continue;
    if (!q.batch.empty() && q.a_batch.back() == p.a_batch[i] * p.batch[i] &&
        q.b_batch.back() == p.b_batch[i] * p.batch[i]) {
      q.batch.back() *= p.batch[i];
      q.a_batch.back() = p.a_batch[i];
      q.b_batch.back() = p.b_batch[i];
    } else {
      q.batch.push_back(p.batch[i]);
      q.a_batch.push_back(p.a_batch[i]);
      q.b_batch.push_back(p.b_batch[i]);
    }
  }
  if (!q.batch.empty() && q.b_batch.back() == 0 && (q.m == 1 || q.a_batch.back() == q.m * q.a_row)) {
    if (q.m == 1) q.a_row = q.a_batch.back();
    q.m *= q.batch.back();
    q.batch.pop_back(), q.a_batch.pop_back(), q.b_batch.pop_back();
  }
  return q;
}

namespace {

Bias kind_of(const Shape& shape, int64_t m, int64_t n) {
  const int64_t columns = shape.empty() ? 1 : shape.back();
  const int64_t rows = shape.size() < 2 ? 1 : shape[0];
  if (rows == m && columns == n && m > 1 && n > 1) return Bias::kFull;
  if (columns == n && n > 1) return Bias::kRow;
  if (rows == m && m > 1) return Bias::kColumn;
  return Bias::kScalar;
}

// Computes all products. The batch is divided among the threads if it is large enough; otherwise each product
// is divided.
template <typename T>
void multiply_all(const Product& p, T alpha, const T* a, const T* b, T beta, T* y) {
  const int64_t batches = p.batches();
  const auto one = [&](int64_t at, int threads) {
    const T *from_a = a, *from_b = b;
    int64_t rest = at;
    for (size_t i = p.batch.size(); i-- > 0;) {
      const int64_t index = rest % p.batch[i];
      rest /= p.batch[i];
      from_a += index * p.a_batch[i];
      from_b += index * p.b_batch[i];
    }
    scaled_product<T>(p.m, p.n, p.k, alpha, {from_a, p.a_row, p.a_column}, {from_b, p.b_row, p.b_column},
                      beta, y + at * p.m * p.n, p.n, threads);
  };
  if (batches >= max_threads() || p.m * p.n * p.k < kGrain) {
    parallel_for(batches, p.m * p.n * p.k, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) one(at, 1);
    });
    return;
  }
  for (int64_t at = 0; at < batches; ++at) one(at, max_threads());
}

// An outer product, Y = alpha a bᵀ: as fast as Y can be written.
template <typename T>
Kernel outer_kernel(const Product& p, float alpha, Slot a, Slot b, Slot y) {
  return [=, scale = binary_function("Mul", dtype_of<T>())](const Frame& f) {
    const T *column = f.at<const T>(a), *row = f.at<const T>(b);
    T* to = f.at<T>(y);
    parallel_for(p.m, p.n, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T factor = static_cast<T>(alpha) * column[i * p.a_row];
        scale(&factor, 0, row, 1, to + i * p.n, p.n);
      }
    });
  };
}

template <typename T>
Kernel strided_kernel(const Product& p, float alpha, Slot a, Slot b, const Addend& bias, Slot y) {
  return [=](const Frame& f) {
    T* to = f.at<T>(y);
    if (bias.kind != Bias::kNone)
      fill_bias<T>(bias.kind, f.at<const T>(bias.slot), static_cast<T>(bias.beta), p.m, p.n, to);
    multiply_all<T>(p, static_cast<T>(alpha), f.at<const T>(a), f.at<const T>(b),
                    T(bias.kind == Bias::kNone ? 0 : 1), to);
  };
}

// The tail as separate passes over a finished product of the given shape, stored in `product`, which is `y`
// if the product has the output's shape.
Kernel tail_kernel(const KernelContext& c, const std::vector<TailOperand>& tail,
                   const std::vector<Slot>& slots, Slot product, Slot y) {
  struct Pass {
    Broadcast<2> shape;
    BinaryFunction function;
    Slot from, operand;
  };
  std::vector<Pass> passes;
  Shape shape = product_shape(c);
  for (size_t k = 0; k < tail.size(); ++k) {
    passes.push_back({Broadcast<2>({shape, c.shape(tail[k].input)}, c.out_shape(0)),
                      binary_function(tail[k].input == kFactor ? "Mul" : "Add", c.dtype(0)),
                      k == 0 ? product : y, slots[k]});
    if (!passes.back().function) c.reject_dtype(0);
    shape = c.out_shape(0);
  }
  return [=, width = static_cast<int64_t>(size_of(c.dtype(0)))](const Frame& f) {
    for (const Pass& pass : passes)
      parallel_for(pass.shape.size(), 1, [&](int64_t begin, int64_t end) {
        pass.shape.walk(begin, end, [&](int64_t at, const std::array<int64_t, 2>& in, int64_t n) {
          pass.function(f.at<std::byte>(pass.from) + in[0] * width, pass.shape.step(0),
                        f.at<std::byte>(pass.operand) + in[1] * width, pass.shape.step(1),
                        f.at<std::byte>(y) + at * width, n);
        });
      });
  };
}

// A product into `y` with our own loops.
Kernel plain_kernel(const KernelContext& c, const Product& p, float alpha, Slot a, Slot b, const Addend& bias,
                    Slot y) {
  if (p.k == 1 && p.batch.empty() && p.b_column == 1 && bias.kind == Bias::kNone) {
    if (c.dtype(0) == DType::kFloat) return outer_kernel<float>(p, alpha, a, b, y);
    if (kHasKernels<double> && c.dtype(0) == DType::kDouble) return outer_kernel<double>(p, alpha, a, b, y);
  }
  Kernel kernel;
  if (!visit_types<float, double, int32_t, int64_t, uint32_t, uint64_t>(
          c.dtype(0), [&](auto zero) { kernel = strided_kernel<decltype(zero)>(p, alpha, a, b, bias, y); }))
    c.reject_dtype(0);
  return kernel;
}

Kernel product_kernel(KernelContext& c, float alpha, Addend bias, const std::vector<TailOperand>& tail = {}) {
  const Product p = simplify(read_product(c));
  const Slot a = c.in(0), b = c.in(1);
  if (bias.kind != Bias::kNone) bias.slot = c.in(2);
  std::vector<Slot> operands;
  for (const TailOperand& operand : tail) operands.push_back(c.in(operand.input));
  const Slot y = bias.kind == Bias::kFull ? c.out_inplace(0, {2}) : c.out(0);
  if (tail.empty()) return plain_kernel(c, p, alpha, a, b, bias, y);
  const Shape shape = product_shape(c);
  const Slot product = shape == c.out_shape(0)
                           ? y
                           : c.scratch(static_cast<size_t>(element_count(shape)) * size_of(c.dtype(0)));
  return chain(plain_kernel(c, p, alpha, a, b, bias, product), tail_kernel(c, tail, operands, product, y));
}

}  // namespace

Addend read_addend(const NodeContext& c) {
  const Product p = read_product(c);
  Addend bias;
  bias.beta = c.node().float_or("beta", 1);
  if (c.has_input(2) && bias.beta != 0) bias.kind = kind_of(c.shape(2), p.m, p.n);
  return bias;
}

std::optional<Kernel> plain_matmul(KernelContext& c) {
  return product_kernel(c, c.node().float_or("alpha", 1), {});
}

// Y = (alpha op(A) op(B) + inputs 2 and 3) * input 4; each of these inputs may be left out.
std::optional<Kernel> plain_fused_product(KernelContext& c) {
  return product_kernel(c, c.node().float_or("alpha", 1), {}, read_tail(c));
}

std::optional<Kernel> plain_gemm(KernelContext& c) {
  return product_kernel(c, c.node().float_or("alpha", 1), read_addend(c));
}

}  // namespace ortrain
