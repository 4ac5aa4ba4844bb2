// The cost model of recomputation (program/recompute.h): about how long a node takes. It has to order nodes
// rightly, not to be right: the program that is chosen by it is compiled and its memory counted. The numbers
// are orders of magnitude of one thread, not fitted to a machine.
#pragma once

namespace ortrain::cost {

inline constexpr double kCallSeconds = 2e-6;           // of a kernel without work
inline constexpr double kBytesPerSecond = 10e9;        // that it reads and writes
inline constexpr double kOperationsPerSecond = 100e9;  // of products and convolutions
// Arithmetic operations for each element of output 0, of an operator that does not state its own
// (Traits::operations).
inline constexpr double kOperationsPerElement = 8;

}  // namespace ortrain::cost
