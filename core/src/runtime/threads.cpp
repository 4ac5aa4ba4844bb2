#include "runtime/threads.h"

#include "runtime/system.h"

namespace ortrain {

namespace {

// A child of fork has only the thread that called it, but would still wait for the threads of the parent's
// pool, forever. So the pool is dissolved before a fork; parent and child each start a new one when they next
// need it.
void before_fork() { regions::end_threads(); }

[[maybe_unused]] const bool registered = (system::before_fork(before_fork), true);

}  // namespace

}  // namespace ortrain
