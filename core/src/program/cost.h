// The cost model of recomputation (program/recompute.h): about how long a node takes. It must rank nodes
// correctly, not predict times: the program that it selects is compiled and its memory counted. The constants
// are orders of magnitude for one thread, not fitted to a machine.
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
