// RNN in training with operators of ONNX (ops/recurrent/recurrent_form.h).
#include "ops/recurrent/recurrent_form.h"

namespace ortrain {
namespace {

const std::vector<std::string_view> kActivations = {"Tanh"};

void grad_form(DecompositionContext& e) {
  const RecurrentForm layer(e, 1, kActivations, 3);
  WeightGradients gradients{layer, {}, {}, {}, {}, ""};
  for (int64_t d = 0; d < layer.directions(); ++d) {
    const Name h = layer.result(e.x(5), d), like = layer.one_step(h);
    const Name before = layer.previous(h, layer.state(4, d, like), d);
    ScanBody body(e, concat(e.y(0).empty() ? e.x(0) : e.y(0), "/steps/", d));
    const Name dh = body.input(), dy = body.input(), y = body.input(),
               mask = layer.mask().empty() ? "" : body.input_bool();
    const Name change =
        body.where(mask, layer.activation(d, 0).scaled(body, body.add(dh, dy), y), e.scalar_like(e.x(0), 0));
    body.output(body.where(mask, body("MatMul", {change, layer.weights(2, d)}), dh));
    body.output(change);
    Names sequences = {layer.result_or_zeros(6, d, h), h};
    if (!mask.empty()) sequences.push_back(layer.mask());
    const Names results = layer.scan(body, {layer.state(7, d, like)}, sequences, !layer.backward(d), 1);
    gradients.add(d, results[1], results[1], layer.product_of_rows(results[1], before), results[0]);
  }
  gradients.set();
}

void plain_form(DecompositionContext& e) { forward_form<2>(e, "RNN", 1, kActivations); }

ORTRAIN_OPERATOR_FACT(StandardForm, "", "RNN", {cold<plain_form>, is_batch_first});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "RNNGrad", {cold<grad_form>});

}  // namespace
}  // namespace ortrain
