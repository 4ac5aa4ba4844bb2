// Passes: graph → graph. passes/pipeline.cpp lists them in the order in which they run.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

enum class PassPhase {
  kArtifact,   // before the gradient is built: its results are written to the training model
  kSession,    // when a session loads a model
  kInference,  // the same in sessions that do not train: the passes of kSession, and those for these alone
};

// The graph optimization level from which a session's pass runs; passes for artifacts always run.
enum class PassLevel {
  kBasic = 1,     // redundant nodes are removed or shared
  kExtended = 2,  // nodes are replaced: fusions, and changes of the order or the kernels of nodes
};

struct Pass {
  std::string_view name;
  bool (*run)(Model&);  // returns whether it changed anything; keeps the names of the graph's outputs
  PassLevel level = PassLevel::kExtended;
  std::string_view former = "";  // a former name, by which it can still be switched off
  bool inference_only = false;   // left out in sessions that train
};

// The passes of a phase, in the order in which they run.
std::span<const Pass> passes_of(PassPhase phase);
// Their names.
std::vector<std::string_view> pass_names(PassPhase phase);

// The prefix of the key that switches a pass off; its name follows.
inline constexpr std::string_view kDisablePass = "ortrain.disable_pass.";

// Runs the passes of a phase up to a level, in order. `config` switches one off by the key
// "ortrain.disable_pass.<name>" = "1"; "ortrain.dump_graph" = folder writes the graph there before and after
// each pass, under names that begin with `label`.
void run_passes(Model& model, PassPhase phase, const std::map<std::string, std::string>& config = {},
                int level = static_cast<int>(PassLevel::kExtended), std::string_view label = "graph");

// Writes a graph rewritten by passes to a file, ONNX or in ORT format, for inspection and for this version
// only: it may have nodes of the domain ortrain.session.
void write_rewritten(const Model& model, const std::filesystem::path& path, bool ort_format = false);

// The configuration that switches off passes of a phase. Throws kInvalidArgument for an unknown name.
std::map<std::string, std::string> without_passes(const std::vector<std::string>& names, PassPhase phase);

}  // namespace ortrain
