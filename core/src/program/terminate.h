// The wish of a caller that a run end, which may come from another thread.
#pragma once

#include <atomic>

#include "runtime/error.h"

namespace ortrain {

// Throws once `terminate` is set; null never is. Code and second half of the message are those of
// onnxruntime, for programs tell an ended run from a failed one by them.
inline void check_terminate(const std::atomic<bool>* terminate) {
  if (terminate && terminate->load(std::memory_order_relaxed)) [[unlikely]]
    fail(ErrorCode::kFail,
         "the run was ended by its run options: Exiting due to terminate flag being set to true.");
}

}  // namespace ortrain
