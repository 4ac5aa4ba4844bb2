// Compiling a model whose initializers go to memory, and element types. Arguments: the library, a file with a
// model, and the minor version of the library.
#define API_VERSION 31
#include "program.h"

static OrtEnv* env;
static OrtAllocator* allocator;
static const OrtCompileApi* compiler;

static OrtModelCompilationOptions* compilation(const char* model) {
  OrtSessionOptions* settings = NULL;
  OrtModelCompilationOptions* options = NULL;
  OK(ort->CreateSessionOptions(&settings));
  OK(compiler->CreateModelCompilationOptionsFromSessionOptions(env, settings, &options));
  ort->ReleaseSessionOptions(settings);
  OK(compiler->ModelCompilationOptions_SetInputModelPath(options, model));
  return options;
}

// What the compiled model computes with the initializers in memory; the model has an input x of four floats.
static void run(const void* model, size_t size, char* weights, size_t weights_size) {
  const char* files[] = {"w.bin"};
  OrtSessionOptions* options = NULL;
  OrtSession* session = NULL;
  OrtValue *x = NULL, *y = NULL;
  float* at = NULL;
  const int64_t shape[] = {1, 4};
  OK(ort->CreateSessionOptions(&options));
  OK(ort->AddExternalInitializersFromFilesInMemory(options, files, &weights, &weights_size, 1));
  OK(ort->CreateSessionFromArray(env, model, size, options, &session));
  OK(ort->CreateTensorAsOrtValue(allocator, shape, 2, 1, &x));
  OK(ort->GetTensorMutableData(x, (void**)&at));
  for (int i = 0; i < 4; ++i) at[i] = (float)i - 1;
  OK(ort->Run(session, NULL, (const char*[]){"x"}, (const OrtValue*[]){x}, 1, (const char*[]){"y"}, 1, &y));
  OK(ort->GetTensorMutableData(y, (void**)&at));
  printf("  y:");
  for (int i = 0; i < 3; ++i) printf(" %g", at[i]);
  printf("\n");
  ort->ReleaseValue(x);
  ort->ReleaseValue(y);
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);
}

static void compile(const char* model) {
  void *out = NULL, *weights = NULL;
  size_t size = 0, weights_size = 0;
  OrtModelCompilationOptions* options = compilation(model);
  OK(compiler->ModelCompilationOptions_SetOutputModelBuffer(options, allocator, &out, &size));
  CODE(compiler->ModelCompilationOptions_SetOutputModelExternalInitializersFile(options, "no.bin", 1));
  CODE(compiler->ModelCompilationOptions_SetOutputModelExternalInitializersBuffer(
      options, "w.bin", 20, allocator, &weights, &weights_size));
  for (size_t alignment = 128; alignment <= 8192; alignment *= 8) {
    CODE(compiler->ModelCompilationOptions_SetOutputModelExternalInitializersAlignment(options, alignment,
                                                                                       30));
    CODE(compiler->CompileModel(env, options));
    run(out, size, weights, weights_size);
    // Three initializers of more than 20 bytes, of which two have at least 30.
    printf("  %zu: %d\n", alignment, weights_size > alignment);
    OK(ort->AllocatorFree(allocator, out));
    OK(ort->AllocatorFree(allocator, weights));
  }
  // The last one named is where they go.
  weights = &size;
  weights_size = 7;
  CODE(compiler->ModelCompilationOptions_SetOutputModelExternalInitializersFile(options, "", 20));
  CODE(compiler->ModelCompilationOptions_SetFlags(options, 1));
  CODE(compiler->CompileModel(env, options));  // no node is compiled
  printf("  left alone: %d\n", weights == &size && weights_size == 7);
  CODE(compiler->ModelCompilationOptions_SetOutputModelExternalInitializersBuffer(options, "", 20, allocator,
                                                                                  &weights, &weights_size));
  CODE(compiler->ModelCompilationOptions_SetOutputModelExternalInitializersBuffer(
      options, "/w.bin", 20, allocator, &weights, &weights_size));
  const size_t wrong[] = {3, 96, (size_t)1 << 63};
  for (int i = 0; i < 3; ++i)
    CODE(compiler->ModelCompilationOptions_SetOutputModelExternalInitializersAlignment(options, wrong[i], 0));
  CODE(compiler->ModelCompilationOptions_SetOutputModelExternalInitializersAlignment(options, 0, 0));
  compiler->ReleaseModelCompilationOptions(options);
}

static void weightless(const char* model) {
  OrtModelCompilationOptions* options = compilation(model);
  for (int mode = -1; mode < 4; ++mode)
    CODE(compiler->ModelCompilationOptions_SetWeightlessMode(options, mode));
  compiler->ReleaseModelCompilationOptions(options);
}

// The bytes of eight elements of each type.
static void types(void) {
  const int64_t shape[] = {8};
  for (int type = 1; type <= 26; ++type) {
    OrtValue* value = NULL;
    OrtTensorTypeAndShapeInfo* info = NULL;
    OrtStatus* status = ort->CreateTensorAsOrtValue(allocator, shape, 1, type, &value);
    if (status) {
      ort->ReleaseStatus(status);  // complex numbers, which not every library has
      continue;
    }
    size_t bytes = 0;
    int stated = 0;
    OK(ort->GetTensorTypeAndShape(value, &info));
    OK(ort->GetTensorElementType(info, &stated));
    if (type != 8) OK(ort->GetTensorSizeInBytes(value, &bytes));
    if (type != 14 && type != 15) printf("type %d: %zu bytes, %d\n", type, bytes, stated);
    ort->ReleaseTensorTypeAndShapeInfo(info);
    ort->ReleaseValue(value);
  }
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  open_library(argv[1]);
  OK(ort->CreateEnv(4, "compile", &env));
  OK(ort->GetAllocatorWithDefaultOptions(&allocator));
  compiler = ort->GetCompileApi();
  compile(argv[2]);
  if (atoi(argv[3]) >= 32) weightless(argv[2]);
  types();
  ort->ReleaseEnv(env);
  return 0;
}
