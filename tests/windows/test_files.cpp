// Files on Windows: names in any language, and checkpoints that are replaced while others use them or while
// the process is killed. The other tests of files are in tests/core.
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../core/catch.h"
#include "../core/support.h"
#include "../faults/loop.h"
#include "runtime/file.h"
#include "runtime/path.h"

using namespace ortrain;
using namespace ortrain::test;
namespace fs = std::filesystem;

namespace {

// A Latin letter with an accent, letters of Japanese, and a letter that takes two units of UTF-16.
const std::string kName = "modèle-日本-𝄞";

const wchar_t* const kSaveTo = L"ORTRAIN_TEST_SAVE_TO";

void take_step(TrainingSession& session) {
  faults::train(session, faults::kBatch);
  session.optimizer_step();
  session.lazy_reset_grad();
}

std::shared_ptr<CheckpointState> first_state() { return CheckpointState::load(faults::kCase / "checkpoint"); }

// Runs the test that saves after each step, in a process that saves to `folder`, and kills it.
void save_and_kill(const fs::path& folder, int milliseconds) {
  wchar_t program[MAX_PATH];
  REQUIRE(GetModuleFileNameW(nullptr, program, MAX_PATH) > 0);
  std::wstring command = L"\"" + std::wstring(program) + L"\" [save]";
  REQUIRE(SetEnvironmentVariableW(kSaveTo, folder.c_str()));
  STARTUPINFOW start{};
  start.cb = sizeof start;
  PROCESS_INFORMATION process{};
  REQUIRE(CreateProcessW(program, command.data(), nullptr, nullptr, FALSE, 0, nullptr, nullptr, &start,
                         &process));
  for (int i = 0; i < 6000 && !fs::exists(folder / "checkpoint"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  REQUIRE(TerminateProcess(process.hProcess, 1));
  REQUIRE(WaitForSingleObject(process.hProcess, 60'000) == WAIT_OBJECT_0);
  CloseHandle(process.hThread);
  CloseHandle(process.hProcess);
}

}  // namespace

TEST_CASE("models and checkpoints have names in any language") {
  const Folder outer;
  const fs::path folder = outer.path() / from_utf8(kName);
  fs::create_directory(folder);
  CHECK(to_utf8(folder.filename()) == kName);

  const auto state = first_state();
  const fs::path checkpoint = folder / from_utf8(kName);
  for (const bool two_files : {false, true}) {
    faults::save(*state, checkpoint, two_files);
    CHECK(faults::bytes_of(*CheckpointState::load(checkpoint)) == faults::bytes_of(*state));
  }
  CHECK(fs::exists(folder / from_utf8(kName + ".data")));

  const Model model = read_model(faults::kCase / "training_model.onnx");
  const fs::path path = folder / from_utf8(kName + ".onnx");
  write_model(model, path, WeightPlace::kApart);
  CHECK(read_model(path).graph.nodes.size() == model.graph.nodes.size());

  check_error(ErrorCode::kNoSuchFile, {kName},
              [&] { CheckpointState::load(folder / from_utf8(kName + " absent")); });
}

TEST_CASE("a file that is open and mapped is replaced at once, or stays as it is") {
  const Folder folder;
  put(folder / "old", "old");
  put(folder / "new", "new");
  {
    const system::File open = system::File::open(folder / "old");
    const std::byte* mapped = open.map(3);
    REQUIRE(mapped != nullptr);
    const bool replaced = system::replace(folder / "new", folder / "old");
    const system::Failure failure = system::failure();
    INFO("replaced: " << replaced);  // by NTFS, not by Wine 8
    CHECK(content_of(folder / "old") == (replaced ? "new" : "old"));
    CHECK(std::string(reinterpret_cast<const char*>(mapped), 3) == "old");
    system::unmap(mapped, 3);
    if (replaced) return;
    CHECK(failure == system::Failure::kDenied);
  }
  CHECK(system::replace(folder / "new", folder / "old"));
  CHECK(content_of(folder / "old") == "new");
}

TEST_CASE("a checkpoint that another program keeps open is not replaced, and the error says why") {
  const Folder folder;
  const fs::path checkpoint = folder / "checkpoint";
  const auto state = first_state();
  faults::save(*state, checkpoint, false);
  const std::string before = content_of(checkpoint);
  // As most programs open files: others may read it, and may not replace it.
  const HANDLE open = CreateFileW(checkpoint.c_str(), GENERIC_READ, FILE_SHARE_READ, nullptr, OPEN_EXISTING,
                                  FILE_ATTRIBUTE_NORMAL, nullptr);
  REQUIRE(open != INVALID_HANDLE_VALUE);
  const auto session = faults::make_session(state);
  take_step(*session);
  check_error(ErrorCode::kFail, {"cannot put in place", "checkpoint", "the existing file is unchanged"},
              [&] { faults::save(*state, checkpoint, false); });
  CHECK(content_of(checkpoint) == before);
  CHECK(folder.names() == std::vector<std::string>{"checkpoint"});

  // A save waits for a program that closes the file soon.
  std::thread closes([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CloseHandle(open);
  });
  faults::save(*state, checkpoint, false);
  closes.join();
  CHECK(faults::bytes_of(*CheckpointState::load(checkpoint)) == faults::bytes_of(*state));
}

// Part of the next test: another process runs it until it is killed.
TEST_CASE("saves after each step", "[.][save]") {
  wchar_t folder[MAX_PATH];
  REQUIRE(GetEnvironmentVariableW(kSaveTo, folder, MAX_PATH) > 0);
  const auto state = first_state();
  const auto session = faults::make_session(state);
  for (int step = 0; step < 10'000; ++step) {
    take_step(*session);
    faults::save(*state, fs::path(folder) / "checkpoint", step % 5 < 3);
  }
}

TEST_CASE("a process that is killed while it saves leaves a checkpoint that it has saved") {
  constexpr int kKills = 10;
  const auto state = first_state();
  const auto session = faults::make_session(state);
  std::vector<std::string> states{faults::bytes_of(*state)};
  std::mt19937 random(3);
  for (int kill = 0; kill < kKills; ++kill) {
    const Folder folder;
    save_and_kill(folder.path(), static_cast<int>(random() % 200));
    const auto left = CheckpointState::load(folder / "checkpoint");
    const auto step = static_cast<size_t>(left->optimizer().step);
    while (states.size() <= step) {
      take_step(*session);
      states.push_back(faults::bytes_of(*state));
    }
    CHECK(step > 0);
    CHECK(faults::bytes_of(*left) == states[step]);
    faults::save(*left, folder / "checkpoint", true);
    // What the process left of both files is removed.
    CHECK(folder.names() == std::vector<std::string>{"checkpoint", "checkpoint.data"});
  }
}
