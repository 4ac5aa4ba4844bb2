#include "session/inference_session.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "session/stage.h"

namespace ortrain {

struct InferenceSession::Impl {
  SessionOptions options;
  Model model;
  std::vector<ValueInfo> outputs;
  std::shared_ptr<Arena> arena = std::make_shared<Arena>();
  std::map<std::vector<std::string>, std::unique_ptr<Stage>> stages;  // one for each set of wanted outputs
  std::mutex busy;  // the stages share memory: runs follow one another

  Stage& stage(const std::vector<std::string>& wanted) {
    std::unique_ptr<Stage>& stage = stages[wanted];
    if (!stage) {
      Model pruned = model;
      pruned.graph.outputs.clear();
      for (const std::string& name : wanted) pruned.graph.outputs.push_back(*model.graph.info(name));
      pruned.graph.remove_unused_nodes();
      stage = std::make_unique<Stage>("model", std::move(pruned), model.graph.inputs, wanted, arena, options);
    }
    return *stage;
  }
};

InferenceSession::InferenceSession(SessionOptions options, Model model) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  impl_->model = std::move(model);
  impl_->outputs = impl_->model.graph.outputs;
  check_operators(impl_->model, "model");
}

InferenceSession::~InferenceSession() = default;

const std::vector<ValueInfo>& InferenceSession::inputs() const { return impl_->model.graph.inputs; }
const std::vector<ValueInfo>& InferenceSession::outputs() const { return impl_->outputs; }

std::vector<Tensor> InferenceSession::run(const std::vector<std::string>& input_names,
                                          const std::vector<Tensor>& inputs,
                                          const std::vector<std::string>& output_names,
                                          const RunOptions* options) {
  const std::lock_guard lock(impl_->busy);
  require(input_names.size() == inputs.size(), ErrorCode::kInvalidArgument, "the run was given ",
          input_names.size(), " input names and ", inputs.size(), " inputs");
  std::vector<std::string> wanted = output_names;
  if (wanted.empty())
    for (const ValueInfo& info : impl_->outputs) wanted.push_back(info.name);
  for (const std::string& name : wanted)
    require(impl_->model.graph.is_output(name), ErrorCode::kInvalidArgument, "the model has no output '",
            name, "'");
  std::vector<const Tensor*> ordered;
  for (const ValueInfo& info : impl_->model.graph.inputs) {
    const auto at = std::find(input_names.begin(), input_names.end(), info.name);
    require(at != input_names.end(), ErrorCode::kInvalidArgument, "the model's input '", info.name,
            "' was not given");
    ordered.push_back(&inputs[static_cast<size_t>(at - input_names.begin())]);
  }
  for (const std::string& name : input_names)
    require(impl_->model.graph.is_input(name), ErrorCode::kInvalidArgument, "the model has no input '", name,
            "'");
  std::vector<Tensor> outputs(wanted.size());
  std::vector<Tensor*> places;
  for (Tensor& t : outputs) places.push_back(&t);
  impl_->stage(wanted).run(ordered, places, 0, {}, {}, options);
  return outputs;
}

}  // namespace ortrain
