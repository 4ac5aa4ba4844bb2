// Every allocation, read, write, sync, mapping and rename of a training loop fails once, in turn. The
// operation in which it happens ends in an error and leaves everything as it was; when it is repeated, the
// loop ends with the same bits as one without a fault. A leak checker looks at the process when it ends.
//
//   test_faults             every call of the system, 250 allocations at even distances, and those after a
//                           file was put in place, when nothing may fail any more
//   test_faults --every 7   every seventh allocation
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "faults.h"
#include "loop.h"

using namespace ortrain;
using namespace ortrain::faults;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kQuickAllocations = 250;
constexpr int64_t kAfterRename = 10;  // allocations that are tried
constexpr std::chrono::seconds kReportInterval(20);

struct Fault {
  faults::Kind kind = faults::kKinds;
  int64_t call = 0;
};

Fault fault;                 // of the present run
const char* operation = "";  // that it is in
std::string last_error;      // the last one that was caught

[[noreturn]] void wrong(const std::string& what) {
  faults::end();
  std::fprintf(stderr, "%s %lld fails in \"%s\" (%s): %s\n",
               fault.kind == faults::kKinds ? "nothing" : faults::kNames[fault.kind],
               static_cast<long long>(fault.call), operation, last_error.c_str(), what.c_str());
  std::exit(1);
}
void expect(bool holds, const std::string& what) {
  if (!holds) wrong(what);
}

// Says on stderr how far a long test is.
class Progress {
 public:
  Progress(const char* kind, size_t calls) : kind_(kind), calls_(calls) {}
  void failed_once() {
    ++done_;
    if (const auto now = std::chrono::steady_clock::now(); now - reported_ >= kReportInterval) {
      reported_ = now;
      std::fprintf(stderr, "%s: %zu of %zu calls failed once each\n", kind_, done_, calls_);
    }
  }

 private:
  const char* kind_;
  size_t calls_, done_ = 0;
  std::chrono::steady_clock::time_point reported_ = std::chrono::steady_clock::now();
};

std::string gradients_of(const CheckpointState& state) {
  std::string bytes;
  for (const Parameter& p : state.parameters())
    if (p.gradient.defined()) add_bytes(bytes, p.row_major(p.gradient));
  return bytes;
}

std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

// One training run, whose operations are repeated when they fail.
class Run {
 public:
  explicit Run(fs::path folder) : folder_(std::move(folder)) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::copy(kCase / "checkpoint", folder_ / "start");
  }

  // Returns the final state, and the number of errors.
  std::pair<std::string, int> run() {
    attempt("load the checkpoint", [&] { state_ = CheckpointState::load(folder_ / "start"); });
    attempt("create the session", [&] { session_ = make_session(state_); });
    for (const int64_t batch : {kBatch, kBatch - 1}) {
      attempt(
          "train step", [&] { train(*session_, batch); }, /*keeps_gradients=*/false);
      attempt("optimizer step", [&] { session_->optimizer_step(); });
      session_->lazy_reset_grad();
      attempt("save", [&] { save(*state_, folder_ / "checkpoint", false); });
      attempt("save in two files", [&] { save(*state_, folder_ / "large", true); });
    }
    attempt("export", [&] {
      session_->export_for_inferencing(folder_ / "model.onnx", {session_->output_names(false)[0]});
    });
    std::shared_ptr<CheckpointState> again;
    attempt("load both files", [&] { again = CheckpointState::load(folder_ / "large"); });
    faults::end();
    operation = "the end";
    std::string end = bytes_of(*state_);
    expect(bytes_of(*again) == end, "the checkpoint in two files differs from the state");
    expect(bytes_of(*CheckpointState::load(folder_ / "checkpoint")) == end,
           "the checkpoint differs from the state");
    return {end, errors_};
  }

 private:
  // The state that a checkpoint holds; nothing where there is none.
  std::string loaded(const std::string& name) const {
    return fs::exists(folder_ / name) ? bytes_of(*CheckpointState::load(folder_ / name)) : "";
  }

  void attempt(const char* what, const std::function<void()>& body, bool keeps_gradients = true) {
    operation = what;
    for (int tries = 0;; ++tries) {
      faults::end();
      const std::string state = state_ ? bytes_of(*state_) : "",
                        gradients = state_ ? gradients_of(*state_) : "";
      const auto files = files_in(folder_);
      const std::string large = loaded("large");
      faults::begin();
      try {
        const bool before = faults::fired();
        body();
        faults::end();
        if (!before && faults::fired()) survived[what].push_back(fault.call);
        return;
      } catch (const std::exception& error) {
        faults::end();
        last_error = error.what();
      }
      ++errors_;
      expect(faults::fired() && tries == 0, "an error without a fault");
      expect(!state_ || bytes_of(*state_) == state, "the state has changed");
      expect(!state_ || !keeps_gradients || !session_ || gradients_of(*state_) == gradients,
             "the gradients have changed");
      auto now = files_in(folder_);
      for (const auto& [name, content] : now)
        expect(fault.kind == faults::kUnlink || name.find(".tmp-") == std::string::npos, "it leaves " + name);
      // After a rename, when the folder cannot be opened or synced, the new file is there; else nothing may
      // have changed.
      if (fault.kind != faults::kSync && fault.kind != faults::kOpen && fault.kind != faults::kUnlink)
        for (const auto& [name, content] : files)
          expect(name.starts_with("large.data") || now[name] == content, "the file " + name + " has changed");
      if (fault.kind != faults::kSync && fault.kind != faults::kOpen)
        expect(loaded("large") == large, "the large checkpoint has changed");
    }
  }

 public:
  // The calls whose failure an operation has got over, by operation.
  static inline std::map<std::string, std::vector<int64_t>> survived;

 private:
  fs::path folder_;
  std::shared_ptr<CheckpointState> state_;
  std::unique_ptr<TrainingSession> session_;
  int errors_ = 0;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* __lsan_default_options() {
  return "malloc_context_size=8:print_suppressions=0";
}
// The same where the leak checker is part of AddressSanitizer, which has its options.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "malloc_context_size=8:allocator_may_return_null=1";
}

int main(int count, char** arguments) {
  const int64_t every = count > 2 && std::strcmp(arguments[1], "--every") == 0 ? std::atoll(arguments[2]) : 0;
  std::string name = (fs::temp_directory_path() / "ortrain-faults-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) return 1;
  const fs::path folder = name;

  Run(folder).run();  // what is made once in a process
  faults::arm();
  const std::string expected = Run(folder).run().first;
  int64_t counts[faults::kKinds];
  for (int kind = 0; kind < faults::kKinds; ++kind)
    counts[kind] = faults::count(static_cast<faults::Kind>(kind));
  std::set<int64_t> after_renames;
  for (int64_t n = 0; n < std::min(counts[faults::kRename], faults::kMostRenames); ++n)
    for (int64_t i = 0; i < kAfterRename; ++i)
      after_renames.insert(
          std::min(faults::allocations_before_rename(n) + i, counts[faults::kAllocation] - 1));

  for (int kind = 0; kind < faults::kKinds; ++kind) {
    const int64_t distance = every > 0 ? every : counts[kind] / kQuickAllocations;
    const int64_t stride = kind == faults::kAllocation ? std::max<int64_t>(1, distance) : 1;
    std::set<int64_t> calls;
    for (int64_t call = 0; call < counts[kind]; call += stride) calls.insert(call);
    if (kind == faults::kAllocation) calls.insert(after_renames.begin(), after_renames.end());
    int64_t injected = 0, errors = 0;
    Progress progress(faults::kNames[kind], calls.size());
    for (const int64_t call : calls) {
      fault = {static_cast<faults::Kind>(kind), call};
      last_error.clear();
      faults::arm(fault.kind, fault.call);
      const auto [end, failed] = Run(folder).run();
      expect(end == expected, "the loop ends with another state");
      injected += faults::fired();
      errors += failed;
      progress.failed_once();
    }
    std::printf("%-10s %8lld calls, %8lld failed once each, %8lld errors\n", faults::kNames[kind],
                static_cast<long long>(counts[kind]), static_cast<long long>(injected),
                static_cast<long long>(errors));
    for (const auto& [what, calls] : Run::survived) {
      std::printf("  no error in \"%s\":", what.c_str());
      for (const int64_t call : calls) std::printf(" %lld", static_cast<long long>(call));
      std::printf("\n");
    }
    std::fflush(stdout);
    Run::survived.clear();
    const bool optional = kind == faults::kAllocation || kind == faults::kOpen || kind == faults::kLink ||
                          kind == faults::kUnlink;
    expect(optional || errors == injected, "a call failed and nobody noticed");
  }
  fs::remove_all(folder);
  return 0;
}
