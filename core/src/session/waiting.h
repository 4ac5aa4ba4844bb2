// How the threads of a session wait for each other.
#pragma once

#include "runtime/given_threads.h"
#include "runtime/thread_pool.h"
#include "session/options.h"

namespace ortrain {

inline constexpr const char* kSpinningKey = "session.intra_op.allow_spinning";

// The waiting that the entries "session.intra_op.allow_spinning" and "session.force_spinning_stop" choose;
// each is "1" or "0". Throws for other values.
struct SessionWaiting {
  explicit SessionWaiting(const SessionOptions& options)
      : while_running(config_choice(options, kSpinningKey) == "1" ? Waiting::kAdaptive : Waiting::kSleep),
        rest_after_runs(config_choice(options, "session.force_spinning_stop") == "1"),
        given(options.given_threads) {}

  // For the duration of a run.
  struct Scope {
    GivenThreads::Scope threads;
    WaitingScope waiting;
  };
  Scope scope() const {
    return {GivenThreads::Scope(given.get()), WaitingScope(while_running, rest_after_runs)};
  }

  Waiting while_running;
  bool rest_after_runs;
  std::shared_ptr<GivenThreads> given;
};

}  // namespace ortrain
