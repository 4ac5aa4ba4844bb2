// A sequence of the pieces of a tensor that is only read at constant positions becomes a Split:
//
//     SequenceAt(SplitToSequence(X, 58), 0), SequenceAt(SplitToSequence(X, 58), 1)  →  Split(X, [58, 58])
//
// PyTorch's exporter writes `chunk` and `split` as sequences. Values that pass through a sequence lose their
// shapes and layouts, and their gradients are sequences too.
#include <algorithm>

#include "infer/value_types.h"
#include "op/operator.h"
#include "op/opset.h"
#include "passes/passes.h"

namespace ortrain {
namespace {

bool is_integer(DType dtype) { return dtype == DType::kInt64 || dtype == DType::kInt32; }

constexpr int64_t kMostPieces = 4096;  // sequences of more pieces stay: their number may be beyond memory

// The sizes of the pieces along the axis; empty if they are not known.
std::vector<int64_t> sizes_of(const Node& node, const ValueTypes& types) {
  const Tensor* split = node.has_input(1) ? types.known(node.inputs[1]) : nullptr;
  const auto& dims = types.info(node.inputs[0]).dims;
  if (!split || !dims || dims->empty() || !is_integer(split->dtype())) return {};
  const auto rank = static_cast<int64_t>(dims->size());
  const int64_t axis = node.int_or("axis", 0);
  if (axis < -rank || axis >= rank) return {};
  const Dim& dim = (*dims)[static_cast<size_t>(axis < 0 ? axis + rank : axis)];
  if (!dim.known()) return {};
  std::vector<int64_t> sizes;
  for (const double size : split->to_double()) sizes.push_back(static_cast<int64_t>(size));
  if (split->shape().empty() && sizes[0] > 0) {
    const int64_t size = sizes[0], last = dim.value % size;
    if (dim.value / size > kMostPieces) return {};
    sizes.assign(static_cast<size_t>(dim.value / size), size);
    if (last > 0) sizes.push_back(last);
  }
  int64_t rest = dim.value;
  for (const int64_t size : sizes) {
    if (size <= 0 || size > rest) return {};
    rest -= size;
  }
  return rest == 0 ? sizes : std::vector<int64_t>{};
}

// The position of the piece that a node reads from a sequence of `count`; nothing if it is not known.
std::optional<size_t> position_of(const Node& node, size_t count, const ValueTypes& types) {
  const Tensor* at = types.known(node.inputs[1]);
  if (!at || at->size() != 1 || !is_integer(at->dtype())) return std::nullopt;
  const auto n = static_cast<int64_t>(count), given = static_cast<int64_t>(at->to_double()[0]);
  const int64_t position = given < 0 ? given + n : given;
  return position >= 0 && position < n ? std::optional(static_cast<size_t>(position)) : std::nullopt;
}

bool is(const Node& node, std::string_view type) { return node.domain.empty() && node.op_type == type; }

}  // namespace

bool split_sequence(Model& model) {
  Graph& graph = model.graph;
  const auto splits = [](const Node& node) { return is(node, "SplitToSequence"); };
  if (!is_built("", "Split") || std::none_of(graph.nodes.begin(), graph.nodes.end(), splits)) return false;
  const ValueTypes types(model);
  std::unordered_map<std::string, std::vector<size_t>> readers;
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (const std::string& value : values_read(graph.nodes[n])) readers[value].push_back(n);
  bool changed = false;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    Node& node = graph.nodes[n];
    if (!splits(node) || graph.is_output(node.outputs[0])) continue;
    const std::vector<int64_t> sizes = sizes_of(node, types);
    std::vector<std::pair<Node*, size_t>> reads;
    for (const size_t reader : readers[node.outputs[0]]) {
      Node& read = graph.nodes[reader];
      const auto position =
          is(read, "SequenceAt") ? position_of(read, sizes.size(), types) : std::optional<size_t>();
      if (!position) break;
      reads.emplace_back(&read, *position);
    }
    if (sizes.empty() || reads.empty() || reads.size() < readers[node.outputs[0]].size()) continue;
    // The first node that reads a piece disappears, so that the piece keeps its name.
    const std::string sequence = node.outputs[0];
    std::vector<std::string> pieces(sizes.size());
    for (const auto& [read, position] : reads) {
      if (pieces[position].empty()) {
        pieces[position] = read->outputs[0];
        read->outputs.clear();
      } else {
        *read = {"", "Identity", read->name, {pieces[position]}, read->outputs, {}};
      }
    }
    for (size_t i = 0; i < sizes.size(); ++i)
      if (pieces[i].empty()) pieces[i] = graph.unique_name(concat(sequence, "_", i));
    node.op_type = "Split";
    node.inputs.resize(1);
    node.outputs = std::move(pieces);
    node.attributes = {{"axis", node.int_or("axis", 0)}};
    if (model.opset("") >= since::kAxesAsInput) {
      const std::string name = graph.unique_name(sequence + "_sizes");
      graph.add_initializer(name, Tensor::of(sizes));
      node.inputs.push_back(name);
    } else {
      node.attributes["split"] = sizes;
    }
    graph.value_info.erase(sequence);
    changed = true;
  }
  std::erase_if(graph.nodes, [](const Node& node) { return node.outputs.empty(); });
  return changed;
}

}  // namespace ortrain
