// Passes: graph → graph. Each has a name by which it can be switched off, and a moment at which it runs.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

enum class PassMoment {
  kArtifact,  // before the gradient is built: what it makes is written into the training model
  kSession,   // when a session loads a model
};

struct Pass {
  std::string_view name;
  PassMoment moment;
  int order;            // lower runs first
  bool (*run)(Model&);  // returns whether it changed anything; keeps the names of the graph's outputs
};

struct RegisterPass {
  RegisterPass(const Pass& pass);
};
#define ORTRAIN_PASS(...) ORTRAIN_PASS_(__LINE__, __VA_ARGS__)
#define ORTRAIN_PASS_(line, ...) ORTRAIN_PASS__(line, __VA_ARGS__)
#define ORTRAIN_PASS__(line, ...) \
  static const ::ortrain::RegisterPass ortrain_registered_pass_##line(::ortrain::Pass __VA_ARGS__)

// Runs the passes of a moment in order. `config` switches one off by the key "ortrain.disable_pass.<name>" =
// "1".
void run_passes(Model& model, PassMoment moment, const std::map<std::string, std::string>& config = {});

// The configuration that switches off passes of a moment. Throws kInvalidArgument for a name that none of
// them has.
std::map<std::string, std::string> without_passes(const std::vector<std::string>& names, PassMoment moment);

inline void run_session_passes(Model& model, const std::map<std::string, std::string>& config) {
  run_passes(model, PassMoment::kSession, config);
}

}  // namespace ortrain
