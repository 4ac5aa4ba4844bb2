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

void run_parts(int64_t n, int64_t cost, void (*work)(void* data, int64_t begin, int64_t end), void* data) {
  if (n <= 0) return;
  const int64_t wanted = std::max<int64_t>(1, n * std::max<int64_t>(cost, 1) / kGrain);
  const int threads = static_cast<int>(std::min<int64_t>({max_threads(), n, wanted}));
  if (threads <= 1) return work(data, 0, n);
  auto part_of = [&](int part, int parts) {
    const int64_t begin = n * part / parts, end = n * (part + 1) / parts;
    if (begin < end) work(data, begin, end);
  };
  using PartOf = decltype(part_of);
  regions::run([](void* of, int part, int parts) { (*static_cast<PartOf*>(of))(part, parts); }, &part_of,
               threads);
}

}  // namespace ortrain
