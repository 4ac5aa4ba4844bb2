// GRU, com.microsoft GRUTraining (which saves the values that the backward pass needs) and GRUGrad.
//
//   z = f(X_t Wzᵀ + H_(t-1) Rzᵀ + Wbz + Rbz), likewise r
//   h = g(X_t Whᵀ + (r . H_(t-1)) Rhᵀ + Wbh + Rbh), or with linear_before_reset
//   h = g(X_t Whᵀ + r . s + Wbh) with s = H_(t-1) Rhᵀ + Rbh
//   H_t = (1 - z) . h + z . H_(t-1)
//
// K. Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine
// translation", EMNLP 2014. The gates of a row are kept after their activations, in the order z, r, h.
//
// Compiled for speed: loops over gates (CMakeLists.txt).
#include "op/floating_kernel.h"
#include "ops/recurrent/recurrent.h"

namespace ortrain {
namespace {

const std::vector<std::string_view> kActivations = {"Sigmoid", "Tanh"};

void shape(ShapeContext& c) {
  const Recurrent r = read_recurrent(c, 3);
  expect_input(c, 3, {r.directions, 2 * r.width()}, "B");
  expect_lengths(c, 4, r);
  expect_input(c, 5, r.state_shape(), "initial_h");
  read_activations(c, r, kActivations);
  const Shape shapes[] = {r.result_shape(), r.state_shape(), r.kept_shape(r.width())};
  for (size_t o = 0; o < c.output_count(); ++o)
    if (c.has_output(o)) c.output(o, c.dtype(0), shapes[o]);
}

template <typename T>
Kernel forward(KernelContext& c) {
  const Recurrent r = read_recurrent(c, 3);
  const auto activations = read_activations(c, r, kActivations);
  const bool linear = c.node().int_or("linear_before_reset", 0) != 0;
  const auto optional = [&](size_t i) { return c.has_input(i) ? c.in(i) : Slot{}; };
  const Slot x = c.in(0), w = c.in(1), bias = optional(3);
  const StepProduct<T> of_gates(c, r, c.in(2), 0, 2 * r.hidden, true),
      of_candidate(c, r, c.in(2), 2 * r.hidden, r.hidden, true);
  const Lengths lengths(c, 4, r);
  const Slot initial = optional(5);
  const auto wanted = [&](size_t o) { return c.has_output(o) ? c.out(o) : Slot{}; };
  const Slot y = wanted(0), y_h = wanted(1), kept = wanted(2);
  const int64_t h = r.hidden, n = r.width();
  const Slot gates =
      kept.defined() ? kept : c.scratch(static_cast<size_t>(r.directions * r.rows() * n) * sizeof(T));
  const size_t state_bytes = static_cast<size_t>(r.directions * r.batch * h) * sizeof(T);
  const Slot held = c.scratch(state_bytes), work = c.scratch(state_bytes);
  return [=](const Frame& f) {
    lengths.check(f);
    of_gates.prepare(f), of_candidate.prepare(f);
    input_products<T>(r, f.at<T>(x), f.at<T>(w), f.at_or_null<T>(bias), linear ? 2 : 3, f.at<T>(gates));
    state_in<T>(r, f.at_or_null<T>(initial), f.at<T>(held));
    T* results = f.at_or_null<T>(y);
    for_samples(r, [&](int64_t d, int64_t first, int64_t last) {
      const GateActivation* act = &activations[static_cast<size_t>(2 * d)];
      T *states = f.at<T>(held) + d * r.batch * h, *part = f.at<T>(work) + d * r.batch * h;
      T* all = f.at<T>(gates) + d * r.rows() * n;
      const T* candidate_bias = bias.defined() ? f.at<T>(bias) + d * 2 * n + n + 2 * h : nullptr;
      for (int64_t k = 0; k < r.steps; ++k) {
        const int64_t t = r.backward(d) ? r.steps - 1 - k : k, count = last - first;
        T* rows = all + r.row(t, first) * n;
        const int64_t row_step = r.sample_rows() * n;
        of_gates.run(f, d, count, {states + first * h, h, 1}, true, rows, row_step);
        if (linear) of_candidate.run(f, d, count, {states + first * h, h, 1}, false, part + first * h, h);
        for (int64_t s = first; s < last; ++s) {
          T *z = all + r.row(t, s) * n, *reset = z + h, *candidate = reset + h;
          T *own = part + s * h, *state = states + s * h;
          act[0].apply(z, 2 * h);
          if (linear)
            for (int64_t j = 0; j < h; ++j)
              candidate[j] += reset[j] * (own[j] + (candidate_bias ? candidate_bias[j] : T(0)));
          else
            for (int64_t j = 0; j < h; ++j) own[j] = reset[j] * state[j];
        }
        if (!linear) of_candidate.run(f, d, count, {part + first * h, h, 1}, true, rows + 2 * h, row_step);
        for (int64_t s = first; s < last; ++s) {
          T *z = all + r.row(t, s) * n, *candidate = z + 2 * h, *state = states + s * h;
          T* result = results ? results + r.result(t, d, s) : nullptr;
          if (t >= lengths.of(f, s)) {
            if (result) std::fill_n(result, h, T(0));
            continue;
          }
          act[1].apply(candidate, h);
          for (int64_t j = 0; j < h; ++j) state[j] = (1 - z[j]) * candidate[j] + z[j] * state[j];
          if (result) std::copy_n(state, h, result);
        }
      }
    });
    if (y_h.defined()) state_out<T>(r, f.at<T>(held), f.at<T>(y_h));
  };
}

Kernel kernel(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return forward<decltype(zero)>(c); });
}

// GRUGrad(X, W, R, B?, sequence_lens?, initial_h?, HAll, ZRH, dHAll?, dHFinal?) -> dX?, dW?, dR?, dB?,
// dinitial_h?
void gradient_shape(ShapeContext& c) {
  const Recurrent r = read_recurrent(c, 3);
  for (const size_t i : {6, 7})
    c.expect(c.has_input(i), "input ", i, " is missing: the values saved by the forward pass");
  expect_input(c, 3, {r.directions, 2 * r.width()}, "B");
  expect_lengths(c, 4, r);
  expect_input(c, 5, r.state_shape(), "initial_h");
  expect_input(c, 6, r.result_shape(), "HAll");
  expect_input(c, 7, r.kept_shape(r.width()), "ZRH");
  expect_input(c, 8, r.result_shape(), "dHAll");
  expect_input(c, 9, r.state_shape(), "dHFinal");
  const Shape shapes[] = {c.shape(0), c.shape(1), c.shape(2), {r.directions, 2 * r.width()}, r.state_shape()};
  for (size_t o = 0; o < c.output_count(); ++o)
    if (c.has_output(o)) c.output(o, c.dtype(0), shapes[o]);
}

// One step of one sample in the backward pass.
template <typename T>
struct GatesStep {
  const T* gates;   // z, reset, candidate
  const T* before;  // the state before the step
  T* changes;       // the gates' gradients, in the same order
  T* dh;            // the gradient of the state
  T* own;           // the factor of Rh in the forward pass; with linear_before_reset first s, then ds
};

// The gradients of z and of the candidate, and the part of dh that does not go through z and the candidate.
template <typename T>
void candidate_gradient(const GateActivation* act, int64_t h, const T* incoming, const GatesStep<T>& at) {
  const T *z = at.gates, *candidate = z + 2 * h, *before = at.before;
  T *dz = at.changes, *dc = dz + 2 * h, *dh = at.dh;
  for (int64_t j = 0; j < h; ++j) {
    if (incoming) dh[j] += incoming[j];
    dz[j] = dh[j] * (before[j] - candidate[j]);
    dc[j] = dh[j] * (1 - z[j]);
    dh[j] *= z[j];
  }
  act[0].scale_by_derivative(z, dz, h);
  act[1].scale_by_derivative(candidate, dc, h);
}

// The gradient of the reset gate with linear_before_reset, which multiplies Rh H.
template <typename T>
void linear_reset_gradient(const GateActivation* act, int64_t h, const T* bias, const GatesStep<T>& at) {
  const T* reset = at.gates + h;
  T *d_reset = at.changes + h, *dc = d_reset + h, *own = at.own;
  for (int64_t j = 0; j < h; ++j) {
    d_reset[j] = dc[j] * (own[j] + (bias ? bias[j] : T(0)));
    own[j] = dc[j] * reset[j];
  }
  act[0].scale_by_derivative(reset, d_reset, h);
}

// The gradient of the reset gate without linear_before_reset, where the gate multiplies the state; `change`
// is the gradient of r . H.
template <typename T>
void reset_gradient(const GateActivation* act, int64_t h, const T* change, const GatesStep<T>& at) {
  const T *reset = at.gates + h, *before = at.before;
  T *d_reset = at.changes + h, *own = at.own, *dh = at.dh;
  for (int64_t j = 0; j < h; ++j) {
    d_reset[j] = change[j] * before[j];
    own[j] = reset[j] * before[j];
    dh[j] += change[j] * reset[j];
  }
  act[0].scale_by_derivative(reset, d_reset, h);
}

// The memory from which the gradients of X, W, R and B are computed, once the gradients of the gates
// (`changes`) are known, and the memory of the results.
struct Gradients {
  Slot x, w, changes, inner, previous, dx, dw, dr, db;
};

template <typename T>
void write_gradients(const Recurrent& r, bool linear, const Frame& f, const Gradients& at,
                     const RowSums<T>& gate_sums, const RowSums<T>& inner_sums) {
  const int64_t h = r.hidden, n = r.width();
  const T *all = f.at<T>(at.changes), *own = f.at<T>(at.inner), *before = f.at<T>(at.previous);
  if (at.dx.defined()) sequence_gradient<T>(r, all, f.at<T>(at.w), f.at<T>(at.dx));
  if (at.dw.defined())
    transposed_product<T>(r, {all, n, 0, n}, {f.at<T>(at.x), r.input, 0, r.input}, true, f.at<T>(at.dw),
                          n * r.input);
  if (at.dr.defined()) {
    T* to = f.at<T>(at.dr);
    transposed_product<T>(r, {all, n, 0, 2 * h}, {before, h, 0, h}, false, to, n * h);
    if (linear)
      transposed_product<T>(r, {own, h, 0, h}, {before, h, 0, h}, false, to + 2 * h * h, n * h);
    else
      transposed_product<T>(r, {all, n, 2 * h, h}, {own, h, 0, h}, false, to + 2 * h * h, n * h);
  }
  if (at.db.defined()) {
    T* to = f.at<T>(at.db);
    gate_sums.run_twice(f, all, to);
    if (linear) inner_sums.run(f, own, to + n + 2 * h, 2 * n);
  }
}

template <typename T>
Kernel backward(KernelContext& c) {
  const Recurrent r = read_recurrent(c, 3);
  const auto activations = read_activations(c, r, kActivations);
  const bool linear = c.node().int_or("linear_before_reset", 0) != 0;
  const auto optional = [&](size_t i) { return c.has_input(i) ? c.in(i) : Slot{}; };
  const Slot x = c.in(0), w = c.in(1), bias = optional(3), initial = optional(5);
  const Lengths lengths(c, 4, r);
  const Slot y = c.in(6), gates = c.in(7), dy = optional(8), dy_h = optional(9);
  const auto wanted = [&](size_t o) { return c.has_output(o) ? c.out(o) : Slot{}; };
  const Slot dx = wanted(0), dw = wanted(1), dr = wanted(2), db = wanted(3), dinitial = wanted(4);
  const int64_t h = r.hidden, n = r.width();
  // of_gates and of_candidate multiply gradients of gates with R. With linear_before_reset, of_states
  // recomputes H Rhᵀ of the forward pass.
  const StepProduct<T> of_gates(c, r, c.in(2), 0, 2 * h, false), of_candidate(c, r, c.in(2), 2 * h, h, false),
      of_states(c, r, c.in(2), 2 * h, h, true);
  const RowSums<T> gate_sums(c, r, n, db.defined()), inner_sums(c, r, h, db.defined() && linear);
  const size_t kept = static_cast<size_t>(r.directions * r.rows()) * sizeof(T);
  const Slot changes = c.scratch(kept * static_cast<size_t>(n)),
             previous = c.scratch(kept * static_cast<size_t>(h));
  // For each row the factor of Rh in the forward pass, r . H. With linear_before_reset, first H Rhᵀ, and then
  // ds.
  const Slot inner = c.scratch(kept * static_cast<size_t>(h));
  const size_t state_bytes = static_cast<size_t>(r.directions * r.batch * h) * sizeof(T);
  const Slot held = c.scratch(state_bytes), work = c.scratch(state_bytes);
  return [=](const Frame& f) {
    lengths.check(f);
    of_gates.prepare(f), of_candidate.prepare(f);
    if (linear) of_states.prepare(f);
    state_in<T>(r, f.at_or_null<T>(dy_h), f.at<T>(held));
    gather_previous<T>(r, f, lengths, f.at<T>(y), f.at_or_null<T>(initial), f.at<T>(previous));
    const T* incoming = f.at_or_null<T>(dy);
    for_samples(r, [&](int64_t d, int64_t first, int64_t last) {
      const GateActivation* act = &activations[static_cast<size_t>(2 * d)];
      const int64_t offset = d * r.rows(), count = last - first;
      T *states = f.at<T>(held) + d * r.batch * h, *part = f.at<T>(work) + d * r.batch * h;
      T *all = f.at<T>(changes) + offset * n, *all_inner = f.at<T>(inner) + offset * h;
      const T *all_gates = f.at<T>(gates) + offset * n, *all_previous = f.at<T>(previous) + offset * h;
      const T* candidate_bias = bias.defined() ? f.at<T>(bias) + d * 2 * n + n + 2 * h : nullptr;
      const auto step_of = [&](int64_t t, int64_t s) {
        const int64_t row = r.row(t, s);
        return GatesStep<T>{all_gates + row * n, all_previous + row * h, all + row * n, states + s * h,
                            all_inner + row * h};
      };
      for (int64_t k = 0; k < r.steps; ++k) {
        const int64_t t = r.backward(d) ? k : r.steps - 1 - k, at = r.row(t, first),
                      row_step = r.sample_rows();
        if (linear)
          of_states.run(f, d, count, {all_previous + at * h, row_step * h, 1}, false, all_inner + at * h,
                        row_step * h);
        for (int64_t s = first; s < last; ++s) {
          const GatesStep<T> step = step_of(t, s);
          if (t < lengths.of(f, s)) {
            candidate_gradient(act, h, incoming ? incoming + r.result(t, d, s) : nullptr, step);
            if (linear) linear_reset_gradient(act, h, candidate_bias, step);
          } else {
            std::fill_n(step.changes, n, T(0));
            std::fill_n(step.own, h, T(0));
          }
        }
        if (linear) {
          of_candidate.run(f, d, count, {all_inner + at * h, row_step * h, 1}, true, states + first * h, h);
        } else {
          of_candidate.run(f, d, count, {all + at * n + 2 * h, row_step * n, 1}, false, part + first * h, h);
          for (int64_t s = first; s < last; ++s) {
            if (t < lengths.of(f, s)) reset_gradient(act, h, part + s * h, step_of(t, s));
          }
        }
        of_gates.run(f, d, count, {all + at * n, row_step * n, 1}, true, states + first * h, h);
      }
    });
    if (dinitial.defined()) state_out<T>(r, f.at<T>(held), f.at<T>(dinitial));
    write_gradients<T>(r, linear, f, {x, w, changes, inner, previous, dx, dw, dr, db}, gate_sums, inner_sums);
  };
}

Kernel gradient_kernel(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return backward<decltype(zero)>(c); });
}

void gradient(GradientContext& g) {
  const Name dy = dy_or_empty(g, 0), dy_h = dy_or_empty(g, 1);
  g.retype_node("GRUTraining", kMicrosoft);
  const Name y = g.want_y(0), kept = g.want_y(2);
  const auto gradients = g.emit(
      "GRUGrad",
      {g.x(0), g.x(1), g.x(2), x_or_empty(g, 3), x_or_empty(g, 4), x_or_empty(g, 5), y, kept, dy, dy_h}, 5,
      g.node().attributes, kMicrosoft);
  const size_t of[] = {0, 1, 2, 3, 5};
  set_gradients(g, of, gradients);
}

ORTRAIN_OPERATOR({.type = "GRU",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "GRUTraining",
                  .signature = "X, W, R, B?, SL?, Ht0? -> HAll?, HFinal?, ZRH?",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR(
    {.domain = kMicrosoft,
     .type = "GRUGrad",
     .signature = "X, W, R, B?, SL?, Ht0?, HAll?, ZRH?, dHAll?, dHFinal? -> dX?, dW?, dR?, dB?, dH0?",
     .rules = {.shape = gradient_shape},
     .traits = {.optional_outputs = true},
     .kernels = {.cpu = gradient_kernel}});

}  // namespace
}  // namespace ortrain
