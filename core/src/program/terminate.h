// A caller's request to terminate a run, possibly from another thread.
#pragma once

#include <atomic>

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

}  // namespace ortrain
