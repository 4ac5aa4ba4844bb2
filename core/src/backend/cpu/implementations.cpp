// The CPU implementations of operators that have several, in order of preference. The first that applies is
// used. Operators with one kernel name it where they are defined (Kernels::cpu).
#include "op/implementation.h"

#include "backend/cpu/conv/conv_kernels.h"
#include "backend/cpu/conv/conv_transpose_kernels.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/mixed_product.h"
#include "backend/cpu/norm/batch_normalization_kernels.h"
#include "backend/cpu/pool/pool_kernels.h"
#include "op/session_domain.h"
#include "runtime/generated/parts.h"

namespace ortrain {
namespace {

// The maker of a kernel, as a function that is called rarely (Cold in op/operator.h).
template <std::optional<Kernel> (*make)(KernelContext&)>
[[gnu::cold]] std::optional<Kernel> rarely(KernelContext& c) {
  return make(c);
}

// The maker of a kernel for depthwise convolutions. Without it, the next one in the list applies.
template <std::optional<Kernel> (*make)(KernelContext&)>
[[gnu::cold]] std::optional<Kernel> depthwise(KernelContext& c) {
  if constexpr (kDepthwisePart.is_built) return make(c);
  return std::nullopt;
}

// clang-format off
// The implementations of an operator that this build has. For other operators nothing refers to the kernels,
// and the linker drops them.
#define LIST(domain, type, ...) \
  if constexpr (is_built(domain, type)) lists.push_back({domain, type, {__VA_ARGS__}})

const RegisterImplementations registered(Device::kCpu, [] {
  std::vector<ImplementationList> lists;
  LIST("", "Conv",
    {"direct", rarely<direct_conv>},
    {"channels last", depthwise<channels_last_depthwise>},
    {"depthwise", depthwise<depthwise_conv>},
    {"channels last", rarely<channels_last_conv>},
    {"row-major", rarely<row_major_conv>});
  LIST(kMicrosoft, "FusedConv",
    {"direct", rarely<direct_conv>},
    {"channels last", depthwise<channels_last_depthwise>},
    {"depthwise", depthwise<depthwise_conv>},
    {"channels last", rarely<channels_last_conv>},
    {"row-major", rarely<row_major_fused_conv>});
  if constexpr (is_built("", "Conv") && kDepthwisePart.is_built)  // it is made of convolutions
    LIST(kSessionDomain, "SeparableConv",
      {"separable", rarely<separable_conv>});
  LIST(kMicrosoft, "ConvGrad",
    {"channels last", depthwise<channels_last_depthwise_grad>},
    {"channels last", rarely<channels_last_conv_grad>},
    {"row-major", rarely<row_major_conv_grad>});
  LIST("", "ConvTranspose",
    {"channels last", rarely<channels_last_conv_transpose>},
    {"row-major", rarely<row_major_conv_transpose>});
  LIST(kMicrosoft, "ConvTransposeGrad",
    {"channels last", rarely<channels_last_conv_transpose_grad>},
    {"row-major", rarely<row_major_conv_transpose_grad>});
  LIST("", "MaxPool",
    {"channels last", rarely<channels_last_max_pool>},
    {"row-major", rarely<row_major_max_pool>});
  // Follows the choice made for its MaxPool, even if inputs are constant.
  LIST("", "MaxPoolGrad",
    {"channels last", rarely<channels_last_max_pool_grad>},
    {"row-major", rarely<row_major_max_pool_grad>});
  LIST("", "AveragePool",
    {"channels last", rarely<channels_last_average_pool>},
    {"row-major", rarely<row_major_average_pool>});
  LIST("", "AveragePoolGrad",
    {"channels last", rarely<channels_last_average_pool_grad>},
    {"row-major", rarely<row_major_average_pool_grad>});
  LIST("", "GlobalAveragePool",
    {"channels last", rarely<channels_last_global_average_pool>},
    {"row-major", rarely<row_major_global_average_pool>});
  LIST("", "GlobalMaxPool",
    {"channels last", rarely<channels_last_global_max_pool>},
    {"row-major", rarely<row_major_global_max_pool>});
  LIST("", "BatchNormalization",
    {"channels last", rarely<channels_last_batch_normalization>},
    {"row-major", rarely<row_major_batch_normalization>});
  LIST(kMicrosoft, "BatchNormInternal",
    {"channels last", rarely<channels_last_batch_normalization>},
    {"row-major", rarely<row_major_batch_normalization>});
  LIST(kMicrosoft, "BatchNormalizationGrad",
    {"channels last", rarely<channels_last_batch_normalization_grad>},
    {"row-major", rarely<row_major_batch_normalization_grad>});
  if constexpr (is_built(kMicrosoft, "BatchNormInternal") && is_built(kMicrosoft, "BatchNormalizationGrad")) {
    LIST(kSessionDomain, "ClippedBatchNormInternal",
      {"channels last", rarely<channels_last_batch_normalization>},
      {"row-major", rarely<row_major_batch_normalization>});
    LIST(kSessionDomain, "ClippedBatchNormalization",
      {"channels last", rarely<channels_last_batch_normalization>},
      {"row-major", rarely<row_major_batch_normalization>});
    LIST(kSessionDomain, "ClippedBatchNormalizationGrad",
      {"channels last", rarely<channels_last_batch_normalization_grad>},
      {"row-major", rarely<row_major_batch_normalization_grad>});
  }
  LIST("", "MatMul",
    {"mixed precision", rarely<mixed_matmul>},
    {"plain", rarely<plain_matmul>});
  LIST(kMicrosoft, "FusedMatMul",
    {"mixed precision", rarely<mixed_matmul>},
    {"plain", rarely<plain_matmul>});
  LIST("", "Gemm",
    {"mixed precision", rarely<mixed_gemm>},
    {"plain", rarely<plain_gemm>});
  LIST(kSessionDomain, "FusedProduct",
    {"mixed precision", rarely<mixed_fused_product>},
    {"plain", rarely<plain_fused_product>});
  return lists;
}());
#undef LIST
// clang-format on

}  // namespace

}  // namespace ortrain
