// Calls every slot of every table by its number, with headers written only from the recorded slots.
// Implemented calls are made here and have to work; every other slot is called by generated code and has to
// return, under its own name, that it is not implemented. Prints one line per slot: table, number, name,
// result.
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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
  kInvalidProtobuf = 7,
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
  CHECK(training_api != NULL && ort_api->GetTrainingApi(33) == NULL && ort_api->GetTrainingApi(0) == NULL);
  CHECK(ORT(GetCompileApi)() != NULL && ORT(GetModelEditorApi)() != NULL);
}

// An allocator of the program, as far as a program of 1.19 knows it.
struct OrtAllocator {
  uint32_t version;
  void* (*Alloc)(OrtAllocator*, size_t);
  void (*Free)(OrtAllocator*, void*);
  const OrtMemoryInfo* (*Info)(const OrtAllocator*);
  void* (*Reserve)(OrtAllocator*, size_t);
};
static int held;  // memory that was not returned
static void* own_alloc(OrtAllocator* self, size_t size) { return (void)self, ++held, malloc(size); }
static void* no_memory(OrtAllocator* self, size_t size) { return (void)self, (void)size, NULL; }
static void own_free(OrtAllocator* self, void* p) { (void)self, --held, free(p); }
static const OrtMemoryInfo* no_info(const OrtAllocator* self) { return (void)self, NULL; }

// What an allocator lacks is named where it is used; one that does not tell its memory is taken for the
// CPU's.
static void incomplete_allocators(void) {
  const int64_t two = 2;
  OrtValue* value = NULL;
  void* bytes = NULL;
  const OrtMemoryInfo* where = NULL;
  const char* name = NULL;
  OrtAllocator own = {18, own_alloc, own_free, no_info, NULL};
  for (int i = 0; i < 2; ++i, own.Info = NULL) {
    OK(ort_api->CreateTensorAsOrtValue(&own, &two, 1, kFloat, &value));
    OK(ort_api->GetTensorMemoryInfo(value, &where));
    OK(ort_api->MemoryInfoGetName(where, &name));
    CHECK(strcmp(name, "Cpu") == 0 && held == 1);
    ort_api->ReleaseValue(value);
    CHECK(held == 0);
    FAILS(kInvalidArgument, "expected a function Info", ort_api->RegisterAllocator(env, &own));
  }
  FAILS(kInvalidArgument, "has no Info", ort_api->AllocatorGetInfo(&own, &where));
  own.Alloc = NULL;
  FAILS(kInvalidArgument, "has no Alloc or no Free", ort_api->AllocatorAlloc(&own, 8, &bytes));
  FAILS(kInvalidArgument, "has no Alloc or no Free",
        ort_api->CreateTensorAsOrtValue(&own, &two, 1, kFloat, &value));
  own.Alloc = no_memory;
  FAILS(kFail, "no memory for 8 bytes", ort_api->AllocatorAlloc(&own, 8, &bytes));
  FAILS(kFail, "no memory for 8 bytes", ort_api->CreateTensorAsOrtValue(&own, &two, 1, kFloat, &value));
  own.Free = NULL;
  FAILS(kInvalidArgument, "has no Alloc or no Free", ort_api->AllocatorFree(&own, (void*)&two));
  FAILS(kInvalidArgument, "has no Alloc or no Free",
        ort_api->CreateTensorAsOrtValue(&own, &two, 1, kFloat, &value));
  float numbers[2];
  FAILS(kInvalidArgument, "has no Alloc or no Free",
        ort_api->CreateTensorWithDataAndDeleterAsOrtValue(&own, numbers, sizeof numbers, &two, 1, kFloat,
                                                          &value));
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
  FAILS(kInvalidArgument, "level is 7", ort_api->SetSessionGraphOptimizationLevel(options, 7));
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

static void string_calls(void) {
  OrtValue *strings = NULL, *numbers = NULL, *copy = NULL;
  OK(ort_api->CreateTensorAsOrtValue(allocator, (const int64_t[]){2, 1}, 2, 8, &strings));
  int is = 0;
  OK(ort_api->IsTensor(strings, &is));
  CHECK(is == 1);
  OrtTensorTypeAndShapeInfo* info = NULL;
  OK(ort_api->GetTensorTypeAndShape(strings, &info));
  int type = 0;
  OK(ort_api->GetTensorElementType(info, &type));
  size_t count = 0, length = 7;
  OK(ort_api->GetTensorShapeElementCount(info, &count));
  CHECK(type == 8 && count == 2);
  ort_api->ReleaseTensorTypeAndShapeInfo(info);
  OK(ORT(FillStringTensor)(strings, (const char*[]){"ab", "cde"}, 2));
  FAILS(kInvalidArgument, "2 strings", ort_api->FillStringTensor(strings, (const char*[]){"ab"}, 1));
  OK(ORT(GetStringTensorDataLength)(strings, &length));
  CHECK(length == 5);
  char room_for[8] = {0};
  size_t offsets[2] = {7, 7};
  OK(ORT(GetStringTensorContent)(strings, room_for, 5, offsets, 2));
  CHECK(memcmp(room_for, "abcde", 5) == 0 && offsets[0] == 0 && offsets[1] == 2);
  FAILS(kInvalidArgument, "5", ort_api->GetStringTensorContent(strings, room_for, 4, offsets, 2));
  OK(ORT(FillStringTensorElement)(strings, "xyzw", 0));
  OK(ORT(GetStringTensorElementLength)(strings, 0, &length));
  CHECK(length == 4);
  OK(ORT(GetStringTensorElement)(strings, 4, 0, room_for));
  CHECK(memcmp(room_for, "xyzw", 4) == 0);
  FAILS(kInvalidArgument, "number 2", ort_api->GetStringTensorElementLength(strings, 2, &length));
  char* buffer = NULL;
  OK(ORT(GetResizedStringTensorElementBuffer)(strings, 1, 6, &buffer));
  memcpy(buffer, "sixsix", 6);
  OK(ort_api->GetStringTensorElement(strings, 6, 1, room_for));
  CHECK(memcmp(room_for, "sixsix", 6) == 0);

  float x[2] = {1, 2}, y[2] = {0};
  OK(ort_api->CreateTensorWithDataAsOrtValue(memory, x, sizeof x, (const int64_t[]){2}, 1, kFloat, &numbers));
  OK(ort_api->CreateTensorWithDataAsOrtValue(memory, y, sizeof y, (const int64_t[]){2}, 1, kFloat, &copy));
  FAILS(kInvalidArgument, "not a tensor of strings", ort_api->GetStringTensorDataLength(numbers, &length));
  void* data = NULL;
  FAILS(kInvalidArgument, "strings", ort_api->GetTensorMutableData(strings, &data));
  OK(ORT(CopyTensors)(env, (const OrtValue*[]){numbers}, (OrtValue* const[]){copy}, NULL, 1));
  CHECK(y[0] == 1 && y[1] == 2);
  FAILS(kInvalidArgument, "strings",
        ort_api->CopyTensors(env, (const OrtValue*[]){strings}, (OrtValue* const[]){copy}, NULL, 1));
  OrtValue* all[] = {strings, numbers, copy};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) ort_api->ReleaseValue(all[i]);

  OrtPrepackedWeightsContainer* container = NULL;
  OrtSession *session = NULL, *other = NULL;
  OK(ORT(CreatePrepackedWeightsContainer)(&container));
  OK(ORT(CreateSessionWithPrepackedWeightsContainer)(env, "exported_after.onnx", NULL, container, &session));
  char* bytes = whole("exported_after.onnx");
  OK(ORT(CreateSessionFromArrayWithPrepackedWeightsContainer)(env, bytes, text_size, NULL, container,
                                                              &other));
  free(bytes);
  const OrtMemoryInfo* where[1] = {NULL};
  OK(ORT(SessionGetMemoryInfoForInputs)(session, where, 1));
  const char* name = NULL;
  OK(ort_api->MemoryInfoGetName(where[0], &name));
  CHECK(strcmp(name, "Cpu") == 0);
  where[0] = NULL;
  OK(ORT(SessionGetMemoryInfoForOutputs)(other, where, 1));
  CHECK(where[0] != NULL);
  FAILS(kInvalidArgument, "1 input,", ort_api->SessionGetMemoryInfoForInputs(session, where, 0));
  ort_api->ReleaseSession(session);
  ort_api->ReleaseSession(other);
  ORT(ReleasePrepackedWeightsContainer)(container);
}

static void forward_calls(void) {
  OrtSession *session = NULL, *other = NULL;
  OK(ORT(CreateSession)(env, "exported_after.onnx", NULL, &session));
  char* bytes = whole("exported_after.onnx");
  OK(ORT(CreateSessionFromArray)(env, bytes, text_size, NULL, &other));
  free(bytes);
  uint64_t start = 7;  // 0 where nothing is recorded, as in onnxruntime
  OK(ORT(SessionGetProfilingStartTimeNs)(session, &start));
  CHECK(start == 0);
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

// A file whose path is that of a profile holds this.
static void expect_profile(const char* path, const char* part) {
  read_file(path);
  CHECK(text[0] == '[' && strstr(text, part));
  CHECK(unlink(path) == 0);
}

static void profile_calls(const char* scratch) {
  char prefix[512];
  snprintf(prefix, sizeof prefix, "%s/profile", scratch);
  OrtSessionOptions* options = NULL;
  OK(ort_api->CreateSessionOptions(&options));
  OK(ORT(EnableProfiling)(options, prefix));
  OrtSession *recording = NULL, *silent = NULL;
  OK(ort_api->CreateSession(env, "exported_after.onnx", options, &recording));
  OK(ORT(DisableProfiling)(options));
  OK(ort_api->CreateSession(env, "exported_after.onnx", options, &silent));
  ort_api->ReleaseSessionOptions(options);
  uint64_t start = 0;
  OK(ort_api->SessionGetProfilingStartTimeNs(recording, &start));
  CHECK(start > 0);
  float x[64] = {0};
  const char *input_names[] = {"input"}, *output_names[] = {"output"};
  OrtValue *given = NULL, *made = NULL;
  OK(ort_api->CreateTensorWithDataAsOrtValue(memory, x, sizeof x, (const int64_t[]){1, 64}, 2, kFloat,
                                             &given));
  OK(ort_api->Run(recording, NULL, input_names, (const OrtValue*[]){given}, 1, output_names, 1, &made));
  char* path = NULL;
  OK(ORT(SessionEndProfiling)(silent, allocator, &path));
  CHECK(strcmp(path, "") == 0);
  OK(ort_api->AllocatorFree(allocator, path));
  OK(ort_api->SessionEndProfiling(recording, allocator, &path));
  CHECK(strncmp(path, prefix, strlen(prefix)) == 0 && strstr(path, ".json"));
  expect_profile(path, "model_run");
  OK(ort_api->AllocatorFree(allocator, path));
  ort_api->ReleaseValue(made);
  ort_api->ReleaseValue(given);
  ort_api->ReleaseSession(recording);
  ort_api->ReleaseSession(silent);
}

static void binding_calls(void) {
  OrtSession *session = NULL, *other = NULL;
  OK(ort_api->CreateSession(env, "exported_after.onnx", NULL, &session));
  OK(ort_api->CreateSession(env, "exported_after.onnx", NULL, &other));
  OrtIoBinding* binding = NULL;
  OK(ORT(CreateIoBinding)(session, &binding));
  float x[2 * 64], y[2 * 10];
  for (int i = 0; i < 2 * 64; ++i) x[i] = (float)i / 64;
  OrtValue *given = NULL, *place = NULL;
  OK(ort_api->CreateTensorWithDataAsOrtValue(memory, x, sizeof x, (const int64_t[]){2, 64}, 2, kFloat,
                                             &given));
  OK(ort_api->CreateTensorWithDataAsOrtValue(memory, y, sizeof y, (const int64_t[]){2, 10}, 2, kFloat,
                                             &place));
  FAILS(kInvalidArgument, "no output is bound", ORT(RunWithBinding)(session, NULL, binding));
  FAILS(kInvalidArgument, "'nope'", ORT(BindInput)(binding, "nope", given));
  OK(ort_api->BindInput(binding, "input", given));
  FAILS(kInvalidArgument, "'nope'", ORT(BindOutputToDevice)(binding, "nope", memory));
  OK(ort_api->BindOutputToDevice(binding, "output", memory));
  FAILS(kInvalidArgument, "another session", ort_api->RunWithBinding(other, NULL, binding));
  OK(ORT(SynchronizeBoundInputs)(binding));
  OK(ort_api->RunWithBinding(session, NULL, binding));
  OK(ORT(SynchronizeBoundOutputs)(binding));

  char* names = NULL;
  size_t *lengths = NULL, count = 7;
  OK(ORT(GetBoundOutputNames)(binding, allocator, &names, &lengths, &count));
  CHECK(count == 1 && lengths[0] == 6 && memcmp(names, "output", 6) == 0);
  OK(ort_api->AllocatorFree(allocator, names));
  OK(ort_api->AllocatorFree(allocator, lengths));
  OrtValue **values = NULL, **again = NULL;
  OK(ORT(GetBoundOutputValues)(binding, allocator, &values, &count));
  CHECK(count == 1);
  void *first = NULL, *second = NULL;
  OK(ort_api->GetTensorMutableData(values[0], &first));
  float allocated[2 * 10];
  memcpy(allocated, first, sizeof allocated);
  // A second run reads what the bound memory holds now, and writes into the same memory.
  x[0] += 1;
  OK(ort_api->RunWithBinding(session, NULL, binding));
  OK(ort_api->GetBoundOutputValues(binding, allocator, &again, &count));
  OK(ort_api->GetTensorMutableData(again[0], &second));
  CHECK(first == second && memcmp(first, allocated, sizeof allocated) != 0);
  // An output that is bound to a tensor is computed in it.
  OK(ORT(BindOutput)(binding, "output", place));
  OK(ort_api->RunWithBinding(session, NULL, binding));
  CHECK(memcmp(first, y, sizeof y) == 0);
  ORT(ClearBoundOutputs)(binding);
  OK(ort_api->GetBoundOutputValues(binding, allocator, &(OrtValue**){NULL}, &count));
  CHECK(count == 0);
  ORT(ClearBoundInputs)(binding);
  OK(ort_api->BindOutput(binding, "output", place));
  FAILS(kInvalidArgument, "'input'", ort_api->RunWithBinding(session, NULL, binding));
  ort_api->ReleaseValue(values[0]);
  ort_api->ReleaseValue(again[0]);
  OK(ort_api->AllocatorFree(allocator, values));
  OK(ort_api->AllocatorFree(allocator, again));
  ort_api->ReleaseValue(given);
  ort_api->ReleaseValue(place);
  ORT(ReleaseIoBinding)(binding);
  ort_api->ReleaseIoBinding(NULL);
  ort_api->ReleaseSession(session);
  ort_api->ReleaseSession(other);
}

struct Ended {
  int code;  // -1: not yet
  OrtSession* to_release;
  int may_release;
};
static void pause_a_little(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }
static void run_ended(void* user_data, OrtValue** outputs, size_t count, OrtStatus* status) {
  struct Ended* ended = user_data;
  CHECK(count == (status == NULL) && (status != NULL) == (outputs[0] == NULL));
  while (ended->to_release && !__atomic_load_n(&ended->may_release, __ATOMIC_SEQ_CST)) pause_a_little();
  if (ended->to_release) ort_api->ReleaseSession(ended->to_release);
  const int code = status ? (int)ort_api->GetErrorCode(status) : 0;
  ort_api->ReleaseStatus(status);
  __atomic_store_n(&ended->code, code, __ATOMIC_SEQ_CST);
}
static int wait_for(struct Ended* ended) {
  int code = -1;
  for (int i = 0; i < 60000 && code < 0; ++i) {
    pause_a_little();
    code = __atomic_load_n(&ended->code, __ATOMIC_SEQ_CST);
  }
  return code;
}

static void background_calls(void) {
  OrtSession *session = NULL, *other = NULL;
  OK(ort_api->CreateSession(env, "exported_after.onnx", NULL, &session));
  OK(ort_api->CreateSession(env, "exported_after.onnx", NULL, &other));
  float x[64] = {0};
  const char *inputs[] = {"input"}, *outputs[] = {"output"}, *wrong[] = {"nope"};
  OrtValue *given = NULL, *made = NULL, *none = NULL, *late[3] = {NULL, NULL, NULL};
  OK(ort_api->CreateTensorWithDataAsOrtValue(memory, x, sizeof x, (const int64_t[]){1, 64}, 2, kFloat,
                                             &given));
  const OrtValue* values[] = {given};
  struct Ended ended = {-1, NULL, 0}, broken = {-1, NULL, 0};
  OK(ORT(RunAsync)(session, NULL, inputs, values, 1, outputs, 1, &made, (RunAsyncCallbackFn)run_ended,
                   &ended));
  OK(ort_api->RunAsync(session, NULL, inputs, values, 1, wrong, 1, &none, (RunAsyncCallbackFn)run_ended,
                       &broken));
  CHECK(wait_for(&ended) == 0 && wait_for(&broken) == kInvalidArgument && none == NULL);
  FAILS(kInvalidArgument, "output_names_len",
        ort_api->RunAsync(session, NULL, inputs, values, 1, outputs, 0, &none, (RunAsyncCallbackFn)run_ended,
                          &broken));
  OrtValue* expected = NULL;
  OK(ort_api->Run(session, NULL, inputs, values, 1, outputs, 1, &expected));
  void *a = NULL, *b = NULL;
  OK(ort_api->GetTensorMutableData(made, &a));
  OK(ort_api->GetTensorMutableData(expected, &b));
  CHECK(memcmp(a, b, 10 * sizeof(float)) == 0);
  // A session that is released finishes its runs; one that its own function releases abandons the rest.
  struct Ended first = {-1, NULL, 0}, releasing = {-1, other, 0}, rest = {-1, NULL, 0};
  OK(ort_api->RunAsync(session, NULL, inputs, values, 1, outputs, 1, &late[0], (RunAsyncCallbackFn)run_ended,
                       &first));
  ort_api->ReleaseSession(session);
  CHECK(first.code == 0);
  OK(ort_api->RunAsync(other, NULL, inputs, values, 1, outputs, 1, &late[1], (RunAsyncCallbackFn)run_ended,
                       &releasing));
  OK(ort_api->RunAsync(other, NULL, inputs, values, 1, outputs, 1, &late[2], (RunAsyncCallbackFn)run_ended,
                       &rest));
  __atomic_store_n(&releasing.may_release, 1, __ATOMIC_SEQ_CST);
  CHECK(wait_for(&releasing) == 0);
  CHECK(wait_for(&rest) == kFail && late[2] == NULL);
  OrtValue* all[] = {given, made, expected, late[0], late[1]};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) ort_api->ReleaseValue(all[i]);
}

static void model_calls(void) {
  OrtSessionOptions* options = NULL;
  OK(ort_api->CreateSessionOptions(&options));
  OK(ORT(AddFreeDimensionOverride)(options, "DATA_BATCH", 3));
  OK(ORT(AddFreeDimensionOverrideByName)(options, "batch", 3));
  FAILS(kInvalidArgument, "-3", ort_api->AddFreeDimensionOverrideByName(options, "batch", -3));
  OrtSession* session = NULL;
  OK(ort_api->CreateSession(env, "exported_after.onnx", options, &session));
  OrtTypeInfo* type = NULL;
  const OrtTensorTypeAndShapeInfo* info = NULL;
  int64_t shape[2] = {0};
  OK(ort_api->SessionGetInputTypeInfo(session, 0, &type));
  OK(ort_api->CastTypeInfoToTensorInfo(type, &info));
  OK(ort_api->GetDimensions(info, shape, 2));
  CHECK(shape[0] == 3 && shape[1] == 64);
  ort_api->ReleaseTypeInfo(type);

  OrtModelMetadata* metadata = NULL;
  OK(ORT(SessionGetModelMetadata)(session, &metadata));
  char* texts[5] = {NULL};
  OK(ORT(ModelMetadataGetProducerName)(metadata, allocator, &texts[0]));
  OK(ORT(ModelMetadataGetGraphName)(metadata, allocator, &texts[1]));
  OK(ORT(ModelMetadataGetDomain)(metadata, allocator, &texts[2]));
  OK(ORT(ModelMetadataGetDescription)(metadata, allocator, &texts[3]));
  OK(ORT(ModelMetadataGetGraphDescription)(metadata, allocator, &texts[4]));
  CHECK(strcmp(texts[0], "pytorch") == 0 && strcmp(texts[1], "main_graph") == 0);
  CHECK(!*texts[2] && !*texts[3] && !*texts[4]);
  for (int i = 0; i < 5; ++i) OK(ort_api->AllocatorFree(allocator, texts[i]));
  int64_t number = 7;
  OK(ORT(ModelMetadataGetVersion)(metadata, &number));
  CHECK(number == 0);
  char **keys = room(), *value = (char*)&number;
  OK(ORT(ModelMetadataGetCustomMetadataMapKeys)(metadata, allocator, &keys, &number));
  CHECK(number == 0 && keys == NULL);
  OK(ORT(ModelMetadataLookupCustomMetadataMap)(metadata, allocator, "key", &value));
  CHECK(value == NULL);
  ORT(ReleaseModelMetadata)(metadata);
  ort_api->ReleaseModelMetadata(NULL);
  ort_api->ReleaseSession(session);
  session = NULL;

  float x[1] = {0};
  OrtValue* tensor = NULL;
  OK(ort_api->CreateTensorWithDataAsOrtValue(memory, x, sizeof x, NULL, 0, kFloat, &tensor));
  OK(ORT(AddInitializer)(options, "fc1.bias", tensor));
  FAILS(kInvalidArgument, "'fc1.bias'", ort_api->AddInitializer(options, "fc1.bias", tensor));
  FAILS(kInvalidArgument, "as the model states",
        ort_api->CreateSession(env, "exported_after.onnx", options, &session));
  OrtSessionOptions* external = NULL;
  OK(ort_api->CreateSessionOptions(&external));
  OK(ORT(AddExternalInitializers)(external, (const char*[]){"fc1.bias"}, (const OrtValue*[]){tensor}, 1));
  FAILS(kInvalidArgument, "the model itself holds the data",
        ort_api->CreateSession(env, "exported_after.onnx", external, &session));
  OK(ort_api->AddSessionConfigEntry(external, "some.key", "some value"));
  OrtKeyValuePairs *entries = NULL, *pairs = NULL;
  OK(ORT(GetSessionOptionsConfigEntries)(external, &entries));
  CHECK(strcmp(ORT(GetKeyValue)(entries, "some.key"), "some value") == 0);
  ORT(CreateKeyValuePairs)(&pairs);
  CHECK(pairs != NULL && ort_api->GetKeyValue(pairs, "a") == NULL);
  ORT(AddKeyValuePair)(pairs, "b", "2");
  ort_api->AddKeyValuePair(pairs, "a", "1");
  ort_api->AddKeyValuePair(pairs, "b", "3");
  ort_api->AddKeyValuePair(pairs, "", "no key");
  const char *const *names = NULL, *const *values = NULL;
  size_t count = 7;
  ORT(GetKeyValuePairs)(pairs, &names, &values, &count);
  CHECK(count == 2 && strcmp(names[0], "a") == 0 && strcmp(values[1], "3") == 0);
  ORT(RemoveKeyValuePair)(pairs, "a");
  ort_api->GetKeyValuePairs(pairs, &names, &values, &count);
  CHECK(count == 1 && strcmp(names[0], "b") == 0);
  ORT(ReleaseKeyValuePairs)(pairs);
  ort_api->ReleaseKeyValuePairs(entries);
  ort_api->ReleaseKeyValuePairs(NULL);
  ort_api->ReleaseValue(tensor);
  ort_api->ReleaseSessionOptions(external);
  ort_api->ReleaseSessionOptions(options);
}

// The sessions of the training calls: with all models, and with the training model alone.
static void training_ports(OrtTrainingSession* session, OrtTrainingSession* bare) {
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
}

static void training_steps(OrtTrainingSession* session) {
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
  OrtValue* all[] = {xs, ys, loss, eval_loss};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) ort_api->ReleaseValue(all[i]);
}

static void training_state(OrtCheckpointState* state, OrtTrainingSession* session,
                           const OrtSessionOptions* options, const char* scratch) {
  size_t size = 0;
  OK(TRAIN(GetParametersSize)(session, &size, true));
  CHECK(size > 64);
  const int64_t dim[] = {(int64_t)size};
  OrtValue* buffer = NULL;
  OK(ort_api->CreateTensorAsOrtValue(allocator, dim, 1, kFloat, &buffer));
  OK(TRAIN(CopyParametersToBuffer)(session, buffer, true));
  OK(TRAIN(CopyBufferToParameters)(session, buffer, true));
  OrtTensorTypeAndShapeInfo* info = NULL;
  OK(TRAIN(GetParameterTypeAndShape)(state, "fc1.bias", &info));
  size_t count = 7;
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
  ort_api->ReleaseValue(buffer);
  ort_api->ReleaseValue(parameter);
}

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
  FAILS(kInvalidProtobuf, "Training Session Creation failed. Train model data cannot be NULL.",
        training_api->CreateTrainingSessionFromBuffer(env, options, bare_state, bytes, 0, NULL, 0, NULL, 0,
                                                      &bare));
  OK(TRAIN(CreateTrainingSessionFromBuffer)(env, options, bare_state, bytes, text_size, NULL, 0, NULL, 0,
                                            &bare));
  free(bytes);
  OK(TRAIN(SetSeed)(1));

  training_ports(session, bare);
  training_steps(session);
  training_state(state, session, options, scratch);

  TRAIN(ReleaseTrainingSession)(session);
  training_api->ReleaseTrainingSession(bare);
  TRAIN(ReleaseCheckpointState)(state);
  training_api->ReleaseCheckpointState(bare_state);
  ort_api->ReleaseSessionOptions(options);
}

// Arguments: the folder of the recorded run, and one to write to.
int main(int argc, char** argv) {
  if (argc != 3 || chdir(argv[1]) != 0) return 2;
  ort_api = OrtGetApiBase()->GetApi(32);
  CHECK(ort_api != NULL);
  const void* const* slot = (const void* const*)ort_api;
  for (size_t i = 0; i < sizeof(OrtApi) / sizeof(void*); ++i) CHECK(slot[i] != NULL);
  status_calls();
  environment_calls();
  library_calls();
  memory_calls();
  incomplete_allocators();
  option_calls(argv[2]);
  type_calls();
  value_calls();
  string_calls();
  forward_calls();
  binding_calls();
  background_calls();
  model_calls();
  profile_calls(argv[2]);
  training_calls(argv[2]);
  sweep_OrtApi(ort_api);
  sweep_OrtCompileApi(ort_api->GetCompileApi());
  sweep_OrtModelEditorApi(ort_api->GetModelEditorApi());
  sweep_OrtTrainingApi(training_api);
  ort_api->ReleaseMemoryInfo(memory);
  ort_api->ReleaseEnv(env);
  return 0;
}
