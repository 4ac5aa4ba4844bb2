// Values of unusual kinds. Arguments: the library, a folder of models.
#include "print_value.h"

enum { kUInt4 = 21, kInt4 = 22 };

static OrtEnv* env;
static OrtAllocator* allocator;
static OrtMemoryInfo* memory;
static const char* folder;

static OrtSession* open_model(const char* name, const OrtSessionOptions* options) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s.onnx", folder, name);
  OrtSession* session = NULL;
  printf("%s: code %d\n", name, code_of(ort->CreateSession(env, path, options, &session)));
  return session;
}

static OrtValue* tensor(const void* data, size_t bytes, const int64_t* shape, size_t rank, int type) {
  OrtValue* value = NULL;
  OK(ort->CreateTensorWithDataAsOrtValue(memory, (void*)data, bytes, shape, rank, type, &value));
  return value;
}

// Two elements of these types share a byte, whose address an index gives.
static void packed(void) {
  const int types[] = {kInt4, kUInt4};
  for (int t = 0; t < 2; ++t) {
    OrtValue* value = NULL;
    const int64_t shape[] = {2, 3};
    OK(ort->CreateTensorAsOrtValue(allocator, shape, 2, types[t], &value));
    unsigned char* bytes = NULL;
    OK(ort->GetTensorMutableData(value, (void**)&bytes));
    bytes[0] = 0x21, bytes[1] = 0x43, bytes[2] = 0x65;
    for (int64_t i = 0; i < 2; ++i)
      for (int64_t j = 0; j < 3; ++j) {
        void* place = NULL;
        const int64_t at[] = {i, j};
        const int code = code_of(ort->TensorAt(value, at, 2, &place));
        printf("type %d [%d, %d]: code %d, byte %d\n", types[t], (int)i, (int)j, code,
               place ? (int)((unsigned char*)place - bytes) : -1);
      }
    void* place = NULL;
    CODE(ort->TensorAt(value, (const int64_t[]){2, 0}, 2, &place));
    ort->ReleaseValue(value);
  }
}

// std::string of the C++ library, which both libraries use for the strings of the caller.
typedef struct Text {
  char* data;
  size_t size;
  char room[16];
} Text;
static void set(Text* text, const char* to) {
  text->data = text->room;
  text->size = strlen(to);
  memcpy(text->room, to, text->size + 1);
}

static void own_strings(void) {
  Text words[3];
  set(&words[0], "one"), set(&words[1], "two"), set(&words[2], "three");
  const int64_t three = 3;
  OrtValue* keys = NULL;
  CODE(ort->CreateTensorWithDataAsOrtValue(memory, words, sizeof words - 1, &three, 1, kString, &keys));
  CODE(ort->CreateTensorWithDataAsOrtValue(memory, words, sizeof words, &three, 1, kString, &keys));
  if (!keys) return;
  print_tensor(keys);
  const int64_t numbers[] = {3, 1, 2};
  const float scores[] = {0.5f, 1.5f, 2.5f};
  OrtValue *whole = tensor(numbers, sizeof numbers, &three, 1, kInt64), *map = NULL, *other = NULL;
  OrtValue* real = tensor(scores, sizeof scores, &three, 1, kFloat);
  OK(ort->CreateValue((const OrtValue*[]){keys, real}, 2, 3, &map));
  ort->ReleaseValue(real);
  OK(ort->CreateValue((const OrtValue*[]){whole, keys}, 2, 3, &other));
  OK(ort->FillStringTensorElement(keys, "changed", 0));
  printf("the caller's first string: %s\n", words[0].data);
  ort->ReleaseValue(keys);
  print_value(map, allocator);
  print_value(other, allocator);
  OrtValue* list = NULL;
  OK(ort->CreateValue((const OrtValue*[]){map, map}, 2, 2, &list));
  ort->ReleaseValue(map);
  print_value(list, allocator);
  ort->ReleaseValue(list);
  ort->ReleaseValue(other);
  ort->ReleaseValue(whole);

  set(&words[1], "a b");
  OK(ort->CreateTensorWithDataAsOrtValue(memory, words, sizeof words, &three, 1, kString, &keys));
  OrtSession* session = open_model("strings", NULL);
  OrtValue* out = NULL;
  for (int again = 0; session && again < 2; ++again) {
    ort->ReleaseValue(out);
    out = NULL;
    CODE(ort->Run(session, NULL, (const char*[]){"x"}, (const OrtValue*[]){keys}, 1, (const char*[]){"y"}, 1,
                  &out));
  }
  set(&words[1], "gone");
  ort->ReleaseSession(session);
  if (out) print_value(out, allocator);
  ort->ReleaseValue(out);
  ort->ReleaseValue(keys);
}

static void bound_maps(void) {
  OrtSession* session = open_model("zip", NULL);
  const float scores[] = {1, 2, 3, 4};
  const int64_t shape[] = {2, 2};
  OrtValue *x = tensor(scores, sizeof scores, shape, 2, kFloat), *out = NULL;
  OK(ort->Run(session, NULL, (const char*[]){"x"}, (const OrtValue*[]){x}, 1, (const char*[]){"y"}, 1, &out));
  print_value(out, allocator);
  OrtValue* again = out;
  CODE(ort->Run(session, NULL, (const char*[]){"x"}, (const OrtValue*[]){x}, 1, (const char*[]){"y"}, 1,
                &again));
  print_value(again, allocator);
  ort->ReleaseValue(out);
  OrtIoBinding* binding = NULL;
  OK(ort->CreateIoBinding(session, &binding));
  CODE(ort->BindInput(binding, "x", x));
  CODE(ort->BindOutputToDevice(binding, "y", memory));
  CODE(ort->RunWithBinding(session, NULL, binding));
  OrtValue** results = NULL;
  size_t count = 0;
  CODE(ort->GetBoundOutputValues(binding, allocator, &results, &count));
  for (size_t i = 0; i < count; ++i) {
    print_value(results[i], allocator);
    ort->ReleaseValue(results[i]);
  }
  if (results) OK(ort->AllocatorFree(allocator, results));
  ort->ReleaseIoBinding(binding);
  ort->ReleaseValue(x);
  ort->ReleaseSession(session);
}

static void sparse_constant(void) {
  OrtSession* session = open_model("sparse_constant", NULL);
  if (!session) return;
  OrtValue* out = NULL;
  CODE(ort->Run(session, NULL, NULL, NULL, 0, (const char*[]){"y"}, 1, &out));
  int is_sparse = 0;
  if (out) OK(ort->IsSparseTensor(out, &is_sparse));
  printf("sparse %d\n", is_sparse);
  if (is_sparse) {
    const void *values = NULL, *indices = NULL;
    size_t count = 0;
    int format = 0;
    OK(ort->GetSparseTensorFormat(out, (void*)&format));
    OK(ort->GetSparseTensorValues(out, &values));
    OK(ort->GetSparseTensorIndices(out, 0, &count, &indices));
    printf("format %d:", format);
    for (size_t i = 0; i < count; ++i)
      printf(" %g at %d", ((const float*)values)[i], (int)((const int64_t*)indices)[i]);
    printf("\n");
  }
  ort->ReleaseValue(out);
  ort->ReleaseSession(session);
}

static void run_free(OrtSession* session, const OrtRunOptions* options, int64_t columns) {
  static const float numbers[16] = {1, 2, 3, 4, 5, 6, 7, 8};
  const int64_t shape[] = {4, columns};
  OrtValue *w = tensor(numbers, (size_t)(4 * columns) * 4, shape, 2, kFloat), *y = NULL;
  printf("%d columns: code %d\n", (int)columns,
         code_of(ort->Run(session, options, (const char*[]){"w"}, (const OrtValue*[]){w}, 1,
                          (const char*[]){"y"}, 1, &y)));
  if (y) print_value(y, allocator);
  ort->ReleaseValue(y);
  ort->ReleaseValue(w);
}

static void zero_dimension(void) {
  OrtSession* session = open_model("zero", NULL);
  if (!session) return;
  run_free(session, NULL, 0);
  run_free(session, NULL, 2);
  ort->ReleaseSession(session);
}

static void wrong_type(void) {
  OrtSession* session = open_model("zero", NULL);
  const int64_t numbers[4] = {0}, shape[] = {4, 1};
  OrtValue *w = tensor(numbers, sizeof numbers, shape, 2, kInt64), *y = NULL;
  OrtStatus* status =
      ort->Run(session, NULL, (const char*[]){"w"}, (const OrtValue*[]){w}, 1, (const char*[]){"y"}, 1, &y);
  printf("wrong type: code %d, %s\n", (int)ort->GetErrorCode(status),
         strstr(ort->GetErrorMessage(status), "Unexpected input data type") ? "named" : "not named");
  if (getenv("SAY")) fprintf(stderr, "%s\n", ort->GetErrorMessage(status));
  ort->ReleaseStatus(status);
  ort->ReleaseValue(w);
  ort->ReleaseSession(session);
}

int main(int count, char** arguments) {
  if (count < 3) return 2;
  open_library(arguments[1]);
  folder = arguments[2];
  OK(ort->CreateEnv(4, "odd", &env));
  OK(ort->GetAllocatorWithDefaultOptions(&allocator));
  OK(ort->CreateCpuMemoryInfo(1, 0, &memory));
  zero_dimension();
  packed();
  own_strings();
  bound_maps();
  sparse_constant();
  wrong_type();
  ort->ReleaseMemoryInfo(memory);
  ort->ReleaseEnv(env);
  return 0;
}
