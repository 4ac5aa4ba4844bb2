// RNN and com.microsoft RNNGrad: H_t = f(X_t Wᵀ + H_(t-1) Rᵀ + Wb + Rb).
//
// The derivative of f follows from H, so the forward pass keeps only its result.
//
// Compiled for speed: loops over hidden values (CMakeLists.txt).
#include "op/floating_kernel.h"
#include "ops/recurrent/recurrent.h"

namespace ortrain {
namespace {

const std::vector<std::string_view> kActivations = {"Tanh"};

void shape(ShapeContext& c) {
  const Recurrent r = read_recurrent(c, 1);
  expect_input(c, 3, {r.directions, 2 * r.width()}, "B");
  expect_lengths(c, 4, r);
  expect_input(c, 5, r.state_shape(), "initial_h");
  read_activations(c, r, kActivations);
  if (c.has_output(0)) c.output(0, c.dtype(0), r.result_shape());
  if (c.has_output(1)) c.output(1, c.dtype(0), r.state_shape());
}

template <typename T>
Kernel forward(KernelContext& c) {
  const Recurrent r = read_recurrent(c, 1);
  const auto activations = read_activations(c, r, kActivations);
  const Slot x = c.in(0), w = c.in(1);
  const StepProduct<T> of_states(c, r, c.in(2), 0, r.hidden, true);
  const Slot b = c.has_input(3) ? c.in(3) : Slot{};
  const Lengths lengths(c, 4, r);
  const Slot initial = c.has_input(5) ? c.in(5) : Slot{};
  const Slot y = c.has_output(0) ? c.out(0) : Slot{}, y_h = c.has_output(1) ? c.out(1) : Slot{};
  const int64_t h = r.hidden;
  const Slot gates = c.scratch(static_cast<size_t>(r.directions * r.rows() * h) * sizeof(T));
  const Slot held = c.scratch(static_cast<size_t>(r.directions * r.batch * h) * sizeof(T));
  return [=](const Frame& f) {
    lengths.check(f);
    of_states.prepare(f);
    input_products<T>(r, f.at<T>(x), f.at<T>(w), f.at_or_null<T>(b), 1, f.at<T>(gates));
    state_in<T>(r, f.at_or_null<T>(initial), f.at<T>(held));
    T* results = f.at_or_null<T>(y);
    for_samples(r, [&](int64_t d, int64_t first, int64_t last) {
      T* state = f.at<T>(held) + d * r.batch * h;
      for (int64_t k = 0; k < r.steps; ++k) {
        const int64_t t = r.backward(d) ? r.steps - 1 - k : k;
        T* all = f.at<T>(gates) + d * r.rows() * h;
        of_states.run(f, d, last - first, {state + first * h, h, 1}, true, all + r.row(t, first) * h,
                      r.sample_rows() * h);
        for (int64_t s = first; s < last; ++s) {
          T* row = all + r.row(t, s) * h;
          if (t < lengths.of(f, s)) {
            activations[static_cast<size_t>(d)].apply(row, h);
            std::copy_n(row, h, state + s * h);
          } else {
            std::fill_n(row, h, T(0));
          }
          if (results) std::copy_n(row, h, results + r.result(t, d, s));
        }
      }
    });
    if (y_h.defined()) state_out<T>(r, f.at<T>(held), f.at<T>(y_h));
  };
}

Kernel kernel(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return forward<decltype(zero)>(c); });
}

// RNNGrad(X, W, R, sequence_lens?, initial_h?, Y, dY?, dY_h?) -> dX?, dW?, dR?, dB?, dinitial_h?
void gradient_shape(ShapeContext& c) {
  const Recurrent r = read_recurrent(c, 1);
  expect_lengths(c, 3, r);
  expect_input(c, 4, r.state_shape(), "initial_h");
  expect_input(c, 5, r.result_shape(), "Y");
  expect_input(c, 6, r.result_shape(), "dY");
  expect_input(c, 7, r.state_shape(), "dY_h");
  const Shape shapes[] = {c.shape(0), c.shape(1), c.shape(2), {r.directions, 2 * r.width()}, r.state_shape()};
  for (size_t o = 0; o < 5; ++o)
    if (c.has_output(o)) c.output(o, c.dtype(0), shapes[o]);
}

template <typename T>
Kernel backward(KernelContext& c) {
  const Recurrent r = read_recurrent(c, 1);
  const auto activations = read_activations(c, r, kActivations);
  const auto optional = [&](size_t i) { return c.has_input(i) ? c.in(i) : Slot{}; };
  const Slot x = c.in(0), w = c.in(1), initial = optional(4), y = c.in(5);
  const StepProduct<T> of_changes(c, r, c.in(2), 0, r.hidden, false);
  const Lengths lengths(c, 3, r);
  const Slot dy = optional(6), dy_h = optional(7);
  const auto wanted = [&](size_t o) { return c.has_output(o) ? c.out(o) : Slot{}; };
  const Slot dx = wanted(0), dw = wanted(1), dr = wanted(2), db = wanted(3), dinitial = wanted(4);
  const StateWeightGradient<T> weight_gradient(c, r, lengths, dr.defined());
  const int64_t h = r.hidden;
  const RowSums<T> bias_gradient(c, r, h, db.defined());
  const size_t rows = static_cast<size_t>(r.directions * r.rows() * h) * sizeof(T);
  const Slot gates = c.scratch(rows);
  const Slot held = c.scratch(static_cast<size_t>(r.directions * r.batch * h) * sizeof(T));
  return [=](const Frame& f) {
    lengths.check(f);
    of_changes.prepare(f);
    state_in<T>(r, f.at_or_null<T>(dy_h), f.at<T>(held));
    const T *results = f.at<T>(y), *incoming = f.at_or_null<T>(dy);
    for_samples(r, [&](int64_t d, int64_t first, int64_t last) {
      T *state = f.at<T>(held) + d * r.batch * h, *all = f.at<T>(gates) + d * r.rows() * h;
      for (int64_t k = 0; k < r.steps; ++k) {
        const int64_t t = r.backward(d) ? k : r.steps - 1 - k;
        for (int64_t s = first; s < last; ++s) {
          T *row = all + r.row(t, s) * h, *dh = state + s * h;
          if (t >= lengths.of(f, s)) {
            std::fill_n(row, h, T(0));
            continue;
          }
          for (int64_t j = 0; j < h; ++j)
            row[j] = dh[j] + (incoming ? incoming[r.result(t, d, s) + j] : T(0));
          activations[static_cast<size_t>(d)].scale_by_derivative(results + r.result(t, d, s), row, h);
          std::fill_n(dh, h, T(0));
        }
        of_changes.run(f, d, last - first, {all + r.row(t, first) * h, r.sample_rows() * h, 1}, true,
                       state + first * h, h);
      }
    });
    if (dinitial.defined()) state_out<T>(r, f.at<T>(held), f.at<T>(dinitial));
    const T* all = f.at<T>(gates);
    if (dx.defined()) sequence_gradient<T>(r, all, f.at<T>(w), f.at<T>(dx));
    if (dw.defined())
      transposed_product<T>(r, {all, h, 0, h}, {f.at<T>(x), r.input, 0, r.input}, true, f.at<T>(dw),
                            h * r.input);
    if (dr.defined()) weight_gradient.run(f, all, results, f.at_or_null<T>(initial), f.at<T>(dr));
    if (db.defined()) bias_gradient.run_twice(f, all, f.at<T>(db));
  };
}

Kernel gradient_kernel(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return backward<decltype(zero)>(c); });
}

void gradient(GradientContext& g) {
  const Name dy = dy_or_empty(g, 0), dy_h = dy_or_empty(g, 1);
  const auto gradients =
      g.emit("RNNGrad", {g.x(0), g.x(1), g.x(2), x_or_empty(g, 4), x_or_empty(g, 5), g.want_y(0), dy, dy_h},
             5, g.node().attributes, kMicrosoft);
  const size_t of[] = {0, 1, 2, 3, 5};
  set_gradients(g, of, gradients);
}

ORTRAIN_OPERATOR({.type = "RNN",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "RNNGrad",
                  .signature = "X, W, R, SL?, H0?, HAll, dHAll?, dHFinal? -> dX?, dW?, dR?, dB?, dH0?",
                  .rules = {.shape = gradient_shape},
                  .kernels = {.cpu = gradient_kernel}});

}  // namespace
}  // namespace ortrain
