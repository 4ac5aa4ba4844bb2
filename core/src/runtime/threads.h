// Threads: one pool for everything, which oneDNN also uses (runtime/thread_pool.h; without GCC, OpenMP's).
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace ortrain {

// While it exists, parallel work started by this thread uses `threads` threads (0: the machine's default).
// Never more than OpenMP may start (OMP_THREAD_LIMIT): oneDNN divides its work among the requested number of
// threads, and leaves undone the parts of threads that do not exist.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : before_(omp_get_max_threads()) {
    if (threads > 0) omp_set_num_threads(std::min(threads, omp_get_thread_limit()));
  }
  ~ThreadScope() { omp_set_num_threads(before_); }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};

inline int max_threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

// The number of items that is worth a fork and a join (about five microseconds of elementwise arithmetic).
// Builds with sanitizers have a small one, so that the small cases of tests run on several threads too.
#ifndef ORTRAIN_GRAIN
#define ORTRAIN_GRAIN 32768
#endif
inline constexpr int64_t kGrain = ORTRAIN_GRAIN;

// Calls f(begin, end) over contiguous parts of [0, n), one part per thread. Work of `n * cost` below the
// grain stays on this thread. The parts depend only on n and the number of threads, so results are
// repeatable.
template <typename F>
void parallel_for(int64_t n, int64_t cost, F&& f) {
  if (n <= 0) return;
  const int64_t wanted = std::max<int64_t>(1, n * std::max<int64_t>(cost, 1) / kGrain);
  const int threads = static_cast<int>(std::min<int64_t>({max_threads(), n, wanted}));
  if (threads <= 1) {
    f(int64_t{0}, n);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
    const int64_t begin = n * me / team, end = n * (me + 1) / team;
    if (begin < end) f(begin, end);
  }
}

}  // namespace ortrain
