// The cost model of recomputation (program/recompute.h): about how long a node takes. The ratios between
// nodes must be about right, not the times: the search compares nodes, and `auto` limits the share of a step
// that is computed again. The memory of a program is counted, not estimated. The constants are orders of
// magnitude for one thread, not fitted to a machine.
#pragma once

namespace ortrain::cost {

inline constexpr double kCallSeconds = 2e-6;           // of a kernel that does no work
inline constexpr double kBytesPerSecond = 20e9;        // that it reads and writes, most of them from caches
inline constexpr double kOperationsPerSecond = 100e9;  // of products and convolutions
inline constexpr double kBf16Speedup = 2;              // of them with instructions for bfloat16
// Arithmetic operations per element of output 0, for operators that do not state their own
// (Traits::operations).
inline constexpr double kOperationsPerElement = 8;

}  // namespace ortrain::cost
