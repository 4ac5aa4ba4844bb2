// Lets convolutions of 3 x 3 windows be computed by Winograd's minimal filtering, where the sizes of a
// Program's inputs make that worth while (backend/cpu/conv/winograd.h). A pass so that it can be switched
// off: its sums round otherwise.
#include "ops/common/convolution_weights.h"
#include "passes/pass.h"

namespace ortrain {
namespace {

bool winograd(Model& model) {
  bool changed = false;
  for (Node& node : model.graph.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (reads_convolution_weights(node, i))
        changed |= node.attributes.emplace(kWinograd, int64_t{1}).second;
  }
  return changed;
}

ORTRAIN_PASS({.name = "winograd", .moment = PassMoment::kSession, .order = 95, .run = winograd});

}  // namespace
}  // namespace ortrain
