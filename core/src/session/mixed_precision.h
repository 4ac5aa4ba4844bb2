// The session options ortrain.mixed_precision and ortrain.bf16_products.
#pragma once

#include <string>

#include "op/kernel.h"
#include "session/options.h"

namespace ortrain {

// What the options request, as far as this build and this processor support it. Throws kInvalidArgument for
// invalid values.
Precision read_precision(const SessionOptions& options);

// What the user has to know of how the options are carried out here; empty where nothing is amiss.
std::string precision_warning(const SessionOptions& options);

}  // namespace ortrain
