#include "runtime/threads.h"

#include <cstdint>

#include "runtime/system.h"

namespace ortrain {

namespace {

// A child of fork has only the thread that called it, but would still wait for the threads of the parent's
// pool, forever. So the pool is dissolved before a fork; parent and child each start a new one when they next
// need it.
void before_fork() { regions::end_threads(); }

[[maybe_unused]] const bool registered = (system::before_fork(before_fork), true);

}  // namespace

// A piece has at least two grains.
void run_parts(int64_t n, int64_t cost, ShareWork work, void* data) {
  const int64_t grains = std::max<int64_t>(1, n * std::max<int64_t>(cost, 1) / kGrain);
  run_shares(grains, n, grains / (2 * max_threads()), work, data);
}

void run_shares(int64_t workers, int64_t n, int64_t most_pieces, ShareWork work, void* data) {
  if (n <= 0) return;
  const int parts = static_cast<int>(std::min<int64_t>({max_threads(), n, workers}));
  if (parts <= 1) return work(data, 0, 0, n);
  auto piece_of = [&](int share, int piece, int pieces) {
    const int64_t begin = n * piece / pieces, end = n * (piece + 1) / pieces;
    if (begin < end) work(data, share, begin, end);
  };
  using PieceOf = decltype(piece_of);
  regions::run(
      [](void* of, int share, int piece, int pieces) { (*static_cast<PieceOf*>(of))(share, piece, pieces); },
      &piece_of, parts, static_cast<int>(std::min<int64_t>({n / parts, most_pieces, INT32_MAX})));
}

}  // namespace ortrain
