// Reads a graph that it builds, which onnxruntime refuses: there, only execution providers read graphs.
// Argument: the library.
#include "program.h"

static const OrtModelEditorApi* editor;

static const OrtValueInfo* names_of(const char* what, const OrtValueInfo** values, size_t count) {
  printf("%s:", what);
  for (size_t i = 0; i < count; ++i) {
    const char* name = "-";
    if (values[i]) OK(ort->GetValueInfoName(values[i], &name));
    printf(" %s", name);
  }
  printf("\n");
  return count ? values[0] : NULL;
}

static void print_value(const OrtValueInfo* value) {
  const char* name = NULL;
  OK(ort->GetValueInfoName(value, &name));
  bool required = 0, optional = 0, output = 0, constant = 0, outer = 0;
  OK(ort->ValueInfo_IsRequiredGraphInput(value, &required));
  OK(ort->ValueInfo_IsOptionalGraphInput(value, &optional));
  OK(ort->ValueInfo_IsGraphOutput(value, &output));
  OK(ort->ValueInfo_IsConstantInitializer(value, &constant));
  OK(ort->ValueInfo_IsFromOuterScope(value, &outer));
  const OrtNode* producer = NULL;
  size_t index = 9, uses = 0;
  OK(ort->ValueInfo_GetValueProducer(value, &producer, &index));
  OK(ort->ValueInfo_GetValueProducer(value, &producer, NULL));
  OK(ort->ValueInfo_GetValueNumConsumers(value, &uses));
  const OrtNode* consumers[4];
  int64_t inputs[4];
  OK(ort->ValueInfo_GetValueConsumers(value, consumers, inputs, uses));
  const OrtValue* tensor = NULL;
  OK(ort->ValueInfo_GetInitializerValue(value, &tensor));
  OrtExternalInitializerInfo* place = (OrtExternalInitializerInfo*)value;
  OK(ort->ValueInfo_GetExternalInitializerInfo(value, &place));
  printf(
      "%s: required %d default %d output %d constant %d outer %d, producer %d, uses %d, tensor %d, file %d\n",
      name, required, optional, output, constant, outer, producer != NULL, (int)uses, tensor != NULL,
      place != NULL);
}

static void print_node(const OrtNode* node, const OrtGraph* graph) {
  const OrtValueInfo* values[4];
  const OrtOpAttr* attributes[4];
  const OrtGraph *in = NULL, *subgraphs[1];
  const char *text = NULL, *names[1];
  size_t count = 0;
  int since = 0;
  OK(ort->Node_GetGraph(node, &in));
  OK(ort->Node_GetName(node, &text));
  printf("node %s in its graph: %d\n", text, in == graph);
  CODE(ort->Node_GetSinceVersion(node, &since));
  printf("since %d\n", since);
  OK(ort->Node_GetEpName(node, &text));
  printf("provider: %d\n", text != NULL);
  OK(ort->Node_GetNumInputs(node, &count));
  OK(ort->Node_GetInputs(node, values, count));
  names_of("inputs", values, count);
  CODE(ort->Node_GetInputs(node, values, count - 1));
  OK(ort->Node_GetNumOutputs(node, &count));
  OK(ort->Node_GetOutputs(node, values, count));
  names_of("outputs", values, count);
  OK(ort->Node_GetNumImplicitInputs(node, &count));
  OK(ort->Node_GetImplicitInputs(node, values, count));
  names_of("implicit inputs", values, count);
  OK(ort->Node_GetNumAttributes(node, &count));
  OK(ort->Node_GetAttributes(node, attributes, count));
  for (size_t i = 0; i < count; ++i) {
    int kind = 0;
    OK(ort->OpAttr_GetName(attributes[i], &text));
    OK(ort->OpAttr_GetType(attributes[i], &kind));
    printf("attribute %s of kind %d\n", text, kind);
  }
  CODE(ort->Node_GetAttributeByName(node, "alpha", attributes));
  CODE(ort->Node_GetAttributeByName(node, "beta", attributes));
  printf("beta: %d\n", attributes[0] != NULL);
  CODE(ort->Node_GetAttributeByName(node, "gamma", attributes));
  OK(ort->Node_GetNumSubgraphs(node, &count));
  OK(ort->Node_GetSubgraphs(node, subgraphs, count, names));
  OK(ort->Node_GetSubgraphs(node, subgraphs, count, NULL));
  printf("subgraphs: %d\n", (int)count);
}

static OrtValueInfo* port(const char* name) {
  const int64_t dims[] = {2, 2};
  OrtTensorTypeAndShapeInfo* shape = NULL;
  OrtTypeInfo* type = NULL;
  OrtValueInfo* made = NULL;
  OK(ort->CreateTensorTypeAndShapeInfo(&shape));
  OK(ort->SetTensorElementType(shape, 1));
  OK(ort->SetDimensions(shape, dims, 2));
  OK(editor->CreateTensorTypeInfo(shape, &type));
  OK(editor->CreateValueInfo(name, type, &made));
  ort->ReleaseTensorTypeAndShapeInfo(shape);
  ort->ReleaseTypeInfo(type);
  return made;
}

// A model of two nodes, and its graph.
static OrtModel* build(OrtGraph** built) {
  OrtGraph* graph = NULL;
  OK(editor->CreateGraph(&graph));
  OrtValueInfo *x[] = {port("x"), port("w")}, *y = port("y");
  size_t count = 0;
  const OrtNode* none = NULL;
  CODE(ort->ValueInfo_GetValueProducer(y, &none, &count));  // it is in no graph yet
  OK(editor->SetGraphInputs(graph, x, 2));
  OK(editor->SetGraphOutputs(graph, &y, 1));
  OrtAllocator* allocator = NULL;
  OK(ort->GetAllocatorWithDefaultOptions(&allocator));
  const int64_t dims[] = {2, 2};
  OrtValue *w = NULL, *b = NULL;
  OK(ort->CreateTensorAsOrtValue(allocator, dims, 2, 1, &w));
  OK(ort->CreateTensorAsOrtValue(allocator, dims, 1, 1, &b));
  OK(editor->AddInitializerToGraph(graph, "w", w, false));
  OK(editor->AddInitializerToGraph(graph, "b", b, false));
  const float alpha = 2;
  OrtOpAttr* attribute = NULL;
  OK(ort->CreateOpAttr("alpha", &alpha, 1, 3, &attribute));
  const char *inputs[] = {"x", "w", "b"}, *hidden[] = {"h"}, *output[] = {"y"}, *clipped[] = {"h", "", "x"};
  OrtNode *gemm = NULL, *clip = NULL;
  OK(editor->CreateNode("Gemm", "", "gemm", inputs, 3, hidden, 1, &attribute, 1, &gemm));
  const OrtValueInfo* value = NULL;
  CODE(ort->Node_GetInputs(gemm, &value, 3));
  OK(editor->CreateNode("Clip", "", "clip", clipped, 3, output, 1, NULL, 0, &clip));
  OK(editor->AddNodeToGraph(graph, gemm));
  OK(editor->AddNodeToGraph(graph, clip));
  CODE(ort->Graph_GetNumOperatorSets(graph, &count));
  CODE(ort->Node_GetSinceVersion(gemm, &(int){0}));
  OrtModel* model = NULL;
  OK(editor->CreateModel((const char*[]){"ai.onnx"}, (int[]){17}, 1, &model));
  OK(editor->AddGraphToModel(model, graph));
  *built = graph;
  return model;
}

static void print_graph(const OrtGraph* graph) {
  size_t count = 0;
  const char* domain = NULL;
  int64_t version = 0;
  OK(ort->Graph_GetNumOperatorSets(graph, &count));
  OK(ort->Graph_GetOperatorSets(graph, &domain, &version, count));
  printf("operators '%s' %d\n", domain, (int)version);
  const OrtValueInfo* values[4];
  OK(ort->Graph_GetNumInputs(graph, &count));
  OK(ort->Graph_GetInputs(graph, values, count));
  names_of("graph inputs", values, count);
  print_value(values[0]);
  print_value(values[1]);
  OK(ort->Graph_GetNumOutputs(graph, &count));
  OK(ort->Graph_GetOutputs(graph, values, count));
  print_value(names_of("graph outputs", values, count));
  OK(ort->Graph_GetNumInitializers(graph, &count));
  OK(ort->Graph_GetInitializers(graph, values, count));
  names_of("initializers", values, count);
  print_value(values[1]);
  const OrtNode *nodes[4], *parent = NULL;
  OK(ort->Graph_GetNumNodes(graph, &count));
  OK(ort->Graph_GetNodes(graph, nodes, count));
  OK(ort->Graph_GetParentNode(graph, &parent));
  printf("%d nodes, parent %d\n", (int)count, parent != NULL);
  print_node(nodes[0], graph);
  OK(ort->Node_GetInputs(nodes[1], values, 3));
  names_of("inputs of clip", values, 3);
  print_value(values[0]);
  const OrtTypeInfo* type = NULL;
  OK(ort->GetValueInfoTypeInfo(values[0], &type));  // of h, which is inferred
  const OrtTensorTypeAndShapeInfo* tensor = NULL;
  OK(ort->CastTypeInfoToTensorInfo(type, &tensor));
  OK(ort->GetDimensionsCount(tensor, &count));
  printf("rank %d\n", (int)count);
}

static void print_view(const OrtGraph* graph) {
  size_t count = 0;
  const OrtValueInfo* values[4];
  const OrtNode* nodes[4];
  OK(ort->Graph_GetNodes(graph, nodes, 2));
  OrtGraph* view = NULL;
  CODE(ort->Graph_GetGraphView(graph, nodes, 1, &view));
  OK(ort->Graph_GetNumInputs(view, &count));
  OK(ort->Graph_GetInputs(view, values, count));
  names_of("inputs of the view", values, count);
  OK(ort->Graph_GetNumOutputs(view, &count));
  OK(ort->Graph_GetOutputs(view, values, count));
  names_of("outputs of the view", values, count);
  OK(ort->Graph_GetNodes(view, nodes, 1));
  OrtGraph* other = NULL;
  CODE(ort->Graph_GetGraphView(graph, nodes, 1, &other));  // the view's own node
  ort->ReleaseGraph(view);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  open_library(argv[1]);
  editor = ort->GetModelEditorApi();
  OrtGraph* graph = NULL;
  OrtModel* model = build(&graph);
  print_graph(graph);
  print_view(graph);
  ort->ReleaseGraph(graph);  // nothing: it is the model's
  ort->ReleaseModel(model);
  return 0;
}
