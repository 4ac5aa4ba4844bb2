// A program for onnxruntime's C++ interface that builds a linear model, runs it, extends it and writes it.
// Argument: the file.
#include <onnxruntime_training_cxx_api.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#define CHECK(condition)                                                       \
  if (!(condition)) {                                                          \
    std::fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
    return 1;                                                                  \
  }

namespace {

Ort::ValueInfo value_info(const char* name, ONNXTensorElementDataType type, int64_t columns) {
  const std::vector<std::string> names = {"rows", ""};
  const Ort::TensorTypeAndShapeInfo shape(type, {-1, columns}, &names);
  return Ort::ValueInfo(name, Ort::TypeInfo::CreateTensorInfo(shape.GetConst()).GetConst());
}

std::vector<float> run(Ort::Session& session, const char* input, const Ort::Value& x, const char* output) {
  std::vector<Ort::Value> results = session.Run(Ort::RunOptions(), &input, &x, 1, &output, 1);
  const float* data = results[0].GetTensorData<float>();
  return {data, data + results[0].GetTensorTypeAndShapeInfo().GetElementCount()};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "built");
  const Ort::AllocatorWithDefaultOptions allocator;
  const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);

  Ort::Graph graph;
  std::vector<Ort::ValueInfo> inputs, outputs;
  inputs.push_back(value_info("x", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 2));
  outputs.push_back(value_info("y", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 1));
  graph.SetInputs(inputs);
  graph.SetOutputs(outputs);
  CHECK(!inputs[0] && !outputs[0]);
  const float alpha = 0.5;
  std::vector<Ort::OpAttr> attributes;
  attributes.push_back(Ort::OpAttr("alpha", &alpha, 1, ORT_OP_ATTR_FLOAT));
  Ort::Node node("Gemm", "", "linear", {"x", "w", "b"}, {"y"}, attributes);
  CHECK(!attributes[0] && node.GetOperatorType() == "Gemm" && node.GetAttributes().size() == 1);
  graph.AddNode(node);
  CHECK(!node);
  const int64_t weight_shape[] = {2, 1}, bias_shape[] = {1};
  Ort::Value w = Ort::Value::CreateTensor<float>(allocator, weight_shape, 2);
  w.GetTensorMutableData<float>()[0] = 2;
  w.GetTensorMutableData<float>()[1] = -4;
  Ort::Value b = Ort::Value::CreateTensor<float>(allocator, bias_shape, 1);
  b.GetTensorMutableData<float>()[0] = 0.25;
  graph.AddInitializer("w", w, false);
  graph.AddInitializer("b", b, false);
  CHECK(!w && graph.GetNodes()[0].GetInputs()[1].IsConstantInitializer());

  Ort::Model model(std::vector<Ort::Model::DomainOpsetPair>{{"", 17}});
  model.AddGraph(graph);
  CHECK(!graph);

  float xs[] = {1, 2, 3, 4};
  int64_t whole[] = {1, 2, 3, 4};
  const int64_t shape[] = {2, 2};
  const Ort::Value x = Ort::Value::CreateTensor<float>(memory, xs, 4, shape, 2);
  const Ort::Value integers = Ort::Value::CreateTensor<int64_t>(memory, whole, 4, shape, 2);
  Ort::Session session(env, model, Ort::SessionOptions());
  const std::vector<float> expected = {-2.75, -4.75};
  CHECK(run(session, "x", x, "y") == expected);
  CHECK(session.GetOpset("") == 17 && session.GetInputs()[0].GetName() == "x");

  void* data = nullptr;
  size_t size = 0;
  Ort::ThrowOnError(Ort::GetOrtrainApi().SerializeModel(model, allocator, &data, &size));
  Ort::Session edited = Ort::Session::CreateModelEditorSession(env, data, size, Ort::SessionOptions());
  std::ofstream(argv[1], std::ios::binary)
      .write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  Ort::ThrowOnError(Ort::GetApi().AllocatorFree(allocator, data));

  std::vector<Ort::ValueInfo> ports = edited.GetInputs();
  const std::string before = ports[0].GetName();
  CHECK(ports[0].TypeInfo().GetTensorTypeAndShapeInfo().GetShape() == (std::vector<int64_t>{-1, 2}));
  ports[0] = value_info("integers", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 2);
  const int64_t to = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  attributes.clear();
  attributes.push_back(Ort::OpAttr("to", &to, 1, ORT_OP_ATTR_INT));
  Ort::Node cast("Cast", "", "cast", {"integers"}, {before}, attributes);
  Ort::Graph more;
  more.AddNode(cast);
  more.SetInputs(ports);
  Ort::Model addition(std::vector<Ort::Model::DomainOpsetPair>{});
  addition.AddGraph(more);
  edited.FinalizeModelEditorSession(addition, Ort::SessionOptions());
  CHECK(run(edited, "integers", integers, "y") == expected);

  try {
    Ort::Session(env, addition, Ort::SessionOptions());
    CHECK(false);
  } catch (const Ort::Exception& error) {
    CHECK(error.GetOrtErrorCode() == ORT_INVALID_ARGUMENT);
    CHECK(std::string(error.what()).find("states no version of the ONNX domain") != std::string::npos);
  }
  std::puts("done");
  return 0;
}
