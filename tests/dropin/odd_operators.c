// Custom operators of unusual signatures, in the program itself, run on the library named first. Arguments:
// the library, a folder of models. Prints for each model whether a session takes it and what its outputs are.
#include "custom_op.h"
#include "program.h"

enum { kRequired = 0, kOptional = 1, kVariadic = 2 };
enum { kFloat = 1, kInt64 = 7 };

static OrtEnv* env;
static OrtAllocator* allocator;

// What an operator states about itself; the functions below read it.
typedef struct Op {
  OrtCustomOp base;  // first, so that one pointer is both
  const char* name;
  size_t inputs, outputs;
  int input_types[4], output_types[4];
  int input_kinds[4], output_kinds[4];
  int least_inputs, least_outputs, same_inputs, same_outputs;
  int first_version, last_version;
  int factor;
} Op;

static const Op* of(const OrtCustomOp* base) { return (const Op*)base; }
static const char* name(const OrtCustomOp* op) { return of(op)->name; }
static const char* provider(const OrtCustomOp* op) { return (void)op, "CPUExecutionProvider"; }
static size_t input_count(const OrtCustomOp* op) { return of(op)->inputs; }
static size_t output_count(const OrtCustomOp* op) { return of(op)->outputs; }
static int input_type(const OrtCustomOp* op, size_t i) { return of(op)->input_types[i]; }
static int output_type(const OrtCustomOp* op, size_t i) { return of(op)->output_types[i]; }
static int input_kind(const OrtCustomOp* op, size_t i) { return of(op)->input_kinds[i]; }
static int output_kind(const OrtCustomOp* op, size_t i) { return of(op)->output_kinds[i]; }
static int least_inputs(const OrtCustomOp* op) { return of(op)->least_inputs; }
static int least_outputs(const OrtCustomOp* op) { return of(op)->least_outputs; }
static int same_inputs(const OrtCustomOp* op) { return of(op)->same_inputs; }
static int same_outputs(const OrtCustomOp* op) { return of(op)->same_outputs; }
static int memory_type(const OrtCustomOp* op, size_t i) { return (void)op, (void)i, 0; }
static int first_version(const OrtCustomOp* op) { return of(op)->first_version; }
static int last_version(const OrtCustomOp* op) { return of(op)->last_version; }
static size_t no_pairs(int** a, int** b) { return *a = NULL, *b = NULL, 0; }
static void free_pairs(int* a, int* b) { (void)a, (void)b; }

typedef struct Kernel {
  const Op* op;
  size_t inputs, outputs;
} Kernel;

static void* create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info) {
  (void)api;
  Kernel* kernel = malloc(sizeof *kernel);
  kernel->op = of(op);
  OK(ort->KernelInfo_GetInputCount(info, &kernel->inputs));
  OK(ort->KernelInfo_GetOutputCount(info, &kernel->outputs));
  printf("  %s: %zu inputs, %zu outputs\n", kernel->op->name, kernel->inputs, kernel->outputs);
  for (size_t i = 0; i < kernel->inputs + kernel->outputs; ++i) {
    char text[64] = "?";
    size_t size = sizeof text;
    const int is_input = i < kernel->inputs;
    const size_t at = is_input ? i : i - kernel->inputs;
    OrtTypeInfo* type = NULL;
    OK(is_input ? ort->KernelInfo_GetInputName(info, at, text, &size)
                : ort->KernelInfo_GetOutputName(info, at, text, &size));
    const int code = code_of(is_input ? ort->KernelInfo_GetInputTypeInfo(info, at, &type)
                                      : ort->KernelInfo_GetOutputTypeInfo(info, at, &type));
    int element = 0;
    const OrtTensorTypeAndShapeInfo* tensor = NULL;
    if (type) OK(ort->CastTypeInfoToTensorInfo(type, &tensor));
    if (tensor) OK(ort->GetTensorElementType(tensor, &element));
    if (type) ort->ReleaseTypeInfo(type);
    printf("  %s '%s': code %d, type %d\n", is_input ? "input" : "output", text, code, element);
  }
  return kernel;
}

static size_t count_of(const OrtValue* value, int* element, int64_t* dims, size_t* rank) {
  OrtTensorTypeAndShapeInfo* info = NULL;
  size_t count = 0;
  OK(ort->GetTensorTypeAndShape(value, &info));
  OK(ort->GetTensorElementType(info, element));
  OK(ort->GetDimensionsCount(info, rank));
  OK(ort->GetDimensions(info, dims, *rank));
  OK(ort->GetTensorShapeElementCount(info, &count));
  ort->ReleaseTensorTypeAndShapeInfo(info);
  return count;
}

// Output o is input o (or the last one that is there) times the factor.
static OrtStatus* compute(void* state, OrtKernelContext* context) {
  const Kernel* kernel = state;
  size_t inputs = 0, outputs = 0;
  OK(ort->KernelContext_GetInputCount(context, &inputs));
  OK(ort->KernelContext_GetOutputCount(context, &outputs));
  printf("  run with %zu inputs, %zu outputs, there:", inputs, outputs);
  const OrtValue* last = NULL;
  for (size_t i = 0; i < inputs; ++i) {
    const OrtValue* value = NULL;
    OK(ort->KernelContext_GetInput(context, i, &value));
    printf(" %d", value != NULL);
    if (value) last = value;
  }
  printf("\n");
  for (size_t o = 0; o < outputs; ++o) {
    const OrtValue* from = NULL;
    if (o < inputs) OK(ort->KernelContext_GetInput(context, o, &from));
    if (!from) from = last;
    int element = 0;
    int64_t dims[8];
    size_t rank = 0;
    const size_t count = count_of(from, &element, dims, &rank);
    OrtValue* to = NULL;
    OK(ort->KernelContext_GetOutput(context, o, dims, rank, &to));
    printf("  output %zu: %d\n", o, to != NULL);
    if (!to) continue;
    void *target = NULL, *source = NULL;
    OK(ort->GetTensorMutableData((OrtValue*)from, &source));
    OK(ort->GetTensorMutableData(to, &target));
    int wanted = 0;
    count_of(to, &wanted, dims, &rank);
    for (size_t i = 0; i < count; ++i) {
      const int64_t x = element == kFloat ? (int64_t)((float*)source)[i] : ((int64_t*)source)[i];
      if (wanted == kFloat) ((float*)target)[i] = (float)(x * kernel->op->factor);
      if (wanted == kInt64) ((int64_t*)target)[i] = x * kernel->op->factor;
    }
  }
  return NULL;
}
static void compute_without_status(void* state, OrtKernelContext* context) {
  OrtStatus* status = compute(state, context);
  if (status) ort->ReleaseStatus(status);
}

static void print_value(const char* what, OrtValue* value) {
  int element = 0;
  int64_t dims[8];
  size_t rank = 0;
  void* data = NULL;
  const size_t count = count_of(value, &element, dims, &rank);
  OK(ort->GetTensorMutableData(value, &data));
  printf("  %s: type %d:", what, element);
  for (size_t i = 0; i < count; ++i)
    printf(" %g", element == kFloat ? (double)((float*)data)[i] : (double)((int64_t*)data)[i]);
  printf("\n");
}

static OrtValue* filled(int element, float first) {
  const int64_t three = 3;
  OrtValue* value = NULL;
  void* data = NULL;
  OK(ort->CreateTensorAsOrtValue(allocator, &three, 1, element, &value));
  OK(ort->GetTensorMutableData(value, &data));
  for (int i = 0; i < 3; ++i) {
    if (element == kFloat) ((float*)data)[i] = first + (float)i;
    if (element == kInt64) ((int64_t*)data)[i] = (int64_t)first + i;
  }
  return value;
}

// Runs a model with inputs of the types that it declares.
static void run(OrtSession* session) {
  size_t inputs = 0, outputs = 0;
  char *in[8] = {0}, *out[8] = {0};
  OrtValue *values[8] = {0}, *results[8] = {0};
  OK(ort->SessionGetInputCount(session, &inputs));
  OK(ort->SessionGetOutputCount(session, &outputs));
  for (size_t i = 0; i < inputs; ++i) {
    OrtTypeInfo* type = NULL;
    const OrtTensorTypeAndShapeInfo* tensor = NULL;
    int element = 0;
    OK(ort->SessionGetInputName(session, i, allocator, &in[i]));
    OK(ort->SessionGetInputTypeInfo(session, i, &type));
    OK(ort->CastTypeInfoToTensorInfo(type, &tensor));
    OK(ort->GetTensorElementType(tensor, &element));
    ort->ReleaseTypeInfo(type);
    values[i] = filled(element, (float)(10 * i + 1));
  }
  for (size_t o = 0; o < outputs; ++o) OK(ort->SessionGetOutputName(session, o, allocator, &out[o]));
  CODE(ort->Run(session, NULL, (const char* const*)in, (const OrtValue* const*)values, inputs,
                (const char* const*)out, outputs, results));
  for (size_t o = 0; o < outputs; ++o) {
    if (results[o]) print_value(out[o], results[o]);
    ort->ReleaseValue(results[o]);
    OK(ort->AllocatorFree(allocator, out[o]));
  }
  for (size_t i = 0; i < inputs; ++i) {
    ort->ReleaseValue(values[i]);
    OK(ort->AllocatorFree(allocator, in[i]));
  }
}

static void try_model(const char* folder, const char* model, Op* const* ops, size_t count) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s.onnx", folder, model);
  printf("%s\n", model);
  if (getenv("SAY")) fprintf(stderr, "%s\n", model);
  OrtSessionOptions* options = NULL;
  OrtCustomOpDomain* domain = NULL;
  OrtSession* session = NULL;
  OK(ort->CreateSessionOptions(&options));
  OK(ort->CreateCustomOpDomain("test.odd", &domain));
  for (size_t i = 0; i < count; ++i) OK(ort->CustomOpDomain_Add(domain, &ops[i]->base));
  const int code = code_of(ort->AddCustomOpDomain(options, domain));
  printf("  registered: code %d\n", code);
  printf("  created: code %d\n", code_of(ort->CreateSession(env, path, options, &session)));
  if (session) run(session);
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);
  ort->ReleaseCustomOpDomain(domain);
}

static Op* with(Op op) {
  Op* made = malloc(sizeof *made);
  *made = op;
  made->base = (OrtCustomOp){.version = 24,
                             .CreateKernel = create,
                             .GetName = name,
                             .GetExecutionProviderType = provider,
                             .GetInputType = input_type,
                             .GetInputTypeCount = input_count,
                             .GetOutputType = output_type,
                             .GetOutputTypeCount = output_count,
                             .KernelCompute = compute_without_status,
                             .KernelDestroy = free,
                             .GetInputCharacteristic = input_kind,
                             .GetOutputCharacteristic = output_kind,
                             .GetInputMemoryType = memory_type,
                             .GetVariadicInputMinArity = least_inputs,
                             .GetVariadicInputHomogeneity = same_inputs,
                             .GetVariadicOutputMinArity = least_outputs,
                             .GetVariadicOutputHomogeneity = same_outputs,
                             .GetStartVersion = first_version,
                             .GetEndVersion = last_version,
                             .GetMayInplace = no_pairs,
                             .ReleaseMayInplace = free_pairs,
                             .GetAliasMap = no_pairs,
                             .ReleaseAliasMap = free_pairs};
  if (made->first_version == 0) made->first_version = 1;
  if (made->last_version == 0) made->last_version = 0x7fffffff;
  if (made->factor == 0) made->factor = 2;
  return made;
}
static Op* lite(Op* op) {  // an operator that reports by status, over a kernel created the older way
  op->base.KernelCompute = NULL;
  op->base.KernelComputeV2 = compute;
  return op;
}
#define OP(...) with((Op){__VA_ARGS__})
#define TRY(model, ...) \
  try_model(folder, model, (Op* const[]){__VA_ARGS__}, sizeof((Op* const[]){__VA_ARGS__}) / sizeof(Op*))

int main(int count, char** arguments) {
  if (count < 3) return 2;
  open_library(arguments[1]);
  const char* folder = arguments[2];
  OK(ort->CreateEnv(4, "odd", &env));
  OK(ort->GetAllocatorWithDefaultOptions(&allocator));
  Op* floats =
      OP(.name = "Twice", .inputs = 1, .outputs = 1, .input_types = {kFloat}, .output_types = {kFloat});
  Op* whole = OP(.name = "Twice", .inputs = 1, .outputs = 1, .input_types = {kInt64},
                 .output_types = {kInt64}, .factor = 3);
  Op* pair = OP(.name = "Twice", .inputs = 2, .outputs = 1, .input_types = {kInt64, kInt64},
                .output_types = {kInt64});
  Op* perhaps = OP(.name = "Twice", .inputs = 1, .outputs = 1, .input_types = {kInt64},
                   .output_types = {kInt64}, .input_kinds = {kOptional});
  TRY("float", floats);
  TRY("not_imported", floats, whole);
  TRY("float", floats, whole);
  TRY("integer", floats, whole);
  TRY("integer", floats);
  TRY("double", floats, whole);
  TRY("both", floats, whole);
  TRY("float", floats, pair);
  TRY("float", pair, floats);
  TRY("float", floats, perhaps);
  Op* any = OP(.name = "Any", .inputs = 1, .outputs = 1, .input_kinds = {kVariadic},
               .output_kinds = {kVariadic}, .least_inputs = 2, .least_outputs = 2);
  Op* same =
      OP(.name = "Any", .inputs = 1, .outputs = 1, .input_kinds = {kVariadic}, .output_kinds = {kVariadic},
         .least_inputs = 2, .least_outputs = 2, .same_inputs = 1, .same_outputs = 1);
  Op* first = OP(.name = "Any", .inputs = 2, .outputs = 2, .input_kinds = {kVariadic, kRequired},
                 .output_kinds = {kVariadic, kRequired}, .least_inputs = 1, .least_outputs = 1);
  const char* const variadic[] = {"mixed",      "mixed_inner", "equal",         "equal_inner",
                                  "few_inputs", "few_outputs", "mixed_outputs", "missing"};
  for (size_t i = 0; i < sizeof variadic / sizeof *variadic; ++i) {
    TRY(variadic[i], any);
    TRY(variadic[i], same);
  }
  TRY("equal", first);

  Op* options = lite(OP(.name = "Options", .inputs = 3, .outputs = 2, .input_types = {kFloat, kFloat, kInt64},
                        .output_types = {kFloat, kInt64}, .input_kinds = {kOptional, kOptional, kOptional},
                        .output_kinds = {kOptional, kOptional}));
  Op* strict = OP(.name = "Options", .inputs = 3, .outputs = 2, .input_types = {kFloat, kFloat, kInt64},
                  .output_types = {kFloat, kInt64});
  const char* const optional[] = {"all", "middle", "last", "one_output", "only_second_output", "too_many"};
  for (size_t i = 0; i < sizeof optional / sizeof *optional; ++i) {
    TRY(optional[i], options);
    TRY(optional[i], strict);
  }
  Op* untyped = OP(.name = "Options", .inputs = 3, .outputs = 2, .input_types = {0, kFloat, kInt64},
                   .output_types = {0, kInt64});
  TRY("all", untyped);
  ort->ReleaseEnv(env);
  return 0;
}
