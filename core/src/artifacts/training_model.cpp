#include "artifacts/training_model.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "artifacts/forward_model.h"
#include "artifacts/gradient_nodes.h"
#include "autodiff/gradient_builder.h"
#include "op/operator.h"
#include "op/signature.h"
#include "passes/decompose.h"
#include "runtime/text.h"

namespace ortrain {
namespace {

// The outputs of the training model, in order, with their types and shapes as far as the model states them.
std::vector<ValueInfo> chosen_outputs(const Graph& graph, const GradientRequest& request) {
  std::vector<std::string> names = {request.loss};
  for (const std::string& name : request.other_outputs)
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  std::unordered_set<std::string> made;
  for (const Node& node : graph.nodes) made.insert(node.outputs.begin(), node.outputs.end());
  std::vector<ValueInfo> outputs;
  for (const std::string& name : names) {
    if (!made.count(name) && !graph.is_initializer(name) && !graph.is_input(name)) {
      std::vector<std::string> known;
      for (const ValueInfo& output : graph.outputs) known.push_back(output.name);
      fail(ErrorCode::kInvalidArgument, "the training model should have the output \"", name,
           "\", but the model has no value with that name; its outputs are ", quoted_list(known));
    }
    outputs.push_back(graph.info(name).value_or(ValueInfo{name, DType::kUndefined, std::nullopt}));
  }
  return outputs;
}

// The forward model with the requested outputs, ready for the builder.
Model prepared(const Model& forward, const GradientRequest& request, const std::set<std::string>& parameters,
               std::vector<std::string>& problems) {
  Model model = forward;
  expand_gradient_nodes(model);
  model.graph.outputs = chosen_outputs(model.graph, request);
  prepare_forward(model, parameters, request.config, problems);
  return model;
}

// Adds the output `<value>_grad`. `stated`: the known type and shape of the value, which are also those of
// the gradient.
void give_gradient(Graph& graph, const std::string& value, const std::string& gradient, ValueInfo stated) {
  require(gradient == value + "_grad", ErrorCode::kInvalidArgument, "the model has a value named \"", value,
          "_grad\" already, so the gradient of \"", value, "\" cannot have that name");
  stated.name = gradient;
  forget_made_up_names(stated);
  graph.outputs.push_back(std::move(stated));
}

// Checks the signatures of all nodes. Gradient rules copy attributes of forward nodes to the nodes that they
// add, so an attribute that is missing or of the wrong kind may only be found here: reading a model does not
// check attributes of operators that ONNX does not define.
void check_built(const Model& model) {
  try {
    check_signatures(model);
  } catch (const Error& error) {
    fail(error.code(), "the gradients do not fit the attributes of the forward model: ", error.message());
  }
}

}  // namespace

std::string find_untrainable(const Model& forward, const GradientRequest& request) {
  std::vector<std::string> problems;
  Model model = prepared(forward, request, {request.trainable.begin(), request.trainable.end()}, problems);
  GradientBuilder builder(model, request, true);
  builder.add_problems(problems);
  builder.run();
  std::string text;
  for (const std::string& problem : builder.problems()) text += (text.empty() ? "" : "\n") + problem;
  return text;
}

std::vector<std::string> find_unreached(const Model& forward, const GradientRequest& request) {
  std::vector<std::string> problems;
  Model model = prepared(forward, request, {request.trainable.begin(), request.trainable.end()}, problems);
  GradientBuilder builder(model, request, true);
  builder.run();
  return builder.unreached();
}

Model build_training_model(const Model& forward, const GradientRequest& request,
                           const std::vector<std::string>& parameters) {
  const std::set<std::string> listed(parameters.begin(), parameters.end());
  const std::set<std::string> trainable(request.trainable.begin(), request.trainable.end());
  for (const std::string& name : listed)
    require(forward.graph.is_initializer(name) || forward.graph.is_input(name), ErrorCode::kInvalidArgument,
            "parameter \"", name,
            "\" is neither an initializer nor an input of the model; its initializers are ",
            quoted_list(forward.graph.initializer_order));
  for (const std::string& name : trainable)
    require(listed.count(name) > 0, ErrorCode::kInvalidArgument, "the trainable value \"", name,
            "\" is not among the parameters");

  std::vector<std::string> problems;
  Model model = prepared(forward, request, listed, problems);
  GradientBuilder builder(model, request, true);
  builder.add_problems(problems);
  builder.run();
  if (problems = builder.problems(); !problems.empty()) reject_training(problems);

  Graph& graph = model.graph;
  const std::set<std::string> wanted_inputs(request.inputs.begin(), request.inputs.end());
  for (const ValueInfo& stated : forward.graph.inputs)
    if (wanted_inputs.count(stated.name))
      give_gradient(graph, stated.name, builder.gradient_of(stated.name), stated);
  std::vector<ValueInfo> buffers;
  for (ValueInfo stated : graph.inputs) {
    if (!trainable.count(stated.name)) continue;
    const std::string gradient = stated.name + "_grad";
    stated.name = gradient + ".accumulation.buffer";
    buffers.push_back(stated);
    graph.outputs.push_back(
        ValueInfo{gradient + ".accumulation.out", DType::kBool, std::vector<Dim>{Dim{1, ""}}});
  }
  graph.inputs.insert(graph.inputs.end(), buffers.begin(), buffers.end());
  graph.inputs.push_back(ValueInfo{kLazyReset, DType::kBool, std::vector<Dim>{Dim{1, ""}}});
  graph.remove_unused_nodes();
  drop_unused_outputs(graph);
  graph.remove_unused_initializers();
  graph.sort();
  check_built(model);
  return model;
}

Model build_gradient_model(const Model& forward, const GradientRequest& request) {
  Model model = forward;
  expand_gradient_nodes(model);
  const std::vector<std::string> unexpanded = decompose_operators(model, DecomposeFor::kGradient);
  const size_t own_inputs = model.graph.inputs.size();
  GradientBuilder builder(model, request, false);
  builder.add_problems(unexpanded);
  builder.run();
  if (const std::vector<std::string> problems = builder.problems(); !problems.empty())
    reject_training(problems);
  for (const std::string& name : request.trainable) {
    const std::string gradient = builder.gradient_of(name);
    const bool comes_in =
        std::any_of(model.graph.inputs.begin() + static_cast<std::ptrdiff_t>(own_inputs),
                    model.graph.inputs.end(), [&](const ValueInfo& v) { return v.name == gradient; });
    give_gradient(model.graph, name, comes_in ? "" : gradient,
                  forward.graph.info(name).value_or(builder.info(name)));
  }
  drop_unused_outputs(model.graph);
  model.graph.sort();
  check_built(model);
  return model;
}

}  // namespace ortrain
