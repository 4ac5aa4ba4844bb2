// A main for targets that are built without libFuzzer.
//
//     fuzz_reader FILE_OR_FOLDER...                      runs each of these inputs once
//     fuzz_reader -seconds=60 -findings=F FOLDER...      changes them for so long, and runs what comes out
//
// It does not learn from what it runs, as libFuzzer does by coverage. It needs no other compiler and no other
// build.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "support.h"

namespace fs = std::filesystem;
using ortrain::fuzz::below;
using ortrain::fuzz::Random;
using Bytes = std::vector<uint8_t>;

extern "C" {
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t* a, size_t a_size, const uint8_t* b, size_t b_size,
                                 uint8_t* out, size_t max_size, unsigned seed) __attribute__((weak));
}

namespace {

constexpr size_t kLongest = 16384;  // bytes of an input
constexpr unsigned kSlowest = 25;   // seconds for one
constexpr size_t kWandering = 512;  // changed inputs that are changed further

// What the handler of a signal needs: the input that is being run, and where to keep it.
const Bytes* current = nullptr;
char kept_as[4096];
char message[8192];

void keep_input(int signal) {
  const int file = open(kept_as, O_CREAT | O_WRONLY | O_TRUNC, 0644);
  [[maybe_unused]] ssize_t written = 0;
  if (file >= 0 && current != nullptr) written = write(file, current->data(), current->size());
  written = write(STDERR_FILENO, message, std::strlen(message));
  const char* what = signal == SIGALRM ? "it took too long\n" : "it ended the process\n";
  written = write(STDERR_FILENO, what, std::strlen(what));
  _exit(1);
}

// From now on an input that ends the process is kept in the folder.
void watch(const fs::path& findings, const char* program, unsigned seed) {
  fs::create_directories(findings);
  const std::string file = fs::absolute(findings / ("finding-" + std::to_string(seed))).string();
  std::snprintf(kept_as, sizeof kept_as, "%s", file.c_str());
  std::snprintf(message, sizeof message,
                "\nFINDING: an input failed. It is kept; this runs it again:\n    %s %s\n", program, kept_as);
  // on a stack of its own: the fault may be an overflow of the stack
  static char room[1 << 16];
  stack_t stack{};
  stack.ss_sp = room;
  stack.ss_size = sizeof room;
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = keep_input;
  action.sa_flags = SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM})
    sigaction(signal, &action, nullptr);
}

Bytes read_bytes(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot open %s\n", path.c_str());
    std::exit(1);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

void run(const Bytes& bytes) {
  // an exact copy: what reads behind the end of its input reads memory that is not its own
  const Bytes copy(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

Bytes changed(const std::vector<Bytes>& seeds, const std::vector<Bytes>& wandering, Random& random) {
  const auto some = [&]() -> const Bytes& {
    const auto& from = wandering.empty() || below(random, 2) == 0 ? seeds : wandering;
    return from[below(random, from.size())];
  };
  const Bytes first = some();
  Bytes bytes(kLongest);
  size_t size = 0;
  if (LLVMFuzzerCustomCrossOver != nullptr && below(random, 8) == 0) {
    const Bytes& second = some();
    size = LLVMFuzzerCustomCrossOver(first.data(), first.size(), second.data(), second.size(), bytes.data(),
                                     kLongest, static_cast<unsigned>(random()));
  }
  if (size == 0) {
    size = std::min(first.size(), kLongest);
    std::copy_n(first.begin(), size, bytes.begin());
    size = LLVMFuzzerCustomMutator(bytes.data(), size, kLongest, static_cast<unsigned>(random()));
  }
  bytes.resize(size);
  return bytes;
}

void fuzz(const std::vector<Bytes>& seeds, std::chrono::seconds time, unsigned seed) {
  Random random(seed);
  std::vector<Bytes> wandering;
  size_t count = 0;
  for (const auto end = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < end;
       ++count) {
    Bytes bytes = changed(seeds, wandering, random);
    current = &bytes;
    alarm(kSlowest);
    run(bytes);
    alarm(0);
    current = nullptr;
    if (wandering.size() < kWandering)
      wandering.push_back(std::move(bytes));
    else
      wandering[below(random, kWandering)] = std::move(bytes);
  }
  std::fprintf(stderr, "%zu inputs from %zu seeds, none failed\n", count, seeds.size());
}

}  // namespace

// What libFuzzer offers to mutators: changes bytes.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size) {
  static Random random(1);
  for (size_t n = 1 + below(random, 4); n > 0; --n) {
    if (size == 0 || below(random, 6) == 0) {
      if (size == max_size) continue;
      const size_t at = below(random, size + 1);
      std::memmove(data + at + 1, data + at, size - at);
      data[at] = static_cast<uint8_t>(random());
      ++size;
      continue;
    }
    const size_t at = below(random, size);
    const size_t length = 1 + below(random, std::min<size_t>(size - at, 8));
    switch (below(random, 5)) {
      case 0:
        std::memmove(data + at, data + at + length, size - at - length);
        size -= length;
        break;
      case 1: {
        const int64_t number = ortrain::fuzz::interesting_integer(random);
        std::memcpy(data + at, &number, length);
        break;
      }
      case 2:
        std::memmove(data + below(random, size - length + 1), data + at, length);
        break;
      default:
        data[at] ^= static_cast<uint8_t>(1u << below(random, 8));
    }
  }
  return size;
}

int main(int argc, char** argv) {
  std::vector<fs::path> files;
  std::chrono::seconds time{0};
  fs::path findings;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("-seconds=")) {
      time = std::chrono::seconds(std::atoi(argv[i] + std::strlen("-seconds=")));
    } else if (argument.starts_with("-findings=")) {
      findings = argv[i] + std::strlen("-findings=");
    } else if (fs::is_directory(argv[i])) {
      for (const auto& entry : fs::recursive_directory_iterator(argv[i]))
        if (entry.is_regular_file()) files.push_back(entry.path());
    } else {
      files.emplace_back(argv[i]);
    }
  }
  std::sort(files.begin(), files.end());
  LLVMFuzzerInitialize(&argc, &argv);
  if (time.count() > 0) {
    std::vector<Bytes> seeds;
    for (const fs::path& path : files) seeds.push_back(read_bytes(path));
    if (seeds.empty()) {
      std::fprintf(stderr, "there are no inputs to change\n");
      return 1;
    }
    const auto seed = static_cast<unsigned>(std::chrono::system_clock::now().time_since_epoch().count());
    watch(findings, argv[0], seed);
    fuzz(seeds, time, seed);
    return 0;
  }
  for (const fs::path& path : files) {
    std::fprintf(stderr, "%s\n", path.c_str());  // the last one is the one that ended the process
    run(read_bytes(path));
  }
  std::fprintf(stderr, "%zu inputs\n", files.size());
  return 0;
}
