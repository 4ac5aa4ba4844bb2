#include "session/training_session.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>
#include <unordered_set>

#include "graph/onnx_io.h"
#include "op/operator.h"
#include "runtime/convert.h"
#include "runtime/denormals.h"
#include "runtime/generated/parts.h"
#include "runtime/stop.h"
#include "runtime/threads.h"
#include "session/gradient_bounds.h"
#include "session/gradient_rows.h"
#include "session/mixed_precision.h"
#include "session/optimizer.h"
#include "session/output_types.h"
#include "session/parameter_layouts.h"
#include "session/schedule/schedule.h"
#include "session/stage.h"

namespace ortrain {

namespace {

constexpr std::string_view kAccumulatedSuffix = "_grad.accumulation.out";
constexpr const char* kLazyReset = "lazy_reset_grad";
constexpr const char* kLearningRate = "learning_rate";
// The key of a model's metadata, and of a session's configuration.
constexpr const char* kOptionalOutputs = "ortrain.optional_outputs";
constexpr const char* kExternalData = "ortrain.external_data";
const std::vector<std::string> kNoNames;

bool ends_with(std::string_view text, std::string_view suffix) { return text.ends_with(suffix); }

// The value of a floating-point tensor with one element.
std::optional<double> scalar(const Tensor& tensor) {
  std::optional<double> value;
  if (tensor.size() == 1)
    visit_types<float, double, Float16, BFloat16>(
        tensor.dtype(), [&](auto zero) { value = cast_number<double>(*tensor.data<decltype(zero)>()); });
  return value;
}

[[noreturn]] void reject_gradients(const CheckpointState& state, std::optional<double> loss) {
  fail(ErrorCode::kRuntimeException, "optimizer step ", state.optimizer().step + 1, ": ",
       nonfinite_gradients(state), "\n",
       loss ? concat("The loss of the last train step was ", *loss, ". ") : "",
       "Nothing was changed. Reset the gradients before the next train step; with the session config entry "
       "ortrain.nonfinite_gradients = skip such steps are left out and counted, with apply they are taken");
}

// The inputs of a model that the user provides. By contract they come before the parameters.
std::vector<ValueInfo> user_inputs(const Model& model, const CheckpointState& state, const std::string& what,
                                   std::string& problems) {
  std::vector<ValueInfo> inputs;
  bool parameters_began = false;
  for (const ValueInfo& info : model.graph.inputs) {
    if (info.name == kLazyReset || ends_with(info.name, kBufferSuffix)) {
      parameters_began = true;
      continue;
    }
    if (state.has_parameter(info.name)) {
      parameters_began = true;
      const Tensor& data = state.parameter(info.name).data;
      bool fits = info.dtype == data.dtype() && (!info.dims || info.dims->size() == data.shape().size());
      for (size_t i = 0; fits && info.dims && i < info.dims->size(); ++i)
        fits = !(*info.dims)[i].known() || (*info.dims)[i].value == data.shape()[i];
      if (!fits) {
        Shape expected;
        if (info.dims)
          for (const Dim& d : *info.dims) expected.push_back(d.value);
        problems += concat("\n  parameter '", info.name, "': the ", what, " expects ", to_string(info.dtype),
                           to_string(expected), ", the checkpoint has ", to_string(data.dtype()),
                           to_string(data.shape()));
      }
      continue;
    }
    if (parameters_began) {
      problems += concat("\n  parameter '", info.name, "' of the ", what, " is not in the checkpoint");
      continue;
    }
    inputs.push_back(info);
  }
  return inputs;
}

// The values that kernels of the model change, such as running statistics.
std::unordered_set<std::string> updated_values(const Model& model) {
  std::unordered_set<std::string> updated;
  for (const Node& node : model.graph.nodes) {
    const Operator* op = find_operator(node.domain, node.op_type);
    for (size_t i = 0; op && i < node.inputs.size(); ++i)
      if (op->traits.updates >> i & 1) updated.insert(node.inputs[i]);
  }
  return updated;
}

// One of the parameters that kernels of the model change; empty if there is none.
std::string updated_parameter(const CheckpointState& state, const Model& model) {
  const std::unordered_set<std::string> updated = updated_values(model);
  for (const Parameter& p : state.parameters())
    if (updated.contains(p.name)) return p.name;
  return "";
}

// The parameters that no kernel of the model changes, nor an optimizer, if they are trained.
std::vector<std::string> fixed_parameters(const CheckpointState& state, const Model& model, bool trained) {
  const std::unordered_set<std::string> updated = updated_values(model);
  std::vector<std::string> fixed;
  for (const Parameter& p : state.parameters())
    if (!(trained && p.trainable) && !updated.contains(p.name)) fixed.push_back(p.name);
  return fixed;
}

// Removes the outputs of a training or eval model that its metadata declares as optional, one name per line,
// unless the session is configured to return them: predictions, which a loop that needs only the loss does
// not ask for. The first output is the loss.
void remove_optional_outputs(Model& model, const SessionOptions& options) {
  const auto entry = model.metadata.find(kOptionalOutputs);
  if (entry == model.metadata.end() || config_choice(options, kOptionalOutputs) == "1") return;
  std::set<std::string> optional;
  std::istringstream lines(entry->second);
  for (std::string name; std::getline(lines, name);) optional.insert(name);
  if (!model.graph.outputs.empty()) optional.erase(model.graph.outputs[0].name);
  std::erase_if(model.graph.outputs, [&](const ValueInfo& info) { return optional.contains(info.name); });
}

std::vector<std::string> user_outputs(const Model& model) {
  std::vector<std::string> outputs;
  for (const ValueInfo& info : model.graph.outputs)
    if (!ends_with(info.name, kAccumulatedSuffix)) outputs.push_back(info.name);
  return outputs;
}

// The order of the parameters in buffers, which is that of the model's inputs. A nominal checkpoint may lack
// shapes; these also come from the model.
std::vector<std::string> take_order(CheckpointState& state, const Model& train) {
  std::vector<std::string> order;
  for (const ValueInfo& info : train.graph.inputs) {
    if (!state.has_parameter(info.name)) continue;
    order.push_back(info.name);
    if (!state.is_nominal() || !info.dims) continue;
    Shape shape;
    for (const Dim& d : *info.dims) shape.push_back(d.value);
    if (std::all_of(shape.begin(), shape.end(), [](int64_t dim) { return dim >= 0; }))
      state.set_nominal_shape(info.name, shape);
  }
  for (const Parameter& p : state.parameters())  // parameters that the model does not read come last
    if (std::find(order.begin(), order.end(), p.name) == order.end()) order.push_back(p.name);
  return order;
}

// Throws if the parameters of the training model and of the checkpoint disagree, or if the eval model belongs
// to another network. `problems` has the problems found so far.
void expect_together(const CheckpointState& state, const Model& train,
                     const std::vector<ValueInfo>& train_inputs, const std::vector<ValueInfo>& eval_inputs,
                     std::string problems) {
  bool is_training_model = false;  // a model with nothing to train has no buffers
  for (const ValueInfo& info : train.graph.inputs) {
    is_training_model |= info.name == kLazyReset || ends_with(info.name, kBufferSuffix);
    if (!ends_with(info.name, kBufferSuffix)) continue;
    const std::string name = info.name.substr(0, info.name.size() - kBufferSuffix.size());
    if (!state.has_parameter(name))
      problems +=
          concat("\n  trainable parameter '", name, "' of the training model is not in the checkpoint");
    else if (!state.parameter(name).trainable)
      problems +=
          concat("\n  parameter '", name, "' is trained by the training model but frozen in the checkpoint");
  }
  for (const Parameter& p : state.parameters())
    if (p.trainable && !train.graph.is_input(p.name + std::string(kBufferSuffix)))
      problems += concat("\n  trainable parameter '", p.name,
                         "' of the checkpoint has no gradient in the training model");
  require(
      is_training_model || !problems.empty(), ErrorCode::kInvalidGraph,
      "the training model has no gradient accumulation buffer among its inputs: it is not a training model");
  // The parameters of another network look like inputs.
  for (const ValueInfo& info : eval_inputs)
    if (std::none_of(train_inputs.begin(), train_inputs.end(),
                     [&](const ValueInfo& known) { return known.name == info.name; }))
      problems += concat("\n  input '", info.name,
                         "' of the eval model is neither an input of the training model nor a parameter of "
                         "the checkpoint");
  require(problems.empty(), ErrorCode::kInvalidArgument, "the models do not match the checkpoint:", problems);
}

// Steps take and return tensors.
void expect_tensors(const std::vector<ValueInfo>& train_inputs, const Model& train) {
  std::string others;
  for (const ValueInfo& info : train_inputs)
    if (!info.is_tensor()) others += concat("\n  input '", info.name, "'");
  for (const ValueInfo& info : train.graph.outputs)
    if (!info.is_tensor()) others += concat("\n  output '", info.name, "'");
  require(
      others.empty(), ErrorCode::kNotImplemented,
      "the training model has inputs or outputs that are sequences or optional values, but steps take and "
      "return tensors:",
      others);
}

void require_values(const CheckpointState& state, const char* doing) {
  require(
      !state.is_nominal(), ErrorCode::kRuntimeException, doing,
      ": the checkpoint is nominal and holds no values. Please load the model parameters first. Copying a "
      "buffer with all parameters does that.");
}

// Rejects adapters of another base than that of the model.
void expect_base(const CheckpointState& state, const Model& train) {
  const auto stated = train.metadata.find(kAdapterBase);
  const std::string of_model = stated == train.metadata.end() ? "" : stated->second;
  const std::string of_state = state.adapter_base();
  const auto shown = [](const std::string& digest) { return digest.empty() ? "no base" : digest; };
  require(of_model == of_state, ErrorCode::kInvalidArgument,
          "the adapters of the checkpoint should have the base of the training model, ", shown(of_model),
          ", found ", shown(of_state));
}

}  // namespace

// Holds a state for one session.
class StateOwnership {
 public:
  explicit StateOwnership(const std::shared_ptr<CheckpointState>& state) : state_(state) {
    require(
        state_->enter_session(), ErrorCode::kInvalidArgument,
        "the checkpoint state belongs to another training session; release that session first, or load the "
        "checkpoint again");
  }
  ~StateOwnership() { state_->leave_session(); }
  StateOwnership(const StateOwnership&) = delete;
  StateOwnership& operator=(const StateOwnership&) = delete;

 private:
  std::shared_ptr<CheckpointState> state_;
};

struct TrainingSession::Impl {
  explicit Impl(const std::shared_ptr<CheckpointState>& state) : ownership(state) {}

  StateOwnership ownership;
  SessionOptions options;
  Precision precision = Precision::kFloat;
  size_t memory_budget = 0;
  bool flush_denormals = false;
  std::optional<SessionWaiting> waiting;
  NonfiniteGradients nonfinite = NonfiniteGradients::kError;
  std::shared_ptr<Arena> arena = std::make_shared<Arena>();
  Model train_model;                // as given: stages are created from it
  std::optional<Model> eval_model;  // as given too; exports use this one
  std::vector<ValueInfo> train_inputs, eval_inputs;
  std::unique_ptr<Stage> train, eval;
  std::vector<std::string> fixed, fixed_in_eval;  // parameters that no step changes
  std::string updated_by_eval;   // a parameter that eval steps change; empty if there is none
  uint64_t fixed_version = 0;    // version of the fixed values in the stages
  uint64_t layouts_version = 0;  // version of the orders in which the stages expect trainable parameters
  std::optional<Optimizer> optimizer;
  std::optional<Schedule> schedule;
  float learning_rate = 0;
  std::optional<GradientBounds> bounds;  // none if gradients are applied even if they are not finite
  std::optional<GradientRows> rows;
  bool lazy_rows = false;           // optimizer steps skip rows that no batch has read
  bool overwrite_gradients = true;  // the next train step starts new gradients
  uint64_t gradients_version = 0;   // of gradients from outside that this session has taken into account
  std::unordered_map<std::string, Tensor> train_states, eval_states;
  std::unordered_map<std::string, Tensor> overwrite, accumulate;  // lazy_reset_grad for both variants
  std::optional<double> loss;                                     // of the last train step
  int64_t skipped_steps = 0;
  bool uses_average = true;         // of the weights, if there is one
  bool eval_reads_average = false;  // whether the eval stage is bound to the averages
  std::optional<Profile> profile;   // while one is recorded
  std::atomic_flag busy = ATOMIC_FLAG_INIT;

  // Sets the learning rate from the schedule.
  void follow_schedule(const OptimizerState& o) {
    learning_rate = schedule->rate(o.initial_learning_rate, o.step);
  }

  // Begins with the rate of a state, and continues the schedule that it has.
  void take_learning_rate(const OptimizerState& o) {
    learning_rate = o.initial_learning_rate;
    if (!optimizer || !o.schedule) return;
    try {
      schedule.emplace(o.schedule->name, o.schedule->settings);
      schedule->continue_from(*o.schedule);
    } catch (const Error& e) {
      fail(e.code(), "the learning-rate schedule in the checkpoint: ", e.message());
    }
    follow_schedule(o);
  }

  Profile* record(const char* what) {
    if (!profile) return nullptr;
    profile->begin(what);
    return &*profile;
  }

  // Copies each gradient to the buffer of the options as soon as the gradient is complete, and calls the
  // function of the options.
  StateWatch gradient_watch(const CheckpointState& state, const RunOptions& options) const {
    return [&state, &options,
            places = state.gradient_places(
                options.gradient_buffer, "train step with a buffer for gradients")](const std::string& name) {
      if (!name.ends_with(kBufferSuffix)) return;
      const std::string parameter = name.substr(0, name.size() - std::string_view(kBufferSuffix).size());
      const auto& [first, count] = places.at(parameter);
      state.copy_gradient(parameter, options.gradient_buffer, first);
      options.gradient_ready(first, count);
    };
  }

  // A call of a session, which one thread at a time may use. It waits for other threads that save the state
  // or copy its values, and these wait for it.
  class Use {
   public:
    Use(Impl& impl, const CheckpointState& state, const char* call)
        : entry_(impl.busy, call), turn_(state.hold()) {}

   private:
    class Entry {
     public:
      Entry(std::atomic_flag& busy, const char* call) : busy_(busy) {
        require(!busy_.test_and_set(std::memory_order_acquire), ErrorCode::kRuntimeException, call,
                ": the training session is in use by another thread; one thread at a time may call it");
      }
      ~Entry() { busy_.clear(std::memory_order_release); }
      Entry(const Entry&) = delete;
      Entry& operator=(const Entry&) = delete;

     private:
      std::atomic_flag& busy_;
    };

    Entry entry_;
    TurnLock::Turn turn_;
  };

  // Whether train steps compute bounds of the gradients. A norm, where the optimizer needs it, makes bounds
  // unnecessary.
  bool bounds_gradients() const { return bounds && !(optimizer && optimizer->clips()); }

  // The stages treat fixed parameters as constants: whatever depends only on them is computed once. In the
  // eval stage of a mapped state, these are weights too.
  void make_stages(const CheckpointState& state) {
    fixed_version = state.frozen_version();
    layouts_version = state.layouts_version();
    std::unordered_map<std::string, LayoutPtr> layouts;
    for (const Parameter& p : state.parameters())
      if (p.layout) layouts[p.name] = layouts[p.name + std::string(kBufferSuffix)] = p.layout;
    const std::optional<size_t> moment = eval_reads_average ? evaluated_moment(state) : std::nullopt;
    const auto make = [&](const char* what, const Model& given, const std::vector<ValueInfo>& inputs,
                          const std::vector<std::string>& constants, size_t budget,
                          const SessionOptions& options) {
      Model model = given;
      remove_optional_outputs(model, options);
      std::vector<std::string> outputs = user_outputs(model);
      Graph& graph = model.graph;
      for (const std::string& name : constants) {
        const Parameter& p = state.parameter(name);
        if (graph.is_input(name))
          graph.add_initializer(name, p.trainable && moment ? p.moments[*moment] : p.data);
      }
      std::erase_if(graph.inputs, [&](const ValueInfo& info) { return graph.is_initializer(info.name); });
      return std::make_unique<Stage>(what, std::move(model), inputs, std::move(outputs), arena, options,
                                     precision, budget, layouts);
    };
    Model bounded = train_model;
    if (bounds_gradients()) {
      bounds->add_inputs(bounded.graph);
      bounds->add_states(train_states);
    }
    rows->add_inputs(bounded.graph);
    rows->add_states(train_states);
    train = make("training model", bounded, train_inputs, fixed, memory_budget, options);
    SessionOptions of_eval = options;
    of_eval.optimized_model_path.clear();  // the file is that of the training model
    constexpr size_t kNoBudget = 0;        // the eval model keeps nothing
    if (eval_model) eval = make("eval model", *eval_model, eval_inputs, fixed_in_eval, kNoBudget, of_eval);
  }

  // Called after frozen parameters got new values, or after another session reordered parameters.
  void refresh_stages(const CheckpointState& state) {
    const bool stale = !fixed.empty() && state.frozen_version() != fixed_version;
    if (stale || state.layouts_version() != layouts_version) make_stages(state);
  }

  const Stage& stage(bool training) const {
    require(training || eval, ErrorCode::kNoModel,
            "inputs of the eval model: the training session was created without an eval model");
    return training ? *train : *eval;
  }

  // The moment that eval steps and exports read in place of trainable parameters, if any.
  std::optional<size_t> evaluated_moment(const CheckpointState& state) const {
    if (!uses_average || !optimizer) return std::nullopt;
    const std::optional<size_t> moment = optimizer->average_of(state);
    for (const Parameter& p : state.parameters())
      require(!moment || !p.trainable || p.moments.size() > *moment, ErrorCode::kInvalidArgument,
              "evaluate or export averaged weights: expected an average of the parameter \"", p.name,
              "\" in the checkpoint, found ", counted(p.moments.size(), "optimizer state"));
    return moment;
  }

  // Binds the eval stage to the weights, or to their averages. A stage has the same states in all runs.
  void bind_eval(const CheckpointState& state) {
    const std::optional<size_t> moment = evaluated_moment(state);
    if (moment.has_value() == eval_reads_average) return;
    eval_reads_average = moment.has_value();
    for (const Parameter& p : state.parameters())
      if (p.trainable) eval_states[p.name] = moment ? p.moments[*moment] : p.data;
    make_stages(state);
  }

  void require_optimizer(const char* call) const {
    require(optimizer.has_value(), ErrorCode::kNoModel, call,
            ": the training session was created without an optimizer model");
  }
};

TrainingSession::TrainingSession(SessionOptions options, std::shared_ptr<CheckpointState> state, Model train,
                                 std::optional<Model> eval, std::optional<Model> optimizer)
    : state_(std::move(state)), impl_(std::make_unique<Impl>(state_)) {
  Impl& s = *impl_;
  const TurnLock::Turn turn = state_->hold();
  s.options = std::move(options);
  const StopScope stop(&s.options.may_continue);
  // Vanishing gradients pass through denormal numbers, which would make a step several times slower.
  s.options.config.try_emplace(kDenormalsKey, "1");
  s.precision = read_precision(s.options);
  s.memory_budget = memory_budget(s.options);
  s.flush_denormals = flush_denormals(s.options);
  s.waiting.emplace(s.options);
  s.nonfinite = nonfinite_gradients(s.options);
  s.lazy_rows = config_choice(s.options, "ortrain.lazy_rows") == "1";
  Tensor yes(DType::kBool, {1}), no(DType::kBool, {1});
  *yes.data<bool>() = true;
  *no.data<bool>() = false;
  s.overwrite = {{kLazyReset, yes}};
  s.accumulate = {{kLazyReset, no}};

  const std::vector<std::string> order = take_order(*state_, train);
  std::string problems;
  std::vector<ValueInfo> train_inputs = user_inputs(train, *state_, "training model", problems);
  std::vector<ValueInfo> eval_inputs;
  if (eval) eval_inputs = user_inputs(*eval, *state_, "eval model", problems);
  expect_together(*state_, train, train_inputs, eval_inputs, std::move(problems));
  expect_base(*state_, train);

  if (optimizer) {  // before anything is changed
    s.optimizer.emplace(*optimizer);
    s.optimizer->take(*state_);
  }
  expect_tensors(train_inputs, train);
  if (!s.options.custom_operators) check_operators(train, "training model");
  if (eval && !s.options.custom_operators) check_operators(*eval, "eval model");
  if (is_on(kFoldFrozenParameters, s.options)) {
    s.fixed = s.fixed_in_eval = fixed_parameters(*state_, train, true);
    if (eval && state_->is_mapped()) s.fixed_in_eval = fixed_parameters(*state_, *eval, false);
  }
  if (eval) s.updated_by_eval = updated_parameter(*state_, *eval);
  s.train_model = std::move(train);
  s.eval_model = std::move(eval);
  s.train_inputs = std::move(train_inputs);
  s.eval_inputs = std::move(eval_inputs);
  state_->set_buffer_order(order);
  state_->make_arenas();
  s.take_learning_rate(state_->optimizer());
  if (!state_->is_mapped()) {
    const ThreadScope threads(s.options.intra_op_threads);
    std::unordered_map<std::string, LayoutPtr> layouts;
    if (is_on(kKeepConvolutionWeights, s.options) && !(s.optimizer && s.optimizer->takes_tensors()))
      layouts = parameter_layouts(*state_, s.train_model, s.eval_model ? &*s.eval_model : nullptr);
    state_->set_layouts(layouts);
  }
  s.gradients_version = state_->gradients_version();
  if (s.nonfinite != NonfiniteGradients::kApply) s.bounds.emplace(*state_);
  s.rows.emplace(*state_);
  s.make_stages(*state_);
  for (const Parameter& p : state_->parameters()) {
    if (std::find(s.fixed.begin(), s.fixed.end(), p.name) != s.fixed.end()) continue;
    s.train_states[p.name] = p.data;
    s.eval_states[p.name] = p.data;
    if (p.trainable) s.train_states[p.name + std::string(kBufferSuffix)] = p.gradient;
  }
  if (s.optimizer) s.optimizer->make_states(*state_);  // last: it is saved with the state
}

TrainingSession::~TrainingSession() = default;

void TrainingSession::train_step(std::span<const Tensor* const> inputs, std::span<Tensor* const> outputs,
                                 const RunOptions* options) {
  const Impl::Use use(*impl_, *state_, "train step");
  Impl& s = *impl_;
  state_->require_writable("train step");
  require_values(*state_, "train step");
  s.refresh_stages(*state_);
  if (state_->gradients_version() != s.gradients_version) {
    s.overwrite_gradients = false;  // gradients from outside are added to
    s.gradients_version = state_->gradients_version();
  }
  if (s.bounds) s.bounds->update(*state_);
  s.rows->update(*state_);
  StateWatch watch;
  if (options && options->gradient_ready) watch = s.gradient_watch(*state_, *options);
  try {
    s.train->run(inputs, outputs, s.overwrite_gradients ? 1 : 0, s.train_states,
                 s.overwrite_gradients ? s.overwrite : s.accumulate, options, s.record("train step"),
                 watch ? &watch : nullptr);
  } catch (...) {
    // Incomplete gradients must not be used: an optimizer step rejects them, the next train step starts over.
    if (s.train->broke_off()) {
      s.overwrite_gradients = true;
      state_->set_gradients_ready(false);
    }
    throw;
  }
  s.overwrite_gradients = false;
  s.loss = outputs.empty() ? std::nullopt : scalar(*outputs[0]);
  state_->set_gradients_ready(true);
  state_->set_gradients_stale(false);
}

void TrainingSession::eval_step(std::span<const Tensor* const> inputs, std::span<Tensor* const> outputs,
                                const RunOptions* options) {
  const Impl::Use use(*impl_, *state_, "eval step");
  Impl& s = *impl_;
  require(s.eval != nullptr, ErrorCode::kNoModel,
          "eval step: the training session was created without an eval model");
  if (state_->is_mapped() && !s.updated_by_eval.empty())
    state_->require_writable(concat("eval step, which updates the parameter \"", s.updated_by_eval, "\""));
  require_values(*state_, "eval step");
  s.refresh_stages(*state_);
  s.bind_eval(*state_);
  s.eval->run(inputs, outputs, 0, s.eval_states, {}, options, s.record("eval step"));
}

void TrainingSession::lazy_reset_grad() {
  const Impl::Use use(*impl_, *state_, "lazy reset of the gradients");
  impl_->overwrite_gradients = true;
  impl_->gradients_version = state_->gradients_version();
  state_->set_gradients_stale(true);
}

void TrainingSession::copy_gradients_to_buffer(const Tensor& buffer) const {
  const Impl::Use use(*impl_, *state_, "copying the gradients to a buffer");
  const ThreadScope threads(impl_->options.intra_op_threads);
  const SessionWaiting::Scope waiting = impl_->waiting->scope();
  state_->copy_gradients_to_buffer(buffer);
}

void TrainingSession::copy_buffer_to_gradients(const Tensor& buffer) {
  const Impl::Use use(*impl_, *state_, "copying a buffer to the gradients");
  const ThreadScope threads(impl_->options.intra_op_threads);
  const SessionWaiting::Scope waiting = impl_->waiting->scope();
  state_->copy_buffer_to_gradients(buffer);
}

double TrainingSession::gradient_norm() const {
  const Impl::Use use(*impl_, *state_, "getting the norm of the gradients");
  require(state_->has_gradients(), ErrorCode::kRuntimeException,
          "getting the norm of the gradients: there are no gradients; run a train step first");
  const ThreadScope threads(impl_->options.intra_op_threads);
  const SessionWaiting::Scope waiting = impl_->waiting->scope();
  impl_->rows->update(*state_);
  return ortrain::gradient_norm(*state_, *impl_->rows);
}

void TrainingSession::optimizer_step(const RunOptions* options) {
  const Impl::Use use(*impl_, *state_, "optimizer step");
  Impl& s = *impl_;
  state_->require_writable("optimizer step");
  s.require_optimizer("optimizer step");
  require_values(*state_, "optimizer step");
  check_terminate(options ? &options->terminate : nullptr);
  require(state_->has_gradients(), ErrorCode::kRuntimeException,
          "optimizer step: there are no gradients; run a train step first");
  const ThreadScope threads(s.options.intra_op_threads);
  const SessionWaiting::Scope waiting = s.waiting->scope();
  const DenormalsAsZero denormals(s.flush_denormals);
  OptimizerState& o = state_->optimizer();
  const auto start = Profile::Clock::now();
  if (s.bounds) s.bounds->update(*state_);
  s.rows->update(*state_);
  if (!s.optimizer->apply(*state_, s.learning_rate, o.step + 1, s.bounds ? &*s.bounds : nullptr, *s.rows,
                          s.lazy_rows)) {
    if (s.nonfinite == NonfiniteGradients::kError) reject_gradients(*state_, s.loss);
    ++s.skipped_steps;
    return;
  }
  ++o.step;
  if (Profile* profile = s.record("optimizer step"))
    profile->record(s.optimizer->type(), "", start, Profile::Clock::now());
}

void TrainingSession::use_average_weights(bool use) {
  const Impl::Use in_use(*impl_, *state_, "use the average of the weights");
  impl_->require_optimizer("use the average of the weights");
  require(impl_->optimizer->averages(), ErrorCode::kInvalidArgument,
          "use the average of the weights: the optimizer model has no node WeightAverage, so there is no "
          "average");
  impl_->uses_average = use;
}

int64_t TrainingSession::skipped_steps() const { return impl_->skipped_steps; }

bool TrainingSession::has_optimizer() const { return impl_->optimizer.has_value(); }

const SessionOptions& TrainingSession::options() const { return impl_->options; }

void TrainingSession::attach_optimizer(const Model& optimizer) {
  const Impl::Use use(*impl_, *state_, "attach an optimizer model");
  require(!has_optimizer(), ErrorCode::kModelLoaded,
          "attach an optimizer model: the training session already has one");
  Optimizer attached(optimizer);
  attached.take(*state_);
  if (attached.takes_tensors() && !state_->is_mapped()) state_->set_layouts({});
  attached.make_states(*state_);
  impl_->optimizer = std::move(attached);
  impl_->take_learning_rate(state_->optimizer());
}

void TrainingSession::set_learning_rate(float learning_rate) {
  const Impl::Use use(*impl_, *state_, "set learning rate");
  impl_->require_optimizer("set learning rate");
  require(std::isfinite(learning_rate), ErrorCode::kInvalidArgument,
          "set learning rate: expected a finite number, found ", learning_rate);
  impl_->learning_rate = learning_rate;
  // A schedule keeps its initial rate.
  if (!state_->optimizer().schedule) state_->optimizer().initial_learning_rate = learning_rate;
}

float TrainingSession::learning_rate() const {
  impl_->require_optimizer("get learning rate");
  return impl_->learning_rate;
}

size_t TrainingSession::group_count() const {
  impl_->require_optimizer("get the number of parameter groups");
  return impl_->optimizer->groups().size();
}

const std::string& TrainingSession::group_name(size_t index) const {
  impl_->require_optimizer("get the name of a parameter group");
  const std::vector<ParameterGroup>& groups = impl_->optimizer->groups();
  require(index < groups.size(), ErrorCode::kInvalidArgument, "get the name of a parameter group: index ",
          index, " is out of range; the optimizer has ", groups.size());
  return groups[index].name;
}

const std::string& TrainingSession::group_of(const std::string& parameter) const {
  impl_->require_optimizer("get the group of a parameter");
  const Parameter& found = state_->parameter(parameter);
  const auto index = static_cast<size_t>(&found - state_->parameters().data());
  const ParameterGroup* group = impl_->optimizer->group_of(index);
  require(group != nullptr, ErrorCode::kInvalidArgument, "get the group of a parameter: \"", parameter,
          "\" is frozen, so no group has it");
  return group->name;
}

size_t TrainingSession::group_size(const std::string& group) const {
  impl_->require_optimizer("get the number of parameters in a group");
  return impl_->optimizer->parameters_of(group).size();
}

const std::string& TrainingSession::group_parameter(const std::string& group, size_t index) const {
  impl_->require_optimizer("get the name of a parameter in a group");
  const std::vector<size_t> indices = impl_->optimizer->parameters_of(group);
  require(index < indices.size(), ErrorCode::kInvalidArgument, "get the name of a parameter in group \"",
          group, "\": index ", index, " is out of range; the group has ", indices.size());
  return state_->parameters()[indices[index]].name;
}

float TrainingSession::group_attribute(const std::string& group, const std::string& attribute) const {
  impl_->require_optimizer("get an attribute of a parameter group");
  if (attribute == kLearningRate)
    return impl_->learning_rate * impl_->optimizer->group(group).learning_rate_factor;
  return impl_->optimizer->attribute(group, attribute);
}

void TrainingSession::set_group_attribute(const std::string& group, const std::string& attribute,
                                          float value) {
  const Impl::Use use(*impl_, *state_, "set an attribute of a parameter group");
  impl_->require_optimizer("set an attribute of a parameter group");
  std::string stored = attribute;
  if (attribute == kLearningRate) {
    stored = "learning_rate_factor";
    require(impl_->learning_rate != 0, ErrorCode::kInvalidArgument,
            "set the learning rate of parameter group \"", group,
            "\": the rate of a group is a multiple of the session's learning rate, which is 0 now; set "
            "learning_rate_factor");
    value /= impl_->learning_rate;
  }
  impl_->optimizer->set_attribute(group, stored, value);
  state_->optimizer().group_settings[group][stored] = value;
}

void TrainingSession::register_linear_lr_scheduler(int64_t warmup_steps, int64_t total_steps,
                                                   float initial_learning_rate) {
  const Impl::Use use(*impl_, *state_, "register the linear learning-rate scheduler");
  impl_->require_optimizer("register the linear learning-rate scheduler");
  require(warmup_steps >= 0 && total_steps >= 0, ErrorCode::kInvalidArgument,
          "register the linear learning-rate scheduler: expected step counts of 0 or more, found warmup ",
          warmup_steps, " and total ", total_steps);
  require(
      std::isfinite(initial_learning_rate) && initial_learning_rate >= 0, ErrorCode::kInvalidArgument,
      "register the linear learning-rate scheduler: expected an initial learning rate of 0 or more, found ",
      initial_learning_rate);
  impl_->schedule = Schedule::linear(warmup_steps, total_steps);
  OptimizerState& o = state_->optimizer();
  o.initial_learning_rate = initial_learning_rate;
  o.schedule.reset();  // as in onnxruntime, whose programs register it again
  impl_->follow_schedule(o);
}

void TrainingSession::register_lr_scheduler(const std::string& schedule, const std::string& settings,
                                            float initial_learning_rate) {
  const Impl::Use use(*impl_, *state_, "register a learning-rate schedule");
  impl_->require_optimizer("register a learning-rate schedule");
  Schedule registered(schedule, settings);
  require(std::isfinite(initial_learning_rate) && initial_learning_rate >= 0, ErrorCode::kInvalidArgument,
          "register the learning-rate schedule ", schedule,
          ": expected an initial learning rate of 0 or more, found ", initial_learning_rate);
  OptimizerState& o = state_->optimizer();
  if (o.schedule) registered.continue_from(*o.schedule);
  impl_->schedule = std::move(registered);
  o.initial_learning_rate = initial_learning_rate;
  o.schedule.reset();
  if (!impl_->schedule->is_constant()) o.schedule = impl_->schedule->state();
  impl_->follow_schedule(o);
}

void TrainingSession::scheduler_step() {
  const Impl::Use use(*impl_, *state_, "scheduler step");
  Impl& s = *impl_;
  s.require_optimizer("scheduler step");
  require(s.schedule.has_value(), ErrorCode::kRuntimeException,
          "scheduler step: no learning-rate scheduler is registered");
  s.follow_schedule(state_->optimizer());
}

void TrainingSession::scheduler_report(float value) {
  const Impl::Use use(*impl_, *state_, "scheduler report");
  Impl& s = *impl_;
  s.require_optimizer("scheduler report");
  require(s.schedule.has_value(), ErrorCode::kRuntimeException,
          "scheduler report: no learning-rate scheduler is registered");
  s.schedule->report(static_cast<double>(value));
  OptimizerState& o = state_->optimizer();
  if (o.schedule) o.schedule = s.schedule->state();
  s.follow_schedule(o);
}

const std::vector<ValueInfo>& TrainingSession::inputs(bool training) const {
  return impl_->stage(training).inputs();
}

const std::vector<std::string>& TrainingSession::input_names(bool training) const {
  return training || impl_->eval ? impl_->stage(training).input_names() : kNoNames;
}

const std::vector<std::string>& TrainingSession::output_names(bool training) const {
  return training || impl_->eval ? impl_->stage(training).output_names() : kNoNames;
}

void TrainingSession::start_profiling() {
  const Impl::Use use(*impl_, *state_, "start profiling");
  impl_->profile.emplace();
}

std::string TrainingSession::end_profiling() {
  const Impl::Use use(*impl_, *state_, "end profiling");
  require(impl_->profile.has_value(), ErrorCode::kRuntimeException,
          "end profiling: no recording is in progress; start profiling first");
  const std::string trace = impl_->profile->chrome_trace();
  impl_->profile.reset();
  return trace;
}

void TrainingSession::export_for_inferencing(const std::filesystem::path& path,
                                             const std::vector<std::string>& outputs) const {
  if constexpr (!kWritersPart.is_built) fail_without_writers();
  const Impl::Use use(*impl_, *state_, "export for inferencing");
  require(impl_->eval_model.has_value(), ErrorCode::kNoModel,
          "export for inferencing: the training session was created without an eval model");
  require(!state_->is_nominal(), ErrorCode::kRuntimeException,
          "export for inferencing: the checkpoint is nominal and holds no values");
  require(!outputs.empty(), ErrorCode::kInvalidArgument,
          "export for inferencing: expected the name of at least one output, found none");
  Model model = *impl_->eval_model;
  Graph& graph = model.graph;
  std::vector<ValueInfo> kept;
  for (const std::string& name : outputs) {
    const bool produced = std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
      return std::find(node.outputs.begin(), node.outputs.end(), name) != node.outputs.end();
    });
    require(produced, ErrorCode::kInvalidArgument,
            "export for inferencing: the eval model has no value named '", name, "'");
    ValueInfo info = graph.info(name).value_or(ValueInfo{});
    info.name = name;
    kept.push_back(std::move(info));
  }
  graph.outputs = std::move(kept);
  graph.remove_unused_nodes();
  graph.remove_unused_initializers();
  const auto uses = count_uses(graph);
  const std::optional<size_t> average = impl_->evaluated_moment(*state_);
  std::vector<ValueInfo> inputs;
  for (const ValueInfo& info : graph.inputs) {
    if (!uses.contains(info.name)) continue;
    if (state_->has_parameter(info.name)) {
      const Parameter& parameter = state_->parameter(info.name);
      graph.add_initializer(
          info.name,
          parameter.row_major(average && parameter.trainable ? parameter.moments[*average] : parameter.data));
    } else {
      inputs.push_back(info);
    }
  }
  graph.inputs = std::move(inputs);
  std::unordered_set<std::string_view> made;
  for (const Node& node : graph.nodes) made.insert(node.outputs.begin(), node.outputs.end());
  std::erase_if(graph.value_info, [&](const auto& info) { return !made.contains(info.first); });
  if (graph.name.empty()) graph.name = "graph";  // ONNX requires one
  graph.outputs = output_types(model, true);
  const bool apart = config_choice(impl_->options, kExternalData) == "always";
  write_model(model, path, apart ? WeightPlace::kApart : WeightPlace::kAuto);
}

}  // namespace ortrain
