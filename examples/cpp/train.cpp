// Trains with the C++ classes: ./train ARTIFACTS IMAGES LABELS EXPORTED OUTPUT
//
// IMAGES holds float32 rows of 64 numbers, LABELS one int64 for each row, both as raw bytes in the machine's
// order. The trained model is written to EXPORTED with OUTPUT as its output, the checkpoint to EXPORTED.ckpt.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "onnxruntime_training_cxx_api.h"

constexpr int64_t kBatch = 16, kWidth = 64;
constexpr int kEpochs = 5;

template <typename T>
std::vector<T> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error("cannot open " + path);
  std::vector<T> values(static_cast<size_t>(file.tellg()) / sizeof(T));
  file.seekg(0).read(reinterpret_cast<char*>(values.data()),
                     static_cast<std::streamsize>(values.size() * sizeof(T)));
  return values;
}

void train(const std::string& artifacts, std::vector<float> images, std::vector<int64_t> labels,
           const std::string& exported, const std::string& output) {
  const Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "train");
  const Ort::SessionOptions options;
  Ort::CheckpointState state = Ort::CheckpointState::LoadCheckpoint(artifacts + "/checkpoint");
  Ort::TrainingSession session(env, options, state, artifacts + "/training_model.onnx",
                               artifacts + "/eval_model.onnx", artifacts + "/optimizer_model.onnx");
  session.SetLearningRate(1e-3f);

  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const std::vector<int64_t> image_shape{kBatch, kWidth}, label_shape{kBatch};
  const size_t batches = labels.size() / kBatch;
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    double sum = 0;
    for (size_t batch = 0; batch < batches; ++batch) {
      // The tensors look into our memory; nothing is copied.
      std::vector<Ort::Value> inputs;
      inputs.push_back(Ort::Value::CreateTensor<float>(memory, images.data() + batch * kBatch * kWidth,
                                                       kBatch * kWidth, image_shape.data(),
                                                       image_shape.size()));
      inputs.push_back(Ort::Value::CreateTensor<int64_t>(memory, labels.data() + batch * kBatch, kBatch,
                                                         label_shape.data(), label_shape.size()));
      const std::vector<Ort::Value> outputs = session.TrainStep(inputs);
      session.OptimizerStep();
      session.LazyResetGrad();
      sum += *outputs.front().GetTensorData<float>();
    }
    std::printf("epoch %d: loss %.4f\n", epoch, sum / static_cast<double>(batches));
  }

  Ort::CheckpointState::SaveCheckpoint(state, exported + ".ckpt", /*include_optimizer_state=*/true);
  session.ExportModelForInferencing(exported, {output});
}

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: " << argv[0] << " ARTIFACTS IMAGES LABELS EXPORTED OUTPUT\n";
    return 2;
  }
  try {
    auto images = read_file<float>(argv[2]);
    auto labels = read_file<int64_t>(argv[3]);
    if (images.size() != labels.size() * kWidth)
      throw std::runtime_error("expected one label for each row of images");
    train(argv[1], std::move(images), std::move(labels), argv[4], argv[5]);
  } catch (const std::exception& error) {  // Ort::Exception is one
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
