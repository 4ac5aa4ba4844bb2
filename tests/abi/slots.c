// Calls every slot of every table by its number, with headers written only from the recorded slots.
// Implemented calls are made here and have to work; every other slot is called by generated code and has to
// return, under its own name, that it is not implemented. Prints one line per slot: table, number, name,
// result.
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "layout.h"

static const OrtApi* ort_api;
static const OrtTrainingApi* training_api;

static void* room(void) {
  static _Alignas(64) char bytes[4096];
  memset(bytes, 0, sizeof bytes);
  return bytes;
}
static void begins(const char* table, int slot, const char* name) {
  fprintf(stderr, "%s %d %s\n", table, slot, name);  // the last line where a slot crashes
}
static void says(const char* table, int slot, const char* name, const char* answer) {
  printf("%s %d %s %s\n", table, slot, name, answer);
}
static void wrong(const char* table, int slot, const char* name) {
  printf("%s slot %d, %s: expected null or 0\n", table, slot, name);
  exit(1);
}
static void refuses(const char* table, int slot, const char* name, OrtStatus* status) {
  const char* message = status ? ort_api->GetErrorMessage(status) : "no error";
  const int code = status ? ort_api->GetErrorCode(status) : 0;
  if (code != 9 || strncmp(message, name, strlen(name)) != 0 || !strstr(message, "not implemented")) {
    printf("%s slot %d, %s: expected 'not implemented' under its name, found %d: %s\n", table, slot, name,
           code, message);
    exit(1);
  }
  ort_api->ReleaseStatus(status);
  says(table, slot, name, "unimplemented");
}

#include "sweep.h"

#define ORT(name) (called_OrtApi[OrtApi_##name] = 1, ort_api->name)
#define TRAIN(name) (called_OrtTrainingApi[OrtTrainingApi_##name] = 1, training_api->name)

#define CHECK(condition)                                      \
  do {                                                        \
    if (!(condition)) {                                       \
      printf("line %d: expected %s\n", __LINE__, #condition); \
      exit(1);                                                \
    }                                                         \
  } while (0)

static void done(int line, OrtStatus* status) {
  if (!status) return;
  printf("line %d: failed with %d: %s\n", line, ort_api->GetErrorCode(status),
         ort_api->GetErrorMessage(status));
  exit(1);
}
static void failed(int line, OrtStatus* status, int code, const char* part) {
  const int found = status ? ort_api->GetErrorCode(status) : 0;
  const char* message = status ? ort_api->GetErrorMessage(status) : "no error";
  if (found != code || !strstr(message, part)) {
    printf("line %d: expected error %d with '%s', found %d: %s\n", line, code, part, found, message);
    exit(1);
  }
  ort_api->ReleaseStatus(status);
}
#define OK(call) done(__LINE__, call)
#define FAILS(code, part, call) failed(__LINE__, call, code, part)

enum {
  kFail = 1,
  kInvalidArgument = 2,
  kNotImplemented = 9,
  kFloat = 1,
  kInt64 = 7,
  kTensor = 1,
  kSequence = 2
};

static OrtEnv* env;
static OrtAllocator* allocator;
static OrtMemoryInfo* memory;
static char text[4096];  // of the file that was read last
static size_t text_size;

static void read_file(const char* path) {
  FILE* file = fopen(path, "rb");
  CHECK(file != NULL);
  static char bytes[1 << 20];
  text_size = fread(bytes, 1, sizeof bytes, file);
  CHECK(text_size > 0 && text_size < sizeof bytes);
  fclose(file);
  memcpy(text, bytes, sizeof text);
}
static char* whole(const char* path) {
  read_file(path);
  char* bytes = malloc(text_size);
  FILE* file = fopen(path, "rb");
  CHECK(bytes != NULL && file != NULL && fread(bytes, 1, text_size, file) == text_size);
  fclose(file);
  return bytes;
}

static int logged;
static void log_message(void* param, int severity, const char* category, const char* id, const char* location,
                        const char* message) {
  CHECK(param == &logged && severity >= 0 && category && id && location && message);
  ++logged;
}

static void status_calls(void) {
  OrtStatus* status = ORT(CreateStatus)(7, "a message");
  CHECK(ORT(GetErrorCode)(status) == 7);
  CHECK(strcmp(ORT(GetErrorMessage)(status), "a message") == 0);
  ORT(ReleaseStatus)(status);
  ort_api->ReleaseStatus(NULL);
}

static void environment_calls(void) {
  OrtThreadingOptions* threads = NULL;
  OK(ORT(CreateThreadingOptions)(&threads));
  OK(ORT(SetGlobalIntraOpNumThreads)(threads, 1));
  FAILS(kInvalidArgument, "-1", ort_api->SetGlobalIntraOpNumThreads(threads, -1));
  OK(ORT(SetGlobalInterOpNumThreads)(threads, 2));
  OK(ORT(SetGlobalSpinControl)(threads, 0));
  FAILS(kInvalidArgument, "allow_spinning", ort_api->SetGlobalSpinControl(threads, 3));
  OK(ORT(SetGlobalDenormalAsZero)(threads));
  OrtEnv* other = NULL;
  OK(ORT(CreateEnvWithGlobalThreadPools)(3, "slots", threads, &other));
  ORT(ReleaseEnv)(other);
  OK(ORT(CreateEnvWithCustomLoggerAndGlobalThreadPools)((OrtLoggingFunction)log_message, &logged, 3, "slots",
                                                        threads, &other));
  ort_api->ReleaseEnv(other);
  ORT(ReleaseThreadingOptions)(threads);
  OK(ORT(CreateEnvWithCustomLogger)((OrtLoggingFunction)log_message, &logged, 1, "slots", &env));
  OK(ORT(CreateEnv)(3, "slots", &other));
  OK(ORT(EnableTelemetryEvents)(other));
  OK(ORT(DisableTelemetryEvents)(other));
  OK(ORT(SetLanguageProjection)(other, 0));
  OK(ORT(UpdateEnvWithCustomLogLevel)(other, 4));
  FAILS(kInvalidArgument, "severity", ort_api->UpdateEnvWithCustomLogLevel(other, 9));
  ort_api->ReleaseEnv(other);
}

static void library_calls(void) {
  char** providers = NULL;
  int count = 0;
  OK(ORT(GetAvailableProviders)(&providers, &count));
  CHECK(count == 1 && strcmp(providers[0], "CPUExecutionProvider") == 0);
  OK(ORT(ReleaseAvailableProviders)(providers, count));
  CHECK(strstr(ORT(GetBuildInfoString)(), "ortrain") != NULL);
  training_api = ORT(GetTrainingApi)(30);
  CHECK(training_api != NULL && ort_api->GetTrainingApi(31) == NULL && ort_api->GetTrainingApi(0) == NULL);
  CHECK(ORT(GetCompileApi)() != NULL && ORT(GetModelEditorApi)() != NULL);
}

static void memory_calls(void) {
  OK(ORT(GetAllocatorWithDefaultOptions)(&allocator));
  void* bytes = NULL;
  OK(ORT(AllocatorAlloc)(allocator, 100, &bytes));
  memset(bytes, 1, 100);
  OK(ORT(AllocatorFree)(allocator, bytes));
  const OrtMemoryInfo* where = NULL;
  OK(ORT(AllocatorGetInfo)(allocator, &where));
  OK(ORT(CreateCpuMemoryInfo)(1, 0, &memory));
  OrtMemoryInfo* other = NULL;
  OK(ORT(CreateMemoryInfo)("Cpu", 1, 0, 0, &other));
  FAILS(kInvalidArgument, "Toaster", ort_api->CreateMemoryInfo("Toaster", 1, 0, 0, &other));
  int number = 7;
  OK(ORT(CompareMemoryInfo)(memory, other, &number));
  CHECK(number == 0);
  const char* name = NULL;
  OK(ORT(MemoryInfoGetName)(other, &name));
  CHECK(strcmp(name, "Cpu") == 0);
  OK(ORT(MemoryInfoGetId)(other, &number));
  CHECK(number == 0);
  number = 7;
  OK(ORT(MemoryInfoGetMemType)(other, &number));
  CHECK(number == 0);
  OK(ORT(MemoryInfoGetType)(other, &number));
  CHECK(number == 1);
  ORT(MemoryInfoGetDeviceType)(other, &number);
  CHECK(number == 0);
  CHECK(ORT(MemoryInfoGetDeviceMemType)(other) == 0 && ORT(MemoryInfoGetVendorId)(other) == 0);
  ORT(ReleaseMemoryInfo)(other);
}

static void option_calls(const char* folder) {
  OrtSessionOptions *options = NULL, *copy = NULL;
  OK(ORT(CreateSessionOptions)(&options));
  int number = 7;
  OK(ORT(SetSessionExecutionMode)(options, 1));
  OK(ORT(GetSessionExecutionMode)(options, &number));
  CHECK(number == 1);
  OK(ORT(DisableMemPattern)(options));
  OK(ORT(GetMemPatternEnabled)(options, &number));
  CHECK(number == 0);
  OK(ORT(EnableMemPattern)(options));
  OK(ort_api->GetMemPatternEnabled(options, &number));
  CHECK(number == 1);
  OK(ORT(EnableCpuMemArena)(options));
  OK(ORT(DisableCpuMemArena)(options));
  OK(ORT(SetSessionLogId)(options, "slots"));
  OK(ORT(SetSessionLogVerbosityLevel)(options, 1));
  OK(ORT(SetSessionLogSeverityLevel)(options, 2));
  OK(ORT(SetSessionGraphOptimizationLevel)(options, 99));
  FAILS(kInvalidArgument, "level 7", ort_api->SetSessionGraphOptimizationLevel(options, 7));
  OK(ORT(SetIntraOpNumThreads)(options, 1));
  OK(ORT(SetInterOpNumThreads)(options, 1));
  OK(ORT(DisablePerSessionThreads)(options));
  OK(ORT(SetDeterministicCompute)(options, true));
  OK(ORT(SessionOptionsAppendExecutionProvider)(options, "CPU", NULL, NULL, 0));
  FAILS(kInvalidArgument, "Toaster",
        ort_api->SessionOptionsAppendExecutionProvider(options, "Toaster", NULL, NULL, 0));
  OK(ORT(AddSessionConfigEntry)(options, "session.set_denormal_as_zero", "1"));
  OK(ORT(CloneSessionOptions)(options, &copy));
  OK(ORT(HasSessionConfigEntry)(copy, "session.set_denormal_as_zero", &number));
  CHECK(number == 1);
  char value[8];
  size_t size = sizeof value;
  OK(ORT(GetSessionConfigEntry)(copy, "session.set_denormal_as_zero", value, &size));
  CHECK(size == 2 && strcmp(value, "1") == 0);
  FAILS(kInvalidArgument, "empty", ort_api->SetOptimizedModelFilePath(copy, ""));
  char optimized[4096];
  snprintf(optimized, sizeof optimized, "%s/optimized.onnx", folder);
  OK(ORT(SetOptimizedModelFilePath)(copy, optimized));
  OrtSession* session = NULL;
  OK(ort_api->CreateSession(env, "exported_after.onnx", copy, &session));
  ort_api->ReleaseSession(session);
  OK(ort_api->CreateSession(env, optimized, NULL, &session));
  ort_api->ReleaseSession(session);
  ORT(ReleaseSessionOptions)(options);
  ort_api->ReleaseSessionOptions(copy);

  OrtRunOptions* run = NULL;
  OK(ORT(CreateRunOptions)(&run));
  OK(ORT(RunOptionsSetRunLogVerbosityLevel)(run, 3));
  OK(ORT(RunOptionsGetRunLogVerbosityLevel)(run, &number));
  CHECK(number == 3);
  OK(ORT(RunOptionsSetRunLogSeverityLevel)(run, 2));
  OK(ORT(RunOptionsGetRunLogSeverityLevel)(run, &number));
  CHECK(number == 2);
  OK(ORT(RunOptionsSetRunTag)(run, "a tag"));
  const char* tag = NULL;
  OK(ORT(RunOptionsGetRunTag)(run, &tag));
  CHECK(strcmp(tag, "a tag") == 0);
  OK(ORT(AddRunConfigEntry)(run, "a key", "a value"));
  CHECK(strcmp(ORT(GetRunConfigEntry)(run, "a key"), "a value") == 0);
  CHECK(ort_api->GetRunConfigEntry(run, "another") == NULL);
  ORT(ReleaseRunOptions)(run);
}

static void type_calls(void) {
  OrtTensorTypeAndShapeInfo* info = NULL;
  OK(ORT(CreateTensorTypeAndShapeInfo)(&info));
  OK(ORT(SetTensorElementType)(info, kInt64));
  const int64_t shape[] = {2, -1, 4};
  OK(ORT(SetDimensions)(info, shape, 3));
  const char* names[] = {"", "batch", ""};
  OK(ORT(SetSymbolicDimensions)(info, names, 3));
  int type = 0;
  OK(ORT(GetTensorElementType)(info, &type));
  CHECK(type == kInt64);
  size_t count = 0;
  OK(ORT(GetDimensionsCount)(info, &count));
  CHECK(count == 3);
  int64_t found[3] = {0};
  OK(ORT(GetDimensions)(info, found, 3));
  CHECK(memcmp(found, shape, sizeof shape) == 0);
  const char* symbols[3] = {0};
  OK(ORT(GetSymbolicDimensions)(info, symbols, 3));
  CHECK(strcmp(symbols[1], "batch") == 0 && *symbols[0] == 0);
  FAILS(kInvalidArgument, "", ORT(GetTensorShapeElementCount)(info, &count));
  OK(ort_api->SetDimensions(info, (const int64_t[]){2, 3}, 2));
  OK(ort_api->GetTensorShapeElementCount(info, &count));
  CHECK(count == 6 && ORT(TensorTypeAndShape_HasShape)(info));
  ORT(ReleaseTensorTypeAndShapeInfo)(info);
}

static void value_calls(void) {
  const int64_t shape[] = {2, 3};
  float data[6] = {0, 1, 2, 3, 4, 5};
  OrtValue *value = NULL, *own = NULL, *freed = NULL;
  OK(ORT(CreateTensorWithDataAsOrtValue)(memory, data, sizeof data, shape, 2, kFloat, &value));
  OK(ORT(CreateTensorAsOrtValue)(allocator, shape, 2, kInt64, &own));
  void* bytes = NULL;
  OK(ort_api->AllocatorAlloc(allocator, sizeof data, &bytes));
  OK(ORT(CreateTensorWithDataAndDeleterAsOrtValue)(allocator, bytes, sizeof data, shape, 2, kFloat, &freed));
  int flag = 0;
  OK(ORT(IsTensor)(value, &flag));
  CHECK(flag == 1);
  OK(ORT(HasValue)(value, &flag));
  CHECK(flag == 1);
  OK(ORT(IsSparseTensor)(value, &flag));
  CHECK(flag == 0);
  OK(ORT(GetTensorMutableData)(value, &bytes));
  CHECK(bytes == data);
  const void* constant = NULL;
  OK(ORT(GetTensorData)(value, &constant));
  CHECK(constant == data);
  size_t size = 0;
  OK(ORT(GetTensorSizeInBytes)(own, &size));
  CHECK(size == 48);
  OK(ORT(TensorAt)(value, (const int64_t[]){1, 1}, 2, &bytes));
  CHECK(*(float*)bytes == 4);
  const OrtMemoryInfo* where = NULL;
  OK(ORT(GetTensorMemoryInfo)(value, &where));
  CHECK(where != NULL);
  int kind = 0;
  OK(ORT(GetValueType)(value, &kind));
  CHECK(kind == kTensor);
  OrtTensorTypeAndShapeInfo* shape_info = NULL;
  OK(ORT(GetTensorTypeAndShape)(value, &shape_info));
  size_t count = 0;
  OK(ort_api->GetTensorShapeElementCount(shape_info, &count));
  CHECK(count == 6);
  ort_api->ReleaseTensorTypeAndShapeInfo(shape_info);

  OrtTypeInfo *type = NULL, *element = NULL;
  OK(ORT(GetTypeInfo)(value, &type));
  OK(ORT(GetOnnxTypeFromTypeInfo)(type, &kind));
  CHECK(kind == kTensor);
  const OrtTensorTypeAndShapeInfo* tensor = NULL;
  const OrtSequenceTypeInfo* sequence_type = NULL;
  const OrtOptionalTypeInfo* optional_type = NULL;
  OK(ORT(CastTypeInfoToTensorInfo)(type, &tensor));
  CHECK(tensor != NULL);
  OK(ORT(CastTypeInfoToSequenceTypeInfo)(type, &sequence_type));
  CHECK(sequence_type == NULL);
  OK(ORT(CastTypeInfoToOptionalTypeInfo)(type, &optional_type));
  CHECK(optional_type == NULL);
  FAILS(kInvalidArgument, "null", ORT(GetOptionalContainedTypeInfo)(optional_type, &element));
  ORT(ReleaseTypeInfo)(type);

  OrtValue *sequence = NULL, *copy = NULL;
  const OrtValue* parts[] = {value, freed};
  OK(ORT(CreateValue)(parts, 2, kSequence, &sequence));
  OK(ORT(GetValueCount)(sequence, &count));
  CHECK(count == 2);
  OK(ORT(GetValue)(sequence, 0, allocator, &copy));
  OK(ort_api->GetTensorData(copy, &constant));
  CHECK(constant != data && memcmp(constant, data, sizeof data) == 0);
  OK(ort_api->GetTypeInfo(sequence, &type));
  OK(ort_api->CastTypeInfoToSequenceTypeInfo(type, &sequence_type));
  OK(ORT(GetSequenceElementType)(sequence_type, &element));
  OK(ort_api->GetOnnxTypeFromTypeInfo(element, &kind));
  CHECK(kind == kTensor);
  ort_api->ReleaseTypeInfo(element);
  ort_api->ReleaseTypeInfo(type);
  ORT(ReleaseSequenceTypeInfo)(NULL);
  OrtValue* all[] = {value, own, freed, sequence, copy};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) ORT(ReleaseValue)(all[i]);
}

static void forward_calls(void) {
  OrtSession *session = NULL, *other = NULL;
  OK(ORT(CreateSession)(env, "exported_after.onnx", NULL, &session));
  char* bytes = whole("exported_after.onnx");
  OK(ORT(CreateSessionFromArray)(env, bytes, text_size, NULL, &other));
  free(bytes);
  uint64_t first = 0, second = 0;
  OK(ORT(SessionGetProfilingStartTimeNs)(session, &first));
  OK(ort_api->SessionGetProfilingStartTimeNs(other, &second));
  CHECK(first > 0 && first <= second);
  size_t count = 7;
  OK(ORT(SessionGetInputCount)(session, &count));
  CHECK(count == 1);
  OK(ORT(SessionGetOutputCount)(session, &count));
  CHECK(count == 1);
  OK(ORT(SessionGetOverridableInitializerCount)(session, &count));
  CHECK(count == 0);
  char *input = NULL, *output = NULL;
  OK(ORT(SessionGetInputName)(session, 0, allocator, &input));
  OK(ORT(SessionGetOutputName)(session, 0, allocator, &output));
  CHECK(strcmp(input, "input") == 0 && strcmp(output, "output") == 0);
  char* none = NULL;
  OrtTypeInfo* type = NULL;
  FAILS(kInvalidArgument, "initializer",
        ORT(SessionGetOverridableInitializerName)(session, 0, allocator, &none));
  FAILS(kInvalidArgument, "initializer", ORT(SessionGetOverridableInitializerTypeInfo)(session, 0, &type));
  OK(ORT(SessionGetInputTypeInfo)(session, 0, &type));
  const OrtTensorTypeAndShapeInfo* info = NULL;
  OK(ort_api->CastTypeInfoToTensorInfo(type, &info));
  int64_t shape[2] = {0};
  OK(ort_api->GetDimensions(info, shape, 2));
  CHECK(shape[0] == -1 && shape[1] == 64);
  ort_api->ReleaseTypeInfo(type);
  OK(ORT(SessionGetOutputTypeInfo)(session, 0, &type));
  ort_api->ReleaseTypeInfo(type);
  OrtAllocator* of_session = NULL;
  OK(ORT(CreateAllocator)(session, memory, &of_session));
  ORT(ReleaseAllocator)(of_session);

  float x[64] = {0};
  OrtValue *given = NULL, *made = NULL;
  OK(ort_api->CreateTensorWithDataAsOrtValue(memory, x, sizeof x, (const int64_t[]){1, 64}, 2, kFloat,
                                             &given));
  const OrtValue* inputs[] = {given};
  const char *input_names[] = {input}, *output_names[] = {output};
  OrtRunOptions* run = NULL;
  OK(ort_api->CreateRunOptions(&run));
  OK(ORT(RunOptionsSetTerminate)(run));
  FAILS(kFail, "Exiting due to terminate flag being set to true.",
        ORT(Run)(session, run, input_names, inputs, 1, output_names, 1, &made));
  OK(ORT(RunOptionsUnsetTerminate)(run));
  OK(ort_api->Run(session, run, input_names, inputs, 1, output_names, 1, &made));
  ort_api->ReleaseRunOptions(run);
  ort_api->ReleaseValue(made);
  ort_api->ReleaseValue(given);
  OK(ort_api->AllocatorFree(allocator, input));
  OK(ort_api->AllocatorFree(allocator, output));
  ORT(ReleaseSession)(session);
  ort_api->ReleaseSession(other);
}

// The sessions of the training calls: with all models, and with the training model alone.
static void training_calls(const char* scratch) {
  OrtSessionOptions* options = NULL;
  OK(ort_api->CreateSessionOptions(&options));
  OrtCheckpointState *state = NULL, *bare_state = NULL;
  OrtTrainingSession *session = NULL, *bare = NULL;
  OK(TRAIN(LoadCheckpoint)("checkpoint", &state));
  char* bytes = whole("checkpoint");
  OK(TRAIN(LoadCheckpointFromBuffer)(bytes, text_size, &bare_state));
  free(bytes);
  logged = 0;
  OK(TRAIN(CreateTrainingSession)(env, options, state, "training_model.onnx", "eval_model.onnx",
                                  "optimizer_model.onnx", &session));
  CHECK(logged > 0);
  bytes = whole("training_model.onnx");
  OK(TRAIN(CreateTrainingSessionFromBuffer)(env, options, bare_state, bytes, text_size, NULL, 0, NULL, 0,
                                            &bare));
  free(bytes);
  OK(TRAIN(SetSeed)(1));

  size_t count = 7;
  OK(TRAIN(TrainingSessionGetTrainingModelInputCount)(session, &count));
  CHECK(count == 2);
  OK(TRAIN(TrainingSessionGetTrainingModelOutputCount)(session, &count));
  CHECK(count == 1);
  OK(TRAIN(TrainingSessionGetEvalModelInputCount)(session, &count));
  CHECK(count == 2);
  OK(TRAIN(TrainingSessionGetEvalModelOutputCount)(session, &count));
  CHECK(count == 1);
  OK(training_api->TrainingSessionGetEvalModelInputCount(bare, &count));
  CHECK(count == 0);
  count = 7;
  OK(training_api->TrainingSessionGetEvalModelOutputCount(bare, &count));
  CHECK(count == 0);
  char* name = NULL;
  FAILS(kInvalidArgument, "input",
        training_api->TrainingSessionGetEvalModelInputName(bare, 0, allocator, &name));
  OK(TRAIN(TrainingSessionGetTrainingModelInputName)(session, 1, allocator, &name));
  CHECK(strcmp(name, "labels") == 0);
  OK(ort_api->AllocatorFree(allocator, name));
  OK(TRAIN(TrainingSessionGetTrainingModelOutputName)(session, 0, allocator, &name));
  CHECK(strcmp(name, "onnx::loss::2") == 0);
  OK(ort_api->AllocatorFree(allocator, name));
  OK(TRAIN(TrainingSessionGetEvalModelInputName)(session, 0, allocator, &name));
  CHECK(strcmp(name, "input") == 0);
  OK(ort_api->AllocatorFree(allocator, name));
  OK(TRAIN(TrainingSessionGetEvalModelOutputName)(session, 0, allocator, &name));
  CHECK(strcmp(name, "onnx::loss::2") == 0);
  OK(ort_api->AllocatorFree(allocator, name));

  float x[4 * 64];
  int64_t y[4] = {0, 1, 2, 3};
  for (size_t i = 0; i < 4 * 64; ++i) x[i] = (float)(i % 7) / 7;
  OrtValue *xs = NULL, *ys = NULL, *loss = NULL, *eval_loss = NULL;
  OK(ort_api->CreateTensorWithDataAsOrtValue(memory, x, sizeof x, (const int64_t[]){4, 64}, 2, kFloat, &xs));
  OK(ort_api->CreateTensorWithDataAsOrtValue(memory, y, sizeof y, (const int64_t[]){4}, 1, kInt64, &ys));
  const OrtValue* inputs[] = {xs, ys};
  OK(TRAIN(EvalStep)(session, NULL, 2, inputs, 1, &eval_loss));
  OK(TRAIN(TrainStep)(session, NULL, 2, inputs, 1, &loss));
  const void *before = NULL, *at_train = NULL;
  OK(ort_api->GetTensorData(eval_loss, &before));
  OK(ort_api->GetTensorData(loss, &at_train));
  CHECK(*(const float*)before > 0 && *(const float*)before == *(const float*)at_train);
  OK(TRAIN(SetLearningRate)(session, 0.01f));
  float rate = 0;
  OK(TRAIN(GetLearningRate)(session, &rate));
  CHECK(rate == 0.01f);
  OrtRunOptions* ended = NULL;
  OK(ort_api->CreateRunOptions(&ended));
  OK(ort_api->RunOptionsSetTerminate(ended));
  FAILS(kFail, "Exiting due to terminate flag", TRAIN(OptimizerStep)(session, ended));
  FAILS(kFail, "Exiting due to terminate flag",
        training_api->EvalStep(session, ended, 2, inputs, 1, &eval_loss));
  ort_api->ReleaseRunOptions(ended);
  OK(training_api->OptimizerStep(session, NULL));
  OK(TRAIN(LazyResetGrad)(session));
  OK(training_api->EvalStep(session, NULL, 2, inputs, 1, &eval_loss));
  const void* after = NULL;
  OK(ort_api->GetTensorData(eval_loss, &after));
  CHECK(*(const float*)after < *(const float*)at_train);
  OK(TRAIN(RegisterLinearLRScheduler)(session, 0, 10, 0.5f));
  OK(TRAIN(SchedulerStep)(session));
  OK(training_api->GetLearningRate(session, &rate));
  CHECK(rate > 0 && rate <= 0.5f);

  size_t size = 0;
  OK(TRAIN(GetParametersSize)(session, &size, true));
  CHECK(size > 64);
  const int64_t extent[] = {(int64_t)size};
  OrtValue* buffer = NULL;
  OK(ort_api->CreateTensorAsOrtValue(allocator, extent, 1, kFloat, &buffer));
  OK(TRAIN(CopyParametersToBuffer)(session, buffer, true));
  OK(TRAIN(CopyBufferToParameters)(session, buffer, true));
  OrtTensorTypeAndShapeInfo* info = NULL;
  OK(TRAIN(GetParameterTypeAndShape)(state, "fc1.bias", &info));
  OK(ort_api->GetDimensionsCount(info, &count));
  CHECK(count == 1);
  ort_api->ReleaseTensorTypeAndShapeInfo(info);
  OrtValue* parameter = NULL;
  OK(TRAIN(GetParameter)(state, "fc1.bias", allocator, &parameter));
  OK(TRAIN(UpdateParameter)(state, "fc1.bias", parameter));
  int64_t epoch = 3;
  OK(TRAIN(AddProperty)(state, "epoch", 0, &epoch));
  int type = 7;
  void* property = NULL;
  OK(TRAIN(GetProperty)(state, "epoch", allocator, &type, &property));
  CHECK(type == 0 && *(int64_t*)property == 3);
  OK(ort_api->AllocatorFree(allocator, property));
  char path[4096];
  snprintf(path, sizeof path, "%s/checkpoint", scratch);
  OK(TRAIN(SaveCheckpoint)(state, path, true));
  read_file(path);
  snprintf(path, sizeof path, "%s/model.onnx", scratch);
  const char* outputs[] = {"output"};
  OK(TRAIN(ExportModelForInferencing)(session, path, 1, outputs));
  OrtSession* exported = NULL;
  OK(ort_api->CreateSession(env, path, options, &exported));
  ort_api->ReleaseSession(exported);

  OrtValue* all[] = {xs, ys, loss, eval_loss, buffer, parameter};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) ort_api->ReleaseValue(all[i]);
  TRAIN(ReleaseTrainingSession)(session);
  training_api->ReleaseTrainingSession(bare);
  TRAIN(ReleaseCheckpointState)(state);
  training_api->ReleaseCheckpointState(bare_state);
  ort_api->ReleaseSessionOptions(options);
}

// Arguments: the folder of the recorded run, and one to write to.
int main(int argc, char** argv) {
  if (argc != 3 || chdir(argv[1]) != 0) return 2;
  ort_api = OrtGetApiBase()->GetApi(30);
  CHECK(ort_api != NULL);
  const void* const* slot = (const void* const*)ort_api;
  for (size_t i = 0; i < sizeof(OrtApi) / sizeof(void*); ++i) CHECK(slot[i] != NULL);
  status_calls();
  environment_calls();
  library_calls();
  memory_calls();
  option_calls(argv[2]);
  type_calls();
  value_calls();
  forward_calls();
  training_calls(argv[2]);
  sweep_OrtApi(ort_api);
  sweep_OrtCompileApi(ort_api->GetCompileApi());
  sweep_OrtModelEditorApi(ort_api->GetModelEditorApi());
  sweep_OrtTrainingApi(training_api);
  ort_api->ReleaseMemoryInfo(memory);
  ort_api->ReleaseEnv(env);
  return 0;
}
