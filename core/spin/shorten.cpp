// Shortens how long the threads of GCC's OpenMP library spin while they wait for each other.
//
// Its own choice is 300,000 turns, which take 15 ms on processors with a slow PAUSE. While another program
// runs, a thread that has finished its part then spins through its time slice in place of the thread that it
// waits for, and a step of one millisecond takes a hundred. Ten thousand turns, half a millisecond at most,
// still bridge the time between two kernels: waking a thread that sleeps is dear on virtual machines, and a
// thousand turns cost a small step half of its time again.
//
// The library reads its environment when it is loaded. This library is linked after it, for which the loader
// of GNU systems initializes it first. What the user set stays.
#include <cstdlib>

namespace {

bool changed = false;

__attribute__((constructor)) void shorten() {
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  changed = setenv("GOMP_SPINCOUNT", "10000", 0) == 0;
}

}  // namespace

// Leaves the environment as it was, for the programs that this one starts.
extern "C" __attribute__((visibility("default"))) void ortrain_restore_environment() {
  if (changed) unsetenv("GOMP_SPINCOUNT");
  changed = false;
}
