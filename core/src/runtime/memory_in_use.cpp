#include "runtime/memory_in_use.h"

#include "runtime/error.h"
#include "runtime/system.h"

namespace ortrain {

std::string memory_in_use() {
  const std::optional<system::AddressSpace> space = system::address_space();
  if (!space) return "";
  return concat("; the process uses ", space->used >> 20, " of the ", space->limit >> 20,
                " MiB of addresses that it may use");
}

}  // namespace ortrain
