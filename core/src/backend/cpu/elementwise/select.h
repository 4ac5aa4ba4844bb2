// y[i] = which[i] ? a[i * step_a] : b[i * step_b] for i < n, with steps of 1 or 0, on elements of four bytes.
#pragma once

#include <cstdint>

namespace ortrain {

// y may be the memory of an operand of step 1.
using SelectWords = void (*)(const bool* which, const uint32_t* a, int64_t step_a, const uint32_t* b,
                             int64_t step_b, uint32_t* y, int64_t n);
SelectWords select_words();

}  // namespace ortrain
