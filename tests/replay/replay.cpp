#include "replay.h"

#include <onnxruntime_training_cxx_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

constexpr double kTolerance = 1e-4;

// The inputs of all steps, two for each. Their memory is `data`.
std::vector<Ort::Value> inputs;
std::string data;

void add_input(std::ifstream& run, size_t& position) {
  int type = 0;
  size_t rank = 0, count = 1;
  run >> type >> rank;
  std::vector<int64_t> shape(rank);
  for (int64_t& dim : shape) run >> dim, count *= static_cast<size_t>(dim);
  const auto element = static_cast<ONNXTensorElementDataType>(type);
  const size_t bytes = count * (element == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 ? 8 : 4);
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  inputs.push_back(
      Ort::Value::CreateTensor(memory, data.data() + position, bytes, shape.data(), rank, element));
  position += bytes;
}

std::vector<Ort::Value> batch(size_t step) {
  std::vector<Ort::Value> given;
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  for (size_t i = 2 * step; i < 2 * step + 2; ++i) {
    const auto info = inputs.at(i).GetTensorTypeAndShapeInfo();
    const std::vector<int64_t> shape = info.GetShape();
    const ONNXTensorElementDataType type = info.GetElementType();
    const size_t bytes = info.GetElementCount() * (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 ? 8 : 4);
    given.push_back(Ort::Value::CreateTensor(memory, inputs.at(i).GetTensorMutableRawData(), bytes,
                                             shape.data(), shape.size(), type));
  }
  return given;
}

// The largest relative difference from the recorded losses.
double replay(const std::filesystem::path& fixture, const std::string& packed) {
  std::ifstream run(packed + ".run"), file(packed + ".data", std::ios::binary);
  data.assign(std::istreambuf_iterator<char>(file), {});
  inputs.clear();
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "replay");
  const Ort::SessionOptions options;
  Ort::CheckpointState state = Ort::CheckpointState::LoadCheckpoint(fixture / "checkpoint");
  Ort::TrainingSession session(env, options, state, fixture / "training_model.onnx",
                               fixture / "eval_model.onnx", fixture / "optimizer_model.onnx");
  bool scheduled = false;
  size_t position = 0, steps = 0, evaluations = 0;
  double worst = 0;
  const auto compare = [&](const Ort::Value& loss) {
    double recorded = 0;
    run >> recorded;
    const double found = *loss.GetTensorData<float>();
    worst =
        std::isfinite(found) ? std::max(worst, std::abs(found - recorded) / std::abs(recorded)) : INFINITY;
  };
  for (std::string word; run >> word;) {
    if (word == "scheduler") {
      int64_t warmup = 0, total = 0;
      float rate = 0;
      run >> warmup >> total >> rate;
      session.RegisterLinearLRScheduler(warmup, total, rate);
      scheduled = true;
    } else if (word == "input") {
      add_input(run, position);
    } else if (word == "step") {
      compare(session.TrainStep(batch(steps++)).front());
      session.OptimizerStep();
      if (scheduled) session.SchedulerStep();
      session.LazyResetGrad();
    } else if (word == "eval") {
      compare(session.EvalStep(batch(evaluations++)).front());
    }
  }
  return steps > 0 ? worst : INFINITY;
}

}  // namespace

int replay_runs(int count, char** arguments) {
  int failed = count > 3 ? 0 : 1;
  for (int i = 3; i < count; ++i) {
    const std::string name = arguments[i];
    try {
      const double worst =
          replay(std::filesystem::path(arguments[1]) / name, std::string(arguments[2]) + "/" + name);
      failed += worst > kTolerance;
      std::printf("%s %s: losses within %.1e of the recorded ones\n", worst > kTolerance ? "FAILED" : "ok",
                  name.c_str(), worst);
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED %s: %s\n", name.c_str(), error.what());
    }
  }
  return failed > 0 ? 1 : 0;
}
