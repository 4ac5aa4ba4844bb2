// The threads that share the work of one thread with it, and how they wait for each other.
//
// Each thread that runs regions has its own threads. A region is work in parts: part 0 is the calling
// thread's, every other part belongs to one of its threads. A thread that has finished its own part also does
// the parts that no other thread has begun, so that no region waits for a thread that gets no processor. If
// the threads turn out to be of different speed, each part is divided into pieces, so that the fast threads
// can do more of them (runtime/division.h). Which thread does a piece, and whether parts are divided, makes
// no difference to the result. Pieces must not wait for each other.
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

// Does piece `piece` of `pieces`, which are numbered through all parts. Pieces with the same `share` are done
// one after the other; shares are numbered like parts.
using Work = void (*)(void* data, int share, int piece, int pieces);

// Does work in `parts` parts, or in fewer if the system allows no more threads, and each part in 1 to
// `most_pieces` pieces. Returns when all pieces have ended. If pieces failed, rethrows the exception of the
// first piece that did. A region inside a piece has one part.
void run(Work work, void* data, int parts, int most_pieces = 1);

// Whether the calling thread is in a region.
bool inside();
// Memory of at least so many bytes for this share of a region, or outside of regions for the calling thread,
// kept for the next use. A whole part of a later region gets the same memory again, whichever thread does it,
// so a step in steady state allocates none.
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

// While it exists, the parts of this thread's regions are divided into `pieces` pieces, or into as many as
// they can have, however fast the threads are. For tests.
class PiecesScope {
 public:
  explicit PiecesScope(int pieces);
  ~PiecesScope();
  PiecesScope(const PiecesScope&) = delete;
  PiecesScope& operator=(const PiecesScope&) = delete;

 private:
  int before_;
};

}  // namespace ortrain
