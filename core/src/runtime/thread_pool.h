// The threads that share the work of one thread with it, and how they wait for each other.
//
// Each thread that starts regions has its own threads. A region is a piece of work in parts: part 0 is the
// calling thread's, every other part belongs to one of its threads. When the caller has finished its own
// part, it also does the parts that no other thread has begun, so that no region waits for a thread that gets
// no processor. Which thread computes a part makes no difference to the result.
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

using Work = void (*)(void* data);

// Work of the calling thread in `parts` parts. Between the two calls it does part 0 itself. With `together`
// the parts may wait for each other, so each is sure to get a thread. A region inside a part has one part.
void start(Work work, void* data, int parts, bool together);
void finish();

// Where the calling thread is: its part, the number of parts, and whether it is in a region at all.
int part();
int parts();
bool inside();
// Waits until all parts of the region are here.
void barrier();
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
