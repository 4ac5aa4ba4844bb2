// What code compiled with GCC's -fopenmp calls, on our own threads instead of those of GCC's library. Those
// spin while they wait, even if another program wants the processor; ours then sleep (runtime/thread_pool.h).
// Only what the core uses is here: anything else would still be linked to GCC's library.
//
// These functions are hidden: the regions of a program that links or loads this library stay its own.
#include <omp.h>

#include "runtime/thread_pool.h"

namespace regions = ortrain::regions;

extern "C" {

void GOMP_parallel(void (*work)(void*), void* data, unsigned threads, unsigned) {
  const int parts = threads > 0 ? static_cast<int>(threads) : regions::wanted_threads();
  regions::start(work, data, parts, false);
  work(data);
  regions::finish();
}

int omp_get_max_threads() noexcept { return regions::wanted_threads(); }
void omp_set_num_threads(int threads) noexcept { regions::want_threads(threads); }
int omp_get_thread_limit() noexcept { return regions::most_threads(); }
int omp_get_thread_num() noexcept { return regions::part(); }
int omp_get_num_threads() noexcept { return regions::parts(); }
int omp_in_parallel() noexcept { return regions::inside() ? 1 : 0; }
int omp_get_initial_device() noexcept { return 0; }
int omp_pause_resource(omp_pause_resource_t, int) noexcept { return regions::end_threads() ? 0 : -1; }
}
