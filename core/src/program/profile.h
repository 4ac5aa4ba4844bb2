// Profile: how long each kernel of each run took. While a profile is recorded, a Program measures the time of
// each kernel; otherwise it checks one null pointer per kernel.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ortrain {

class Profile {
 public:
  using Clock = std::chrono::steady_clock;

  // Begins a run; everything recorded before the next run belongs to it. `what` names it: "train step".
  void begin(std::string what);
  // For a Program of the run: the size of the block for intermediate values, and the most of it in use at
  // once. The maximum of each is kept.
  void memory(size_t arena, size_t live);
  // One piece of work of the run: the operator's type and what it was for, such as the node's name.
  void record(const std::string& type, const std::string& name, Clock::time_point start,
              Clock::time_point end);

  // Everything in Chrome's trace event format: an object with the list `traceEvents` of complete events,
  // times in microseconds since the profile began. Runs are events of thread 0, with the bytes of their
  // memory, kernels of thread 1.
  std::string chrome_trace() const;

  // Something that a session did besides runs, such as its creation.
  void session_event(std::string name, Clock::time_point start, Clock::time_point end);
  // The same recording as onnxruntime writes it: a list of events of the categories Session and Node.
  std::string session_trace() const;

 private:
  struct Event {
    std::string type, name;
    int64_t start, duration;  // nanoseconds
  };
  struct Run {
    std::string what;
    size_t first;  // of its events
    size_t arena = 0, live = 0;
  };
  Clock::time_point origin_ = Clock::now();
  std::vector<Event> events_;
  std::vector<Run> runs_;
  std::vector<Event> session_events_;
};

// The path of a profile that is written now, where no file is yet: the prefix, the local time, and .json.
std::string profile_path(const std::string& prefix);

}  // namespace ortrain
