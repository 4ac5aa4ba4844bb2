// LSTM, GRU and RNN in training with operators of ONNX (op/standard_form.h).
//
// The forward pass stays one node. All states are known after it, so the gates of all steps follow from a few
// matrix products; only the cells of an LSTM, and the gradients of the states, go from step to step, in a
// Scan.
#include <algorithm>
#include <functional>
#include <memory>

#include "op/gradient_expression.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"

namespace ortrain {
namespace {

using Names = std::vector<std::string>;

// Writes the body of a Scan. Values of the graph around it can be read.
class Body {
 public:
  Body(DecompositionContext& e, const std::string& prefix) : prefix_(prefix), type_(e.dtype(e.x(0))) {}

  std::string input() { return declared(graph_->inputs); }
  std::string operator()(const std::string& type, const Names& inputs, const Attributes& attributes = {}) {
    return emit(type, inputs, 1, attributes)[0];
  }
  Names emit(const std::string& type, const Names& inputs, size_t count, const Attributes& attributes) {
    Node node{"", type, unique(), inputs, {}, attributes};
    for (size_t o = 0; o < count; ++o) node.outputs.push_back(unique());
    graph_->nodes.push_back(node);
    return node.outputs;
  }
  void output(const std::string& value) { graph_->outputs.push_back({value, type_, std::nullopt}); }
  Attribute graph() const { return graph_; }

  std::string add(const std::string& a, const std::string& b) { return (*this)("Add", {a, b}); }
  std::string mul(const std::string& a, const std::string& b) { return (*this)("Mul", {a, b}); }
  std::string sub(const std::string& a, const std::string& b) { return (*this)("Sub", {a, b}); }

 private:
  std::string unique() { return concat(prefix_, "/", number_++); }
  std::string declared(std::vector<ValueInfo>& values) {
    values.push_back({unique(), type_, std::nullopt});
    return values.back().name;
  }

  std::string prefix_;
  DType type_;
  int number_ = 0;
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>(Graph{.name = "step"});
};

// A layer of which all is one direction.
class Layer {
 public:
  Layer(DecompositionContext& e, int64_t gates) : e_(e), gates_(gates) {
    const Node& node = e.node();
    const auto r = e.dims(e.x(2));
    if (!r || r->size() != 3 || !(*r)[0].known() || !(*r)[2].known())
      e.reject("the shape of its weights R is not known");
    directions_ = (*r)[0].value, hidden_ = (*r)[2].value;
    for (const char* name : {"activations", "clip", "activation_alpha", "activation_beta"})
      if (node.has(name))
        e.reject(concat("with the attribute ", name, ", its gradient has no standard form"));
    if (node.int_or("layout", 0) != 0 || node.int_or("input_forget", 0) != 0)
      e.reject("with layout or input_forget, its gradient has no standard form");
  }
  void reject_input(size_t i, const char* name) const {
    if (e_.has_x(i)) e_.reject(concat("with the input ", name, ", its gradient has no standard form"));
  }

  int64_t directions() const { return directions_; }
  int64_t hidden() const { return hidden_; }
  bool backward(int64_t d) const {
    return d == 1 || e_.node().string_or("direction", "forward") == "reverse";
  }

  // The part of a value that belongs to a direction, without that axis.
  std::string part(const std::string& value, int64_t axis, int64_t d) const {
    if (directions_ == 1) return e_.squeeze(value, {axis});
    return e_("Gather", {value, e_.constant(Tensor::scalar(d))}, {{"axis", axis}});
  }
  std::string joined(const Names& parts, int64_t axis) const {
    Names raised;
    for (const std::string& value : parts) raised.push_back(e_.unsqueeze(value, {axis}));
    return raised.size() == 1 ? raised[0] : e_("Concat", raised, {{"axis", axis}});
  }
  // What the forward pass keeps: the axis of directions is the second for one, else the first.
  int64_t kept_axis() const { return directions_ == 1 ? 1 : 0; }

  std::string transposed(const std::string& matrix) const {
    return e_("Transpose", {matrix}, {{"perm", std::vector<int64_t>{1, 0}}});
  }
  // The elements [first, last) of the last axis, in units of the hidden size.
  std::string gates(const std::string& value, int64_t first, int64_t last) const {
    return e_("Slice", {value, e_.int64s({first * hidden_}), e_.int64s({last * hidden_}), e_.int64s({-1})});
  }
  std::string rows(const std::string& value, int64_t first, int64_t last) const {
    return e_("Slice", {value, e_.int64s({first}), e_.int64s({last}), e_.int64s({0})});
  }
  std::string zeros_like(const std::string& value) const {
    return e_("Expand", {e_.scalar_like(e_.x(0), 0), e_("Shape", {value})});
  }
  // A state [D, B, H] of a direction, zeros if it is left out.
  std::string state(size_t i, int64_t d, const std::string& like) const {
    return e_.has_x(i) ? part(e_.x(i), 0, d) : zeros_like(like);
  }
  // The values [T, B, H] one step before, which begin with `initial` [B, H].
  std::string previous(const std::string& values, const std::string& initial, int64_t d) const {
    const std::string first = e_.unsqueeze(initial, {0});
    return backward(d) ? e_("Concat", {rows(values, 1, INT64_MAX), first}, {{"axis", int64_t{0}}})
                       : e_("Concat", {first, rows(values, 0, -1)}, {{"axis", int64_t{0}}});
  }
  std::string one_step(const std::string& values) const { return e_.squeeze(rows(values, 0, 1), {0}); }
  // W's or R's part of the bias, or both added.
  std::string bias(const std::string& all, int64_t first, int64_t last, bool recurrent) const {
    const int64_t from = (recurrent ? gates_ : 0);
    return e_("Slice", {all, e_.int64s({(from + first) * hidden_}), e_.int64s({(from + last) * hidden_}),
                        e_.int64s({0})});
  }
  // `value` is [T, B, n]: aᵀ b over all steps and samples.
  std::string product_of_rows(const std::string& a, const std::string& b) const {
    return e_("MatMul", {transposed(flat(a)), flat(b)});
  }
  std::string flat(const std::string& value) const { return e_("Flatten", {value}, {{"axis", int64_t{2}}}); }

  Names scan(const Body& body, const Names& states, const Names& sequences, bool from_end,
             size_t outputs) const {
    Names inputs = states;
    inputs.insert(inputs.end(), sequences.begin(), sequences.end());
    return e_.emit("Scan", inputs, states.size() + outputs,
                   {{"body", body.graph()},
                    {"num_scan_inputs", static_cast<int64_t>(sequences.size())},
                    {"scan_input_directions", std::vector<int64_t>(sequences.size(), from_end)},
                    {"scan_output_directions", std::vector<int64_t>(outputs, from_end)}});
  }

  DecompositionContext& e_;
  int64_t gates_, directions_ = 1, hidden_ = 1;
};

// X Wᵀ + H Rᵀ + bias for the gates [first, last) of all steps; without H, or without a bias, that part is
// left out.
std::string gate_arguments(const Layer& layer, int64_t d, const std::string& h, int64_t first, int64_t last,
                           bool recurrent_bias = true) {
  DecompositionContext& e = layer.e_;
  const auto weights = [&](size_t i) {
    const std::string all = layer.part(e.x(i), 0, d);
    return layer.transposed(layer.rows(all, first * layer.hidden(), last * layer.hidden()));
  };
  std::string sum = e("MatMul", {e.x(0), weights(1)});
  if (!h.empty()) sum = e("Add", {sum, e("MatMul", {h, weights(2)})});
  if (e.has_x(3)) {
    const std::string all = layer.part(e.x(3), 0, d);
    sum = e("Add", {sum, layer.bias(all, first, last, false)});
    if (recurrent_bias) sum = e("Add", {sum, layer.bias(all, first, last, true)});
  }
  return sum;
}

// The sums over all steps and samples that are the gradients of the weights.
struct WeightGradients {
  const Layer& layer;
  Names w, r, b, initial;
  std::string x;

  // `of_w` and `of_r` are the gradients of what W and R contribute to the gates.
  void add(int64_t d, const std::string& of_w, const std::string& of_r, const std::string& r_gradient,
           const std::string& initial_gradient) {
    DecompositionContext& e = layer.e_;
    const std::string through = e("MatMul", {of_w, layer.part(e.x(1), 0, d)});
    x = x.empty() ? through : e("Add", {x, through});
    w.push_back(layer.product_of_rows(of_w, e.x(0)));
    r.push_back(r_gradient);
    const std::string sum = e.reduce_sum(of_w, {0, 1}, false);
    b.push_back(
        e("Concat", {sum, of_r == of_w ? sum : e.reduce_sum(of_r, {0, 1}, false)}, {{"axis", int64_t{0}}}));
    initial.push_back(initial_gradient);
  }
  void set() const {
    DecompositionContext& e = layer.e_;
    if (e.has_y(0)) e.set(0, x);
    const Names* parts[] = {&w, &r, &b, &initial};
    for (size_t o = 0; o < 4; ++o)
      if (e.has_y(o + 1)) e.set(o + 1, layer.joined(*parts[o], 0));
  }
};

// ---------------------------------------------------------------------------------------------------------
// LSTM. Gates in the order i, o, f, c~.

void lstm_form(DecompositionContext& e) {
  const Layer layer(e, 4);
  layer.reject_input(4, "sequence_lens");
  layer.reject_input(7, "P");
  const Names y = e.emit("LSTM", e.node().inputs, 3, e.node().attributes);
  for (size_t o = 0; o < 3; ++o) e.set(o, y[o]);
  if (!e.has_y(3) && !e.has_y(4)) return;
  Names all_gates, all_cells;
  for (int64_t d = 0; d < layer.directions(); ++d) {
    const std::string h = layer.part(y[0], 1, d), like = layer.one_step(h);
    const std::string arguments =
        gate_arguments(layer, d, layer.previous(h, layer.state(5, d, like), d), 0, 4);
    const std::string open = e("Sigmoid", {layer.gates(arguments, 0, 3)}),
                      candidate = e("Tanh", {layer.gates(arguments, 3, 4)});
    all_gates.push_back(e("Concat", {open, candidate}, {{"axis", int64_t{-1}}}));
    Body body(e, concat(e.y(0), "/cells/", d));
    const std::string c = body.input(), kept = body.input(), added = body.input();
    const std::string next = body.add(body.mul(kept, c), added);
    body.output(next);
    body.output(body("Identity", {next}));
    const std::string input = e("Mul", {layer.gates(open, 0, 1), candidate});
    all_cells.push_back(layer.scan(body, {layer.state(6, d, like)}, {layer.gates(open, 2, 3), input},
                                   layer.backward(d), 1)[1]);
  }
  if (e.has_y(3)) e.set(3, layer.joined(all_cells, layer.kept_axis()));
  if (e.has_y(4)) e.set(4, layer.joined(all_gates, layer.kept_axis()));
}

void lstm_grad_form(DecompositionContext& e) {
  const Layer layer(e, 4);
  layer.reject_input(3, "sequence_lens");
  layer.reject_input(12, "P");
  const std::string one = e.scalar_like(e.x(0), 1), sizes = e.int64s(std::vector<int64_t>(4, layer.hidden()));
  WeightGradients gradients{layer, {}, {}, {}, {}, ""};
  Names initial_cells;
  for (int64_t d = 0; d < layer.directions(); ++d) {
    const std::string h = layer.part(e.x(6), 1, d), cells = layer.part(e.x(7), layer.kept_axis(), d),
                      kept = layer.part(e.x(8), layer.kept_axis(), d), like = layer.one_step(h);
    const std::string before = layer.previous(h, layer.state(4, d, like), d);
    const std::string r = layer.part(e.x(2), 0, d);
    Body body(e, concat(e.y(0).empty() ? e.x(0) : e.y(0), "/steps/", d));
    const std::string dh = body.input(), dc = body.input(), dy = body.input(), gates = body.input(),
                      cell = body.input(), last_cell = body.input();
    const Names g = body.emit("Split", {gates, sizes}, 4, {{"axis", int64_t{-1}}});
    const std::string &i = g[0], &o = g[1], &f = g[2], &candidate = g[3];
    const auto sigmoid = [&](const std::string& by, const std::string& value) {
      return body.mul(by, body.mul(value, body.sub(one, value)));
    };
    const auto tanh = [&](const std::string& by, const std::string& value) {
      return body.mul(by, body.sub(one, body.mul(value, value)));
    };
    const std::string incoming = body.add(dh, dy), shown = body("Tanh", {cell});
    const std::string of_cell = body.add(dc, tanh(body.mul(incoming, o), shown));
    const std::string changes =
        body("Concat",
             {sigmoid(body.mul(of_cell, candidate), i), sigmoid(body.mul(incoming, shown), o),
              sigmoid(body.mul(of_cell, last_cell), f), tanh(body.mul(of_cell, i), candidate)},
             {{"axis", int64_t{-1}}});
    body.output(body("MatMul", {changes, r}));
    body.output(body.mul(of_cell, f));
    body.output(changes);
    const std::string dy_all = e.has_x(9) ? layer.part(e.x(9), 1, d) : layer.zeros_like(h);
    const Names results = layer.scan(body, {layer.state(10, d, like), layer.state(11, d, like)},
                                     {dy_all, kept, cells, layer.previous(cells, layer.state(5, d, like), d)},
                                     !layer.backward(d), 1);
    gradients.add(d, results[2], results[2], layer.product_of_rows(results[2], before), results[0]);
    initial_cells.push_back(results[1]);
  }
  gradients.set();
  if (e.has_y(5)) e.set(5, layer.joined(initial_cells, 0));
}

// ---------------------------------------------------------------------------------------------------------
// GRU. Gates in the order z, r, h.

void gru_form(DecompositionContext& e) {
  const Layer layer(e, 3);
  layer.reject_input(4, "sequence_lens");
  const Names y = e.emit("GRU", e.node().inputs, 2, e.node().attributes);
  e.set(0, y[0]);
  e.set(1, y[1]);
  if (!e.has_y(2)) return;
  const bool linear = e.node().int_or("linear_before_reset", 0) != 0;
  Names all_gates;
  for (int64_t d = 0; d < layer.directions(); ++d) {
    const std::string h = layer.part(y[0], 1, d);
    const std::string before = layer.previous(h, layer.state(5, d, layer.one_step(h)), d);
    const std::string open = e("Sigmoid", {gate_arguments(layer, d, before, 0, 2)});
    const std::string reset = layer.gates(open, 1, 2);
    std::string argument;
    if (linear) {
      const std::string weights = layer.rows(layer.part(e.x(2), 0, d), 2 * layer.hidden(), INT64_MAX);
      std::string s = e("MatMul", {before, layer.transposed(weights)});
      if (e.has_x(3)) s = e("Add", {s, layer.bias(layer.part(e.x(3), 0, d), 2, 3, true)});
      argument = e("Add", {gate_arguments(layer, d, "", 2, 3, false), e("Mul", {reset, s})});
    } else {
      argument = gate_arguments(layer, d, e("Mul", {reset, before}), 2, 3);
    }
    all_gates.push_back(e("Concat", {open, e("Tanh", {argument})}, {{"axis", int64_t{-1}}}));
  }
  e.set(2, layer.joined(all_gates, layer.kept_axis()));
}

void gru_grad_form(DecompositionContext& e) {
  const Layer layer(e, 3);
  layer.reject_input(4, "sequence_lens");
  const bool linear = e.node().int_or("linear_before_reset", 0) != 0;
  const std::string one = e.scalar_like(e.x(0), 1), sizes = e.int64s(std::vector<int64_t>(3, layer.hidden()));
  WeightGradients gradients{layer, {}, {}, {}, {}, ""};
  for (int64_t d = 0; d < layer.directions(); ++d) {
    const std::string h = layer.part(e.x(6), 1, d), kept = layer.part(e.x(7), layer.kept_axis(), d),
                      like = layer.one_step(h), r = layer.part(e.x(2), 0, d);
    const std::string before = layer.previous(h, layer.state(5, d, like), d);
    const std::string of_gates = layer.rows(r, 0, 2 * layer.hidden()),
                      of_candidate = layer.rows(r, 2 * layer.hidden(), INT64_MAX);
    std::string s;
    if (linear) {
      s = e("MatMul", {before, layer.transposed(of_candidate)});
      if (e.has_x(3)) s = e("Add", {s, layer.bias(layer.part(e.x(3), 0, d), 2, 3, true)});
    }
    Body body(e, concat(e.y(0).empty() ? e.x(0) : e.y(0), "/steps/", d));
    const std::string dh = body.input(), dy = body.input(), gates = body.input(), last = body.input(),
                      product = linear ? body.input() : "";
    const Names g = body.emit("Split", {gates, sizes}, 3, {{"axis", int64_t{-1}}});
    const std::string &z = g[0], &reset = g[1], &candidate = g[2];
    const auto sigmoid = [&](const std::string& by, const std::string& value) {
      return body.mul(by, body.mul(value, body.sub(one, value)));
    };
    const std::string incoming = body.add(dh, dy);
    const std::string of_z = sigmoid(body.mul(incoming, body.sub(last, candidate)), z);
    const std::string of_n =
        body.mul(body.mul(incoming, body.sub(one, z)), body.sub(one, body.mul(candidate, candidate)));
    const std::string through = body("MatMul", {linear ? body.mul(of_n, reset) : of_n, of_candidate});
    const std::string of_r = sigmoid(linear ? body.mul(of_n, product) : body.mul(through, last), reset);
    const std::string both = body("Concat", {of_z, of_r}, {{"axis", int64_t{-1}}});
    const std::string kept_state =
        body.add(body.mul(incoming, z), linear ? through : body.mul(through, reset));
    body.output(body.add(kept_state, body("MatMul", {both, of_gates})));
    body.output(body("Concat", {both, of_n}, {{"axis", int64_t{-1}}}));
    Names sequences = {e.has_x(8) ? layer.part(e.x(8), 1, d) : layer.zeros_like(h), kept, before};
    if (linear) sequences.push_back(s);
    const Names results = layer.scan(body, {layer.state(9, d, like)}, sequences, !layer.backward(d), 1);
    const std::string open = layer.gates(results[1], 0, 2), inner = layer.gates(results[1], 2, 3);
    const std::string all_resets = layer.gates(kept, 1, 2);
    const std::string of_s = linear ? e("Mul", {inner, all_resets}) : inner;
    const std::string of_r_weights =
        e("Concat",
          {layer.product_of_rows(open, before),
           layer.product_of_rows(of_s, linear ? before : e("Mul", {all_resets, before}))},
          {{"axis", int64_t{0}}});
    const std::string recurrent = linear ? e("Concat", {open, of_s}, {{"axis", int64_t{-1}}}) : results[1];
    gradients.add(d, results[1], recurrent, of_r_weights, results[0]);
  }
  gradients.set();
}

// ---------------------------------------------------------------------------------------------------------
// RNN.

void rnn_grad_form(DecompositionContext& e) {
  const Layer layer(e, 1);
  layer.reject_input(3, "sequence_lens");
  const std::string one = e.scalar_like(e.x(0), 1);
  WeightGradients gradients{layer, {}, {}, {}, {}, ""};
  for (int64_t d = 0; d < layer.directions(); ++d) {
    const std::string h = layer.part(e.x(5), 1, d), like = layer.one_step(h), r = layer.part(e.x(2), 0, d);
    const std::string before = layer.previous(h, layer.state(4, d, like), d);
    Body body(e, concat(e.y(0).empty() ? e.x(0) : e.y(0), "/steps/", d));
    const std::string dh = body.input(), dy = body.input(), y = body.input();
    const std::string change = body.mul(body.add(dh, dy), body.sub(one, body.mul(y, y)));
    body.output(body("MatMul", {change, r}));
    body.output(change);
    const std::string dy_all = e.has_x(6) ? layer.part(e.x(6), 1, d) : layer.zeros_like(h);
    const Names results = layer.scan(body, {layer.state(7, d, like)}, {dy_all, h}, !layer.backward(d), 1);
    gradients.add(d, results[1], results[1], layer.product_of_rows(results[1], before), results[0]);
  }
  gradients.set();
}

ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "LSTMTraining", {lstm_form});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "LSTMGrad", {lstm_grad_form});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "GRUTraining", {gru_form});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "GRUGrad", {gru_grad_form});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "RNNGrad", {rnn_grad_form});

}  // namespace
}  // namespace ortrain
