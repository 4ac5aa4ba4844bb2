// Runs a training graph as a forward session with state. The class State connects the two: it gives weights,
// moments and counts to the session, numbers the runs for random operators, and restores statistics after a
// failed run. The values themselves are stored in graph_states.cpp.
#include "legacy/training_graph_session.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "legacy/graph_states.h"
#include "legacy/partition.h"
#include "op/operator.h"
#include "runtime/random.h"
#include "session/session_state.h"

namespace ortrain {

namespace {

constexpr const char* kRandomState = "Random_State";

// Whether a node draws random numbers: its results differ from run to run without any state or another
// process.
bool draws_numbers(const Graph& graph) {
  const auto draws = [](const Node& node) {
    const Operator* op = find_operator(node.domain, node.op_type);
    if (op && op->traits.impure && op->traits.updates == 0 && !adds_up_ranks(node)) return true;
    return std::any_of(node.attributes.begin(), node.attributes.end(), [](const auto& attribute) {
      const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute.second);
      return inner && *inner && draws_numbers(**inner);
    });
  };
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), draws);
}

StateRole buffered_role(const std::string& role) {
  for (const StateRole known : {StateRole::kWeight, StateRole::kGradient})
    if (role == to_string(known)) return known;
  fail(ErrorCode::kInvalidArgument, "a buffer of states: expected the role weight or gradient, found \"",
       role, "\"");
}

SessionOptions training_options(SessionOptions options, const TrainingGraph& graph) {
  // Vanishing gradients pass through denormal numbers, which would make a run several times slower.
  options.config.try_emplace(kDenormalsKey, "1");
  if (graph.recomputes)
    options.config.insert_or_assign("ortrain.disable_pass.common_subexpression_elimination",
                                    std::string("1"));
  return options;
}

ModelNotes training_notes(ModelNotes notes, const TrainingGraph& graph) {
  notes.overridable.clear();  // all other initializers are constants or state
  if (!graph.training_mode.empty()) notes.overridable.push_back(*graph.model.graph.info(graph.training_mode));
  return notes;
}

}  // namespace

// The states of the graph, whether dropouts drop, and the random numbers.
class TrainingGraphSession::State : public SessionState {
 public:
  explicit State(const TrainingGraph& graph)
      : loss_scale_input(graph.loss_scale_input), training_mode_(graph.training_mode), all_(graph.states) {}

  std::string model_name() const override { return "training graph"; }

  void take_from(Model& model, const SessionOptions& options) override {
    next_run_ = first_run(options);
    states = GraphStates(all_, training_mode_, model, options);
    shown = states.visible();
    draws_ = draws_numbers(model.graph);
    if (!draws_) return;
    const auto at = std::find_if(shown.begin(), shown.end(),
                                 [](const GraphState& state) { return state.name > kRandomState; });
    shown.insert(at, {kRandomState, StateRole::kRandom, ""});
  }

  const std::unordered_map<std::string, Tensor>& tensors() const override { return states.tensors(); }
  std::unordered_map<std::string, LayoutPtr> layouts() const override { return states.layouts(); }
  std::set<std::string> updated_together() const override { return states.updated_together(); }

  void begin(const RunOptions* options) override { set_training_mode(!options || options->training_mode); }

  bool set(const std::string& input, const Value& value) override {
    if (training_mode_.empty() || input != training_mode_) return false;
    const auto* tensor = std::get_if<Tensor>(&value);
    require(tensor && tensor->dtype() == DType::kBool && tensor->size() == 1, ErrorCode::kInvalidArgument,
            "input '", input, "': expected one bool, found ", describe(ValueRef(value)));
    set_training_mode(*tensor->data<bool>());
    return true;
  }

  StateWatch prepare(Stage& stage, const RunOptions* options) override {
    StateWatch watch;
    if (options && options->gradient_ready)
      watch = [this, options,
               all = states.places(StateRole::kGradient, options->gradient_buffer)](const std::string& name) {
        const auto place = all.find(name);
        if (place == all.end()) return;
        const auto& [first, count] = place->second;
        states.copy_one(name, options->gradient_buffer, first);
        options->gradient_ready(first, count);
      };
    states.keep();
    stage.number_next_run(next_run_);
    return watch;
  }

  void completed() override { ++next_run_; }
  void failed(bool broke_off) override {
    if (broke_off) states.take_back();
  }

  // The seed and the number of the next run; nothing if the name is that of another state.
  std::optional<Tensor> random_state(const std::string& name) const {
    if (!draws_ || name != kRandomState) return std::nullopt;
    return Tensor::of(std::vector<int64_t>{seed(), static_cast<int64_t>(next_run_)});
  }
  bool set_random_state(const std::string& name, const Tensor& value) {
    if (!draws_ || name != kRandomState) return false;
    require(value.dtype() == DType::kInt64 && value.size() == 2, ErrorCode::kInvalidArgument, "the state \"",
            name, "\" is two int64, the seed and the number of the next run; found ",
            describe(ValueRef(value)));
    set_seed(value.data<int64_t>()[0]);
    next_run_ = static_cast<uint64_t>(value.data<int64_t>()[1]);
    return true;
  }

  GraphStates states;
  std::vector<GraphState> shown;
  const std::string loss_scale_input;

 private:
  void set_training_mode(bool mode) {
    if (!training_mode_.empty()) *states.tensors().at(training_mode_).data<bool>() = mode;
  }

  const std::string training_mode_;
  const std::vector<GraphState> all_;
  uint64_t next_run_ = 0;  // the number by which the random operators of all stages draw
  bool draws_ = false;     // whether there are any
};

TrainingGraphSession::TrainingGraphSession(SessionOptions options, TrainingGraph graph, ModelNotes notes)
    : TrainingGraphSession(training_options(std::move(options), graph), std::move(graph.model),
                           training_notes(std::move(notes), graph), std::make_shared<State>(graph)) {}

TrainingGraphSession::TrainingGraphSession(SessionOptions options, Model&& model, ModelNotes notes,
                                           std::shared_ptr<State> state)
    : InferenceSession(std::move(options), std::move(model), std::move(notes), state),
      state_(std::move(state)) {}

const std::vector<GraphState>& TrainingGraphSession::states() const { return state_->shown; }
const std::string& TrainingGraphSession::loss_scale_input() const { return state_->loss_scale_input; }

Tensor TrainingGraphSession::state(const std::string& name) const {
  const auto held = lock();
  if (auto random = state_->random_state(name)) return *random;
  return state_->states.get(name);
}

void TrainingGraphSession::set_state(const std::string& name, const Tensor& value) {
  const auto held = lock();
  if (!state_->set_random_state(name, value)) state_->states.set(name, value);
}

void TrainingGraphSession::copy_states_to_buffer(const std::string& role, const Tensor& buffer) const {
  const auto held = lock();
  state_->states.copy_to_buffer(buffered_role(role), buffer);
}

void TrainingGraphSession::copy_buffer_to_states(const std::string& role, const Tensor& buffer) {
  const auto held = lock();
  state_->states.copy_from_buffer(buffered_role(role), buffer);
}

}  // namespace ortrain
