// Allows convolutions with 3 x 3 windows to be computed by Winograd's minimal filtering if that pays off for
// the input sizes of a Program (backend/cpu/conv/winograd.h). This is a pass so that it can be switched
// off: the sums are rounded differently.
#include "geometry/convolution.h"
#include "op/operator.h"
#include "passes/passes.h"

namespace ortrain {

bool winograd(Model& model) {
  bool changed = false;
  for (Node& node : model.graph.nodes) {
    const Operator* op = find_operator(node.domain, node.op_type);
    if (op && op->traits.weights >= 0) changed |= node.attributes.emplace(kWinograd, int64_t{1}).second;
  }
  return changed;
}

}  // namespace ortrain
