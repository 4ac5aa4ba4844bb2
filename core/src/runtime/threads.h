// Work in parallel, on the threads of runtime/thread_pool.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "runtime/thread_pool.h"

namespace ortrain {

// While it exists, parallel work started by this thread uses `threads` threads (0: the machine's default),
// never more than OMP_THREAD_LIMIT.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : before_(regions::wanted_threads()) {
    if (threads > 0) regions::want_threads(std::min(threads, regions::most_threads()));
  }
  ~ThreadScope() { regions::want_threads(before_); }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};

inline int max_threads() { return regions::inside() ? 1 : regions::wanted_threads(); }

// The number of items that is worth a fork and a join (about five microseconds of elementwise arithmetic).
// Builds with sanitizers have a small one, so that the small cases of tests run on several threads too.
#ifndef ORTRAIN_GRAIN
#define ORTRAIN_GRAIN 32768
#endif
inline constexpr int64_t kGrain = ORTRAIN_GRAIN;

// What the two functions below call.
using ShareWork = void (*)(void* data, int64_t share, int64_t begin, int64_t end);
void run_parts(int64_t n, int64_t cost, ShareWork work, void* data);
void run_shares(int64_t workers, int64_t n, int64_t most_pieces, ShareWork work, void* data);

// Calls f(begin, end) over contiguous pieces of [0, n): one for each thread, or several if the threads are of
// different speed (runtime/division.h). So what f computes for an item must not depend on where its piece
// begins or ends. Work of `n * cost` below the grain stays on this thread. What f throws is thrown here, once
// all pieces have ended.
//
// f is compiled once, for one thread and for several: there are hundreds of them.
template <typename F>
void parallel_for(int64_t n, int64_t cost, F&& f) {
  using Work = std::remove_reference_t<F>;
  run_parts(
      n, cost,
      [](void* work, int64_t, int64_t begin, int64_t end) { (*static_cast<Work*>(work))(begin, end); },
      const_cast<std::remove_const_t<Work>*>(std::addressof(f)));
}

// Calls f(share, begin, end) as above, on at most `workers` threads. Pieces with the same `share`, of which
// there are `workers`, are computed one after the other: each share can have memory that its pieces use.
template <typename F>
void share_among(int64_t workers, int64_t n, F&& f) {
  using Work = std::remove_reference_t<F>;
  run_shares(
      workers, n, n,
      [](void* work, int64_t share, int64_t begin, int64_t end) {
        (*static_cast<Work*>(work))(share, begin, end);
      },
      const_cast<std::remove_const_t<Work>*>(std::addressof(f)));
}

}  // namespace ortrain
