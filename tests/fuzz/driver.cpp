// A main for targets that are built without libFuzzer.
//
//     fuzz_reader FILE_OR_FOLDER...                                  runs each of these inputs once
//     fuzz_reader -runs=N -seconds=S -seed=X -findings=F FOLDER...   changes them, and runs what comes out
//
// It ends after N changed inputs or S seconds, whichever comes first; 0 and absent mean no limit. The inputs
// follow from the seed and the files alone, not from time or from what ran before. Seed 0 or absent: one from
// the clock. It does not learn from what it runs, as libFuzzer does by coverage. It needs no other compiler
// and no other build.
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

Random byte_changes;  // of LLVMFuzzerMutate

struct Request {
  size_t runs = 0;
  std::chrono::seconds time{0};
  unsigned seed = 0;
  fs::path findings;
  std::vector<fs::path> files;
};

// What the handler of a signal needs: the input that is being run, and where to keep it.
const Bytes* current = nullptr;
char findings_at[3072];
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
void watch(const fs::path& findings) {
  fs::create_directories(findings);
  std::snprintf(findings_at, sizeof findings_at, "%s", fs::absolute(findings).c_str());
  // on a separate stack: the fault may be an overflow of the stack
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

// One number for all inputs and their order: FNV-1a.
void add_to_digest(uint64_t& digest, const Bytes& bytes) {
  for (const uint8_t byte : bytes) digest = (digest ^ byte) * 0x100000001b3;
  digest = (digest ^ bytes.size()) * 0x100000001b3;
}

void fuzz(const std::vector<Bytes>& seeds, const Request& request, const char* program) {
  using Clock = std::chrono::steady_clock;
  std::fprintf(stderr, "seed %u\n", request.seed);
  Random random(request.seed);
  byte_changes.seed(request.seed);
  std::vector<Bytes> wandering;
  size_t count = 0;
  uint64_t digest = 0xcbf29ce484222325;
  const auto end = request.time.count() > 0 ? Clock::now() + request.time : Clock::time_point::max();
  for (; (request.runs == 0 || count < request.runs) && Clock::now() < end; ++count) {
    Bytes bytes = changed(seeds, wandering, random);
    add_to_digest(digest, bytes);
    std::snprintf(kept_as, sizeof kept_as, "%s/finding-%u-%zu", findings_at, request.seed, count);
    std::snprintf(message, sizeof message,
                  "\nFINDING: input %zu of seed %u failed. It is kept; this runs it again:\n    %s %s\n",
                  count, request.seed, program, kept_as);
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
  std::fprintf(stderr, "%zu inputs from %zu seeds, none failed; digest %016llx\n", count, seeds.size(),
               static_cast<unsigned long long>(digest));
  if (count < request.runs) std::fprintf(stderr, "the time ended before all %zu inputs ran\n", request.runs);
}

}  // namespace

// What libFuzzer offers to mutators: changes bytes.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size) {
  Random& random = byte_changes;
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
  Request request;
  for (int i = 1; i < argc; ++i) {
    const auto option = [&](std::string_view name) {
      return std::string_view(argv[i]).starts_with(name) ? argv[i] + name.size() : nullptr;
    };
    if (const char* runs = option("-runs=")) {
      request.runs = std::strtoull(runs, nullptr, 10);
    } else if (const char* seconds = option("-seconds=")) {
      request.time = std::chrono::seconds(std::atoi(seconds));
    } else if (const char* seed = option("-seed=")) {
      request.seed = static_cast<unsigned>(std::strtoul(seed, nullptr, 10));
    } else if (const char* findings = option("-findings=")) {
      request.findings = findings;
    } else if (fs::is_directory(argv[i])) {
      // sorted within each folder: the order must not depend on where the folders are
      const auto first = static_cast<std::ptrdiff_t>(request.files.size());
      for (const auto& entry : fs::recursive_directory_iterator(argv[i]))
        if (entry.is_regular_file()) request.files.push_back(entry.path());
      std::sort(request.files.begin() + first, request.files.end());
    } else {
      request.files.emplace_back(argv[i]);
    }
  }
  LLVMFuzzerInitialize(&argc, &argv);
  if (request.runs > 0 || request.time.count() > 0) {
    std::vector<Bytes> seeds;
    for (const fs::path& path : request.files) seeds.push_back(read_bytes(path));
    if (seeds.empty()) {
      std::fprintf(stderr, "there are no inputs to change\n");
      return 1;
    }
    if (request.seed == 0)
      request.seed = static_cast<unsigned>(std::chrono::system_clock::now().time_since_epoch().count());
    watch(request.findings);
    fuzz(seeds, request, argv[0]);
    return 0;
  }
  for (const fs::path& path : request.files) {
    std::fprintf(stderr, "%s\n", path.c_str());  // the last one is the one that ended the process
    run(read_bytes(path));
  }
  std::fprintf(stderr, "%zu inputs\n", request.files.size());
  return 0;
}
