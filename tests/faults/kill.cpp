// What is left of a training run that is killed or whose power is cut while it saves: a checkpoint that was
// written. Checkpoints of more than 2 GB, which are saved as two files, are represented by smaller ones whose
// data file has the same layout.
//
//   test_kill [KILLS]
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>

#include "checkpoint_generated.h"
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

// Makes the folder hold these files, and writes only those that differ from what it put there before.
void put(const fs::path& folder, const Files& files) {
  static Files there;
  fs::create_directory(folder);
  for (const auto& [name, content] : there)
    if (!files.contains(name)) fs::remove(folder / name);
  for (const auto& [name, content] : files)
    if (const auto old = there.find(name); old == there.end() || old->second != content)
      std::ofstream(folder / name, std::ios::binary) << content;
  there = files;
}

// One file or two, in changing order.
bool two_files(int64_t step) { return step % 5 < 3; }

void take_step(TrainingSession& session) {
  train(session, kBatch - session.state().optimizer().step % 2);
  session.optimizer_step();
  session.lazy_reset_grad();
}

// A save as it was recorded: the files before it, and the states of which a checkpoint may be.
struct Save {
  bool first;  // there was no checkpoint
  Files files;
  std::string before, after;
  std::vector<Event> events;
  std::vector<size_t> cuts;  // lengths to which files may be cut
};

// Looks at everything that a power cut after each event may leave. Returns what is wrong with the first of
// them that is neither the old nor the new checkpoint; empty if there is none.
std::string problem_of(const Save& save, const fs::path& remains, size_t& states) {
  std::string problem;
  for (size_t done = 0; done <= save.events.size(); ++done) {
    const bool returned = done == save.events.size();
    for_remains(save.files, save.events, done, save.cuts, [&](const Files& left) {
      if (!problem.empty()) return;
      ++states;
      put(remains, left);
      if (save.first && !returned && !left.contains("checkpoint")) return;
      std::string found;
      try {
        found = bytes_of(*CheckpointState::load(remains / "checkpoint"));
      } catch (const std::exception& error) {
        problem = error.what();
      }
      if (problem.empty() && found != save.after && (returned || found != save.before))
        problem = found == save.before ? "the checkpoint is the old one, after the save has returned"
                                       : "the checkpoint is neither the old nor the new one";
      if (!problem.empty())
        problem = "power cut after event " + std::to_string(done) + " of " +
                  std::to_string(save.events.size()) + ": " + problem;
    });
  }
  return problem;
}

// Saves that forget something, made from one that does not: each of its syncs left out, and one that writes
// the checkpoint in place instead of renaming a new file.
std::vector<std::pair<std::string, Save>> broken(const Save& save) {
  std::vector<std::pair<std::string, Save>> all;
  for (size_t i = 0; i < save.events.size(); ++i) {
    const Event::Kind kind = save.events[i].kind;
    if (kind != Event::kSync && kind != Event::kSyncFolder) continue;
    Save without = save;
    without.events.erase(without.events.begin() + static_cast<std::ptrdiff_t>(i));
    all.emplace_back(
        (kind == Event::kSync ? "without syncing a file, event " : "without syncing the folder, event ") +
            std::to_string(i),
        std::move(without));
  }
  Save in_place = save;
  std::erase_if(in_place.events,
                [](const Event& e) { return e.kind == Event::kRename && e.to == "checkpoint"; });
  for (const Event& renamed : save.events)
    if (renamed.kind == Event::kRename && renamed.to == "checkpoint")
      for (Event& e : in_place.events)
        if (e.kind == Event::kCreate && e.name == renamed.name) e.name = "checkpoint";
  all.emplace_back("in place", std::move(in_place));
  return all;
}

struct Counts {
  size_t saves = 0, events = 0, states = 0, caught = 0;
};

// Records a save, looks at what power cuts leave of it, and whether that would show what a save forgets.
void check_save(const CheckpointState& state, bool two, const fs::path& here, const fs::path& remains,
                Save made, Counts& counts) {
  size_t ignored = 0;
  made.after = bytes_of(state);
  made.events = record(here, [&] { save(state, here / "checkpoint", two); });
  if (const std::string problem = problem_of(made, remains, counts.states); !problem.empty()) wrong(problem);
  ++counts.saves;
  counts.events += made.events.size();
  for (const auto& [what, save] : broken(made)) {
    if (problem_of(save, remains, ignored).empty())
      wrong("a save in " + std::string(two ? "two files" : "one file") + " " + what + " is not noticed");
    ++counts.caught;
  }
}

void print(const char* what, const Counts& counts) {
  std::printf(
      "%s: %zu saves, %zu events, %zu states that they may leave, all of them the old or the new checkpoint; "
      "%zu broken saves, all of them noticed\n",
      what, counts.saves, counts.events, counts.states, counts.caught);
}

// Every order of one file and two; power cuts after every event.
void cut_power(const fs::path& folder) {
  const auto state = CheckpointState::load(kCase / "checkpoint");
  const auto session = make_session(state);
  Counts counts;
  const fs::path here = folder / "power", remains = folder / "remains";
  fs::create_directory(here);
  for (const bool two : {false, false, true, true, false, true}) {
    Save made;
    made.first = !fs::exists(here / "checkpoint");
    made.before = made.first ? "" : bytes_of(*CheckpointState::load(here / "checkpoint"));
    made.files = files_in(here);
    take_step(*session);
    check_save(*state, two, here, remains, std::move(made), counts);
  }
  print("power cuts", counts);
}

// A state of many tensors, smaller and larger than what is written at once.
CheckpointState many_tensors() {
  CheckpointState state;
  for (int64_t i = 0; i < 40; ++i)
    state.add_parameter("layer" + std::to_string(i), true, Tensor(DType::kFloat, {30 + i * i}));
  for (int64_t i = 0; i < 2; ++i)
    state.add_parameter("table" + std::to_string(i), false, Tensor(DType::kFloat, {70'000 + i}));
  state.make_arenas();
  state.make_moments(2);
  return state;
}

// Other values in all of them.
void change(CheckpointState& state, float by) {
  float value = by;
  const auto fill = [&](const Tensor& tensor) {
    for (float& element : tensor.elements<float>()) element = value += 1;
  };
  for (const Parameter& p : state.parameters()) {
    fill(p.data);
    for (const Tensor& moment : p.moments) fill(moment);
  }
  ++state.optimizer().step;
}

// Where the tensors begin in the data file of a checkpoint.
std::vector<size_t> tensors_of(const fs::path& checkpoint) {
  std::ifstream file(checkpoint, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto& root = *fbs::GetCheckpoint(bytes.data());
  std::vector<size_t> begins;
  const auto add = [&](const auto* tensors) {
    for (const auto* tensor : *tensors) begins.push_back(static_cast<size_t>(tensor->external_data_offset()));
  };
  add(root.module_state()->requires_grad_params());
  add(root.module_state()->frozen_params());
  for (const auto* group : *root.optimizer_groups())
    for (const auto* states : *group->optimizer_states()) add(states->momentums());
  return begins;
}

// Power cuts that leave the data file up to any of its tensors.
void cut_power_between_tensors(const fs::path& folder) {
  CheckpointState state = many_tensors();
  Counts counts;
  const fs::path here = folder / "tensors", remains = folder / "remains";
  fs::create_directory(here);
  change(state, 1);
  save(state, here / "checkpoint", true);
  const std::vector<size_t> begins = tensors_of(here / "checkpoint");
  for (const bool two : {true, false, true}) {
    Save made{false, files_in(here), bytes_of(state), "", {}, begins};
    change(state, static_cast<float>(counts.saves + 2));
    check_save(state, two, here, remains, std::move(made), counts);
  }
  std::printf("%zu tensors in a data file of %ju bytes; ", begins.size(),
              static_cast<uintmax_t>(fs::file_size(here / "checkpoint.data")));
  print("power cuts between them", counts);
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
  using Clock = std::chrono::steady_clock;
  const fs::path here = folder / "kills", checkpoint = here / "checkpoint";
  fs::create_directory(here);
  std::vector<std::string> expected;  // by step
  Clock::duration time{};             // of all steps
  {
    const auto state = CheckpointState::load(kCase / "checkpoint");
    const auto session = make_session(state);
    expected.push_back("");
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto start = Clock::now();
      take_step(*session);
      save(*state, checkpoint, two_files(state->optimizer().step));
      time += Clock::now() - start;
      expected.push_back(bytes_of(*state));
    }
  }
  fs::remove(checkpoint);
  // A process lives for two steps on average, however fast the machine is at present.
  const auto longest =
      static_cast<unsigned>(4 * std::chrono::duration_cast<std::chrono::microseconds>(time).count() / kSteps);
  auto& progress = *static_cast<Progress*>(
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::mt19937 random(1);
  int killed = 0, left_behind = 0, resumed = 0, ended = 0;
  progress.saved = 0;
  while (killed < kills) {
    progress.trains = false;
    const pid_t child = fork();
    if (child == 0) train_on(checkpoint, progress);
    for (int waits = 0; !progress.trains && waits < 100'000; ++waits) usleep(200);
    usleep(std::uniform_int_distribution<unsigned>(0, longest)(random));
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
      "left, all of them removed; %d runs of %lld steps came to their end\n",
      killed, resumed, left_behind, ended, static_cast<long long>(kSteps));
}

}  // namespace

int main(int count, char** arguments) {
  std::string name = (fs::temp_directory_path() / "ortrain-kill-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) return 1;
  cut_power(name);
  cut_power_between_tensors(name);
  kill_and_resume(name, count > 1 ? std::atoi(arguments[1]) : 100);
  fs::remove_all(name);
  return 0;
}
