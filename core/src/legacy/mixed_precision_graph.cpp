// Mixed precision as parts of a training graph: which weights have 16-bit copies, the input for the loss
// scale, and the state of each copy. The rewrite of the nodes is in half_precision.cpp, which does not depend
// on training graphs.
#include "legacy/mixed_precision_graph.h"

#include <set>

#include "legacy/half_precision.h"

namespace ortrain {

void use_halves(GraphDraft& d) {
  if (!d.p.use_mixed_precision || d.request.bf16) return;
  std::set<std::string> full;
  for (const std::string& weight : d.weights)
    if (d.weight_value(weight).dtype() == DType::kFloat) full.insert(weight);
  d.halves = use_half_precision(d.out.model, full, d.p.loss_output_name);
}

std::string add_loss_scale(GraphDraft& d) {
  if (!d.p.use_mixed_precision) return d.p.loss_output_name;
  d.out.loss_scale_input = d.graph.unique_name("loss_scale");
  d.graph.inputs.push_back({d.out.loss_scale_input, DType::kFloat, std::vector<Dim>{Dim{1, ""}}});
  if (!d.part.ends_in_loss()) return d.p.loss_output_name;
  const std::string shape = d.constant("loss_scale_shape", Tensor(DType::kInt64, Shape{0}));
  const std::string factor =
      d.add("Reshape", {d.out.loss_scale_input, shape}, d.graph.unique_name("loss_factor"));
  const std::string scaled = d.add("Mul", {d.p.loss_output_name, factor}, d.graph.unique_name("scaled_loss"));
  d.add_output(scaled, DType::kFloat, std::vector<Dim>{});
  return scaled;
}

std::string add_half_state(GraphDraft& d, const std::string& weight, bool hidden) {
  const auto half = d.halves.find(weight);
  if (half == d.halves.end()) return "";
  d.remove_input(half->second);
  d.graph.add_initializer(half->second, half_of(d.weight_value(weight)));
  d.out.states.push_back({half->second, StateRole::kMixedPrecision, weight, {}, 0, hidden});
  return half->second;
}

}  // namespace ortrain
