// Threads that a program makes for the regions of a session (runtime/thread_pool.h).
#pragma once

#include <functional>
#include <memory>
#include <vector>

namespace ortrain {

// Functions of a program that make threads.
struct ThreadFunctions {
  // Calls work(parameter) on a new thread. Returns its handle, or null if there is no thread.
  std::function<const void*(void (*work)(void*), void* parameter)> create;
  // Waits until the thread with that handle has ended.
  std::function<void(const void* handle)> join;
};

// Functions that make one thread after another, bound to these processors, counted from 0. Where the system
// cannot bind threads to processors, it places them.
ThreadFunctions bound_threads(std::vector<std::vector<int>> processors);

// Threads that such functions have made. They serve one region at a time: a thread that starts a region while
// they serve another one does all parts itself.
class GivenThreads {
 public:
  // For regions of up to `parts` parts, of which the first belongs to the caller. Throws kFail if no thread
  // can be made for one of the other parts.
  GivenThreads(ThreadFunctions functions, int parts);
  ~GivenThreads();  // waits until all have ended
  GivenThreads(const GivenThreads&) = delete;
  GivenThreads& operator=(const GivenThreads&) = delete;

  // While it exists, these threads serve the regions of the calling thread. With null, the threads of the
  // calling thread do (runtime/thread_pool.h).
  class Scope {
   public:
    explicit Scope(GivenThreads* threads);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    void* before_;
  };

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ortrain
