// What is left of a training run that is killed or whose power is cut while it saves: a checkpoint that was
// written.
//
//   test_kill [KILLS]
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>

#include "loop.h"
#include "recorder.h"

using namespace ortrain;
using namespace ortrain::faults;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kSteps = 40;

[[noreturn]] void wrong(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

Files files_in(const fs::path& folder) {
  Files files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

void put(const fs::path& folder, const Files& files) {
  fs::remove_all(folder);
  fs::create_directory(folder);
  for (const auto& [name, content] : files) std::ofstream(folder / name, std::ios::binary) << content;
}

// One file or two, in changing order.
bool two_files(int64_t step) { return step % 5 < 3; }

void take_step(TrainingSession& session) {
  train(session, kBatch - session.state().optimizer().step % 2);
  session.optimizer_step();
  session.lazy_reset_grad();
}

// Every order of one file and two; power cuts after every event.
void cut_power(const fs::path& folder) {
  const auto state = CheckpointState::load(kCase / "checkpoint");
  const auto session = make_session(state);
  size_t events_seen = 0, states_seen = 0;
  const fs::path here = folder / "power", remains = folder / "remains";
  fs::create_directory(here);
  for (const bool two : {false, false, true, true, false, true}) {
    const bool first = !fs::exists(here / "checkpoint");
    const std::string before = first ? "" : bytes_of(*CheckpointState::load(here / "checkpoint"));
    const Files files = files_in(here);
    take_step(*session);
    const std::string after = bytes_of(*state);
    const std::vector<Event> events = record(here, [&] { save(*state, here / "checkpoint", two); });
    for (size_t done = 0; done <= events.size(); ++done)
      for_remains(files, events, done, [&](const Files& left) {
        ++states_seen;
        put(remains, left);
        if (first && done < events.size() && !left.contains("checkpoint")) return;
        std::string found;
        try {
          found = bytes_of(*CheckpointState::load(remains / "checkpoint"));
        } catch (const std::exception& error) {
          wrong("power cut after event " + std::to_string(done) + " of " + std::to_string(events.size()) +
                ": " + error.what());
        }
        if (found != after && (done == events.size() || found != before))
          wrong("power cut after event " + std::to_string(done) + " of " + std::to_string(events.size()) +
                ": the checkpoint is " +
                (found == before ? "the old one, after the save has returned"
                                 : "neither the old nor the new one"));
      });
    events_seen += events.size();
  }
  std::printf(
      "power cuts: 6 saves, %zu events, %zu states that they may leave, all of them the old or the new "
      "checkpoint\n",
      events_seen, states_seen);
}

// What the trainer has saved, in memory that it shares with the test.
struct Progress {
  std::atomic<int64_t> saved;
  std::atomic<bool> trains;
};

[[noreturn]] void train_on(const fs::path& checkpoint, Progress& progress) {
  const bool begun = fs::exists(checkpoint);
  const auto state = CheckpointState::load(begun ? checkpoint : kCase / "checkpoint");
  const auto session = make_session(state);
  progress.trains = true;
  while (state->optimizer().step < kSteps) {
    take_step(*session);
    save(*state, checkpoint, two_files(state->optimizer().step));
    progress.saved = state->optimizer().step;
  }
  _exit(0);
}

void kill_and_resume(const fs::path& folder, int kills) {
  std::vector<std::string> expected;  // by step
  {
    const auto state = CheckpointState::load(kCase / "checkpoint");
    const auto session = make_session(state);
    expected.push_back("");
    for (int64_t step = 0; step < kSteps; ++step) {
      take_step(*session);
      expected.push_back(bytes_of(*state));
    }
  }
  auto& progress = *static_cast<Progress*>(
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const fs::path here = folder / "kills", checkpoint = here / "checkpoint";
  std::mt19937 random(1);
  int killed = 0, left_behind = 0, resumed = 0, ended = 0;
  fs::create_directory(here);
  progress.saved = 0;
  while (killed < kills) {
    progress.trains = false;
    const pid_t child = fork();
    if (child == 0) train_on(checkpoint, progress);
    for (int waits = 0; !progress.trains && waits < 100'000; ++waits) usleep(200);
    usleep(std::uniform_int_distribution<unsigned>(0, 20'000)(random));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      ++killed;
    else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      wrong("the training process failed with status " + std::to_string(status));
    for (const auto& [name, content] : files_in(here))
      left_behind += name.find(".tmp-" + std::to_string(child)) != std::string::npos;
    if (!fs::exists(checkpoint)) {
      if (progress.saved > 0) wrong("the checkpoint is gone");
      continue;
    }
    const auto state = CheckpointState::load(checkpoint);
    const int64_t step = state->optimizer().step;
    if (step < progress.saved || step > progress.saved + 1)
      wrong("the checkpoint is of step " + std::to_string(step) + ", the last save that returned of step " +
            std::to_string(progress.saved));
    if (bytes_of(*state) != expected.at(static_cast<size_t>(step)))
      wrong("the checkpoint of step " + std::to_string(step) + " is not what was saved");
    ++resumed;
    progress.saved = step;
    if (step < kSteps) continue;
    fs::remove(checkpoint);
    progress.saved = 0;
    ++ended;
  }
  // A save in two files and one in one remove whatever killed processes left.
  const auto state = CheckpointState::load(kCase / "checkpoint");
  save(*state, checkpoint, true);
  save(*state, checkpoint, false);
  if (files_in(here).size() != 1) wrong("files of killed processes are left");
  std::printf(
      "kills: %d, after which %d checkpoints were loaded, all of them as saved; %d temporary files were "
      "left, "
      "all of "
      "them removed; %d runs of %lld steps came to their end\n",
      killed, resumed, left_behind, ended, static_cast<long long>(kSteps));
}

}  // namespace

int main(int count, char** arguments) {
  std::string name = (fs::temp_directory_path() / "ortrain-kill-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) return 1;
  cut_power(name);
  kill_and_resume(name, count > 1 ? std::atoi(arguments[1]) : 100);
  fs::remove_all(name);
  return 0;
}
