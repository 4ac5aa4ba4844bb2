// Matrix products: MatMul, Gemm, com.microsoft FusedMatMul, and FusedProduct, which passes/fuse_product.cpp
// makes of one of them and what is added to it or multiplied with it.
#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "backend/cpu/matmul/product.h"
#include "backend/cpu/onednn/dnnl.h"
#include "op/operator.h"
#include "ops/common/broadcast.h"
#include "ops/common/elementwise.h"
#include "ops/common/session_domain.h"
#include "runtime/threads.h"

namespace ortrain {

namespace {

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

// One operand as rows x columns with batch axes in front, transpositions undone.
struct Operand {
  Shape batch;
  std::vector<int64_t> batch_strides;
  int64_t rows, columns, row_stride, column_stride;
};

// transBatch: the first axis changes place with the batch axes behind it, [M, batch..., K] is read as
// [batch..., M, K]; trans: then the last two axes change places. Operands of rank 1 are a row on the left, a
// column on the right.
Operand read_operand(const Shape& shape, bool left, bool trans, bool trans_batch) {
  std::vector<int64_t> strides = strides_of(shape);
  if (shape.size() == 1)
    return left ? Operand{{}, {}, 1, shape[0], shape[0], 1} : Operand{{}, {}, shape[0], 1, 1, 1};
  Shape extents = shape;
  if (trans_batch && shape.size() > 2) {
    std::rotate(extents.begin(), extents.begin() + 1, extents.end() - 1);
    std::rotate(strides.begin(), strides.begin() + 1, strides.end() - 1);
  }
  const size_t r = extents.size();
  Operand out{{extents.begin(), extents.end() - 2},
              {strides.begin(), strides.end() - 2},
              extents[r - 2],
              extents[r - 1],
              strides[r - 2],
              strides[r - 1]};
  if (trans) {
    std::swap(out.rows, out.columns);
    std::swap(out.row_stride, out.column_stride);
  }
  return out;
}

struct Transposes {
  bool a = false, b = false, a_batch = false, b_batch = false;
};

// The flags of FusedMatMul and Gemm; MatMul has none. Those of operands of rank 1 are ignored.
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
  c.expect(a.columns == b.rows, "inner extents differ: the left operand ", to_string(a_shape), " has ",
           a.columns, " columns", t.a ? " (transposed)" : "", ", the right operand ", to_string(b_shape),
           " has ", b.rows, " rows", t.b ? " (transposed)" : "");
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
             " do not broadcast: extents ", x, " and ", y, " differ and neither is 1");
    p.batch[at] = x == 1 ? y : x;
    if (in_a && x != 1) p.a_batch[at] = a.batch_strides[a.batch.size() - 1 - i];
    if (in_b && y != 1) p.b_batch[at] = b.batch_strides[b.batch.size() - 1 - i];
  }
  return p;
}

// The shape of op(A) op(B).
Shape product_shape(const NodeContext& c) {
  c.expect(c.dtype(0) == c.dtype(1), "its operands must have one type, found ", to_string(c.dtype(0)),
           " and ", to_string(c.dtype(1)));
  const Product p = read_product(c);
  Shape y = p.batch;
  if (c.rank(0) > 1) y.push_back(p.m);
  if (c.rank(1) > 1) y.push_back(p.n);
  return y;
}

void matmul_shape(ShapeContext& c) { c.output(0, c.dtype(0), product_shape(c)); }

void gemm_shape(ShapeContext& c) {
  c.expect(c.rank(0) == 2 && c.rank(1) == 2, "its operands must be matrices, found ", to_string(c.shape(0)),
           " and ", to_string(c.shape(1)));
  c.expect(c.dtype(0) == c.dtype(1) && (!c.has_input(2) || c.dtype(2) == c.dtype(0)),
           "its inputs must have one type, found ", to_string(c.dtype(0)), ", ", to_string(c.dtype(1)),
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

// Drops batch axes of extent 1, joins neighbours that are walked as one, and takes the batch into the rows of
// A where all of it meets the same B: [batch, M, K] x [K, N] is one product of matrices.
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

// What is added to the product.
enum class Bias { kNone, kScalar, kRow, kColumn, kFull };

Bias kind_of(const Shape& shape, int64_t m, int64_t n) {
  const int64_t columns = shape.empty() ? 1 : shape.back();
  const int64_t rows = shape.size() < 2 ? 1 : shape[0];
  if (rows == m && columns == n && m > 1 && n > 1) return Bias::kFull;
  if (columns == n && n > 1) return Bias::kRow;
  if (rows == m && m > 1) return Bias::kColumn;
  return Bias::kScalar;
}

// y = beta * bias, broadcast.
template <typename T>
void fill_bias(Bias kind, const T* bias, T beta, int64_t m, int64_t n, T* y) {
  parallel_for(m, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* row = y + i * n;
      if (kind == Bias::kScalar || kind == Bias::kColumn) {
        std::fill(row, row + n, beta * bias[kind == Bias::kColumn ? i : 0]);
      } else {
        const T* from = kind == Bias::kFull ? bias + i * n : bias;
        if (beta == T(1) && from != row)
          std::copy(from, from + n, row);
        else if (beta != T(1))
          std::transform(from, from + n, row, [beta](T v) { return beta * v; });
      }
    }
  });
}

// All products, shared among threads by batch where there are enough, else each of them.
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

struct Addend {
  Bias kind = Bias::kNone;
  float beta = 1;
  Slot slot;
  Shape shape;
};

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

// What FusedProduct does with the product Y: Y + its inputs 2 and 3, then times its input 4.
constexpr size_t kFirstAddend = 2, kFactor = 4;
struct TailOperand {
  size_t input;
  bool row;   // one element a column, for all rows
  bool full;  // one an element of Y; neither: broadcast in some other way
};

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

void fused_product_shape(ShapeContext& c) {
  Shape y = product_shape(c);
  for (const TailOperand& operand : read_tail(c)) {
    c.expect(c.dtype(operand.input) == c.dtype(0), "its inputs must have one type, found ",
             to_string(c.dtype(0)), " and ", to_string(c.dtype(operand.input)));
    y = broadcast(y, c.shape(operand.input));
  }
  c.output(0, c.dtype(0), std::move(y));
}

// The tail in passes of its own over a finished product of the given shape, which lies in `product`: that is
// `y` where it has the output's shape.
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

#if ORTRAIN_ONEDNN
// With so many rows it pays to bring the right operand into the blocks that the primitive likes best, once
// for all threads: 4 to 8 % of the time of a product of 512 rows and more, while one of 256 takes longer.
constexpr int64_t kPackedRows = 512;

// oneDNN's matmul primitive; null where a strided product serves better: small products, products with a
// vector (bound by memory), and layouts for which oneDNN has no optimized primitive. It does the tail before
// it stores the product.
Kernel primitive_kernel(KernelContext& c, const Product& p, float alpha, Addend bias,
                        const std::vector<TailOperand>& tail, DnnlType type) {
  using dnnl::memory;
  if (p.work() <= kSmallProduct || p.m == 1 || p.n == 1 || p.k == 1) return nullptr;
  memory::dims a_dims, b_dims, y_dims, a_strides, b_strides;
  for (size_t i = 0; i < p.batch.size(); ++i) {
    a_dims.push_back(p.a_batch[i] == 0 ? 1 : p.batch[i]);
    b_dims.push_back(p.b_batch[i] == 0 ? 1 : p.batch[i]);
    y_dims.push_back(p.batch[i]);
    a_strides.push_back(p.a_batch[i] == 0 ? p.m * p.k : p.a_batch[i]);
    b_strides.push_back(p.b_batch[i] == 0 ? p.k * p.n : p.b_batch[i]);
  }
  const auto extend = [](memory::dims& to, int64_t x, int64_t y) { to.insert(to.end(), {x, y}); };
  extend(a_dims, p.m, p.k), extend(b_dims, p.k, p.n), extend(y_dims, p.m, p.n);
  extend(a_strides, p.a_row, p.a_column), extend(b_strides, p.b_row, p.b_column);
  const memory::desc a_desc(a_dims, type, a_strides);
  const memory::desc b_desc(b_dims, type, b_strides);

  if (std::any_of(tail.begin(), tail.end(), [](const TailOperand& o) { return !o.row && !o.full; }))
    return nullptr;
  const bool as_argument = bias.kind == Bias::kRow && alpha == 1 && bias.beta == 1;
  const bool as_sum = bias.kind != Bias::kNone && !as_argument;
  const DnnlType made = c.wants_bf16(0) && !as_sum ? type : DnnlType::f32;
  const memory::desc y_desc = dnnl_plain(y_dims, made);
  const memory::desc bias_desc = as_argument ? dnnl_plain({1, p.n}) : memory::desc();
  const memory::dims row_dims = [&] {
    memory::dims dims(y_dims.size(), 1);
    dims.back() = p.n;
    return dims;
  }();
  // `over`: the addend in whose memory the result is made.
  const auto describe = [&](size_t over, const memory::desc& b_given) -> dnnl::matmul::primitive_desc {
    dnnl::primitive_attr attr = dnnl_attr();
    dnnl::post_ops post;
    if (alpha != 1) post.append_eltwise(dnnl::algorithm::eltwise_linear, alpha, 0);
    if (as_sum) post.append_sum(1);
    for (const TailOperand& operand : tail) {
      if (operand.input == over)
        post.append_sum(1);
      else
        post.append_binary(
            operand.input == kFactor ? dnnl::algorithm::binary_mul : dnnl::algorithm::binary_add,
            dnnl_plain(operand.row ? row_dims : y_dims));
    }
    attr.set_post_ops(post);
    try {
      return as_argument
                 ? dnnl::matmul::primitive_desc(dnnl_engine(), a_desc, b_given, bias_desc, y_desc, attr)
                 : dnnl::matmul::primitive_desc(dnnl_engine(), a_desc, b_given, y_desc, attr);
    } catch (const dnnl::error&) {
      return {};
    }
  };
  constexpr size_t kNowhere = SIZE_MAX;
  const bool packs = p.batch.empty() && type == DnnlType::f32 && p.m >= kPackedRows;
  dnnl::matmul::primitive_desc pd =
      describe(kNowhere, packs ? memory::desc(b_dims, type, memory::format_tag::any) : b_desc);
  if (!pd || !is_fast(pd)) return nullptr;
  std::vector<Kernel> kernels, after;
  const Slot a = dnnl_operand(c, 0, dnnl_plain(c.shape(0), type), kernels);
  Slot b = dnnl_operand(c, 1, dnnl_plain(c.shape(1), type), kernels);
  const memory::desc packed = pd.weights_desc();
  if (!same_bytes(packed, b_desc)) {
    const Slot given = std::exchange(b, c.scratch(packed.get_size()));
    kernels.push_back(dnnl_reorder(b_desc, given, packed, b));
  }
  if (bias.kind != Bias::kNone) bias.slot = c.in(2);
  std::vector<Slot> tail_slots;
  for (const TailOperand& operand : tail)
    tail_slots.push_back(dnnl_operand(c, operand.input, dnnl_plain(c.shape(operand.input)), kernels));
  // The first addend of the product's shape may be overwritten where nobody reads it afterwards, but for a
  // factor that is the same value.
  const auto target = std::find_if(tail.begin(), tail.end(), [](const TailOperand& o) { return o.full; });
  const bool may_overwrite = !c.wants_bf16(0) && target != tail.end() && target->input != kFactor &&
                             std::none_of(target + 1, tail.end(), [&](const TailOperand& o) {
                               return c.node().inputs[o.input] == c.node().inputs[target->input];
                             });
  Slot y;
  if (bias.kind == Bias::kFull && !c.wants_bf16(0)) {
    y = c.out_inplace(0, {2});
  } else if (may_overwrite) {
    y = c.out_inplace(0, {target->input});
    if (y.index == tail_slots[static_cast<size_t>(target - tail.begin())].index)
      pd = describe(target->input, packed);
  } else {
    y = dnnl_result(c, 0, dnnl_plain(c.out_shape(0), made), after);
  }
  if (as_sum)
    kernels.push_back([=, m = p.m, n = p.n](const Frame& f) {
      fill_bias<float>(bias.kind, f.at<const float>(bias.slot), bias.beta, m, n, f.at<float>(y));
    });
  std::vector<DnnlArgument> arguments = {{DNNL_ARG_SRC, a_desc, a},
                                         {DNNL_ARG_WEIGHTS, packed, b},
                                         {DNNL_ARG_BIAS, bias_desc, as_argument ? bias.slot : Slot{}},
                                         {DNNL_ARG_DST, y_desc, y}};
  const int first = (alpha != 1) + as_sum;
  for (size_t k = 0; k < tail.size(); ++k)
    if (tail_slots[k].index != y.index)
      arguments.push_back({DNNL_ARG_ATTR_MULTIPLE_POST_OP(first + static_cast<int>(k)) | DNNL_ARG_SRC_1,
                           dnnl_plain(tail[k].row ? row_dims : y_dims), tail_slots[k]});
  kernels.push_back(dnnl_kernel(c, dnnl::matmul(pd), pd.scratchpad_desc(), arguments));
  for (Kernel& kernel : after) kernels.push_back(std::move(kernel));
  return one_after_the_other(std::move(kernels));
}
#endif

// A product into `y` by our own loops.
Kernel plain_kernel(const KernelContext& c, const Product& p, float alpha, Slot a, Slot b, const Addend& bias,
                    Slot y) {
  if (p.k == 1 && p.batch.empty() && p.b_column == 1 && bias.kind == Bias::kNone) {
    if (c.dtype(0) == DType::kFloat) return outer_kernel<float>(p, alpha, a, b, y);
    if (c.dtype(0) == DType::kDouble) return outer_kernel<double>(p, alpha, a, b, y);
  }
  switch (c.dtype(0)) {
    case DType::kFloat:
      return strided_kernel<float>(p, alpha, a, b, bias, y);
    case DType::kDouble:
      return strided_kernel<double>(p, alpha, a, b, bias, y);
    case DType::kInt32:
      return strided_kernel<int32_t>(p, alpha, a, b, bias, y);
    case DType::kInt64:
      return strided_kernel<int64_t>(p, alpha, a, b, bias, y);
    case DType::kUInt32:
      return strided_kernel<uint32_t>(p, alpha, a, b, bias, y);
    case DType::kUInt64:
      return strided_kernel<uint64_t>(p, alpha, a, b, bias, y);
    default:
      c.reject_dtype(0);
  }
}

Kernel product_kernel(KernelContext& c, float alpha, Addend bias, const std::vector<TailOperand>& tail = {}) {
  const Product p = simplify(read_product(c));
#if ORTRAIN_ONEDNN
  if (c.dtype(0) == DType::kFloat) {
    if (c.precision() == Precision::kBf16 && suits_onednn(c))
      if (Kernel kernel = primitive_kernel(c, p, alpha, bias, tail, DnnlType::bf16)) return kernel;
    if (Kernel kernel = primitive_kernel(c, p, alpha, bias, tail, DnnlType::f32)) return kernel;
  }
#endif
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
  return one_after_the_other(
      {plain_kernel(c, p, alpha, a, b, bias, product), tail_kernel(c, tail, operands, product, y)});
}

Kernel matmul_kernel(KernelContext& c) { return product_kernel(c, c.node().float_or("alpha", 1), {}); }

// Y = (alpha op(A) op(B) + inputs 2 and 3) * input 4, each of which may be left out.
Kernel fused_product_kernel(KernelContext& c) {
  return product_kernel(c, c.node().float_or("alpha", 1), {}, read_tail(c));
}

Kernel gemm_kernel(KernelContext& c) {
  Addend bias;
  bias.beta = c.node().float_or("beta", 1);
  if (c.has_input(2) && bias.beta != 0) bias.kind = kind_of(c.shape(2), c.out_shape(0)[0], c.out_shape(0)[1]);
  return product_kernel(c, c.node().float_or("alpha", 1), bias);
}

// -----------------------------------------------------------------------------------------------------------
// Gradients. With Y = alpha op(A) op(B):  d op(A) = alpha dY op(B)ᵀ,  d op(B) = alpha op(A)ᵀ dY.

Attributes flags(bool trans_a, bool trans_b, float alpha) {
  return {{"transA", int64_t{trans_a}}, {"transB", int64_t{trans_b}}, {"alpha", alpha}};
}

// dA and dB of a product of matrices by one operator (Gemm, or FusedMatMul for batches).
struct ProductGradient {
  GradientContext& g;
  const char* type;
  const char* domain;
  Transposes t;
  float alpha;

  std::string of_a(const std::string& dy) const {
    return t.a ? g(type, {g.x(1), dy}, flags(t.b, true, alpha), domain)
               : g(type, {dy, g.x(1)}, flags(false, !t.b, alpha), domain);
  }
  std::string of_b(const std::string& dy) const {
    return t.b ? g(type, {dy, g.x(0)}, flags(true, t.a, alpha), domain)
               : g(type, {g.x(0), dy}, flags(!t.a, false, alpha), domain);
  }
};

// Sums a gradient with the batch axes of the product over those along which operand i was repeated.
std::string sum_batches(GradientContext& g, const std::string& gradient, size_t i) {
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

// The gradient where an operand has one axis: it is made a matrix first.
void vector_gradient(GradientContext& g, int64_t a_rank, int64_t b_rank, const Transposes& t, float alpha) {
  const std::string dy = g.dy(0);
  if (a_rank == 1 && b_rank == 1) {
    const auto scaled = [&](const std::string& v) {
      const std::string product = g("Mul", {dy, v});
      return alpha == 1 ? product : g("Mul", {product, g.scalar_like(product, alpha)});
    };
    if (g.needs(0)) g.set(0, scaled(g.x(1)));
    if (g.needs(1)) g.set(1, scaled(g.x(0)));
  } else if (a_rank == 1) {  // [K] x [..., K, N] → [..., N]
    const std::string rows = g.unsqueeze(dy, {b_rank - 2});
    if (g.needs(0)) {
      const std::string each =
          g("FusedMatMul", {rows, g.x(1)}, flags(false, !t.b, alpha), kMicrosoft);  // [..., 1, K]
      std::vector<int64_t> axes;
      for (int64_t i = 0; i < b_rank - 1; ++i) axes.push_back(i);
      g.set(0, g.reduce_sum(each, axes, false));
    }
    if (g.needs(1)) {
      const std::string column = g.unsqueeze(g.x(0), {1});
      g.set(1, t.b ? g("FusedMatMul", {rows, column}, flags(true, true, alpha), kMicrosoft)
                   : g("FusedMatMul", {column, rows}, flags(false, false, alpha), kMicrosoft));
    }
  } else {  // [..., M, K] x [K] → [..., M]
    const std::string columns = g.unsqueeze(dy, {a_rank - 1});
    if (g.needs(0)) {
      const std::string row = g.unsqueeze(g.x(1), {0});
      g.set(0, t.a ? g("FusedMatMul", {row, columns}, flags(true, true, alpha), kMicrosoft)
                   : g("FusedMatMul", {columns, row}, flags(false, false, alpha), kMicrosoft));
    }
    if (g.needs(1)) {
      const std::string each =
          g("FusedMatMul", {g.x(0), columns}, flags(!t.a, false, alpha), kMicrosoft);  // [..., K, 1]
      std::vector<int64_t> axes = {a_rank - 1};
      for (int64_t i = 0; i < a_rank - 2; ++i) axes.push_back(i);
      g.set(1, g.reduce_sum(each, axes, false));
    }
  }
}

// Where batch axes lie behind the rows, [M, batch..., K], the operand is turned to [batch..., M, K] first and
// its gradient back at the end.
void turned_batch_gradient(GradientContext& g, int64_t a_rank, int64_t b_rank, const Transposes& t,
                           float alpha) {
  const int64_t ranks[] = {a_rank, b_rank};
  const bool turned[] = {t.a_batch && a_rank > 2, t.b_batch && b_rank > 2};
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
    operand[i] = turned[i] ? g("Transpose", {g.x(static_cast<size_t>(i))}, order(i, false))
                           : g.x(static_cast<size_t>(i));
  const auto product = [&](const std::string& x, const std::string& y, bool trans_x, bool trans_y) {
    return g("FusedMatMul", {x, y}, flags(trans_x, trans_y, alpha), kMicrosoft);
  };
  const std::string dy = g.dy(0);
  const auto set = [&](int i, const std::string& gradient) {
    const std::string own = g.unbroadcast(gradient, gradient, operand[i]);
    g.set(static_cast<size_t>(i), turned[i] ? g("Transpose", {own}, order(i, true)) : own);
  };
  if (g.needs(0)) set(0, t.a ? product(operand[1], dy, t.b, true) : product(dy, operand[1], false, !t.b));
  if (g.needs(1)) set(1, t.b ? product(dy, operand[0], true, t.a) : product(operand[0], dy, !t.a, false));
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
    return turned_batch_gradient(g, *a_rank, *b_rank, t, alpha);

  const std::string dy = g.dy(0);
  if (*a_rank == 2 && *b_rank == 2) {
    const ProductGradient gradient{g, "Gemm", "", t, alpha};
    if (g.needs(0)) g.set(0, gradient.of_a(dy));
    if (g.needs(1)) g.set(1, gradient.of_b(dy));
    return;
  }
  const ProductGradient gradient{g, "FusedMatMul", kMicrosoft, t, alpha};
  if (g.needs(0)) g.set(0, sum_batches(g, gradient.of_a(dy), 0));
  if (!g.needs(1)) return;
  if (*b_rank == 2 && !t.a) {
    // All batches meet the same B, so the sum over them is part of one product.
    const Attributes keep_last = {{"axis", *a_rank - 1}};
    const std::string a = g("Flatten", {g.x(0)}, keep_last), d = g("Flatten", {dy}, keep_last);
    g.set(1,
          t.b ? g("Gemm", {d, a}, flags(true, false, alpha)) : g("Gemm", {a, d}, flags(true, false, alpha)));
    return;
  }
  g.set(1, sum_batches(g, gradient.of_b(dy), 1));
}

void gemm_gradient(GradientContext& g) {
  const std::string dy = g.dy(0);
  const ProductGradient gradient{g, "Gemm", "", read_transposes(g.node()), g.node().float_or("alpha", 1)};
  if (g.needs(0)) g.set(0, gradient.of_a(dy));
  if (g.needs(1)) g.set(1, gradient.of_b(dy));
  if (!g.needs(2)) return;
  const float beta = g.node().float_or("beta", 1);
  const std::string scaled = beta == 1 ? dy : g("Mul", {dy, g.scalar_like(dy, beta)});
  g.set(2, g.unbroadcast(scaled, g.y(0), 2));
}

ORTRAIN_OPERATOR({.type = "MatMul",
                  .shape = matmul_shape,
                  .kernel = matmul_kernel,
                  .gradient = matmul_gradient,
                  .takes_bf16 = true});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "FusedMatMul",
                  .shape = matmul_shape,
                  .kernel = matmul_kernel,
                  .gradient = matmul_gradient,
                  .takes_bf16 = true});
ORTRAIN_OPERATOR({.type = "Gemm",
                  .shape = gemm_shape,
                  .kernel = gemm_kernel,
                  .gradient = gemm_gradient,
                  .takes_bf16 = true});
ORTRAIN_OPERATOR({.domain = kSessionDomain,
                  .type = "FusedProduct",
                  .shape = fused_product_shape,
                  .kernel = fused_product_kernel,
                  .takes_bf16 = true});

}  // namespace

}  // namespace ortrain
