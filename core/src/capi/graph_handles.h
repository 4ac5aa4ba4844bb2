// The objects behind the handles of models, graphs and their parts. A program builds them, or reads them from
// a file; both can be inspected, made a session, and extended.
//
// Derived facts, such as the readers of a value or its inferred type, are computed when they are first asked
// for. A session of such a model gets it through the checks that a file goes through, without the elements of
// its initializers (graph/checked_model.h).
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "capi/handles.h"
#include "infer/value_types.h"

struct OrtValueInfo {
  std::string name;
  mutable std::optional<OrtTypeInfo> type;  // as stated, or inferred when it was first asked for
  const OrtGraph* graph = nullptr;          // that it belongs to; null: to the caller
};

struct OrtNode {
  struct Subgraph {
    std::string attribute;
    std::unique_ptr<OrtGraph> graph;
  };

  explicit OrtNode(ortrain::Node node);

  ortrain::Node node;
  size_t id = 0;  // its place in the graph
  std::vector<OrtOpAttr> attributes;
  std::vector<Subgraph> subgraphs;
  const OrtGraph* graph = nullptr;  // that it belongs to; null: to the caller
};

struct OrtGraph {
  struct Initializer {
    std::string name;
    std::unique_ptr<OrtValue> value;
    bool is_external = false;                                    // sessions use its memory instead of a copy
    std::optional<ortrain::ExternalPlace> place = std::nullopt;  // in a file beside that of the model
  };
  // Who computes and who reads a value of this graph.
  struct Use {
    const OrtNode* node;
    int64_t input;  // -1: in a subgraph
  };
  struct Links {
    const OrtNode* producer = nullptr;
    size_t output = 0;
    std::vector<Use> uses;
  };

  std::string name;
  std::vector<std::unique_ptr<OrtValueInfo>> inputs, outputs;  // inputs with those that are initializers
  std::vector<std::unique_ptr<OrtNode>> nodes;
  std::vector<Initializer> initializers;
  std::unordered_map<std::string, ortrain::ValueInfo>
      stated;                        // of intermediate values, in models that were read
  const OrtModel* model = nullptr;   // null: the caller's, or a subgraph
  const OrtNode* parent = nullptr;   // whose subgraph it is
  const OrtGraph* source = nullptr;  // of whose nodes this has some

  // Drops what was derived from the parts; they are about to change.
  void changes();

  const Initializer* initializer(const std::string& value) const;
  bool is_input(const std::string& value) const;
  bool is_output(const std::string& value) const;
  const Links& links(const std::string& value) const;
  // True if a graph around this one defines the value.
  bool is_outer(const std::string& value) const;
  // The object for a value, always the same one; null for "".
  const OrtValueInfo* value(const std::string& value) const;
  // Its type; null if that is not known.
  const OrtTypeInfo* type(const OrtValueInfo& value) const;
  // The model that the graph is in; null if it is in none.
  const OrtModel* root() const;

 private:
  struct Inference;  // of types

  const std::unordered_map<std::string, Links>& all_links() const;
  std::optional<OrtTypeInfo> find_type(const std::string& value) const;
  const ortrain::ValueTypes* types() const;

  mutable std::recursive_mutex lock_;  // const objects are read by several threads
  mutable std::optional<std::unordered_map<std::string, Links>> links_;
  mutable std::unordered_map<std::string, const OrtValueInfo*> values_;
  mutable std::unordered_map<std::string, std::unique_ptr<OrtValueInfo>>
      others_;  // neither inputs nor outputs
  mutable std::shared_ptr<Inference> inference_;

 public:
  OrtGraph();
  ~OrtGraph();
};

struct OrtModel {
  int64_t ir_version = ortrain::kNewestIrVersion;
  std::map<std::string, int64_t> opsets;
  OrtModelMetadata metadata;
  std::string producer_version;
  std::basic_string<ORTCHAR_T> path;
  bool is_read = false;             // from a file, which need not state a version of the ONNX domain
  std::unique_ptr<OrtGraph> graph;  // null: none yet
};

namespace ortrain::capi {

// What the subgraphs of a node read from the graph around them.
std::vector<std::string> implicit_inputs(const OrtNode& node);

// A model of the core, and its metadata.
struct BuiltModel {
  Model model;
  ModelNotes notes;
};
// Whether tensors that a program gave a graph are copied, unless it says that they are external.
enum class Initializers { kShared, kCopied };

// The model that a program has built or read. Throws kInvalidArgument if it has no graph, or states no
// version of the ONNX domain.
BuiltModel built(const OrtModel& model, Initializers initializers);
// Adds the parts of a graph to a model. Inputs and outputs, if the graph states any, replace those of the
// model.
void add_parts(const OrtGraph& graph, Initializers initializers, BuiltModel& to);
// The model with all checks that a file gets, and with the error codes that onnxruntime has here. Imports the
// domains that nodes need and that the library or the program knows.
Model check_built(Model model, ReadOptions options, const CustomOperators* custom = nullptr);

}  // namespace ortrain::capi
