// Graph: the model as data. Values are identified by name, and each is produced once.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "runtime/tensor.h"

namespace ortrain {

struct Graph;

// One dimension as a model declares it: a size, a name ("batch"), or unknown.
struct Dim {
  int64_t value = -1;  // -1: no fixed size
  std::string symbol;
  bool known() const { return value >= 0; }
  // True if both are known to be the same dimension.
  bool same(const Dim& other) const {
    return known() ? value == other.value : !symbol.empty() && symbol == other.symbol;
  }
  bool operator==(const Dim&) const = default;
};

// The declaration of a value in a model.
struct ValueInfo {
  std::string name;
  DType dtype = DType::kUndefined;
  std::optional<std::vector<Dim>> dims;  // nullopt: unknown rank
  bool is_sequence = false;              // a sequence of such tensors
  bool is_optional = false;              // such a tensor or sequence, or empty
  bool is_tensor() const { return !is_sequence && !is_optional; }
  bool operator==(const ValueInfo&) const = default;
};

// One attribute of a node. A ValueInfo is a type (attribute of Optional).
using Attribute = std::variant<int64_t, float, std::string, Tensor, std::vector<int64_t>, std::vector<float>,
                               std::vector<std::string>, std::shared_ptr<Graph>, ValueInfo>;

using Attributes = std::map<std::string, Attribute, std::less<>>;

struct Node {
  std::string domain;  // "" is the ONNX domain ("ai.onnx" is read as "")
  std::string op_type;
  std::string name;
  std::vector<std::string> inputs;   // "" marks an omitted optional input
  std::vector<std::string> outputs;  // the same for outputs
  Attributes attributes;

  bool has(std::string_view attribute) const { return attributes.count(attribute) > 0; }
  // The attribute, or the default if the node does not have it; throws if it has another type.
  int64_t int_or(std::string_view attribute, int64_t otherwise) const;
  float float_or(std::string_view attribute, float otherwise) const;
  std::string string_or(std::string_view attribute, std::string_view otherwise) const;
  std::vector<int64_t> ints_or(std::string_view attribute, std::vector<int64_t> otherwise) const;

  // True if input (output) i is present.
  bool has_input(size_t i) const { return i < inputs.size() && !inputs[i].empty(); }
  bool has_output(size_t i) const { return i < outputs.size() && !outputs[i].empty(); }

  // "Gemm" or "com.microsoft.Gelu"
  std::string qualified_type() const { return domain.empty() ? op_type : domain + "." + op_type; }
  // The node in messages: node "/fc1/Gemm" (Gemm). A node without a name is identified by its first output.
  std::string label() const;
};

struct Graph {
  std::string name;
  std::vector<ValueInfo> inputs;  // without those that are initializers
  std::vector<ValueInfo> outputs;
  std::vector<Node> nodes;  // in an order in which every value is produced before it is read
  std::vector<std::string> initializer_order;
  std::unordered_map<std::string, Tensor> initializers;
  std::unordered_map<std::string, ValueInfo> value_info;  // of intermediate values

  void add_initializer(const std::string& name, Tensor value);
  void remove_initializer(const std::string& name);
  bool is_initializer(const std::string& name) const { return initializers.count(name) > 0; }
  bool is_input(const std::string& name) const;
  bool is_output(const std::string& name) const;
  // What is declared about a value anywhere in the graph: input, output, initializer or intermediate value.
  std::optional<ValueInfo> info(const std::string& name) const;
  // An unused name: `base`, or else base_1, base_2 ...
  std::string unique_name(const std::string& base) const;

  // Sorts the nodes by dependency (stable). Throws kInvalidGraph, naming the nodes of a cycle, the values
  // that no node produces, or the values that two nodes produce.
  void sort();
  // Removes nodes whose outputs are not needed.
  void remove_unused_nodes();
  // Removes initializers that no node reads and that are not outputs of the graph.
  void remove_unused_initializers();
  // Renames values of subgraphs so that no two graphs, however nested, define the same name: nodes can then
  // move from one to another. Subgraphs that change are copied first.
  void make_inner_names_unique();
};

// The values that a node reads: its named inputs, then the values of enclosing graphs that its subgraphs
// read.
std::vector<std::string> values_read(const Node& node);

// How often each value is read: by nodes, plus one if it is a graph output.
std::unordered_map<std::string, int> count_uses(const Graph& graph);

struct Model {
  int64_t ir_version = 8;
  std::map<std::string, int64_t> opsets;  // domain → version
  std::string producer_name, producer_version, domain, doc_string;
  int64_t model_version = 0;
  std::map<std::string, std::string> metadata;
  Graph graph;

  // The version of a domain, 0 if the model does not import it.
  int64_t opset(std::string_view domain) const;
};

}  // namespace ortrain
