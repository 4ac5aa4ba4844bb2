// Chooses the weights that a training graph trains: those that the parameters name, or all initializers that
// a gradient of the loss reaches. This comes first in the construction, because all other parts need the
// list.
#include "legacy/trained_weights.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "artifacts/training_model.h"
#include "autodiff/gradient_builder.h"
#include "runtime/error.h"
#include "runtime/text.h"

namespace ortrain {
namespace {

void check_loss(const GraphDraft& d) {
  std::vector<std::string> outputs;
  for (const ValueInfo& info : d.forward.graph.outputs) outputs.push_back(info.name);
  const bool made =
      std::any_of(d.forward.graph.nodes.begin(), d.forward.graph.nodes.end(), [&](const Node& n) {
        return std::find(n.outputs.begin(), n.outputs.end(), d.p.loss_output_name) != n.outputs.end();
      });
  require(made && !d.p.loss_output_name.empty(), ErrorCode::kInvalidArgument,
          "loss_output_name: the model has no "
          "value \"",
          d.p.loss_output_name, "\"; its outputs are ", quoted_list(outputs));
}

// Floating-point initializers that a gradient of the loss reaches.
std::set<std::string> found_weights(const GraphDraft& d) {
  std::set<std::string> constants;
  for (const Node& node : d.forward.graph.nodes) {
    const auto listed = d.p.immutable_weights.find(node.op_type);
    if (listed == d.p.immutable_weights.end()) continue;
    for (const auto& [i, value] : listed->second) {
      if (i < 0 || !node.has_input(static_cast<size_t>(i))) continue;
      const auto at = d.forward.graph.initializers.find(node.inputs[static_cast<size_t>(i)]);
      if (at == d.forward.graph.initializers.end() || at->second.dtype() != DType::kFloat ||
          !at->second.shape().empty())
        continue;
      if (*at->second.data<float>() == value) constants.insert(at->first);
    }
  }
  const auto uses = count_uses(d.forward.graph);
  GradientRequest request{{}, d.p.loss_output_name, {}};
  for (const std::string& name : d.forward.graph.initializer_order)
    if (is_floating(d.weight_value(name).dtype()) && uses.count(name) && !constants.count(name))
      request.trainable.push_back(name);
  std::set<std::string> found(request.trainable.begin(), request.trainable.end());
  for (const std::string& name : find_unreached(d.forward, request)) found.erase(name);
  return found;
}

}  // namespace

void choose_weights(GraphDraft& d) {
  check_loss(d);
  std::set<std::string> chosen;
  const auto uses = count_uses(d.forward.graph);
  for (const std::string& name : d.p.weights_to_train) {
    if (!uses.count(name)) {
      d.out.warnings.push_back(
          concat("weights_to_train: no node reads \"", name, "\", so it is not trained"));
      continue;
    }
    require(d.forward.graph.is_initializer(name), ErrorCode::kInvalidArgument, "weights_to_train: \"", name,
            "\" is not an initializer of the model, so it cannot be trained",
            suggestion(name, d.forward.graph.initializer_order));
    chosen.insert(name);
  }
  if (chosen.empty()) chosen = found_weights(d);
  for (const std::string& name : d.forward.graph.initializer_order)
    if (chosen.count(name) && !d.p.weights_not_to_train.count(name) &&
        is_floating(d.weight_value(name).dtype()))
      d.weights.push_back(name);
  require(!d.weights.empty(), ErrorCode::kInvalidArgument,
          "there is nothing to train: no initializer is left that the loss \"", d.p.loss_output_name,
          "\" depends on");
}

}  // namespace ortrain
