// A program for onnxruntime's C++ interface with custom operators of its own. Argument: a folder with the
// models.
#include <onnxruntime_cxx_api.h>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#define CHECK(condition)                                                       \
  if (!(condition)) {                                                          \
    std::fprintf(stderr, "line %d: %s does not hold\n", __LINE__, #condition); \
    return 1;                                                                  \
  }

namespace {

// y = scale * x + offset
struct ScaledKernel {
  explicit ScaledKernel(const OrtKernelInfo* info) : info_(Ort::ConstKernelInfo(info).Copy()) {
    scale_ = info_.GetAttribute<float>("scale");
    name_ = info_.GetAttribute<std::string>("label");
    powers_ = info_.GetAttributes<int64_t>("powers");
    int is_constant = 0;
    const Ort::ConstValue offset = info_.GetTensorConstantInput(1, &is_constant);
    offset_ = is_constant ? offset.GetTensorData<float>()[0] : 0;
  }
  void Compute(OrtKernelContext* context) {
    const Ort::KernelContext run(context);
    const Ort::ConstValue x = run.GetInput(0);
    const std::vector<int64_t> shape = x.GetTensorTypeAndShapeInfo().GetShape();
    const Ort::ConstMemoryInfo where = x.GetTensorMemoryInfo();
    Ort::UnownedValue y = run.GetOutput(0, shape);
    const float* from = x.GetTensorData<float>();
    auto* to = y.GetTensorMutableData<float>();
    const size_t count = x.GetTensorTypeAndShapeInfo().GetElementCount();
    const float told = where.GetAllocatorName() == "Cpu" && name_ == "a label" &&
                               powers_ == std::vector<int64_t>{2, 3} && info_.GetInputCount() == 2 &&
                               info_.GetInputName(0) == "x" && info_.GetNodeName() == "scaled"
                           ? 0.0f
                           : 1000.0f;
    for (size_t i = 0; i < count; ++i) to[i] = scale_ * from[i] + offset_ + told;
  }

 private:
  Ort::KernelInfo info_;
  float scale_ = 1, offset_ = 0;
  std::string name_;
  std::vector<int64_t> powers_;
};

bool knew_shapes = false;

struct Scaled : Ort::CustomOpBase<Scaled, ScaledKernel> {
  void* CreateKernel(const OrtApi&, const OrtKernelInfo* info) const { return new ScaledKernel(info); }
  const char* GetName() const { return "Scaled"; }
  size_t GetInputTypeCount() const { return 2; }
  ONNXTensorElementDataType GetInputType(size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetOutputType(size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  static Ort::Status InferOutputShape(Ort::ShapeInferContext& context) {
    const Ort::ShapeInferContext::Shape& shape = context.GetInputShape(0);
    knew_shapes = shape.size() == 1 && shape[0].IsInt() && shape[0].AsInt() == 3 &&
                  context.GetAttrFloat("scale") == 2.5f && context.GetAttrString("label") == "a label" &&
                  context.GetAttrInts("powers").size() == 2;
    return context.SetOutputShape(0, shape);
  }
};

// Joins any number of rows; fails by status, and by exception.
struct JoinedKernel {
  Ort::Status ComputeV2(OrtKernelContext* context) {
    const Ort::KernelContext run(context);
    std::vector<float> all;
    for (size_t i = 0; i < run.GetInputCount(); ++i) {
      const Ort::ConstValue value = run.GetInput(i);
      const size_t count = value.GetTensorTypeAndShapeInfo().GetElementCount();
      all.insert(all.end(), value.GetTensorData<float>(), value.GetTensorData<float>() + count);
    }
    if (all[0] == 13) return Ort::Status("thirteen", ORT_RUNTIME_EXCEPTION);
    if (all[0] == 14) throw std::runtime_error("fourteen");
    Ort::UnownedValue y = run.GetOutput(0, {static_cast<int64_t>(all.size())});
    for (size_t i = 0; i < all.size(); ++i) y.GetTensorMutableData<float>()[i] = all[i];
    return Ort::Status(nullptr);
  }
};

struct Joined : Ort::CustomOpBase<Joined, JoinedKernel, true> {
  OrtStatus* CreateKernelV2(const OrtApi&, const OrtKernelInfo*, void** kernel) const {
    *kernel = new JoinedKernel;
    return nullptr;
  }
  const char* GetName() const { return "Joined"; }
  size_t GetInputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetInputType(size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(size_t) const { return INPUT_OUTPUT_VARIADIC; }
  int GetVariadicInputMinArity() const { return 2; }
  size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetOutputType(size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  const Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "operators");
  const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  const Scaled scaled;
  const Joined joined;
  Ort::CustomOpDomain domain("test.custom");
  domain.Add(&scaled);
  domain.Add(&joined);
  Ort::SessionOptions options;
  options.Add(domain);

  float xs[] = {1, 2, 3};
  const int64_t shape[] = {3};
  const Ort::Value x = Ort::Value::CreateTensor<float>(memory, xs, 3, shape, 1);
  const char *in = "x", *out = "y";
  const Ort::RunOptions plain;
  Ort::RunOptions set;
  set.AddConfigEntry("key", "value");
  CHECK(std::string(set.GetConfigEntry("key")) == "value" && set.GetConfigEntry("other") == nullptr);

  Ort::Session session(env, (folder + "/scaled.onnx").c_str(), options);
  CHECK(knew_shapes);
  const std::vector<Ort::Value> results = session.Run(plain, &in, &x, 1, &out, 1);
  CHECK(results[0].GetConst().GetTensorData<float>()[2] == 3 * 2.5f + 0.5f);

  Ort::Session joining(env, (folder + "/joined.onnx").c_str(), options);
  const std::vector<Ort::Value> all = joining.Run(plain, &in, &x, 1, &out, 1);
  CHECK(all[0].GetTensorTypeAndShapeInfo().GetShape() == std::vector<int64_t>{9});
  CHECK(all[0].GetTensorData<float>()[4] == 2);
  const std::pair<float, const char*> failures[] = {{13, "thirteen"}, {14, "fourteen"}};
  for (const auto& failure : failures) {
    xs[0] = failure.first;
    try {
      joining.Run(plain, &in, &x, 1, &out, 1);
      CHECK(false);
    } catch (const Ort::Exception& error) {
      CHECK(std::string(error.what()).find(failure.second) != std::string::npos);
    }
  }
  std::puts("done");
  return 0;
}
