#include "runtime/control_group.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace ortrain {

namespace {

// The processors that a quota of microseconds in a period gives; 0 if there is none.
double share(double quota, double period) { return quota > 0 && period > 0 ? quota / period : 0; }

// The second version of control groups has one file: "150000 100000", or "max 100000".
double share_in(const std::filesystem::path& folder) {
  double quota = 0, period = 0;
  if (std::ifstream file(folder / "cpu.max"); file >> quota >> period) return share(quota, period);
  std::ifstream quota_file(folder / "cpu.cfs_quota_us"), period_file(folder / "cpu.cfs_period_us");
  return quota_file >> quota && period_file >> period ? share(quota, period) : 0;
}

}  // namespace

int granted_processors(const std::filesystem::path& membership, const std::filesystem::path& root) {
  double least = 0;
  std::ifstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    // "0::/path" in the second version; "4:cpu,cpuacct:/path" in the first.
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    const std::filesystem::path mounted = controllers.empty() ? root : root / controllers;
    // A group has at most the share of those around it. In a container, the path may lie outside of the
    // mounted folders.
    std::filesystem::path group = std::filesystem::path(line.substr(second + 1)).relative_path();
    for (bool top = false; !top; group = group.parent_path()) {
      top = group.empty();
      if (const double here = share_in(mounted / group); here > 0)
        least = least > 0 ? std::min(least, here) : here;
    }
  }
  return static_cast<int>(std::min(std::ceil(least), 1e6));
}

}  // namespace ortrain
