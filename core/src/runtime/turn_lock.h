// A lock that threads get in the order in which they ask for it.
//
// With an unfair lock, a thread that wants to save would never get it beside a thread that trains.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace ortrain {

// Unlike that of std::mutex, its order is fair: a thread that takes the lock again at once, like a thread
// that trains in a loop, waits for the threads that asked before. The thread that holds it may take it again.
// Nothing is allocated.
class TurnLock {
 public:
  // Holds the lock for as long as it lives, or until it is released.
  class Turn {
   public:
    explicit Turn(TurnLock& lock) : lock_(&lock) { lock.take(); }
    ~Turn() { release(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    void release() {
      if (lock_ != nullptr) lock_->give_back();
      lock_ = nullptr;
    }

   private:
    TurnLock* lock_;
  };

  // Throws kRuntimeException in a child process whose parent was forked while another thread held the lock:
  // no thread of the child would ever release it.
  void take();
  void give_back();

 private:
  std::atomic<uint32_t> next_ = 0, serving_ = 0;  // tickets
  std::atomic<std::thread::id> holder_ = {};
  uint32_t depth_ = 0;                // how often the holder has taken it
  std::atomic<int64_t> process_ = 0;  // in which it was last taken
};

}  // namespace ortrain
