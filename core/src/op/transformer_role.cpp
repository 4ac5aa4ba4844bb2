#include "op/transformer_role.h"

#include <map>
#include <string>
#include <utility>

namespace ortrain {
namespace {

std::map<std::pair<std::string, std::string>, TransformerRole>& roles() {
  static std::map<std::pair<std::string, std::string>, TransformerRole> roles;
  return roles;
}

}  // namespace

TransformerRole transformer_role(const Node& node) {
  const auto at = roles().find({node.domain, node.op_type});
  return at == roles().end() ? TransformerRole::kNone : at->second;
}

RegisterTransformerRole::RegisterTransformerRole(std::string_view domain, std::string_view type,
                                                 TransformerRole role) {
  roles().emplace(std::pair{std::string(domain), std::string(type)}, role);
}

}  // namespace ortrain
