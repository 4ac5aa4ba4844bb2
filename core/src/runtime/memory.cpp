#include "runtime/memory.h"

#include <cstdint>

#include "runtime/error.h"
#include "runtime/system.h"

namespace ortrain {

namespace {
// Large blocks are aligned to huge pages, which the system is asked to use: fewer TLB misses.
constexpr size_t kHugePage = size_t{2} << 20;
}  // namespace

std::shared_ptr<std::byte> allocate(size_t bytes) {
  const bool large = bytes >= 4 * kHugePage;
  const size_t alignment = large ? kHugePage : kAlignment;
  require(bytes <= SIZE_MAX - 2 * alignment, ErrorCode::kFail, "cannot allocate ", counted(bytes, "byte"));
  const size_t rounded = bytes == 0 ? alignment : (bytes + alignment - 1) / alignment * alignment;
  void* block = system::allocate_aligned(alignment, rounded);
  require(block != nullptr, ErrorCode::kFail, "out of memory while allocating ", counted(bytes, "byte"));
  if (large) system::prefer_huge_pages(block, rounded);
  return {static_cast<std::byte*>(block), [](std::byte* p) { system::free_aligned(p); }};
}

}  // namespace ortrain
