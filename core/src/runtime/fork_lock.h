// Code that no fork may interrupt.
#pragma once

namespace ortrain {

// While a thread has a NoFork, `fork` in other threads waits. Libraries without fork handlers hold locks
// while they generate code; a child has only the thread that forked, so it would never release these locks. A
// scope must be short, and must not wait for another thread of the caller, which may be the one that forks.
// Scopes may be nested.
class NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

}  // namespace ortrain
