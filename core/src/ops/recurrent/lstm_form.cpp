// LSTM in training with operators of ONNX (ops/recurrent/recurrent_form.h). Gates in the order i, o, f, c~.
#include "ops/recurrent/recurrent_form.h"

namespace ortrain {
namespace {

const std::vector<std::string_view> kActivations = {"Sigmoid", "Tanh", "Tanh"};

// The functions of a direction, and the settings of its gates.
struct Cell {
  ActivationForm gate, candidate, shown;
  bool coupled;     // f = 1 - i
  Names peepholes;  // of i, o and f; none if the layer has none

  Cell(const RecurrentForm& layer, int64_t d, size_t peepholes_at)
      : gate(layer.activation(d, 0)),
        candidate(layer.activation(d, 1)),
        shown(layer.activation(d, 2, false)),
        coupled(layer.e_.node().int_or("input_forget", 0) != 0) {
    if (!layer.e_.has_x(peepholes_at)) return;
    const Name all = layer.weights(peepholes_at, d);
    for (int64_t k = 0; k < 3; ++k) peepholes.push_back(layer.gates(all, k, k + 1));
  }
};

// Cells and gates of all steps where the gates do not read the cells: only the cells go from step to step.
std::pair<Name, Name> independent_gates(const RecurrentForm& layer, int64_t d, const Cell& cell,
                                        Name arguments, Name initial) {
  DecompositionContext& e = layer.e_;
  const Name open = cell.gate.apply(e, layer.gates(arguments, 0, cell.coupled ? 2 : 3)),
             candidate = cell.candidate.apply(e, layer.gates(arguments, 3, 4)), i = layer.gates(open, 0, 1);
  const Name forget = cell.coupled ? e("Sub", {layer.one(), i}) : layer.gates(open, 2, 3);
  Names parts = {open, candidate};
  if (cell.coupled) parts.insert(parts.begin() + 1, forget);
  ScanBody body(e, concat(e.y(0).empty() ? e.x(0) : e.y(0), "/cells/", d));
  const Name c = body.input(), kept = body.input(), added = body.input(),
             mask = layer.mask().empty() ? "" : body.input_bool();
  const Name next = body.where(mask, body.add(body.mul(kept, c), added), c);
  body.output(next);
  body.output(body("Identity", {next}));
  Names sequences = {forget, e("Mul", {i, candidate})};
  if (!mask.empty()) sequences.push_back(layer.mask());
  return {layer.scan(body, {initial}, sequences, layer.backward(d), 1)[1],
          e("Concat", parts, {{"axis", int64_t{-1}}})};
}

// Cells and gates of all steps where the gates read the cells (peepholes).
std::pair<Name, Name> peeping_gates(const RecurrentForm& layer, int64_t d, const Cell& cell, Name arguments,
                                    Name initial) {
  DecompositionContext& e = layer.e_;
  const Name sizes = e.int64s(std::vector<int64_t>(4, layer.hidden()));
  ScanBody body(e, concat(e.y(0).empty() ? e.x(0) : e.y(0), "/cells/", d));
  const Name c = body.input(), of_gates = body.input(), mask = layer.mask().empty() ? "" : body.input_bool();
  const Names a = body.emit("Split", {of_gates, sizes}, 4, {{"axis", int64_t{-1}}});
  const auto gate = [&](size_t k, const std::string& seen) {
    return cell.gate.apply(body, body.add(a[k == 0 ? 0 : k == 1 ? 1 : 2], body.mul(cell.peepholes[k], seen)));
  };
  const Name i = gate(0, c), forget = cell.coupled ? body.sub(layer.one(), i) : gate(2, c),
             candidate = cell.candidate.apply(body, a[3]);
  const Name next = body.where(mask, body.add(body.mul(forget, c), body.mul(i, candidate)), c);
  body.output(next);
  body.output(body("Identity", {next}));
  body.output(body("Concat", {i, gate(1, next), forget, candidate}, {{"axis", int64_t{-1}}}));
  Names sequences = {arguments};
  if (!mask.empty()) sequences.push_back(layer.mask());
  const Names results = layer.scan(body, {initial}, sequences, layer.backward(d), 2);
  return {results[1], results[2]};
}

void training_form(DecompositionContext& e) {
  const RecurrentForm layer(e, 4, kActivations, 4);
  const Names y = layer.forward("LSTM", 3);
  for (size_t o = 0; o < 3; ++o) e.set(o, y[o]);
  if (!e.has_y(3) && !e.has_y(4)) return;
  Names all_gates, all_cells;
  for (int64_t d = 0; d < layer.directions(); ++d) {
    const Cell cell(layer, d, 7);
    const Name h = layer.result(y[0], d), like = layer.one_step(h), initial = layer.state(6, d, like);
    const Name arguments = layer.arguments(d, layer.previous(h, layer.state(5, d, like), d), 0, 4);
    const auto [cells, gates] = cell.peepholes.empty() ? independent_gates(layer, d, cell, arguments, initial)
                                                       : peeping_gates(layer, d, cell, arguments, initial);
    all_cells.push_back(cells);
    all_gates.push_back(gates);
  }
  if (e.has_y(3)) e.set(3, layer.joined_kept(all_cells));
  if (e.has_y(4)) e.set(4, layer.joined_kept(all_gates));
}

// One step of the backward pass. Its states are the gradients of state and cell.
ScanBody backward_step(const RecurrentForm& layer, int64_t d, const Cell& cell) {
  DecompositionContext& e = layer.e_;
  const Name sizes = e.int64s(std::vector<int64_t>(4, layer.hidden())), zero = e.scalar_like(e.x(0), 0);
  ScanBody body(e, concat(e.y(0).empty() ? e.x(0) : e.y(0), "/steps/", d));
  const Name dh = body.input(), dc = body.input(), dy = body.input(), gates = body.input(),
             now = body.input(), before = body.input(), mask = layer.mask().empty() ? "" : body.input_bool();
  const Names g = body.emit("Split", {gates, sizes}, 4, {{"axis", int64_t{-1}}});
  const std::string &i = g[0], &o = g[1], &f = g[2], &candidate = g[3];
  const Name incoming = body.add(dh, dy), shown = cell.shown.apply(body, now);
  const Name d_o = cell.gate.scaled(body, body.mul(incoming, shown), o);
  Name of_cell = body.add(dc, cell.shown.scaled(body, body.mul(incoming, o), shown));
  if (!cell.peepholes.empty()) of_cell = body.add(of_cell, body.mul(cell.peepholes[1], d_o));
  Name di = body.mul(of_cell, candidate), df = body.mul(of_cell, before);
  if (cell.coupled) {
    di = body.sub(di, df);
    df = body.mul(df, zero);
  } else {
    df = cell.gate.scaled(body, df, f);
  }
  di = cell.gate.scaled(body, di, i);
  Name passed = body.mul(of_cell, f);
  if (!cell.peepholes.empty())
    passed = body.add(passed, body.add(body.mul(cell.peepholes[0], di), body.mul(cell.peepholes[2], df)));
  const Name all = body("Concat", {di, d_o, df, cell.candidate.scaled(body, body.mul(of_cell, i), candidate)},
                        {{"axis", int64_t{-1}}});
  const Name changes = body.where(mask, all, zero);
  body.output(body.where(mask, body("MatMul", {changes, layer.weights(2, d)}), dh));
  body.output(body.where(mask, passed, dc));
  body.output(changes);
  return body;
}

void grad_form(DecompositionContext& e) {
  const RecurrentForm layer(e, 4, kActivations, 3);
  WeightGradients gradients{layer, {}, {}, {}, {}, ""};
  Names initial_cells, peepholes;
  for (int64_t d = 0; d < layer.directions(); ++d) {
    const Cell cell(layer, d, 12);
    const Name h = layer.result(e.x(6), d), cells = layer.kept(e.x(7), d), like = layer.one_step(h);
    const Name before = layer.previous(h, layer.state(4, d, like), d),
               last_cells = layer.previous(cells, layer.state(5, d, like), d);
    Names sequences = {layer.result_or_zeros(9, d, h), layer.kept(e.x(8), d), cells, last_cells};
    if (!layer.mask().empty()) sequences.push_back(layer.mask());
    const Names results =
        layer.scan(backward_step(layer, d, cell), {layer.state(10, d, like), layer.state(11, d, like)},
                   sequences, !layer.backward(d), 1);
    const Name changes = results[2];
    gradients.add(d, changes, changes, layer.product_of_rows(changes, before), results[0]);
    initial_cells.push_back(results[1]);
    if (!e.has_y(6)) continue;
    const Name seen = e("Concat", {last_cells, cells, last_cells}, {{"axis", int64_t{-1}}});
    peepholes.push_back(e.reduce_sum(e("Mul", {layer.gates(changes, 0, 3), seen}), {0, 1}, false));
  }
  gradients.set();
  if (e.has_y(5)) e.set(5, layer.swapped(layer.joined(initial_cells)));
  if (e.has_y(6)) e.set(6, layer.joined(peepholes));
}

void plain_form(DecompositionContext& e) { forward_form<3>(e, "LSTM", 4, kActivations); }

ORTRAIN_OPERATOR_FACT(StandardForm, "", "LSTM", {cold<plain_form>, is_batch_first});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "LSTMTraining", {cold<training_form>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "LSTMGrad", {cold<grad_form>});

}  // namespace
}  // namespace ortrain
