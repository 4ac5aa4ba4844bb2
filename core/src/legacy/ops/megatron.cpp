// MegatronF and MegatronG (com.microsoft): the borders of layers that are divided among processes. Values
// that enter such layers are whole in every process; the results of the processes are added up where they
// leave. Each operator is the gradient of the other.
//
// M. Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model parallelism",
// 2019, section 3.
#include <algorithm>

#include "legacy/partition.h"
#include "legacy/rank_sum.h"
#include "op/operator.h"

namespace ortrain {
namespace {

// Whether a node's group is that of the processes that share a layer. Groups of another type are not known
// here, and count as one process.
bool is_shared(const Node& node) { return node.int_or("group_type", 0) == 1; }

Kernel pass_on(KernelContext& c) {
  c.alias(0, 0);
  return nullptr;
}

Kernel add_up(KernelContext& c) {
  if (!is_shared(c.node())) return pass_on(c);
  const DType dtype = c.dtype(0);
  if (dtype != DType::kFloat && dtype != DType::kDouble) c.reject_dtype(0);
  const Slot x = c.in(0), y = c.out_inplace(0, {0});
  const auto count = static_cast<size_t>(c.out_size(0));
  const size_t bytes = bytes_of(dtype, c.out_size(0));
  return [=, name = c.node().outputs[0]](const Frame& f) {
    const std::byte* from = f.at<std::byte>(x);
    std::byte* to = f.at<std::byte>(y);
    if (from != to) std::copy(from, from + bytes, to);
    sum_over_ranks(to, count, dtype, name.c_str());
  };
}

void gradient_of_f(GradientContext& g) {
  g.set(0, g("MegatronG", {g.dy(0)}, g.node().attributes, kMicrosoft));
}
void gradient_of_g(GradientContext& g) {
  g.set(0, g("MegatronF", {g.dy(0)}, g.node().attributes, kMicrosoft));
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "MegatronF",
                  .signature = "input -> output | group_type: int?",
                  .rules = {.shape = shape_like_first, .gradient = gradient_of_f},
                  .kernels = {.cpu = pass_on}});
// It waits for other processes, which run it as often and in the same order.
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "MegatronG",
                  .signature = "input -> output | group_type: int?",
                  .rules = {.shape = shape_like_first, .gradient = gradient_of_g},
                  .traits = {.impure = true},
                  .kernels = {.cpu = add_up}});
ORTRAIN_OPERATOR_FACT(PartitionRules, kMicrosoft, "MegatronG", {.adds_up_ranks = true});

}  // namespace
}  // namespace ortrain
