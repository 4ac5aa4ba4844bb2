// Measures what the processor can do at most: multiply-adds, and bytes copied in memory. kernels.py compiles
// this program for the processor that runs it, and starts it.
//
//     machine THREADS MEGABYTES
//
// For each line on its standard input, the program measures both for some milliseconds, with THREADS threads
// at once, and prints `MULTIPLY_ADDS BYTES` per second, of all threads together. MEGABYTES is the size of the
// arrays of all threads, half of them read and half of them written. Each multiply-add counts as two
// operations; each byte that is read or written counts once.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64, kSums = 24;
#elif defined(__AVX__)
constexpr int kBytes = 32, kSums = 12;
#elif defined(__aarch64__)
constexpr int kBytes = 16, kSums = 24;
#else
constexpr int kBytes = 16, kSums = 12;
#endif
typedef float Vector __attribute__((vector_size(kBytes)));

using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Sums that do not depend on each other, as many as hide the latency of a multiply-add.
Vector multiply_adds(int64_t passes, Vector factor) {
  Vector sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = factor * static_cast<float>(i);
  for (int64_t i = 0; i < passes; ++i)
#pragma GCC unroll 24
    for (Vector& sum : sums) sum = sum * factor + factor;
  for (int i = 1; i < kSums; ++i) sums[0] += sums[i];
  return sums[0];
}

struct Result {
  double operations, bytes;  // per second
};

Result measure(std::vector<std::byte>& from, std::vector<std::byte>& to) {
  constexpr int64_t kPasses = 20000;
  constexpr double kSeconds = 0.02;
  static volatile float number = 0.5f;
  Result result{};
  auto begin = Clock::now();
  do {
    number = multiply_adds(kPasses, Vector{} + number)[0] > 0 ? 0.5f : 0.25f;
    result.operations += 2.0 * kPasses * kSums * kBytes / sizeof(float);
  } while (since(begin) < kSeconds);
  result.operations /= since(begin);
  begin = Clock::now();
  do {
    std::memcpy(to.data(), from.data(), from.size());
    std::swap(from, to);
    result.bytes += 2.0 * static_cast<double>(from.size());
  } while (since(begin) < kSeconds);
  result.bytes /= since(begin);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const long count = argc == 3 ? std::strtol(argv[1], nullptr, 10) : 0;
  const long megabytes = argc == 3 ? std::strtol(argv[2], nullptr, 10) : 0;
  if (count < 1 || megabytes < 1) {
    std::fprintf(stderr, "usage: %s THREADS MEGABYTES\n", argv[0]);
    return 2;
  }
  std::vector<Result> results(static_cast<size_t>(count));
  std::barrier turn(count + 1);
  std::vector<std::jthread> threads;
  bool ends = false;
  for (Result& result : results)
    threads.emplace_back([&] {
      const size_t each = static_cast<size_t>(megabytes) * 1000 * 1000 / 2 / static_cast<size_t>(count);
      std::vector<std::byte> from(each, std::byte{1}), to(each);
      for (;;) {
        turn.arrive_and_wait();
        if (ends) return;
        result = measure(from, to);
        turn.arrive_and_wait();
      }
    });
  for (std::string line; std::getline(std::cin, line);) {
    turn.arrive_and_wait();
    turn.arrive_and_wait();
    Result all{};
    for (const Result& one : results) all.operations += one.operations, all.bytes += one.bytes;
    std::printf("%.0f %.0f\n", all.operations, all.bytes);
    std::fflush(stdout);
  }
  ends = true;
  turn.arrive_and_wait();
}
