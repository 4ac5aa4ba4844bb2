// Work in parallel, on the threads of runtime/thread_pool.h.
#pragma once

#include <algorithm>
#include <cstdint>
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

// Calls f(begin, end) over contiguous parts of [0, n), one part per thread. Work of `n * cost` below the
// grain stays on this thread. The parts depend only on n and the number of threads, so results are
// repeatable. What f throws is thrown here, once all parts have ended.
template <typename F>
void parallel_for(int64_t n, int64_t cost, F&& f) {
  if (n <= 0) return;
  const int64_t wanted = std::max<int64_t>(1, n * std::max<int64_t>(cost, 1) / kGrain);
  const int threads = static_cast<int>(std::min<int64_t>({max_threads(), n, wanted}));
  if (threads <= 1) {
    f(int64_t{0}, n);
    return;
  }
  auto range = [&](int part, int parts) {
    const int64_t begin = n * part / parts, end = n * (part + 1) / parts;
    if (begin < end) f(begin, end);
  };
  using Range = decltype(range);
  regions::run([](void* data, int part, int parts) { (*static_cast<Range*>(data))(part, parts); }, &range,
               threads);
}

}  // namespace ortrain
