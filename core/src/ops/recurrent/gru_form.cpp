// GRU in training with operators of ONNX (ops/recurrent/recurrent_form.h). Gates in the order z, r, h.
#include "ops/recurrent/recurrent_form.h"

namespace ortrain {
namespace {

const std::vector<std::string_view> kActivations = {"Sigmoid", "Tanh"};

bool resets_product(const NodeWriter& e) { return e.node().int_or("linear_before_reset", 0) != 0; }

Name candidate_weights(const RecurrentForm& layer, int64_t d) {
  return layer.rows(layer.weights(2, d), 2 * layer.hidden(), INT64_MAX);
}

// H Rhᵀ + Rbh of all steps, which the reset gate multiplies with linear_before_reset.
Name candidate_product(const RecurrentForm& layer, int64_t d, Name before) {
  DecompositionContext& e = layer.e_;
  const Name product = e("MatMul", {before, layer.transposed(candidate_weights(layer, d))});
  return e.has_x(3) ? e("Add", {product, layer.bias(d, 2, 3, true)}) : product;
}

void training_form(DecompositionContext& e) {
  const RecurrentForm layer(e, 3, kActivations, 4);
  const Names y = layer.forward("GRU", 2);
  e.set(0, y[0]);
  e.set(1, y[1]);
  if (!e.has_y(2)) return;
  Names all_gates;
  for (int64_t d = 0; d < layer.directions(); ++d) {
    const Name h = layer.result(y[0], d);
    const Name before = layer.previous(h, layer.state(5, d, layer.one_step(h)), d);
    const Name open = layer.activation(d, 0).apply(e, layer.arguments(d, before, 0, 2));
    const Name reset = layer.gates(open, 1, 2);
    const Name argument = resets_product(e)
                              ? e("Add", {layer.arguments(d, "", 2, 3, false),
                                          e("Mul", {reset, candidate_product(layer, d, before)})})
                              : layer.arguments(d, e("Mul", {reset, before}), 2, 3);
    all_gates.push_back(
        e("Concat", {open, layer.activation(d, 1).apply(e, argument)}, {{"axis", int64_t{-1}}}));
  }
  e.set(2, layer.joined_kept(all_gates));
}

// One step of the backward pass. Its state is the gradient of the layer's state.
ScanBody backward_step(const RecurrentForm& layer, int64_t d) {
  DecompositionContext& e = layer.e_;
  const bool linear = resets_product(e);
  const Name sizes = e.int64s(std::vector<int64_t>(3, layer.hidden())),
             of_gates = layer.rows(layer.weights(2, d), 0, 2 * layer.hidden()),
             of_candidate = candidate_weights(layer, d);
  const ActivationForm gate = layer.activation(d, 0), inner = layer.activation(d, 1);
  ScanBody body(e, concat(e.y(0).empty() ? e.x(0) : e.y(0), "/steps/", d));
  const Name dh = body.input(), dy = body.input(), gates = body.input(), last = body.input(),
             product = linear ? body.input() : "", mask = layer.mask().empty() ? "" : body.input_bool();
  const Names g = body.emit("Split", {gates, sizes}, 3, {{"axis", int64_t{-1}}});
  const std::string &z = g[0], &reset = g[1], &candidate = g[2];
  const Name incoming = body.add(dh, dy);
  const Name of_z = gate.scaled(body, body.mul(incoming, body.sub(last, candidate)), z);
  const Name of_n = inner.scaled(body, body.mul(incoming, body.sub(layer.one(), z)), candidate);
  const Name through = body("MatMul", {linear ? body.mul(of_n, reset) : of_n, of_candidate});
  const Name of_r = gate.scaled(body, linear ? body.mul(of_n, product) : body.mul(through, last), reset);
  const Name both = body("Concat", {of_z, of_r}, {{"axis", int64_t{-1}}});
  const Name kept = body.add(body.mul(incoming, z), linear ? through : body.mul(through, reset));
  const Name next = body.add(kept, body("MatMul", {both, of_gates}));
  body.output(body.where(mask, next, dh));
  body.output(
      body.where(mask, body("Concat", {both, of_n}, {{"axis", int64_t{-1}}}), e.scalar_like(e.x(0), 0)));
  return body;
}

void grad_form(DecompositionContext& e) {
  const RecurrentForm layer(e, 3, kActivations, 4);
  const bool linear = resets_product(e);
  WeightGradients gradients{layer, {}, {}, {}, {}, ""};
  for (int64_t d = 0; d < layer.directions(); ++d) {
    const Name h = layer.result(e.x(6), d), kept = layer.kept(e.x(7), d), like = layer.one_step(h);
    const Name before = layer.previous(h, layer.state(5, d, like), d);
    Names sequences = {layer.result_or_zeros(8, d, h), kept, before};
    if (linear) sequences.push_back(candidate_product(layer, d, before));
    if (!layer.mask().empty()) sequences.push_back(layer.mask());
    const Names results =
        layer.scan(backward_step(layer, d), {layer.state(9, d, like)}, sequences, !layer.backward(d), 1);
    const Name open = layer.gates(results[1], 0, 2), inner = layer.gates(results[1], 2, 3),
               resets = layer.gates(kept, 1, 2);
    const Name of_s = linear ? e("Mul", {inner, resets}) : inner;
    const Name of_weights = e("Concat",
                              {layer.product_of_rows(open, before),
                               layer.product_of_rows(of_s, linear ? before : e("Mul", {resets, before}))},
                              {{"axis", int64_t{0}}});
    const Name recurrent = linear ? e("Concat", {open, of_s}, {{"axis", int64_t{-1}}}) : results[1];
    gradients.add(d, results[1], recurrent, of_weights, results[0]);
  }
  gradients.set();
}

void plain_form(DecompositionContext& e) { forward_form<2>(e, "GRU", 3, kActivations); }

ORTRAIN_OPERATOR_FACT(StandardForm, "", "GRU", {cold<plain_form>, is_batch_first});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "GRUTraining", {cold<training_form>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "GRUGrad", {cold<grad_form>});

}  // namespace
}  // namespace ortrain
