// How much memory the process has left, for messages.
#pragma once

#include <string>

namespace ortrain {

// "; the process uses 650 of the 700 MiB of addresses that it may use", or an empty text if there is no limit
// or it is not known.
std::string memory_in_use();

}  // namespace ortrain
