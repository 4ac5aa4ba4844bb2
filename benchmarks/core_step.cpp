// Measures the time of a train step in the core, without an interface around it; overhead.py compares the
// languages with this time. The program is linked with the core's objects, because libortrain exports only
// its C interface.
//
//     core_step FOLDER STEPS
//
// FOLDER has the artifacts of a model from 64 values to ten classes. After two hundred warm-up steps, the
// program prints the median time of the other steps, in the format of the runners of tests/scenarios.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <vector>

#include "graph/onnx_io.h"
#include "session/training_session.h"

int main(int argc, char** argv) try {
  const int64_t steps = argc == 3 ? std::atoll(argv[2]) : 0;
  if (steps < 1) {
    std::fprintf(stderr, "usage: %s FOLDER STEPS\n", argv[0]);
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  ortrain::TrainingSession session({}, ortrain::CheckpointState::load(folder / "checkpoint"),
                                   ortrain::read_model(folder / "training_model.onnx"),
                                   ortrain::read_model(folder / "eval_model.onnx"),
                                   ortrain::read_model(folder / "optimizer_model.onnx"));
  const ortrain::Tensor images = ortrain::Tensor::of(std::vector<float>(64, 0.5f), {1, 64});
  const ortrain::Tensor labels = ortrain::Tensor::of(std::vector<int64_t>{3});
  const std::vector<const ortrain::Tensor*> inputs{&images, &labels};
  ortrain::Tensor loss;
  const std::vector<ortrain::Tensor*> outputs{&loss};
  for (int i = 0; i < 200; ++i) session.train_step(inputs, outputs);
  std::vector<int64_t> times;
  times.reserve(static_cast<size_t>(steps));
  for (int64_t i = 0; i < steps; ++i) {
    const auto began = std::chrono::steady_clock::now();
    session.train_step(inputs, outputs);
    const auto took = std::chrono::steady_clock::now() - began;
    times.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count());
  }
  std::sort(times.begin(), times.end());
  std::printf("nanoseconds %lld\n", static_cast<long long>(times[static_cast<size_t>(steps - 1) / 2]));
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
