#include "runtime/threads.h"

#include <pthread.h>

namespace ortrain {

namespace {

// A child of fork has only the thread that called it. GCC's OpenMP library would still wait for the threads
// of the parent's pool there, forever. So the pool is dissolved before a fork; parent and child each start a
// new one when they next need it.
void dissolve_pool() { omp_pause_resource(omp_pause_soft, omp_get_initial_device()); }

[[maybe_unused]] const int registered = pthread_atfork(dissolve_pool, nullptr, nullptr);

}  // namespace

}  // namespace ortrain
