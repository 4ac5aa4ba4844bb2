// Lets convolutions of 3 x 3 windows be computed by Winograd's minimal filtering, where the sizes of a
// Program's inputs make that worth while (backend/cpu/onednn/winograd.h). A pass so that it can be switched
// off: its sums round otherwise.
#include "op/convolution.h"
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
