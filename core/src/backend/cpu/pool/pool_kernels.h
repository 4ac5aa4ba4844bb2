// Kernels of pooling that need no library.
#pragma once

#include <optional>

#include "op/operator.h"

namespace ortrain {

// In float, where values are stored with channels last.
std::optional<Kernel> channels_last_max_pool(KernelContext& c);
std::optional<Kernel> channels_last_max_pool_grad(KernelContext& c);
std::optional<Kernel> channels_last_average_pool(KernelContext& c);
std::optional<Kernel> channels_last_average_pool_grad(KernelContext& c);
std::optional<Kernel> channels_last_global_average_pool(KernelContext& c);
std::optional<Kernel> channels_last_global_max_pool(KernelContext& c);

std::optional<Kernel> row_major_max_pool(KernelContext& c);
std::optional<Kernel> row_major_max_pool_grad(KernelContext& c);
std::optional<Kernel> row_major_average_pool(KernelContext& c);
std::optional<Kernel> row_major_average_pool_grad(KernelContext& c);
std::optional<Kernel> row_major_global_average_pool(KernelContext& c);
std::optional<Kernel> row_major_global_max_pool(KernelContext& c);

}  // namespace ortrain
