#include "metrics/rule.h"

#include <utility>

#include "runtime/error.h"
#include "runtime/registry.h"

namespace ortrain {

namespace {

Registry<std::string, MetricRule>& registry() {
  static Registry<std::string, MetricRule> all;
  return all;
}

}  // namespace

bool register_metric(MetricRule rule, SourcePlace where) {
  std::string name = rule.name;
  registry().add(name, std::move(rule), concat("metric '", name, "'"), where);
  return true;
}

const MetricRule* find_metric(std::string_view name) { return registry().find(std::string(name)); }

std::vector<const MetricRule*> all_metrics() {
  std::vector<const MetricRule*> all;
  registry().each([&](const MetricRule& rule) { all.push_back(&rule); });
  return all;
}

}  // namespace ortrain
