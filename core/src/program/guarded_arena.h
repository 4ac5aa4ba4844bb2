// In builds with AddressSanitizer: an arena in which only memory in use can be accessed. To the sanitizer an
// arena is one block, so it would not notice a kernel that writes past its output into the next value, or
// reads one whose memory is free. In other builds all of this is empty.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define ORTRAIN_GUARDS_ARENAS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ORTRAIN_GUARDS_ARENAS 1
#endif
#endif

#ifdef ORTRAIN_GUARDS_ARENAS
#include <sanitizer/asan_interface.h>
#endif

namespace ortrain {

#ifdef ORTRAIN_GUARDS_ARENAS
inline constexpr bool kGuardsArenas = true;
inline void forbid_access(const void* at, size_t bytes) { ASAN_POISON_MEMORY_REGION(at, bytes); }
inline void allow_access(const void* at, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(at, bytes); }
#else
inline constexpr bool kGuardsArenas = false;
inline void forbid_access(const void*, size_t) {}
inline void allow_access(const void*, size_t) {}
#endif

// Bytes after each value that belong to none.
inline constexpr size_t kGuardBytes = kGuardsArenas ? 64 : 0;

// While it exists, an arena may be guarded; after that it is an ordinary block again.
class GuardScope {
 public:
  GuardScope(const void* base, size_t bytes) : base_(base), bytes_(bytes) {}
  ~GuardScope() { allow_access(base_, bytes_); }
  GuardScope(const GuardScope&) = delete;
  GuardScope& operator=(const GuardScope&) = delete;

 private:
  const void* base_;
  size_t bytes_;
};

}  // namespace ortrain
