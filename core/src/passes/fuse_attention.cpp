// Attention written as separate steps becomes one node, which does not store the scores:
//
//     MatMul(Dropout(Softmax(scale MatMul(Q, Kᵀ) + mask)), V)  →  FusedAttention(Q, K, V, mask)
//
// The pass matches computations: the product of queries and keys, scaled before or after it, added masks or a
// mask that replaces the scores that it hides, the softmax over the keys, dropout, and the product with the
// values. Types and shapes come from ValueTypes, so different forms from different exporters match too.
//
// Transpositions around the attention are absorbed: the node reads operands and writes results in their
// storage order. In a training model the nodes of the gradient, which are these steps in reverse, become one
// AttentionGrad. If a node differs from the expected one, the graph stays unchanged.
#include <algorithm>
#include <functional>
#include <numeric>

#include "infer/value_types.h"
#include "op/operator.h"
#include "op/opset.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

using Order = std::vector<int64_t>;

Order inverse(const Order& order) {
  Order out(order.size());
  for (size_t i = 0; i < order.size(); ++i) out[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return out;
}

bool is(const Node& node, std::string_view type, std::string_view domain = "") {
  return node.op_type == type && node.domain == domain;
}

// A matrix product without scale; its operands may be transposed.
struct Product {
  bool transposes_a = false, transposes_b = false;
};
std::optional<Product> product(const Node& node) {
  if (is(node, "MatMul")) return Product{};
  if (!is(node, "FusedMatMul", kMicrosoft) || node.float_or("alpha", 1) != 1 ||
      node.int_or("transBatchA", 0) != 0 || node.int_or("transBatchB", 0) != 0)
    return std::nullopt;
  return Product{node.int_or("transA", 0) != 0, node.int_or("transB", 0) != 0};
}

// An operand, traced back to where it is stored, and its gradient, traced the same way.
struct Operand {
  std::string value;
  Order order;           // of value's axes: [batch, heads, rows, size] or [batch, rows, size]
  double scale = 1;      // by which the value is multiplied
  std::string gradient;  // of value; empty: not needed
};

bool contains(const std::vector<const Node*>& nodes, const Node* node) {
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

// An axis of a value.
struct Axis {
  std::string value;
  int64_t axis;
};

class Matcher {
 public:
  explicit Matcher(const Model& model)
      : graph_(model.graph), pattern_(graph_), types_(model), opset_(model.opset("")) {
    const Graph& graph = graph_;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      for (const std::string& output : graph.nodes[n].outputs)
        if (!output.empty()) producer_[output] = n;
      for (const std::string& input : values_read(graph.nodes[n])) readers_[input].push_back(n);
    }
  }

  struct Match {
    std::vector<Node> before;  // nodes that compute further inputs of the forward node
    Node forward, backward;    // `backward` has no outputs if there is no gradient
    // Replacements for nodes that compute the shape of a value that is no longer produced: the last node, and
    // those before it.
    std::vector<std::pair<Node, std::vector<Node>>> shapes;
  };

  // The attention around the node `softmax`; nothing if the nodes around it are not an attention.
  std::optional<Match> match(const Node& softmax) const;

 private:
  const Node* maker(const std::string& value) const {
    const auto at = producer_.find(value);
    return at == producer_.end() ? nullptr : &graph_.nodes[at->second];
  }
  std::vector<const Node*> readers(const std::string& value) const {
    std::vector<const Node*> out;
    if (const auto at = readers_.find(value); at != readers_.end())
      for (const size_t n : at->second) out.push_back(&graph_.nodes[n]);
    return out;
  }
  // The only reader of a value that is not a graph output, else null.
  const Node* reader(const std::string& value) const {
    const auto all = readers(value);
    return all.size() == 1 && !graph_.is_output(value) ? all[0] : nullptr;
  }
  // The value of a single-element tensor, if the model determines it.
  std::optional<double> number(const std::string& value) const {
    const Tensor* known = types_.known(value);
    if (!known || known->size() != 1) return std::nullopt;
    if (known->dtype() != DType::kFloat && known->dtype() != DType::kDouble) return std::nullopt;
    return known->to_double()[0];
  }
  // If a node multiplies by a number: which input is multiplied, and the factor.
  std::optional<std::pair<std::string, double>> scaled(const Node& node) const;
  bool is_scaling(const Node& node, const std::string& of, double factor) const {
    const auto found = scaled(node);
    return found && found->first == of && found->second == factor;
  }
  bool is_zero(const std::string& value) const { return number(value) == 0.0; }
  // If `reshape` makes a transposed operand of a matrix product through a shape of three axes: the value
  // before the transposition.
  std::string before_swap(const Node& reshape) const;
  const std::optional<std::vector<Dim>>& dims(const std::string& value) const {
    return types_.info(value).dims;
  }
  std::optional<size_t> rank(const std::string& value) const {
    return dims(value) ? std::optional(dims(value)->size()) : std::nullopt;
  }
  Operand follow(const std::string& value, Order order, const std::string& gradient) const;
  // Whether a value is a matrix product, possibly scaled and masked.
  bool leads_to_product(const std::string& value, int steps = 0) const;
  // A node that replaces the Shape node `shape`, and the nodes that compute its inputs. Element i of its
  // result is the size of the axis that axis_of(i) returns.
  std::pair<Node, std::vector<Node>> shape_of(const Node& shape, size_t rank,
                                              const std::function<Axis(size_t)>& axis_of) const;
  // Whether only nodes of the match read a value. A Shape node counts as a node of the match if only nodes of
  // the match read its result.
  bool inner(const std::string& value, const std::vector<const Node*>& nodes) const {
    if (graph_.is_output(value)) return false;
    const auto contained = [&](const Node* n) { return contains(nodes, n); };
    const auto all = readers(value);
    return std::all_of(all.begin(), all.end(), [&](const Node* n) {
      if (contained(n)) return true;
      if (!is(*n, "Shape") || graph_.is_output(n->outputs[0])) return false;
      const auto of_shape = readers(n->outputs[0]);
      return std::all_of(of_shape.begin(), of_shape.end(), contained);
    });
  }
  // If dimensions are unknown, the gradient of a value is summed over the axes along which it may have been
  // broadcast: Reshape(ReduceSumTraining(gradient, BroadcastGradientArgs(Shape(value), ...)), Shape(value)).
  // Returns the three nodes, the last one first, or an empty list if the graph does not have them. These
  // nodes must be the only readers of the gradient.
  std::vector<const Node*> summation(const std::string& gradient, const std::string& value) const;
  // The gradient after these three nodes, which are added to `nodes`; `gradient` itself if the graph does not
  // have them.
  std::string summed(const std::string& gradient, const std::string& value,
                     std::vector<const Node*>& nodes) const {
    const auto found = summation(gradient, value);
    nodes.insert(nodes.end(), found.begin(), found.end());
    return found.empty() ? gradient : found[0]->outputs[0];
  }

  // The parts of an attention that the matcher has found so far.
  struct Found {
    const Node& softmax;
    std::vector<const Node*> inside = {};  // nodes that are removed, of the forward pass and of the gradient
    // Nodes of the forward pass after the softmax.
    const Node *dropout = nullptr, *guard = nullptr, *output = nullptr;
    std::string weights = {};  // the value that is multiplied by the values of the attention
    // The gradient of the softmax, and the gradient nodes before it, from the output on.
    const Node *softmax_grad = nullptr, *values_grad = nullptr;
    std::string output_gradient = {};
    // Nodes and values before the softmax, and the gradient there.
    const Node* scores_product = nullptr;
    std::string condition = {}, softmax_gradient = {}, gradient = {};
    std::vector<std::string> masks = {};  // added masks, the last one first
    double scale = 1, replaced = 0;
    bool keeps = true;
    const Node *left_grad = nullptr, *right_grad = nullptr;
    // Operands and results in the order in which they are stored.
    size_t axes = 0;
    Order plain = {}, y_order = {};
    Operand q = {}, k = {}, v = {};
    std::string y = {}, dy = {};
    bool wants_mask_gradient = false;
    Match match = {};

    void take(const Node* node) { inside.push_back(node); }
  };
  // The steps of match(). They return false if they find something other than attention.
  bool find_output(Found& f) const;
  bool find_output_gradient(Found& f) const;
  bool find_scores(Found& f) const;
  void find_operand_gradients(Found& f) const;
  bool find_operands(Found& f) const;
  void take_transposition(Found& f) const;
  bool nothing_else_wanted(Found& f) const;
  void write_nodes(Found& f) const;
  void replace_shapes(Found& f, const std::string& value, const std::function<Axis(size_t)>& axis_of) const;

  const Graph& graph_;
  Pattern pattern_;
  ValueTypes types_;
  int64_t opset_;
  std::unordered_map<std::string, size_t> producer_;
  std::unordered_map<std::string, std::vector<size_t>> readers_;
};

std::vector<const Node*> Matcher::summation(const std::string& gradient, const std::string& value) const {
  const auto shape_of_value = [&](const std::string& shape) {
    const Node* node = pattern_.made_by(shape, "Shape");
    return node && node->inputs[0] == value;
  };
  for (const Node* sum : readers(gradient)) {
    if (!is(*sum, "ReduceSumTraining", kMicrosoft) || sum->inputs[0] != gradient) continue;
    const Node* axes = maker(sum->inputs.at(1));
    const Node* reshape = reader(sum->outputs[0]);
    if (axes && is(*axes, "BroadcastGradientArgs", kMicrosoft) && axes->outputs[0] == sum->inputs[1] &&
        shape_of_value(axes->inputs.at(0)) && reshape && is(*reshape, "Reshape") &&
        shape_of_value(reshape->inputs.at(1)))
      return {reshape, sum, axes};
  }
  return {};
}

std::optional<std::pair<std::string, double>> Matcher::scaled(const Node& node) const {
  const bool divides = is(node, "Div");
  if (!divides && !is(node, "Mul")) return std::nullopt;
  // A constant with one element but several axes could add axes to the product.
  const auto factor = [&](size_t i) -> std::optional<double> {
    const auto axes = rank(node.inputs.at(i));
    if (axes && *axes > 1) return std::nullopt;
    return number(node.inputs.at(i));
  };
  if (const auto by = factor(1)) return std::pair{node.inputs[0], divides ? 1 / *by : *by};
  if (divides) return std::nullopt;
  if (const auto by = factor(0)) return std::pair{node.inputs[1], *by};
  return std::nullopt;
}

std::string Matcher::before_swap(const Node& reshape) const {
  const Node* transpose = is(reshape, "Reshape") ? pattern_.made_by(reshape.inputs[0], "Transpose") : nullptr;
  if (!transpose || transpose->ints_or("perm", {}) != Order{0, 2, 1}) return "";
  const Node* flat = pattern_.made_by(transpose->inputs[0], "Reshape");
  if (!flat) return "";
  const std::string &before = flat->inputs[0], &middle = flat->outputs[0], &after = reshape.outputs[0];
  if (rank(before) != 4 || rank(middle) != 3 || rank(after) != 4) return "";
  const std::vector<Dim>&b = *dims(before), &m = *dims(middle), &a = *dims(after);
  const bool swapped = b[2].same(m[1]) && b[3].same(m[2]) && a[2].same(b[3]) && a[3].same(b[2]);
  return swapped && (a[0].same(b[0]) || a[1].same(b[1])) ? before : "";
}

Operand Matcher::follow(const std::string& value, Order order, const std::string& gradient) const {
  Operand at{value, std::move(order), 1, gradient}, best;
  const auto fits = [](const Operand& x) {
    return x.order.back() == static_cast<int64_t>(x.order.size()) - 1;
  };
  constexpr int kSteps = 6;
  for (int step = 0; step <= kSteps; ++step) {
    if (fits(at)) best = at;
    const Node* node = maker(at.value);
    if (!node) break;
    if (!at.gradient.empty()) {
      std::vector<const Node*> sum;
      const std::string behind = summed(at.gradient, at.value, sum);
      if (inner(at.gradient, sum) && behind != at.gradient) at.gradient = behind;
      if (fits(at)) best = at;
    }
    const Node* back = at.gradient.empty() ? nullptr : reader(at.gradient);
    if (!at.gradient.empty() && !back) break;
    Operand next = at;
    if (is(*node, "Transpose")) {
      const Order perm = node->ints_or("perm", {});
      if (perm.size() != at.order.size()) break;
      if (back && (!is(*back, "Transpose") || back->ints_or("perm", {}) != inverse(perm))) break;
      for (size_t i = 0; i < perm.size(); ++i) next.order[i] = perm[static_cast<size_t>(at.order[i])];
      next.value = node->inputs[0];
    } else if (const auto factor = scaled(*node)) {
      if (back && !is_scaling(*back, at.gradient, factor->second)) break;
      next.scale *= factor->second;
      next.value = factor->first;
    } else if (const std::string before = before_swap(*node); !before.empty() && at.order.size() == 4) {
      for (int64_t& axis : next.order) axis = axis == 3 ? 2 : axis == 2 ? 3 : axis;
      next.value = before;
      if (back) {
        const Node* transpose = is(*back, "Reshape") ? reader(back->outputs[0]) : nullptr;
        if (!transpose || !is(*transpose, "Transpose") || transpose->ints_or("perm", {}) != Order{0, 2, 1})
          break;
        back = reader(transpose->outputs[0]);
        if (!back || !is(*back, "Reshape")) break;
      }
    } else {
      break;
    }
    if (back) next.gradient = back->outputs[0];
    at = std::move(next);
  }
  return best;
}

bool Matcher::leads_to_product(const std::string& value, int steps) const {
  constexpr int kSteps = 4;
  const Node* node = maker(value);
  if (!node || steps > kSteps) return false;
  if (product(*node)) return true;
  if (const auto step = scaled(*node)) return leads_to_product(step->first, steps + 1);
  if (!is(*node, "Add") && !is(*node, "Where")) return false;
  return std::any_of(node->inputs.begin(), node->inputs.end(),
                     [&](const std::string& input) { return leads_to_product(input, steps + 1); });
}

std::pair<Node, std::vector<Node>> Matcher::shape_of(const Node& shape, size_t rank,
                                                     const std::function<Axis(size_t)>& axis_of) const {
  const std::string& name = shape.outputs[0];
  std::vector<Node> nodes;
  const auto clamped = [&](int64_t axis) {
    return std::clamp<int64_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis, 0,
                               static_cast<int64_t>(rank));
  };
  const auto begin = static_cast<size_t>(clamped(shape.int_or("start", 0))),
             end = static_cast<size_t>(clamped(shape.int_or("end", static_cast<int64_t>(rank))));
  std::vector<std::string> parts;
  const auto add = [&](const char* type, std::vector<std::string> inputs, Attributes attributes) {
    const std::string made = graph_.unique_name(concat(name, "_", nodes.size()));
    nodes.push_back({"", type, made, std::move(inputs), {made}, std::move(attributes)});
    return made;
  };
  for (size_t i = begin; i < end;) {
    const std::string value = axis_of(i).value;
    Order axes;
    for (; i < end && axis_of(i).value == value; ++i) axes.push_back(axis_of(i).axis);
    const std::string all_dims = add("Shape", {value}, {}),
                      which = add("Constant", {}, {{"value", Tensor::of(axes)}});
    parts.push_back(add("Gather", {all_dims, which}, {{"axis", int64_t{0}}}));
  }
  if (parts.empty()) parts.push_back(add("Constant", {}, {{"value", Tensor::of(Order{})}}));
  return {{"", "Concat", shape.name, std::move(parts), {name}, {{"axis", int64_t{0}}}}, std::move(nodes)};
}

// Follows the forward pass from the softmax to the product with the values.
bool Matcher::find_output(Found& f) const {
  const std::string& probabilities = f.softmax.outputs[0];
  f.weights = probabilities;
  for (const Node* node : readers(probabilities))
    if (node->domain == kMicrosoft && node->op_type.starts_with("SoftmaxGrad") &&
        node->inputs.at(1) == probabilities)
      f.softmax_grad = node;
  for (int steps = 0; steps < 3 && !f.output; ++steps) {
    const std::string before = f.weights;
    for (const Node* node : readers(before)) {
      if (is(*node, "Dropout") && node->inputs[0] == before && !f.dropout &&
          opset_ >= since::kDropoutInputs) {
        f.dropout = node;
        f.weights = node->outputs[0];
      } else if (is(*node, "Where") && !f.guard && node->inputs[2] == before && is_zero(node->inputs[1])) {
        // NaN rows, of queries that see no keys, are replaced with zeros; FusedAttention produces zeros
        // there.
        const Node* nan = pattern_.made_by(node->inputs[0], "IsNaN");
        if (!nan || nan->inputs[0] != before) continue;
        f.take(nan);
        f.guard = node;
        f.weights = node->outputs[0];
      } else if (const auto p = product(*node);
                 p && !p->transposes_a && !p->transposes_b && node->inputs[0] == before) {
        if (f.output) return false;
        f.output = node;
        continue;
      } else {
        continue;
      }
      f.take(node);
    }
    if (f.weights == before) break;
  }
  if (!f.output || f.output->inputs[1] == f.weights) return false;
  f.take(f.output);
  return true;
}

// Follows the gradient along the same path in reverse, from the gradient of the probabilities to that of the
// output.
bool Matcher::find_output_gradient(Found& f) const {
  const Node* weights_grad = nullptr;
  if (!f.softmax_grad) return true;
  f.take(f.softmax_grad);
  std::string at = f.softmax_grad->inputs[0];
  for (int steps = 0; steps < 4 && !weights_grad; ++steps) {
    const Node* node = maker(at);
    if (!node || graph_.is_output(at)) return false;
    if (is(*node, "Reshape")) {
      // A sum over axes along which the value may have been broadcast.
      const Node* sum = maker(node->inputs[0]);
      if (!sum || !is(*sum, "ReduceSumTraining", kMicrosoft)) return false;
      const Node* shape = pattern_.made_by(node->inputs.at(1), "Shape");
      const auto found = shape ? summation(sum->inputs[0], shape->inputs[0]) : std::vector<const Node*>{};
      if (found.empty() || found[0] != node) return false;
      f.inside.insert(f.inside.end(), found.begin(), found.end());
      at = sum->inputs[0];
      node = maker(at);
      if (!node) return false;
    }
    f.take(node);
    if (f.dropout && is(*node, "DropoutGrad", kMicrosoft) && f.dropout->has_output(1) &&
        node->inputs.at(1) == f.dropout->outputs[1]) {
      at = node->inputs[0];
    } else if (f.guard && is(*node, "Where") && node->inputs[0] == f.guard->inputs[0] &&
               is_zero(node->inputs[1])) {
      at = node->inputs[2];
    } else {
      const auto p = product(*node);
      if (!p || p->transposes_a || !p->transposes_b || node->inputs[1] != f.output->inputs[1]) return false;
      weights_grad = node;
      f.output_gradient = node->inputs[0];
    }
  }
  if (!weights_grad) return false;
  for (const Node* node : readers(f.weights)) {
    const auto p = product(*node);
    if (p && p->transposes_a && !p->transposes_b && node->inputs[0] == f.weights &&
        node->inputs[1] == f.output_gradient)
      f.values_grad = node;
  }
  if (f.values_grad) f.take(f.values_grad);
  return true;
}

// Follows the forward pass back from the softmax to the product of queries and keys.
bool Matcher::find_scores(Found& f) const {
  constexpr int kScoreSteps = 8;
  std::string scores = f.softmax.inputs[0];
  f.gradient = f.softmax_gradient = f.softmax_grad ? f.softmax_grad->outputs[0] : "";
  bool is_scaled = false;
  // Other readers of a gradient, outside the match, need the gradient of the mask.
  const auto gradient_reader = [&](const std::function<bool(const Node&)>& wanted) -> const Node* {
    for (const Node* node : readers(f.gradient))
      if (wanted(*node)) return node;
    return nullptr;
  };
  for (int steps = 0; steps < kScoreSteps && !f.scores_product; ++steps) {
    const Node* node = maker(scores);
    if (!node) return false;
    f.take(node);
    if (product(*node)) {
      f.scores_product = node;
    } else if (const auto factor = scaled(*node)) {
      f.scale *= factor->second;
      is_scaled = true;
      scores = factor->first;
      if (!f.gradient.empty()) {
        const Node* back =
            gradient_reader([&](const Node& n) { return is_scaling(n, f.gradient, factor->second); });
        if (!back) return false;
        f.take(back);
        f.gradient = summed(back->outputs[0], scores, f.inside);
      }
    } else if (is(*node, "Add") && f.condition.empty() && !is_scaled) {
      const size_t side = leads_to_product(node->inputs[0]) ? 0 : 1;
      if (!leads_to_product(node->inputs[side])) return false;
      f.masks.push_back(node->inputs[1 - side]);
      scores = node->inputs[side];
      if (!f.gradient.empty()) f.gradient = summed(f.gradient, scores, f.inside);
    } else if (is(*node, "Where") && f.masks.empty() && f.condition.empty() && !is_scaled) {
      const size_t side = leads_to_product(node->inputs[1]) ? 1 : 2;
      const auto other = number(node->inputs[3 - side]);
      if (!leads_to_product(node->inputs[side]) || !other) return false;
      f.keeps = side == 1, f.replaced = *other;
      f.condition = node->inputs[0];
      scores = node->inputs[side];
      if (!f.gradient.empty()) {
        const Node* back = gradient_reader([&](const Node& n) {
          return is(n, "Where") && n.inputs[0] == f.condition && n.inputs[side] == f.gradient &&
                 is_zero(n.inputs[3 - side]);
        });
        if (!back) return false;
        f.take(back);
        f.gradient = summed(back->outputs[0], scores, f.inside);
      }
    } else {
      return false;
    }
  }
  return f.scores_product != nullptr && !product(*f.scores_product)->transposes_a;
}

// Finds the gradients of both operands of that product.
void Matcher::find_operand_gradients(Found& f) const {
  const std::string &left = f.scores_product->inputs[0], &right = f.scores_product->inputs[1];
  const Product p = *product(*f.scores_product);
  if (f.gradient.empty()) return;
  for (const Node* node : readers(f.gradient)) {
    const auto back = product(*node);
    if (!back) continue;
    if (node->inputs[0] == f.gradient && node->inputs[1] == right && !back->transposes_a &&
        back->transposes_b != p.transposes_b)
      f.left_grad = node;
    else if (!p.transposes_b && node->inputs[0] == left && node->inputs[1] == f.gradient &&
             back->transposes_a && !back->transposes_b)
      f.right_grad = node;
    else if (p.transposes_b && node->inputs[0] == f.gradient && node->inputs[1] == left &&
             back->transposes_a && !back->transposes_b)
      f.right_grad = node;
  }
  if (f.left_grad) f.take(f.left_grad);
  if (f.right_grad) f.take(f.right_grad);
}

// Finds the operands and results in the order in which they are stored.
bool Matcher::find_operands(Found& f) const {
  const Product p = *product(*f.scores_product);
  const std::string &left = f.scores_product->inputs[0], &right = f.scores_product->inputs[1];
  const auto axes_left = rank(left), axes_right = rank(right), axes_values = rank(f.output->inputs[1]);
  if (!axes_left || axes_left != axes_right || axes_left != axes_values ||
      (*axes_left != 3 && *axes_left != 4))
    return false;
  f.axes = *axes_left;
  for (const std::string& mask : f.masks)
    if (!rank(mask) || *rank(mask) > f.axes) return false;
  if (!f.condition.empty() && (!rank(f.condition) || *rank(f.condition) > f.axes)) return false;
  const int64_t axis = f.softmax.int_or("axis", opset_ >= since::kOneSoftmaxAxis ? -1 : 1);
  if (axis != -1 && axis != static_cast<int64_t>(f.axes) - 1) return false;
  f.plain.resize(f.axes);
  std::iota(f.plain.begin(), f.plain.end(), 0);
  Order swapped = f.plain;
  std::swap(swapped[f.axes - 1], swapped[f.axes - 2]);
  const auto output_of = [](const Node* node) { return node ? node->outputs[0] : ""; };
  f.q = follow(left, f.plain, output_of(f.left_grad));
  f.k = follow(right, p.transposes_b ? f.plain : swapped, output_of(f.right_grad));
  f.v = follow(f.output->inputs[1], f.plain, output_of(f.values_grad));
  return !f.q.value.empty() && !f.k.value.empty() && !f.v.value.empty() && f.v.scale == 1;
}

// Computes the shape of a value that is no longer produced from the shapes of other values.
void Matcher::replace_shapes(Found& f, const std::string& value,
                             const std::function<Axis(size_t)>& axis_of) const {
  for (const Node* node : readers(value))
    if (is(*node, "Shape")) f.match.shapes.push_back(shape_of(*node, f.axes, axis_of));
}

// Merges a transposition of the output into the attention.
void Matcher::take_transposition(Found& f) const {
  f.y = f.output->outputs[0], f.dy = f.output_gradient;
  f.y_order = f.plain;
  std::vector<const Node*> of_y;
  for (const Node* node : readers(f.y))
    if (!is(*node, "Shape")) of_y.push_back(node);
  if (of_y.size() == 1 && !graph_.is_output(f.y) && is(*of_y[0], "Transpose")) {
    const Node* transpose = of_y[0];
    const Order perm = transpose->ints_or("perm", {});
    const Node* back = f.dy.empty() ? nullptr : maker(f.dy);
    const bool mirrored = f.dy.empty() || (back && is(*back, "Transpose") && inner(f.dy, f.inside) &&
                                           back->ints_or("perm", {}) == inverse(perm));
    if (mirrored && perm.size() == f.axes && perm.back() == static_cast<int64_t>(f.axes) - 1) {
      const Order places = inverse(perm);
      replace_shapes(f, f.y, [&](size_t i) { return Axis{transpose->outputs[0], places[i]}; });
      f.y = transpose->outputs[0];
      f.y_order = perm;
      if (back) f.dy = back->inputs[0];
    }
  }
}

// Checks that no other node reads a value that is no longer produced. The fused node gives the gradient of
// the softmax's input to its other readers as the gradient of the mask.
bool Matcher::nothing_else_wanted(Found& f) const {
  const auto dim_of_scores = [&](size_t i) {
    return i + 1 < f.axes ? Axis{f.q.value, f.q.order[i]} : Axis{f.k.value, f.k.order[f.axes - 2]};
  };
  const auto has_shape_of_scores = [&](const std::string& value) {
    if (rank(value) != std::optional<size_t>(f.axes)) return false;
    for (size_t i = 0; i < f.axes; ++i) {
      const Axis from = dim_of_scores(i);
      const auto& of_scores = dims(from.value);
      if (!of_scores || !(*dims(value))[i].same(of_scores->at(static_cast<size_t>(from.axis)))) return false;
    }
    return true;
  };
  for (const Node* node : f.inside)
    for (const std::string& value : node->outputs) {
      if (value.empty() || node == f.output || node == f.left_grad || node == f.right_grad ||
          node == f.values_grad)
        continue;
      if (inner(value, f.inside)) continue;
      if (value == f.softmax_gradient && !f.masks.empty()) {
        f.wants_mask_gradient = true;
        continue;
      }
      const auto all = readers(value);
      const bool shapes_only = std::all_of(
          all.begin(), all.end(), [&](const Node* n) { return is(*n, "Shape") || contains(f.inside, n); });
      if (graph_.is_output(value) || !shapes_only || !has_shape_of_scores(value)) return false;
      replace_shapes(f, value, dim_of_scores);
    }
  return true;
}

// Writes the nodes that replace the match.
void Matcher::write_nodes(Found& f) const {
  Attributes attributes = {{"fused", int64_t{1}},
                           {"q_order", f.q.order},
                           {"k_order", f.k.order},
                           {"v_order", f.v.order},
                           {"y_order", f.y_order}};
  attributes["factor"] = Tensor::scalar(f.scale * f.q.scale * f.k.scale);
  std::string mask = f.condition;
  for (const std::string& added : f.masks) {
    if (mask.empty()) {
      mask = added;
      continue;
    }
    const std::string sum = concat(f.softmax.outputs[0], "_mask_", f.match.before.size());
    f.match.before.push_back({"", "Add", sum, {added, mask}, {graph_.unique_name(sum)}, {}});
    mask = f.match.before.back().outputs[0];
  }
  if (!f.condition.empty()) {
    attributes["replaced"] = static_cast<float>(f.replaced);
    if (!f.keeps) attributes["inverted_mask"] = int64_t{1};
  }
  const bool drops = f.dropout && f.dropout->has_input(2);
  if (drops) {
    attributes["stream"] = static_cast<int64_t>(std::hash<std::string>{}(f.dropout->outputs[0]));
    if (f.dropout->has("seed")) attributes["seed"] = f.dropout->int_or("seed", 0);
  }
  const std::string base = f.softmax.outputs[0];
  const std::string kept = f.softmax_grad ? graph_.unique_name(base + "_kept") : "";
  const std::string key = f.softmax_grad && drops ? graph_.unique_name(base + "_dropout_key") : "";
  const std::string ratio = drops && f.dropout->has_input(1) ? f.dropout->inputs[1] : "";
  const std::string training = drops ? f.dropout->inputs[2] : "";
  const auto trim = [](std::vector<std::string> names) {
    while (!names.empty() && names.back().empty()) names.pop_back();
    return names;
  };
  f.match.forward = {kMicrosoft,
                     drops ? "FusedDropoutAttention" : "FusedAttention",
                     f.softmax.name,
                     trim({f.q.value, f.k.value, f.v.value, mask, ratio, training}),
                     trim({f.y, kept, key}),
                     attributes};
  if (f.softmax_grad) {
    f.match.backward = {
        kMicrosoft,
        "AttentionGrad",
        f.softmax_grad->name,
        trim({f.dy, f.q.value, f.k.value, f.v.value, mask, "", kept, "", ratio, training, key}),
        trim({f.q.gradient, f.k.gradient, f.v.gradient, f.wants_mask_gradient ? f.softmax_gradient : ""}),
        attributes};
  }
}

std::optional<Matcher::Match> Matcher::match(const Node& softmax) const {
  Found f{softmax};
  f.inside.push_back(&softmax);
  if (!find_output(f) || !find_output_gradient(f) || !find_scores(f)) return std::nullopt;
  find_operand_gradients(f);
  if (!find_operands(f)) return std::nullopt;
  take_transposition(f);
  if (!nothing_else_wanted(f)) return std::nullopt;
  write_nodes(f);
  return std::move(f.match);
}

}  // namespace

bool fuse_attention(Model& model) {
  Graph& graph = model.graph;
  const auto is_softmax = [](const Node& node) { return is(node, "Softmax"); };
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(), is_softmax)) return false;
  std::vector<Matcher::Match> found;
  {
    const Matcher matcher(model);
    for (const Node& node : graph.nodes)
      if (is_softmax(node))
        if (auto match = matcher.match(node)) found.push_back(std::move(*match));
  }
  if (found.empty()) return false;
  std::unordered_map<std::string, size_t> producer;
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (const std::string& output : graph.nodes[n].outputs)
      if (!output.empty()) producer[output] = n;
  // A new node takes the place of the first node whose result it produces. Its inputs are available by then,
  // except for a shape, which may have to wait.
  std::vector<bool> gone(graph.nodes.size(), false);
  std::unordered_map<size_t, std::vector<Node>> made;
  const auto place = [&](Node node, std::vector<Node> before = {}) {
    size_t first = graph.nodes.size();
    for (const std::string& value : node.outputs)
      if (const auto at = producer.find(value); at != producer.end()) {
        gone[at->second] = true;
        first = std::min(first, at->second);
      }
    if (first == graph.nodes.size()) return;
    before.push_back(std::move(node));
    std::move(before.begin(), before.end(), std::back_inserter(made[first]));
  };
  for (Matcher::Match& match : found) {
    place(std::move(match.forward), std::move(match.before));
    place(std::move(match.backward));
    for (auto& [shape, parts] : match.shapes) place(std::move(shape), std::move(parts));
  }
  std::vector<Node> nodes;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (const auto at = made.find(n); at != made.end())
      std::move(at->second.begin(), at->second.end(), std::back_inserter(nodes));
    if (!gone[n]) nodes.push_back(std::move(graph.nodes[n]));
  }
  graph.nodes = std::move(nodes);
  graph.sort();
  model.opsets.emplace(kMicrosoft, 1);
  return true;
}

}  // namespace ortrain
