// Regions: every part runs once, whoever runs it, and threads that wait keep nobody from work.
#include <pthread.h>
#include <semaphore.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../core/catch.h"
#include "graph/onnx_io.h"
#include "runtime/denormals.h"
#include "runtime/thread_pool.h"
#include "session/training_session.h"
#include "state/checkpoint_io.h"

// ThreadSanitizer keeps a signal back until the thread next calls a function that it knows.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ORTRAIN_SIGNALS_ARE_LATE
#endif
#endif

using namespace ortrain;

namespace {

using Piece = std::function<void(int share, int piece, int pieces)>;
using Part = std::function<void(int part, int parts)>;

void region_in_pieces(int parts, int most_pieces, const Piece& work) {
  regions::run(
      [](void* data, int share, int piece, int of) { (*static_cast<const Piece*>(data))(share, piece, of); },
      const_cast<Piece*>(&work), parts, most_pieces);
}

void region(int parts, const Part& work) {
  region_in_pieces(parts, 1, [&](int, int part, int of) { work(part, of); });
}

// A region of two parts, of which the second one surely gets a thread.
void on_two_threads(const Part& work) {
  const WaitingScope offered(Waiting::kSleep);
  std::atomic<bool> begun{false};
  region(2, [&](int part, int parts) {
    if (part == 1) begun = true;
    while (!begun) std::this_thread::yield();
    work(part, parts);
  });
}

// How often each part ran in `repetitions` regions, if parts and their numbers were right in all of them.
std::vector<int> runs(int parts, int repetitions) {
  std::vector<int> count(static_cast<size_t>(parts));
  std::atomic<int> wrong{0};
  for (int i = 0; i < repetitions; ++i)
    region(parts, [&](int part, int of) {
      wrong += of != parts || regions::inside() != (parts > 1);
      ++count[static_cast<size_t>(part)];
    });
  CHECK(wrong == 0);
  CHECK(!regions::inside());
  return count;
}

double seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// The processor time of all other threads, as a share of the time in which this thread has regions of two
// parts, 0.1 ms after each other.
double share_of_waiting(Waiting waiting) {
  const WaitingScope scope(waiting);
  const double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - seconds(CLOCK_THREAD_CPUTIME_ID);
  const double begun = seconds(CLOCK_MONOTONIC);
  for (int i = 0; i < 1000; ++i) {
    region(2, [](int, int) {});
    for (const double at = seconds(CLOCK_MONOTONIC); seconds(CLOCK_MONOTONIC) < at + 1e-4;) {
    }
  }
  const double others = seconds(CLOCK_PROCESS_CPUTIME_ID) - seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
  return others / (seconds(CLOCK_MONOTONIC) - begun);
}

// The losses of some steps with a recorded model, on images and labels that follow from their index.
std::vector<float> losses(const std::string& name, const Shape& images) {
  const std::filesystem::path files = std::filesystem::path(TEST_DATA) / "fixtures" / name;
  SessionOptions options;
  options.intra_op_threads = 2;
  TrainingSession session(options, CheckpointState::load(files / "checkpoint"),
                          read_model(files / "training_model.onnx"), std::nullopt,
                          read_model(files / "optimizer_model.onnx"));
  const Tensor x(DType::kFloat, images), y(DType::kInt64, {images[0]});
  for (int64_t i = 0; i < x.size(); ++i) x.data<float>()[i] = static_cast<float>(i * 37 % 101) / 101;
  for (int64_t i = 0; i < y.size(); ++i) y.data<int64_t>()[i] = i % 3;
  std::vector<float> found;
  for (int step = 0; step < 3; ++step) {
    std::vector<Tensor> outputs(session.output_names(true).size());
    std::vector<Tensor*> wanted;
    for (Tensor& output : outputs) wanted.push_back(&output);
    const Tensor* inputs[] = {&x, &y};
    session.train_step(inputs, wanted);
    session.optimizer_step();
    session.lazy_reset_grad();
    found.push_back(*outputs[0].data<float>());
  }
  return found;
}

#ifndef ORTRAIN_SIGNALS_ARE_LATE
sem_t stopped, resumed;
void stop(int) {
  sem_post(&stopped);
  while (sem_wait(&resumed) != 0) {
  }
}

// While it exists, the second thread of this thread's regions gets no processor.
class SecondThreadStopped {
 public:
  SecondThreadStopped() {
    REQUIRE(sem_init(&stopped, 0, 0) == 0);
    REQUIRE(sem_init(&resumed, 0, 0) == 0);
    struct sigaction action {};
    action.sa_handler = stop;
    REQUIRE(sigaction(SIGUSR2, &action, &before_) == 0);
    pthread_t second{};
    on_two_threads([&](int part, int) {
      if (part == 1) second = pthread_self();
    });
    REQUIRE(pthread_kill(second, SIGUSR2) == 0);
    while (sem_wait(&stopped) != 0) {
    }
    alarm(120);  // ends a test that hangs
  }
  ~SecondThreadStopped() {
    alarm(0);
    sem_post(&resumed);
    on_two_threads([](int, int) {});  // the signal has been handled
    sigaction(SIGUSR2, &before_, nullptr);
  }

 private:
  struct sigaction before_ {};
};

#endif

}  // namespace

TEST_CASE("every part of a region runs once") {
  for (const int parts : {1, 2, 3, 7, 2})
    CHECK(runs(parts, 200) == std::vector<int>(static_cast<size_t>(parts), 200));
}

TEST_CASE("a part has the same memory in every region, whichever thread computes it") {
  constexpr int kParts = 4;
  constexpr size_t kBytes = 10'000;
  std::vector<std::vector<void*>> memory(kParts);
  std::vector<std::thread::id> threads;
  for (int i = 0; i < 200; ++i)
    region(kParts, [&](int part, int) {
      auto& found = memory[static_cast<size_t>(part)];
      found.push_back(regions::memory(i == 0 ? kBytes : kBytes / 2));
      std::memset(found.back(), part, kBytes);
      if (part == 1) threads.push_back(std::this_thread::get_id());
      if (part == 0 && i % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    });
  CAPTURE(threads.size(), std::set(threads.begin(), threads.end()).size());
  std::set<void*> different;
  for (const auto& found : memory) {
    CHECK(std::set(found.begin(), found.end()).size() == 1);
    different.insert(found.front());
  }
  CHECK(different.size() == kParts);
  CHECK(regions::memory(kBytes) == memory[0][0]);  // outside of regions, that of the thread
}

TEST_CASE("every piece of a divided part runs once, and those of a share one after the other") {
  constexpr int kParts = 3, kPieces = 5;
  const PiecesScope divided(kPieces);
  std::vector<std::atomic<int>> count(kParts * kPieces), inside(kParts);
  std::vector<std::atomic<void*>> memory(kParts);
  std::atomic<int> wrong{0};
  for (int i = 0; i < 200; ++i)
    region_in_pieces(kParts, 100, [&](int share, int piece, int pieces) {
      wrong += pieces != kParts * kPieces || inside[static_cast<size_t>(share)]++ != 0;
      ++count[static_cast<size_t>(piece)];
      void* const found = regions::memory(1000);
      std::memset(found, share, 1000);
      void* const before = memory[static_cast<size_t>(share)].exchange(found);
      wrong += before != nullptr && before != found;
      if (piece % 4 == 1) std::this_thread::sleep_for(std::chrono::microseconds(50));
      wrong += static_cast<const char*>(found)[999] != share;
      --inside[static_cast<size_t>(share)];
    });
  CHECK(wrong == 0);
  for (const auto& runs : count) CHECK(runs == 200);
}

TEST_CASE("no part has more pieces than are worth it") {
  const PiecesScope divided(5);
  std::atomic<int> found{0};
  region_in_pieces(2, 3, [&](int, int, int pieces) { found = pieces; });
  CHECK(found == 6);
  region_in_pieces(2, 1, [&](int, int, int pieces) { found = pieces; });
  CHECK(found == 2);
}

TEST_CASE("a thread that is faster than the others takes pieces of their parts") {
  const auto caller = std::this_thread::get_id();
  const WaitingScope offered(Waiting::kSleep);
  std::atomic<bool> begun{false};
  std::atomic<int> pieces{0}, of_caller{0};
  const auto slow_worker = [&](int, int, int of) {
    pieces = of;
    if (std::this_thread::get_id() == caller) {
      while (!begun) std::this_thread::yield();
      ++of_caller;
    } else {
      begun = true;
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  };
  for (int i = 0; i < 500 && pieces <= 2; ++i) {
    begun = false;
    of_caller = 0;
    region_in_pieces(2, 100, slow_worker);
  }
  CHECK(pieces > 2);
  CHECK(of_caller > pieces / 2);
}

TEST_CASE("what pieces throw is thrown by the region, once all of them have ended") {
  const PiecesScope divided(4);
  std::atomic<int> ended{0};
  std::string found;
  try {
    region_in_pieces(2, 4, [&](int, int piece, int) {
      if (piece % 3 == 2) throw std::runtime_error("piece " + std::to_string(piece));
      ++ended;
    });
  } catch (const std::runtime_error& e) {
    found = e.what();
  }
  CHECK(found == "piece 2");
  CHECK(ended == 6);
}

TEST_CASE("a region inside of a part has one part") {
  std::atomic<int> inner{0}, wrong{0};
  region(3, [&](int, int) {
    region(5, [&](int nested, int of) {
      wrong += nested != 0 || of != 1;
      region(2, [&](int, int parts) { wrong += parts != 1; });
      ++inner;
    });
  });
  CHECK(inner == 3);
  CHECK(wrong == 0);
}

TEST_CASE("what parts throw is thrown by the region, once all of them have ended") {
  for (int i = 0; i < 50; ++i) {
    std::atomic<int> ended{0};
    std::string found;
    try {
      region(4, [&](int part, int) {
        if (part % 2 == 1) throw std::runtime_error("part " + std::to_string(part));
        if (part == 2) std::this_thread::sleep_for(std::chrono::microseconds(100));
        ++ended;
      });
    } catch (const std::runtime_error& e) {
      found = e.what();
    }
    CHECK(found == "part 1");
    CHECK(ended == 2);
    CHECK(!regions::inside());
  }
  CHECK(runs(4, 20) == std::vector<int>{20, 20, 20, 20});
}

TEST_CASE("parts compute in the floating-point mode of their caller") {
  const FloatMode before = FloatMode::current();
  const volatile float tiny = 1e-30f;
  const auto denormals = [&] {
    std::atomic<int> found{0};
    for (int i = 0; i < 20; ++i) on_two_threads([&](int, int) { found += tiny * 1e-10f != 0.0f; });
    return found.load();
  };
  CHECK(denormals() == 40);
  before.flushing().set();
  const int flushed = denormals();
  before.set();
  CHECK(flushed == 0);
  CHECK(denormals() == 40);
}

TEST_CASE("threads have regions at the same time") {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const int parts = 2 + t % 3;
      std::vector<int64_t> sums(static_cast<size_t>(parts));
      for (int i = 0; i < 300; ++i)
        region(parts, [&](int part, int) { sums[static_cast<size_t>(part)] += i; });
      for (const int64_t sum : sums) wrong += sum != 299 * 300 / 2;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

#ifndef ORTRAIN_SIGNALS_ARE_LATE
TEST_CASE("a region does not wait for a thread that gets no processor") {
  std::vector<int> found;
  {
    const SecondThreadStopped scope;
    found = runs(2, 50);
  }
  CHECK(found == std::vector<int>{50, 50});
  CHECK(runs(2, 50) == std::vector<int>{50, 50});
}

TEST_CASE("a train step does not wait for a thread that gets no processor, and computes the same") {
  for (const auto& [name, images] : {std::pair<std::string, Shape>{"lenet_adamw", {32, 1, 8, 8}},
                                     {"lenet_adamw", {5, 1, 8, 8}},
                                     {"resnet_bn", {32, 3, 12, 12}}}) {
    const std::vector<float> expected = losses(name, images);
    std::vector<float> found;
    {
      const SecondThreadStopped scope;
      found = losses(name, images);
    }
    CHECK(found == expected);
  }
}
#endif

TEST_CASE("a train step computes the same when parts are divided") {
  for (const auto& [name, images] :
       {std::pair<std::string, Shape>{"lenet_adamw", {256, 1, 8, 8}}, {"resnet_bn", {128, 3, 12, 12}}}) {
    const std::vector<float> expected = losses(name, images);
    const PiecesScope divided(3);
    CHECK(losses(name, images) == expected);
  }
}

TEST_CASE("threads that must not spin leave the processor") {
  CHECK(share_of_waiting(Waiting::kSleep) < 0.5);
  CHECK(runs(2, 100) == std::vector<int>{100, 100});
}

TEST_CASE("threads sleep when there is nothing to do") {
  runs(3, 10);
  const double begun = seconds(CLOCK_PROCESS_CPUTIME_ID);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(seconds(CLOCK_PROCESS_CPUTIME_ID) - begun < 0.1);
}

TEST_CASE("threads can be ended and start again, also in a child of fork") {
  std::atomic<int> ended{0};
  region(2, [&](int, int) { ended += regions::end_threads(); });
  CHECK(ended == 0);
  CHECK(runs(3, 10) == std::vector<int>{10, 10, 10});
  CHECK(regions::end_threads());
  CHECK(runs(2, 10) == std::vector<int>{10, 10});
  regions::end_threads();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    std::atomic<int> ran{0};
    region(3, [&](int, int) { ++ran; });
    _exit(ran == 3 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(runs(2, 10) == std::vector<int>{10, 10});
}
