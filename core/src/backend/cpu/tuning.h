// The constants of the CPU kernels that affect only speed, all in one place. Constants that also decide how
// sums are grouped, and so the last bits of a result, are next to the sums.
//
// To measure one, run `python -m benchmarks.tuning kPiece=2048,8192`: libraries with these values and the one
// here take turns in training small models that spend their time in what the constant decides. Each constant
// says where it comes from:
//
//     measured   against its neighbours: ratios of the time of a whole step to the time with the value here
//     derived    from sizes of caches, registers or vectors, as stated
//
// "Flat from A to B" means that no value between changed a step by more than the spread of the measurement,
// about 5 %. Unless it says otherwise, it was measured with two threads on a virtual machine with two cores
// of an EPYC with AVX-512, 1 MiB of second-level cache each.
#pragma once

#include <cstdint>

namespace ortrain::tuning {

// Elementwise kernels of several passes.

// Elements that stay in the first-level cache from one pass to the next. Derived: an operand and a result of
// 4096 floats take 32 KiB of the 48 KiB of recent cores. Flat from 1024 to 16384.
inline constexpr int64_t kPiece = 4096;
// Draws of random numbers at a time. Derived: their 1024 words are 4 KiB of the first-level cache.
// Flat from 64 to 512; 1024 takes 1.1.
inline constexpr int64_t kDraws = 256;
// Elements of LRN at a time. Derived: two roots of 512 doubles each take 8 KiB of the first-level
// cache. Flat from 256 to 1024.
inline constexpr int64_t kLrnPiece = 512;
// Softmaxes side by side in one task. Derived: 64 floats are four cache lines of each row. Flat from 32 to
// 128.
inline constexpr int64_t kSoftmaxColumns = 64;
// From this many steps on, a recurrent layer packs its weights before the first one. Derived: packing takes
// about as long as multiplying six rows.
inline constexpr int64_t kPackedSteps = 8;

// Copies.

// Bytes that one unit of work moves along a long inner loop. Measured: 4096 takes 0.99 to 1.03, 16384 up to
// 1.15.
inline constexpr int64_t kCopyPieceBytes = 8192;
// Copying this many bytes takes about as long as one item of work for parallel_for (runtime/threads.h).
// Derived: an item is the addition of a float. Flat from 2 to 8.
inline constexpr int64_t kCopyBytesPerItem = 4;

// Matrix products.

// Up to this many multiplications of floats, starting a library's kernel costs more than it saves. Measured
// on dense layers: with 4096 the step takes 2.1 times as long for 32 x 32 x 32, 1.8 for 64 x 64 x 64 and 64 x
// 500 x 10, 1.2 for 2 x 256 x 256, and the same for 96 x 96 x 96; with 5 million 0.9 to 1.0 for 128 x 128 x
// 128, but 1.1 for 8 x 256 x 256.
inline constexpr int64_t kSmallProduct = 1 << 20;
// The same in mixed precision: smaller products are computed in float. Measured with products of another
// library, not yet with ours: with 0, steps of up to 16 x 16 x 16 take 1.2; with 4096, those of 16 x 32 x 32
// and 32 x 32 x 32 take 1.15 to 1.18; with 2^18, one of 64 x 64 x 64 takes 1.02.
inline constexpr int64_t kSmallBf16Product = 1 << 15;
// Blocks of the operands that stay in the second-level cache while they are used: bytes of rows of B, and
// rows of A. Derived: 256 products deep (kDepth), they take 256 KiB and, in float, 168 KiB of 1 MiB or more.
// Flat from half to twice each.
inline constexpr int64_t kBlockColumns = 1024, kBlockRows = 168;
// Rows of a product in mixed precision from whose sums results are made at a time. Measured on Zen 4: 12 and
// 24 take 1.00 to 1.04.
inline constexpr int64_t kFinishedRows = 6;
// Bytes between elements that need no packing. Flat from 128 to 2048.
inline constexpr int64_t kNearby = 512;
// With more rows than this, packing an operand pays off: if the columns of B are contiguous, and if its rows
// are. Measured for 512 x 512 weights: with 6, 8 rows take 1.13; on AVX2, with 12, 12
// rows of 500 x 784 weights take 1.2, with 4, 6 and 8 rows take 0.95 to 1.1. With 36, 64 rows take 1.04; 144
// is the same as 72.
inline constexpr int64_t kFewDots = 8, kFewRows = 72;
// The same if the rows of B are contiguous and a panel of them has at most kNarrowPanel bytes, unless B has
// at most kFewPanels panels. Measured with AVX2: if 64 rows of 256 x 1024 to 1024 x 1024 weights are packed,
// they take 0.79 to 0.92, 32 rows 0.87 to 0.97, 24 rows 0.93 to 1.02, 16 rows 1.01 to 1.06; with one panel,
// 40 rows take 1.28, and with one and a half, 64 rows take 1.1.
inline constexpr int64_t kFewNarrowRows = 24, kNarrowPanel = 64, kFewPanels = 2;
// If the columns of B are contiguous, A is packed instead of B if that moves fewer elements by this factor,
// and A has no more elements than this. Derived: 256 KiB of float. Measured with AVX2 against packing B: 64
// rows of 500 x 784 weights take 0.88, 16 rows 0.66, and 24 rows of 4096 x 1024 0.73; 100 rows of 1000 x 512,
// where the factor is reached, take 1.00.
inline constexpr int64_t kTransposedGain = 3, kTransposedOperand = 1 << 16;
// This many multiplications take as long as one item of work for parallel_for. Derived: a vector of 16 floats
// is multiplied and added in one instruction. Flat from 8 to 32.
inline constexpr int64_t kMultiplications = 16;
// Rows of quantized weights that are unpacked at a time. Measured for weights of four bits: with 64, 8 x 1024
// x 1024 takes 1.14 and 64 x 512 x 2048 takes 1.34; 512 takes 0.97 to 1.02.
inline constexpr int64_t kUnpackedRows = 256;
// Positions of a language model that are multiplied with its vocabulary at a time, and scores that exist at a
// time. Derived: 672 rows are the most for which a product packs the weights once. Measured for 151,936
// words, 512 positions and weights of four bits, one thread: 2^17 to 2^22 scores take 0.98 to 1.02.
inline constexpr int64_t kWordPositions = 672, kWordScores = 1 << 19;

// Direct convolutions.

// When they are faster than other convolutions: with at most so many filters, at least so many columns of the
// output, and, if the stride along them is not 1, at least so many columns of the window for each element of
// the stride. Measured on one thread against another library's direct convolution, least of 96 runs: 0.05 to
// 0.96 of its time within these limits.
inline constexpr int64_t kDirectFilters = 8, kDirectColumns = 32, kDirectTaps = 3;
// The most floats of the lines that an output line reads. Derived: half of a second-level cache of 1 MiB.
inline constexpr int64_t kDirectLines = 1 << 17;

// Convolutions on row-major values.

// Output points of a tile, whose columns stay in the cache. Derived: with 3 x 3 windows over 64 channels 576
// KiB of float, the second-level cache. Flat from 128 to 512; 1024 takes 1.04.
inline constexpr int64_t kConvTile = 256;

// Convolutions on values with channels last.

// Floats of the lines of a block. Derived: 512 KiB, half of a second-level cache. Measured with AVX2 and a
// second-level cache of 512 KiB: with 2^16, windows of one element take 0.87 to 1.0, and 3 x 3 windows of 512
// channels 1.10; with 2^15 these take 1.22.
inline constexpr int64_t kConvBlock = 1 << 17;
// Results of a block. Derived: with 64 filters 256 KiB of the second-level cache. Not measured yet.
inline constexpr int64_t kConvResults = 1024;
// The most floats of a block; lines of more are left to other kernels. Derived: 16 MiB, of each thread.
inline constexpr int64_t kConvLargest = 1 << 22;
// Products that are added up at a time, and results. Measured on Cascade Lake, one thread, 3 x 3 windows with
// a stride of 2: 160 products take 1.02 to 1.06 of the time. The results are derived: with 64 filters or
// channels, they take 64 KiB of the caches.
inline constexpr int64_t kConvDepth = 384, kConvPoints = 256;
// With so many filters, or windows of one element, the gradient of the weights gathers the elements of X, for
// so many channels at a time. Measured on Cascade Lake with AVX-512 and AVX2: with 128 to 512 filters of 3 x
// 3, it takes 0.6 to 0.95 and 0.6 to 0.8 of the time of the other way, with windows of one element 0.75 to
// 1.05 and 0.4 to 0.85; with 32 and 64 filters of 5 x 5, 1.2 to 1.6. With 64 channels it takes 1.0 to 1.1.
inline constexpr int64_t kGatheredFilters = 128, kGatheredChannels = 128;
// The same where vectors have at most 32 bytes, for windows with a stride and channels that fill a panel.
// Measured on Zen 3 with AVX2, a stride of 2 and 16 images: with 64 channels and 64 or 96 filters, it takes
// 0.83 to 0.87 of the time, with 32 channels and 32 or 64 filters 0.90, with 16 channels 0.96 to 1.0.
inline constexpr int64_t kGatheredApart = 32;
// For so many filters at a time. Derived: with kConvPoints results, 512 KiB, half of a second-level cache.
inline constexpr int64_t kTransposedFilters = 512;

// Floats of a depthwise convolution's input that are copied at a time, and the least lines of output that
// they give. Derived: 64 KiB, of which a line takes less than 1 KiB. Not measured yet.
inline constexpr int64_t kDepthwiseElements = 1 << 14, kDepthwiseLines = 8;
// How many floats ahead a depthwise convolution prefetches, except one of 3 x 3 elements. Measured with AVX2
// for 3 x 3 elements in the same way: 1024 takes 1.12 for 96 channels of 112 x 112 with a stride of 2, 2048
// takes 1.5; for what fits in the caches it is flat.
inline constexpr int64_t kDepthwiseAhead = 512;
// Results of 3 x 3 elements that are computed for one vector of channels before the next vector, if the lines
// come from memory. Measured with AVX2: 14 to 28 are best; all 112 of a line take 1.2 to 1.4 of the time of
// 28. With a stride of 2, only lines of up to so many results are computed in this way: 14 results of longer
// lines take 1.2 to 1.3 of the time of 4.
inline constexpr int64_t kDepthwiseTogether = 28, kDepthwiseShort = 16;
// Weights and elements of windows that stay in the first-level cache from some results to the next ones.
// Derived: 32 KiB. Measured with AVX2: with 4096, 192 channels of 28 x 28 take 1.1.
inline constexpr int64_t kDepthwiseFloats = 8192;
// The most floats of a thread. Derived: 4 MiB, a few second-level caches.
inline constexpr int64_t kDepthwiseLargest = 1 << 20;

// Results of a separable convolution that are computed together, and the most floats between its parts,
// unless one line needs more. Measured with AVX2, for MobileNetV2 with one and two threads: 72 results
// take 1.01, 96 and 144 take 1.01 and 1.00. The floats are derived: 512 KiB are half of a second-level cache.
inline constexpr int64_t kSeparablePoints = 192, kSeparableFloats = 1 << 17;
// Channels of these results that are computed together, rounded up to a whole panel. Measured with AVX2, for
// MobileNetV2: flat from 32 to 96; 16 takes 1.03, all channels 1.02.
inline constexpr int64_t kSeparableChannels = 48;

// Attention.

// Bytes of the scores of a block of queries, which are to stay in the second-level cache, and the least and
// the most queries of a block. Derived: a fourth of a second-level cache of 1 MiB. Flat from half to
// twice each.
inline constexpr int64_t kScoreBytes = 256 * 1024, kLeastQueries = 48, kLargestQueries = 96;
// Up to this many queries, keys and values are read where they are stored instead of being packed. Measured
// with alternating calls on one thread, least of 180: 8 x 4 heads, 1 query, 128 keys of 64 take 66 us instead
// of 140, the gradient 180 instead of 251. With 1, steps of 2 queries take 1.00; with 3 and 4, those of as
// many queries take 1.00 and 1.08.
inline constexpr int64_t kFewQueries = 2;
// The largest number of keys, as a multiple of the size of a row of Q, for which probabilities are kept for
// the gradient instead of being recomputed. Time is flat from 2 to 8, so the memory decides.
inline constexpr int64_t kKeptKeys = 2;

// Batch normalization.

// Floats of the rows that the second pass takes at a time, from the last ones to the first. Derived: 256 KiB,
// a part of a second-level cache. Flat from 2^14 to 2^18.
inline constexpr int64_t kRowsFromLast = 1 << 16;

// Winograd's convolution.

// Bytes of a thread's own cache, for its working set, and of the data that are transformed for all threads.
// Derived: second-level caches of 1 MiB and shared caches of 16 MiB or more. Flat from half to twice each,
// but with a shared 32 MiB, 256 channels of 14 x 14 take 0.94: not every machine has them.
inline constexpr int64_t kOwnCacheBytes = 1 << 20, kSharedCacheBytes = 1 << 24;
// Tiles that a thread takes through all three stages at once, multiples of the rows of a tile of the product
// (6). Measured: with at least 48, steps take 1.02 to 1.09, on one thread 0.97 to 1.00, with 144 1.01
// to 1.03; the most is flat from 96 to 384.
inline constexpr int64_t kLeastChunk = 96, kLargestChunk = 192;
// Floats after rows and matrices, so that neighbours do not map to the same cache set. Derived: a cache line.
// 0 takes 0.95 to 1.02, 32 takes 0.99 to 1.06.
inline constexpr int64_t kWinogradPad = 16;
// When it is faster than a direct convolution. Measured against another library's: 0.45 to 0.9 of its
// time, in a few cases 1.0 to 1.2, for the sizes that these select.
// With few channels, the transforms of tiles do not pay off. With 64, steps of 32 and 48 channels take 1.3
// and 1.4, with 32, those of 16 take 1.0 to 1.25. No vector holds fewer than 16.
inline constexpr int64_t kLeastChannels = 16;
// Nor with few channels times filters. On one thread, 16 x 16 take 1.02 to 1.09 in runs, in steps 1.03
// to 1.08 (56 x 56: 0.96); 16 x 32 and 32 x 16 take 0.68 to 1.0 in runs, in steps 0.85 and 0.91.
inline constexpr int64_t kLeastPairs = 512;
// With few tiles per thread, those of the weights do not. On one thread, with 32, 16 tiles take 1.2 to 1.4;
// on two, with 128, 98 tiles take 1.5 to 1.8, and with 2, 4 tiles take 1.5.
inline constexpr int64_t kLeastTiles = 8;
// Nor do they with few tiles times channels times filters. With 2^19, a step of 2^17.6 takes 1.35, and one of
// 2^18.6 takes 0.91.
inline constexpr int64_t kLeastProducts = 1 << 17;
// Tiles have four results each and must not reach far beyond the image. With 10 / 3, steps of 7 x 7 take 1.17
// on two threads and 0.98 on one; with 8 / 3, those of 5 x 5 take 0.9 to 1.1.
inline constexpr int64_t kResultsPerTile = 3;
// Large tiles have 16 results each, with the same limit, and need some tiles for each transform of the
// weights. Measured with one thread against small tiles: from 0.61 to 0.86 of the time for 32 to 512 channels
// of 8 x 8 to 56 x 56. 4 x 64 channels of 9 x 9, with 9 results per tile, take 0.93 to 1.02; 6 x 6 take 1.2
// to 1.3. With fewer than 16 tiles, 128 channels of 12 x 12 take 1.01, 512 of 7 x 7 0.9 to 1.4.
inline constexpr int64_t kResultsPerLargeTile = 12, kLeastLargeTiles = 16;
// The least length of a line for which the gradient of the weights takes large tiles. Not for speed: with 256
// channels of 8 x 8, its error is 4.6 times that of the direct convolution, with 128 of 12 x 12 2.5 times.
inline constexpr int64_t kLeastLine = 12;

}  // namespace ortrain::tuning
