#include "runtime/threads.h"

#include <pthread.h>

#include <memory>
#include <shared_mutex>

#include "runtime/fork_lock.h"

namespace ortrain {

namespace {

// Those who must not be interrupted share it; a fork has it alone. It must let new sharers in while a fork
// waits, as that of glibc does: threads of one team may need it one after the other.
std::shared_mutex& fork_lock() {
  static auto* const lock = new std::shared_mutex;  // never destroyed: threads may outlive static objects
  return *lock;
}
thread_local int scopes = 0;  // of this thread; only the outermost one has the lock

// A child of fork has only the thread that called it, but would still wait for the threads of the parent's
// pool, forever. So the pool is dissolved before a fork; parent and child each start a new one when they next
// need it.
void before_fork() {
  fork_lock().lock();
  omp_pause_resource(omp_pause_soft, omp_get_initial_device());
}
void in_parent() { fork_lock().unlock(); }
// The lock belongs to a thread of the parent, so the child cannot unlock it.
void in_child() { std::construct_at(&fork_lock()); }

[[maybe_unused]] const int registered = pthread_atfork(before_fork, in_parent, in_child);

}  // namespace

NoFork::NoFork() {
  if (scopes++ == 0) fork_lock().lock_shared();
}
NoFork::~NoFork() {
  if (--scopes == 0) fork_lock().unlock_shared();
}

}  // namespace ortrain
