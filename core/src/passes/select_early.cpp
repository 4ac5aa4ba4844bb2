// What is selected behind operators that treat rows alike is selected in front of them:
//
//     Gather(Gelu(x W + b), 0)  →  Gather(Gelu(Gather(x, [0]) W + b), 0)
//
// A classifier over a sequence reads one position of its last layer. That layer then computes this position
// alone, forward and backward: its feed-forward part, its projection, and the queries of its attention. Keys
// and values are still those of all positions. Where dropout lies in between, its law stays and its draws
// change.
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
#include "passes/pass.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

// One position along an axis of a value: nodes that read it and nothing else of it.
struct Selection {
  std::string value;
  int64_t axis = 0;   // counted from the front
  int64_t index = 0;  // negative: from the end
  std::vector<size_t> nodes;
};

// A value of which one position along an axis is wanted.
using Wanted = std::pair<std::string, int64_t>;

const std::set<std::string_view> kElementwise = {
    "Abs",     "Cast",     "Celu",     "Clip",        "Dropout",    "Elu",      "Erf",
    "Exp",     "Gelu",     "FastGelu", "HardSigmoid", "HardSwish",  "Identity", "LeakyRelu",
    "Log",     "Mish",     "Neg",      "QuickGelu",   "Reciprocal", "Relu",     "Selu",
    "Sigmoid", "Softplus", "Softsign", "Sqrt",        "Swish",      "Tanh",     "ThresholdedRelu"};
const std::set<std::string_view> kBroadcasting = {"Add",     "Sub",  "Mul",  "Div",   "Pow",   "Max",
                                                  "Min",     "Sum",  "Mean", "PRelu", "Where", "Equal",
                                                  "Greater", "Less", "And",  "Or"};
const std::set<std::string_view> kWithinRows = {"LayerNormalization", "LogSoftmax", "RMSNormalization",
                                                "SimplifiedLayerNormalization", "Softmax"};

class Selector {
 public:
  explicit Selector(Model& model) : model_(model), graph_(model.graph), types_(model), pattern_(model.graph) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      for (const std::string& output : graph_.nodes[n].outputs)
        if (!output.empty()) producer_[output] = n;
      for (const std::string& input : values_read(graph_.nodes[n])) readers_[input].insert(n);
    }
  }

  // The first selection of the graph in front of which there are products to save.
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

  // What a Gather or Slice of the graph selects, where it is one position along one axis.
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
    if (!begin || !end || !axes || !steps || begin->size() != 1 || axes->size() != 1 ||
        steps != std::vector<int64_t>{1})
      return std::nullopt;
    const bool one = begin->front() == -1 ? end->front() > INT32_MAX : end->front() == begin->front() + 1;
    const std::optional<Selection> slice = one ? selected(axes->front(), begin->front()) : std::nullopt;
    if (!slice) return std::nullopt;
    // A Slice beyond the end is empty, where a Gather would fail.
    const int64_t extent = (*dims(slice->value))[static_cast<size_t>(slice->axis)].value;
    return slice->index < extent && slice->index >= -extent ? slice : std::nullopt;
  }

  // All selections, those of the same position of a value together.
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

  // What the target shape of a Reshape becomes where an axis of its result has one position left. The axes up
  // to that one must be those of the input, which may be said by zeros; one extent behind it may follow from
  // the others.
  std::optional<std::vector<int64_t>> shape_with_one(const Node& node, int64_t axis) const {
    const Dims &from = *dims(node.inputs[0]), &to = *dims(node.outputs[0]);
    const bool zero_copies = node.int_or("allowzero", 0) == 0;
    std::vector<int64_t> shape;
    for (size_t k = 0; k < to.size(); ++k) {
      const bool in_front = k <= static_cast<size_t>(axis);
      if (in_front && (k >= from.size() || !from[k].same(to[k]))) return std::nullopt;
      if (!to[k].known() && in_front && !zero_copies) return std::nullopt;
      if (k == static_cast<size_t>(axis))
        shape.push_back(1);
      else
        shape.push_back(to[k].known() ? to[k].value : in_front ? 0 : -1);
    }
    if (std::count(shape.begin(), shape.end(), -1) > 1) return std::nullopt;
    return shape;
  }

  // Of the inputs of the node that makes `wanted.first`, those of which one position is wanted when that is
  // so of its output: for each the axis, -1 where the whole input is. Nothing where the node mixes positions.
  std::optional<std::vector<int64_t>> rule(const Node& node, const Wanted& wanted, int64_t index) const {
    const auto& [value, axis] = wanted;
    const std::optional<Dims>& made = dims(value);
    if (!made || node.outputs.empty() || node.outputs[0] != value) return std::nullopt;
    for (size_t o = 1; o < node.outputs.size(); ++o)
      if (node.has_output(o) && pattern_.uses(node.outputs[o]) > 0) return std::nullopt;
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.has_input(i) && !dims(node.inputs[i])) return std::nullopt;
    const auto rank_of = [&](size_t i) { return static_cast<int64_t>(dims(node.inputs[i])->size()); };
    const auto rank = static_cast<int64_t>(made->size());
    std::vector<int64_t> axes(node.inputs.size(), -1);
    // Input i broadcasts to the output. False where its extent may be another one.
    const auto broadcasts = [&](size_t i) {
      const int64_t own = axis - (rank - rank_of(i));
      if (own < 0) return true;
      const Dim& dim = (*dims(node.inputs[i]))[static_cast<size_t>(own)];
      if (dim.value == 1) return true;
      if (!dim.same((*made)[static_cast<size_t>(axis)]) && index != 0 && index != -1) return false;
      axes[i] = own;
      return true;
    };
    const std::string& type = node.op_type;
    if (!node.domain.empty() && node.domain != kMicrosoft) return std::nullopt;
    if (kElementwise.count(type)) {
      for (size_t i = 1; i < node.inputs.size(); ++i)
        if (node.has_input(i) && rank_of(i) > 0) return std::nullopt;
      axes[0] = axis;
      return axes;
    }
    if (kWithinRows.count(type)) {
      const int64_t first = node.int_or(
          "axis", type == "Softmax" || type == "LogSoftmax" ? (model_.opset("") < 13 ? 1 : -1) : -1);
      if (axis >= (first < 0 ? first + rank : first)) return std::nullopt;
      for (size_t i = 1; i < node.inputs.size(); ++i)  // a scale that differs from position to position
        if (node.has_input(i) && rank_of(i) >= rank - axis) return std::nullopt;
      axes[0] = axis;
      return axes;
    }
    if (!node.domain.empty()) return std::nullopt;
    if (kBroadcasting.count(type)) {
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (!broadcasts(i)) return std::nullopt;
      return axes;
    }
    if (type == "MatMul") {
      if (rank_of(0) < 2 || rank_of(1) < 2 || axis == rank - 1) return std::nullopt;
      if (axis == rank - 2)
        axes[0] = rank_of(0) - 2;
      else if (!broadcasts(0) || !broadcasts(1))
        return std::nullopt;
      return axes;
    }
    if (type == "Gemm") {
      if (axis != 0) return std::nullopt;
      axes[0] = node.int_or("transA", 0) != 0 ? 1 : 0;
      if (node.has_input(2) && !broadcasts(2)) return std::nullopt;
      return axes;
    }
    if (type == "Transpose") {
      const std::vector<int64_t> order = node.ints_or("perm", {});
      axes[0] = order.empty() ? rank - 1 - axis : order[static_cast<size_t>(axis)];
      return axes;
    }
    if (type == "Reshape") {
      if (!shape_with_one(node, axis)) return std::nullopt;
      axes[0] = axis;
      return axes;
    }
    return std::nullopt;
  }

  // Fills rows_: the nodes that can compute the selected position alone, and of which inputs they then want
  // it. Such a node's output is read by others of them and by the selection alone. False where no product is
  // saved.
  bool find_rows(const Selection& s) {
    const Dim& extent = (*dims(s.value))[static_cast<size_t>(s.axis)];
    if (extent.value >= 0 && extent.value <= 1) return false;
    std::set<std::string> whole;  // values that somebody wants whole
    for (bool settled = false; !settled;) {
      rows_.clear();
      std::vector<Wanted> open = {{s.value, s.axis}};
      while (!open.empty()) {
        const Wanted wanted = open.back();
        open.pop_back();
        const auto made = producer_.find(wanted.first);
        if (made == producer_.end() || whole.count(wanted.first) || rows_.count(made->second)) continue;
        const auto axes = rule(graph_.nodes[made->second], wanted, s.index);
        if (!axes) continue;
        rows_[made->second] = {wanted.second, *axes};
        for (size_t i = 0; i < axes->size(); ++i)
          if ((*axes)[i] >= 0) open.emplace_back(graph_.nodes[made->second].inputs[i], (*axes)[i]);
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
      const std::string& type = graph_.nodes[row.first].op_type;
      return type == "MatMul" || type == "Gemm";
    });
  }

  // Whether everybody who reads the value wants the selected position along the axis.
  bool read_so(const std::string& value, int64_t axis, const Selection& s) const {
    if (graph_.is_output(value)) return false;
    for (const size_t reader : readers_.at(value)) {
      if (value == s.value && std::count(s.nodes.begin(), s.nodes.end(), reader)) continue;
      const auto row = rows_.find(reader);
      if (row == rows_.end()) return false;
      const Node& node = graph_.nodes[reader];
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (node.inputs[i] == value && row->second.inputs[i] != axis) return false;
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
          const int64_t axis = row->second.inputs[i];
          const auto made = producer_.find(node.inputs[i]);
          if (axis < 0 || (made != producer_.end() && rows_.count(made->second))) continue;
          std::string& name = selected[{node.inputs[i], axis}];
          if (name.empty()) {
            name = graph_.unique_name(node.inputs[i] + "_selected");
            nodes.push_back({"", "Gather", name, {node.inputs[i], index}, {name}, {{"axis", axis}}});
          }
          node.inputs[i] = name;
        }
        if (node.op_type == "Reshape")
          node.inputs[1] = constant(node.inputs[1] + "_selected",
                                    Tensor::of(*shape_with_one(graph_.nodes[n], row->second.axis)));
        if (const auto stated = graph_.value_info.find(node.outputs[0]);
            stated != graph_.value_info.end() && stated->second.dims)
          (*stated->second.dims)[static_cast<size_t>(row->second.axis)] = Dim{1, ""};
      } else if (std::count(s.nodes.begin(), s.nodes.end(), n)) {
        // One position is left.
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
    int64_t axis;                 // of the node's output
    std::vector<int64_t> inputs;  // -1: the whole input
  };

  Model& model_;
  Graph& graph_;
  const ValueTypes types_;
  const Pattern pattern_;
  std::unordered_map<std::string, size_t> producer_;
  std::unordered_map<std::string, std::set<size_t>> readers_;
  std::map<size_t, Row> rows_;  // by node
};

// Whether the graph has a node from which one position of a value could be read.
bool selects(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    return node.domain.empty() && (node.op_type == "Gather" || node.op_type == "Slice");
  });
}

bool select_early(Model& model) {
  bool changed = false;
  // Every turn moves a selection towards the inputs.
  for (size_t turns = model.graph.nodes.size(); turns > 0 && selects(model.graph); --turns) {
    if (!Selector(model).run()) break;
    changed = true;
  }
  return changed;
}

// Before a gradient is built, and in models that have none.
ORTRAIN_PASS({.name = "select_early", .moment = PassMoment::kArtifact, .order = 30, .run = select_early});
ORTRAIN_PASS({.name = "select_early", .moment = PassMoment::kSession, .order = 5, .run = select_early});

}  // namespace
}  // namespace ortrain
