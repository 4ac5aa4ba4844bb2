// Threads that take turns: saving a state while it is trained.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../core/catch.h"
#include "graph/onnx_io.h"
#include "runtime/error.h"
#include "runtime/turn_lock.h"
#include "session/training_session.h"

using namespace ortrain;
namespace fs = std::filesystem;

namespace {

const fs::path kFiles = fs::path(TEST_DATA) / "fixtures" / "lenet_adamw";

std::unique_ptr<TrainingSession> session_of(const std::shared_ptr<CheckpointState>& state) {
  SessionOptions options;
  options.intra_op_threads = 2;
  return std::make_unique<TrainingSession>(options, state, read_model(kFiles / "training_model.onnx"),
                                           read_model(kFiles / "eval_model.onnx"),
                                           read_model(kFiles / "optimizer_model.onnx"));
}

void step(TrainingSession& session) {
  constexpr int64_t kBatch = 4;
  const Tensor x(DType::kFloat, {kBatch, 1, 8, 8}), y(DType::kInt64, {kBatch});
  for (int64_t i = 0; i < x.size(); ++i) x.data<float>()[i] = static_cast<float>(i * 37 % 101) / 101;
  for (int64_t i = 0; i < y.size(); ++i) y.data<int64_t>()[i] = i;
  std::vector<Tensor> outputs(session.output_names(true).size());
  std::vector<Tensor*> wanted;
  for (Tensor& output : outputs) wanted.push_back(&output);
  const Tensor* inputs[] = {&x, &y};
  session.train_step(inputs, wanted);
  session.optimizer_step();
  session.lazy_reset_grad();
}

// Everything in the state that training changes, as text.
std::string content_of(const CheckpointState& state) {
  std::string content = std::to_string(state.optimizer().step);
  const auto add = [&](const Tensor& tensor) {
    content.append(reinterpret_cast<const char*>(tensor.raw()), tensor.bytes());
  };
  for (const Parameter& parameter : state.parameters()) {
    add(parameter.row_major(parameter.data));
    for (const Tensor& moment : parameter.moments) add(parameter.row_major(moment));
  }
  return content;
}

}  // namespace

TEST_CASE("what is saved while another thread trains is the state after one of its steps") {
  constexpr int kSteps = 60;
  const fs::path file = fs::temp_directory_path() / ("ortrain-turns-" + std::to_string(::getpid()));
  std::set<std::string> after_steps;
  {
    const auto state = CheckpointState::load(kFiles / "checkpoint");
    const auto session = session_of(state);
    after_steps.insert(content_of(*state));
    for (int i = 0; i < kSteps; ++i) {
      step(*session);
      after_steps.insert(content_of(*state));
    }
  }
  const auto state = CheckpointState::load(kFiles / "checkpoint");
  const auto session = session_of(state);
  std::atomic<bool> done{false};
  std::thread trains([&] {
    for (int i = 0; i < kSteps; ++i) step(*session);
    done = true;
  });
  int saved = 0, torn = 0;
  do {
    state->save(file, true);
    torn += !after_steps.contains(content_of(*CheckpointState::load(file)));
    ++saved;
  } while (!done);
  trains.join();
  fs::remove(file);
  CHECK(saved > 0);
  CHECK(torn == 0);
}

TEST_CASE("a thread that takes a lock again and again lets others have their turn") {
  constexpr int kTurns = 200;
  TurnLock lock;
  int guarded = 0;
  std::atomic<bool> done{false};
  std::thread greedy([&] {
    while (!done) {
      const TurnLock::Turn turn(lock);
      const TurnLock::Turn again(lock);
      ++guarded;
      --guarded;
    }
  });
  bool alone = true;
  for (int i = 0; i < kTurns; ++i) {
    const TurnLock::Turn turn(lock);
    alone &= guarded == 0;
  }
  done = true;
  greedy.join();
  CHECK(alone);
}

TEST_CASE("a turn that another thread had when the process was forked is an error in the child") {
  TurnLock lock;
  std::atomic<bool> has_it{false}, done{false};
  std::thread other([&] {
    const TurnLock::Turn turn(lock);
    has_it = true;
    while (!done) std::this_thread::yield();
  });
  while (!has_it) std::this_thread::yield();
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 1;
    try {
      lock.take();
    } catch (const Error&) {
      code = 0;
    }
    ::_exit(code);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  done = true;
  other.join();
  CHECK(status == 0);
  const TurnLock::Turn turn(lock);  // the parent goes on
}
