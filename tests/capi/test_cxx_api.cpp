// The C++ interface: the recorded run of the smallest model, with objects and exceptions.
#include "onnxruntime_training_cxx_api.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "support.h"

using namespace capi_test;

namespace {

struct Run {
  Ort::Env env{ORT_LOGGING_LEVEL_ERROR, "test"};
  Ort::SessionOptions options;
  Ort::CheckpointState state = Ort::CheckpointState::LoadCheckpoint(kMlp / "checkpoint");
  Ort::TrainingSession session{env,
                               options,
                               state,
                               (kMlp / "training_model.onnx").native(),
                               (kMlp / "eval_model.onnx").native(),
                               (kMlp / "optimizer_model.onnx").native()};
  std::vector<float> x = std::vector<float>(4 * 64);
  std::vector<int64_t> y{1, 2, 3, 4};

  std::vector<Ort::Value> batch() {
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::cos(static_cast<float>(i));
    const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    const int64_t xs[] = {4, 64}, ys[] = {4};
    std::vector<Ort::Value> out;
    out.push_back(Ort::Value::CreateTensor<float>(memory, x.data(), x.size(), xs, 2));
    out.push_back(Ort::Value::CreateTensor<int64_t>(memory, y.data(), y.size(), ys, 1));
    return out;
  }
};

float scalar(Ort::Value& value) { return *value.GetTensorMutableData<float>(); }

std::vector<float> numbers_of(const Ort::Value& value) {
  const auto* first = value.GetTensorData<float>();
  return {first, first + value.GetTensorTypeAndShapeInfo().GetElementCount()};
}

std::vector<float> run_of(Ort::Session& session, const Ort::Value& input) {
  const char *from = "input", *to = "output";
  return numbers_of(session.Run(Ort::RunOptions(nullptr), &from, &input, 1, &to, 1)[0]);
}

}  // namespace

TEST_CASE("C++: train, evaluate, save, resume, export") {
  Run run;
  const auto batch = run.batch();
  float last = 0;
  for (int i = 0; i < 5; ++i) {
    auto outputs = run.session.TrainStep(batch);
    REQUIRE(outputs.size() == 1);
    last = scalar(outputs[0]);
    run.session.OptimizerStep();
    run.session.LazyResetGrad();
  }
  auto evaluated = run.session.EvalStep(batch);
  CHECK(scalar(evaluated[0]) < last);
  run.state.AddProperty("epoch", int64_t{3});

  const Scratch scratch;
  Ort::CheckpointState::SaveCheckpoint(run.state, scratch / "checkpoint", true);
  Run resumed;
  resumed.state = Ort::CheckpointState::LoadCheckpoint(scratch / "checkpoint");
  resumed.session = Ort::TrainingSession(
      resumed.env, resumed.options, resumed.state, (kMlp / "training_model.onnx").native(),
      (kMlp / "eval_model.onnx").native(), (kMlp / "optimizer_model.onnx").native());
  CHECK(std::get<int64_t>(resumed.state.GetProperty("epoch")) == 3);
  auto here = run.session.TrainStep(batch), there = resumed.session.TrainStep(batch);
  CHECK(scalar(here[0]) == scalar(there[0]));

  run.session.ExportModelForInferencing(scratch / "inference.onnx", {"output"});
  const Ort::Session inference(run.env, (scratch / "inference.onnx").c_str(), run.options);
  CHECK(std::filesystem::file_size(scratch / "inference.onnx") > 9000);
}

TEST_CASE("C++: names, buffers, learning rate") {
  Run run;
  CHECK(run.session.InputNames(true) == std::vector<std::string>{"input", "labels"});
  CHECK(run.session.OutputNames(false).size() == 1);
  Ort::Value buffer = run.session.ToBuffer(true);
  run.session.FromBuffer(buffer);
  run.session.SetLearningRate(0.25f);
  CHECK(run.session.GetLearningRate() == 0.25f);
  run.session.RegisterLinearLRScheduler(0, 10, 0.5f);
  CHECK(run.session.GetLearningRate() == 0.5f);
  Ort::SetSeed(7);
}

TEST_CASE("C++: errors are exceptions with code and message") {
  Run run;
  try {
    Ort::CheckpointState::LoadCheckpoint(ORT_TSTR("nowhere"));
    FAIL("a missing file was loaded");
  } catch (const Ort::Exception& e) {
    CHECK(e.GetOrtErrorCode() == ORT_NO_SUCHFILE);
    CHECK(std::string(e.what()).find("nowhere") != std::string::npos);
  }
  CHECK_THROWS_AS(run.session.TrainStep({}), Ort::Exception);
  CHECK_THROWS_AS(run.session.SchedulerStep(), Ort::Exception);
  CHECK_THROWS_AS(run.state.GetProperty("none"), Ort::Exception);
}

TEST_CASE("C++: a null character in a text is rejected, not taken for its end") {
  Run run;
  const auto check = [](const char* argument, const std::function<void()>& call) {
    try {
      call();
      FAIL("a null character in " << argument << " was accepted");
    } catch (const Ort::Exception& e) {
      CHECK(e.GetOrtErrorCode() == ORT_INVALID_ARGUMENT);
      CHECK(std::string(e.what()) ==
            std::string("argument ") + argument + ": expected a string, found a null character in it");
    }
  };
  const std::string bad("epoch\0s", 7);
  const std::basic_string<ORTCHAR_T> path =
      (kMlp / "checkpoint").native() + std::basic_string<ORTCHAR_T>(ORT_TSTR("\0.tmp"), 5);
  const Ort::Property one = int64_t{1};  // outside of the lambda, where gcc 12 warns about its destruction
  check("name", [&] { run.state.AddProperty(bad, one); });
  check("value", [&] { run.state.AddProperty("epoch", bad); });
  check("checkpoint_path", [&] { Ort::CheckpointState::LoadCheckpoint(path); });
  check("eval_model_path", [&] {
    Ort::TrainingSession(run.env, run.options, run.state, (kMlp / "training_model.onnx").native(), path);
  });
  const Scratch scratch;
  check("graph_output_names", [&] {
    run.session.ExportModelForInferencing((scratch / "model.onnx").native(), {"output", bad});
  });
  check("key", [&] { run.options.AddConfigEntry(bad, "1"); });
  CHECK_THROWS_AS(run.state.GetProperty("epoch"), Ort::Exception);
  run.state.AddProperty("epoch", std::string("seven"));
  CHECK_FALSE(std::filesystem::exists(scratch / "model.onnx"));
}

TEST_CASE("C++: the types of a sequence and of an optional value") {
  const Ort::AllocatorWithDefaultOptions allocator;
  const std::vector<int64_t> shape{2, 3};
  const Ort::Value tensor = Ort::Value::CreateTensor<int64_t>(allocator, shape.data(), shape.size());
  const OrtValue* const parts[] = {tensor};
  OrtValue* made = nullptr;
  Ort::ThrowOnError(Ort::GetApi().CreateValue(parts, 1, ONNX_TYPE_SEQUENCE, &made));
  const Ort::Value sequence{made};

  const Ort::TypeInfo type = sequence.GetTypeInfo();
  CHECK(type.GetONNXType() == ONNX_TYPE_SEQUENCE);
  const Ort::TypeInfo element = type.GetSequenceTypeInfo().GetSequenceElementType();
  CHECK(element.GetONNXType() == ONNX_TYPE_TENSOR);
  CHECK(element.GetTensorTypeAndShapeInfo().GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64);

  // What a type is not is null, which calls reject by name.
  const Ort::ConstOptionalTypeInfo none = type.GetOptionalTypeInfo();
  CHECK(static_cast<const OrtOptionalTypeInfo*>(none) == nullptr);
  CHECK_THROWS_AS(none.GetOptionalElementType(), Ort::Exception);

  void* memory = allocator.Alloc(16);
  CHECK(memory != nullptr);
  allocator.Free(memory);
}

TEST_CASE("C++: run a model forward, and with its gradients") {
  Run run;
  const auto batch = run.batch();
  const Scratch scratch;
  const std::string loss = run.session.OutputNames(false)[0];
  const std::filesystem::path path = scratch / "forward.onnx";
  run.session.ExportModelForInferencing(path, {loss});
  const float expected = scalar(run.session.EvalStep(batch)[0]);

  Ort::Session session(run.env, path.c_str(), run.options);
  const std::vector<std::string> inputs = session.GetInputNames();
  REQUIRE(session.GetInputCount() == 2);
  REQUIRE(session.GetOutputCount() == 1);
  CHECK(session.GetOutputNames() == std::vector<std::string>{loss});
  CHECK(session.GetOverridableInitializerNames().empty());
  const Ort::AllocatorWithDefaultOptions allocator;
  CHECK(session.GetInputNameAllocated(1, allocator).get() == inputs[1]);
  const Ort::TypeInfo type = session.GetInputTypeInfo(0);
  const Ort::ConstTensorTypeAndShapeInfo declared = type.GetTensorTypeAndShapeInfo();
  CHECK(declared.GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
  CHECK(declared.GetShape() == std::vector<int64_t>{-1, 64});
  const char* symbols[2] = {};
  declared.GetSymbolicDimensions(symbols, 2);
  CHECK(std::string(symbols[0]) != "");
  CHECK(std::string(symbols[1]) == "");

  const char* const input_names[] = {inputs[0].c_str(), inputs[1].c_str()};
  const char* const output_names[] = {loss.c_str()};
  const Ort::RunOptions options;
  std::vector<Ort::Value> outputs = session.Run(options, input_names, batch.data(), 2, output_names, 1);
  CHECK(scalar(outputs[0]) == expected);
  *outputs[0].GetTensorMutableData<float>() = 0;
  session.Run(options, input_names, batch.data(), 2, output_names, outputs.data(), 1);
  CHECK(scalar(outputs[0]) == expected);
  CHECK_THROWS_AS(session.Run(options, output_names, batch.data(), 1, output_names, 1), Ort::Exception);

  std::ifstream file(path, std::ios::binary);
  const std::vector<uint8_t> model((std::istreambuf_iterator<char>(file)), {});
  auto builder = Ort::GradientGraphBuilder::Create(model, {loss}, {inputs[0]}, loss);
  CHECK_THROWS_AS(builder.GetModel(), Ort::Exception);
  builder.Build();
  const std::vector<uint8_t> built = builder.GetModel();
  Ort::Session gradients(run.env, built.data(), built.size(), run.options);
  const std::string gradient = inputs[0] + "_grad";
  const char* const both[] = {loss.c_str(), gradient.c_str()};
  outputs = gradients.Run(options, input_names, batch.data(), 2, both, 2);
  CHECK(std::abs(scalar(outputs[0]) - expected) < 1e-5f);
  CHECK(outputs[1].GetTensorTypeAndShapeInfo().GetShape() == std::vector<int64_t>{4, 64});
}

TEST_CASE("C++: gradients leave a session and enter it") {
  Run run;
  const auto batch = run.batch();
  run.session.TrainStep(batch);
  Ort::Value buffer = run.session.ToBuffer(true);  // of the right size
  const size_t size = buffer.GetTensorTypeAndShapeInfo().GetElementCount();
  float* const gradients = buffer.GetTensorMutableData<float>();
  const auto how_many = [&](float value) {
    return static_cast<size_t>(std::count(gradients, gradients + size, value));
  };
  run.session.CopyGradientsToBuffer(buffer);
  double squares = 0;
  for (size_t i = 0; i < size; ++i) squares += static_cast<double>(gradients[i]) * gradients[i];
  CHECK(std::abs(run.session.GetGradientNorm() - std::sqrt(squares)) < 1e-5 * std::sqrt(squares));

  std::fill(gradients, gradients + size, 1.0f);
  run.session.LazyResetGrad();
  run.session.CopyBufferToGradients(buffer);
  Ort::Value bias = run.state.GetParameter("fc2.bias");
  const size_t count = bias.GetTensorTypeAndShapeInfo().GetElementCount();
  std::fill(bias.GetTensorMutableData<float>(), bias.GetTensorMutableData<float>() + count, -2.0f);
  run.state.SetParameterGradient("fc2.bias", bias);
  run.session.CopyGradientsToBuffer(buffer);
  CHECK(how_many(-2) == count);
  CHECK(how_many(1) == size - count);
  run.session.TrainStep(batch);  // adds to what was written
  run.session.CopyGradientsToBuffer(buffer);
  CHECK(how_many(1) < size - count);
  CHECK_THROWS_AS(run.state.SetParameterGradient("fc1.bias", bias), Ort::Exception);
}

TEST_CASE("C++: bindings, metadata and profiles") {
  const Scratch scratch;
  Run run;
  Ort::SessionOptions options;
  options.EnableProfiling((scratch / "profile").c_str()).AddFreeDimensionOverrideByName("batch", 4);
  Ort::Session session(run.env, (kMlp / "exported_after.onnx").c_str(), options);
  Ort::AllocatorWithDefaultOptions allocator;
  const Ort::ModelMetadata metadata = session.GetModelMetadata();
  CHECK(std::string(metadata.GetProducerNameAllocated(allocator).get()) == "pytorch");
  CHECK(std::string(metadata.GetGraphNameAllocated(allocator).get()) == "main_graph");
  CHECK(metadata.GetCustomMetadataMapKeysAllocated(allocator).empty());
  CHECK(metadata.LookupCustomMetadataMapAllocated("none", allocator) == nullptr);
  CHECK(session.GetInputTypeInfo(0).GetTensorTypeAndShapeInfo().GetShape() == std::vector<int64_t>{4, 64});

  const auto batch = run.batch();
  Ort::IoBinding binding(session);
  binding.BindInput("input", batch[0]);
  binding.BindOutput("output", Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault));
  session.Run(Ort::RunOptions(), binding);
  CHECK(binding.GetOutputNames() == std::vector<std::string>{"output"});
  const std::vector<Ort::Value> bound = binding.GetOutputValues();
  REQUIRE(bound.size() == 1);
  CHECK(numbers_of(bound[0]) == run_of(session, batch[0]));

  CHECK(session.GetProfilingStartTimeNs() > 0);
  const std::string path = session.EndProfilingAllocated(allocator).get();
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  CHECK(text.find("model_run") != std::string::npos);
  binding.ClearBoundInputs();
  binding.ClearBoundOutputs();
  CHECK(binding.GetOutputValues().empty());
}

TEST_CASE("C++: a run in the background, on another thread") {
  Run run;
  Ort::SessionOptions options;
  // On one processor, the default is one thread, which cannot run in the background.
  options.SetIntraOpNumThreads(2);
  Ort::Session session(run.env, (kMlp / "exported_after.onnx").c_str(), options);
  const auto batch = run.batch();
  const std::vector<float> wanted = run_of(session, batch[0]);

  struct Ended {
    std::atomic<bool> done{false};
    std::string error;
  } ended;
  const char *input = "input", *output = "output";
  Ort::Value made{nullptr};
  session.RunAsync(
      Ort::RunOptions(nullptr), &input, batch.data(), 1, &output, &made, 1,
      [](void* data, OrtValue**, size_t, OrtStatus* status) {
        auto* result = static_cast<Ended*>(data);
        if (const Ort::Status failure(status); !failure.IsOK()) result->error = failure.GetErrorMessage();
        result->done = true;
        result->done.notify_one();
      },
      &ended);
  ended.done.wait(false);
  CHECK(ended.error.empty());
  CHECK(numbers_of(made) == wanted);
}

TEST_CASE("C++: a metric counts batches of any size, and continues with its state") {
  std::vector<float> scores{3, 1, 2, 0, 5, 4, 1, 2, 9, 6, 1, 1, 0, 1, 0};
  std::vector<int64_t> classes{0, 1, 2, 1, 1};
  const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const auto count = [&](Ort::Metric& metric, int64_t from, int64_t to) {
    const int64_t shape[] = {to - from, 3};
    const auto rows = static_cast<size_t>(to - from);
    metric.Update(Ort::Value::CreateTensor<float>(memory, scores.data() + 3 * from, 3 * rows, shape, 2),
                  Ort::Value::CreateTensor<int64_t>(memory, classes.data() + from, rows, shape, 1),
                  Ort::Value{nullptr});
  };
  const auto result = [](Ort::Metric& metric) { return *metric.Result().GetTensorMutableData<double>(); };
  Ort::Metric whole = Ort::Metric::Create("accuracy", ""), first = Ort::Metric::Create("accuracy", ""),
              second = Ort::Metric::Create("accuracy", "");
  count(whole, 0, 5);
  CHECK(result(whole) == 0.8);
  count(first, 0, 1);
  second.SetState(first.GetState());
  count(second, 1, 5);
  CHECK(result(second) == 0.8);
  second.Reset();
  CHECK(std::isnan(result(second)));
  count(second, 1, 5);
  second.Merge(first);
  CHECK(result(second) == 0.8);
  CHECK_THROWS_AS(Ort::Metric::Create("acuracy", ""), Ort::Exception);
}

TEST_CASE("C++: a mapped checkpoint evaluates like a loaded one, and rejects train steps") {
  Run loaded;
  Ort::CheckpointState mapped = Ort::CheckpointState::MapCheckpoint((kMlp / "checkpoint").native());
  Ort::TrainingSession session{loaded.env,
                               loaded.options,
                               mapped,
                               (kMlp / "training_model.onnx").native(),
                               (kMlp / "eval_model.onnx").native(),
                               (kMlp / "optimizer_model.onnx").native()};
  auto batch = loaded.batch();
  CHECK(scalar(session.EvalStep(batch)[0]) == scalar(loaded.session.EvalStep(batch)[0]));
  try {
    session.TrainStep(batch);
    FAIL("a train step changed a mapped checkpoint");
  } catch (const Ort::Exception& e) {
    CHECK(std::string(e.what()).find("the checkpoint is mapped") != std::string::npos);
  }
  CHECK_THROWS_AS(Ort::CheckpointState::MapCheckpoint((kMlp / "nowhere").native()), Ort::Exception);
}
