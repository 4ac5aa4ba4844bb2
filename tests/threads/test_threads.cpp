// What several threads may do at once, with the numbers that one thread gets. Built with ThreadSanitizer by
// `make test-sanitize`, which also sees races that do no harm in a run.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../core/catch.h"
#include "graph/onnx_io.h"
#include "runtime/error.h"
#include "session/background.h"
#include "session/inference_session.h"
#include "session/training_session.h"
#include "state/checkpoint_io.h"

using namespace ortrain;
namespace fs = std::filesystem;

namespace {

constexpr int kThreads = 4;
constexpr int64_t kBatch = 4;
const fs::path kFixtures = fs::path(TEST_DATA) / "fixtures";

// Calls work(thread) in each of several threads at once.
void together(const std::function<void(int)>& work) {
  std::atomic<int> waiting{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (--waiting; waiting > 0;) std::this_thread::yield();
      work(t);
    });
  for (std::thread& thread : threads) thread.join();
}

// A training run of LeNet on images that follow from their index.
struct Run {
  explicit Run(const std::shared_ptr<CheckpointState>& given) : state(given) {
    const fs::path files = kFixtures / "lenet_adamw";
    SessionOptions options;
    options.intra_op_threads = 2;
    session = std::make_unique<TrainingSession>(options, state, read_model(files / "training_model.onnx"),
                                                read_model(files / "eval_model.onnx"),
                                                read_model(files / "optimizer_model.onnx"));
  }
  Run() : Run(CheckpointState::load(kFixtures / "lenet_adamw" / "checkpoint")) {}

  float train(int64_t batch = kBatch) {
    std::vector<float> images(static_cast<size_t>(batch * 8 * 8));
    for (size_t i = 0; i < images.size(); ++i) images[i] = static_cast<float>(i * 37 % 101) / 101;
    std::vector<int64_t> labels(static_cast<size_t>(batch), 1);
    const Tensor x(DType::kFloat, {batch, 1, 8, 8}, reinterpret_cast<std::byte*>(images.data()));
    const Tensor y(DType::kInt64, {batch}, reinterpret_cast<std::byte*>(labels.data()));
    std::vector<Tensor> outputs(session->output_names(true).size());
    std::vector<Tensor*> wanted;
    for (Tensor& output : outputs) wanted.push_back(&output);
    const Tensor* inputs[] = {&x, &y};
    session->train_step(inputs, wanted);
    return *outputs[0].data<float>();
  }
  std::vector<float> losses() {
    std::vector<float> all;
    for (const int64_t batch : {kBatch, kBatch - 1, kBatch}) {
      all.push_back(train(batch));
      session->optimizer_step();
      session->lazy_reset_grad();
    }
    return all;
  }

  std::shared_ptr<CheckpointState> state;
  std::unique_ptr<TrainingSession> session;
};

}  // namespace

TEST_CASE("sessions of several threads train as one alone does") {
  const std::vector<float> expected = Run().losses();
  std::vector<std::vector<float>> found(kThreads);
  together([&](int t) { found[static_cast<size_t>(t)] = Run().losses(); });
  for (const auto& losses : found) CHECK(losses == expected);
}

TEST_CASE("a training session takes one thread at a time, and rejects the others") {
  const float expected = Run().train();
  Run run;
  std::atomic<int> taken{0}, rejected{0}, wrong{0};
  together([&](int) {
    for (int i = 0; i < 5; ++i) {
      try {
        wrong += run.train() != expected;
        ++taken;
      } catch (const Error& error) {
        wrong += error.message().find("in use by another thread") == std::string::npos;
        ++rejected;
      }
    }
  });
  CHECK(wrong == 0);
  CHECK(taken > 0);
  CHECK(taken + rejected == 5 * kThreads);
}

TEST_CASE("one of several sessions gets a state") {
  const auto state = CheckpointState::load(kFixtures / "lenet_adamw" / "checkpoint");
  std::atomic<int> made{0}, rejected{0};
  std::vector<std::unique_ptr<Run>> runs(kThreads);
  together([&](int t) {
    try {
      runs[static_cast<size_t>(t)] = std::make_unique<Run>(state);
      ++made;
    } catch (const Error&) {
      ++rejected;
    }
  });
  CHECK(made == 1);
  CHECK(rejected == kThreads - 1);
}

TEST_CASE("an inference session runs in several threads") {
  const fs::path file =
      fs::temp_directory_path() / ("ortrain-threads-" + std::to_string(::getpid()) + ".onnx");
  {
    const Run run;
    run.session->export_for_inferencing(file, {run.session->output_names(false)[0]});
  }
  InferenceSession session(SessionOptions{}, read_model(file));
  fs::remove(file);
  const auto infer = [&](int64_t batch) {
    const Tensor x(DType::kFloat, {batch, 1, 8, 8}), labels(DType::kInt64, {batch});
    for (int64_t i = 0; i < x.size(); ++i) x.data<float>()[i] = static_cast<float>(i % 13);
    for (int64_t i = 0; i < batch; ++i) labels.data<int64_t>()[i] = i % 3;
    const std::vector<Value> outputs = session.run({"input", "labels"}, {x, labels}, {});
    const auto y = std::get<Tensor>(outputs[0]).elements<float>();
    return std::vector<float>(y.begin(), y.end());
  };
  std::map<int64_t, std::vector<float>> expected;
  for (int64_t batch = 1; batch <= 3; ++batch) expected[batch] = infer(batch);
  std::atomic<int> wrong{0};
  together([&](int t) {
    for (int i = 0; i < 6; ++i) wrong += infer(1 + (t + i) % 3) != expected.at(1 + (t + i) % 3);
  });
  CHECK(wrong == 0);
}

TEST_CASE("work that several threads give to one in the background is all done") {
  std::atomic<int> done{0};
  {
    Background background;
    together([&](int) {
      for (int i = 0; i < 50; ++i) background.add([&](bool abandoned) { done += !abandoned; });
    });
  }
  CHECK(done == 50 * kThreads);
}
