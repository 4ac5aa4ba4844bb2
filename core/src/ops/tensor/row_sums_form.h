// Sums of rows in standard forms (op/standard_form.h).
#pragma once

#include <string>

#include "op/decomposition.h"

namespace ortrain {

// Zeros [count, inner], to which each row of `updates` is added at its place. `count` and `inner` have one
// element. ScatterElements is used: with duplicate places, the ScatterND of onnxruntime 1.32 loses updates if
// it runs on several threads.
Name row_sums(DecompositionContext& e, Name count, Name inner, Name places, Name updates);

// The product of the elements [begin, end) of a shape, one element.
Name product_of_dims(DecompositionContext& e, Name shape, int64_t begin, int64_t end);

}  // namespace ortrain
