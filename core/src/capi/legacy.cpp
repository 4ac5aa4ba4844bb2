// The older training API (legacy/): training graphs, which are forward sessions in which a run trains. A
// build without it has generated/without_legacy.cpp instead.
#include <charconv>
#include <cstdlib>

#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "legacy/horizontal_split.h"
#include "legacy/rank_sum.h"
#include "legacy/training_graph_session.h"
#include "op/signature.h"
#include "session/mixed_precision.h"

struct OrtTrainingParameters {
  ortrain::TrainingGraphRequest request;
};

namespace ortrain::capi {
namespace {

// Reads texts into members of every type.
class MemberSetter {
 public:
  MemberSetter(std::string member, std::string key, std::string attribute, std::string value)
      : member_(std::move(member)),
        key_(std::move(key)),
        attribute_(std::move(attribute)),
        value_(std::move(value)) {}

  void operator()(bool& member) const {
    require(value_ == "true" || value_ == "false", ErrorCode::kInvalidArgument, member_,
            ": expected true or false, found \"", value_, "\"");
    member = value_ == "true";
  }
  void operator()(int64_t& member) const { member = integer(value_); }
  void operator()(float& member) const { member = number(value_); }
  void operator()(std::string& member) const { member = value_; }
  void operator()(std::set<std::string>& member) const { member.insert(value_); }
  void operator()(std::vector<std::string>& member) const { member.push_back(value_); }
  void operator()(std::map<std::string, int64_t>& member) const { member[key_] = integer(value_); }
  void operator()(std::map<std::string, std::vector<int64_t>>& member) const {
    member[key_].push_back(integer(value_));
  }
  void operator()(AttributeMap<float>& member) const {
    auto& attributes = member[key_];
    if (!attribute_.empty()) attributes[attribute_] = number(value_);
  }
  void operator()(AttributeMap<int64_t>& member) const {
    auto& attributes = member[key_];
    if (!attribute_.empty()) attributes[attribute_] = integer(value_);
  }
  void operator()(std::map<std::string, std::vector<std::pair<int64_t, float>>>& member) const {
    member[key_].emplace_back(integer(attribute_), number(value_));
  }

 private:
  int64_t integer(const std::string& text) const {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    require(error == std::errc() && end == text.data() + text.size(), ErrorCode::kInvalidArgument, member_,
            ": expected an integer, found \"", text, "\"");
    return value;
  }
  float number(const std::string& text) const {
    char* end = nullptr;
    const float value = std::strtof(text.c_str(), &end);
    require(!text.empty() && *end == '\0', ErrorCode::kInvalidArgument, member_,
            ": expected a number, found \"", text, "\"");
    return value;
  }

  std::string member_, key_, attribute_, value_;
};

// `read` reads the model.
template <typename Read>
OrtSession* session_of(const OrtEnv& env, Read&& read, const OrtTrainingParameters& parameters,
                       const OrtSessionOptions* options) {
  SessionOptions settings = options_of(env, options);
  ModelNotes notes;
  ReadOptions how = read_options(settings);
  how.notes = &notes;
  Model model = read(std::move(how));
  fix_dimensions(model, notes, settings);
  TrainingGraphRequest request = parameters.request;
  request.config = settings.config;
  request.optimization_level = settings.graph_optimization_level;
  request.bf16 = config_choice(settings, "ortrain.mixed_precision") == "bf16";
  TrainingGraph graph = build_training_graph(model, request);
  for (const std::string& warning : graph.warnings)
    log(env, ORT_LOGGING_LEVEL_WARNING, "CreateTrainingGraphSession", warning);
  if (const std::string warning = precision_warning(settings); !warning.empty())
    log(env, ORT_LOGGING_LEVEL_WARNING, "CreateTrainingGraphSession", warning);
  auto session = std::make_unique<OrtSession>();
  session->logger = logger_of(env, options);
  auto running =
      std::make_unique<TrainingGraphSession>(std::move(settings), std::move(graph), std::move(notes));
  session->training_graph = running.get();
  session->running = std::move(running);
  return session.release();
}

// Null for the session of another model.
const TrainingGraphSession* training_graph(const OrtSession* session) {
  session->session();  // throws if the session is not finalized
  return session->training_graph;
}
const TrainingGraphSession& trained(const OrtSession* session) {
  const TrainingGraphSession* found = training_graph(session);
  require(found != nullptr, ErrorCode::kInvalidArgument,
          "the session has no states: expected one that was created for a training graph");
  return *found;
}
TrainingGraphSession& trained(OrtSession* session) {
  return const_cast<TrainingGraphSession&>(trained(static_cast<const OrtSession*>(session)));
}

const std::vector<GraphState>& states_of(const OrtSession* session) {
  static const std::vector<GraphState> kNone;
  const TrainingGraphSession* found = training_graph(session);
  return found ? found->states() : kNone;
}

const GraphState& state_number(const OrtSession* session, size_t index) {
  return item(states_of(session), index, "state");
}

// The optimizer's counts of a divided weight are whole.
bool is_divided(const GraphState& state) { return state.part && state.role != StateRole::kUpdateCount; }

}  // namespace

void release(OrtTrainingParameters* parameters) noexcept { delete parameters; }

void CreateTrainingParameters(OrtTrainingParameters** out) { *out = new OrtTrainingParameters{}; }

void SetTrainingParameter(OrtTrainingParameters* parameters, const char* member, const char* key,
                          const char* attribute, const char* value) {
  const bool known =
      parameters->request.parameters.visit(member, MemberSetter(member, key, attribute, value));
  require(known, ErrorCode::kInvalidArgument, "training parameters have no member \"", member, "\"");
}

void SetOptimizerInitialState(OrtTrainingParameters* parameters, const char* weight_name,
                              const char* state_name, const OrtValue* value) {
  parameters->request.initial_state[weight_name][state_name] = tensor_of(*value).clone();
}

void CreateTrainingGraphSession(const OrtEnv* env, const ORTCHAR_T* model_path,
                                const OrtTrainingParameters* parameters, const OrtSessionOptions* options,
                                OrtSession** out) {
  const auto read = [&](ReadOptions how) {
    return load_model(std::filesystem::path(model_path), std::move(how));
  };
  *out = session_of(*env, read, *parameters, options);
}

void CreateTrainingGraphSessionFromArray(const OrtEnv* env, const void* model_data, size_t model_data_length,
                                         const OrtTrainingParameters* parameters,
                                         const OrtSessionOptions* options, OrtSession** out) {
  const auto read = [&](ReadOptions how) {
    return load_model(model_data, model_data_length, "model in memory", std::move(how));
  };
  *out = session_of(*env, read, *parameters, options);
}

void SessionGetStateCount(const OrtSession* session, size_t* out) { *out = states_of(session).size(); }

void SessionGetStateName(const OrtSession* session, size_t index, OrtAllocator* allocator, char** value) {
  *value = copy_text(allocator, state_number(session, index).name);
}

void SessionGetStateRole(const OrtSession* session, size_t index, OrtAllocator* allocator, char** value) {
  *value = copy_text(allocator, to_string(state_number(session, index).role));
}

void SessionGetStateWeight(const OrtSession* session, size_t index, OrtAllocator* allocator, char** value) {
  const GraphState& state = state_number(session, index);
  *value = copy_text(allocator, state.part ? state.part->name : state.weight);
}

void SessionGetStateWholeShape(const OrtSession* session, size_t index, OrtValue** out) {
  const GraphState& state = state_number(session, index);
  const Shape shape = is_divided(state) ? state.part->shape : trained(session).state(state.name).shape();
  *out = new OrtValue{Tensor::of(std::vector<int64_t>(shape.begin(), shape.end()))};
}

void SessionGetStateDivision(const OrtSession* session, size_t index, OrtValue** out) {
  const GraphState& state = state_number(session, index);
  std::vector<int64_t> numbers;
  if (is_divided(state)) {
    numbers = {state.part->rows ? 1 : 0, state.part->partition.axis};
    numbers.insert(numbers.end(), state.part->partition.sections.begin(),
                   state.part->partition.sections.end());
  }
  *out = new OrtValue{Tensor::of(numbers)};
}

void SessionGetState(const OrtSession* session, const char* name, OrtValue** out) {
  *out = new OrtValue{trained(session).state(name)};
}

void SessionSetState(OrtSession* session, const char* name, const OrtValue* value) {
  trained(session).set_state(name, tensor_of(*value));
}

void SessionCopyStatesToBuffer(const OrtSession* session, const char* role, OrtValue* buffer) {
  trained(session).copy_states_to_buffer(role, tensor_of(*buffer));
}

void SessionCopyBufferToStates(OrtSession* session, const char* role, const OrtValue* buffer) {
  trained(session).copy_buffer_to_states(role, tensor_of(*buffer));
}

void SessionGetLossScaleInputName(const OrtSession* session, OrtAllocator* allocator, char** value) {
  const TrainingGraphSession* found = training_graph(session);
  *value = copy_text(allocator, found ? found->loss_scale_input() : "");
}

void RunOptionsSetRankSum(OrtRunOptions* options, OrtRankSumFn rank_sum, void* user_data) {
  options->value.around = nullptr;
  if (rank_sum == nullptr) return;
  const RankSum sum = [=](std::byte* data, size_t count, DType dtype, const char* name) {
    rank_sum(user_data, data, count, element_type_of(dtype), name);
  };
  options->value.around = [sum](const std::function<void()>& kernels) {
    const RankSumScope scope(sum);
    kernels();
  };
}

}  // namespace ortrain::capi
