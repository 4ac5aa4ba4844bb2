// Providers, devices, arenas, allocators, threads and loggers. Arguments: the library, a model.
#include "program.h"

static OrtEnv* env;
static int messages, verbose;

static void on_log(void* param, int severity, const char* category, const char* id, const char* location,
                   const char* message) {
  (void)category, (void)id, (void)location, (void)message;
  if (param == &messages) ++messages;
  if (severity == 0) ++verbose;
}

// Settings of a provider, in none of which anything is set.
static void* nothing(void) {
  static _Alignas(16) char bytes[4096];
  return bytes;
}

static void providers(OrtSessionOptions* options) {
  const char* none[] = {"x"};
  CODE(ort->SessionOptionsAppendExecutionProvider_ROCM(options, nothing()));
  CODE(ort->SessionOptionsAppendExecutionProvider_OpenVINO(options, nothing()));
  CODE(ort->SessionOptionsAppendExecutionProvider_TensorRT(options, nothing()));
  CODE(ort->SessionOptionsAppendExecutionProvider_TensorRT_V2(options, nothing()));
  CODE(ort->SessionOptionsAppendExecutionProvider_CUDA(options, nothing()));
  OrtStatus* refused = ort->SessionOptionsAppendExecutionProvider_CUDA_V2(options, nothing());
  printf("CUDA_V2: refused %d\n", refused != NULL);  // onnxruntime names the settings, which cannot exist
  ort->ReleaseStatus(refused);
  CODE(ort->SessionOptionsAppendExecutionProvider_MIGraphX(options, nothing()));
  CODE(ort->SessionOptionsAppendExecutionProvider_CANN(options, nothing()));
  CODE(ort->SessionOptionsAppendExecutionProvider_Dnnl(options, nothing()));
  CODE(ort->SessionOptionsAppendExecutionProvider_OpenVINO_V2(options, none, none, 1));
  CODE(ort->SessionOptionsAppendExecutionProvider_VitisAI(options, none, none, 1));
  CODE(ort->SessionOptionsAppendExecutionProvider(options, "Toaster", NULL, NULL, 0));
  int device = 0;
  CODE(ort->SetCurrentGpuDeviceId(0));
  CODE(ort->GetCurrentGpuDeviceId(&device));
  OrtTensorRTProviderOptionsV2* tensorrt = NULL;
  OrtCUDAProviderOptionsV2* cuda = NULL;
  OrtCANNProviderOptions* cann = NULL;
  OrtDnnlProviderOptions* dnnl = NULL;
  OrtROCMProviderOptions* rocm = NULL;
  OrtAllocator* allocator = NULL;
  OK(ort->GetAllocatorWithDefaultOptions(&allocator));
  char* text = NULL;
  void* pointer = NULL;
  CODE(ort->CreateTensorRTProviderOptions(&tensorrt));
  CODE(ort->UpdateTensorRTProviderOptions(nothing(), none, none, 1));
  CODE(ort->GetTensorRTProviderOptionsAsString(nothing(), allocator, &text));
  CODE(ort->UpdateTensorRTProviderOptionsWithValue(nothing(), "x", NULL));
  CODE(ort->GetTensorRTProviderOptionsByName(nothing(), "x", &pointer));
  ort->ReleaseTensorRTProviderOptions(NULL);
  CODE(ort->CreateCUDAProviderOptions(&cuda));
  CODE(ort->UpdateCUDAProviderOptions(nothing(), none, none, 1));
  CODE(ort->GetCUDAProviderOptionsAsString(nothing(), allocator, &text));
  CODE(ort->UpdateCUDAProviderOptionsWithValue(nothing(), "x", NULL));
  CODE(ort->GetCUDAProviderOptionsByName(nothing(), "x", &pointer));
  ort->ReleaseCUDAProviderOptions(NULL);
  CODE(ort->CreateCANNProviderOptions(&cann));
  CODE(ort->UpdateCANNProviderOptions(nothing(), none, none, 1));
  CODE(ort->GetCANNProviderOptionsAsString(nothing(), allocator, &text));
  ort->ReleaseCANNProviderOptions(NULL);
  CODE(ort->CreateDnnlProviderOptions(&dnnl));
  CODE(ort->UpdateDnnlProviderOptions(nothing(), none, none, 1));
  CODE(ort->GetDnnlProviderOptionsAsString(nothing(), allocator, &text));
  ort->ReleaseDnnlProviderOptions(NULL);
  CODE(ort->CreateROCMProviderOptions(&rocm));
  CODE(ort->UpdateROCMProviderOptions(nothing(), none, none, 1));
  CODE(ort->GetROCMProviderOptionsAsString(nothing(), allocator, &text));
  ort->ReleaseROCMProviderOptions(NULL);
  const void* api = NULL;
  CODE(ort->GetExecutionProviderApi("CUDA", 1, &api));
}

static void devices(OrtSessionOptions* options, const OrtSession* session) {
  const OrtEpDevice* const* all = NULL;
  size_t count = 0;
  OK(ort->GetEpDevices(env, &all, &count));
  printf("cpu: %d\n", count > 0);
  const OrtEpDevice* cpu = NULL;
  for (size_t i = 0; i < count; ++i)
    if (!strcmp(ort->EpDevice_EpName(all[i]), "CPUExecutionProvider")) cpu = all[i];
  printf("name %s, vendor %d, type %d, metadata %d\n", ort->EpDevice_EpName(cpu),
         ort->EpDevice_EpVendor(cpu) != NULL, (int)ort->HardwareDevice_Type(ort->EpDevice_Device(cpu)),
         ort->EpDevice_EpMetadata(cpu) != NULL && ort->EpDevice_EpOptions(cpu) != NULL);
  const OrtHardwareDevice* device = ort->EpDevice_Device(cpu);
  ort->HardwareDevice_VendorId(device), ort->HardwareDevice_DeviceId(device);
  printf("vendor %d, metadata %d\n", ort->HardwareDevice_Vendor(device) != NULL,
         ort->HardwareDevice_Metadata(device) != NULL);
  ort->EpDevice_MemoryInfo(cpu, 0);
  CODE(ort->SessionOptionsAppendExecutionProvider_V2(options, env, &cpu, 1, NULL, NULL, 0));
  CODE(ort->SessionOptionsAppendExecutionProvider_V2(options, env, &cpu, 0, NULL, NULL, 0));
  CODE(ort->SessionOptionsSetEpSelectionPolicy(options, 1));
  CODE(ort->RegisterExecutionProviderLibrary(env, "mine", "/no/such/library.so"));
  CODE(ort->UnregisterExecutionProviderLibrary(env, "mine"));
  const OrtEpDevice* of[1] = {NULL};
  CODE(ort->SessionGetEpDeviceForInputs(session, of, 1));
  CODE(ort->SessionGetEpDeviceForOutputs(session, of, 1));
  OK(ort->GetNumHardwareDevices(env, &count));
  const OrtHardwareDevice* list[64];
  printf("devices %d\n", count > 0 && count <= 64 && !ort->GetHardwareDevices(env, list, count));
}

static void* take(OrtAllocator* self, size_t size) { return (void)self, malloc(size); }
static void give(OrtAllocator* self, void* memory) { (void)self, free(memory); }
typedef struct Own {
  uint32_t version;
  void* (*Alloc)(OrtAllocator*, size_t);
  void (*Free)(OrtAllocator*, void*);
  const OrtMemoryInfo* (*Info)(const OrtAllocator*);
  void* (*Reserve)(OrtAllocator*, size_t);
  OrtStatus* (*GetStats)(const OrtAllocator*, OrtKeyValuePairs**);
  void* (*AllocOnStream)(OrtAllocator*, size_t, OrtSyncStream*);
} Own;
static OrtMemoryInfo* place;
static const OrtMemoryInfo* info(const OrtAllocator* self) { return (void)self, place; }

static void allocators(void) {
  OrtArenaCfg* arena = NULL;
  OK(ort->CreateArenaCfg(0, -1, -1, -1, &arena));
  ort->ReleaseArenaCfg(arena);
  const char* keys[] = {"max_mem", "arena_extend_strategy", "initial_chunk_size_bytes",
                        "max_dead_bytes_per_chunk"};
  const size_t values[] = {0, 1, 1024, 0};
  OK(ort->CreateArenaCfgV2(keys, values, 4, &arena));
  const char* unknown[] = {"no_such_setting"};
  OrtArenaCfg* other = NULL;
  CODE(ort->CreateArenaCfgV2(unknown, values, 1, &other));
  OrtMemoryInfo* memory = NULL;
  OK(ort->CreateCpuMemoryInfo(1, 0, &memory));
  CODE(ort->CreateAndRegisterAllocator(env, memory, arena));
  CODE(ort->CreateAndRegisterAllocator(env, memory, arena));
  CODE(ort->UnregisterAllocator(env, memory));
  CODE(ort->UnregisterAllocator(env, memory));
  CODE(ort->CreateAndRegisterAllocatorV2(env, "CPUExecutionProvider", memory, arena, NULL, NULL, 0));
  CODE(ort->UnregisterAllocator(env, memory));
  ort->ReleaseArenaCfg(arena);
  ort->ReleaseMemoryInfo(memory);
  OK(ort->CreateCpuMemoryInfo(0, 0, &place));
  Own own = {19, take, give, info, take, NULL, NULL};
  CODE(ort->RegisterAllocator(env, (OrtAllocator*)&own));
  CODE(ort->RegisterAllocator(env, (OrtAllocator*)&own));
  CODE(ort->UnregisterAllocator(env, place));
  OrtKeyValuePairs* statistics = NULL;
  OrtAllocator *shared = NULL, *standard = NULL;
  OK(ort->GetAllocatorWithDefaultOptions(&standard));
  CODE(ort->AllocatorGetStats(standard, &statistics));
  ort->ReleaseKeyValuePairs(statistics);
  OK(ort->GetSharedAllocator(env, place, &shared));
  ort->ReleaseMemoryInfo(place);
}

static void threads(OrtSessionOptions* options) {
  OrtThreadingOptions* threading = NULL;
  OK(ort->CreateThreadingOptions(&threading));
  CODE(ort->SetGlobalCustomThreadCreationOptions(threading, NULL));
  CODE(ort->SetGlobalCustomCreateThreadFn(threading, NULL));
  CODE(ort->SetGlobalCustomJoinThreadFn(threading, NULL));
  CODE(ort->SetGlobalIntraOpThreadAffinity(threading, "1"));
  CODE(ort->SetGlobalIntraOpThreadAffinity(threading, ""));
  ort->ReleaseThreadingOptions(threading);
  CODE(ort->SessionOptionsSetCustomCreateThreadFn(options, NULL));
  CODE(ort->SessionOptionsSetCustomThreadCreationOptions(options, NULL));
  CODE(ort->SessionOptionsSetCustomJoinThreadFn(options, NULL));
}

static void types(void) {
  OrtAllocator* allocator = NULL;
  OK(ort->GetAllocatorWithDefaultOptions(&allocator));
  OrtValue* value = NULL;
  OK(ort->CreateTensorAsOrtValue(allocator, (const int64_t[]){2, 3}, 2, 7, &value));
  int type = 0;
  const int64_t* shape = NULL;
  size_t rank = 0, length = 7;
  OK(ort->GetTensorElementTypeAndShapeDataReference(value, &type, &shape, &rank));
  printf("type %d, rank %zu, %d x %d\n", type, rank, (int)shape[0], (int)shape[1]);
  OrtTypeInfo* of = NULL;
  OK(ort->GetTypeInfo(value, &of));
  const OrtMapTypeInfo* map = (const OrtMapTypeInfo*)of;
  OK(ort->CastTypeInfoToMapTypeInfo(of, &map));
  const char* denotation = NULL;
  OK(ort->GetDenotationFromTypeInfo(of, &denotation, &length));
  printf("map %d, denotation of %zu bytes\n", map != NULL, length);
  ort->ReleaseTypeInfo(of);
  ort->ReleaseMapTypeInfo(NULL);
  ort->ReleaseValue(value);
}

int main(int count, char** arguments) {
  if (count < 3) return 2;
  open_library(arguments[1]);
  OK(ort->CreateEnvWithCustomLogger((OrtLoggingFunction)on_log, NULL, 0, "settings", &env));
  OrtSessionOptions *options = NULL, *loud = NULL;
  OK(ort->CreateSessionOptions(&options));
  OK(ort->CreateSessionOptions(&loud));
  OK(ort->SetUserLoggingFunction(loud, (OrtLoggingFunction)on_log, &messages));
  OrtSession* session = NULL;
  OK(ort->CreateSession(env, arguments[2], options, &session));
  printf("verbose messages: %d\n", verbose > 0);
  ort->ReleaseSession(session);
  OK(ort->CreateSession(env, arguments[2], loud, &session));
  printf("messages of the session's own logger: %d\n", messages > 0);
  providers(options);
  devices(options, session);
  allocators();
  threads(options);
  types();
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);
  ort->ReleaseSessionOptions(loud);
  ort->ReleaseEnv(env);
  return 0;
}
