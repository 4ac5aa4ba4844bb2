#include "session/inference_session.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "artifacts/gradient_nodes.h"
#include "program/profile.h"
#include "runtime/file.h"
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
  ModelNotes notes;
  std::vector<ValueInfo> outputs;
  std::shared_ptr<Arena> arena = std::make_shared<Arena>();
  // One for each combination of requested outputs, omitted inputs and replaced initializers.
  using Names = std::vector<std::string>;
  std::map<std::tuple<Names, Names, Names>, std::unique_ptr<Stage>> stages;
  std::mutex busy;  // the stages share memory: runs follow one another
  std::optional<Profile> profile;
  Profile::Clock::time_point profile_start;

  // Throws if the requested outputs need an input that was omitted.
  Stage& stage(const Names& wanted, const Names& left_out, const Names& replaced) {
    std::unique_ptr<Stage>& stage = stages[{wanted, left_out, replaced}];
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
      for (const ValueInfo& info : notes.overridable) {
        if (std::find(replaced.begin(), replaced.end(), info.name) == replaced.end()) continue;
        pruned.graph.remove_initializer(info.name);
        pruned.graph.inputs.push_back(info);
      }
      std::vector<ValueInfo> inputs = pruned.graph.inputs;
      stage = std::make_unique<Stage>("model", std::move(pruned), std::move(inputs), wanted, arena, options);
      options.optimized_model_path.clear();  // the file is of the first one, with all outputs
    }
    return *stage;
  }
};

InferenceSession::InferenceSession(SessionOptions options, Model model, ModelNotes notes)
    : impl_(std::make_unique<Impl>()) {
  const Profile::Clock::time_point start = Profile::Clock::now();
  impl_->options = std::move(options);
  if (impl_->options.profile_prefix) {
    impl_->profile.emplace();
    impl_->profile_start = start;
  }
  impl_->model = std::move(model);
  impl_->notes = std::move(notes);
  fix_dimensions(impl_->model, impl_->notes, impl_->options);
  expand_gradient_nodes(impl_->model);
  check_operators(impl_->model, "model");
  impl_->outputs = outputs_of(impl_->model);
  // Created immediately, so that unsupported nodes are reported now and not in the first run.
  std::vector<std::string> all;
  for (const ValueInfo& info : impl_->outputs) all.push_back(info.name);
  impl_->stage(all, {}, {});
  if (impl_->profile) impl_->profile->session_event("session_initialization", start, Profile::Clock::now());
}

InferenceSession::~InferenceSession() {
  try {
    end_profiling();
  } catch (...) {  // the recording is lost, and there is nobody to tell
  }
}

const std::vector<ValueInfo>& InferenceSession::inputs() const { return impl_->model.graph.inputs; }
const std::vector<ValueInfo>& InferenceSession::outputs() const { return impl_->outputs; }
const std::vector<ValueInfo>& InferenceSession::overridable_initializers() const {
  return impl_->notes.overridable;
}
const Model& InferenceSession::model() const { return impl_->model; }
const ModelNotes& InferenceSession::notes() const { return impl_->notes; }

uint64_t InferenceSession::profiling_start() const {
  const auto since_epoch = impl_->profile_start.time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch).count());
}

std::string InferenceSession::end_profiling() {
  const std::lock_guard lock(impl_->busy);
  if (!impl_->profile) return "";
  const std::string trace = impl_->profile->session_trace();
  impl_->profile.reset();
  const std::filesystem::path path = profile_path(*impl_->options.profile_prefix);
  write_file(path, "profile", trace.data(), trace.size());
  return path.string();
}

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
                           const RunOptions* options, const std::vector<bool>& replaceable) {
  const std::lock_guard lock(impl_->busy);
  const Graph& graph = impl_->model.graph;
  require(input_names.size() == inputs.size(), ErrorCode::kInvalidArgument, "the run was given ",
          input_names.size(), " input names and ", inputs.size(), " inputs");
  for (const std::string& name : output_names)
    require(graph.is_output(name), ErrorCode::kInvalidArgument, "the model has no output '", name,
            "'; its outputs: ", listed(impl_->outputs));
  std::deque<Value> own;
  // The inputs, followed by the initializers that a run may replace.
  const std::vector<ValueInfo>& overridable = impl_->notes.overridable;
  std::vector<const Value*> ordered(graph.inputs.size() + overridable.size());
  for (size_t i = 0; i < input_names.size(); ++i) {
    const auto named = [&](const ValueInfo& info) { return info.name == input_names[i]; };
    auto at = std::find_if(graph.inputs.begin(), graph.inputs.end(), named);
    auto number = static_cast<size_t>(at - graph.inputs.begin());
    if (at == graph.inputs.end()) {
      at = std::find_if(overridable.begin(), overridable.end(), named);
      require(at != overridable.end(), ErrorCode::kInvalidArgument, "the model has no input '",
              input_names[i], "'; its inputs: ", listed(graph.inputs));
      number += static_cast<size_t>(at - overridable.begin());
    }
    const Value*& place = ordered[number];
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
  std::vector<std::string> left_out, replaced;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (!ordered[i] && graph.inputs[i].is_optional) ordered[i] = &nothing;
    if (ordered[i])
      given.emplace_back(*ordered[i]);
    else
      left_out.push_back(graph.inputs[i].name);
  }
  for (size_t i = 0; i < overridable.size(); ++i) {
    const Value* value = ordered[graph.inputs.size() + i];
    if (value == nullptr) continue;
    given.emplace_back(*value);
    replaced.push_back(overridable[i].name);
  }
  std::vector<Value*> places;
  for (Value& value : outputs) places.push_back(&value);
  Stage& stage = impl_->stage(output_names, left_out, replaced);
  Profile* profile = impl_->profile ? &*impl_->profile : nullptr;
  if (profile) profile->begin("model_run");
  stage.run(given, places, 0, {}, {}, options, profile, replaceable);
}

}  // namespace ortrain
