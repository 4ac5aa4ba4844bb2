// Blocks of memory, aligned for vector loads.
#pragma once

#include <cstddef>
#include <memory>

namespace ortrain {

inline constexpr size_t kAlignment = 64;  // one cache line, one AVX-512 register

// Rounds up to a multiple of kAlignment.
inline constexpr size_t align_up(size_t bytes) { return (bytes + kAlignment - 1) & ~(kAlignment - 1); }

// An uninitialized block of at least `bytes`, aligned to kAlignment. Throws Error if there is not enough
// memory.
std::shared_ptr<std::byte> allocate(size_t bytes);

}  // namespace ortrain
