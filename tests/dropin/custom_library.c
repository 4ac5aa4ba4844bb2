// A library of custom operators, compiled against the recorded layout alone. What its operators find is
// printed, so that two libraries that run them can be compared.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "custom_op.h"

enum { kFloat = 1, kInt64 = 7, kString = 8, kVerbose = 0 };

static const OrtApi* ort;
static int minor_version;  // of the library

// What a call answers: its code, which both libraries must share.
static void report(const char* call, OrtStatus* status) {
  printf("%s: code %d\n", call, status ? ort->GetErrorCode(status) : 0);
  if (status) ort->ReleaseStatus(status);
}
#define CODE(call) report(#call, call)
#define OK(call)                                                       \
  do {                                                                 \
    OrtStatus* status_ = call;                                         \
    if (status_) {                                                     \
      printf("%s failed: %s\n", #call, ort->GetErrorMessage(status_)); \
      exit(1);                                                         \
    }                                                                  \
  } while (0)

static size_t size_of(const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = NULL;
  size_t count = 0;
  OK(ort->GetTensorTypeAndShape(value, &info));
  OK(ort->GetTensorShapeElementCount(info, &count));
  ort->ReleaseTensorTypeAndShapeInfo(info);
  return count;
}
static size_t shape_of(const OrtValue* value, int64_t* shape) {
  OrtTensorTypeAndShapeInfo* info = NULL;
  size_t rank = 0;
  OK(ort->GetTensorTypeAndShape(value, &info));
  OK(ort->GetDimensionsCount(info, &rank));
  OK(ort->GetDimensions(info, shape, rank));
  ort->ReleaseTensorTypeAndShapeInfo(info);
  return rank;
}
static const OrtValue* input(const OrtKernelContext* context, size_t i) {
  const OrtValue* value = NULL;
  OK(ort->KernelContext_GetInput(context, i, &value));
  return value;
}
static OrtValue* output_like(OrtKernelContext* context, size_t o, const OrtValue* like) {
  int64_t shape[8];
  const size_t rank = shape_of(like, shape);
  OrtValue* value = NULL;
  OK(ort->KernelContext_GetOutput(context, o, shape, rank, &value));
  return value;
}

// ---- Scaled: y = scale * x + offset, of an attribute, an optional input and an initializer ----

typedef struct Scaled {
  float scale;
} Scaled;

static void print_text(const char* what, OrtStatus* (*get)(const OrtKernelInfo*, char*, size_t*),
                       const OrtKernelInfo* info) {
  size_t size = 0;
  OK(get(info, NULL, &size));
  char* text = malloc(size);
  OK(get(info, text, &size));
  printf("%s: %s (%zu)\n", what, text, size);
  size = 1;
  printf("%s, no room: ", what);
  report("code", get(info, text, &size));
  free(text);
}

static void describe(const OrtKernelInfo* info) {
  size_t inputs = 0, outputs = 0;
  OK(ort->KernelInfo_GetInputCount(info, &inputs));
  OK(ort->KernelInfo_GetOutputCount(info, &outputs));
  printf("inputs %zu, outputs %zu\n", inputs, outputs);
  print_text("node", ort->KernelInfo_GetNodeName, info);
  print_text("domain", ort->KernelInfo_GetOperatorDomain, info);
  print_text("operator", ort->KernelInfo_GetOperatorType, info);
  int since = 0;
  OK(ort->KernelInfo_GetOperatorSinceVersion(info, &since));
  printf("since %d\n", since);
  OrtKeyValuePairs* entries = NULL;
  OK(ort->KernelInfo_GetConfigEntries(info, &entries));
  const char* value = ort->GetKeyValue(entries, "a.key");
  printf("a.key: %s\n", value ? value : "none");
  ort->ReleaseKeyValuePairs(entries);
  for (size_t i = 0; i < inputs; ++i) {
    char name[64];
    size_t size = sizeof name;
    OK(ort->KernelInfo_GetInputName(info, i, name, &size));
    OrtTypeInfo* type = NULL;
    OK(ort->KernelInfo_GetInputTypeInfo(info, i, &type));
    const OrtTensorTypeAndShapeInfo* tensor = NULL;
    int element = 0, is_constant = 0;
    OK(ort->CastTypeInfoToTensorInfo(type, &tensor));
    OK(ort->GetTensorElementType(tensor, &element));
    const OrtValue* constant = NULL;
    OK(ort->KernelInfoGetConstantInput_tensor(info, i, &is_constant, &constant));
    printf("input %zu: %s, type %d, constant %d, %d\n", i, name, element, is_constant, constant != NULL);
    ort->ReleaseTypeInfo(type);
  }
  char name[64];
  size_t size = sizeof name;
  OK(ort->KernelInfo_GetOutputName(info, 0, name, &size));
  OrtTypeInfo* type = NULL;
  OK(ort->KernelInfo_GetOutputTypeInfo(info, 0, &type));
  ort->ReleaseTypeInfo(type);
  printf("output: %s\n", name);
  CODE(ort->KernelInfo_GetInputName(info, 99, name, &size));
  CODE(ort->KernelInfo_GetOutputTypeInfo(info, 99, &type));
}

static void read_attributes(const OrtKernelInfo* info, OrtAllocator* allocator) {
  int64_t integer = 0, list[8];
  float numbers[8];
  char text[16];
  size_t size = sizeof text;
  OK(ort->KernelInfoGetAttribute_int64(info, "integer", &integer));
  OK(ort->KernelInfoGetAttribute_string(info, "text", text, &size));
  printf("integer %d, text %s (%zu)\n", (int)integer, text, size);
  size = 0;
  OK(ort->KernelInfoGetAttributeArray_float(info, "numbers", NULL, &size));
  OK(ort->KernelInfoGetAttributeArray_float(info, "numbers", numbers, &size));
  printf("numbers %zu: %g %g\n", size, numbers[0], numbers[1]);
  size = 1;
  CODE(ort->KernelInfoGetAttributeArray_float(info, "numbers", numbers, &size));
  size = 8;
  OK(ort->KernelInfoGetAttributeArray_int64(info, "integers", list, &size));
  printf("integers %zu: %d %d %d\n", size, (int)list[0], (int)list[1], (int)list[2]);
  OrtValue* tensor = NULL;
  OK(ort->KernelInfoGetAttribute_tensor(info, "tensor", allocator, &tensor));
  void* data = NULL;
  OK(ort->GetTensorMutableData(tensor, &data));
  printf("tensor %zu: %g\n", size_of(tensor), ((float*)data)[1]);
  ort->ReleaseValue(tensor);
  char** texts = NULL;
  OK(ort->KernelInfoGetAttributeArray_string(info, "texts", allocator, &texts, &size));
  printf("texts %zu: %s %s\n", size, texts[0], texts[1]);
  for (size_t i = 0; i < size; ++i) OK(ort->AllocatorFree(allocator, texts[i]));
  OK(ort->AllocatorFree(allocator, texts));
  float number = 0;
  CODE(ort->KernelInfoGetAttribute_float(info, "nothing", &number));
  CODE(ort->KernelInfoGetAttribute_float(info, "integer", &number));
}

static OrtStatus* scaled_create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                                void** kernel) {
  (void)op, (void)api;
  float scale = 0;
  OK(ort->KernelInfoGetAttribute_float(info, "scale", &scale));
  if (scale < 0) return ort->CreateStatus(2, "scale must not be negative");
  int64_t verbose = 0;
  OrtStatus* none = ort->KernelInfoGetAttribute_int64(info, "describe", &verbose);
  if (none) ort->ReleaseStatus(none);
  if (verbose) {
    OrtAllocator* allocator = NULL;
    describe(info);
    OK(ort->KernelInfoGetAllocator(info, 0, &allocator));
    read_attributes(info, allocator);
    ort->ReleaseAllocator(allocator);
    const OrtLogger* logger = NULL;
    int level = 0;
    OK(ort->KernelInfo_GetLogger(info, &logger));
    OK(ort->Logger_GetLoggingSeverityLevel(logger, &level));
    printf("level %d\n", level);
    OK(ort->Logger_LogMessage(logger, 3, "a message of a kernel", "file.c", 7, "function"));
    OrtKernelInfo* copy = NULL;
    OK(ort->CopyKernelInfo(info, &copy));
    size_t inputs = 0;
    OK(ort->KernelInfo_GetInputCount(copy, &inputs));
    ort->ReleaseKernelInfo(copy);
  }
  Scaled* made = malloc(sizeof *made);
  made->scale = scale;
  *kernel = made;
  return NULL;
}

typedef struct Work {
  const float* x;
  float* y;
  float scale, offset;
} Work;
static void scale_one(void* data, size_t i) {
  const Work* work = data;
  work->y[i] = work->scale * work->x[i] + work->offset;
}

static OrtStatus* scaled_compute(void* kernel, OrtKernelContext* context) {
  size_t inputs = 0, outputs = 0;
  OK(ort->KernelContext_GetInputCount(context, &inputs));
  OK(ort->KernelContext_GetOutputCount(context, &outputs));
  if (inputs > 2 || outputs != 1) return ort->CreateStatus(1, "wrong numbers");
  const OrtValue* x = input(context, 0);
  const OrtValue* offset = inputs > 1 ? input(context, 1) : NULL;
  OrtValue* y = output_like(context, 0, x);
  if (minor_version >= 30) {
    OrtValue* known = NULL;
    OK(ort->KernelContext_GetPreallocatedOutput(context, 0, &known));
    if (known != y) return ort->CreateStatus(1, "the output has other memory");
    OrtStatus* none = ort->KernelContext_GetPreallocatedOutput(context, 1, &known);
    if (!none || ort->GetErrorCode(none) != 2) return ort->CreateStatus(1, "there is no output 1");
    ort->ReleaseStatus(none);
  }
  void* stream = &stream;
  OK(ort->KernelContext_GetGPUComputeStream(context, &stream));
  OrtSyncStream* sync = NULL;
  OK(ort->KernelContext_GetSyncStream(context, &sync));
  void* resource = NULL;
  OrtStatus* refused = ort->KernelContext_GetResource(context, 1, 1, &resource);
  if (refused) ort->ReleaseStatus(refused);
  const OrtLogger* logger = NULL;
  OK(ort->KernelContext_GetLogger(context, &logger));
  OrtMemoryInfo* cpu = NULL;
  OK(ort->CreateCpuMemoryInfo(0, 0, &cpu));
  OrtAllocator* allocator = NULL;
  OK(ort->KernelContext_GetAllocator(context, cpu, &allocator));
  ort->ReleaseAllocator(allocator);
  void* scratch = NULL;
  OK(ort->KernelContext_GetScratchBuffer(context, cpu, 64, &scratch));
  memset(scratch, 1, 64);
  ort->ReleaseMemoryInfo(cpu);
  Work work = {.scale = ((Scaled*)kernel)->scale};
  const void* data = NULL;
  void* result = NULL;
  OK(ort->GetTensorMutableData((OrtValue*)x, (void**)&data));
  work.x = data;
  OK(ort->GetTensorMutableData(y, &result));
  work.y = result;
  if (offset) {
    OK(ort->GetTensorMutableData((OrtValue*)offset, (void**)&data));
    work.offset = *(const float*)data;
  }
  if (size_of(x) == 5) return ort->CreateStatus(2, "five is too much");
  return ort->KernelContext_ParallelFor(context, scale_one, size_of(x), 0, &work);
}

static OrtStatus* scaled_shapes(const OrtCustomOp* op, OrtShapeInferContext* context) {
  (void)op;
  size_t inputs = 0;
  OK(ort->ShapeInferContext_GetInputCount(context, &inputs));
  const OrtOpAttr* scale = NULL;
  OK(ort->ShapeInferContext_GetAttribute(context, "scale", &scale));
  float value = 0;
  size_t size = 0;
  OK(ort->ReadOpAttr(scale, 3, &value, sizeof value, &size));
  const OrtOpAttr* numbers = NULL;
  OrtStatus* none = ort->ShapeInferContext_GetAttribute(context, "tensor", &numbers);
  if (!none) {
    OrtValue* copy = NULL;
    OK(ort->OpAttr_GetTensorAttributeAsOrtValue(numbers, &copy));
    ort->ReleaseValue(copy);
  }
  ort->ReleaseStatus(none);
  OrtTensorTypeAndShapeInfo* info = NULL;
  OK(ort->ShapeInferContext_GetInputTypeShape(context, 0, &info));
  return ort->ShapeInferContext_SetOutputTypeShape(context, 0, info);
}

static const char* scaled_name(const OrtCustomOp* op) { return (void)op, "Scaled"; }
static const char* no_provider(const OrtCustomOp* op) { return (void)op, NULL; }
static int type_float(const OrtCustomOp* op, size_t i) { return (void)op, (void)i, kFloat; }
static int type_string(const OrtCustomOp* op, size_t i) { return (void)op, (void)i, kString; }
static size_t one(const OrtCustomOp* op) { return (void)op, (size_t)1; }
static size_t two(const OrtCustomOp* op) { return (void)op, (size_t)2; }
static int second_is_optional(const OrtCustomOp* op, size_t i) { return (void)op, i == 1; }
static int is_required(const OrtCustomOp* op, size_t i) { return (void)op, (void)i, 0; }
static int is_variadic(const OrtCustomOp* op, size_t i) { return (void)op, (void)i, 2; }
static int arity_one(const OrtCustomOp* op) { return (void)op, 1; }
static int memory_default(const OrtCustomOp* op, size_t i) { return (void)op, (void)i, 0; }
static int version_one(const OrtCustomOp* op) { return (void)op, 1; }
static int version_last(const OrtCustomOp* op) { return (void)op, 0x7fffffff; }

#define COMMON                                                                      \
  .GetExecutionProviderType = no_provider, .GetOutputCharacteristic = is_required,  \
  .GetInputMemoryType = memory_default, .GetVariadicInputMinArity = arity_one,      \
  .GetVariadicInputHomogeneity = arity_one, .GetVariadicOutputMinArity = arity_one, \
  .GetVariadicOutputHomogeneity = arity_one, .GetStartVersion = version_one, .GetEndVersion = version_last

static const OrtCustomOp scaled = {.version = 19,
                                   .GetName = scaled_name,
                                   .GetInputType = type_float,
                                   .GetInputTypeCount = two,
                                   .GetOutputType = type_float,
                                   .GetOutputTypeCount = one,
                                   .KernelDestroy = free,
                                   .GetInputCharacteristic = second_is_optional,
                                   .CreateKernelV2 = scaled_create,
                                   .KernelComputeV2 = scaled_compute,
                                   .InferOutputShapeFn = scaled_shapes,
                                   COMMON};

// ---- ScaledGrad: the gradient of Scaled, dx = scale * dy ----

static const char* gradient_name(const OrtCustomOp* op) { return (void)op, "ScaledGrad"; }
static const OrtCustomOp scaled_gradient = {.version = 19,
                                            .GetName = gradient_name,
                                            .GetInputType = type_float,
                                            .GetInputTypeCount = one,
                                            .GetOutputType = type_float,
                                            .GetOutputTypeCount = one,
                                            .KernelDestroy = free,
                                            .GetInputCharacteristic = is_required,
                                            .CreateKernelV2 = scaled_create,
                                            .KernelComputeV2 = scaled_compute,
                                            COMMON};

// ---- Total: the sum of any number of inputs, of an old version of the layout; runs Add of the library ----

typedef struct Total {
  OrtOp* add;
} Total;

static void* total_create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info) {
  (void)op, (void)api;
  Total* made = malloc(sizeof *made);
  const char* names[] = {"T"};
  const int types[] = {kFloat};
  OK(ort->CreateOp(info, "Add", "", 14, names, types, 1, NULL, 0, 2, 1, &made->add));
  return made;
}
static void total_destroy(void* kernel) {
  ort->ReleaseOp(((Total*)kernel)->add);
  free(kernel);
}
static void total_compute(void* kernel, OrtKernelContext* context) {
  size_t inputs = 0;
  OK(ort->KernelContext_GetInputCount(context, &inputs));
  OrtValue* y = output_like(context, 0, input(context, 0));
  void *to = NULL, *from = NULL;
  OK(ort->GetTensorMutableData(y, &to));
  OK(ort->GetTensorMutableData((OrtValue*)input(context, 0), &from));
  memcpy(to, from, size_of(y) * sizeof(float));
  for (size_t i = 1; i < inputs; ++i)
    OK(ort->InvokeOp(context, ((Total*)kernel)->add, (const OrtValue*[]){y, input(context, i)}, 2,
                     (OrtValue*[]){y}, 1));
}
static const char* total_name(const OrtCustomOp* op) { return (void)op, "Total"; }
static const OrtCustomOp total = {.version = 14,
                                  .CreateKernel = total_create,
                                  .GetName = total_name,
                                  .GetInputType = type_float,
                                  .GetInputTypeCount = one,
                                  .GetOutputType = type_float,
                                  .GetOutputTypeCount = one,
                                  .KernelCompute = total_compute,
                                  .KernelDestroy = total_destroy,
                                  .GetInputCharacteristic = is_variadic,
                                  COMMON};

// ---- Shout: strings in, strings out ----

static void* nothing_create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info) {
  return (void)op, (void)api, (void)info, malloc(1);
}
static void shout_compute(void* kernel, OrtKernelContext* context) {
  (void)kernel;
  const OrtValue* x = input(context, 0);
  OrtValue* y = output_like(context, 0, x);
  for (size_t i = 0; i < size_of(x); ++i) {
    size_t length = 0;
    OK(ort->GetStringTensorElementLength(x, i, &length));
    char* text = calloc(length + 2, 1);
    OK(ort->GetStringTensorElement(x, length, i, text));
    text[length] = '!';
    OK(ort->FillStringTensorElement(y, text, i));
    free(text);
  }
}
static const char* shout_name(const OrtCustomOp* op) { return (void)op, "Shout"; }
static const OrtCustomOp shout = {.version = 16,
                                  .CreateKernel = nothing_create,
                                  .GetName = shout_name,
                                  .GetInputType = type_string,
                                  .GetInputTypeCount = one,
                                  .GetOutputType = type_string,
                                  .GetOutputTypeCount = one,
                                  .KernelCompute = shout_compute,
                                  .KernelDestroy = free,
                                  .GetInputCharacteristic = is_required,
                                  COMMON};

__attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                    const OrtApiBase* base) {
  static OrtCustomOpDomain* domain;  // lives as long as the library
  minor_version = atoi(base->GetVersionString() + 2);
  ort = base->GetApi(minor_version < 30 ? 28 : 30);
  if (!domain) {
    OK(ort->CreateCustomOpDomain("test.custom", &domain));
    const OrtCustomOp* all[] = {&scaled, &scaled_gradient, &total, &shout};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) OK(ort->CustomOpDomain_Add(domain, all[i]));
  }
  return ort->AddCustomOpDomain(options, domain);
}
