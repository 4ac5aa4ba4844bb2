#include "op/sum_of_products.h"

#include <map>
#include <string>
#include <utility>

namespace ortrain {
namespace {

std::map<std::pair<std::string, std::string>, ProductTermsRule>& rules() {
  static std::map<std::pair<std::string, std::string>, ProductTermsRule> rules;
  return rules;
}

}  // namespace

std::vector<ProductTerm> product_terms(const Node& node, size_t output) {
  const auto at = rules().find({node.domain, node.op_type});
  return at == rules().end() ? std::vector<ProductTerm>() : at->second(node, output);
}

RegisterProductTerms::RegisterProductTerms(std::string_view domain, std::string_view type,
                                           ProductTermsRule rule) {
  rules().emplace(std::pair{std::string(domain), std::string(type)}, rule);
}

}  // namespace ortrain
