// The constants of the CPU kernels that affect only speed, all in one place.
//
// To measure one, change it, build, and let the old and the new library take turns in one run
// (`python -m benchmarks`, docs/performance.md). Recorded measurements are stated below; the other constants
// were chosen when the kernel was written.
#pragma once

#include <cstdint>

namespace ortrain::tuning {

// Matrix products.

// Below this many multiplications calling a library costs more than the product.
inline constexpr int64_t kSmallProduct = 4096;
// From this many rows on, it pays to convert the right operand to the blocks that oneDNN's primitive prefers,
// once for all threads. Measured: 4 to 8 % of the time of a product of 512 rows and more, while one of 256
// takes longer.
inline constexpr int64_t kPackedRows = 512;
// Blocks of the operands that stay in the second-level cache while they are used: bytes of rows of B, and
// rows of A.
inline constexpr int64_t kBlockColumns = 2048, kBlockRows = 168;
// Bytes between elements that need no packing.
inline constexpr int64_t kNearby = 512;
// With more rows than this, packing B pays off: if its columns are contiguous, and if its rows are.
inline constexpr int64_t kFewDots = 6, kFewRows = 36;
// This many multiplications take as long as one item of work for parallel_for (runtime/threads.h).
inline constexpr int64_t kMultiplications = 16;

// Attention.

// Bytes of the scores of a block of queries, which are to stay in the second-level cache, and the least and
// the most queries of a block.
inline constexpr int64_t kScoreBytes = 256 * 1024, kLeastQueries = 48, kLargestQueries = 96;
// Up to this many queries, keys and values are read where they are stored instead of being packed.
inline constexpr int64_t kFewQueries = 2;

// Winograd's convolution.

// Bytes of a thread's own cache, for its working set, and of the data that are transformed for all threads.
inline constexpr int64_t kOwnCacheBytes = 1 << 20, kSharedCacheBytes = 1 << 24;
// Tiles that a thread takes through all three stages at once.
inline constexpr int64_t kLeastChunk = 48, kLargestChunk = 192;
// When it is faster than oneDNN's direct convolution. Measured (docs/performance.md): with few channels the
// transforms of tiles do not pay off, with few tiles those of the weights do not,
inline constexpr int64_t kLeastChannels = 32, kLeastTiles = 32;  // the second per thread
inline constexpr int64_t kLeastProducts = 1 << 19;               // tiles times channels times filters
// and tiles must not reach far beyond the results: 4 values per tile, at most 6 for 5 results.
inline constexpr int64_t kTileValues = 4 * 5, kResultValues = 6;

}  // namespace ortrain::tuning
