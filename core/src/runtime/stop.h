// A caller's request to stop lengthy work, possibly from another thread.
//
// The function that decides is found through a scope on the thread, because as an argument it would pass
// through every rule. It is called for each node that is compiled or whose types are inferred, and for
// each pass.
#pragma once

#include <atomic>
#include <functional>

#include "runtime/error.h"

namespace ortrain {

// Throws if `terminate` is not null and set. The code and the second half of the message are those of
// onnxruntime, because programs use them to tell a terminated run from a failed one.
inline void check_terminate(const std::atomic<bool>* terminate) {
  if (terminate && terminate->load(std::memory_order_relaxed)) [[unlikely]]
    fail(ErrorCode::kFail,
         "run terminated because RunOptions.terminate is set: Exiting due to terminate flag being set to "
         "true.");
}

// The function that check_stop() calls on this thread while the scope lasts: a function that throws if the
// work is to stop. Null means nothing.
class StopScope {
 public:
  explicit StopScope(const std::function<void()>* check);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

 private:
  const std::function<void()>* before_;
};

// Called for every node by what creates a session or prepares a run: passes, inference of types and shapes,
// gradients, compilation.
void check_stop();

}  // namespace ortrain
