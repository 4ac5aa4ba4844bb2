// Models that are built in memory, or extended before they run. Arguments: the library, a model that reads x
// and computes y, a folder for files.
#include "program.h"

struct OrtAllocator {  // as far as a program of 1.19 knows it
  uint32_t version;
  void* (*Alloc)(struct OrtAllocator* self, size_t size);
  void (*Free)(struct OrtAllocator* self, void* p);
  const struct OrtMemoryInfo* (*Info)(const struct OrtAllocator* self);
  void* (*Reserve)(struct OrtAllocator* self, size_t size);
};

enum { kInteger = 1, kFloat = 3 };  // kinds of attributes

static const OrtModelEditorApi* editor;
static OrtEnv* env;
static OrtMemoryInfo* memory;

static OrtTypeInfo* tensor_type(int element, const int64_t* dims, size_t rank, const char* symbol) {
  OrtTensorTypeAndShapeInfo* shape = NULL;
  OK(ort->CreateTensorTypeAndShapeInfo(&shape));
  OK(ort->SetTensorElementType(shape, element));
  OK(ort->SetDimensions(shape, dims, rank));
  if (symbol) {
    const char* symbols[4] = {symbol, "", "", ""};
    OK(ort->SetSymbolicDimensions(shape, symbols, rank));
  }
  OrtTypeInfo* type = NULL;
  OK(editor->CreateTensorTypeInfo(shape, &type));
  ort->ReleaseTensorTypeAndShapeInfo(shape);
  return type;
}

static OrtValueInfo* value_info(const char* name, int element, const int64_t* dims, size_t rank,
                                const char* symbol) {
  OrtTypeInfo* type = tensor_type(element, dims, rank, symbol);
  OrtValueInfo* info = NULL;
  OK(editor->CreateValueInfo(name, type, &info));
  ort->ReleaseTypeInfo(type);
  return info;
}

static OrtOpAttr* attribute(const char* name, const void* data, int length, int type) {
  OrtOpAttr* made = NULL;
  OK(ort->CreateOpAttr(name, data, length, type, &made));
  return made;
}

static OrtNode* node(const char* type, const char* domain, const char* name, const char* const* inputs,
                     size_t input_count, const char* output, OrtOpAttr* given) {
  OrtNode* made = NULL;
  OrtOpAttr* attributes[1] = {given};
  OK(editor->CreateNode(type, domain, name, inputs, input_count, &output, 1, attributes, given ? 1 : 0,
                        &made));
  if (attributes[0]) printf("CreateNode left the attribute to its caller\n");
  return made;
}

static OrtValue* numbers(float* data, const int64_t* dims, size_t rank) {
  size_t bytes = sizeof(float);
  for (size_t i = 0; i < rank; ++i) bytes *= (size_t)dims[i];
  OrtValue* value = NULL;
  OK(ort->CreateTensorWithDataAsOrtValue(memory, data, bytes, dims, rank, 1, &value));
  return value;
}

static OrtModel* model_of(OrtGraph* graph, const char* domain, int version) {
  OrtModel* model = NULL;
  OK(editor->CreateModel(&domain, &version, 1, &model));
  OK(editor->AddGraphToModel(model, graph));
  return model;
}

static void set_ports(OrtGraph* graph, OrtValueInfo* input, OrtValueInfo* output) {
  OK(editor->SetGraphInputs(graph, &input, 1));
  OK(editor->SetGraphOutputs(graph, &output, 1));
  printf("ports taken over: %d %d\n", !input, !output);
}

static void print_numbers(const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* shape = NULL;
  OK(ort->GetTensorTypeAndShape(value, &shape));
  size_t count = 0;
  OK(ort->GetTensorShapeElementCount(shape, &count));
  ort->ReleaseTensorTypeAndShapeInfo(shape);
  const void* data = NULL;
  OK(ort->GetTensorData(value, &data));
  for (size_t i = 0; i < count; ++i) printf("%s%g", i ? " " : "  ", ((const float*)data)[i]);
  printf("\n");
}

static void run(OrtSession* session, const char* input, const OrtValue* value, const char* output) {
  OrtValue* result = NULL;
  const int code = code_of(ort->Run(session, NULL, &input, &value, 1, &output, 1, &result));
  printf("run: code %d\n", code);
  if (result) print_numbers(result);
  ort->ReleaseValue(result);
}

static void print_type(const OrtTypeInfo* type) {
  int kind = 0, element = 0;
  OK(ort->GetOnnxTypeFromTypeInfo(type, &kind));
  const OrtTensorTypeAndShapeInfo* tensor = NULL;
  OK(ort->CastTypeInfoToTensorInfo(type, &tensor));
  printf("kind %d", kind);
  if (tensor) {
    size_t rank = 0;
    int64_t dims[8];
    const char* symbols[8];
    OK(ort->GetTensorElementType(tensor, &element));
    OK(ort->GetDimensionsCount(tensor, &rank));
    OK(ort->GetDimensions(tensor, dims, rank));
    OK(ort->GetSymbolicDimensions(tensor, symbols, rank));
    printf(" element %d:", element);
    for (size_t i = 0; i < rank; ++i) printf(" %d'%s'", (int)dims[i], symbols[i]);
  }
  printf("\n");
}

static void print_ports(const OrtSession* session) {
  OrtAllocator* allocator = NULL;
  OK(ort->GetAllocatorWithDefaultOptions(&allocator));
  size_t inputs = 0, outputs = 0;
  OK(ort->SessionGetInputCount(session, &inputs));
  OK(ort->SessionGetOutputCount(session, &outputs));
  for (size_t i = 0; i < inputs + outputs; ++i) {
    char* name = NULL;
    OrtTypeInfo* type = NULL;
    if (i < inputs) {
      OK(ort->SessionGetInputName(session, i, allocator, &name));
      OK(ort->SessionGetInputTypeInfo(session, i, &type));
    } else {
      OK(ort->SessionGetOutputName(session, i - inputs, allocator, &name));
      OK(ort->SessionGetOutputTypeInfo(session, i - inputs, &type));
    }
    printf("%s %s: ", i < inputs ? "input" : "output", name);
    print_type(type);
    ort->ReleaseTypeInfo(type);
    allocator->Free(allocator, name);
  }
}

static void types(void) {
  const int64_t dims[] = {2, -1}, wrong[] = {-2, 2};
  OrtTensorTypeAndShapeInfo* shape = NULL;
  OrtTypeInfo *tensor = NULL, *made = NULL, *inner = NULL;
  OK(ort->CreateTensorTypeAndShapeInfo(&shape));
  CODE(ort->SetTensorElementType(shape, 1));
  CODE(ort->SetDimensions(shape, dims, 2));
  CODE(editor->CreateTensorTypeInfo(shape, &tensor));
  print_type(tensor);
  CODE(editor->CreateSparseTensorTypeInfo(shape, &made));
  print_type(made);
  OrtValueInfo* info = NULL;
  CODE(editor->CreateValueInfo("v", made, &info));
  ort->ReleaseTypeInfo(made);
  CODE(editor->CreateSequenceTypeInfo(tensor, &made));
  print_type(made);
  const OrtSequenceTypeInfo* sequence = NULL;
  OK(ort->CastTypeInfoToSequenceTypeInfo(made, &sequence));
  OK(ort->GetSequenceElementType(sequence, &inner));
  print_type(inner);
  ort->ReleaseTypeInfo(inner);
  CODE(editor->CreateValueInfo("v", made, &info));
  ort->ReleaseTypeInfo(made);
  CODE(editor->CreateMapTypeInfo(7, tensor, &made));
  print_type(made);
  const OrtMapTypeInfo* map = NULL;
  OK(ort->CastTypeInfoToMapTypeInfo(made, &map));
  int key = 0;
  OK(ort->GetMapKeyType(map, &key));
  OK(ort->GetMapValueType(map, &inner));
  printf("key %d, value ", key);
  print_type(inner);
  ort->ReleaseTypeInfo(inner);
  ort->ReleaseTypeInfo(made);
  CODE(editor->CreateOptionalTypeInfo(tensor, &made));
  print_type(made);
  const OrtOptionalTypeInfo* optional = NULL;
  OK(ort->CastTypeInfoToOptionalTypeInfo(made, &optional));
  OK(ort->GetOptionalContainedTypeInfo(optional, &inner));
  print_type(inner);
  ort->ReleaseTypeInfo(inner);
  ort->ReleaseTypeInfo(made);
  CODE(editor->CreateValueInfo("", tensor, &info));
  CODE(editor->CreateValueInfo(NULL, tensor, &info));
  CODE(editor->CreateValueInfo("v", NULL, &info));
  CODE(editor->CreateValueInfo("v", tensor, &info));
  const char* name = NULL;
  const OrtTypeInfo* stated = NULL;
  CODE(ort->GetValueInfoName(info, &name));
  CODE(ort->GetValueInfoTypeInfo(info, &stated));
  printf("%s: ", name);
  print_type(stated);
  ort->ReleaseValueInfo(info);
  ort->ReleaseTypeInfo(tensor);
  CODE(ort->SetDimensions(shape, wrong, 2));
  CODE(editor->CreateTensorTypeInfo(shape, &tensor));
  ort->ReleaseTypeInfo(tensor);
  ort->ReleaseTensorTypeAndShapeInfo(shape);
  ort->ReleaseValueInfo(NULL);
  ort->ReleaseNode(NULL);
  ort->ReleaseGraph(NULL);
  ort->ReleaseModel(NULL);
}

static int frees;
static void* no_memory(OrtAllocator* self, size_t size) {
  (void)self, (void)size;
  return NULL;
}
static void count_free(OrtAllocator* self, void* p) {
  (void)self, (void)p;
  ++frees;
}
static const OrtMemoryInfo* where(const OrtAllocator* self) {
  (void)self;
  return memory;
}
static OrtAllocator owner = {19, no_memory, count_free, where, no_memory};

// z = clip(2 x w, 400, 900), with weights that the session reads where they are.
static OrtModel* product(float* weights, int clipped) {
  const int64_t xs[] = {-1, 4}, ws[] = {4, 8}, zs[] = {-1, 8};
  const char* product_inputs[] = {"x", "w"};
  const char* clip_inputs[] = {"h", "least", "most"};
  const float alpha = 2, least = 400, most = 900;
  OrtGraph* graph = NULL;
  OK(editor->CreateGraph(&graph));
  set_ports(graph, value_info("x", 1, xs, 2, "rows"), value_info("z", 1, zs, 2, "rows"));
  if (clipped) {  // before the node whose result it reads
    OK(editor->AddNodeToGraph(graph, node("Clip", "", "clip", clip_inputs, 3, "z", NULL)));
    OK(editor->AddNodeToGraph(graph, node("Constant", "", "least", NULL, 0, "least",
                                          attribute("value", &least, sizeof least, kFloat))));
    OK(editor->AddNodeToGraph(
        graph, node("Constant", "", "most", NULL, 0, "most", attribute("value_float", &most, 1, kFloat))));
  }
  OrtNode* gemm = node("Gemm", "ai.onnx", "gemm", product_inputs, 2, clipped ? "h" : "z",
                       attribute("alpha", &alpha, 1, kFloat));
  OK(editor->AddNodeToGraph(graph, gemm));
  for (int i = 0; i < 32; ++i) weights[i] = (float)(i + 1);
  OrtValue* w = NULL;
  OK(ort->CreateTensorWithDataAndDeleterAsOrtValue(&owner, weights, 128, ws, 2, 1, &w));
  OK(editor->AddInitializerToGraph(graph, "w", w, true));
  return model_of(graph, "ai.onnx", 18);
}

static void build(int clipped, const char* folder) {
  static float weights[32];
  float xs[] = {1, 2, 3, 4, 8, 7, 6, 5, 9, 3, 5, 7};
  const int64_t dims[] = {3, 4};
  char path[4096];
  snprintf(path, sizeof path, "%s/built%d.onnx", folder, clipped);
  OrtModel* model = product(weights, clipped);
  OrtSessionOptions* options = NULL;
  OK(ort->CreateSessionOptions(&options));
  OK(ort->SetOptimizedModelFilePath(options, path));
  OK(ort->SetSessionGraphOptimizationLevel(options, 0));
  OrtSession *session = NULL, *second = NULL, *from_file = NULL;
  CODE(editor->CreateSessionFromModel(env, model, options, &session));
  OrtSessionOptions* plain = NULL;
  OK(ort->CreateSessionOptions(&plain));
  CODE(editor->CreateSessionFromModel(env, model, plain, &second));
  const OrtCompileApi* compiler = ort->GetCompileApi();
  OrtModelCompilationOptions* compilation = NULL;
  OrtSession* compiled = NULL;
  void* bytes = NULL;
  size_t size = 0;
  OrtAllocator* cpu = NULL;
  OK(ort->GetAllocatorWithDefaultOptions(&cpu));
  OK(compiler->CreateModelCompilationOptionsFromSessionOptions(env, plain, &compilation));
  CODE(compiler->ModelCompilationOptions_SetInputModel(compilation, model));
  CODE(compiler->ModelCompilationOptions_SetOutputModelBuffer(compilation, cpu, &bytes, &size));
  CODE(compiler->CompileModel(env, compilation));
  compiler->ReleaseModelCompilationOptions(compilation);
  if (bytes) {
    OK(ort->CreateSessionFromArray(env, bytes, size, plain, &compiled));
    OK(ort->AllocatorFree(cpu, bytes));
  }
  ort->ReleaseModel(model);
  print_ports(session);
  int opset = 0;
  CODE(editor->SessionGetOpsetForDomain(session, "", &opset));
  printf("opset %d\n", opset);
  CODE(editor->SessionGetOpsetForDomain(session, "never.heard", &opset));
  CODE(editor->SessionGetOpsetForDomain(session, "com.microsoft", &opset));
  OrtModelMetadata* metadata = NULL;
  OrtAllocator* allocator = NULL;
  char* name = NULL;
  OK(ort->GetAllocatorWithDefaultOptions(&allocator));
  OK(ort->SessionGetModelMetadata(session, &metadata));
  OK(ort->ModelMetadataGetGraphName(metadata, allocator, &name));
  printf("graph '%s'\n", name);
  allocator->Free(allocator, name);
  ort->ReleaseModelMetadata(metadata);
  OrtValue* x = numbers(xs, dims, 2);
  run(session, "x", x, "z");
  run(second, "x", x, "z");
  if (compiled) run(compiled, "x", x, "z");
  ort->ReleaseSession(compiled);
  printf("freed %d\n", frees);
  ort->ReleaseSession(session);
  ort->ReleaseSession(second);
  printf("freed %d\n", frees);
  OK(ort->CreateSession(env, path, plain, &from_file));  // what was written
  run(from_file, "x", x, "z");
  ort->ReleaseSession(from_file);
  ort->ReleaseValue(x);
  ort->ReleaseSessionOptions(options);
  ort->ReleaseSessionOptions(plain);
}

// A graph y = Add(x, other), with the ports that are asked for.
static OrtGraph* addition(const char* other, int ports) {
  const int64_t dims[] = {4};
  const char* inputs[] = {"x", other};
  OrtGraph* graph = NULL;
  OK(editor->CreateGraph(&graph));
  if (ports) set_ports(graph, value_info("x", 1, dims, 1, NULL), value_info("y", 1, dims, 1, NULL));
  OK(editor->AddNodeToGraph(graph, node("Add", "", "add", inputs, 2, "y", NULL)));
  return graph;
}

static void refuse(const char* what, OrtModel* model) {
  OrtSession* session = NULL;
  const int code = code_of(editor->CreateSessionFromModel(env, model, NULL, &session));
  printf("%s: code %d\n", what, code);
  ort->ReleaseSession(session);
  ort->ReleaseModel(model);
}

static void invalid_models(void) {
  OrtModel* model = NULL;
  OK(editor->CreateModel(NULL, NULL, 0, &model));
  refuse("no graph", model);
  OK(editor->CreateModel(NULL, NULL, 0, &model));
  OK(editor->AddGraphToModel(model, addition("x", 1)));
  refuse("no operator sets", model);
  refuse("another operator set", model_of(addition("x", 1), "com.microsoft", 1));
  refuse("an operator set of the future", model_of(addition("x", 1), "", 1000));
  refuse("a missing value", model_of(addition("missing", 1), "", 18));
  refuse("a cycle", model_of(addition("y", 1), "", 18));
  refuse("valid", model_of(addition("x", 1), "", 18));
  OrtGraph* graph = NULL;
  OK(editor->CreateGraph(&graph));
  refuse("an empty graph", model_of(graph, "", 18));
  graph = addition("x", 1);
  const char* x[] = {"x"};
  OK(editor->AddNodeToGraph(graph, node("Relu", "", "again", x, 1, "y", NULL)));
  refuse("a value computed twice", model_of(graph, "", 18));
  graph = addition("x", 1);
  OK(editor->AddNodeToGraph(graph, node("NeverHeard", "", "odd", x, 1, "z", NULL)));
  refuse("an unknown operator", model_of(graph, "", 18));
  graph = addition("x", 1);
  OK(editor->AddNodeToGraph(graph, node("Gelu", "com.microsoft", "gelu", x, 1, "z", NULL)));
  refuse("a domain that the library knows", model_of(graph, "", 18));
  graph = addition("x", 1);
  OK(editor->AddNodeToGraph(graph, node("Gelu", "never.heard", "gelu", x, 1, "z", NULL)));
  refuse("a domain that nobody knows", model_of(graph, "", 18));
}

static void owned_initializers(OrtGraph* graph) {
  float small[4] = {1, 2, 3, 4};
  static float large[64];
  const int64_t four[] = {4}, many[] = {64};
  OrtValue *a = numbers(small, four, 1), *b = numbers(small, four, 1), *c = numbers(large, many, 1);
  CODE(editor->AddInitializerToGraph(graph, "", a, false));
  CODE(editor->AddInitializerToGraph(graph, NULL, a, false));
  CODE(editor->AddInitializerToGraph(graph, "a", NULL, false));
  CODE(editor->AddInitializerToGraph(NULL, "a", a, false));
  CODE(editor->AddInitializerToGraph(graph, "a", a, true));  // too small to be external
  CODE(editor->AddInitializerToGraph(graph, "a", a, false));
  CODE(editor->AddInitializerToGraph(graph, "a", b, false));
  CODE(editor->AddInitializerToGraph(graph, "other", a, false));
  CODE(editor->AddInitializerToGraph(graph, "a", c, true));
  CODE(editor->AddInitializerToGraph(graph, "c", c, true));
  ort->ReleaseValue(b);
}

static void owned_node(OrtGraph* graph) {
  const char* x[] = {"x"};
  OrtNode* relu = node("Relu", "", "relu", x, 1, "y", NULL);
  CODE(editor->AddNodeToGraph(NULL, relu));
  CODE(editor->AddNodeToGraph(graph, NULL));
  size_t id = 7, count = 7;
  const char* text = NULL;
  CODE(ort->Node_GetId(relu, &id));
  CODE(editor->AddNodeToGraph(graph, relu));
  CODE(editor->AddNodeToGraph(graph, relu));
  CODE(ort->Node_GetName(relu, &text));
  printf("%s\n", text);
  CODE(ort->Node_GetOperatorType(relu, &text));
  printf("%s\n", text);
  CODE(ort->Node_GetDomain(relu, &text));
  printf("'%s'\n", text);
  CODE(ort->Node_GetNumInputs(relu, &count));
  printf("%d\n", (int)count);
  CODE(ort->Node_GetNumOutputs(relu, &count));
  printf("%d\n", (int)count);
  CODE(ort->Node_GetNumAttributes(relu, &count));
  printf("%d %d\n", (int)count, (int)id);
}

static void owned_ports(OrtGraph* graph) {
  const int64_t four[] = {4};
  size_t count = 7;
  OrtValueInfo* infos[3] = {value_info("x", 1, four, 1, NULL), NULL, value_info("w", 1, four, 1, NULL)};
  OrtValueInfo* twice[2] = {infos[0], infos[0]};
  CODE(editor->SetGraphInputs(NULL, infos, 1));
  CODE(editor->SetGraphInputs(graph, NULL, 1));
  CODE(editor->SetGraphInputs(graph, infos, 2));
  CODE(editor->SetGraphInputs(graph, twice, 2));
  CODE(editor->SetGraphInputs(graph, NULL, 0));
  OrtValueInfo* kept = infos[0];
  CODE(editor->SetGraphInputs(graph, infos, 1));
  printf("taken %d\n", infos[0] == NULL);
  CODE(editor->SetGraphOutputs(graph, &kept, 1));
  CODE(editor->SetGraphInputs(graph, &infos[2], 1));  // frees the first
  CODE(ort->Graph_GetNumInputs(graph, &count));
  printf("%d\n", (int)count);
  CODE(ort->Graph_GetNumOutputs(graph, &count));
  printf("%d\n", (int)count);
}

static void ownership(void) {
  OrtGraph *graph = NULL, *other = NULL;
  OK(editor->CreateGraph(&graph));
  OK(editor->CreateGraph(&other));
  owned_initializers(graph);
  owned_node(graph);
  owned_ports(graph);
  size_t count = 7;
  const char* text = NULL;
  CODE(ort->Graph_GetNumInitializers(graph, &count));
  printf("%d\n", (int)count);
  CODE(ort->Graph_GetNumNodes(graph, &count));
  printf("%d\n", (int)count);
  CODE(ort->Graph_GetName(graph, &text));
  printf("%s\n", text);
  const char* path = "none";
  CODE(ort->Graph_GetModelPath(graph, &path));
  printf("'%s'\n", path);
  int64_t version = 0;
  CODE(ort->Graph_GetOnnxIRVersion(graph, &version));
  OrtModelMetadata* metadata = NULL;
  CODE(ort->Graph_GetModelMetadata(graph, &metadata));
  ort->ReleaseModelMetadata(metadata);
  const float one = 1;
  OrtOpAttr* alpha = attribute("alpha", &one, 1, kFloat);
  OrtOpAttr* doubled[] = {alpha, alpha};
  OrtOpAttr* with_null[] = {alpha, NULL};
  OrtNode* failed = NULL;
  const char *x[] = {"x"}, *y[] = {"y"};
  CODE(editor->CreateNode("Relu", "", "n", x, 1, y, 1, doubled, 2, &failed));
  CODE(editor->CreateNode("Relu", "", "n", x, 1, y, 1, with_null, 2, &failed));
  ort->ReleaseOpAttr(alpha);
  OrtModel* model = NULL;
  const char* domains[] = {""};
  const int versions[] = {18};
  OK(editor->CreateModel(domains, versions, 1, &model));
  CODE(editor->AddGraphToModel(NULL, graph));
  CODE(editor->AddGraphToModel(model, NULL));
  CODE(editor->AddGraphToModel(model, graph));
  CODE(editor->AddGraphToModel(model, other));
  ort->ReleaseGraph(other);
  ort->ReleaseModel(model);
}

// Adds a node of that type after the model's output, or before its input.
static OrtModel* extension(const char* type, const char* domain, int at_front, int ports) {
  const int64_t dims[] = {-1, 4};
  OrtGraph* graph = NULL;
  OK(editor->CreateGraph(&graph));
  const char* input[] = {at_front ? "new" : "y"};
  const int64_t to = 1;
  const int cast = !strcmp(type, "Cast");
  OK(editor->AddNodeToGraph(graph, node(type, domain, "extra", input, 1, at_front ? "x" : "new",
                                        cast ? attribute("to", &to, 1, kInteger) : NULL)));
  OrtValueInfo* port = value_info("new", at_front && cast ? 7 : 1, dims, 2, "n");
  if (!ports) {
    ort->ReleaseValueInfo(port);
  } else if (at_front) {
    OK(editor->SetGraphInputs(graph, &port, 1));
  } else {
    OK(editor->SetGraphOutputs(graph, &port, 1));
  }
  OrtModel* model = NULL;
  OK(editor->CreateModel(NULL, NULL, 0, &model));
  OK(editor->AddGraphToModel(model, graph));
  return model;
}

static void read_file(const char* path, char** data, size_t* size) {
  FILE* file = fopen(path, "rb");
  if (!file) exit(3);
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  *data = malloc(*size);
  if (fread(*data, 1, *size, file) != *size) exit(3);
  fclose(file);
}

static void refused_extensions(const char* path, const OrtSessionOptions* options) {
  OrtSession* session = NULL;
  OrtModel* model = NULL;
  OK(editor->CreateModelEditorSession(env, path, options, &session));
  model = extension("Relu", "", 0, 1);
  OK(editor->ApplyModelToModelEditorSession(session, model));
  CODE(editor->ApplyModelToModelEditorSession(session, model));  // again
  ort->ReleaseModel(model);
  ort->ReleaseSession(session);

  OK(editor->CreateModelEditorSession(env, path, options, &session));
  model = extension("Cast", "", 1, 0);  // its input is not among the inputs
  CODE(editor->ApplyModelToModelEditorSession(session, model));
  ort->ReleaseModel(model);
  ort->ReleaseSession(session);

  OK(editor->CreateModelEditorSession(env, path, options, &session));
  model = extension("Relu", "never.heard", 0, 1);
  CODE(editor->ApplyModelToModelEditorSession(session, model));
  ort->ReleaseModel(model);
  ort->ReleaseSession(session);

  OK(editor->CreateModelEditorSession(env, path, options, &session));
  model = model_of(addition("missing", 0), "",
                   17);  // computes y, as the session's model does, of what nothing computes
  CODE(editor->ApplyModelToModelEditorSession(session, model));
  ort->ReleaseModel(model);
  ort->ReleaseSession(session);

  OK(editor->CreateModelEditorSession(env, path, options, &session));
  OrtGraph* graph = NULL;
  OK(editor->CreateGraph(&graph));
  const char* unknown[] = {"missing"};
  OK(editor->AddNodeToGraph(graph, node("Relu", "", "relu", unknown, 1, "z", NULL)));
  model = model_of(graph, "", 17);
  CODE(editor->ApplyModelToModelEditorSession(session, model));
  ort->ReleaseModel(model);
  ort->ReleaseSession(session);

  OK(editor->CreateModelEditorSession(env, path, options, &session));
  OK(editor->CreateGraph(&graph));
  model = model_of(graph, "", 12);  // another version
  CODE(editor->ApplyModelToModelEditorSession(session, model));
  ort->ReleaseModel(model);
  ort->ReleaseSession(session);
}

static void extend(const char* path) {
  OrtSessionOptions* options = NULL;
  OK(ort->CreateSessionOptions(&options));
  float xs[] = {-1, 2, -3, 4};
  int64_t whole[] = {-1, 2, -3, 4};
  const int64_t dims[] = {1, 4};
  OrtValue *x = numbers(xs, dims, 2), *integers = NULL;
  OK(ort->CreateTensorWithDataAsOrtValue(memory, whole, sizeof whole, dims, 2, 7, &integers));
  OrtSession* session = NULL;
  int opset = 0;

  CODE(editor->CreateModelEditorSession(env, "no such file", options, &session));
  CODE(editor->CreateModelEditorSession(env, path, options, &session));
  print_ports(session);
  CODE(editor->SessionGetOpsetForDomain(session, "", &opset));
  printf("opset %d\n", opset);
  run(session, "x", x, "y");  // not finalized
  OrtModel* model = extension("Relu", "", 0, 1);
  CODE(editor->ApplyModelToModelEditorSession(session, model));
  ort->ReleaseModel(model);
  print_ports(session);
  CODE(editor->FinalizeModelEditorSession(session, options, NULL));
  run(session, "x", x, "new");
  CODE(editor->FinalizeModelEditorSession(session, options, NULL));
  run(session, "x", x, "new");
  model = extension("Relu", "", 0, 1);
  CODE(editor->ApplyModelToModelEditorSession(session, model));  // too late
  ort->ReleaseModel(model);
  ort->ReleaseSession(session);

  char* data = NULL;
  size_t size = 0;
  read_file(path, &data, &size);
  CODE(editor->CreateModelEditorSessionFromArray(env, data, size, options, &session));
  free(data);
  model = extension("Cast", "", 1, 1);
  CODE(editor->ApplyModelToModelEditorSession(session, model));
  ort->ReleaseModel(model);
  CODE(editor->FinalizeModelEditorSession(session, options, NULL));
  print_ports(session);
  run(session, "new", integers, "y");
  ort->ReleaseSession(session);

  OK(editor->CreateModelEditorSession(env, path, options, &session));  // nothing is added
  CODE(editor->FinalizeModelEditorSession(session, options, NULL));
  run(session, "x", x, "y");
  ort->ReleaseSession(session);

  refused_extensions(path, options);

  OK(ort->CreateSession(env, path, options, &session));  // a session as any other
  model = extension("Relu", "", 0, 1);
  CODE(editor->ApplyModelToModelEditorSession(session, model));
  ort->ReleaseModel(model);
  CODE(editor->FinalizeModelEditorSession(session, options, NULL));
  CODE(editor->SessionGetOpsetForDomain(session, "", &opset));
  run(session, "x", x, "y");
  ort->ReleaseSession(session);
  ort->ReleaseValue(x);
  ort->ReleaseValue(integers);
  ort->ReleaseSessionOptions(options);
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  open_library(argv[1]);
  editor = ort->GetModelEditorApi();
  OK(ort->CreateEnv(4, "editor", &env));
  OK(ort->CreateCpuMemoryInfo(0, 0, &memory));
  types();
  build(0, argv[3]);
  build(1, argv[3]);
  ownership();
  invalid_models();
  extend(argv[2]);
  ort->ReleaseMemoryInfo(memory);
  ort->ReleaseEnv(env);
  return 0;
}
