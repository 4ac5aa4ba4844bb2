#include "ops/recurrent/recurrent_form.h"

#include <cmath>
#include <functional>

namespace ortrain {
namespace {

using Kind = ActivationKind;

Name permuted(DecompositionContext& e, Name value, std::vector<int64_t> order) {
  return e("Transpose", {value}, {{"perm", std::move(order)}});
}

}  // namespace

// ---- activations ----

template <typename Writer>
Name ActivationForm::apply(Writer& w, Name x) const {
  const Name in = clip_ > 0 ? w("Clip", {x, number(-clip_), number(clip_)}) : x;
  const NewAttribute alpha = {"alpha", static_cast<float>(choice_.alpha)};
  switch (choice_.kind) {
    case Kind::kAffine:
      return w("Add", {w("Mul", {in, number(choice_.alpha)}), number(choice_.beta)});
    case Kind::kScaledTanh:
      return w("Mul", {w("Tanh", {w("Mul", {in, number(choice_.beta)})}), number(choice_.alpha)});
    case Kind::kLeakyRelu:
    case Kind::kThresholdedRelu:
    case Kind::kElu:
      return w(choice_.function, {in}, {alpha});
    case Kind::kHardSigmoid:
      return w("HardSigmoid", {in}, {alpha, {"beta", static_cast<float>(choice_.beta)}});
    default:
      return w(choice_.function, {in});
  }
}

double ActivationForm::value_at(double x) const {
  const double a = choice_.alpha, b = choice_.beta;
  switch (choice_.kind) {
    case Kind::kAffine:
      return a * x + b;
    case Kind::kRelu:
      return std::max(x, 0.0);
    case Kind::kLeakyRelu:
      return x < 0 ? a * x : x;
    case Kind::kThresholdedRelu:
      return x > a ? x : 0;
    case Kind::kTanh:
      return std::tanh(x);
    case Kind::kScaledTanh:
      return a * std::tanh(b * x);
    case Kind::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Kind::kHardSigmoid:
      return std::clamp(a * x + b, 0.0, 1.0);
    case Kind::kElu:
      return x < 0 ? a * std::expm1(x) : x;
    case Kind::kSoftsign:
      return x / (1 + std::abs(x));
    case Kind::kSoftplus:
      return std::log1p(std::exp(x));
  }
  return 0;
}

template <typename Writer>
Name ActivationForm::unclipped(Writer& w, Name d, Name y) const {
  const Name zero = number(0), one = number(1);
  const auto times = [&](const std::string& factor) { return w("Mul", {d, factor}); };
  switch (choice_.kind) {
    case Kind::kAffine:
      return times(number(choice_.alpha));
    case Kind::kRelu:
      return w("Where", {w("Greater", {y, zero}), d, zero});
    case Kind::kLeakyRelu:
      return w("Where", {w("Greater", {y, zero}), d, times(number(choice_.alpha))});
    case Kind::kThresholdedRelu:
      return w("Where", {w("Equal", {y, zero}), zero, d});
    case Kind::kTanh:
      return times(w("Sub", {one, w("Mul", {y, y})}));
    case Kind::kScaledTanh: {  // alpha beta (1 - (y / alpha)²)
      if (choice_.alpha == 0) return times(zero);
      const Name square = w("Mul", {w("Mul", {y, y}), number(choice_.beta / choice_.alpha)});
      return times(w("Sub", {number(choice_.alpha * choice_.beta), square}));
    }
    case Kind::kSigmoid:
      return times(w("Mul", {y, w("Sub", {one, y})}));
    case Kind::kHardSigmoid: {
      const Name inside = w("And", {w("Greater", {y, zero}), w("Less", {y, one})});
      return w("Where", {inside, times(number(choice_.alpha)), zero});
    }
    case Kind::kElu:
      return w("Where", {w("Less", {y, zero}), times(w("Add", {y, number(choice_.alpha)})), d});
    case Kind::kSoftsign: {
      const Name root = w("Sub", {one, w("Abs", {y})});
      return times(w("Mul", {root, root}));
    }
    case Kind::kSoftplus:
      return times(w("Sub", {one, w("Exp", {w("Neg", {y})})}));
  }
  return d;
}

template <typename Writer>
Name ActivationForm::scaled(Writer& w, Name d, Name y) const {
  const Name scaled = unclipped(w, d, y);
  if (clip_ <= 0) return scaled;
  // Runtimes differ in the last digits of a function at the limits.
  const auto [low, high] = std::minmax({value_at(-clip_), value_at(clip_)});
  const double digit = e_->dtype(e_->x(0)) == DType::kDouble ? 1e-15 : 5e-7;
  const double margin = digit * std::max(std::abs(low), std::abs(high));
  const Name inside =
      w("And", {w("Greater", {y, number(low + margin)}), w("Less", {y, number(high - margin)})});
  return w("Where", {inside, scaled, number(0)});
}

template Name ActivationForm::apply(DecompositionContext&, Name) const;
template Name ActivationForm::apply(ScanBody&, Name) const;
template Name ActivationForm::scaled(ScanBody&, Name, Name) const;

// ---- the layer ----

RecurrentForm::RecurrentForm(DecompositionContext& e, int64_t gates,
                             const std::vector<std::string_view>& activations, size_t lengths)
    : e_(e), gates_(gates), batch_first_(is_batch_first(e.node())) {
  const auto r = e.dims(e.x(2));
  if (!r || r->size() != 3 || !(*r)[0].known() || !(*r)[2].known())
    e.reject("the shape of its weights R is not known");
  directions_ = (*r)[0].value, hidden_ = (*r)[2].value;
  activations_ = choose_activations(e.node(), static_cast<size_t>(directions_), activations);
  x_ = swapped(e.x(0));
  one_ = e.scalar_like(x_, 1);
  if (!e.has_x(lengths)) return;
  const Name steps = e("Gather", {e("Shape", {x_}), e.constant(Tensor::scalar(int64_t{0}))});
  const Name times = e.unsqueeze(
      e("Range", {e.constant(Tensor::scalar(int64_t{0})), steps, e.constant(Tensor::scalar(int64_t{1}))}),
      {1, 2});
  const Name counts =
      e.unsqueeze(e("Cast", {e.x(lengths)}, {{"to", static_cast<int64_t>(DType::kInt64)}}), {0, 2});
  mask_ = e("Less", {times, counts});
  is_last_ = e("Equal", {times, e("Sub", {counts, e.int64s({1})})});
}

ActivationForm RecurrentForm::activation(int64_t d, size_t i, bool clipped) const {
  const size_t each = activations_.size() / static_cast<size_t>(directions_);
  const double clip = clipped ? static_cast<double>(e_.node().float_or("clip", 0)) : 0;
  return {e_, activations_.at(static_cast<size_t>(d) * each + i), clip};
}

Names RecurrentForm::forward(const char* type, size_t outputs) const {
  Names inputs(e_.node().inputs.begin(), e_.node().inputs.end());
  Attributes attributes = e_.node().attributes;
  attributes.erase("layout");
  inputs[0] = x_;
  for (size_t i = 5; i < std::min<size_t>(inputs.size(), 7); ++i)
    if (!inputs[i].empty()) inputs[i] = swapped(inputs[i]);
  Names y = e_.emit(type, inputs, outputs, attributes);
  if (!batch_first_) return y;
  y[0] = permuted(e_, y[0], {2, 0, 1, 3});
  for (size_t o = 1; o < outputs; ++o) y[o] = swapped(y[o]);
  return y;
}

Name RecurrentForm::swapped(Name value) const {
  return batch_first_ ? permuted(e_, value, {1, 0, 2}) : value;
}

Name RecurrentForm::part(Name value, int64_t axis, int64_t d) const {
  if (directions_ == 1) return e_.squeeze(value, {axis});
  return e_("Gather", {value, e_.constant(Tensor::scalar(d))}, {{"axis", axis}});
}

Name RecurrentForm::result(Name value, int64_t d) const {
  return swapped(part(value, batch_first_ ? 2 : 1, d));
}

Name RecurrentForm::result_or_zeros(size_t i, int64_t d, Name like) const {
  return e_.has_x(i) ? result(e_.x(i), d) : zeros_like(like);
}

Name RecurrentForm::state(size_t i, int64_t d, Name like) const {
  return e_.has_x(i) ? part(e_.x(i), batch_first_ ? 1 : 0, d) : zeros_like(like);
}

// One direction keeps [T, 1, B, n], two keep [2, T, B, n]; with the batch first, [B, 1, T, n] and [2, B, T,
// n].
Name RecurrentForm::kept(Name value, int64_t d) const {
  return swapped(part(value, directions_ == 1 ? 1 : 0, d));
}

Name RecurrentForm::joined_kept(const Names& parts) const {
  if (directions_ == 1) return e_.unsqueeze(swapped(parts[0]), {1});
  Names all;
  for (const Name value : parts) all.push_back(swapped(value));
  return joined(all);
}

Name RecurrentForm::joined(const Names& parts) const {
  Names raised;
  for (const Name value : parts) raised.push_back(e_.unsqueeze(value, {0}));
  return raised.size() == 1 ? raised[0] : e_("Concat", raised, {{"axis", int64_t{0}}});
}

Name RecurrentForm::transposed(Name matrix) const { return permuted(e_, matrix, {1, 0}); }

Name RecurrentForm::gates(Name value, int64_t first, int64_t last) const {
  return e_("Slice", {value, e_.int64s({first * hidden_}), e_.int64s({last * hidden_}), e_.int64s({-1})});
}

Name RecurrentForm::rows(Name value, int64_t first, int64_t last) const {
  return e_("Slice", {value, e_.int64s({first}), e_.int64s({last}), e_.int64s({0})});
}

Name RecurrentForm::zeros_like(Name value) const {
  return e_("Expand", {e_.scalar_like(e_.x(0), 0), e_("Shape", {value})});
}

Name RecurrentForm::previous(Name values, Name initial, int64_t d) const {
  const Name first = e_.unsqueeze(initial, {0});
  if (!backward(d)) return e_("Concat", {first, rows(values, 0, -1)}, {{"axis", int64_t{0}}});
  const Name later = e_("Concat", {rows(values, 1, INT64_MAX), first}, {{"axis", int64_t{0}}});
  return is_last_.empty() ? later : e_("Where", {is_last_, first, later});
}

Name RecurrentForm::bias(int64_t d, int64_t first, int64_t last, bool recurrent) const {
  const int64_t from = recurrent ? gates_ : 0;
  return rows(part(e_.x(3), 0, d), (from + first) * hidden_, (from + last) * hidden_);
}

Name RecurrentForm::arguments(int64_t d, Name h, int64_t first, int64_t last, bool recurrent_bias) const {
  const auto part_of = [&](size_t i) {
    return transposed(rows(weights(i, d), first * hidden_, last * hidden_));
  };
  Name sum = e_("MatMul", {x_, part_of(1)});
  if (!h.empty()) sum = e_("Add", {sum, e_("MatMul", {h, part_of(2)})});
  if (!e_.has_x(3)) return sum;
  Name constant = bias(d, first, last, false);
  if (recurrent_bias) constant = e_("Add", {constant, bias(d, first, last, true)});
  return e_("Add", {sum, constant});
}

Name RecurrentForm::product_of_rows(Name a, Name b) const {
  return e_("Gemm", {flat(a), flat(b)}, {{"transA", int64_t{1}}});
}

Names RecurrentForm::scan(const ScanBody& body, const Names& states, const Names& sequences, bool from_end,
                          size_t outputs) const {
  Names inputs = states;
  inputs.insert(inputs.end(), sequences.begin(), sequences.end());
  return e_.emit("Scan", inputs, states.size() + outputs,
                 {{"body", body.graph()},
                  {"num_scan_inputs", static_cast<int64_t>(sequences.size())},
                  {"scan_input_directions", std::vector<int64_t>(sequences.size(), from_end)},
                  {"scan_output_directions", std::vector<int64_t>(outputs, from_end)}});
}

// ---- the gradients of the weights ----

void WeightGradients::add(int64_t d, Name of_w, Name of_r, Name r_gradient, Name initial_gradient) {
  DecompositionContext& e = layer.e_;
  const Name through = e("MatMul", {of_w, layer.weights(1, d)});
  x = x.empty() ? through : e("Add", {x, through});
  w.push_back(layer.product_of_rows(of_w, layer.x()));
  r.push_back(r_gradient);
  const Name sum = e.reduce_sum(of_w, {0, 1}, false);
  b.push_back(
      e("Concat", {sum, of_r == of_w ? sum : e.reduce_sum(of_r, {0, 1}, false)}, {{"axis", int64_t{0}}}));
  initial.push_back(initial_gradient);
}

void WeightGradients::set() const {
  DecompositionContext& e = layer.e_;
  if (e.has_y(0)) e.set(0, layer.swapped(x));
  const Names* parts[] = {&w, &r, &b};
  for (size_t o = 0; o < 3; ++o)
    if (e.has_y(o + 1)) e.set(o + 1, layer.joined(*parts[o]));
  if (e.has_y(4)) e.set(4, layer.swapped(layer.joined(initial)));
}

}  // namespace ortrain
