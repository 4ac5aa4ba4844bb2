// Runs models with custom operators on the library named first, and prints what it finds. Arguments: the
// library, the library of operators, a folder of models.
#include "custom_op.h"
#include "program.h"

static OrtEnv* env;
static int logged;

static void OnLog(void* param, int severity, const char* category, const char* id, const char* location,
                  const char* message) {
  (void)param, (void)severity, (void)category, (void)id, (void)location;
  if (strstr(message, "a message of a kernel")) ++logged;
}

static OrtValue* tensor(float* data, int64_t n) {
  static OrtMemoryInfo* cpu;
  if (!cpu) OK(ort->CreateCpuMemoryInfo(1, 0, &cpu));
  OrtValue* value = NULL;
  OK(ort->CreateTensorWithDataAsOrtValue(cpu, data, (size_t)n * sizeof *data, &n, 1, 1, &value));
  return value;
}

static OrtSession* open_model(const char* folder, const char* name, const OrtSessionOptions* options) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s.onnx", folder, name);
  OrtSession* session = NULL;
  printf("%s: code %d\n", name, code_of(ort->CreateSession(env, path, options, &session)));
  return session;
}

static void run_floats(OrtSession* session, int64_t n) {
  float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  OrtValue *in = tensor(x, n), *out = NULL;
  const int code = code_of(ort->Run(session, NULL, (const char*[]){"x"}, (const OrtValue*[]){in}, 1,
                                    (const char*[]){"y"}, 1, &out));
  printf("run with %d: code %d", (int)n, code);
  if (out) {
    void* data = NULL;
    OK(ort->GetTensorMutableData(out, &data));
    for (int64_t i = 0; i < n; ++i) printf(" %g", ((float*)data)[i]);
    ort->ReleaseValue(out);
  }
  printf("\n");
  ort->ReleaseValue(in);
}

static void run_strings(OrtSession* session) {
  OrtAllocator* allocator = NULL;
  OK(ort->GetAllocatorWithDefaultOptions(&allocator));
  OrtValue *in = NULL, *out = NULL;
  OK(ort->CreateTensorAsOrtValue(allocator, (const int64_t[]){2, 2}, 2, 8, &in));
  OK(ort->FillStringTensor(in, (const char*[]){"a", "", "long enough to need memory of its own", "d"}, 4));
  for (int again = 0; again < 2; ++again)
    OK(ort->Run(session, NULL, (const char*[]){"x"}, (const OrtValue*[]){in}, 1, (const char*[]){"y"}, 1,
                &out));
  ort->ReleaseSession(session);  // its strings are the value's own
  for (size_t i = 0; i < 4; ++i) {
    char text[64] = {0};
    size_t length = 0;
    OK(ort->GetStringTensorElementLength(out, i, &length));
    OK(ort->GetStringTensorElement(out, length, i, text));
    printf("[%s] ", text);
  }
  printf("\n");
  ort->ReleaseValue(in);
  ort->ReleaseValue(out);
}

static void attributes(void) {
  OrtOpAttr* attribute = NULL;
  const int64_t integers[] = {3, 4, 5};
  const char* texts[] = {"one", "two"};
  int64_t read[3] = {0};
  char bytes[16] = {0};
  size_t size = 0;
  OK(ort->CreateOpAttr("integers", integers, 3, 2, &attribute));
  OK(ort->ReadOpAttr(attribute, 2, read, sizeof read, &size));
  printf("integers: %zu bytes, last %d\n", size, (int)read[2]);
  CODE(ort->ReadOpAttr(attribute, 2, read, 8, &size));
  ort->ReleaseOpAttr(attribute);
  OK(ort->CreateOpAttr("text", "abc", 3, 5, &attribute));
  OK(ort->ReadOpAttr(attribute, 5, bytes, sizeof bytes, &size));
  printf("text: %zu bytes, %.3s\n", size, bytes);
  ort->ReleaseOpAttr(attribute);
  OK(ort->CreateOpAttr("texts", texts, 2, 6, &attribute));
  const char* name = NULL;
  int type = 0;
  OK(ort->OpAttr_GetName(attribute, &name));
  OK(ort->OpAttr_GetType(attribute, &type));
  printf("%s has type %d\n", name, type);
  ort->ReleaseOpAttr(attribute);
}

int main(int count, char** arguments) {
  if (count < 4) return 2;
  open_library(arguments[1]);
  OK(ort->CreateEnvWithCustomLogger((OrtLoggingFunction)OnLog, NULL, 3, "client", &env));
  OrtSessionOptions *options = NULL, *plain = NULL;
  OK(ort->CreateSessionOptions(&options));
  OK(ort->CreateSessionOptions(&plain));
  CODE(ort->RegisterCustomOpsLibrary_V2(plain, "/no/such/library.so"));
  CODE(ort->RegisterCustomOpsUsingFunction(plain, "NoSuchFunction"));
  CODE(ort->EnableOrtCustomOps(plain));
  OK(ort->RegisterCustomOpsLibrary_V2(options, arguments[2]));
  OK(ort->AddSessionConfigEntry(options, "a.key", "a value"));
  OrtSessionOptions* clone = NULL;
  OK(ort->CloneSessionOptions(options, &clone));

  OrtSession* session = open_model(arguments[3], "scaled", options);
  run_floats(session, 3);
  run_floats(session, 7);
  run_floats(session, 5);  // which the kernel refuses
  ort->ReleaseSession(session);
  printf("messages: %d\n", logged);
  session = open_model(arguments[3], "negative", options);  // which CreateKernelV2 refuses
  session = open_model(arguments[3], "wrong_type", options);
  session = open_model(arguments[3], "total", clone);
  ort->ReleaseSessionOptions(options);
  run_floats(session, 4);
  ort->ReleaseSession(session);
  run_strings(open_model(arguments[3], "shout", clone));
  ort->ReleaseSessionOptions(clone);

  void* handle = NULL;
  OK(ort->RegisterCustomOpsLibrary(plain, arguments[2], &handle));
  session = open_model(arguments[3], "total", plain);
  run_floats(session, 2);
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(plain);
  attributes();
  OrtCustomOpDomain* domain = NULL;
  OK(ort->CreateCustomOpDomain("another", &domain));
  ort->ReleaseCustomOpDomain(domain);
  ort->ReleaseEnv(env);
  return 0;
}
