// Sparse tensors: made, filled, read, and given to models. Arguments: the library, a folder of models.
#include "program.h"

static OrtEnv* env;
static OrtAllocator* allocator;
static OrtMemoryInfo* memory;

enum { kFloat = 1, kInt32 = 6, kInt64 = 7, kString = 8, kDouble = 11 };
enum { kCoo = 0, kInner = 1, kOuter = 2, kBlocks = 3 };

static void print_shape(OrtTensorTypeAndShapeInfo* info) {
  int type = 0;
  size_t rank = 0, count = 0;
  int64_t dims[8];
  OK(ort->GetTensorElementType(info, &type));
  OK(ort->GetDimensionsCount(info, &rank));
  OK(ort->GetDimensions(info, dims, rank));
  OK(ort->GetTensorShapeElementCount(info, &count));
  printf("type %d, %zu elements, shape", type, count);
  for (size_t i = 0; i < rank; ++i) printf(" %d", (int)dims[i]);
  ort->ReleaseTensorTypeAndShapeInfo(info);
}

static void print_indices(const OrtValue* value, int format) {
  OrtTensorTypeAndShapeInfo* info = NULL;
  const void* data = NULL;
  size_t count = 0;
  int code = code_of(ort->GetSparseTensorIndicesTypeShape(value, format, &info));
  printf("  indices %d: code %d, ", format, code);
  if (info) print_shape(info);
  code = code_of(ort->GetSparseTensorIndices(value, format, &count, &data));
  printf(", code %d, count %zu:", code, code ? 0 : count);
  for (size_t i = 0; !code && i < count; ++i)
    printf(" %d", format == kBlocks ? ((const int32_t*)data)[i] : (int)((const int64_t*)data)[i]);
  printf("\n");
}

// All that can be asked of a value.
static void print_value(const char* what, OrtValue* value) {
  printf("%s\n", what);
  int sparse = 9, tensor = 9, has = 9, kind = 9;
  int format = 9;
  OK(ort->IsSparseTensor(value, &sparse));
  OK(ort->IsTensor(value, &tensor));
  OK(ort->HasValue(value, &has));
  OK(ort->GetValueType(value, &kind));
  printf("  sparse %d, tensor %d, has a value %d, kind %d\n", sparse, tensor, has, kind);
  OrtTypeInfo* type = NULL;
  CODE(ort->GetTypeInfo(value, &type));
  if (type) {
    const OrtTensorTypeAndShapeInfo* inner = NULL;
    int type_kind = 9, element = 0;
    size_t rank = 0;
    OK(ort->GetOnnxTypeFromTypeInfo(type, &type_kind));
    OK(ort->CastTypeInfoToTensorInfo(type, &inner));
    if (inner) {
      OK(ort->GetTensorElementType(inner, &element));
      OK(ort->GetDimensionsCount(inner, &rank));
    }
    printf("  kind %d, element type %d, rank %zu\n", type_kind, element, rank);
    ort->ReleaseTypeInfo(type);
  }
  OrtTensorTypeAndShapeInfo* info = NULL;
  CODE(ort->GetTensorTypeAndShape(value, &info));
  if (info) {
    printf("  dense: ");
    print_shape(info);
    printf("\n");
  }
  const OrtMemoryInfo* where = NULL;
  CODE(ort->GetTensorMemoryInfo(value, &where));
  void* data = NULL;
  size_t bytes = 0;
  CODE(ort->GetTensorMutableData(value, &data));
  CODE(ort->GetTensorSizeInBytes(value, &bytes));
  CODE(ort->GetSparseTensorFormat(value, (void*)&format));
  printf("  format %d\n", format);
  info = NULL;
  CODE(ort->GetSparseTensorValuesTypeAndShape(value, &info));
  size_t count = 0;
  int element = 0;
  if (info) {
    OK(ort->GetTensorElementType(info, &element));
    OK(ort->GetTensorShapeElementCount(info, &count));
    printf("  values: ");
    print_shape(info);
    printf("\n");
  }
  const void* values = NULL;
  CODE(ort->GetSparseTensorValues(value, &values));
  if (values && count > 0) {
    printf("  values:");
    for (size_t i = 0; i < count; ++i) {
      if (element == kFloat) printf(" %g", ((const float*)values)[i]);
      if (element == kInt32) printf(" %d", ((const int32_t*)values)[i]);
      if (element == kInt64) printf(" %d", (int)((const int64_t*)values)[i]);
      if (element == kDouble) printf(" %g", ((const double*)values)[i]);
    }
    printf("\n");
  }
  for (int i = 0; i < 4; ++i) print_indices(value, i);
  if (element == kString) {
    size_t length = 0;
    CODE(ort->GetStringTensorDataLength(value, &length));
    printf("  %zu bytes of text:", length);
    char text[64] = {0};
    for (size_t i = 0; i < count; ++i) {
      CODE(ort->GetStringTensorElementLength(value, i, &length));
      memset(text, 0, sizeof text);
      CODE(ort->GetStringTensorElement(value, length, i, text));
      printf(" %s\n", text);
    }
    char all[64] = {0};
    size_t starts[8] = {0};
    CODE(ort->GetStringTensorContent(value, all, sizeof all, starts, count));
  }
}

static const int64_t shape[] = {3, 3}, three = 3;
static const float numbers[] = {1.5f, 2, -3};
static const int64_t flat[] = {2, 3, 5}, pairs[] = {0, 2, 1, 0, 1, 2};
static const int64_t inner[] = {2, 0, 2}, outer[] = {0, 1, 3, 3};
static const int64_t none = 0, integers[] = {7, 8, 9};
static const int64_t grid[] = {4, 4}, blocks[] = {2, 2, 2}, places[] = {2, 2};
static const int32_t where[] = {0, 1, 0, 1};
static const float block_values[] = {1, 2, 3, 4, 5, 6, 7, 8};

static OrtValue* empty(const int64_t* dims, size_t rank, int type) {
  OrtValue* value = NULL;
  OK(ort->CreateSparseTensorAsOrtValue(allocator, dims, rank, type, &value));
  return value;
}

static OrtValue* coo(void) {
  OrtValue* value = empty(shape, 2, kFloat);
  OK(ort->FillSparseTensorCoo(value, memory, &three, 1, numbers, flat, 3));
  return value;
}

static void make(void) {
  OrtValue* value = empty(shape, 2, kFloat);
  print_value("empty", value);
  ort->ReleaseValue(value);
  value = coo();
  print_value("coo, flat", value);
  CODE(ort->FillSparseTensorCoo(value, memory, &three, 1, numbers, flat, 3));
  ort->ReleaseValue(value);
  value = empty(shape, 2, kFloat);
  CODE(ort->FillSparseTensorCoo(value, memory, &three, 1, numbers, pairs, 6));
  print_value("coo, pairs", value);
  ort->ReleaseValue(value);
  value = empty(shape, 2, kFloat);
  CODE(ort->FillSparseTensorCsr(value, memory, &three, 1, numbers, inner, 3, outer, 4));
  print_value("csr", value);
  ort->ReleaseValue(value);
  value = empty(grid, 2, kFloat);
  CODE(ort->FillSparseTensorBlockSparse(value, memory, blocks, 3, block_values, places, 2, where));
  print_value("blocks", value);
  ort->ReleaseValue(value);
  value = empty(shape, 2, kString);
  const char* words[] = {"one", "two", "three"};
  CODE(ort->FillSparseTensorCoo(value, memory, &three, 1, words, flat, 3));
  print_value("strings", value);
  ort->ReleaseValue(value);
  value = empty(shape, 2, kInt64);
  CODE(ort->FillSparseTensorCoo(value, memory, &none, 1, NULL, NULL, 0));
  print_value("no values", value);
  ort->ReleaseValue(value);
  value = empty(shape, 2, kInt64);
  CODE(ort->FillSparseTensorCsr(value, memory, &none, 1, NULL, NULL, 0, NULL, 0));
  print_value("no rows", value);
  ort->ReleaseValue(value);
}

static void make_with_wrong_counts(void) {
  const int64_t four = 4, negative = -1;
  printf("errors\n");
  OrtValue* value = empty(shape, 2, kInt64);
  CODE(ort->FillSparseTensorCoo(value, memory, &three, 1, integers, flat, 2));
  CODE(ort->FillSparseTensorCoo(value, memory, &three, 1, integers, flat, 4));
  CODE(ort->FillSparseTensorCoo(value, memory, &negative, 1, integers, flat, 3));
  ort->ReleaseValue(value);
  value = empty(shape, 2, kInt64);
  CODE(ort->FillSparseTensorCsr(value, memory, &three, 1, integers, inner, 2, outer, 4));
  CODE(ort->FillSparseTensorCsr(value, memory, &three, 1, integers, inner, 3, outer, 3));
  ort->ReleaseValue(value);
  value = empty(shape, 2, kInt64);
  const int64_t ten = 10, many[10] = {0};
  CODE(ort->FillSparseTensorCoo(value, memory, &ten, 1, many, many, 10));
  ort->ReleaseValue(value);
  value = empty(&four, 1, kInt64);
  CODE(ort->FillSparseTensorCoo(value, memory, &three, 1, integers, flat, 3));
  const int64_t low[] = {0, 2, 3};
  CODE(ort->FillSparseTensorCoo(value, memory, &three, 1, integers, low, 3));
  print_value("one dimension", value);
  ort->ReleaseValue(value);
  value = empty(&four, 1, kInt64);
  CODE(ort->FillSparseTensorCsr(value, memory, &three, 1, integers, inner, 3, outer, 4));
  ort->ReleaseValue(value);
  const int64_t cube[] = {2, 2, 2};
  value = empty(cube, 3, kInt64);
  CODE(ort->FillSparseTensorCoo(value, memory, &three, 1, integers, flat, 3));
  ort->ReleaseValue(value);
  value = empty(cube, 3, kInt64);
  CODE(ort->FillSparseTensorCsr(value, memory, &three, 1, integers, inner, 3, outer, 4));
  ort->ReleaseValue(value);
}

static void make_with_wrong_indices(void) {
  OrtValue* value = NULL;
  const int64_t far_pairs[] = {0, 2, 3, 0, 1, 2}, below[] = {0, 2, 1, -1, 1, 2}, back[] = {5, 3, 2};
  const int64_t far_inner[] = {2, 0, 3}, low_inner[] = {2, -1, 2}, same[] = {2, 2, 2};
  const int64_t shifted[] = {1, 1, 3, 3}, falling[] = {0, 3, 1, 3}, too_few[] = {0, 1, 2, 2},
                too_many[] = {0, 1, 3, 4};
  const int64_t* wheres[] = {far_pairs, below, back, same};
  for (int i = 0; i < 4; ++i) {
    value = empty(shape, 2, kInt64);
    printf("%d: ", i);
    CODE(ort->FillSparseTensorCoo(value, memory, &three, 1, integers, wheres[i], i < 2 ? 6 : 3));
    ort->ReleaseValue(value);
  }
  const int64_t* columns[] = {far_inner, low_inner, inner, inner, inner, inner, same};
  const int64_t* starts[] = {outer, outer, shifted, falling, too_few, too_many, outer};
  for (int i = 0; i < 7; ++i) {
    value = empty(shape, 2, kInt64);
    printf("%d: ", i);
    CODE(ort->FillSparseTensorCsr(value, memory, &three, 1, integers, columns[i], 3, starts[i], 4));
    ort->ReleaseValue(value);
  }
  value = empty(shape, 2, kInt64);
  CODE(ort->FillSparseTensorCsr(value, memory, &none, 1, NULL, NULL, 0, (const int64_t[]){0, 0, 0, 0}, 4));
  ort->ReleaseValue(value);
  value = empty(shape, 2, kInt64);
  CODE(ort->FillSparseTensorCsr(value, memory, &three, 1, integers, inner, 3, NULL, 0));
  ort->ReleaseValue(value);
}

static void make_of_odd_shapes(void) {
  OrtValue* value = empty(shape, 2, kInt64);
  const int64_t table[] = {3, 1}, empty_dims[] = {0, 3};
  CODE(ort->FillSparseTensorCoo(value, memory, table, 2, integers, flat, 3));
  print_value("values of rank 2", value);
  ort->ReleaseValue(value);
  value = empty(shape, 2, kInt64);
  CODE(ort->FillSparseTensorCoo(value, memory, empty_dims, 2, NULL, NULL, 0));
  ort->ReleaseValue(value);
  value = empty(empty_dims, 2, kInt64);
  CODE(ort->FillSparseTensorCoo(value, memory, &none, 1, NULL, NULL, 0));
  ort->ReleaseValue(value);
  value = empty(NULL, 0, kInt64);
  print_value("scalar", value);
  ort->ReleaseValue(value);
}

static void make_with_wrong_blocks(void) {
  const int32_t far_blocks[] = {0, 2, 0, 1}, low_blocks[] = {0, 1, 0, -1};
  OrtValue* value = empty(grid, 2, kFloat);
  CODE(ort->FillSparseTensorBlockSparse(value, memory, blocks, 3, block_values, places, 2, far_blocks));
  ort->ReleaseValue(value);
  value = empty(grid, 2, kFloat);
  CODE(ort->FillSparseTensorBlockSparse(value, memory, blocks, 3, block_values, places, 2, low_blocks));
  ort->ReleaseValue(value);
  value = empty(grid, 2, kFloat);
  CODE(ort->FillSparseTensorBlockSparse(value, memory, (const int64_t[]){0}, 1, NULL, (const int64_t[]){0}, 1,
                                        NULL));
  print_value("no blocks", value);
  ort->ReleaseValue(value);
  value = empty(grid, 2, kFloat);
  CODE(ort->FillSparseTensorBlockSparse(value, memory, blocks, 3, block_values, (const int64_t[]){2, 3}, 2,
                                        where));
  const int64_t odd[] = {3, 1}, flat_blocks[] = {8}, one_place[] = {4};
  CODE(ort->FillSparseTensorBlockSparse(value, memory, blocks, 3, block_values, odd, 2, where));
  CODE(ort->FillSparseTensorBlockSparse(value, memory, flat_blocks, 1, block_values, places, 2, where));
  CODE(ort->FillSparseTensorBlockSparse(value, memory, blocks, 3, block_values, one_place, 1, where));
  ort->ReleaseValue(value);
}

static void make_of_every_type(void) {
  OrtValue* value = NULL;
  const int64_t bad[] = {3, -1};
  CODE(ort->CreateSparseTensorAsOrtValue(allocator, bad, 2, kFloat, &value));
  CODE(ort->CreateSparseTensorAsOrtValue(allocator, shape, 2, 0, &value));
  CODE(ort->CreateSparseTensorAsOrtValue(allocator, shape, 2, 14, &value));
  CODE(ort->CreateSparseTensorAsOrtValue(allocator, shape, 2, 22, &value));
  for (int type = 1; type < 26; ++type) {
    value = NULL;
    const int code = code_of(ort->CreateSparseTensorAsOrtValue(allocator, shape, 2, type, &value));
    printf("  element type %d: code %d\n", type, code);
    ort->ReleaseValue(value);
  }
}

// A tensor that is not sparse.
static void refuse_dense(void) {
  OrtValue* dense = NULL;
  const void* values = NULL;
  int format = 0;
  OrtTensorTypeAndShapeInfo* info = NULL;
  OK(ort->CreateTensorAsOrtValue(allocator, shape, 2, kFloat, &dense));
  CODE(ort->GetSparseTensorFormat(dense, (void*)&format));
  CODE(ort->GetSparseTensorValues(dense, &values));
  CODE(ort->GetSparseTensorValuesTypeAndShape(dense, &info));
  CODE(ort->FillSparseTensorCoo(dense, memory, &three, 1, numbers, flat, 3));
  CODE(ort->UseCooIndices(dense, (int64_t*)flat, 3));
  ort->ReleaseValue(dense);
}

// Over the memory of the program.
static void use(void) {
  float values[] = {1.5f, 2, -3};
  int64_t at[] = {2, 3, 5}, columns[] = {2, 0, 2}, rows[] = {0, 1, 3, 3};
  OrtValue* value = NULL;
  OK(ort->CreateSparseTensorWithValuesAsOrtValue(memory, values, shape, 2, &three, 1, kFloat, &value));
  print_value("values without indices", value);
  CODE(ort->UseCooIndices(value, at, 2));
  CODE(ort->UseCooIndices(value, at, 3));
  values[1] = 20;
  at[1] = 4;
  print_value("used coo", value);
  CODE(ort->UseCooIndices(value, at, 3));
  CODE(ort->UseCsrIndices(value, columns, 3, rows, 4));
  CODE(ort->FillSparseTensorCoo(value, memory, &three, 1, numbers, flat, 3));
  print_value("used csr", value);
  ort->ReleaseValue(value);
  OK(ort->CreateSparseTensorWithValuesAsOrtValue(memory, values, shape, 2, &three, 1, kFloat, &value));
  CODE(ort->UseCsrIndices(value, columns, 3, rows, 4));
  columns[0] = 1;
  print_value("used csr", value);
  ort->ReleaseValue(value);
  float blocks[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  int32_t where[] = {0, 1, 0, 1};
  const int64_t grid[] = {4, 4}, block_shape[] = {2, 2, 2}, places[] = {2, 2};
  OK(ort->CreateSparseTensorWithValuesAsOrtValue(memory, blocks, grid, 2, block_shape, 3, kFloat, &value));
  CODE(ort->UseBlockSparseIndices(value, places, 2, where));
  print_value("used blocks", value);
  ort->ReleaseValue(value);
  value = NULL;
  const char* words[] = {"a", "b", "c"};
  CODE(ort->CreateSparseTensorWithValuesAsOrtValue(memory, words, shape, 2, &three, 1, kString, &value));
  ort->ReleaseValue(value);
  value = NULL;
  const int64_t negative = -3;
  CODE(ort->CreateSparseTensorWithValuesAsOrtValue(memory, values, shape, 2, &negative, 1, kFloat, &value));
  value = empty(shape, 2, kFloat);
  CODE(ort->UseCooIndices(value, at, 3));
  CODE(ort->UseCsrIndices(value, columns, 3, rows, 4));
  CODE(ort->UseBlockSparseIndices(value, places, 2, where));
  ort->ReleaseValue(value);
}

static OrtValue* dense(int type, const int64_t* dims) {
  static const size_t widths[] = {[kFloat] = 4, [kInt32] = 4, [kInt64] = 8, [kDouble] = 8};
  OrtValue* value = NULL;
  void* data = NULL;
  OK(ort->CreateTensorAsOrtValue(allocator, dims, 2, type, &value));
  OK(ort->GetTensorMutableData(value, &data));
  for (int i = 0; i < dims[0] * dims[1]; ++i) {
    char* at = (char*)data + (size_t)i * widths[type];
    if (type == kFloat) *(float*)at = (float)i - 2;
    if (type == kDouble) *(double*)at = i - 2;
    if (type == kInt32) *(int32_t*)at = i - 2;
    if (type == kInt64) *(int64_t*)at = i - 2;
  }
  return value;
}

static void print_dense(OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = NULL;
  int type = 0;
  size_t count = 0;
  void* data = NULL;
  OK(ort->GetTensorTypeAndShape(value, &info));
  OK(ort->GetTensorElementType(info, &type));
  OK(ort->GetTensorShapeElementCount(info, &count));
  OK(ort->GetTensorMutableData(value, &data));
  printf("    ");
  print_shape(info);
  printf(":");
  for (size_t i = 0; i < count; ++i) {
    if (type == kFloat) printf(" %g", ((float*)data)[i]);
    if (type == kDouble) printf(" %g", ((double*)data)[i]);
    if (type == kInt32) printf(" %d", ((int32_t*)data)[i]);
    if (type == kInt64) printf(" %d", (int)((int64_t*)data)[i]);
  }
  printf("\n");
}

static void print_port(OrtSession* session, int is_output, size_t i) {
  OrtTypeInfo* info = NULL;
  const OrtTensorTypeAndShapeInfo* tensor = NULL;
  int kind = 0, element = 0;
  size_t rank = 0;
  int64_t dims[4] = {0};
  OK(is_output ? ort->SessionGetOutputTypeInfo(session, i, &info)
               : ort->SessionGetInputTypeInfo(session, i, &info));
  OK(ort->GetOnnxTypeFromTypeInfo(info, &kind));
  OK(ort->CastTypeInfoToTensorInfo(info, &tensor));
  OK(ort->GetTensorElementType(tensor, &element));
  OK(ort->GetDimensionsCount(tensor, &rank));
  OK(ort->GetDimensions(tensor, dims, rank));
  printf("  %s %zu: kind %d, type %d, rank %zu", is_output ? "output" : "input", i, kind, element, rank);
  if (!is_output) printf(": %d %d", (int)dims[0], (int)dims[1]);  // onnxruntime infers outputs without transB
  printf("\n");
  ort->ReleaseTypeInfo(info);
}

static OrtSession* open_model(const char* folder, const char* name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s.onnx", folder, name);
  OrtSession* session = NULL;
  const int code = code_of(ort->CreateSession(env, path, NULL, &session));
  printf("%s: code %d\n", name, code);
  if (!session) return NULL;
  size_t inputs = 0, outputs = 0;
  OK(ort->SessionGetInputCount(session, &inputs));
  OK(ort->SessionGetOutputCount(session, &outputs));
  for (size_t i = 0; i < inputs; ++i) print_port(session, 0, i);
  for (size_t i = 0; i < outputs; ++i) print_port(session, 1, i);
  return session;
}

static const char* const kNames[] = {"A", "B"};
static const char* const kResult[] = {"Y"};

static void multiply(OrtSession* session, const char* what, OrtValue* a, int type, const int64_t* dims) {
  OrtValue *b = dense(type, dims), *y = NULL;
  const OrtValue* inputs[] = {a, b};
  printf("  %s: code %d\n", what, code_of(ort->Run(session, NULL, kNames, inputs, 2, kResult, 1, &y)));
  if (y) print_dense(y);
  ort->ReleaseValue(y);
  ort->ReleaseValue(b);
  ort->ReleaseValue(a);
}

static OrtValue* of_pairs(int type, const void* values, const int64_t* where, int64_t count,
                          const int64_t* dims) {
  OrtValue* value = empty(dims, 2, type);
  OK(ort->FillSparseTensorCoo(value, memory, &count, 1, values, where, 2 * (size_t)count));
  return value;
}
static OrtValue* of_rows(void) {
  OrtValue* value = empty(shape, 2, kFloat);
  OK(ort->FillSparseTensorCsr(value, memory, &three, 1, numbers, inner, 3, outer, 4));
  return value;
}

static void run(const char* folder) {
  static const int64_t tall[] = {3, 2}, wide[] = {2, 3}, other[] = {3, 4};
  static const char* const names[] = {"plain", "alpha", "left", "right", "both", "loose", "branch"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    OrtSession* session = open_model(folder, names[i]);
    const int64_t* dims = i == 3 || i == 4 ? wide : tall;
    multiply(session, "pairs", of_pairs(kFloat, numbers, pairs, 3, shape), kFloat, dims);
    multiply(session, "rows", of_rows(), kFloat, dims);
    multiply(session, "flat", coo(), kFloat, dims);
    multiply(session, "nothing", of_pairs(kFloat, numbers, pairs, 0, shape), kFloat, dims);
    ort->ReleaseSession(session);
  }
  OrtSession* session = open_model(folder, "loose");
  const int64_t unsorted[] = {1, 2, 1, 0, 0, 2}, twice[] = {1, 2, 1, 2, 0, 2};
  multiply(session, "unsorted", of_pairs(kFloat, numbers, unsorted, 3, shape), kFloat, tall);
  multiply(session, "twice", of_pairs(kFloat, numbers, twice, 3, shape), kFloat, tall);
  multiply(session, "not square", of_pairs(kFloat, numbers, pairs, 3, other), kFloat,
           (const int64_t[]){4, 2});
  multiply(session, "wrong type", of_pairs(kDouble, (const double[]){1, 2, 3}, pairs, 3, shape), kFloat,
           tall);
  multiply(session, "a tensor", dense(kFloat, shape), kFloat, tall);
  multiply(session, "not filled", empty(shape, 2, kFloat), kFloat, tall);
  const int64_t cube[] = {2, 2, 2};
  OrtValue* value = empty(cube, 3, kFloat);
  OK(ort->FillSparseTensorCoo(value, memory, &three, 1, numbers, flat, 3));
  multiply(session, "rank 3", value, kFloat, tall);
  ort->ReleaseSession(session);
  session = open_model(folder, "plain");
  multiply(session, "wrong shape", of_pairs(kFloat, numbers, pairs, 3, other), kFloat, tall);
  ort->ReleaseSession(session);
  session = open_model(folder, "integers");
  multiply(session, "pairs", of_pairs(kInt64, (const int64_t[]){3, 5, 7}, pairs, 3, shape), kInt64, tall);
  ort->ReleaseSession(session);
  session = open_model(folder, "doubles");
  multiply(session, "pairs", of_pairs(kDouble, (const double[]){0.1, 5, 7}, pairs, 3, shape), kDouble, tall);
  ort->ReleaseSession(session);

  session = open_model(folder, "through");
  OrtValue *a = of_rows(), *b = dense(kFloat, tall), *out[2] = {NULL, NULL};
  const char* both[] = {"Y", "A"};
  CODE(ort->Run(session, NULL, kNames, (const OrtValue*[]){a, b}, 2, both, 2, out));
  print_dense(out[0]);
  print_value("passed through", out[1]);
  ort->ReleaseValue(out[0]);
  ort->ReleaseValue(out[1]);
  out[0] = NULL;
  CODE(ort->Run(session, NULL, kNames, (const OrtValue*[]){a, b}, 2, both + 1, 1, out));
  print_value("alone", out[0]);
  ort->ReleaseValue(out[0]);
  ort->ReleaseValue(a);
  ort->ReleaseValue(b);
  ort->ReleaseSession(session);

  session = open_model(folder, "plain");
  OrtIoBinding* binding = NULL;
  OK(ort->CreateIoBinding(session, &binding));
  a = of_rows();
  b = dense(kFloat, tall);
  CODE(ort->BindInput(binding, "A", a));
  CODE(ort->BindInput(binding, "B", b));
  CODE(ort->BindOutputToDevice(binding, "Y", memory));
  CODE(ort->RunWithBinding(session, NULL, binding));
  OrtValue** bound = NULL;
  size_t count = 0;
  OK(ort->GetBoundOutputValues(binding, allocator, &bound, &count));
  for (size_t i = 0; i < count; ++i) {
    print_dense(bound[i]);
    ort->ReleaseValue(bound[i]);
  }
  if (bound) OK(ort->AllocatorFree(allocator, bound));
  ort->ReleaseIoBinding(binding);
  ort->ReleaseValue(a);
  ort->ReleaseValue(b);
  ort->ReleaseSession(session);
  open_model(folder, "tensor");
  open_model(folder, "halves");
  open_model(folder, "dense_product");
}

int main(int count, char** arguments) {
  if (count < 3) return 2;
  open_library(arguments[1]);
  OK(ort->CreateEnv(3, "sparse", &env));
  OK(ort->GetAllocatorWithDefaultOptions(&allocator));
  OK(ort->CreateCpuMemoryInfo(1, 0, &memory));
  make();
  make_with_wrong_counts();
  make_with_wrong_indices();
  make_of_odd_shapes();
  make_with_wrong_blocks();
  make_of_every_type();
  refuse_dense();
  use();
  run(arguments[2]);
  ort->ReleaseMemoryInfo(memory);
  ort->ReleaseEnv(env);
  return 0;
}
