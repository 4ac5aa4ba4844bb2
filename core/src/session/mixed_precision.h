// The session options ortrain.mixed_precision and ortrain.bf16_products.
#pragma once

#include <string>

#include "op/kernel.h"
#include "session/options.h"

namespace ortrain {

// What the options request, limited to what this build and this processor support. Throws kInvalidArgument
// for invalid values.
Precision read_precision(const SessionOptions& options);

// A warning about how the options are carried out on this machine; empty if there is none.
std::string precision_warning(const SessionOptions& options);

}  // namespace ortrain
