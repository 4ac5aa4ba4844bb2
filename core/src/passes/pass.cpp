#include "passes/pass.h"

#include <algorithm>

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

void run_passes(Model& model, PassMoment moment, const std::map<std::string, std::string>& config) {
  for (const Pass& pass : registry()) {
    if (pass.moment != moment) continue;
    const auto off = config.find("ortrain.disable_pass." + std::string(pass.name));
    if (off != config.end() && off->second == "1") continue;
    if (pass.run(model)) model.graph.remove_unused_nodes();
  }
}

}  // namespace ortrain
