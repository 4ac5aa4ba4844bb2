// Adapters, external data in memory, models in ORT format. Arguments: the library, an adapter, a model whose
// initializers w and ids are inputs too, one whose data are in the file w.bin, that file, a folder.
#include "program.h"

static OrtEnv* env;
static const OrtMemoryInfo* cpu;

static char* contents(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  if (!file) exit(3);
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  char* data = malloc(*size + 1);
  if (fread(data, 1, *size, file) != *size) exit(3);
  fclose(file);
  return data;
}

// Runs the session on x and prints what comes out, or the code.
static void run(OrtSession* session, const OrtRunOptions* options, const char* const* names, size_t count) {
  float x[] = {1, 2}, w[] = {100, 200};
  const int64_t shape[] = {2};
  OrtValue *inputs[2] = {NULL, NULL}, *outputs[2] = {NULL, NULL};
  OK(ort->CreateTensorWithDataAsOrtValue(cpu, x, sizeof x, shape, 1, 1, &inputs[0]));
  OK(ort->CreateTensorWithDataAsOrtValue(cpu, w, sizeof w, shape, 1, 1, &inputs[1]));
  const char* wanted[] = {"y", "z"};
  OrtStatus* status =
      ort->Run(session, options, names, (const OrtValue* const*)inputs, count, wanted, 2, outputs);
  if (status) {
    printf("run: code %d\n", code_of(status));
  } else {
    float* y = NULL;
    int64_t* z = NULL;
    OK(ort->GetTensorMutableData(outputs[0], (void**)&y));
    OK(ort->GetTensorMutableData(outputs[1], (void**)&z));
    printf("y %g %g, z %lld\n", y[0], y[1], (long long)z[0]);
  }
  for (int i = 0; i < 2; ++i) {
    ort->ReleaseValue(inputs[i]);
    ort->ReleaseValue(outputs[i]);
  }
}

static void adapters(const char* file, const char* model) {
  const char* names[] = {"x", "w"};
  OrtSession* session = NULL;
  OrtSessionOptions* options = NULL;
  OK(ort->CreateSessionOptions(&options));
  OK(ort->CreateSession(env, model, options, &session));
  OrtLoraAdapter *adapter = NULL, *again = NULL, *none = NULL;
  OK(ort->CreateLoraAdapter(file, NULL, &adapter));
  size_t size = 0;
  char* data = contents(file, &size);
  OK(ort->CreateLoraAdapterFromArray(data, size, NULL, &again));
  printf("no adapter: refused %d %d\n",
         code_of(ort->CreateLoraAdapterFromArray("no adapter", 10, NULL, &none)) != 0,
         code_of(ort->CreateLoraAdapterFromArray(data, size - 60, NULL, &none)) != 0);
  printf("no file: refused %d\n", code_of(ort->CreateLoraAdapter("ghost", NULL, &none)) != 0);
  memset(data, 0, size);  // it was copied
  free(data);
  OrtRunOptions* run_options = NULL;
  OK(ort->CreateRunOptions(&run_options));
  run(session, NULL, names, 1);
  run(session, run_options, names, 1);
  run(session, run_options, names, 2);
  OK(ort->RunOptionsAddActiveLoraAdapter(run_options, again));
  run(session, run_options, names, 1);
  run(session, NULL, names, 1);
  ort->ReleaseRunOptions(run_options);
  ort->ReleaseLoraAdapter(adapter);
  ort->ReleaseLoraAdapter(again);
  ort->ReleaseLoraAdapter(NULL);
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);
}

static void external_data(const char* model, const char* file) {
  const char* names[] = {"x"};
  size_t size = 0, model_size = 0;
  char *data = contents(file, &size), *bytes = contents(model, &model_size);
  OrtSessionOptions* options = NULL;
  OrtSession* session = NULL;
  OK(ort->CreateSessionOptions(&options));
  printf("without the file: refused %d\n",
         code_of(ort->CreateSessionFromArray(env, bytes, model_size, options, &session)) != 0);
  const char* files[] = {"w.bin"};
  OK(ort->AddExternalInitializersFromFilesInMemory(options, files, &data, &size, 1));
  OK(ort->CreateSessionFromArray(env, bytes, model_size, options, &session));
  free(data);
  free(bytes);
  run(session, NULL, names, 1);
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);
}

static void ort_format(const char* model, const char* folder) {
  const char* names[] = {"x", "w"};
  char path[4096];
  snprintf(path, sizeof path, "%s/model.ort", folder);
  OrtSessionOptions *saving = NULL, *options = NULL, *as_ort = NULL, *as_onnx = NULL;
  OrtSession* session = NULL;
  OK(ort->CreateSessionOptions(&saving));
  OK(ort->CreateSessionOptions(&options));
  OK(ort->CreateSessionOptions(&as_ort));
  OK(ort->CreateSessionOptions(&as_onnx));
  OK(ort->SetOptimizedModelFilePath(saving, path));
  OK(ort->SetSessionGraphOptimizationLevel(saving, 0));
  OK(ort->AddSessionConfigEntry(as_ort, "session.load_model_format", "ORT"));
  OK(ort->AddSessionConfigEntry(as_onnx, "session.load_model_format", "ONNX"));
  OK(ort->CreateSession(env, model, saving, &session));
  ort->ReleaseSession(session);
  size_t size = 0, onnx_size = 0;
  char *data = contents(path, &size), *onnx = contents(model, &onnx_size);
  printf("identifier %.4s\n", data + 4);
  OK(ort->CreateSession(env, path, options, &session));
  run(session, NULL, names, 1);
  ort->ReleaseSession(session);
  OK(ort->CreateSessionFromArray(env, data, size, options, &session));
  run(session, NULL, names, 1);
  ort->ReleaseSession(session);
  OK(ort->CreateSessionFromArray(env, data, size, as_ort, &session));
  ort->ReleaseSession(session);
  CODE(ort->CreateSessionFromArray(env, data, size, as_onnx, &session));
  CODE(ort->CreateSessionFromArray(env, onnx, onnx_size, as_ort, &session));
  CODE(ort->CreateSessionFromArray(env, data, size / 2, options, &session));
  CODE(ort->CreateSessionFromArray(env, data, size - 40, as_ort, &session));
  free(data);
  free(onnx);
  ort->ReleaseSessionOptions(saving);
  ort->ReleaseSessionOptions(options);
  ort->ReleaseSessionOptions(as_ort);
  ort->ReleaseSessionOptions(as_onnx);
}

static void memory(void) {
  OrtMemoryInfo* info = NULL;
  OK(ort->CreateMemoryInfo_V2("Cpu", 0, 0, 0, 0, 0, 0, &info));
  const char* name = NULL;
  int id = -1, same = -1;
  OrtMemoryInfoDeviceType type;
  OK(ort->MemoryInfoGetName(info, &name));
  OK(ort->MemoryInfoGetId(info, &id));
  ort->MemoryInfoGetDeviceType(info, &type);
  OK(ort->CompareMemoryInfo(info, cpu, &same));
  printf("%s %d %d, same %d\n", name, id, (int)type, same);
  ort->ReleaseMemoryInfo(info);
}

int main(int count, char** arguments) {
  if (count < 7) return 2;
  open_library(arguments[1]);
  OK(ort->CreateEnv(4, "formats", &env));
  OrtMemoryInfo* info = NULL;
  OK(ort->CreateCpuMemoryInfo(0, 0, &info));
  cpu = info;
  adapters(arguments[2], arguments[3]);
  external_data(arguments[4], arguments[5]);
  ort_format(arguments[3], arguments[6]);
  memory();
  ort->ReleaseMemoryInfo(info);
  ort->ReleaseEnv(env);
  return 0;
}
