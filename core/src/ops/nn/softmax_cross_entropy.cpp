// SoftmaxCrossEntropyLoss and its gradient; the Internal forms of both, which take ignore_index as an input;
// and NegativeLogLikelihoodLoss with its Internal forms.
//
// Scores [N, C, d...], labels [N, d...]. With l = label and w its weight (1 without weights), the loss of one
// position is -w log softmax(scores)_l, or 0 if the label is ignore_index; "mean" divides the sum by the sum
// of the weights of labels that are not ignored.

#include <algorithm>
#include <limits>
#include <optional>

#include "backend/cpu/norm/softmax.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/common/elementwise.h"
#include "ops/common/variant.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

enum class Average { kNone, kMean, kSum };

Average reduction_of(const NodeContext& c) {
  const std::string name = c.node().string_or("reduction", "mean");
  if (name == "none") return Average::kNone;
  if (name == "sum") return Average::kSum;
  c.expect(name == "mean", "reduction must be 'none', 'mean' or 'sum', found '", name, "'");
  return Average::kMean;
}

// ONNX's operators, and the Internal operators, whose gradient may have a bias.
enum class Form { kOnnx, kInternal };

// The indices of a node's inputs.
struct Inputs {
  size_t scores, labels, weights, ignore_index;
};

constexpr size_t kNoInput = 99, kBias = 5;

Inputs forward_inputs(Form form) { return {0, 1, 2, form == Form::kInternal ? 3 : kNoInput}; }
Inputs backward_inputs(Form form) { return {1, 2, 3, form == Form::kInternal ? 4 : kNoInput}; }

constexpr const char* loss_grad(Form form) {
  return form == Form::kInternal ? "SoftmaxCrossEntropyLossInternalGrad" : "SoftmaxCrossEntropyLossGrad";
}

void expect_inputs(const NodeContext& c, const Inputs& in) {
  const Shape &scores = c.shape(in.scores), &labels = c.shape(in.labels);
  if (!is_floating(c.dtype(in.scores))) c.reject_dtype(in.scores);
  if (c.dtype(in.labels) != DType::kInt32 && c.dtype(in.labels) != DType::kInt64) c.reject_dtype(in.labels);
  c.expect(scores.size() >= 2, "scores must have the shape [N, C, ...], found ", to_string(scores));
  Shape wanted = scores;
  wanted.erase(wanted.begin() + 1);
  c.expect(labels == wanted, "labels must have the shape ", to_string(wanted), " for scores of shape ",
           to_string(scores), ", found ", to_string(labels));
  if (c.has_input(in.weights))
    c.expect(c.shape(in.weights) == Shape{scores[1]} && c.dtype(in.weights) == c.dtype(in.scores),
             "weights must hold one ", to_string(c.dtype(in.scores)), " per class, shape ",
             to_string({scores[1]}), ", found ", to_string(c.dtype(in.weights)), " ",
             to_string(c.shape(in.weights)));
}

SoftmaxShape softmax_shape(const Shape& scores) {
  return {scores[0], scores[1], element_count(scores, 2, scores.size())};
}

// Reads labels and weights while the model runs.
template <typename T>
class Labels {
 public:
  Labels(KernelContext& c, const Inputs& in)
      : label_(c.node().label()),
        labels_(c.in(in.labels)),
        weights_(c.has_input(in.weights) ? c.in(in.weights) : Slot{}),
        wide_(c.dtype(in.labels) == DType::kInt64),
        classes_(c.shape(in.scores)[1]) {
    if (c.node().has("ignore_index")) ignored_ = c.node().int_or("ignore_index", 0);
    if (c.has_input(in.ignore_index)) {
      c.expect(c.dtype(in.ignore_index) == DType::kInt64 && c.size(in.ignore_index) == 1,
               "ignore_index must be a single int64, found ", to_string(c.dtype(in.ignore_index)), " ",
               to_string(c.shape(in.ignore_index)));
      ignored_input_ = c.in(in.ignore_index);
    }
  }

  // Calls f(position, class, weight) for every position; the weight of an ignored position is 0 and its class
  // -1.
  template <class F>
  void each(const Frame& frame, int64_t places, F f) const {
    if (wide_)
      each_of<int64_t>(frame, places, f);
    else
      each_of<int32_t>(frame, places, f);
  }

 private:
  template <typename L, class F>
  void each_of(const Frame& frame, int64_t places, F f) const {
    const L* labels = frame.at<L>(labels_);
    const T* weights = frame.at_or_null<T>(weights_);
    const std::optional<int64_t> ignored =
        ignored_input_.defined() ? std::optional<int64_t>(*frame.at<int64_t>(ignored_input_)) : ignored_;
    for (int64_t i = 0; i < places; ++i) {
      const int64_t which = labels[i];
      if (ignored && which == *ignored) {
        f(i, int64_t{-1}, T{0});
        continue;
      }
      require(which >= 0 && which < classes_, ErrorCode::kInvalidArgument, label_, ": label ", which,
              " at position ", i, " is not one of the ", counted(classes_, "class"));
      f(i, which, weights ? weights[which] : T{1});
    }
  }

  std::string label_;
  Slot labels_, weights_, ignored_input_;
  bool wide_;
  int64_t classes_;
  std::optional<int64_t> ignored_;
};

void shape(ShapeContext& c, Form form) {
  const Inputs in = forward_inputs(form);
  expect_inputs(c, in);
  c.output(0, c.dtype(0), reduction_of(c) == Average::kNone ? c.shape(in.labels) : Shape{});
  if (c.has_output(1)) c.output(1, c.dtype(0), c.shape(0));
}

template <typename T>
Kernel loss_kernel(KernelContext& c, const Inputs& in, bool from_scores) {
  const Average average = reduction_of(c);
  const Labels<T> labels(c, in);
  const Slot scores = c.in(0), loss = c.out(0);
  const SoftmaxShape s = softmax_shape(c.shape(0));
  Slot log_prob = scores;
  if (from_scores) {
    log_prob = c.has_output(1) ? c.out_inplace(1, {0}) : Slot{};
    if (!log_prob.defined()) log_prob = c.scratch(static_cast<size_t>(c.size(0)) * sizeof(T));
  }
  const DType dtype = c.dtype(0);
  return [=](const Frame& f) {
    const T* log_p = f.at<T>(log_prob);
    if (from_scores) run_softmax(s, dtype, true, f.at<T>(scores), f.at<T>(log_prob));
    T* out = f.at<T>(loss);
    double sum = 0, weight_sum = 0;
    labels.each(f, s.outer * s.inner, [&](int64_t place, int64_t which, T weight) {
      const int64_t n = place / s.inner, j = place % s.inner;
      const T value = which < 0 ? T{0} : -weight * log_p[(n * s.length + which) * s.inner + j];
      if (average == Average::kNone) out[place] = value;
      sum += static_cast<double>(value);
      weight_sum += static_cast<double>(weight);
    });
    if (average == Average::kSum) *out = static_cast<T>(sum);
    if (average == Average::kMean) *out = static_cast<T>(sum / weight_sum);
  };
}

Kernel kernel(KernelContext& c, Form form, bool from_scores) {
  Kernel chosen;
  if (!visit_floating(c.dtype(0),
                      [&]<typename T>(T) { chosen = loss_kernel<T>(c, forward_inputs(form), from_scores); }))
    c.reject_dtype(0);
  return chosen;
}

void gradient_shape(ShapeContext& c, Form form) {
  const Inputs in = backward_inputs(form);
  expect_inputs(c, in);
  const bool none = reduction_of(c) == Average::kNone;
  c.expect(c.dtype(0) == c.dtype(1), "dY must have the type of log_prob, ", to_string(c.dtype(1)), ", found ",
           to_string(c.dtype(0)));
  c.expect(none ? c.shape(0) == c.shape(in.labels) : c.size(0) == 1, "dY must ",
           none ? "have the shape of the labels, " + to_string(c.shape(in.labels)) : "be a scalar",
           ", found ", to_string(c.shape(0)));
  if (form == Form::kInternal && c.has_input(kBias))
    c.expect(c.dtype(kBias) == c.dtype(1) && c.shape(kBias) == c.shape(1),
             "bias must have the type and shape of log_prob, found ", to_string(c.dtype(kBias)), " ",
             to_string(c.shape(kBias)));
  c.output(0, c.dtype(1), c.shape(1));
}

// d scores_i = dY w (softmax_i - [i = label]) / divisor, and + bias in the Internal form.
template <typename T>
Kernel typed_gradient_kernel(KernelContext& c, Form form) {
  const Average average = reduction_of(c);
  const Labels<T> labels(c, backward_inputs(form));
  const SoftmaxShape s = softmax_shape(c.shape(1));
  const int64_t places = s.outer * s.inner;
  const Slot dy = c.in(0), log_prob = c.in(1);
  const Slot bias = form == Form::kInternal && c.has_input(kBias) ? c.in(kBias) : Slot{};
  const Slot dx = c.out_inplace(0, {1});
  const Slot factors = c.scratch(static_cast<size_t>(places) * sizeof(T));
  const DType dtype = c.dtype(1);
  const UnaryFunction exp = unary::Exp(dtype);
  const BinaryFunction multiply = binary_function("Mul", dtype), add = binary_function("Add", dtype);
  return [=](const Frame& f) {
    const T* incoming = f.at<T>(dy);
    const T* log_p = f.at<T>(log_prob);
    T *out = f.at<T>(dx), *factor = f.at<T>(factors);
    double weight_sum = 0;
    labels.each(f, places, [&](int64_t place, int64_t which, T weight) {
      factor[place] = which < 0 ? T{0} : weight * incoming[average == Average::kNone ? place : 0];
      weight_sum += static_cast<double>(weight);
    });
    if (average == Average::kMean) {
      // If every label is ignored, the divisor is 0 too, and all gradients are 0.
      const T divisor = static_cast<T>(weight_sum);
      for (int64_t i = 0; i < places; ++i) factor[i] = factor[i] == T{0} ? T{0} : factor[i] / divisor;
    }
    // One row has the elements of one class of a sample, or, without spatial axes, all classes of a sample.
    const bool flat = s.inner == 1;
    const int64_t rows = flat ? s.outer : s.outer * s.length, size = flat ? s.length : s.inner;
    parallel_for(rows, size * exp.cost, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        exp(log_p + r * size, out + r * size, size);
        multiply(out + r * size, 1, factor + (flat ? r : r / s.length * s.inner), flat ? 0 : 1,
                 out + r * size, size);
      }
    });
    labels.each(f, places, [&](int64_t place, int64_t which, T) {
      if (which >= 0) out[(place / s.inner * s.length + which) * s.inner + place % s.inner] -= factor[place];
    });
    if (bias.defined()) add(out, 1, f.at<T>(bias), 1, out, places * s.length);
  };
}

Kernel gradient_kernel(KernelContext& c, Form form) {
  Kernel chosen;
  if (!visit_floating(c.dtype(1), [&]<typename T>(T) { chosen = typed_gradient_kernel<T>(c, form); }))
    c.reject_dtype(1);
  return chosen;
}

// The attributes that forward and gradient share.
Attributes loss_attributes(const Node& node) {
  Attributes out{{"reduction", node.string_or("reduction", "mean")}};
  if (node.has("ignore_index")) out["ignore_index"] = node.int_or("ignore_index", 0);
  return out;
}

// The sum of two gradients: one from the loss, and one from the second output, log softmax(scores), whose
// classes are axis 1: d scores = dY - softmax sum(dY).
void gradient(GradientContext& g, Form form) {
  if (!g.needs(0)) return;
  const Expression log_prob(g, g.want_y(1));
  Name total;
  if (const Name dy = g.dy(0); !dy.empty()) {
    Names inputs = {dy, log_prob};
    inputs.insert(inputs.end(), g.node().inputs.begin() + 1, g.node().inputs.end());
    total = g(loss_grad(form), inputs, loss_attributes(g.node()), kMicrosoft);
  }
  if (const Name given = g.dy(1); !given.empty()) {
    const Expression dy(g, given);
    const Expression part = dy - log_prob.call("Exp") * Expression(g, g.reduce_sum(dy, {1}, true));
    total = total.empty() ? part.name() : (part + Expression(g, total)).name();
  }
  g.set(0, total);
}

// dX = dY w (exp(log_prob) - [i = label]) / divisor (+ bias) is linear in dY. Of its two terms only the first
// depends on log_prob; the first term is dX minus the dX for zero probabilities.
void grad_gradient(GradientContext& g, Form form) {
  const Expression u(g, g.dy(0)), dy(g, g.x(0)), log_prob(g, g.x(1));
  const auto with = [&](const Expression& incoming, const Expression& logs) {
    Names inputs = {incoming, logs};
    for (size_t i = 2; i < std::min<size_t>(5, g.node().inputs.size()); ++i)
      inputs.push_back(g.node().inputs[i]);
    return Expression(g, g(loss_grad(form), inputs, g.node().attributes, kMicrosoft));
  };
  if (g.needs(0)) {
    const Expression one(g, g("Expand", {dy.number(1), dy.call("Shape")}));
    const Expression gradient = u * with(one, log_prob);
    if (g.node().string_or("reduction", "mean") == "none") {
      g.set(0, g.reduce_sum(gradient, {1}, false));
    } else {
      const Name line = g("Reshape", {gradient, g.int64s({-1})});
      g.set(0, g("Reshape", {g.reduce_sum(line, {0}, true), dy.call("Shape")}));
    }
  }
  if (g.needs(1)) {
    const Expression nowhere(
        g, g("Expand", {dy.number(-std::numeric_limits<double>::infinity()), log_prob.call("Shape")}));
    g.set(1, u * (with(dy, log_prob) - with(dy, nowhere)));
  }
  if (form == Form::kInternal && g.has_x(kBias) && g.needs(kBias)) g.set(kBias, u);
}

void likelihood_shape(ShapeContext& c, Form form) {
  expect_inputs(c, forward_inputs(form));
  c.output(0, c.dtype(0), reduction_of(c) == Average::kNone ? c.shape(1) : Shape{});
}

// d log_prob_i = -dY w [i = label] / divisor: the gradient of the cross entropy if every probability is zero.
void likelihood_gradient(GradientContext& g, Form form) {
  if (!g.needs(0)) return;
  const Expression x(g, g.x(0));
  const Name nowhere = g("Expand", {x.number(-std::numeric_limits<double>::infinity()), x.call("Shape")});
  Names inputs = {g.dy(0), nowhere};
  inputs.insert(inputs.end(), g.node().inputs.begin() + 1, g.node().inputs.end());
  g.set(0, g(loss_grad(form), inputs, loss_attributes(g.node()), kMicrosoft));
}

template <Form F>
constexpr Operator cross_entropy(std::string_view domain, std::string_view type, std::string_view signature) {
  return {.domain = domain,
          .type = type,
          .signature = signature,
          .rules = {.shape = kVariant<shape, F>, .gradient = kVariant<gradient, F>},
          .kernels = {.cpu = kVariant<kernel, F, true>}};
}
template <Form F>
constexpr Operator cross_entropy_grad(std::string_view signature) {
  return {.domain = kMicrosoft,
          .type = loss_grad(F),
          .signature = signature,
          .rules = {.shape = kVariant<gradient_shape, F>, .gradient = kVariant<grad_gradient, F>},
          .kernels = {.cpu = kVariant<gradient_kernel, F>}};
}
template <Form F>
constexpr Operator likelihood(std::string_view domain, std::string_view type, std::string_view signature) {
  return {.domain = domain,
          .type = type,
          .signature = signature,
          .rules = {.shape = kVariant<likelihood_shape, F>, .gradient = kVariant<likelihood_gradient, F>},
          .kernels = {.cpu = kVariant<kernel, F, false>}};
}
ORTRAIN_OPERATOR({cross_entropy<Form::kOnnx>("", "SoftmaxCrossEntropyLoss", "")});
ORTRAIN_OPERATOR(
    {cross_entropy<Form::kInternal>(kMicrosoft, "SoftmaxCrossEntropyLossInternal",
                                    "scores, labels, weights?, ignore_index? -> output, log_prob?")});
ORTRAIN_OPERATOR({cross_entropy_grad<Form::kOnnx>("dY, log_prob, label, weight? -> d_logits")});
ORTRAIN_OPERATOR(
    {cross_entropy_grad<Form::kInternal>("dY, log_prob, label, weight?, ignore_index?, bias? -> d_logits")});
ORTRAIN_OPERATOR({likelihood<Form::kOnnx>("", "NegativeLogLikelihoodLoss", "")});
ORTRAIN_OPERATOR({likelihood<Form::kInternal>(kMicrosoft, "NegativeLogLikelihoodLossInternal",
                                              "input, target, weight?, ignore_index? -> loss")});
ORTRAIN_OPERATOR({likelihood<Form::kInternal>(kMicrosoft, "NegativeLogLikelihoodLossInternal2",
                                              "input, target, weight?, ignore_index? -> loss")});

// -----------------------------------------------------------------------------------------------------------
// With operators of ONNX.

// The gradient of the scores: exp(log_prob) times the factor of each position, which is then subtracted at
// the label. An ignored label has the factor 0, and class 0 in place of the label.
void gradient_form(DecompositionContext& e, Form form) {
  const Inputs in = backward_inputs(form);
  const Expression dy(e, e.x(0)), log_prob(e, e.x(1));
  Expression labels(e, e.x(in.labels));
  const std::string reduction = e.node().string_or("reduction", "mean");
  Name ignored;
  if (e.has_x(in.ignore_index))
    ignored = labels.call("Equal", Expression(e, cast_like(e, e.x(in.ignore_index), labels)));
  else if (e.node().has("ignore_index"))
    ignored = labels.call("Equal", labels.number(static_cast<double>(e.node().int_or("ignore_index", 0))));
  if (!ignored.empty()) labels = Expression(e, ignored).choose(labels.number(0), labels);
  Name weights;  // of the positions; empty: 1
  if (e.has_x(in.weights)) weights = e("Gather", {e.x(in.weights), labels});
  if (!ignored.empty()) {
    const Expression one(e, weights.empty() ? log_prob.number(1).name() : weights);
    weights = Expression(e, ignored).choose(log_prob.number(0), one);
  }
  Expression factor = weights.empty() ? dy : Expression(e, weights) * dy;
  if (reduction == "mean") {
    if (weights.empty()) {
      factor = factor / labels.call("Size").as(log_prob);
    } else {
      const Expression sum(e, e("ReduceSum", {weights}, {{"keepdims", int64_t{0}}}));
      factor = factor / sum.call("Equal", sum.number(0)).choose(sum.number(1), sum);
    }
  }
  const Name places = e.unsqueeze(labels, {1});
  if (weights.empty() && reduction != "none")  // one number for all positions
    factor = Expression(e, as_scalar(e, factor));
  else
    factor = Expression(e, e.unsqueeze(factor, {1}));
  const Name minus = e("Expand", {-factor, e("Shape", {places})});
  const Name gradient = e("ScatterElements", {log_prob.call("Exp") * factor, places, minus},
                          {{"axis", int64_t{1}}, {"reduction", std::string("add")}});
  e.set(0, form == Form::kInternal && e.has_x(kBias) ? e("Add", {gradient, e.x(kBias)}) : gradient);
}

// The Internal forms are ONNX's operators if the label to ignore is a constant.
void internal_form(DecompositionContext& e, const std::string& type) {
  Attributes attributes = loss_attributes(e.node());
  if (e.has_x(3)) {
    const Tensor* ignored = e.constant_value(e.x(3));
    if (!ignored) e.reject("its ignore_index is not a constant");
    attributes["ignore_index"] = ignored->to_int64().at(0);
  }
  Names inputs = {e.x(0), e.x(1)};
  if (e.has_x(2)) inputs.push_back(e.x(2));
  const size_t count = e.has_y(1) ? 2 : 1;
  const Names outputs = e.emit(type, inputs, count, attributes);
  for (size_t o = 0; o < count; ++o) e.set(o, outputs[o]);
}
void likelihood_form(DecompositionContext& e) { internal_form(e, "NegativeLogLikelihoodLoss"); }
void cross_entropy_form(DecompositionContext& e) { internal_form(e, "SoftmaxCrossEntropyLoss"); }

ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, loss_grad(Form::kOnnx),
                      {cold<kVariant<gradient_form, Form::kOnnx>>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, loss_grad(Form::kInternal),
                      {cold<kVariant<gradient_form, Form::kInternal>>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "SoftmaxCrossEntropyLossInternal",
                      {cold<cross_entropy_form>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "NegativeLogLikelihoodLossInternal", {cold<likelihood_form>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "NegativeLogLikelihoodLossInternal2",
                      {cold<likelihood_form>});

}  // namespace
}  // namespace ortrain
