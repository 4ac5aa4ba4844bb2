// Matrix products with oneDNN: MatMul, Gemm, FusedMatMul and FusedProduct.
#include <algorithm>
#include <optional>
#include <utility>

#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/product.h"
#include "backend/cpu/onednn/dnnl.h"
#include "backend/cpu/onednn/kernels.h"
#include "backend/cpu/tuning.h"

namespace ortrain {
namespace {

constexpr size_t kNowhere = SIZE_MAX;

// A product as oneDNN's matmul primitive sees it.
struct Described {
  const Product& p;
  const float alpha;
  const std::vector<TailOperand>& tail;
  bool as_argument, as_sum;  // how the bias is added: by the primitive, or to what is stored already
  dnnl::memory::dims b_dims, y_dims, row_dims;
  dnnl::memory::desc a, b, y, bias;

  Described(const Product& product, float factor, const Addend& addend, const std::vector<TailOperand>& rest,
            DnnlType type, bool wants_bf16)
      : p(product),
        alpha(factor),
        tail(rest),
        as_argument(addend.kind == Bias::kRow && alpha == 1 && addend.beta == 1),
        as_sum(addend.kind != Bias::kNone && !as_argument) {
    dnnl::memory::dims a_dims, a_strides, b_strides;
    for (size_t i = 0; i < p.batch.size(); ++i) {
      a_dims.push_back(p.a_batch[i] == 0 ? 1 : p.batch[i]);
      b_dims.push_back(p.b_batch[i] == 0 ? 1 : p.batch[i]);
      y_dims.push_back(p.batch[i]);
      a_strides.push_back(p.a_batch[i] == 0 ? p.m * p.k : p.a_batch[i]);
      b_strides.push_back(p.b_batch[i] == 0 ? p.k * p.n : p.b_batch[i]);
    }
    const auto extend = [](dnnl::memory::dims& to, int64_t x, int64_t y_size) {
      to.insert(to.end(), {x, y_size});
    };
    extend(a_dims, p.m, p.k), extend(b_dims, p.k, p.n), extend(y_dims, p.m, p.n);
    extend(a_strides, p.a_row, p.a_column), extend(b_strides, p.b_row, p.b_column);
    row_dims.assign(y_dims.size(), 1);
    row_dims.back() = p.n;
    a = dnnl::memory::desc(a_dims, type, a_strides);
    b = dnnl::memory::desc(b_dims, type, b_strides);
    y = dnnl_plain(y_dims, wants_bf16 && !as_sum ? type : DnnlType::f32);
    if (as_argument) bias = dnnl_plain({1, p.n});
  }

  // `over`: the addend whose memory the result reuses.
  dnnl::matmul::primitive_desc describe(size_t over, const dnnl::memory::desc& b_given) const {
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
            tail_desc(operand));
    }
    attr.set_post_ops(post);
    try {
      return as_argument ? dnnl::matmul::primitive_desc(dnnl_engine(), a, b_given, bias, y, attr)
                         : dnnl::matmul::primitive_desc(dnnl_engine(), a, b_given, y, attr);
    } catch (const dnnl::error&) {
      return {};
    }
  }
  dnnl::memory::desc tail_desc(const TailOperand& operand) const {
    return dnnl_plain(operand.row ? row_dims : y_dims);
  }
};

// The addend that the result may overwrite: the first with the product's shape, if the factor is not the same
// value; null if there is none.
const TailOperand* overwritten(const KernelContext& c, const std::vector<TailOperand>& tail) {
  if (c.wants_bf16(0)) return nullptr;
  const auto target = std::find_if(tail.begin(), tail.end(), [](const TailOperand& o) { return o.full; });
  if (target == tail.end() || target->input == kFactor) return nullptr;
  const bool again = std::any_of(target + 1, tail.end(), [&](const TailOperand& o) {
    return c.node().inputs[o.input] == c.node().inputs[target->input];
  });
  return again ? nullptr : &*target;
}

// oneDNN's matmul primitive; null if a strided product is better: small products, products with a vector
// (memory-bound), and layouts for which oneDNN has no optimized primitive. It applies the tail before it
// stores the product.
Kernel primitive_kernel(KernelContext& c, const Product& p, float alpha, Addend bias,
                        const std::vector<TailOperand>& tail, DnnlType type) {
  using dnnl::memory;
  const bool exact = c.precision() == Precision::kFloat;
  const int64_t small = exact ? tuning::kSmallProduct : tuning::kSmallBf16Product;
  if (p.work() <= small || p.m == 1 || p.n == 1 || p.k == 1) return nullptr;
  if (std::any_of(tail.begin(), tail.end(), [](const TailOperand& o) { return !o.row && !o.full; }))
    return nullptr;
  const Described d(p, alpha, bias, tail, type, c.wants_bf16(0));
  const bool packs = p.batch.empty() && type == DnnlType::f32 && p.m >= tuning::kPackedRows;
  dnnl::matmul::primitive_desc pd =
      d.describe(kNowhere, packs ? memory::desc(d.b_dims, type, memory::format_tag::any) : d.b);
  if (!pd || !is_fast(pd)) return nullptr;

  std::vector<Kernel> kernels, after;
  const Slot a = dnnl_operand(c, 0, dnnl_plain(c.shape(0), type), kernels);
  Slot b = dnnl_operand(c, 1, dnnl_plain(c.shape(1), type), kernels);
  const memory::desc packed = pd.weights_desc();
  if (!same_bytes(packed, d.b)) {
    const Slot given = std::exchange(b, c.scratch(packed.get_size()));
    kernels.push_back(dnnl_reorder(d.b, given, packed, b));
  }
  if (bias.kind != Bias::kNone) bias.slot = c.in(2);
  std::vector<Slot> tail_slots;
  for (const TailOperand& operand : tail)
    tail_slots.push_back(dnnl_operand(c, operand.input, dnnl_plain(c.shape(operand.input)), kernels));
  Slot y;
  if (bias.kind == Bias::kFull && !c.wants_bf16(0)) {
    y = c.out_inplace(0, {2});
  } else if (const TailOperand* target = overwritten(c, tail)) {
    y = c.out_inplace(0, {target->input});
    if (y.index == tail_slots[static_cast<size_t>(target - tail.data())].index)
      pd = d.describe(target->input, packed);
  } else {
    y = dnnl_result(c, 0, dnnl_plain(c.out_shape(0), d.y.get_data_type()), after);
  }
  if (d.as_sum)
    kernels.push_back([=, m = p.m, n = p.n](const Frame& f) {
      fill_bias<float>(bias.kind, f.at<const float>(bias.slot), bias.beta, m, n, f.at<float>(y));
    });

  std::vector<DnnlArgument> arguments = {{DNNL_ARG_SRC, d.a, a},
                                         {DNNL_ARG_WEIGHTS, packed, b},
                                         {DNNL_ARG_BIAS, d.bias, d.as_argument ? bias.slot : Slot{}},
                                         {DNNL_ARG_DST, d.y, y}};
  const int first = (alpha != 1) + d.as_sum;
  for (size_t k = 0; k < tail.size(); ++k)
    if (tail_slots[k].index != y.index)
      arguments.push_back({DNNL_ARG_ATTR_MULTIPLE_POST_OP(first + static_cast<int>(k)) | DNNL_ARG_SRC_1,
                           d.tail_desc(tail[k]), tail_slots[k]});
  kernels.push_back(dnnl_kernel(c, dnnl::matmul(pd), pd.scratchpad_desc(), arguments));
  for (Kernel& kernel : after) kernels.push_back(std::move(kernel));
  return chain(std::move(kernels));
}

std::optional<Kernel> product_kernel(KernelContext& c, const Addend& bias,
                                     const std::vector<TailOperand>& tail = {}) {
  const Product p = simplify(read_product(c));
  const float alpha = c.node().float_or("alpha", 1);
  if (c.precision() == Precision::kBf16 && suits_onednn(c))
    if (Kernel kernel = primitive_kernel(c, p, alpha, bias, tail, DnnlType::bf16)) return kernel;
  if (Kernel kernel = primitive_kernel(c, p, alpha, bias, tail, DnnlType::f32)) return kernel;
  return std::nullopt;
}

}  // namespace

std::optional<Kernel> onednn_matmul(KernelContext& c) { return product_kernel(c, {}); }
std::optional<Kernel> onednn_gemm(KernelContext& c) { return product_kernel(c, read_addend(c)); }
std::optional<Kernel> onednn_fused_product(KernelContext& c) { return product_kernel(c, {}, read_tail(c)); }

}  // namespace ortrain
