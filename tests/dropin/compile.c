// Compiling models ahead of time, and what else surrounds sessions without changing them. Arguments: the
// library, a folder with model.onnx.
#include "program.h"

static OrtEnv* env;
static OrtAllocator* allocator;
static const OrtCompileApi* compiler;
static char paths[4][4096];

static OrtModelCompilationOptions* compilation(void) {
  OrtSessionOptions* settings = NULL;
  OrtModelCompilationOptions* options = NULL;
  OK(ort->CreateSessionOptions(&settings));
  OK(compiler->CreateModelCompilationOptionsFromSessionOptions(env, settings, &options));
  ort->ReleaseSessionOptions(settings);
  return options;
}

// What a compiled model computes.
static void run(const void* data, size_t size, const char* path) {
  OrtSession* session = NULL;
  OrtValue *x = NULL, *y = NULL;
  float* at = NULL;
  const int64_t shape[] = {2, 4};
  if (path)
    OK(ort->CreateSession(env, path, NULL, &session));
  else
    OK(ort->CreateSessionFromArray(env, data, size, NULL, &session));
  OK(ort->CreateTensorAsOrtValue(allocator, shape, 2, 1, &x));
  OK(ort->GetTensorMutableData(x, (void**)&at));
  for (int i = 0; i < 8; ++i) at[i] = (float)i - 3;
  OK(ort->Run(session, NULL, (const char*[]){"x"}, (const OrtValue*[]){x}, 1, (const char*[]){"y"}, 1, &y));
  OK(ort->GetTensorMutableData(y, (void**)&at));
  printf("  y:");
  for (int i = 0; i < 6; ++i) printf(" %g", at[i]);
  printf("\n");
  ort->ReleaseValue(x);
  ort->ReleaseValue(y);
  ort->ReleaseSession(session);
}

static char* read_file(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  if (!file) exit(3);
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  char* data = malloc(*size);
  if (fread(data, 1, *size, file) != *size) exit(3);
  fclose(file);
  return data;
}

static size_t written;
static char* collected;
static OrtStatus* collect(void* state, const void* buffer, size_t size) {
  if (*(int*)state) return ort->CreateStatus(1, "no room");
  collected = realloc(collected, written + size);
  memcpy(collected + written, buffer, size);
  written += size;
  return NULL;
}

static int asked;
static OrtStatus* locate(void* state, const char* name, const OrtValue* value,
                         const OrtExternalInitializerInfo* info, OrtExternalInitializerInfo** moved) {
  OrtValue* tensor = (OrtValue*)value;
  size_t bytes = 0;
  void* data = NULL;
  if (info) return ort->CreateStatus(1, "the initializer is in a file");
  OrtStatus* status = ort->GetTensorSizeInBytes(tensor, &bytes);
  if (status) return status;
  ++asked;
  *moved = NULL;
  if (bytes < 64) return NULL;
  status = ort->GetTensorMutableData(tensor, &data);
  if (status) return status;
  FILE* file = fopen((const char*)state, "wb");
  fwrite(data, 1, bytes, file);
  fclose(file);
  printf("  %s goes into a file: %zu bytes\n", name, bytes);
  return ort->CreateExternalInitializerInfo("located.bin", 0, bytes, moved);
}

static void compile_a_file(void) {
  remove(paths[1]);
  OrtModelCompilationOptions* options = compilation();
  CODE(compiler->CompileModel(env, options));  // no input
  CODE(compiler->ModelCompilationOptions_SetInputModelPath(options, paths[0]));
  CODE(compiler->ModelCompilationOptions_SetOutputModelPath(options, paths[1]));
  CODE(compiler->CompileModel(env, options));
  run(NULL, 0, paths[1]);
  CODE(compiler->CompileModel(env, options));  // writes over it
  CODE(compiler->ModelCompilationOptions_SetFlags(options, 2));
  CODE(compiler->CompileModel(env, options));  // the file exists
  CODE(compiler->ModelCompilationOptions_SetFlags(options, 1));
  CODE(compiler->CompileModel(env, options));  // no node is compiled
  CODE(compiler->ModelCompilationOptions_SetFlags(options, 4096));
  CODE(compiler->ModelCompilationOptions_SetInputModelPath(options, ""));
  CODE(compiler->ModelCompilationOptions_SetOutputModelPath(options, ""));
  compiler->ReleaseModelCompilationOptions(options);
}

static void compile(void) {
  size_t size = 0, given = 0;
  void* out = NULL;
  char* data = read_file(paths[0], &given);
  OrtModelCompilationOptions* options = NULL;

  for (int level = 0; level < 100; level += level == 2 ? 97 : 1) {
    options = compilation();
    printf("level %d\n", level);
    CODE(compiler->ModelCompilationOptions_SetGraphOptimizationLevel(options, level));
    CODE(compiler->ModelCompilationOptions_SetInputModelFromBuffer(options, data, given));
    CODE(compiler->ModelCompilationOptions_SetOutputModelBuffer(options, allocator, &out, &size));
    CODE(compiler->CompileModel(env, options));
    run(out, size, NULL);
    OK(ort->AllocatorFree(allocator, out));
    compiler->ReleaseModelCompilationOptions(options);
  }

  options = compilation();
  int refuse = 0;
  CODE(compiler->ModelCompilationOptions_SetInputModelFromBuffer(options, data, given));
  CODE(compiler->ModelCompilationOptions_SetOutputModelWriteFunc(options, (OrtWriteBufferFunc)collect,
                                                                 &refuse));
  CODE(compiler->CompileModel(env, options));
  run(collected, written, NULL);
  refuse = 1;
  CODE(compiler->CompileModel(env, options));
  compiler->ReleaseModelCompilationOptions(options);
  free(collected);

  options = compilation();
  CODE(compiler->ModelCompilationOptions_SetInputModelPath(options, paths[0]));
  CODE(compiler->ModelCompilationOptions_SetOutputModelPath(options, paths[1]));
  CODE(compiler->ModelCompilationOptions_SetOutputModelExternalInitializersFile(options, "weights.bin", 32));
  CODE(compiler->CompileModel(env, options));
  run(NULL, 0, paths[1]);
  free(read_file(paths[2], &size));
  printf("  weights: %zu bytes\n", size);
  compiler->ReleaseModelCompilationOptions(options);

  options = compilation();
  CODE(compiler->ModelCompilationOptions_SetInputModelPath(options, paths[0]));
  CODE(compiler->ModelCompilationOptions_SetOutputModelPath(options, paths[1]));
  CODE(compiler->ModelCompilationOptions_SetOutputModelGetInitializerLocationFunc(
      options, (OrtGetInitializerLocationFunc)locate, paths[3]));
  CODE(compiler->CompileModel(env, options));
  printf("  asked %d times\n", asked);
  run(NULL, 0, paths[1]);
  compiler->ReleaseModelCompilationOptions(options);

  options = compilation();
  CODE(compiler->ModelCompilationOptions_SetInputModelPath(options, "/no/such/model.onnx"));
  CODE(compiler->ModelCompilationOptions_SetOutputModelPath(options, paths[1]));
  CODE(compiler->CompileModel(env, options));
  CODE(compiler->ModelCompilationOptions_SetInputModelFromBuffer(options, "nothing", 7));
  CODE(compiler->CompileModel(env, options));
  CODE(compiler->ModelCompilationOptions_SetInputModelFromBuffer(options, data, 0));
  CODE(compiler->ModelCompilationOptions_SetEpContextEmbedMode(options, 1));
  CODE(compiler->ModelCompilationOptions_SetWeightlessEnabled(options, 0));
  CODE(compiler->ModelCompilationOptions_SetWeightlessEnabled(options, 1));
  CODE(compiler->ModelCompilationOptions_SetEpContextBinaryInformation(options, "", ""));
  compiler->ReleaseModelCompilationOptions(options);
  compiler->ReleaseModelCompilationOptions(NULL);
  free(data);
}

static void external(void) {
  OrtExternalInitializerInfo* info = NULL;
  OK(ort->CreateExternalInitializerInfo("weights.bin", 64, 128, &info));
  printf("external: %s %d %zu\n", ort->ExternalInitializerInfo_GetFilePath(info),
         (int)ort->ExternalInitializerInfo_GetFileOffset(info),
         ort->ExternalInitializerInfo_GetByteSize(info));
  ort->ReleaseExternalInitializerInfo(info);
  ort->ReleaseExternalInitializerInfo(NULL);
  info = NULL;
  CODE(ort->CreateExternalInitializerInfo("", 0, 1, &info));
  ort->ReleaseExternalInitializerInfo(info);
  info = NULL;
  CODE(ort->CreateExternalInitializerInfo("a", -1, 1, &info));
  ort->ReleaseExternalInitializerInfo(info);
}

static void settings(void) {
  OrtSessionOptions* options = NULL;
  OrtSession* session = NULL;
  OK(ort->CreateSessionOptions(&options));
  CODE(ort->SessionOptionsSetLoadCancellationFlag(options, 1));
  CODE(ort->CreateSession(env, paths[0], options, &session));
  CODE(ort->SessionOptionsSetLoadCancellationFlag(options, 0));
  OK(ort->AddSessionConfigEntry(options, "session.record_ep_graph_assignment_info", "1"));
  OK(ort->SetSessionGraphOptimizationLevel(options, 0));
  CODE(ort->CreateSession(env, paths[0], options, &session));
  const char *key = "ep.dynamic.workload_type", *value = "Default", *odd = "odd";
  CODE(ort->SetEpDynamicOptions(session, &key, &value, 1));
  CODE(ort->SetEpDynamicOptions(session, &odd, &value, 1));
  CODE(ort->SetEpDynamicOptions(session, &key, &odd, 1));
  CODE(ort->SetEpDynamicOptions(session, NULL, NULL, 0));
  const OrtEpAssignedSubgraph* const* parts = NULL;
  size_t count = 0;
  CODE(ort->Session_GetEpGraphAssignmentInfo(session, &parts, &count));
  for (size_t i = 0; i < count; ++i) {
    const char *provider = NULL, *name = NULL, *domain = NULL, *type = NULL;
    const OrtEpAssignedNode* const* nodes = NULL;
    size_t in_part = 0;
    OK(ort->EpAssignedSubgraph_GetEpName(parts[i], &provider));
    OK(ort->EpAssignedSubgraph_GetNodes(parts[i], &nodes, &in_part));
    printf("  %s:", provider);
    for (size_t j = 0; j < in_part; ++j) {
      OK(ort->EpAssignedNode_GetName(nodes[j], &name));
      OK(ort->EpAssignedNode_GetDomain(nodes[j], &domain));
      OK(ort->EpAssignedNode_GetOperatorType(nodes[j], &type));
      printf(" %s '%s' %s,", name, domain, type);
    }
    printf("\n");
  }
  CODE(ort->SessionReleaseCapturedGraph(session, 1));
  ort->ReleaseSession(session);
  session = NULL;
  OK(ort->CreateSession(env, paths[0], NULL, &session));
  CODE(ort->Session_GetEpGraphAssignmentInfo(session, &parts, &count));
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);

  OrtRunOptions* run_options = NULL;
  OK(ort->CreateRunOptions(&run_options));
  CODE(ort->RunOptionsDisableProfiling(run_options));
  CODE(ort->RunOptionsEnableProfiling(run_options, "profile"));
  CODE(ort->RunOptionsDisableProfiling(run_options));
  ort->RunOptionsSetSyncStream(run_options, NULL);
  ort->ReleaseRunOptions(run_options);
}

static void compatibility(void) {
  char* info = NULL;
  CODE(ort->GetCompatibilityInfoFromModel(paths[0], "CPUExecutionProvider", allocator, &info));
  printf("  info: %s\n", info ? info : "none");
  CODE(ort->GetCompatibilityInfoFromModel(paths[0], "Other", allocator, &info));
  printf("  info: %s\n", info ? info : "none");
  if (info) OK(ort->AllocatorFree(allocator, info));
  CODE(ort->GetCompatibilityInfoFromModel("/no/such/model.onnx", "CPUExecutionProvider", allocator, &info));
  size_t size = 0;
  char* data = read_file(paths[0], &size);
  CODE(ort->GetCompatibilityInfoFromModelBytes(data, size, "Other", allocator, &info));
  printf("  info: %s\n", info ? info : "none");
  if (info) OK(ort->AllocatorFree(allocator, info));
  CODE(ort->GetCompatibilityInfoFromModelBytes("nothing", 7, "Other", allocator, &info));
  free(data);
}

static void devices_of_environment(void) {
  const OrtEpDevice* const* devices = NULL;
  size_t device_count = 0;
  OK(ort->GetEpDevices(env, &devices, &device_count));
  int fit = 9;
  CODE(ort->GetModelCompatibilityForEpDevices(devices, 1, "anything", (void*)&fit));
  printf("  fit %d\n", fit);
  CODE(ort->GetModelCompatibilityForEpDevices(devices, 0, "anything", (void*)&fit));
  OrtAllocator* shared = NULL;
  printf("shared: code %d\n", code_of(ort->CreateSharedAllocator(env, devices[0], 0, 0, NULL, &shared)));
  printf("release: code %d\n", code_of(ort->ReleaseSharedAllocator(env, devices[0], 0)));
  OrtDeviceEpIncompatibilityDetails* details = NULL;
  CODE(ort->GetHardwareDeviceEpIncompatibilityDetails(env, "CPUExecutionProvider",
                                                      ort->EpDevice_Device(devices[0]), &details));
  if (details) {
    uint32_t reasons = 9;
    const char* notes = NULL;
    int32_t error = 9;
    OK(ort->DeviceEpIncompatibilityDetails_GetReasonsBitmask(details, &reasons));
    OK(ort->DeviceEpIncompatibilityDetails_GetNotes(details, &notes));
    OK(ort->DeviceEpIncompatibilityDetails_GetErrorCode(details, &error));
    printf("  reasons %u, notes '%s', error %d\n", reasons, notes ? notes : "null", error);
  }
  ort->ReleaseDeviceEpIncompatibilityDetails(details);
  details = NULL;
  CODE(ort->GetHardwareDeviceEpIncompatibilityDetails(env, "Other", ort->EpDevice_Device(devices[0]),
                                                      &details));
  ort->ReleaseDeviceEpIncompatibilityDetails(details);
  OrtSyncStream* stream = NULL;
  CODE(ort->CreateSyncStreamForEpDevice(devices[0], NULL, &stream));
}

// As in the released headers.
typedef struct {
  uint32_t version;
  int32_t severity;
  const char* id;
  void (*logger)(void*, int, const char*, const char*, const char*, const char*);
  void* parameter;
  const OrtThreadingOptions* threads;
  const OrtKeyValuePairs* entries;
} EnvOptions;

static int messages;
static void count_messages(void* parameter, int severity, const char* category, const char* id,
                           const char* place, const char* message) {
  (void)severity, (void)category, (void)place, (void)message;
  if (parameter == &messages && strcmp(id, "made") == 0) ++messages;
}

static void environment(void) {
  EnvOptions options = {24, 0, "made", count_messages, &messages, NULL, NULL};
  OrtEnv* broken = NULL;
  options.version = 0;
  CODE(ort->CreateEnvWithOptions((const void*)&options, &broken));
  options.version = 24;
  options.id = NULL;
  CODE(ort->CreateEnvWithOptions((const void*)&options, &broken));
  options.id = "made";
  OrtThreadingOptions* threads = NULL;
  OrtKeyValuePairs* entries = NULL;
  OK(ort->CreateThreadingOptions(&threads));
  OK(ort->SetGlobalIntraOpNumThreads(threads, 1));
  ort->CreateKeyValuePairs(&entries);
  ort->AddKeyValuePair(entries, "allow_virtual_devices", "0");
  options.threads = threads;
  options.entries = entries;
  CODE(ort->CreateEnvWithOptions((const void*)&options, &env));
  ort->ReleaseThreadingOptions(threads);
  ort->ReleaseKeyValuePairs(entries);
  OrtSessionOptions* settings = NULL;
  OrtSession* session = NULL;
  OK(ort->CreateSessionOptions(&settings));
  OK(ort->DisablePerSessionThreads(settings));
  CODE(ort->CreateSession(env, paths[0], settings, &session));
  ort->ReleaseSessionOptions(settings);
  ort->ReleaseSession(session);
  printf("logged: %d\n", messages > 0);
}

int main(int count, char** arguments) {
  if (count < 3) return 2;
  const char* names[] = {"model.onnx", "compiled.onnx", "weights.bin", "located.bin"};
  for (int i = 0; i < 4; ++i) snprintf(paths[i], sizeof paths[i], "%s/%s", arguments[2], names[i]);
  open_library(arguments[1]);
  OK(ort->GetAllocatorWithDefaultOptions(&allocator));
  environment();
  OK(ort->UpdateEnvWithCustomLogLevel(env, 4));
  compiler = ort->GetCompileApi();
  compile_a_file();
  compile();
  external();
  settings();
  compatibility();
  devices_of_environment();
  ort->ReleaseEnv(env);
  return 0;
}
