// The training run that the tests of this folder disturb: LeNet, AdamW, and batches that follow from the
// step.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/onnx_io.h"
#include "session/training_session.h"
#include "state/checkpoint_io.h"

namespace ortrain::faults {

inline const std::filesystem::path kCase = std::filesystem::path(TEST_DATA) / "fixtures" / "lenet_adamw";
inline constexpr int64_t kBatch = 4;

inline std::unique_ptr<TrainingSession> make_session(const std::shared_ptr<CheckpointState>& state) {
  SessionOptions options;
  options.intra_op_threads = 1;
  return std::make_unique<TrainingSession>(options, state, read_model(kCase / "training_model.onnx"),
                                           read_model(kCase / "eval_model.onnx"),
                                           read_model(kCase / "optimizer_model.onnx"));
}

// A train step of at most kBatch images.
inline void train(TrainingSession& session, int64_t batch) {
  static std::vector<float> images = [] {
    std::vector<float> made(kBatch * 8 * 8);
    for (size_t i = 0; i < made.size(); ++i) made[i] = static_cast<float>(i * 37 % 101) / 101;
    return made;
  }();
  static int64_t labels[kBatch] = {1, 0, 2, 1};
  const Tensor x(DType::kFloat, {batch, 1, 8, 8}, reinterpret_cast<std::byte*>(images.data()));
  const Tensor y(DType::kInt64, {batch}, reinterpret_cast<std::byte*>(labels));
  std::vector<Tensor> outputs(session.output_names(true).size());
  std::vector<Tensor*> wanted;
  for (Tensor& output : outputs) wanted.push_back(&output);
  const Tensor* inputs[] = {&x, &y};
  session.train_step(inputs, wanted);
}

inline void add_bytes(std::string& bytes, const Tensor& tensor) {
  bytes.append(reinterpret_cast<const char*>(tensor.raw()), tensor.bytes());
}

// Everything of a state that a checkpoint holds, but for its properties.
inline std::string bytes_of(const CheckpointState& state) {
  std::string bytes;
  for (const Parameter& p : state.parameters()) {
    add_bytes(bytes, p.row_major(p.data));
    for (const Tensor& moment : p.moments) add_bytes(bytes, p.row_major(moment));
  }
  const OptimizerState& o = state.optimizer();
  bytes.append(reinterpret_cast<const char*>(&o.step), sizeof o.step);
  bytes.append(reinterpret_cast<const char*>(&o.initial_learning_rate), sizeof o.initial_learning_rate);
  return bytes;
}

// Saves to one file, or to two, as a checkpoint of more than 2 GB is saved.
inline void save(const CheckpointState& state, const std::filesystem::path& path, bool two_files) {
  CheckpointIo::write(state, path, true, two_files ? 100 : CheckpointIo::kLargestFile);
}

}  // namespace ortrain::faults
