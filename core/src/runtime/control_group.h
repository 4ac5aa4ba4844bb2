// The share of the processors that Linux's control groups grant a process, as in a container with a limit.
#pragma once

#include <filesystem>

namespace ortrain {

// How many processors the control groups of the process grant, rounded up; 0 if they set no limit.
// `membership` is /proc/self/cgroup, `root` is where the groups are mounted.
int granted_processors(const std::filesystem::path& membership = "/proc/self/cgroup",
                       const std::filesystem::path& root = "/sys/fs/cgroup");

}  // namespace ortrain
