// How much memory the process has left, for messages.
#pragma once

#include <cstddef>
#include <string>

namespace ortrain {

// Whether the system has room for a block of that size at this moment.
bool can_allocate(size_t bytes);

// "; the process uses 650 of the 700 MiB of addresses that it may use", or an empty text if there is no limit
// or it is not known.
std::string memory_in_use();

}  // namespace ortrain
