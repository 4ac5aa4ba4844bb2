#include "passes/pass.h"

#include <algorithm>
#include <tuple>

#include "runtime/error.h"
#include "runtime/registry.h"

namespace ortrain {

namespace {

// A pass that runs at two moments is registered for each.
using Key = std::pair<PassMoment, std::string_view>;

Registry<Key, Pass>& registry() {
  static Registry<Key, Pass> passes;
  return passes;
}

// Those of a moment in the order in which they run.
std::vector<const Pass*> passes_of(PassMoment moment) {
  std::vector<const Pass*> passes;
  registry().each([&](const Pass& pass) {
    if (pass.moment == moment) passes.push_back(&pass);
  });
  std::sort(passes.begin(), passes.end(), [](const Pass* a, const Pass* b) {
    return std::tie(a->order, a->name) < std::tie(b->order, b->name);
  });
  return passes;
}

}  // namespace

RegisterPass::RegisterPass(const Pass& pass, const std::source_location& where) {
  registry().add({pass.moment, pass.name}, pass, concat("pass '", pass.name, "'"), where);
}

namespace {

bool is_on(const Pass& pass, const std::map<std::string, std::string>& config) {
  const auto off = config.find(concat(kDisablePass, pass.name));
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

void run_passes(Model& model, PassMoment moment, const std::map<std::string, std::string>& config,
                int level) {
  for (const Pass* pass : passes_of(moment)) {
    if (static_cast<int>(pass->level) > level || !is_on(*pass, config)) continue;
    run_inside(*pass, model);
    if (pass->run(model)) model.graph.remove_unused_nodes();
  }
}

std::vector<std::string_view> pass_names(PassMoment moment) {
  std::vector<std::string_view> names;
  for (const Pass* pass : passes_of(moment)) names.push_back(pass->name);
  return names;
}

std::map<std::string, std::string> without_passes(const std::vector<std::string>& names, PassMoment moment) {
  const std::vector<std::string_view> passes = pass_names(moment);
  std::map<std::string, std::string> config;
  for (const std::string& name : names) {
    std::string known;
    for (const std::string_view pass : passes) known += concat(known.empty() ? "" : ", ", pass);
    require(std::find(passes.begin(), passes.end(), name) != passes.end(), ErrorCode::kInvalidArgument,
            "expected the name of a pass to switch off, found '", name, "'; those that run here are ", known);
    config[concat(kDisablePass, name)] = "1";
  }
  return config;
}

}  // namespace ortrain
