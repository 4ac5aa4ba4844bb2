#include "runtime/turn_lock.h"

#include "runtime/error.h"
#include "runtime/system.h"

namespace ortrain {

void TurnLock::take() {
  const std::thread::id self = std::this_thread::get_id();
  if (holder_.load(std::memory_order_relaxed) == self) {
    ++depth_;
    return;
  }
  const int64_t process = system::process_id(), last = process_.load(std::memory_order_relaxed);
  require(last == 0 || last == process || next_.load() == serving_.load(), ErrorCode::kRuntimeException,
          "another thread was using the checkpoint state when this process was forked; load the checkpoint "
          "again in this process");
  const uint32_t ticket = next_.fetch_add(1);
  for (uint32_t now = serving_.load(); now != ticket; now = serving_.load()) serving_.wait(now);
  process_.store(process, std::memory_order_relaxed);
  holder_.store(self, std::memory_order_relaxed);
  depth_ = 1;
}

void TurnLock::give_back() {
  if (--depth_ > 0) return;
  holder_.store({}, std::memory_order_relaxed);
  serving_.fetch_add(1);
  serving_.notify_all();
}

}  // namespace ortrain
