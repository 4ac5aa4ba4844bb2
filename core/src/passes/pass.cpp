#include "passes/pass.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "graph/onnx_io.h"
#include "infer/typed_model.h"
#include "op/left_out.h"
#include "runtime/error.h"
#include "runtime/generated/parts.h"
#include "runtime/path.h"
#include "runtime/stop.h"

namespace ortrain {

namespace {

const std::string kDumpGraph = "ortrain.dump_graph";

bool is_on(const Pass& pass, const std::map<std::string, std::string>& config) {
  for (const std::string_view name : {pass.name, pass.former}) {
    const auto off = config.find(concat(kDisablePass, name));
    if (!name.empty() && off != config.end() && off->second == "1") return false;
  }
  return true;
}

// Writes graphs to the folder of "ortrain.dump_graph": <label>_00.onnx before the first pass,
// <label>_01_<pass>.onnx after the first pass, and so on.
class Dump {
 public:
  Dump(const std::map<std::string, std::string>& config, std::string_view label) : label_(label) {
    std::replace(label_.begin(), label_.end(), ' ', '_');
    const auto entry = config.find(kDumpGraph);
    if (entry == config.end()) return;
    folder_ = from_utf8(entry->second);
    require(!folder_.empty(), ErrorCode::kInvalidArgument, "session config entry ", kDumpGraph,
            ": expected a folder, found \"\"");
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    require(!error, ErrorCode::kFail, "session config entry ", kDumpGraph, ": cannot create the folder '",
            to_utf8(folder_), "': ", error.message());
  }

  void write(const Model& model, std::string_view pass = "") {
    if (folder_.empty()) return;
    const std::string number = concat(count_ < 10 ? "0" : "", count_);
    ++count_;
    write_rewritten(model,
                    folder_ / from_utf8(concat(label_, "_", number, pass.empty() ? "" : "_", pass, ".onnx")));
  }

 private:
  std::filesystem::path folder_;
  std::string label_;
  int count_ = 0;
};

// Runs a pass on the subgraphs of a graph, innermost first. A subgraph that changes becomes a separate copy.
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

void write_rewritten(const Model& model, const std::filesystem::path& path, bool ort_format) {
  Model whole = model;
  for (const Node& node : whole.graph.nodes) whole.opsets.emplace(node.domain, 1);
  if (!ort_format) return write_model(whole, path);
  if constexpr (kGraphsPart.is_built)
    write_ort_model(whole, path);
  else
    fail(ErrorCode::kNotImplemented, "writing the model in ORT format: this build of the library leaves out ",
         kGraphsPart.title, "; build it with the CMake option ", kGraphsPart.option, "=ON");
}

void run_passes(Model& model, PassPhase phase, const std::map<std::string, std::string>& config, int level,
                std::string_view label) {
  Dump dump(config, label);
  dump.write(model);
  for (const Pass& pass : passes_of(phase)) {
    check_stop();
    if (static_cast<int>(pass.level) > level || !is_on(pass, config)) continue;
    if (pass.inference_only && phase != PassPhase::kInference) continue;
    // A pass may add an operator that the build leaves out; its changes are then undone.
    const std::optional<Model> before =
        leaves_out_operators() && !lacks_operators(model.graph) ? std::optional(model) : std::nullopt;
    run_inside(pass, model);
    if (pass.run(model)) model.graph.remove_unused_nodes();
    if (before && lacks_operators(model.graph)) model = *before;
    dump.write(model, pass.name);
  }
}

std::vector<std::string_view> pass_names(PassPhase phase) {
  std::vector<std::string_view> names;
  for (const Pass& pass : passes_of(phase)) names.push_back(pass.name);
  return names;
}

std::map<std::string, std::string> without_passes(const std::vector<std::string>& names, PassPhase phase) {
  std::map<std::string, std::string> config;
  for (const std::string& name : names) {
    std::string known;
    bool found = false;
    for (const Pass& pass : passes_of(phase)) {
      found = found || pass.name == name || (!name.empty() && pass.former == name);
      known += concat(known.empty() ? "" : ", ", pass.name);
    }
    require(found, ErrorCode::kInvalidArgument, "expected the name of a pass to switch off, found '", name,
            "'; the passes of this phase are ", known);
    config[concat(kDisablePass, name)] = "1";
  }
  return config;
}

}  // namespace ortrain
