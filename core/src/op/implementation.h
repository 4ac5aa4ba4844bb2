// Implementations: the ways in which a device computes an operator.
//
// A device is a column: what runs an operator on it stands in a list of its own, which no rule, pass or other
// device sees. The lists of the CPU are in backend/cpu/implementations.cpp. Each says when it applies, and
// the first that does is taken.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "op/operator.h"

namespace ortrain {

enum class Device { kCpu };

struct Implementation {
  std::string_view name;
  // Whether it can compute the node, as far as types and shapes tell; null: it always can.
  bool (*applies)(const KernelContext&) = nullptr;
  // The kernel; nothing where the implementation finds while it describes the work, before it has asked for
  // memory, that it does not apply after all.
  std::optional<Kernel> (*make)(KernelContext&) = nullptr;
};

struct ImplementationList {
  std::string_view domain = "";
  std::string_view type;
  std::vector<Implementation> implementations;  // in the order in which they are asked
};

// Adds the lists of a device. Throws kFail where an operator has one already.
struct RegisterImplementations {
  RegisterImplementations(Device device, std::vector<ImplementationList> lists);
};

// The implementations of an operator on a device, none where it has no list there.
const std::vector<Implementation>& implementations_of(const Operator& op, Device device = Device::kCpu);
// Whether the device can run the operator inside a Program.
bool has_kernel(const Operator& op, Device device = Device::kCpu);
// The kernel of the first implementation that applies. Throws where none does.
Kernel make_kernel(const Operator& op, KernelContext& c, Device device = Device::kCpu);

}  // namespace ortrain
