#include "passes/pass.h"

#include <algorithm>

#include "runtime/error.h"

namespace ortrain {

namespace {

std::vector<Pass>& registry() {
  static std::vector<Pass> passes;
  return passes;
}

}  // namespace

RegisterPass::RegisterPass(const Pass& pass) {
  std::vector<Pass>& passes = registry();
  const auto place = std::upper_bound(passes.begin(), passes.end(), pass, [](const Pass& a, const Pass& b) {
    return std::tie(a.moment, a.order, a.name) < std::tie(b.moment, b.order, b.name);
  });
  passes.insert(place, pass);
}

namespace {

const std::string kDisable = "ortrain.disable_pass.";

bool is_on(const Pass& pass, PassMoment moment, const std::map<std::string, std::string>& config) {
  if (pass.moment != moment) return false;
  const auto off = config.find(kDisable + std::string(pass.name));
  return off == config.end() || off->second != "1";
}

// Runs a pass on the subgraphs of a graph, innermost first. A subgraph that changes is a copy of its own
// afterwards.
void run_inside(const Pass& pass, Model& model) {
  for (Node& node : model.graph.nodes)
    for (auto& [name, attribute] : node.attributes) {
      auto* graph = std::get_if<std::shared_ptr<Graph>>(&attribute);
      if (!graph || !*graph) continue;
      Model inner;
      inner.opsets = model.opsets;
      inner.graph = **graph;
      run_inside(pass, inner);
      if (pass.run(inner)) inner.graph.remove_unused_nodes();
      *graph = std::make_shared<Graph>(std::move(inner.graph));
    }
}

}  // namespace

void run_passes(Model& model, PassMoment moment, const std::map<std::string, std::string>& config) {
  for (const Pass& pass : registry()) {
    if (!is_on(pass, moment, config)) continue;
    run_inside(pass, model);
    if (pass.run(model)) model.graph.remove_unused_nodes();
  }
}

std::map<std::string, std::string> without_passes(const std::vector<std::string>& names, PassMoment moment) {
  std::map<std::string, std::string> config;
  for (const std::string& name : names) {
    std::string known;
    bool found = false;
    for (const Pass& pass : registry()) {
      if (pass.moment != moment) continue;
      found = found || pass.name == name;
      known += concat(known.empty() ? "" : ", ", pass.name);
    }
    require(found, ErrorCode::kInvalidArgument, "expected the name of a pass to switch off, found '", name,
            "'; those that run here are ", known);
    config[kDisable + name] = "1";
  }
  return config;
}

}  // namespace ortrain
