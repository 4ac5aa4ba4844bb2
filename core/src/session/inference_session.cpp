#include "session/inference_session.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "artifacts/gradient_nodes.h"
#include "session/output_types.h"
#include "session/stage.h"

namespace ortrain {

namespace {

std::string listed(const std::vector<ValueInfo>& infos) {
  std::string text;
  for (const ValueInfo& info : infos) text += (text.empty() ? "" : ", ") + info.name;
  return text.empty() ? "none" : text;
}

// What is known about the outputs, which a model need not state.
std::vector<ValueInfo> outputs_of(const Model& model) {
  const auto is_stated = [](const ValueInfo& info) {
    return info.dtype != DType::kUndefined && info.dims &&
           std::all_of(info.dims->begin(), info.dims->end(),
                       [](const Dim& dim) { return dim.known() || !dim.symbol.empty(); });
  };
  const std::vector<ValueInfo>& stated = model.graph.outputs;
  return std::all_of(stated.begin(), stated.end(), is_stated) ? stated : output_types(model);
}

}  // namespace

struct InferenceSession::Impl {
  SessionOptions options;
  Model model;
  std::vector<ValueInfo> outputs;
  std::shared_ptr<Arena> arena = std::make_shared<Arena>();
  // One for each combination of requested outputs and omitted inputs.
  using Names = std::vector<std::string>;
  std::map<std::pair<Names, Names>, std::unique_ptr<Stage>> stages;
  std::mutex busy;  // the stages share memory: runs follow one another

  // Throws if the requested outputs need an input that was omitted.
  Stage& stage(const Names& wanted, const Names& left_out) {
    std::unique_ptr<Stage>& stage = stages[{wanted, left_out}];
    if (!stage) {
      Model pruned = model;
      pruned.graph.outputs.clear();
      for (const std::string& name : wanted) pruned.graph.outputs.push_back(*model.graph.info(name));
      pruned.graph.remove_unused_nodes();
      const std::unordered_map<std::string, int> uses = count_uses(pruned.graph);
      for (const std::string& name : left_out)
        require(!uses.contains(name), ErrorCode::kInvalidArgument, "the model's input '", name,
                "' was not given");
      std::erase_if(pruned.graph.inputs, [&](const ValueInfo& info) {
        return std::find(left_out.begin(), left_out.end(), info.name) != left_out.end();
      });
      std::vector<ValueInfo> inputs = pruned.graph.inputs;
      stage = std::make_unique<Stage>("model", std::move(pruned), std::move(inputs), wanted, arena, options);
      options.optimized_model_path.clear();  // the file is of the first one, with all outputs
    }
    return *stage;
  }
};

InferenceSession::InferenceSession(SessionOptions options, Model model) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  impl_->model = std::move(model);
  expand_gradient_nodes(impl_->model);
  check_operators(impl_->model, "model");
  impl_->outputs = outputs_of(impl_->model);
  // Created immediately, so that unsupported nodes are reported now and not in the first run.
  std::vector<std::string> all;
  for (const ValueInfo& info : impl_->outputs) all.push_back(info.name);
  impl_->stage(all, {});
}

InferenceSession::~InferenceSession() = default;

const std::vector<ValueInfo>& InferenceSession::inputs() const { return impl_->model.graph.inputs; }
const std::vector<ValueInfo>& InferenceSession::outputs() const { return impl_->outputs; }

std::vector<Value> InferenceSession::run(const std::vector<std::string>& input_names,
                                         const std::vector<Value>& inputs,
                                         const std::vector<std::string>& output_names,
                                         const RunOptions* options) {
  std::vector<std::string> wanted = output_names;
  if (wanted.empty())
    for (const ValueInfo& info : impl_->outputs) wanted.push_back(info.name);
  std::vector<Value> outputs(wanted.size());
  run(input_names, inputs, wanted, outputs, options);
  return outputs;
}

void InferenceSession::run(const std::vector<std::string>& input_names, const std::vector<Value>& inputs,
                           const std::vector<std::string>& output_names, std::vector<Value>& outputs,
                           const RunOptions* options) {
  const std::lock_guard lock(impl_->busy);
  const Graph& graph = impl_->model.graph;
  require(input_names.size() == inputs.size(), ErrorCode::kInvalidArgument, "the run was given ",
          input_names.size(), " input names and ", inputs.size(), " inputs");
  for (const std::string& name : output_names)
    require(graph.is_output(name), ErrorCode::kInvalidArgument, "the model has no output '", name,
            "'; its outputs: ", listed(impl_->outputs));
  std::deque<Value> own;
  std::vector<const Value*> ordered(graph.inputs.size());
  for (size_t i = 0; i < input_names.size(); ++i) {
    const auto at = std::find_if(graph.inputs.begin(), graph.inputs.end(),
                                 [&](const ValueInfo& info) { return info.name == input_names[i]; });
    require(at != graph.inputs.end(), ErrorCode::kInvalidArgument, "the model has no input '", input_names[i],
            "'; its inputs: ", listed(graph.inputs));
    const Value*& place = ordered[static_cast<size_t>(at - graph.inputs.begin())];
    require(place == nullptr, ErrorCode::kInvalidArgument, "the model's input '", input_names[i],
            "' was given twice");
    place = &inputs[i];
    // Sequences may be in use elsewhere at the same time, so the run works on its own lists. An empty one may
    // have no type yet.
    if (const auto* sequence = std::get_if<Sequence>(&inputs[i]))
      place = &own.emplace_back(sequence->size() == 0 ? Sequence(at->dtype) : sequence->detached());
  }
  const Value nothing = Nothing{};
  std::vector<ValueRef> given;
  std::vector<std::string> left_out;
  for (size_t i = 0; i < ordered.size(); ++i) {
    if (!ordered[i] && graph.inputs[i].is_optional) ordered[i] = &nothing;
    if (ordered[i])
      given.emplace_back(*ordered[i]);
    else
      left_out.push_back(graph.inputs[i].name);
  }
  std::vector<Value*> places;
  for (Value& value : outputs) places.push_back(&value);
  impl_->stage(output_names, left_out).run(given, places, 0, {}, {}, options);
}

}  // namespace ortrain
