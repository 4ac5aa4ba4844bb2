// The implementations of operators with oneDNN, and its other functions for the CPU.
#pragma once

#include <optional>

#include "backend/cpu/kernel_library.h"
#include "op/operator.h"

namespace ortrain {

std::optional<Kernel> onednn_conv(KernelContext& c);
std::optional<Kernel> onednn_fused_conv(KernelContext& c);
std::optional<Kernel> onednn_conv_grad(KernelContext& c);
std::optional<Kernel> onednn_conv_transpose(KernelContext& c);
std::optional<Kernel> onednn_conv_transpose_grad(KernelContext& c);
std::optional<Kernel> onednn_max_pool(KernelContext& c);
std::optional<Kernel> onednn_max_pool_grad(KernelContext& c);
std::optional<Kernel> onednn_average_pool(KernelContext& c);
std::optional<Kernel> onednn_average_pool_grad(KernelContext& c);
std::optional<Kernel> onednn_global_average_pool(KernelContext& c);
std::optional<Kernel> onednn_batch_normalization(KernelContext& c);
std::optional<Kernel> onednn_batch_normalization_grad(KernelContext& c);
std::optional<Kernel> onednn_matmul(KernelContext& c);
std::optional<Kernel> onednn_gemm(KernelContext& c);
std::optional<Kernel> onednn_fused_product(KernelContext& c);

// Throws what became of a call of oneDNN that failed while the kernel of a node was made: the exception being
// handled, in words that tell lack of memory from other reasons.
[[noreturn]] void report_onednn(const KernelContext& c);

// An implementation whose failures are reported.
template <std::optional<Kernel> (*make)(KernelContext&)>
std::optional<Kernel> reported(KernelContext& c) {
  try {
    return make(c);
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    report_onednn(c);
  }
}

// Whether oneDNN should compute the node: it is float32, not empty, and not all of its inputs are constant (a
// Program computes such a node once, during compilation, and needs the result row-major).
bool suits_onednn(const NodeContext& c);

LayoutPtr onednn_weights_order(const Node& node, const Shape& w);

// Called by the rest of the core.
extern const KernelLibrary kOnednn;

}  // namespace ortrain
