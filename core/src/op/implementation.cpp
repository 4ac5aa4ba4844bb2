#include "op/implementation.h"

#include <map>
#include <tuple>

namespace ortrain {
namespace {

using Key = std::tuple<Device, std::string_view, std::string_view>;

std::map<Key, std::vector<Implementation>>& registry() {
  static std::map<Key, std::vector<Implementation>> lists;
  return lists;
}

Kernel (*only_kernel(const Operator& op, Device device))(KernelContext&) {
  switch (device) {
    case Device::kCpu:
      return op.kernels.cpu;
  }
  return nullptr;
}

}  // namespace

RegisterImplementations::RegisterImplementations(Device device, std::vector<ImplementationList> lists) {
  for (ImplementationList& list : lists)
    require(registry().emplace(Key{device, list.domain, list.type}, std::move(list.implementations)).second,
            ErrorCode::kFail, "there are two lists of implementations of the operator ", list.domain,
            list.domain.empty() ? "" : ".", list.type);
}

const std::vector<Implementation>& implementations_of(const Operator& op, Device device) {
  static const std::vector<Implementation> none;
  const auto found = registry().find(Key{device, op.domain, op.type});
  return found == registry().end() ? none : found->second;
}

bool has_kernel(const Operator& op, Device device) {
  return only_kernel(op, device) || !implementations_of(op, device).empty();
}

Kernel make_kernel(const Operator& op, KernelContext& c, Device device) {
  if (const auto only = only_kernel(op, device)) return only(c);
  for (const Implementation& implementation : implementations_of(op, device)) {
    if (std::optional<Kernel> kernel = implementation.make(c)) return *std::move(kernel);
  }
  fail(ErrorCode::kNotImplemented, c.node().label(), ": this build has no implementation for its types");
}

}  // namespace ortrain
