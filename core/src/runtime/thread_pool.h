// The threads that share the work of one thread with it, and how they wait for each other.
//
// Each thread that runs regions has its own threads. A region is a piece of work in parts: part 0 is the
// calling thread's, every other part belongs to one of its threads. When the caller has finished its own
// part, it also does the parts that no other thread has begun, so that no region waits for a thread that gets
// no processor. Which thread computes a part makes no difference to the result. Parts must not wait for each
// other.
#pragma once

#include <cstddef>

namespace ortrain {

// How threads wait.
enum class Waiting {
  kAdaptive,  // spin for a while, unless other programs want the processor
  kSleep,
  kSpin,
};

namespace regions {

// Does part `part` of a piece of work in `parts` parts.
using Work = void (*)(void* data, int part, int parts);

// Calls `work` once for each of `parts` parts, or of fewer if the system allows no more threads. Returns when
// all parts have ended. If parts failed, rethrows the exception of the first part that did. A region inside a
// part has one part.
void run(Work work, void* data, int parts);

// Whether the calling thread is in a region.
bool inside();
// Memory of at least so many bytes for this part, or outside of regions for the calling thread, kept for the
// next use. The same part of a later region gets it again, whichever thread computes that, so a step in
// steady state allocates none.
void* memory(size_t bytes);

// How many threads regions of the calling thread should use; at first OMP_NUM_THREADS, or the processors
// that the process may use. At most OMP_THREAD_LIMIT.
int wanted_threads();
void want_threads(int threads);
int most_threads();

// Ends the threads of the calling thread; its next region starts new ones. False inside of a region.
bool end_threads();

}  // namespace regions

// While it exists, the threads of this thread wait as given; OMP_WAIT_POLICY takes precedence. With `rest`
// they sleep once it is gone.
class WaitingScope {
 public:
  explicit WaitingScope(Waiting waiting, bool rest = false);
  ~WaitingScope();
  WaitingScope(const WaitingScope&) = delete;
  WaitingScope& operator=(const WaitingScope&) = delete;

 private:
  Waiting before_;
  bool rest_;
};

}  // namespace ortrain
