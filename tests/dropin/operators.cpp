// A program for onnxruntime's C++ interface with custom operators. Argument: a folder with the
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

int log_calls = 0;
void ORT_API_CALL TakeMessage(void*, OrtLoggingLevel severity, const char*, const char*, const char*,
                              const char* text) {
  if (severity == ORT_LOGGING_LEVEL_WARNING && std::string(text) == "3 elements") ++log_calls;
}

// y = x + x, computed by an operator of the library; says how many elements there are.
struct DoubledKernel {
  explicit DoubledKernel(const OrtKernelInfo* info) {
    const char* constraint = "T";
    const ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    const Ort::ConstKernelInfo node(info);
    add_ = Ort::Op::Create(info, "Add", "", 14, &constraint, &type, 1, nullptr, 0, 2, 1);
    const int64_t axis = 0;
    const Ort::OpAttr axes("axis", &axis, 1, ORT_OP_ATTR_INT);
    join_ = Ort::Op::Create(info, "Concat", "", 13, &constraint, &type, 1, &axes, 1, 2, 1);
    level_ = node.GetLogger().GetLoggingSeverityLevel();
  }
  void Compute(OrtKernelContext* context) {
    const Ort::KernelContext run(context);
    const Ort::ConstValue x = run.GetInput(0);
    const size_t count = x.GetTensorTypeAndShapeInfo().GetElementCount();
    const int64_t shape[] = {static_cast<int64_t>(count)};
    Ort::UnownedValue y = run.GetOutput(0, shape, 1);
    const OrtValue* both[] = {x, x};
    OrtValue* out[] = {y};
    add_.Invoke(context, both, 2, out, 1);
    const int64_t twice[] = {2 * shape[0]};
    Ort::AllocatorWithDefaultOptions allocator;
    Ort::Value joined = Ort::Value::CreateTensor<float>(allocator, twice, 1);
    OrtValue* into[] = {joined};
    join_.Invoke(context, both, 2, into, 1);
    if (joined.GetTensorData<float>()[count] != x.GetTensorData<float>()[0])
      throw std::runtime_error("not joined");
    const Ort::Logger logger = run.GetLogger();
    if (logger.GetLoggingSeverityLevel() != level_) throw std::runtime_error("another logger");
    ORT_CXX_LOG(logger, ORT_LOGGING_LEVEL_VERBOSE, "not said");
    Ort::ThrowOnError(logger
                          .LogFormattedMessage(ORT_LOGGING_LEVEL_WARNING, ORT_FILE, __LINE__, "Compute",
                                               "%d elements", static_cast<int>(count))
                          .release());
  }

 private:
  Ort::Op add_{nullptr}, join_{nullptr};
  OrtLoggingLevel level_ = ORT_LOGGING_LEVEL_FATAL;
};

struct Doubled : Ort::CustomOpBase<Doubled, DoubledKernel> {
  void* CreateKernel(const OrtApi&, const OrtKernelInfo* info) const { return new DoubledKernel(info); }
  const char* GetName() const { return "Doubled"; }
  size_t GetInputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetInputType(size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
  size_t GetOutputTypeCount() const { return 1; }
  ONNXTensorElementDataType GetOutputType(size_t) const { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  const Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "operators", TakeMessage, nullptr);
  const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
  const Scaled scaled;
  const Joined joined;
  Ort::CustomOpDomain domain("test.custom");
  domain.Add(&scaled);
  domain.Add(&joined);
  const Doubled doubled;
  domain.Add(&doubled);
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

  xs[0] = 1;
  Ort::Session doubling(env, (folder + "/doubled.onnx").c_str(), options);
  const std::vector<Ort::Value> twice = doubling.Run(plain, &in, &x, 1, &out, 1);
  CHECK(twice[0].GetTensorData<float>()[2] == 6 && log_calls == 1);

  // The model as a program that compiles it gets it.
  Ort::AllocatorWithDefaultOptions allocator;
  void* compiled = nullptr;
  size_t size = 0;
  Ort::ModelCompilationOptions compilation(env, options);
  compilation.SetInputModelPath((folder + "/doubled.onnx").c_str())
      .SetOutputModelBuffer(allocator, &compiled, &size)
      .SetGraphOptimizationLevel(ORT_ENABLE_BASIC)
      .SetFlags(OrtCompileApiFlags_NONE);
  CHECK(Ort::CompileModel(env, compilation).IsOK());
  Ort::Session from_compiled(env, compiled, size, options);
  CHECK(from_compiled.Run(plain, &in, &x, 1, &out, 1)[0].GetTensorData<float>()[1] == 4);
  allocator.Free(compiled);
  compilation.SetFlags(OrtCompileApiFlags_ERROR_IF_NO_NODES_COMPILED);
  CHECK(Ort::CompileModel(env, compilation).GetErrorCode() == ORT_FAIL);
  std::puts("done");
  return 0;
}
