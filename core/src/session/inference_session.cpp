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
#include "infer/value_types.h"
#include "op/operator.h"
#include "program/profile.h"
#include "runtime/file.h"
#include "runtime/path.h"
#include "runtime/stop.h"
#include "session/mixed_precision.h"
#include "session/output_types.h"
#include "session/session_state.h"
#include "session/stage.h"

namespace ortrain {

namespace {

std::string listed(const std::vector<ValueInfo>& infos) {
  std::string text;
  for (const ValueInfo& info : infos) text += (text.empty() ? "" : ", ") + info.name;
  return text.empty() ? "none" : text;
}

// The types and shapes of the outputs, as far as they are known; a model need not state them.
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
  Model model;  // whose inputs are those of the caller, then states
  ModelNotes notes;
  std::vector<ValueInfo> inputs, outputs;
  std::shared_ptr<Arena> arena = std::make_shared<Arena>();
  Precision precision = Precision::kFloat;
  size_t memory_budget = 0;
  std::shared_ptr<SessionState> state;  // null: none
  // A stage for each combination of requested outputs, omitted inputs, replaced initializers and inputs of
  // any size, and of whether other nodes run too.
  using Names = std::vector<std::string>;
  std::map<std::tuple<Names, Names, Names, Names, bool>, std::unique_ptr<Stage>> stages;
  std::mutex busy;  // the stages share memory, so runs follow one another
  std::optional<Profile> profile;
  std::chrono::system_clock::time_point profile_start;  // the epoch if nothing is recorded

  // The outputs of nodes that update states, one for each node.
  Names updates(const Graph& graph) const {
    Names names;
    if (!state) return names;
    for (const Node& node : graph.nodes) {
      const Operator* op = find_operator(node.domain, node.op_type);
      bool updates = false;
      for (size_t i = 0; op && i < node.inputs.size() && i < 32; ++i)
        updates |= (op->traits.updates >> i & 1) && state->tensors().contains(node.inputs[i]);
      const auto named = std::find_if(node.outputs.begin(), node.outputs.end(),
                                      [](const std::string& name) { return !name.empty(); });
      if (updates && named != node.outputs.end()) names.push_back(*named);
    }
    return names;
  }

  // A run that updates state.
  void update(Stage& stage, const std::vector<ValueRef>& given, const std::vector<Value*>& places,
              const RunOptions* run_options, Profile* recording, const std::vector<bool>& replaceable) {
    const StateWatch watch = state->prepare(stage, run_options);
    try {
      stage.run(given, places, 0, state->tensors(), {}, run_options, recording, replaceable,
                watch ? &watch : nullptr);
    } catch (...) {
      state->failed(stage.broke_off());
      throw;
    }
    state->completed();
  }

  // Throws if the requested outputs need an input that was omitted.
  Stage& stage(const Names& wanted, const Names& left_out, const Names& replaced, const Names& resized,
               bool only_path) {
    std::unique_ptr<Stage>& stage = stages[{wanted, left_out, replaced, resized, only_path}];
    if (!stage) {
      Model pruned = model;
      pruned.graph.outputs.clear();
      for (const std::string& name : wanted) pruned.graph.outputs.push_back(*model.graph.info(name));
      const auto keep = [&](const Names& names) {
        for (const std::string& name : names)
          if (!pruned.graph.is_output(name))
            pruned.graph.outputs.push_back(
                model.graph.info(name).value_or(ValueInfo{name, DType::kUndefined, std::nullopt}));
      };
      if (!only_path) keep(updates(model.graph));
      pruned.graph.remove_unused_nodes();
      keep(updates(pruned.graph));  // nodes that the outputs need update their states
      const std::unordered_map<std::string, int> uses = count_uses(pruned.graph);
      for (const std::string& name : left_out)
        require(!uses.contains(name), ErrorCode::kInvalidArgument, "the model's input '", name,
                "' was not given");
      const auto is_left_out = [&](const ValueInfo& info) {
        return std::find(left_out.begin(), left_out.end(), info.name) != left_out.end();
      };
      std::erase_if(pruned.graph.inputs, is_left_out);
      std::vector<ValueInfo> given = inputs;
      std::erase_if(given, is_left_out);
      for (const ValueInfo& info : notes.overridable) {
        if (std::find(replaced.begin(), replaced.end(), info.name) == replaced.end()) continue;
        pruned.graph.remove_initializer(info.name);
        pruned.graph.inputs.push_back(info);
        given.push_back(info);
      }
      resize(pruned.graph.inputs, resized);
      resize(given, resized);
      using Layouts = std::unordered_map<std::string, LayoutPtr>;
      stage = std::make_unique<Stage>(state ? state->model_name() : "model", std::move(pruned),
                                      std::move(given), wanted, arena, options, precision, memory_budget,
                                      state ? state->layouts() : Layouts(),
                                      state ? state->updated_together() : std::set<std::string>(),
                                      state ? PassPhase::kSession : PassPhase::kInference);
      options.optimized_model_path.clear();  // the file is that of the first stage, which has all outputs
    }
    return *stage;
  }

  // Gives any size to the dimensions of these inputs that are declared as 0.
  static void resize(std::vector<ValueInfo>& infos, const Names& names) {
    for (ValueInfo& info : infos)
      if (info.dims && std::find(names.begin(), names.end(), info.name) != names.end())
        for (Dim& dim : *info.dims)
          if (dim.known() && dim.value == 0) dim = Dim();
  }

  // The inputs and initializers that are declared with a dimension of 0 and for which an adapter has
  // elements. A model declares them so if it shall run without an adapter as well, in which case their rank
  // is 0.
  Names resized(const RunOptions* options) const {
    Names names;
    if (options == nullptr) return names;
    for (const auto& [name, tensor] : options->adapter_inputs)
      for (const auto* all : {&inputs, &notes.overridable})
        for (const ValueInfo& info : *all)
          if (info.name == name && info.dims && tensor.size() > 0 &&
              std::any_of(info.dims->begin(), info.dims->end(),
                          [](const Dim& dim) { return dim.known() && dim.value == 0; }))
            names.push_back(name);
    return names;
  }

  void start(SessionOptions settings) {
    options = std::move(settings);
    if (!options.profile_prefix) return;
    profile.emplace();
    profile_start = std::chrono::system_clock::now();
  }
  // Creates the stage of all outputs, so that unsupported nodes are reported now and not in the first run.
  void check(Profile::Clock::time_point start) {
    Names all;
    for (const ValueInfo& info : outputs) all.push_back(info.name);
    stage(all, {}, {}, {}, !state);
    if (profile) profile->session_event("session_initialization", start, Profile::Clock::now());
  }
};

InferenceSession::InferenceSession(SessionOptions options, Model model, ModelNotes notes)
    : impl_(std::make_unique<Impl>()) {
  const Profile::Clock::time_point start = Profile::Clock::now();
  impl_->start(std::move(options));
  impl_->model = std::move(model);
  impl_->notes = std::move(notes);
  const auto& may_continue = impl_->options.may_continue;
  const StopScope stop(&may_continue);
  fix_dimensions(impl_->model, impl_->notes, impl_->options);
  if (may_continue) may_continue();
  if constexpr (kArtifactsPart.is_built) expand_gradient_nodes(impl_->model);
  if (!impl_->options.custom_operators) check_operators(impl_->model, "model");
  impl_->inputs = impl_->model.graph.inputs;
  impl_->outputs = outputs_of(impl_->model);
  if (may_continue) may_continue();
  impl_->check(start);
  if (may_continue) may_continue();
}

InferenceSession::InferenceSession(SessionOptions options, Model model, ModelNotes notes,
                                   std::shared_ptr<SessionState> state)
    : impl_(std::make_unique<Impl>()) {
  const Profile::Clock::time_point start = Profile::Clock::now();
  Impl& s = *impl_;
  s.start(std::move(options));
  const StopScope stop(&s.options.may_continue);
  s.precision = read_precision(s.options);
  s.memory_budget = ortrain::memory_budget(s.options);
  s.notes = std::move(notes);
  s.inputs = model.graph.inputs;
  s.outputs = outputs_of(model);
  state->take_from(model, s.options);
  s.state = std::move(state);
  s.model = std::move(model);
  s.check(start);
}

InferenceSession::~InferenceSession() {
  try {
    end_profiling();
  } catch (...) {  // the recording is lost; an error could not be reported
  }
}

const std::vector<ValueInfo>& InferenceSession::inputs() const { return impl_->inputs; }
const std::vector<ValueInfo>& InferenceSession::outputs() const { return impl_->outputs; }
const std::vector<ValueInfo>& InferenceSession::overridable_initializers() const {
  return impl_->notes.overridable;
}
std::unique_lock<std::mutex> InferenceSession::lock() const { return std::unique_lock(impl_->busy); }

DType InferenceSession::node_output_type(const std::string& name) const {
  for (const Node& node : impl_->model.graph.nodes)
    if (!name.empty() && std::find(node.outputs.begin(), node.outputs.end(), name) != node.outputs.end())
      return ValueTypes(impl_->model).info(name).dtype;
  fail(ErrorCode::kInvalidArgument, "no node of the model produces \"", name, "\"");
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
  const std::string path = profile_path(*impl_->options.profile_prefix);
  write_file(from_utf8(path), "profile", trace.data(), trace.size());
  return path;
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
  const std::vector<ValueInfo>& expected = impl_->inputs;
  require(input_names.size() == inputs.size(), ErrorCode::kInvalidArgument, "the run was given ",
          counted(input_names.size(), "input name"), " and ", counted(inputs.size(), "input"));
  for (const std::string& name : output_names)
    require(impl_->model.graph.is_output(name), ErrorCode::kInvalidArgument, "the model has no output '",
            name, "'; its outputs: ", listed(impl_->outputs));
  SessionState* state = impl_->state.get();
  if (state) state->begin(options);
  std::deque<Value> own;
  // The inputs, followed by the initializers that a run may replace.
  const std::vector<ValueInfo>& overridable = impl_->notes.overridable;
  std::vector<const Value*> ordered(expected.size() + overridable.size());
  const auto take = [&](const std::string& name, const Value& value) {
    if (state && state->set(name, value)) return;
    const auto named = [&](const ValueInfo& info) { return info.name == name; };
    auto at = std::find_if(expected.begin(), expected.end(), named);
    auto number = static_cast<size_t>(at - expected.begin());
    if (at == expected.end()) {
      at = std::find_if(overridable.begin(), overridable.end(), named);
      require(at != overridable.end(), ErrorCode::kInvalidArgument, "the model has no input '", name,
              "'; its inputs: ", listed(expected));
      number += static_cast<size_t>(at - overridable.begin());
    }
    const Value*& place = ordered[number];
    require(place == nullptr, ErrorCode::kInvalidArgument, "the model's input '", name, "' was given twice");
    place = &value;
    // Sequences may be in use elsewhere at the same time, so the run works on its own lists. An empty one may
    // have no type yet.
    if (const auto* sequence = std::get_if<Sequence>(&value))
      place = &own.emplace_back(sequence->size() == 0 ? Sequence(at->dtype) : sequence->detached());
  };
  for (size_t i = 0; i < input_names.size(); ++i) take(input_names[i], inputs[i]);
  if (options)
    for (const auto& [name, tensor] : options->adapter_inputs) take(name, own.emplace_back(tensor));
  const Value nothing = Nothing{};
  std::vector<ValueRef> given;
  std::vector<std::string> left_out, replaced;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!ordered[i] && expected[i].is_optional) ordered[i] = &nothing;
    if (ordered[i])
      given.emplace_back(*ordered[i]);
    else
      left_out.push_back(expected[i].name);
  }
  for (size_t i = 0; i < overridable.size(); ++i) {
    const Value* value = ordered[expected.size() + i];
    if (value == nullptr) continue;
    given.emplace_back(*value);
    replaced.push_back(overridable[i].name);
  }
  std::vector<Value*> places;
  for (Value& value : outputs) places.push_back(&value);
  const bool only_path = !state || (options && options->only_execute_path_to_fetches);
  Stage& stage = impl_->stage(output_names, left_out, replaced, impl_->resized(options), only_path);
  std::optional<Profile> of_run;
  if (!impl_->profile && options && options->profile_prefix) of_run.emplace();
  Profile* profile = impl_->profile ? &*impl_->profile : of_run ? &*of_run : nullptr;
  if (profile) profile->begin("model_run");
  if (state)
    impl_->update(stage, given, places, options, profile, replaceable);
  else
    stage.run(given, places, 0, {}, {}, options, profile, replaceable);
  if (!of_run) return;
  const std::string trace = of_run->session_trace();
  write_file(from_utf8(profile_path(*options->profile_prefix)), "profile", trace.data(), trace.size());
}

}  // namespace ortrain
