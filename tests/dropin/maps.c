// Maps: made of tensors, given to models, and returned by them. Arguments: the library, a folder of models.
#include "print_value.h"

static OrtEnv* env;
static OrtAllocator* allocator;

static void print_type(OrtTypeInfo* info) {
  int kind = 0;
  OK(ort->GetOnnxTypeFromTypeInfo(info, &kind));
  printf("kind %d", kind);
  OrtTypeInfo* inner = NULL;
  if (kind == 2) {
    const OrtSequenceTypeInfo* sequence = NULL;
    OK(ort->CastTypeInfoToSequenceTypeInfo(info, &sequence));
    OK(ort->GetSequenceElementType(sequence, &inner));
  } else if (kind == 3) {
    const OrtMapTypeInfo* map = NULL;
    int key = 0;
    OK(ort->CastTypeInfoToMapTypeInfo(info, &map));
    OK(ort->GetMapKeyType(map, &key));
    OK(ort->GetMapValueType(map, &inner));
    printf(" of keys %d", key);
  } else {
    const OrtTensorTypeAndShapeInfo* tensor = NULL;
    int type = 0;
    OK(ort->CastTypeInfoToTensorInfo(info, &tensor));
    OK(ort->GetTensorElementType(tensor, &type));
    printf(" of type %d\n", type);
  }
  if (inner) print_type(inner);
  ort->ReleaseTypeInfo(info);
}

static OrtValue* strings(const char* const* texts, int64_t n) {
  OrtValue* value = NULL;
  OK(ort->CreateTensorAsOrtValue(allocator, &n, 1, 8, &value));
  OK(ort->FillStringTensor(value, texts, (size_t)n));
  return value;
}
static OrtValue* numbers(const void* data, size_t bytes, const int64_t* shape, size_t rank, int type) {
  OrtValue* value = NULL;
  OK(ort->CreateTensorAsOrtValue(allocator, shape, rank, type, &value));
  void* to = NULL;
  OK(ort->GetTensorMutableData(value, &to));
  memcpy(to, data, bytes);
  return value;
}

static OrtSession* open_model(const char* folder, const char* name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s.onnx", folder, name);
  OrtSession* session = NULL;
  printf("%s\n", name);
  OK(ort->CreateSession(env, path, NULL, &session));
  OrtTypeInfo* info = NULL;
  OK(ort->SessionGetInputTypeInfo(session, 0, &info));
  print_type(info);
  OK(ort->SessionGetOutputTypeInfo(session, 0, &info));
  print_type(info);
  return session;
}

static void run(const char* folder, const char* name, OrtValue* x) {
  OrtSession* session = open_model(folder, name);
  OrtValue* y = NULL;
  printf("run: code %d\n", code_of(ort->Run(session, NULL, (const char*[]){"x"}, (const OrtValue*[]){x}, 1,
                                            (const char*[]){"y"}, 1, &y)));
  ort->ReleaseSession(session);
  if (y) print_value(y, allocator);
  ort->ReleaseValue(y);
}

int main(int count, char** arguments) {
  if (count < 3) return 2;
  open_library(arguments[1]);
  OK(ort->CreateEnv(3, "maps", &env));
  OK(ort->GetAllocatorWithDefaultOptions(&allocator));
  const char* names[] = {"pear", "apple", "fig"};
  const float weights[] = {3, 1, 2};
  const int64_t three = 3, indices[] = {2, 0, 1}, rows[] = {2, 3};
  OrtValue *keys = strings(names, 3), *values = numbers(weights, sizeof weights, &three, 1, 1), *map = NULL;
  OK(ort->CreateValue((const OrtValue*[]){keys, values}, 2, 3, &map));
  print_value(map, allocator);
  OrtTypeInfo* info = NULL;
  OK(ort->GetTypeInfo(map, &info));
  print_type(info);
  OrtValue* none = NULL;
  CODE(ort->CreateValue((const OrtValue*[]){keys}, 1, 3, &none));
  int is_tensor = 7;
  OK(ort->IsTensor(map, &is_tensor));
  printf("tensor %d\n", is_tensor);
  run(arguments[2], "vectorize", map);
  OrtValue *of_integers = numbers(indices, sizeof indices, &three, 1, 7), *another = NULL;
  OK(ort->CreateValue((const OrtValue*[]){of_integers, values}, 2, 3, &another));
  run(arguments[2], "cast_dense", another);
  run(arguments[2], "cast_sparse", another);
  const float scores[] = {0.1f, 0.7f, 0.2f, 0.5f, 0.25f, 0.25f};
  OrtValue* table = numbers(scores, sizeof scores, rows, 2, 1);
  run(arguments[2], "zip_strings", table);
  run(arguments[2], "zip_integers", table);
  OrtValue* all[] = {keys, values, map, of_integers, another, table};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) ort->ReleaseValue(all[i]);
  ort->ReleaseEnv(env);
  return 0;
}
