// Implementations: the ways a device can compute an operator.
//
// Each device has separate lists of implementations, which no rule, pass or other device sees. The lists of
// the CPU are in backend/cpu/implementations.cpp. Each implementation says when it applies; the first
// implementation that applies is used.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "op/operator.h"

namespace ortrain {

enum class Device { kCpu };

struct Implementation {
  std::string_view name;
  // Makes the kernel. Returns nothing if the implementation does not apply after all; in that case it must
  // not have requested memory.
  std::optional<Kernel> (*make)(KernelContext&) = nullptr;
};

struct ImplementationList {
  std::string_view domain = "";
  std::string_view type;
  std::vector<Implementation> implementations;  // in order of preference
};

// Adds the lists of a device. Throws kFail if an operator already has one.
struct RegisterImplementations {
  RegisterImplementations(Device device, std::vector<ImplementationList> lists);
};

// The implementations of an operator on a device; none if it has no list there.
const std::vector<Implementation>& implementations_of(const Operator& op, Device device = Device::kCpu);
// Whether the device can run the operator inside a Program.
bool has_kernel(const Operator& op, Device device = Device::kCpu);
// The kernel of the first implementation that applies. Throws if none does.
Kernel make_kernel(const Operator& op, KernelContext& c, Device device = Device::kCpu);

}  // namespace ortrain
