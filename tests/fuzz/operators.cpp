#include "op/operator.h"
#include "support.h"

namespace ortrain::fuzz {

const std::vector<std::pair<std::string, std::string>>& operators() {
  static const auto all = [] {
    std::vector<std::pair<std::string, std::string>> out;
    for (const Operator* op : all_operators()) out.emplace_back(op->domain, op->type);
    return out;
  }();
  return all;
}

}  // namespace ortrain::fuzz
