#include "runtime/memory_in_use.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "runtime/error.h"

namespace ortrain {

std::string memory_in_use() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  std::ifstream file("/proc/self/statm");
  size_t pages = 0;
  if (!(file >> pages)) return "";
  const size_t used = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return concat("; the process uses ", used >> 20, " of the ", limit.rlim_cur >> 20,
                " MiB of addresses that it may use");
}

}  // namespace ortrain
