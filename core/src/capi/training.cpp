// Training sessions.
#include <memory>
#include <mutex>

#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "op/signature.h"
#include "session/mixed_precision.h"

namespace ortrain::capi {
namespace {

void make_session(const OrtEnv& env, const SessionOptions& options, const OrtCheckpointState& state,
                  Model train, std::optional<Model> eval, std::optional<Model> optimizer,
                  OrtTrainingSession** out) {
  *out = new OrtTrainingSession{
      TrainingSession(options, state.state, std::move(train), std::move(eval), std::move(optimizer))};
  if (const std::string warning = precision_warning(options); !warning.empty()) {
    static std::once_flag once;
    std::call_once(once, [&] { log(env, ORT_LOGGING_LEVEL_WARNING, "CreateTrainingSession", warning); });
  }
  log(env, ORT_LOGGING_LEVEL_INFO, "CreateTrainingSession",
      concat("created a session with ", counted(state.state->parameters().size(), "parameter")));
}

// The models of a training session take no values of initializers from the options.
ReadOptions model_reading(const SessionOptions& options) {
  ReadOptions how = read_options(options);
  how.given.any.clear();
  how.given.external.clear();
  how.map_external = true;
  return how;
}

// A null or empty path means no model.
std::optional<Model> read_optional(const ORTCHAR_T* path, const ReadOptions& how) {
  if (path == nullptr || *path == 0) return std::nullopt;
  return load_model(std::filesystem::path(path), how);
}

std::optional<Model> read_optional(const void* data, size_t length, const char* origin,
                                   const ReadOptions& how) {
  if (data == nullptr || length == 0) return std::nullopt;
  return load_model(data, length, origin, how);
}

// Runs a step over the tensors of the values. The lists are kept per thread, so that a step allocates
// nothing.
template <typename Step>
void run_step(const OrtValue* const* inputs, size_t inputs_len, OrtValue** outputs, size_t outputs_len,
              Step&& step) {
  thread_local std::vector<const Tensor*> given;
  thread_local std::vector<Tensor*> wanted;
  thread_local std::vector<size_t> made;
  given.clear();
  wanted.clear();
  made.clear();
  for (size_t i = 0; i < inputs_len; ++i) given.push_back(&tensor_of(*inputs[i]));
  try {
    for (size_t i = 0; i < outputs_len; ++i) {
      if (outputs[i] == nullptr) {
        made.push_back(i);
        outputs[i] = new OrtValue;
      }
      wanted.push_back(&tensor_of(*outputs[i]));
    }
    step(given, wanted);
  } catch (...) {
    for (size_t i : made) {
      release(outputs[i]);
      outputs[i] = nullptr;
    }
    throw;
  }
}

void name_at(const std::vector<std::string>& names, size_t index, const char* what, OrtAllocator* allocator,
             char** output) {
  *output = copy_text(allocator, item(names, index, what));
}

}  // namespace

void EndProfiling(OrtTrainingSession* sess, OrtAllocator* allocator, char** out) {
  *out = copy_text(allocator, core_of(*sess).end_profiling());
}

void CreateTrainingSession(const OrtEnv* env, const OrtSessionOptions* options,
                           OrtCheckpointState* checkpoint_state, const ORTCHAR_T* train_model_path,
                           const ORTCHAR_T* eval_model_path, const ORTCHAR_T* optimizer_model_path,
                           OrtTrainingSession** out) {
  const SessionOptions settings = options_of(*env, options);
  const ReadOptions how = model_reading(settings);
  make_session(*env, settings, *checkpoint_state, load_model(std::filesystem::path(train_model_path), how),
               read_optional(eval_model_path, how), read_optional(optimizer_model_path, how), out);
}

void CreateTrainingSessionFromBuffer(const OrtEnv* env, const OrtSessionOptions* options,
                                     OrtCheckpointState* checkpoint_state, const void* train_model_data,
                                     size_t train_data_length, const void* eval_model_data,
                                     size_t eval_data_length, const void* optim_model_data,
                                     size_t optim_data_length, OrtTrainingSession** out) {
  require(
      train_data_length > 0, ErrorCode::kInvalidProtobuf,
      "Training Session Creation failed. Train model data cannot be NULL. Expected the bytes of a training "
      "model, found none");
  const SessionOptions settings = options_of(*env, options);
  const ReadOptions how = model_reading(settings);
  make_session(*env, settings, *checkpoint_state,
               load_model(train_model_data, train_data_length, "training model in memory", how),
               read_optional(eval_model_data, eval_data_length, "eval model in memory", how),
               read_optional(optim_model_data, optim_data_length, "optimizer model in memory", how), out);
}

void AttachOptimizer(OrtTrainingSession* sess, const ORTCHAR_T* optimizer_model_path) {
  sess->session.attach_optimizer(
      load_model(std::filesystem::path(optimizer_model_path), model_reading(sess->session.options())));
}

void TrainStep(OrtTrainingSession* sess, const OrtRunOptions* run_options, size_t inputs_len,
               const OrtValue* const* inputs, size_t outputs_len, OrtValue** outputs) {
  run_step(inputs, inputs_len, outputs, outputs_len, [&](const auto& given, const auto& wanted) {
    sess->session.train_step(given, wanted, core_of(run_options));
  });
}

void EvalStep(const OrtTrainingSession* sess, const OrtRunOptions* run_options, size_t inputs_len,
              const OrtValue* const* inputs, size_t outputs_len, OrtValue** outputs) {
  run_step(inputs, inputs_len, outputs, outputs_len, [&](const auto& given, const auto& wanted) {
    core_of(*sess).eval_step(given, wanted, core_of(run_options));
  });
}

void OptimizerStep(OrtTrainingSession* sess, const OrtRunOptions* run_options) {
  sess->session.optimizer_step(core_of(run_options));
}

void GetParametersSize(OrtTrainingSession* sess, size_t* out, bool trainable_only) {
  *out = static_cast<size_t>(sess->session.state().parameters_size(trainable_only));
}

void GetContiguousParameters(OrtTrainingSession* sess, bool trainable_only, OrtAllocator* allocator,
                             OrtValue** out) {
  const CheckpointState& state = sess->session.state();
  const DType dtype = state.parameters_type(trainable_only, "copying the parameters to a buffer");
  auto buffer = std::make_unique<OrtValue>(
      OrtValue{allocate_tensor(allocator, dtype, {state.parameters_size(trainable_only)})});
  state.copy_to_buffer(tensor_of(*buffer), trainable_only);
  *out = buffer.release();
}

void CopyParametersToBuffer(OrtTrainingSession* sess, OrtValue* parameters_buffer, bool trainable_only) {
  sess->session.state().copy_to_buffer(tensor_of(*parameters_buffer), trainable_only);
}

void CopyBufferToParameters(OrtTrainingSession* sess, OrtValue* parameters_buffer, bool trainable_only) {
  sess->session.state().copy_from_buffer(tensor_of(*parameters_buffer), trainable_only);
}

void CopyGradientsToBuffer(const OrtTrainingSession* sess, OrtValue* gradients_buffer) {
  core_of(*sess).copy_gradients_to_buffer(tensor_of(*gradients_buffer));
}

void CopyBufferToGradients(OrtTrainingSession* sess, const OrtValue* gradients_buffer) {
  sess->session.copy_buffer_to_gradients(tensor_of(*gradients_buffer));
}

void GetGradientNorm(const OrtTrainingSession* sess, float* out) {
  *out = static_cast<float>(core_of(*sess).gradient_norm());
}

void GetOptimizerGroupCount(const OrtTrainingSession* sess, size_t* out) {
  *out = core_of(*sess).group_count();
}

void GetOptimizerGroupName(const OrtTrainingSession* sess, size_t index, OrtAllocator* allocator,
                           char** out) {
  *out = copy_text(allocator, core_of(*sess).group_name(index));
}

void GetOptimizerGroupParameterCount(const OrtTrainingSession* sess, const char* group, size_t* out) {
  *out = core_of(*sess).group_size(group);
}

void GetOptimizerGroupParameterName(const OrtTrainingSession* sess, const char* group, size_t index,
                                    OrtAllocator* allocator, char** out) {
  *out = copy_text(allocator, core_of(*sess).group_parameter(group, index));
}

void GetParameterGroup(const OrtTrainingSession* sess, const char* parameter_name, OrtAllocator* allocator,
                       char** out) {
  *out = copy_text(allocator, core_of(*sess).group_of(parameter_name));
}

void GetOptimizerGroupAttribute(const OrtTrainingSession* sess, const char* group, const char* attribute,
                                float* out) {
  *out = core_of(*sess).group_attribute(group, attribute);
}

void SetOptimizerGroupAttribute(OrtTrainingSession* sess, const char* group, const char* attribute,
                                float value) {
  sess->session.set_group_attribute(group, attribute, value);
}

void ExportModelForInferencing(OrtTrainingSession* sess, const ORTCHAR_T* inference_model_path,
                               size_t graph_outputs_len, const char* const* graph_output_names) {
  sess->session.export_for_inferencing(inference_model_path, texts(graph_output_names, graph_outputs_len));
}

void TrainingSessionGetTrainingModelOutputCount(const OrtTrainingSession* sess, size_t* out) {
  *out = sess->session.output_names(true).size();
}
void TrainingSessionGetEvalModelOutputCount(const OrtTrainingSession* sess, size_t* out) {
  *out = sess->session.output_names(false).size();
}
void TrainingSessionGetTrainingModelInputCount(const OrtTrainingSession* sess, size_t* out) {
  *out = sess->session.input_names(true).size();
}
void TrainingSessionGetEvalModelInputCount(const OrtTrainingSession* sess, size_t* out) {
  *out = sess->session.input_names(false).size();
}
void TrainingSessionGetTrainingModelOutputName(const OrtTrainingSession* sess, size_t index,
                                               OrtAllocator* allocator, char** output) {
  name_at(sess->session.output_names(true), index, "output of the training model", allocator, output);
}
void TrainingSessionGetEvalModelOutputName(const OrtTrainingSession* sess, size_t index,
                                           OrtAllocator* allocator, char** output) {
  name_at(sess->session.output_names(false), index, "output of the eval model", allocator, output);
}
void TrainingSessionGetTrainingModelInputName(const OrtTrainingSession* sess, size_t index,
                                              OrtAllocator* allocator, char** output) {
  name_at(sess->session.input_names(true), index, "input of the training model", allocator, output);
}
void TrainingSessionGetEvalModelInputName(const OrtTrainingSession* sess, size_t index,
                                          OrtAllocator* allocator, char** output) {
  name_at(sess->session.input_names(false), index, "input of the eval model", allocator, output);
}

void GetModelInputTypeInfo(const OrtTrainingSession* sess, bool training, size_t index,
                           OrtTensorTypeAndShapeInfo** out) {
  *out = new OrtTensorTypeAndShapeInfo(type_of(item(sess->session.inputs(training), index, "input")).tensor);
}

}  // namespace ortrain::capi
