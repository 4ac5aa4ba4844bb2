#include "runtime/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "runtime/error.h"

namespace ortrain {

namespace {
// Large blocks are aligned to huge pages, which the system is asked to use: fewer TLB misses.
constexpr size_t kHugePage = size_t{2} << 20;
}  // namespace

std::shared_ptr<std::byte> allocate(size_t bytes) {
  const bool large = bytes >= 4 * kHugePage;
  const size_t alignment = large ? kHugePage : kAlignment;
  require(bytes <= SIZE_MAX - 2 * alignment, ErrorCode::kFail, "cannot allocate ", bytes, " bytes");
  const size_t rounded = bytes == 0 ? alignment : (bytes + alignment - 1) / alignment * alignment;
  void* block = std::aligned_alloc(alignment, rounded);
  require(block != nullptr, ErrorCode::kFail, "out of memory while allocating ", bytes, " bytes");
#ifdef MADV_HUGEPAGE
  if (large) madvise(block, rounded, MADV_HUGEPAGE);
#endif
  return {static_cast<std::byte*>(block), [](std::byte* p) { std::free(p); }};
}

}  // namespace ortrain
