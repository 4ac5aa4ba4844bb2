// A program for onnxruntime's C++ interface that prints a graph, with those in it. Argument: a model.
#include <onnxruntime_training_cxx_api.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace {

std::string name_of(const Ort::ConstValueInfo& value) { return value ? value.GetName() : "-"; }

std::string list(const std::vector<Ort::ConstValueInfo>& values) {
  std::string text;
  for (const auto& value : values) text += " " + name_of(value);
  return text;
}

std::string type_of(const Ort::ConstValueInfo& value) {
  const Ort::ConstTypeInfo type = value.TypeInfo();
  if (!type) return "?";
  if (type.GetONNXType() != ONNX_TYPE_TENSOR) return "kind " + std::to_string(type.GetONNXType());
  const auto tensor = type.GetTensorTypeAndShapeInfo();
  const std::vector<int64_t> dims = tensor.GetShape();
  std::vector<const char*> names(dims.size());
  tensor.GetSymbolicDimensions(names.data(), names.size());
  std::string text = std::to_string(tensor.GetElementType());
  for (size_t i = 0; i < dims.size(); ++i)
    text += " " + (dims[i] >= 0 ? std::to_string(dims[i]) : std::string(names[i]));
  return text;
}

std::string flags(const Ort::ConstValueInfo& value) {
  std::string text;
  if (value.IsRequiredGraphInput()) text += " required";
  if (value.IsOptionalGraphInput()) text += " default";
  if (value.IsGraphOutput()) text += " output";
  if (value.IsConstantInitializer()) text += " constant";
  if (value.IsFromOuterScope()) text += " outer";
  return text;
}

void print_value(const std::string& margin, const Ort::ConstValueInfo& value) {
  std::string links;
  const auto producer = value.GetProducerNode();
  if (producer.node) links += " < " + producer.node.GetName() + "." + std::to_string(producer.index);
  for (const auto& use : value.GetConsumers())
    links += " > " + use.node.GetName() + "." + std::to_string(use.index);
  Ort::ConstValue tensor{nullptr};
  Ort::ThrowOnError(value.GetInitializer(tensor).release());
  if (tensor) links += " = " + std::to_string(tensor.GetTensorTypeAndShapeInfo().GetElementCount());
  OrtExternalInitializerInfo* place = nullptr;
  Ort::ThrowOnError(Ort::GetApi().ValueInfo_GetExternalInitializerInfo(value, &place));
  if (place) {
    links += std::string(" in ") + Ort::GetApi().ExternalInitializerInfo_GetFilePath(place) + " " +
             std::to_string(Ort::GetApi().ExternalInitializerInfo_GetFileOffset(place)) + " " +
             std::to_string(Ort::GetApi().ExternalInitializerInfo_GetByteSize(place));
    Ort::GetApi().ReleaseExternalInitializerInfo(place);
  }
  std::printf("%svalue %s: %s%s%s\n", margin.c_str(), value.GetName().c_str(), type_of(value).c_str(),
              flags(value).c_str(), links.c_str());
}

std::string attribute(const Ort::ConstOpAttr& one) {
  std::string text = one.GetName() + "=";
  switch (one.GetType()) {
    case ORT_OP_ATTR_INT: {
      int64_t value = 0;
      Ort::ThrowOnError(one.GetValue(value).release());
      return text + std::to_string(value);
    }
    case ORT_OP_ATTR_FLOAT: {
      float value = 0;
      Ort::ThrowOnError(one.GetValue(value).release());
      return text + std::to_string(value);
    }
    case ORT_OP_ATTR_STRING: {
      std::string value;
      Ort::ThrowOnError(one.GetValue(value).release());
      return text + value;
    }
    case ORT_OP_ATTR_INTS: {
      std::vector<int64_t> values;
      Ort::ThrowOnError(one.GetValueArray(values).release());
      for (const int64_t value : values) text += std::to_string(value) + ",";
      return text;
    }
    case ORT_OP_ATTR_STRINGS: {
      std::vector<std::string> values;
      Ort::ThrowOnError(one.GetValueArray(values).release());
      for (const std::string& value : values) text += value + ",";
      return text;
    }
    case ORT_OP_ATTR_TENSOR: {
      Ort::Value value{nullptr};
      Ort::ThrowOnError(one.GetTensorAttributeAsOrtValue(value).release());
      return text + "tensor of " + std::to_string(value.GetTensorTypeAndShapeInfo().GetElementCount());
    }
    default:
      return text + "kind " + std::to_string(one.GetType());
  }
}

void print_graph(const std::string& margin, const Ort::ConstGraph& graph) {
  std::printf("%sgraph %s\n", margin.c_str(), graph.GetName().c_str());
  std::printf("%sinputs%s\n", margin.c_str(), list(graph.GetInputs()).c_str());
  std::printf("%soutputs%s\n", margin.c_str(), list(graph.GetOutputs()).c_str());
  std::vector<Ort::ConstValueInfo> values = graph.GetInputs();
  const auto add = [&](const std::vector<Ort::ConstValueInfo>& more) {
    for (const auto& value : more)
      if (value && std::none_of(values.begin(), values.end(), [&](const Ort::ConstValueInfo& known) {
            return static_cast<const OrtValueInfo*>(known) == static_cast<const OrtValueInfo*>(value);
          }))
        values.push_back(value);
  };
  add(graph.GetInitializers());
  for (const Ort::ConstNode& node : graph.GetNodes()) {
    std::printf("%snode %zu %s %s%s:%d:%s ->%s\n", margin.c_str(), node.GetId(), node.GetName().c_str(),
                node.GetDomain().empty() ? "" : (node.GetDomain() + ".").c_str(),
                node.GetOperatorType().c_str(), node.GetSinceVersion(), list(node.GetInputs()).c_str(),
                list(node.GetOutputs()).c_str());
    const std::vector<Ort::ConstValueInfo> implicit = node.GetImplicitInputs();
    if (!implicit.empty()) std::printf("%s  reads%s\n", margin.c_str(), list(implicit).c_str());
    for (const Ort::ConstOpAttr& one : node.GetAttributes())
      std::printf("%s  %s\n", margin.c_str(), attribute(one).c_str());
    for (const auto& subgraph : node.GetSubgraphs()) {
      std::printf("%s  %s:\n", margin.c_str(), subgraph.attr_name.c_str());
      if (subgraph.sub_graph.GetParentNode().GetName() != node.GetName()) std::printf("wrong parent\n");
      print_graph(margin + "    ", subgraph.sub_graph);
    }
    if (static_cast<const OrtGraph*>(node.GetGraph()) != static_cast<const OrtGraph*>(graph))
      std::printf("wrong graph\n");
    add(node.GetInputs());
    add(node.GetImplicitInputs());
    add(node.GetOutputs());
  }
  for (const auto& value : values) print_value(margin, value);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const OrtrainApi& more = Ort::GetOrtrainApi();
  OrtModel* handle = nullptr;
  Ort::ThrowOnError(more.ReadModel(argv[1], &handle));
  const Ort::Model model(handle);
  const OrtGraph* inside = nullptr;
  Ort::ThrowOnError(more.ModelGetGraph(model, &inside));
  const Ort::ConstGraph graph(inside);
  std::printf("path %s\nformat %d\n", graph.GetModelPath().c_str(),
              static_cast<int>(graph.GetOnnxIRVersion()));
  for (const auto& opset : graph.GetOperatorSets())
    std::printf("operators '%s' %d\n", opset.domain.c_str(), static_cast<int>(opset.version));
  Ort::AllocatorWithDefaultOptions allocator;
  std::printf("producer %s\n", graph.GetModelMetadata().GetProducerNameAllocated(allocator).get());
  print_graph("", graph);

  const std::vector<Ort::ConstNode> nodes = graph.GetNodes();
  const Ort::Graph view = graph.GetGraphView({nodes[0]});
  std::printf("the first node alone:%s ->%s\n", list(view.GetInputs()).c_str(),
              list(view.GetOutputs()).c_str());
  Ort::ConstOpAttr found{nullptr};
  const Ort::Status status = nodes[0].GetAttributeByName("never_heard", found);
  std::printf("never_heard: code %d\n", static_cast<int>(status.GetErrorCode()));
  return 0;
}
