// What no fork may interrupt.
#pragma once

namespace ortrain {

// While a thread has one, `fork` in other threads waits. Libraries that have no fork handlers hold locks and
// leave promises while they generate code; in a child, which has only the thread that forked, nobody would
// ever release or keep them. Short, and nothing in it may wait for another thread of the caller, which may be
// the one that forks. Scopes may be nested.
class NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

}  // namespace ortrain
