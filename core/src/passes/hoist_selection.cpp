// A selection after operators that treat rows independently is moved in front of them:
//
//     Gather(Gelu(x W + b), 0)  →  Gather(Gelu(Gather(x, [0]) W + b), 0)
//
// A classifier over a sequence reads one position of its last layer. The pass lets that layer compute only
// this position, forward and backward: its feed-forward part, its projection, and the queries of its
// attention. Keys and values are still computed for all positions. Dropout between the layers keeps its
// distribution, but draws other random numbers.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "infer/value_types.h"
#include "op/operator.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

// One position along an axis of a value, and the nodes that select it.
struct Selection {
  std::string value;
  int64_t axis = 0;   // counted from the front
  int64_t index = 0;  // negative: from the end
  std::vector<size_t> nodes;
};

// A value from which a node needs one position along an axis.
using Wanted = std::pair<std::string, int64_t>;

class Selector {
 public:
  explicit Selector(Model& model) : model_(model), graph_(model.graph), types_(model), pattern_(model.graph) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      for (const std::string& output : graph_.nodes[n].outputs)
        if (!output.empty()) producer_[output] = n;
      for (const std::string& input : values_read(graph_.nodes[n])) readers_[input].insert(n);
    }
  }

  // Moves the first selection of the graph for which this saves products.
  bool run() {
    for (const Selection& selection : selections())
      if (find_rows(selection)) return select_in_front(selection), true;
    return false;
  }

 private:
  using Dims = std::vector<Dim>;
  const std::optional<Dims>& dims(const std::string& value) const { return types_.info(value).dims; }

  std::optional<std::vector<int64_t>> integers(const std::string& value) const {
    const std::optional<Tensor> tensor = pattern_.constant(value);
    if (!tensor || tensor->dtype() != DType::kInt64) return std::nullopt;
    const int64_t* first = tensor->data<int64_t>();
    return std::vector<int64_t>(first, first + tensor->size());
  }

  // The selection that a Gather or Slice makes, if it is one position along one axis.
  std::optional<Selection> selection_of(size_t n) const {
    const Node& node = graph_.nodes[n];
    if (!node.domain.empty() || node.inputs.empty() || !dims(node.inputs[0])) return std::nullopt;
    const auto rank = static_cast<int64_t>(dims(node.inputs[0])->size());
    const auto selected = [&](int64_t axis, int64_t index) -> std::optional<Selection> {
      if (axis < -rank || axis >= rank) return std::nullopt;
      return Selection{node.inputs[0], axis < 0 ? axis + rank : axis, index, {n}};
    };
    if (node.op_type == "Gather") {
      const auto index = integers(node.inputs.at(1));
      if (!index || index->size() != 1) return std::nullopt;
      return selected(node.int_or("axis", 0), index->front());
    }
    if (node.op_type != "Slice" || node.inputs.size() < 4 || !node.has_input(3)) return std::nullopt;
    const auto begin = integers(node.inputs[1]), end = integers(node.inputs[2]),
               axes = integers(node.inputs[3]);
    const auto steps = node.has_input(4) ? integers(node.inputs[4]) : std::vector<int64_t>{1};
    if (!begin || !end || !axes || !steps || begin->size() != 1 || end->size() != 1 || axes->size() != 1 ||
        steps != std::vector<int64_t>{1})
      return std::nullopt;
    const bool one = begin->front() == -1 ? end->front() > INT32_MAX
                                          : end->front() > INT64_MIN && end->front() - 1 == begin->front();
    const std::optional<Selection> slice = one ? selected(axes->front(), begin->front()) : std::nullopt;
    if (!slice) return std::nullopt;
    // A Slice beyond the end is empty, but a Gather there would fail.
    const int64_t dim = (*dims(slice->value))[static_cast<size_t>(slice->axis)].value;
    return slice->index < dim && slice->index >= -dim ? slice : std::nullopt;
  }

  // All selections of the graph. Nodes that select the same position of a value are one selection.
  std::vector<Selection> selections() const {
    std::vector<Selection> found;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      std::optional<Selection> one = selection_of(n);
      if (!one) continue;
      const auto same = std::find_if(found.begin(), found.end(), [&](const Selection& s) {
        return s.value == one->value && s.axis == one->axis && s.index == one->index;
      });
      if (same == found.end())
        found.push_back(std::move(*one));
      else
        same->nodes.push_back(n);
    }
    return found;
  }

  // The positions of its inputs that a node needs to compute only one position of its output `wanted.first`.
  std::optional<InputPositions> needs(const Node& node, const Wanted& wanted, int64_t index) const {
    const auto& [value, axis] = wanted;
    const Operator* op = find_operator(node.domain, node.op_type);
    const std::optional<Dims>& made = dims(value);
    if (!op || !op->traits.positions || !made || node.outputs.empty() || node.outputs[0] != value ||
        std::cmp_greater_equal(axis, made->size()))  // shapes that a model states may contradict each other
      return std::nullopt;
    for (size_t o = 1; o < node.outputs.size(); ++o)
      if (node.has_output(o) && pattern_.uses(node.outputs[o]) > 0) return std::nullopt;
    PositionQuery query{node, model_.opset(""), {}, *made, axis, index};
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.has_input(i) && !dims(node.inputs[i])) return std::nullopt;
      query.inputs.push_back(node.has_input(i) ? &*dims(node.inputs[i]) : nullptr);
    }
    std::optional<InputPositions> found = op->traits.positions(query);
    if (found) found->axes.resize(node.inputs.size(), -1);
    return found;
  }

  // Fills rows_: the nodes that can compute only the selected position, and the inputs that they then need at
  // that position. The output of such a node is read only by other such nodes and by the selection. False if
  // no product is saved.
  bool find_rows(const Selection& s) {
    const Dim& dim = (*dims(s.value))[static_cast<size_t>(s.axis)];
    if (dim.value >= 0 && dim.value <= 1) return false;
    std::set<std::string> whole;  // values that some node needs as a whole
    for (bool settled = false; !settled;) {
      rows_.clear();
      std::vector<Wanted> open = {{s.value, s.axis}};
      while (!open.empty()) {
        const Wanted wanted = open.back();
        open.pop_back();
        const auto made = producer_.find(wanted.first);
        if (made == producer_.end() || whole.count(wanted.first) || rows_.count(made->second)) continue;
        const auto needed = needs(graph_.nodes[made->second], wanted, s.index);
        if (!needed) continue;
        rows_[made->second] = {wanted.second, *needed};
        for (size_t i = 0; i < needed->axes.size(); ++i)
          if (needed->axes[i] >= 0) open.emplace_back(graph_.nodes[made->second].inputs[i], needed->axes[i]);
      }
      settled = true;
      for (const auto& [n, row] : rows_) {
        const std::string& value = graph_.nodes[n].outputs[0];
        if (read_so(value, row.axis, s)) continue;
        whole.insert(value);
        settled = false;
      }
    }
    return std::any_of(rows_.begin(), rows_.end(), [&](const auto& row) {
      const Node& node = graph_.nodes[row.first];
      return find_operator(node.domain, node.op_type)->traits.operations != nullptr;
    });
  }

  // Whether all readers of the value need only the selected position along the axis.
  bool read_so(const std::string& value, int64_t axis, const Selection& s) const {
    if (graph_.is_output(value)) return false;
    for (const size_t reader : readers_.at(value)) {
      if (value == s.value && std::count(s.nodes.begin(), s.nodes.end(), reader)) continue;
      const auto row = rows_.find(reader);
      if (row == rows_.end()) return false;
      const Node& node = graph_.nodes[reader];
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (node.inputs[i] == value && row->second.needed.axes[i] != axis) return false;
    }
    return true;
  }

  std::string constant(const std::string& base, Tensor tensor) {
    const std::string name = graph_.unique_name(base);
    graph_.add_initializer(name, std::move(tensor));
    return name;
  }

  void select_in_front(const Selection& s) {
    const std::string index = constant(s.value + "_index", Tensor::of(std::vector<int64_t>{s.index}));
    std::map<Wanted, std::string> selected;  // by value and axis
    std::vector<Node> nodes;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      Node node = graph_.nodes[n];
      if (const auto row = rows_.find(n); row != rows_.end()) {
        for (size_t i = 0; i < node.inputs.size(); ++i) {
          const int64_t axis = row->second.needed.axes[i];
          const auto made = producer_.find(node.inputs[i]);
          if (axis < 0 || (made != producer_.end() && rows_.count(made->second))) continue;
          std::string& name = selected[{node.inputs[i], axis}];
          if (name.empty()) {
            name = graph_.unique_name(node.inputs[i] + "_selected");
            nodes.push_back({"", "Gather", name, {node.inputs[i], index}, {name}, {{"axis", axis}}});
          }
          node.inputs[i] = name;
        }
        for (const auto& [i, integers] : row->second.needed.integers)
          node.inputs[i] = constant(node.inputs[i] + "_selected", Tensor::of(integers));
        if (const auto stated = graph_.value_info.find(node.outputs[0]);
            stated != graph_.value_info.end() && stated->second.dims &&
            static_cast<size_t>(row->second.axis) < stated->second.dims->size())
          (*stated->second.dims)[static_cast<size_t>(row->second.axis)] = Dim{1, ""};
      } else if (std::count(s.nodes.begin(), s.nodes.end(), n)) {
        // The selected axis now has a single position.
        if (node.op_type == "Gather") {
          const Shape shape = pattern_.constant(node.inputs[1])->shape();
          node.inputs[1] = constant(s.value + "_only", Tensor::of(std::vector<int64_t>{0}, shape));
        } else {
          node = {"", "Identity", node.name, {node.inputs[0]}, node.outputs, {}};
        }
      }
      nodes.push_back(std::move(node));
    }
    graph_.nodes = std::move(nodes);
  }

  struct Row {
    int64_t axis;  // of the node's output
    InputPositions needed;
  };

  Model& model_;
  Graph& graph_;
  const ValueTypes types_;
  const Pattern pattern_;
  std::unordered_map<std::string, size_t> producer_;
  std::unordered_map<std::string, std::set<size_t>> readers_;
  std::map<size_t, Row> rows_;  // by node
};

// Whether the graph has a node that could select one position of a value.
bool selects(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    return node.domain.empty() && (node.op_type == "Gather" || node.op_type == "Slice");
  });
}

}  // namespace

bool hoist_selection(Model& model) {
  bool changed = false;
  // Each iteration moves a selection towards the inputs.
  for (size_t turns = model.graph.nodes.size(); turns > 0 && selects(model.graph); --turns) {
    if (!Selector(model).run()) break;
    changed = true;
  }
  return changed;
}

}  // namespace ortrain
