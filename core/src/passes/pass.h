// Passes: graph → graph. Each has a name by which it can be switched off, and a moment at which it runs.
#pragma once

#include <map>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

enum class PassMoment {
  kArtifact,  // before the gradient is built: what it makes is written into the training model
  kSession,   // when a session loads a model
};

// The graph optimization level from which on a pass of a session runs; those of artifacts always do.
enum class PassLevel {
  kBasic = 1,     // what is there already is left out or shared
  kExtended = 2,  // nodes become others: fusions, and whatever changes the order or the kernels of nodes
};

struct Pass {
  std::string_view name;
  PassMoment moment;
  int order;            // lower runs first
  bool (*run)(Model&);  // returns whether it changed anything; keeps the names of the graph's outputs
  PassLevel level = PassLevel::kExtended;
};

struct RegisterPass {
  RegisterPass(const Pass& pass, const std::source_location& where = std::source_location::current());
};
#define ORTRAIN_PASS(...) ORTRAIN_PASS_(__LINE__, __VA_ARGS__)
#define ORTRAIN_PASS_(line, ...) ORTRAIN_PASS__(line, __VA_ARGS__)
#define ORTRAIN_PASS__(line, ...) \
  static const ::ortrain::RegisterPass ortrain_registered_pass_##line(::ortrain::Pass __VA_ARGS__)

// The key that switches a pass off, before its name.
inline constexpr std::string_view kDisablePass = "ortrain.disable_pass.";

// Runs the passes of a moment up to a level, in order. `config` switches one off by the key
// "ortrain.disable_pass.<name>" = "1". Throws kFail where two passes are registered under one name.
void run_passes(Model& model, PassMoment moment, const std::map<std::string, std::string>& config = {},
                int level = static_cast<int>(PassLevel::kExtended));

// The names of the passes of a moment, in the order in which they run.
std::vector<std::string_view> pass_names(PassMoment moment);

// The configuration that switches off passes of a moment. Throws kInvalidArgument for a name that none of
// them has.
std::map<std::string, std::string> without_passes(const std::vector<std::string>& names, PassMoment moment);

inline void run_session_passes(Model& model, const std::map<std::string, std::string>& config,
                               int level = static_cast<int>(PassLevel::kExtended)) {
  run_passes(model, PassMoment::kSession, config, level);
}

}  // namespace ortrain
