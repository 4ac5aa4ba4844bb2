// The objects behind the handles of the C interface, and conversions between C types and those of the core.
//
// A session shares its checkpoint state with the handle of the state, so the two may be released in any
// order.
#pragma once

#include <atomic>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "artifacts/training_model.h"
#include "capi/compile.h"
#include "capi/maps.h"
#include "capi/sparse.h"
#include "graph/graph.h"
#include "metrics/metric.h"
#include "onnxruntime_c_api.h"
#include "onnxruntime_training_c_api.h"
#include "ortrain_c_api.h"
#include "program/profile.h"
#include "runtime/error.h"
#include "runtime/given_threads.h"
#include "runtime/random.h"
#include "runtime/tensor.h"
#include "runtime/value.h"
#include "session/background.h"
#include "session/inference_session.h"
#include "session/io_binding.h"
#include "session/options.h"
#include "session/training_session.h"
#include "state/adapter_io.h"
#include "state/checkpoint_state.h"

struct OrtStatus {
  OrtErrorCode code;
  std::string message;
};

// Functions of the program that make threads.
struct OrtThreadFunctions {
  OrtCustomCreateThreadFn create = nullptr;  // null: the library makes its threads
  OrtCustomJoinThreadFn join = nullptr;
  void* options = nullptr;
};

struct OrtThreadingOptions {
  int intra_op_threads = 0;  // 0: one per processor
  bool denormal_as_zero = false;
  bool allow_spinning = true;
  OrtThreadFunctions functions;
  std::string affinities;  // of the threads except the caller's; empty: where the system puts them
};

struct OrtMemoryInfo {
  std::string name;
  OrtAllocatorType type;
  int id;
  OrtMemType mem_type;
};

struct OrtEnv {
  OrtLoggingLevel level;
  std::string id;
  OrtLoggingFunction function;  // null: stderr
  void* parameter;
  std::optional<OrtThreadingOptions> shared_threads = std::nullopt;
  std::shared_ptr<ortrain::GivenThreads> given_threads = nullptr;  // of those; null: the library's
  std::vector<OrtAllocator*> allocators = {};                      // that the program registered
  std::vector<OrtMemoryInfo> shared_memory = {};                   // for which it asked for an allocator
};

struct OrtArenaCfg {};

struct OrtSessionOptions {
  ortrain::SessionOptions value;
  std::shared_ptr<std::atomic<bool>> canceled = std::make_shared<std::atomic<bool>>(false);
  OrtLoggingFunction logging_function = nullptr;  // of the session; null: the environment's
  void* logging_parameter = nullptr;
  OrtThreadFunctions threads;
};

struct OrtRunOptions {
  ortrain::RunOptions value;
};

struct OrtValue {
  ortrain::Value value;
  // `value` is nothing if it is a map, a sequence of maps, or a sparse tensor.
  std::shared_ptr<OrtMaps> maps = nullptr;
  std::shared_ptr<OrtSparseTensor> sparse = nullptr;
  std::optional<OrtMemoryInfo> memory = std::nullopt;  // the caller's; none: memory of the library
};

struct OrtPrepackedWeightsContainer {};

struct OrtLoraAdapter {
  ortrain::Adapter value;
};

struct OrtMetric {
  ortrain::Metric value;
};

struct OrtTensorTypeAndShapeInfo {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<int64_t> dims;         // -1: unknown
  std::vector<std::string> symbols;  // one per dimension; empty: no name
  bool has_shape = true;
};

struct OrtTypeInfo;

struct OrtMapTypeInfo {
  ONNXTensorElementDataType key = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::shared_ptr<OrtTypeInfo> value;
};

struct OrtSequenceTypeInfo {
  std::shared_ptr<OrtTypeInfo> element;
};

struct OrtOptionalTypeInfo {
  std::shared_ptr<OrtTypeInfo> contained;
};

struct OrtTypeInfo {
  ONNXType kind = ONNX_TYPE_TENSOR;
  OrtTensorTypeAndShapeInfo tensor;  // if it is a tensor
  OrtSequenceTypeInfo sequence;      // if it is a sequence
  OrtMapTypeInfo map;                // if it is a map
  OrtOptionalTypeInfo optional;
};

#include "capi/custom_handles.h"

// What a program asks about the nodes of a session. Each node counts as a subgraph.
struct OrtEpAssignedNode {
  std::string name, domain, type;
};
struct OrtEpAssignedSubgraph {
  OrtEpAssignedNode node;
  const OrtEpAssignedNode* nodes[1];
};

namespace ortrain {
class TrainingGraphSession;
}

struct OrtSession {
  // The parts of a session of the model editor until it is finalized.
  struct Draft {
    ortrain::SessionOptions settings;
    ortrain::Model model;
    ortrain::ModelNotes notes;
  };

  std::unique_ptr<ortrain::InferenceSession> running;             // null: there is a draft
  const ortrain::TrainingGraphSession* training_graph = nullptr;  // `running`, if it has this class
  std::unique_ptr<Draft> draft;
  std::shared_ptr<const OrtLogger> logger;
  OrtAllocator* allocator = nullptr;  // which programs get for it
  int threads = 1;                    // the caller's included
  ortrain::capi::MapPorts maps;
  ortrain::capi::SparsePorts sparse;
  std::deque<OrtEpAssignedSubgraph> parts;              // if the options ask for them
  std::vector<const OrtEpAssignedSubgraph*> part_list;  // the same
  std::vector<ortrain::ValueInfo> shown_inputs,
      shown_outputs;               // those of the model, of which some are sparse
  ortrain::Background background;  // its runs; the last member, because they use the others

  // Throws kFail if the session is not finalized.
  ortrain::InferenceSession& session();
  const ortrain::InferenceSession& session() const;
  // These can be asked for before.
  const std::vector<ortrain::ValueInfo>& inputs() const;
  const std::vector<ortrain::ValueInfo>& outputs() const;
  const std::vector<ortrain::ValueInfo>& overridable_initializers() const;
  const ortrain::Model& model() const { return draft ? draft->model : running->model(); }
  const ortrain::ModelNotes& notes() const { return draft ? draft->notes : running->notes(); }
};

struct OrtIoBinding {
  OrtSession* session;
  mutable ortrain::IoBinding binding;  // a run takes a const binding, and sets its outputs
};

struct OrtModelMetadata {
  std::string producer, graph_name, graph_description, domain, description;
  int64_t version = 0;
  std::map<std::string, std::string> custom;
};

// The texts as a map, and as the arrays that a call returns.
struct OrtKeyValuePairs {
  std::map<std::string, std::string> entries;
  std::vector<const char*> keys, values;
  void changed();
};

struct OrtCheckpointState {
  std::shared_ptr<ortrain::CheckpointState> state;
};

struct OrtTrainingSession {
  mutable ortrain::TrainingSession session;  // an eval step takes a const session
};

struct OrtGradientGraphBuilder {
  ortrain::Model forward;
  ortrain::GradientRequest request;
  std::optional<ortrain::Model> built;
};

namespace ortrain::capi {

const OrtApiBase* api_base() noexcept;  // what OrtGetApiBase returns

template <typename H>
void release(H* handle) noexcept {
  delete handle;
}
void release(OrtStatus* status) noexcept;  // does nothing for the preallocated one
void release(OrtTrainingParameters* parameters) noexcept;
// Gives back a status of the program's own function: throws it as an Error, naming `what`.
void expect_ok(OrtStatus* status, const std::string& what);
// These do nothing for what a graph or model owns.
void release(OrtValueInfo* value) noexcept;
void release(OrtNode* node) noexcept;
void release(OrtGraph* graph) noexcept;
void release(OrtModel* model) noexcept;

inline OrtCheckpointState* wrap(std::shared_ptr<CheckpointState> state) {
  return new OrtCheckpointState{std::move(state)};
}
inline CheckpointState& core_of(const OrtCheckpointState& handle) { return *handle.state; }
inline TrainingSession& core_of(const OrtTrainingSession& handle) { return handle.session; }

// The memory of the CPU, the only device.
const OrtMemoryInfo& cpu_memory();
OrtAllocator* default_allocator();
// The same memory, described as that of an arena.
OrtAllocator* arena_allocator();
// The allocator for the CPU that the program registered; null if there is none.
OrtAllocator* registered_allocator(const OrtEnv& env);
// The allocator of a session with these settings.
OrtAllocator* allocator_of(const OrtEnv& env, const SessionOptions& settings);

// Names of the devices that a session can run on, and of their execution providers.
const std::vector<std::string>& device_names();
const std::vector<std::string>& provider_names();
// Throws kFail: the library does not have that provider.
[[noreturn]] void reject_provider(const char* provider);

// A copy of a string in memory from the allocator.
char* copy_text(OrtAllocator* allocator, std::string_view text);
// Memory from the allocator; throws if it returns none.
void* allocate(OrtAllocator* allocator, size_t bytes);

// A tensor whose memory comes from an allocator and is returned to it.
Tensor allocate_tensor(OrtAllocator* allocator, DType dtype, const Shape& shape);

// Element types in the core, which have the numbers of ONNX, and in the C API, where three have others.
DType any_dtype_of(ONNXTensorElementDataType type);
ONNXTensorElementDataType element_type_of(DType dtype);
// The DType of an element type; throws if tensors of that type are not supported.
DType dtype_of(ONNXTensorElementDataType type);

// The same with the elements of another tensor.
Tensor copy_tensor(OrtAllocator* allocator, const Tensor& tensor);

OrtTensorTypeAndShapeInfo describe(const Tensor& tensor);
OrtTensorTypeAndShapeInfo describe(const OrtSparseTensor& tensor);  // with all elements
OrtTypeInfo type_of(const ValueInfo& info);
OrtTypeInfo type_of(const MapType& type);
OrtTypeInfo type_of_sparse(const ValueInfo& info);

std::vector<std::string> texts(const char* const* names, size_t count);
// The tensor in a value; throws if it is a sequence or empty.
Tensor& tensor_of(OrtValue& value);
const Tensor& tensor_of(const OrtValue& value);
// Options or, for null, the defaults.
inline const RunOptions* core_of(const OrtRunOptions* options) { return options ? &options->value : nullptr; }

// The item with that index; throws, naming the number of items.
template <typename T>
const T& item(const std::vector<T>& items, size_t index, const char* what) {
  require(index < items.size(), ErrorCode::kInvalidArgument, "there is no ", what, " number ", index,
          ", expected an index below ", items.size());
  return items[index];
}

// The options of a session, including the environment's settings for threads.
SessionOptions options_of(const OrtEnv& env, const OrtSessionOptions* options);

// Throws if `count` is not a valid number of threads.
void check_threads(int count);
// How many threads a run uses, the caller's included, if so many are wanted; 0: the default.
int thread_count(int wanted);
// Threads that functions of the program make, or that are bound to processors; null if neither is wanted.
// Throws kFail if a function is missing, or if the processors are not described as onnxruntime describes
// them.
std::shared_ptr<GivenThreads> make_threads(const OrtThreadFunctions& functions,
                                           const std::optional<std::string>& affinities, int threads);
// The threads that belong to a session alone, and those that an environment's sessions share.
std::shared_ptr<GivenThreads> threads_of(const OrtSessionOptions& options, const SessionOptions& settings);
std::shared_ptr<GivenThreads> threads_of(const OrtThreadingOptions& options);

// The session of a model. `session` is what it becomes: a new one, or one that was a draft.
void start_session(OrtSession& session, SessionOptions settings, Model model, ModelNotes notes);

// Values for the inputs of a session's graph, which has tensors for a map or a sparse tensor.
struct GivenValues {
  std::vector<std::string> names;
  std::vector<Value> values;
};
// Adds what the graph takes for an input of the model. Throws kInvalidArgument for values of another kind.
void add_input(const OrtSession& session, const std::string& name, const OrtValue& value, GivenValues& to);

// What a program gets for a value that a run computed for an output: the model may declare it as maps, or as
// a sparse tensor.
OrtValue output_of(const OrtSession& session, const std::string& name, const Value& value);

// Writes a message to the environment's log.
void log(const OrtEnv& env, OrtLoggingLevel severity, const char* call, const std::string& message);

// Where the messages of a session go: to the function of its options, or to its environment's.
std::shared_ptr<const OrtLogger> logger_of(const OrtEnv& env, const OrtSessionOptions* options);

// Moves the strings that a custom operator made to where they belong.
void finish_outputs(OrtKernelContext& context);

// Throws unless `level` is an OrtLoggingLevel, or -1 if that is allowed.
void check_severity(int level, bool allow_inherit);

}  // namespace ortrain::capi
