// The C interface as a C program uses it: the tables, the training loop, and the results of bad calls.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>

#include "support.h"

using namespace capi_test;

namespace {

struct Refusal {
  OrtErrorCode code;
  std::string message;
};

void ok(OrtStatus* status) {
  const std::string message = status ? ort().GetErrorMessage(status) : "";
  ort().ReleaseStatus(status);
  INFO(message);
  REQUIRE(message.empty());
}

Refusal refused(OrtStatus* status) {
  REQUIRE(status != nullptr);
  Refusal out{ort().GetErrorCode(status), ort().GetErrorMessage(status)};
  ort().ReleaseStatus(status);
  REQUIRE(!out.message.empty());
  return out;
}

void refused_with(OrtStatus* status, const std::string& word) {
  const Refusal refusal = refused(status);
  INFO(refusal.message);
  CHECK(refusal.message.find(word) != std::string::npos);
}

// A training session over the smallest recorded run, with one batch.
struct Run {
  OrtEnv* env = nullptr;
  OrtSessionOptions* options = nullptr;
  OrtCheckpointState* state = nullptr;
  OrtTrainingSession* session = nullptr;
  OrtMemoryInfo* memory = nullptr;
  OrtAllocator* allocator = nullptr;
  std::vector<float> x = std::vector<float>(8 * 64);
  std::vector<int64_t> y = std::vector<int64_t>(8);
  OrtValue *xs = nullptr, *ys = nullptr;

  explicit Run(bool eval = true, bool optimizer = true) {
    ok(ort().CreateEnv(ORT_LOGGING_LEVEL_ERROR, "test", &env));
    ok(ort().CreateSessionOptions(&options));
    ok(ort().SetIntraOpNumThreads(options, 1));
    ok(training().LoadCheckpoint((kMlp / "checkpoint").c_str(), &state));
    ok(training().CreateTrainingSession(env, options, state, (kMlp / "training_model.onnx").c_str(),
                                        eval ? (kMlp / "eval_model.onnx").c_str() : nullptr,
                                        optimizer ? (kMlp / "optimizer_model.onnx").c_str() : nullptr,
                                        &session));
    ok(ort().CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    ok(ort().GetAllocatorWithDefaultOptions(&allocator));
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
    for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<int64_t>(i % 10);
    xs = value(x.data(), x.size() * sizeof(float), {8, 64}, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
    ys = value(y.data(), y.size() * sizeof(int64_t), {8}, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64);
  }
  ~Run() {
    ort().ReleaseValue(xs);
    ort().ReleaseValue(ys);
    ort().ReleaseMemoryInfo(memory);
    training().ReleaseTrainingSession(session);
    training().ReleaseCheckpointState(state);
    ort().ReleaseSessionOptions(options);
    ort().ReleaseEnv(env);
  }
  OrtValue* value(void* data, size_t bytes, std::vector<int64_t> shape,
                  ONNXTensorElementDataType type) const {
    OrtValue* out = nullptr;
    ok(ort().CreateTensorWithDataAsOrtValue(memory, data, bytes, shape.data(), shape.size(), type, &out));
    return out;
  }
  float step() {
    const OrtValue* inputs[] = {xs, ys};
    OrtValue* loss = nullptr;
    ok(training().TrainStep(session, nullptr, 2, inputs, 1, &loss));
    float* at = nullptr;
    ok(ort().GetTensorMutableData(loss, reinterpret_cast<void**>(&at)));
    const float out = *at;
    ort().ReleaseValue(loss);
    return out;
  }
};

}  // namespace

TEST_CASE("every slot of the tables holds a function") {
  const auto* general = reinterpret_cast<void* const*>(&ort());
  for (size_t i = 0; i < sizeof(OrtApi) / sizeof(void*); ++i) {
    INFO("slot " << i);
    CHECK(general[i] != nullptr);
  }
  const auto* calls = reinterpret_cast<void* const*>(&training());
  CHECK(sizeof(OrtTrainingApi) / sizeof(void*) == 33);
  for (size_t i = 0; i < 33; ++i) CHECK(calls[i] != nullptr);
}

TEST_CASE("older callers get the table, newer ones nothing") {
  for (uint32_t version = 1; version <= ORT_API_VERSION; ++version)
    CHECK(OrtGetApiBase()->GetApi(version) != nullptr);
  CHECK(OrtGetApiBase()->GetApi(ORT_API_VERSION + 1) == nullptr);
  CHECK(OrtGetApiBase()->GetApi(std::numeric_limits<uint32_t>::max()) == nullptr);
}

TEST_CASE("a call that is not implemented says so and names itself") {
  OrtValue* value = nullptr;
  const Refusal refusal = refused(ort().CreateOpaqueValue("domain", "type", "data", 4, &value));
  CHECK(refusal.code == ORT_NOT_IMPLEMENTED);
  CHECK(refusal.message.find("CreateOpaqueValue") != std::string::npos);
}

TEST_CASE("the training loop lowers the loss") {
  Run run;
  const float first = run.step();
  float last = first;
  for (int i = 0; i < 20; ++i) {
    ok(training().OptimizerStep(run.session, nullptr));
    ok(training().LazyResetGrad(run.session));
    last = run.step();
  }
  CHECK(last < first);
}

TEST_CASE("gradients add up until they are reset") {
  Run run;
  const auto gradient = [&] {
    OrtValue* value = nullptr;
    ok(OrtrainGetApi(ORTRAIN_API_VERSION)
           ->CheckpointGetParameterGradient(run.state, "fc2.bias", run.allocator, &value));
    float* at = nullptr;
    ok(ort().GetTensorMutableData(value, reinterpret_cast<void**>(&at)));
    std::vector<float> out(at, at + 10);
    ort().ReleaseValue(value);
    return out;
  };
  run.step();
  const std::vector<float> once = gradient();
  run.step();
  const std::vector<float> twice = gradient();
  for (size_t i = 0; i < once.size(); ++i) CHECK(twice[i] == Catch::Approx(2 * once[i]));
  ok(training().LazyResetGrad(run.session));
  run.step();
  CHECK(gradient() == once);
}

TEST_CASE("half-made gradients are never applied") {
  Run run;
  const float before = run.step();
  run.y[2] = 99;  // found while the step runs
  const OrtValue* inputs[] = {run.xs, run.ys};
  OrtValue* loss = nullptr;
  refused_with(training().TrainStep(run.session, nullptr, 2, inputs, 1, &loss), "99");
  refused_with(training().OptimizerStep(run.session, nullptr), "train step");
  run.y[2] = 2;
  CHECK(run.step() == before);
  ok(training().OptimizerStep(run.session, nullptr));
}

TEST_CASE("null arguments are refused by name") {
  Run run;
  const OrtValue* inputs[] = {run.xs, run.ys};
  OrtValue* loss = nullptr;
  size_t count = 0;
  float rate = 0;
  // These have no way to say so.
  CHECK(ort().ExternalInitializerInfo_GetFilePath(nullptr) == nullptr);
  CHECK(ort().ExternalInitializerInfo_GetFileOffset(nullptr) == 0);
  CHECK(ort().ExternalInitializerInfo_GetByteSize(nullptr) == 0);
  refused_with(training().LoadCheckpoint(nullptr, &run.state), "checkpoint_path");
  refused_with(training().LoadCheckpoint(ORT_TSTR("x"), nullptr), "checkpoint_state");
  refused_with(training().SaveCheckpoint(nullptr, ORT_TSTR("x"), false), "checkpoint_state");
  refused_with(training().TrainStep(nullptr, nullptr, 2, inputs, 1, &loss), "sess");
  refused_with(training().TrainStep(run.session, nullptr, 2, nullptr, 1, &loss), "inputs");
  refused_with(training().TrainStep(run.session, nullptr, 2, inputs, 1, nullptr), "outputs");
  refused_with(training().GetLearningRate(run.session, nullptr), "learning_rate");
  refused_with(training().GetLearningRate(nullptr, &rate), "sess");
  refused_with(training().TrainingSessionGetTrainingModelInputCount(nullptr, &count), "sess");
  refused_with(training().GetParameter(run.state, nullptr, run.allocator, &loss), "parameter_name");
  refused_with(training().AddProperty(run.state, nullptr, OrtIntProperty, &count), "property_name");
  refused_with(training().AddProperty(run.state, "p", OrtIntProperty, nullptr), "property_value");
  const OrtValue* holes[] = {run.xs, nullptr};
  refused(training().TrainStep(run.session, nullptr, 2, holes, 1, &loss));
  CHECK(run.step() > 0);
}

TEST_CASE("wrong step inputs are named and the session goes on") {
  Run run;
  const float before = run.step();
  OrtValue* loss = nullptr;
  const OrtValue* one[] = {run.xs};
  refused_with(training().TrainStep(run.session, nullptr, 1, one, 1, &loss), "2 inputs, found 1");
  const OrtValue* swapped[] = {run.ys, run.xs};
  refused_with(training().TrainStep(run.session, nullptr, 2, swapped, 1, &loss), "int64");
  OrtValue* narrow =
      run.value(run.x.data(), 8 * 63 * sizeof(float), {8, 63}, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
  const OrtValue* shape[] = {narrow, run.ys};
  refused_with(training().TrainStep(run.session, nullptr, 2, shape, 1, &loss), "63");
  ort().ReleaseValue(narrow);
  OrtValue* many[] = {nullptr, nullptr, nullptr};
  const OrtValue* inputs[] = {run.xs, run.ys};
  refused_with(training().TrainStep(run.session, nullptr, 2, inputs, 3, many), "1 output");
  CHECK(loss == nullptr);
  ok(training().LazyResetGrad(run.session));
  CHECK(run.step() == before);
}

TEST_CASE("an output that the caller gives is written into") {
  Run run;
  float room = -1;
  OrtValue* loss = run.value(&room, sizeof room, {}, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
  const OrtValue* inputs[] = {run.xs, run.ys};
  OrtValue* given = loss;
  ok(training().TrainStep(run.session, nullptr, 2, inputs, 1, &given));
  CHECK(given == loss);
  CHECK(room > 0);
  int64_t wrong = 0;
  OrtValue* other = run.value(&wrong, sizeof wrong, {}, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64);
  OrtValue* still = other;
  refused_with(training().TrainStep(run.session, nullptr, 2, inputs, 1, &still), "int64");
  ort().ReleaseValue(loss);
  ort().ReleaseValue(other);
}

TEST_CASE("values that do not hold together are refused") {
  Run run;
  OrtValue* out = nullptr;
  const int64_t shape[] = {8, 64}, negative[] = {-8, 64}, huge[] = {int64_t{1} << 62, 8};
  refused(ort().CreateTensorWithDataAsOrtValue(run.memory, run.x.data(), 100, shape, 2,
                                               ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &out));
  refused(ort().CreateTensorWithDataAsOrtValue(run.memory, run.x.data(), run.x.size() * 4, negative, 2,
                                               ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &out));
  refused(ort().CreateTensorAsOrtValue(run.allocator, huge, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &out));
  refused(
      ort().CreateTensorAsOrtValue(run.allocator, negative, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &out));
  refused(ort().CreateTensorWithDataAsOrtValue(run.memory, run.x.data(), run.x.size() * 4, shape, 2,
                                               ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &out));
  CHECK(out == nullptr);
}

TEST_CASE("sequences are made of tensors and give copies of them") {
  Run run;
  std::vector<float> a = {1, 2}, b = {3, 4, 5};
  std::vector<int64_t> c = {6};
  const auto floats = [&](std::vector<float>& x) {
    return run.value(x.data(), x.size() * 4, {static_cast<int64_t>(x.size())},
                     ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
  };
  OrtValue* parts[] = {floats(a), floats(b),
                       run.value(c.data(), 8, {1}, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64)};
  OrtValue *sequence = nullptr, *other = nullptr, *element = nullptr;
  ok(ort().CreateValue(parts, 2, ONNX_TYPE_SEQUENCE, &sequence));
  refused_with(ort().CreateValue(parts, 3, ONNX_TYPE_SEQUENCE, &other),
               "element 2 of a sequence of type float32");
  refused(ort().CreateValue(parts, 2, ONNX_TYPE_MAP, &other));
  refused_with(ort().CreateValue(&sequence, 1, ONNX_TYPE_SEQUENCE, &other), "expected a tensor");

  ONNXType kind = ONNX_TYPE_UNKNOWN;
  int is_tensor = 1, has = 0;
  size_t count = 0;
  ok(ort().GetValueType(sequence, &kind));
  ok(ort().IsTensor(sequence, &is_tensor));
  ok(ort().HasValue(sequence, &has));
  ok(ort().GetValueCount(sequence, &count));
  CHECK(kind == ONNX_TYPE_SEQUENCE);
  CHECK(is_tensor == 0);
  CHECK(has == 1);
  CHECK(count == 2);
  ok(ort().GetValue(sequence, 1, run.allocator, &element));
  float* at = nullptr;
  ok(ort().GetTensorMutableData(element, reinterpret_cast<void**>(&at)));
  CHECK(at[2] == 5);
  at[2] = 7;
  CHECK(b[2] == 5);
  refused_with(ort().GetValue(sequence, 2, run.allocator, &other), "no element with index 2");
  refused(ort().GetValue(sequence, -1, run.allocator, &other));
  refused_with(ort().GetValueCount(element, &count), "expected a sequence");
  refused_with(ort().GetTensorMutableData(sequence, reinterpret_cast<void**>(&at)), "expected a tensor");

  OrtTypeInfo *type = nullptr, *inner = nullptr;
  const OrtSequenceTypeInfo* of_sequence = nullptr;
  const OrtTensorTypeAndShapeInfo* of_tensor = nullptr;
  ok(ort().GetTypeInfo(sequence, &type));
  ok(ort().CastTypeInfoToTensorInfo(type, &of_tensor));
  CHECK(of_tensor == nullptr);
  ok(ort().CastTypeInfoToSequenceTypeInfo(type, &of_sequence));
  ok(ort().GetSequenceElementType(of_sequence, &inner));
  ok(ort().CastTypeInfoToTensorInfo(inner, &of_tensor));
  ONNXTensorElementDataType dtype = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  ok(ort().GetTensorElementType(of_tensor, &dtype));
  CHECK(dtype == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
  ort().ReleaseTypeInfo(inner);
  ort().ReleaseTypeInfo(type);
  ort().ReleaseValue(element);
  ort().ReleaseValue(sequence);
  for (OrtValue* part : parts) ort().ReleaseValue(part);
}

TEST_CASE("an optimizer model updates the tensors of its sequences") {
  Run run;
  OrtSessionOptions* options = nullptr;
  OrtSession* session = nullptr;
  ok(ort().CreateSessionOptions(&options));
  ok(ort().CreateSession(run.env, (kMlp / "optimizer_model.onnx").c_str(), options, &session));
  std::vector<float> rate = {0.1f}, w = {1, -1}, g = {0.5f, 2}, m = {0, 0}, v = {0, 0};
  std::vector<int64_t> step = {1};
  std::vector<OrtValue*> made;
  const auto sequence = [&](std::vector<float>& x) {
    OrtValue* tensor = run.value(x.data(), 8, {2}, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
    made.push_back(tensor);
    OrtValue* out = nullptr;
    ok(ort().CreateValue(&tensor, 1, ONNX_TYPE_SEQUENCE, &out));
    made.push_back(out);
    return out;
  };
  OrtValue* rates = run.value(rate.data(), 4, {1}, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
  OrtValue* steps = run.value(step.data(), 8, {1}, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64);
  made.insert(made.end(), {rates, steps});
  const OrtValue* inputs[] = {rates, steps, sequence(w), sequence(g), sequence(m), sequence(v)};
  const char* names[] = {"learning_rate",       "step", "params", "gradients", "first_order_moments",
                         "second_order_moments"};
  char* output = nullptr;
  ok(ort().SessionGetOutputName(session, 0, run.allocator, &output));
  OrtValue* flag = nullptr;
  ok(ort().Run(session, nullptr, names, inputs, 6, &output, 1, &flag));
  // The first step of Adam has the length of the learning rate, whatever the gradient.
  CHECK(std::abs(w[0] - 0.9f) < 1e-4f);
  CHECK(std::abs(w[1] + 1.1f) < 1e-4f);
  CHECK(std::abs(m[1] - 0.2f) < 1e-6f);
  CHECK(std::abs(v[1] - 0.004f) < 1e-6f);
  CHECK(g[1] == 2);
  run.allocator->Free(run.allocator, output);
  ort().ReleaseValue(flag);
  for (OrtValue* value : made) ort().ReleaseValue(value);
  ort().ReleaseSession(session);
  ort().ReleaseSessionOptions(options);
}

TEST_CASE("calls say what they lack") {
  Run bare(false, false);
  OrtValue* loss = nullptr;
  const OrtValue* inputs[] = {bare.xs, bare.ys};
  const char* names[] = {"output"};
  refused_with(training().EvalStep(bare.session, nullptr, 2, inputs, 1, &loss), "eval model");
  refused_with(training().OptimizerStep(bare.session, nullptr), "optimizer model");
  refused_with(training().SetLearningRate(bare.session, 0.1f), "optimizer model");
  refused_with(training().SchedulerStep(bare.session), "optimizer model");
  refused_with(training().ExportModelForInferencing(bare.session, ORT_TSTR("never.onnx"), 1, names),
               "eval model");
  CHECK(bare.step() > 0);
  Run run;
  refused_with(training().SchedulerStep(run.session), "scheduler");
  refused_with(training().OptimizerStep(run.session, nullptr), "train step");
}

TEST_CASE("numbers that make no sense are refused") {
  Run run;
  refused_with(training().SetLearningRate(run.session, std::nanf("")), "finite");
  refused_with(training().RegisterLinearLRScheduler(run.session, -1, 10, 0.1f), "-1");
  refused_with(training().RegisterLinearLRScheduler(run.session, 1, -10, 0.1f), "-10");
  float rate = 0;
  ok(training().GetLearningRate(run.session, &rate));
  CHECK(std::isfinite(rate));
}

TEST_CASE("the schedule rises and falls linearly") {
  Run run;
  ok(training().RegisterLinearLRScheduler(run.session, 2, 6, 0.4f));
  const float expected[] = {0.f, 0.2f, 0.4f, 0.3f, 0.2f, 0.1f, 0.f, 0.f};
  for (const float want : expected) {
    float rate = -1;
    ok(training().GetLearningRate(run.session, &rate));
    CHECK(rate == Catch::Approx(want).margin(1e-7));
    run.step();
    ok(training().OptimizerStep(run.session, nullptr));
    ok(training().SchedulerStep(run.session));
  }
}

TEST_CASE("properties of every type come back") {
  Run run;
  int64_t integer = 42;
  float real = 1.5f;
  const char* text = "epoch three";
  ok(training().AddProperty(run.state, "i", OrtIntProperty, &integer));
  ok(training().AddProperty(run.state, "f", OrtFloatProperty, &real));
  ok(training().AddProperty(run.state, "s", OrtStringProperty, const_cast<char*>(text)));
  const Scratch scratch;
  ok(training().SaveCheckpoint(run.state, (scratch / "c").c_str(), true));
  const std::vector<char> file = bytes_of(scratch / "c");
  OrtCheckpointState* loaded = nullptr;
  ok(training().LoadCheckpointFromBuffer(file.data(), file.size(), &loaded));
  OrtPropertyType type;
  void* value = nullptr;
  ok(training().GetProperty(loaded, "i", run.allocator, &type, &value));
  CHECK((type == OrtIntProperty && *static_cast<int64_t*>(value) == 42));
  ok(ort().AllocatorFree(run.allocator, value));
  ok(training().GetProperty(loaded, "f", run.allocator, &type, &value));
  CHECK((type == OrtFloatProperty && *static_cast<float*>(value) == 1.5f));
  ok(ort().AllocatorFree(run.allocator, value));
  ok(training().GetProperty(loaded, "s", run.allocator, &type, &value));
  CHECK((type == OrtStringProperty && std::strcmp(static_cast<char*>(value), text) == 0));
  ok(ort().AllocatorFree(run.allocator, value));
  refused_with(training().GetProperty(loaded, "none", run.allocator, &type, &value), "none");
  training().ReleaseCheckpointState(loaded);
}

TEST_CASE("parameters travel by buffer and by name") {
  Run run;
  size_t size = 0;
  ok(training().GetParametersSize(run.session, &size, true));
  REQUIRE(size == 64 * 32 + 32 + 32 * 10 + 10);
  std::vector<float> weights(size);
  const auto dim = static_cast<int64_t>(size);
  OrtValue* buffer = run.value(weights.data(), size * 4, {dim}, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
  ok(training().CopyParametersToBuffer(run.session, buffer, true));
  const std::vector<float> before = weights;
  OrtValue* made = nullptr;
  ok(OrtrainGetApi(ORTRAIN_API_VERSION)->GetContiguousParameters(run.session, true, run.allocator, &made));
  const float* copied = nullptr;
  ok(ort().GetTensorData(made, reinterpret_cast<const void**>(&copied)));
  CHECK(std::vector<float>(copied, copied + size) == before);
  ort().ReleaseValue(made);
  for (float& w : weights) w *= 0.5f;
  ok(training().CopyBufferToParameters(run.session, buffer, true));
  OrtValue* bias = nullptr;
  ok(training().GetParameter(run.state, "fc1.weight", run.allocator, &bias));
  float* at = nullptr;
  ok(ort().GetTensorMutableData(bias, reinterpret_cast<void**>(&at)));
  CHECK(at[0] == 0.5f * before[0]);
  ok(training().UpdateParameter(run.state, "fc1.weight", bias));
  OrtTensorTypeAndShapeInfo* info = nullptr;
  ok(training().GetParameterTypeAndShape(run.state, "fc1.weight", &info));
  size_t rank = 0;
  ok(ort().GetDimensionsCount(info, &rank));
  CHECK(rank == 2);
  ort().ReleaseTensorTypeAndShapeInfo(info);
  refused_with(training().UpdateParameter(run.state, "fc1.bias", bias), "fc1.bias");
  refused_with(training().GetParameter(run.state, "fc3.weight", run.allocator, &bias), "fc3.weight");
  OrtValue* small = run.value(weights.data(), 40, {10}, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
  refused_with(training().CopyParametersToBuffer(run.session, small, true), "10");
  ort().ReleaseValue(small);
  ort().ReleaseValue(bias);
  ort().ReleaseValue(buffer);
}

TEST_CASE("a training session without options has the defaults") {
  Run run;
  OrtTrainingSession* session = nullptr;
  OrtCheckpointState* state = nullptr;
  ok(training().LoadCheckpoint((kMlp / "checkpoint").c_str(), &state));
  ok(training().CreateTrainingSession(run.env, nullptr, state, (kMlp / "training_model.onnx").c_str(),
                                      nullptr, nullptr, &session));
  std::swap(session, run.session);
  const float loss = run.step();
  std::swap(session, run.session);
  CHECK(loss == Run().step());
  training().ReleaseTrainingSession(session);
  training().ReleaseCheckpointState(state);
}

TEST_CASE("models and checkpoints from memory are those from files") {
  Run files;
  const auto train = bytes_of(kMlp / "training_model.onnx"), eval = bytes_of(kMlp / "eval_model.onnx"),
             optimizer = bytes_of(kMlp / "optimizer_model.onnx"), checkpoint = bytes_of(kMlp / "checkpoint");
  OrtCheckpointState* state = nullptr;
  ok(training().LoadCheckpointFromBuffer(checkpoint.data(), checkpoint.size(), &state));
  OrtTrainingSession* session = nullptr;
  ok(training().CreateTrainingSessionFromBuffer(files.env, files.options, state, train.data(), train.size(),
                                                eval.data(), eval.size(), optimizer.data(), optimizer.size(),
                                                &session));
  std::swap(session, files.session);
  const float from_memory = files.step();
  std::swap(session, files.session);
  CHECK(from_memory == files.step());
  training().ReleaseTrainingSession(session);
  training().ReleaseCheckpointState(state);
  OrtTrainingSession* none = nullptr;
  refused(training().CreateTrainingSessionFromBuffer(files.env, files.options, files.state, train.data(),
                                                     train.size() / 2, nullptr, 0, nullptr, 0, &none));
  refused(training().LoadCheckpointFromBuffer(checkpoint.data(), 0, &state));
  CHECK(none == nullptr);
}

TEST_CASE("one session at two threads never gives a wrong number") {
  Run run;
  const float alone = run.step();
  std::atomic<int> busy{0}, wrong{0}, done{0};
  const auto work = [&] {
    for (int i = 0; i < 200; ++i) {
      const OrtValue* inputs[] = {run.xs, run.ys};
      OrtValue* loss = nullptr;
      OrtStatus* status = training().TrainStep(run.session, nullptr, 2, inputs, 1, &loss);
      if (status) {
        busy += std::string(ort().GetErrorMessage(status)).find("another thread") != std::string::npos;
        ort().ReleaseStatus(status);
        continue;
      }
      void* at = nullptr;
      ort().ReleaseStatus(ort().GetTensorMutableData(loss, &at));
      wrong += *static_cast<float*>(at) != alone;
      ort().ReleaseValue(loss);
      ++done;
    }
  };
  std::thread first(work), second(work);
  first.join();
  second.join();
  CHECK(wrong == 0);
  CHECK(done + busy == 400);
}

TEST_CASE("a run can be ended by its options") {
  Run run;
  OrtRunOptions* options = nullptr;
  ok(ort().CreateRunOptions(&options));
  ok(ort().RunOptionsSetTerminate(options));
  const OrtValue* inputs[] = {run.xs, run.ys};
  OrtValue* loss = nullptr;
  refused_with(training().TrainStep(run.session, options, 2, inputs, 1, &loss), "terminated");
  ok(ort().RunOptionsUnsetTerminate(options));
  ok(training().TrainStep(run.session, options, 2, inputs, 1, &loss));
  ort().ReleaseValue(loss);
  ort().ReleaseRunOptions(options);
}

TEST_CASE("forward sessions run exported models, from two threads one after the other") {
  Run run;
  const Scratch scratch;
  const std::filesystem::path path = scratch / "forward.onnx";
  char *loss_name = nullptr, *x_name = nullptr, *y_name = nullptr;
  ok(training().TrainingSessionGetEvalModelOutputName(run.session, 0, run.allocator, &loss_name));
  ok(training().ExportModelForInferencing(run.session, path.c_str(), 1, &loss_name));
  const OrtValue* inputs[] = {run.xs, run.ys};
  OrtValue* evaluated = nullptr;
  ok(training().EvalStep(run.session, nullptr, 2, inputs, 1, &evaluated));
  void* at = nullptr;
  ok(ort().GetTensorMutableData(evaluated, &at));
  const float expected = *static_cast<float*>(at);

  OrtSession* session = nullptr;
  ok(ort().CreateSession(run.env, path.c_str(), nullptr, &session));  // with the defaults for options
  ok(ort().SessionGetInputName(session, 0, run.allocator, &x_name));
  ok(ort().SessionGetInputName(session, 1, run.allocator, &y_name));
  const char* names[] = {x_name, y_name};

  float room = 0;
  OrtValue* given = run.value(&room, sizeof room, {}, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
  ok(ort().Run(session, nullptr, names, inputs, 2, &loss_name, 1, &given));
  CHECK(room == expected);
  const char* twice[] = {x_name, x_name};
  refused_with(ort().Run(session, nullptr, twice, inputs, 2, &loss_name, 1, &given), "given twice");
  refused_with(ort().Run(session, nullptr, names, inputs, 2, &loss_name, 0, &given), "output_names_len is 0");
  char* none = nullptr;
  refused_with(ort().SessionGetOverridableInitializerName(session, 0, run.allocator, &none),
               "overridable initializer number 0");
  CHECK(none == nullptr);

  std::atomic<int> wrong{0};
  const auto work = [&] {
    for (int i = 0; i < 200; ++i) {
      OrtValue* made = nullptr;
      OrtStatus* status = ort().Run(session, nullptr, names, inputs, 2, &loss_name, 1, &made);
      void* found = nullptr;
      if (status == nullptr) status = ort().GetTensorMutableData(made, &found);
      wrong += status != nullptr || *static_cast<float*>(found) != expected;
      ort().ReleaseStatus(status);
      ort().ReleaseValue(made);
    }
  };
  std::thread first(work), second(work);
  first.join();
  second.join();
  CHECK(wrong == 0);

  ort().ReleaseSession(session);
  ort().ReleaseValue(given);
  ort().ReleaseValue(evaluated);
  for (char* name : {loss_name, x_name, y_name}) ok(ort().AllocatorFree(run.allocator, name));
}

TEST_CASE("a metric refuses what does not fit, and counts nothing of it") {
  const OrtrainApi& own = *OrtrainGetApi(ORTRAIN_API_VERSION);
  Run run;
  OrtMetric *metric = nullptr, *other = nullptr;
  refused_with(own.CreateMetric("acuracy", "", &metric), "did you mean \"accuracy\"");
  refused_with(own.CreateMetric("accuracy", "k=3", &metric),
               "no option \"k\"; expected one of \"ignore_index\"");
  refused_with(own.CreateMetric("f1", "average=weighted", &metric),
               "one of \"macro\", \"micro\", \"binary\"");
  refused_with(own.CreateMetric("top_k", "k=0", &metric), "at least 1");
  ok(own.CreateMetric("perplexity", "", &metric));
  ok(own.CreateMetric("confusion_matrix", "", &other));

  OrtValue* loss = nullptr;
  double cross_entropy = std::log(20.0);
  loss = run.value(&cross_entropy, sizeof cross_entropy, {}, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE);
  refused_with(own.MetricUpdate(metric, nullptr, run.ys, nullptr), "expected the loss");
  ok(own.MetricUpdate(metric, nullptr, run.ys, loss));
  refused_with(own.MetricUpdate(other, nullptr, run.ys, nullptr), "expected a prediction");
  refused_with(own.MetricUpdate(other, run.ys, run.xs, nullptr), "one class index for each of 8 predictions");
  run.y[3] = -7;
  refused_with(own.MetricUpdate(other, run.xs, run.ys, nullptr), "found -7");
  run.y[3] = 5000;
  refused_with(own.MetricUpdate(other, run.xs, run.ys, nullptr), "at most 4096 classes, found 5001");
  refused_with(own.MetricMerge(metric, other), "same name and options");

  const auto result = [&](OrtMetric* of, size_t elements) {
    OrtValue* out = nullptr;
    ok(own.MetricResult(of, &out));
    OrtTensorTypeAndShapeInfo* info = nullptr;
    ok(ort().GetTensorTypeAndShape(out, &info));
    size_t count = 0;
    ok(ort().GetTensorShapeElementCount(info, &count));
    ort().ReleaseTensorTypeAndShapeInfo(info);
    CHECK(count == elements);
    void* data = nullptr;
    ok(ort().GetTensorMutableData(out, &data));
    const double first = count > 0 ? *static_cast<double*>(data) : 0;
    ort().ReleaseValue(out);
    return first;
  };
  CHECK(result(metric, 1) == Catch::Approx(20));
  result(other, 0);

  // A state that is cut anywhere is refused, and the metric keeps its counts.
  void* state = nullptr;
  size_t size = 0;
  ok(own.MetricGetState(metric, run.allocator, &state, &size));
  for (size_t cut = 0; cut < size; ++cut) refused(own.MetricSetState(metric, state, cut));
  refused_with(own.MetricSetState(other, state, size),
               "the state belongs to \"perplexity ignore_index=-100\"");
  CHECK(result(metric, 1) == Catch::Approx(20));
  ok(own.MetricSetState(metric, state, size));
  CHECK(result(metric, 1) == Catch::Approx(20));
  ok(ort().AllocatorFree(run.allocator, state));
  ort().ReleaseValue(loss);
  own.ReleaseMetric(metric);
  own.ReleaseMetric(other);
}
