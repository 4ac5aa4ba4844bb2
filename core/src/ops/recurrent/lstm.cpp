// LSTM, com.microsoft LSTMTraining (which saves the values that the backward pass needs) and LSTMGrad.
//
//   i = f(X_t Wiᵀ + H_(t-1) Riᵀ + Pi . C_(t-1) + Wbi + Rbi), likewise f; c~ = g(...) without a peephole
//   C_t = f . C_(t-1) + i . c~,  o = f(... + Po . C_t),  H_t = o . h(C_t);  with input_forget f = 1 - i
//
// S. Hochreiter, J. Schmidhuber, "Long short-term memory", Neural Computation 9, 1997. The gates of a row are
// kept after their activations, in the order i, o, f, c~. clip bounds the arguments of f and g but not the
// argument of h, the cell, as in onnxruntime.
//
// Compiled for speed: loops over gates (CMakeLists.txt).
#include "ops/recurrent/lstm.h"

#include <utility>

#include "backend/cpu/recurrent/lstm_cell.h"
#include "op/floating_kernel.h"

namespace ortrain {
namespace {

const std::vector<std::string_view> kActivations = {"Sigmoid", "Tanh", "Tanh"};

std::vector<GateActivation> functions_of(const NodeContext& c, const Recurrent& r) {
  std::vector<GateActivation> functions = read_activations(c, r, kActivations);
  for (size_t i = 2; i < functions.size(); i += 3) functions[i] = functions[i].unclipped();
  return functions;
}

// Whether lstm_cell can compute the steps: sigmoid and tanh without limits, no peepholes, no coupled gates.
bool is_usual(const NodeContext& c, size_t peepholes, const std::vector<GateActivation>& activations) {
  bool usual = !c.has_input(peepholes) && c.node().int_or("input_forget", 0) == 0;
  for (size_t i = 0; i < activations.size(); ++i)
    usual = usual && activations[i].is(i % 3 == 0 ? ActivationKind::kSigmoid : ActivationKind::kTanh);
  return usual;
}

// to[j] = value(j) for j < n, and also[j] if it is not null.
template <typename T, typename F>
void set(int64_t n, T* to, T* also, F value) {
  for (int64_t j = 0; j < n; ++j) to[j] = value(j);
  if (also) std::copy_n(to, n, also);
}

}  // namespace

void lstm_shape(ShapeContext& c, const Recurrent& r) {
  expect_lengths(c, 4, r);
  expect_input(c, 5, r.state_shape(), "initial_h");
  expect_input(c, 6, r.state_shape(), "initial_c");
  expect_input(c, 7, {r.directions, 3 * r.hidden}, "P");
  read_activations(c, r, kActivations);
  const Shape shapes[] = {r.result_shape(), r.state_shape(), r.state_shape(), r.kept_shape(r.hidden),
                          r.kept_shape(r.width())};
  for (size_t o = 0; o < c.output_count(); ++o)
    if (c.has_output(o)) c.output(o, c.dtype(0), shapes[o]);
}

template <typename T>
Kernel lstm_forward(KernelContext& c, const Recurrent& r, LstmProducts<T> products) {
  const auto activations = functions_of(c, r);
  const bool coupled = c.node().int_or("input_forget", 0) != 0, usual = is_usual(c, 7, activations);
  const auto optional = [&](size_t i) { return c.has_input(i) ? c.in(i) : Slot{}; };
  const Lengths lengths(c, 4, r);
  const Slot initial_h = optional(5), initial_c = optional(6), peepholes = optional(7);
  const auto wanted = [&](size_t o) { return c.has_output(o) ? c.out(o) : Slot{}; };
  const Slot y = wanted(0), y_h = wanted(1), y_c = wanted(2), cells = wanted(3), kept_gates = wanted(4);
  const int64_t h = r.hidden, n = r.width();
  const Slot gates = kept_gates.defined()
                         ? kept_gates
                         : c.scratch(static_cast<size_t>(r.directions * r.rows() * n) * sizeof(T));
  const size_t state_bytes = static_cast<size_t>(r.directions * r.batch * h) * sizeof(T);
  const Slot held_h = c.scratch(state_bytes), held_c = c.scratch(state_bytes);
  return [=](const Frame& f) {
    lengths.check(f);
    products.inputs(f, f.at<T>(gates));
    state_in<T>(r, f.at_or_null<T>(initial_h), f.at<T>(held_h));
    state_in<T>(r, f.at_or_null<T>(initial_c), f.at<T>(held_c));
    T *results = f.at_or_null<T>(y), *kept = f.at_or_null<T>(cells);
    for_samples(r, [&](int64_t d, int64_t first, int64_t last) {
      const GateActivation* act = &activations[static_cast<size_t>(3 * d)];
      T *states = f.at<T>(held_h) + d * r.batch * h, *carried = f.at<T>(held_c) + d * r.batch * h;
      T* all = f.at<T>(gates) + d * r.rows() * n;
      const T* p = peepholes.defined() ? f.at<T>(peepholes) + d * 3 * h : nullptr;
      const T* bias = products.bias.defined() ? f.at<T>(products.bias) + d * n : nullptr;
      for (int64_t k = 0; k < r.steps; ++k) {
        const int64_t t = r.backward(d) ? r.steps - 1 - k : k;
        products.states(f, d, first, last, states + first * h, all + r.row(t, first) * n,
                        r.sample_rows() * n);
        for (int64_t s = first; s < last; ++s) {
          T *i = all + r.row(t, s) * n, *o = i + h, *forget = o + h, *candidate = forget + h;
          T *cell = carried + s * h, *state = states + s * h;
          T* result = results ? results + r.result(t, d, s) : nullptr;
          T* kept_cell = kept ? kept + (d * r.rows() + r.row(t, s)) * h : nullptr;
          if (t >= lengths.of(f, s)) {
            if (result) std::fill_n(result, h, T(0));
            if (kept_cell) std::fill_n(kept_cell, h, T(0));
            continue;
          }
          if (usual) {
            lstm_cell<T>(h, {i, bias, cell, state, kept_cell, result});
            continue;
          }
          for (int64_t j = 0; bias && j < n; ++j) i[j] += bias[j];
          if (p)
            for (int64_t j = 0; j < h; ++j) {
              i[j] += p[j] * cell[j];
              forget[j] += p[2 * h + j] * cell[j];
            }
          if (p || coupled)
            act[0].apply(i, h);
          else
            act[0].apply(i, 3 * h);  // i, o and f
          if (coupled)
            for (int64_t j = 0; j < h; ++j) forget[j] = 1 - i[j];
          else if (p)
            act[0].apply(forget, h);
          act[1].apply(candidate, h);
          set(h, cell, kept_cell, [=](int64_t j) { return forget[j] * cell[j] + i[j] * candidate[j]; });
          if (p)
            for (int64_t j = 0; j < h; ++j) o[j] += p[h + j] * cell[j];
          if (p || coupled) act[0].apply(o, h);
          act[2].apply(cell, state, h);
          set(h, state, result, [=](int64_t j) { return state[j] * o[j]; });
        }
      }
    });
    if (y_h.defined()) state_out<T>(r, f.at<T>(held_h), f.at<T>(y_h));
    if (y_c.defined()) state_out<T>(r, f.at<T>(held_c), f.at<T>(y_c));
  };
}

template Kernel lstm_forward<float>(KernelContext&, const Recurrent&, LstmProducts<float>);
template Kernel lstm_forward<double>(KernelContext&, const Recurrent&, LstmProducts<double>);

namespace {

void shape(ShapeContext& c) {
  const Recurrent r = read_recurrent(c, 4);
  expect_input(c, 3, {r.directions, 2 * r.width()}, "B");
  lstm_shape(c, r);
}

template <typename T>
Kernel forward(KernelContext& c) {
  const Recurrent r = read_recurrent(c, 4);
  const Slot x = c.in(0), w = c.in(1), bias = c.has_input(3) ? c.in(3) : Slot{};
  const StepProduct<T> of_states(c, r, c.in(2), 0, r.width(), true);
  LstmProducts<T> products;
  const int64_t n = r.width();
  if (bias.defined()) products.bias = c.scratch(static_cast<size_t>(r.directions * n) * sizeof(T));
  products.inputs = [=, sums = products.bias](const Frame& f, T* gates) {
    of_states.prepare(f);
    for (int64_t d = 0; bias.defined() && d < r.directions; ++d) {
      const T *of_inputs = f.at<T>(bias) + 2 * d * n, *of_recurrent = of_inputs + n;
      for (int64_t j = 0; j < n; ++j) f.at<T>(sums)[d * n + j] = of_inputs[j] + of_recurrent[j];
    }
    input_products<T>(r, f.at<T>(x), f.at<T>(w), nullptr, 0, gates);
  };
  products.states = [=](const Frame& f, int64_t d, int64_t first, int64_t last, const T* states, T* gates,
                        int64_t step) {
    of_states.run(f, d, last - first, {states, r.hidden, 1}, true, gates, step);
  };
  return lstm_forward<T>(c, r, std::move(products));
}

Kernel kernel(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return forward<decltype(zero)>(c); });
}

// LSTMGrad(X, W, R, sequence_lens?, initial_h?, initial_c?, HAll, CAll, iofc, dHAll?, dHFinal?, dCFinal?, P?)
// -> dX?, dW?, dR?, dB?, dinitial_h?, dinitial_c?, dP?. The last input exists if the layer has
// peepholes.
void gradient_shape(ShapeContext& c) {
  const Recurrent r = read_recurrent(c, 4);
  for (const size_t i : {6, 7, 8})
    c.expect(c.has_input(i), "input ", i, " is missing: the values saved by the forward pass");
  expect_lengths(c, 3, r);
  expect_input(c, 4, r.state_shape(), "initial_h");
  expect_input(c, 5, r.state_shape(), "initial_c");
  expect_input(c, 6, r.result_shape(), "HAll");
  expect_input(c, 7, r.kept_shape(r.hidden), "CAll");
  expect_input(c, 8, r.kept_shape(r.width()), "iofc");
  expect_input(c, 9, r.result_shape(), "dHAll");
  expect_input(c, 10, r.state_shape(), "dHFinal");
  expect_input(c, 11, r.state_shape(), "dCFinal");
  expect_input(c, 12, {r.directions, 3 * r.hidden}, "P");
  const Shape shapes[] = {c.shape(0),
                          c.shape(1),
                          c.shape(2),
                          {r.directions, 2 * r.width()},
                          r.state_shape(),
                          r.state_shape(),
                          {r.directions, 3 * r.hidden}};
  for (size_t o = 0; o < c.output_count(); ++o)
    if (c.has_output(o)) c.output(o, c.dtype(0), shapes[o]);
}

// One step of one sample in the backward pass.
template <typename T>
struct CellStep {
  const T* gates;      // i, o, forget, candidate
  const T* cell;       // after the step
  const T* last_cell;  // before the step, null if it is zero
  T* changes;          // the gates' gradients, in the same order
  T *dh, *dc;          // the gradients of state and cell; dc becomes the gradient of last_cell
  T* work;             // three rows
  T* products;         // the products that are summed to dP, or null
};

template <typename T>
void cell_gradient(const GateActivation* act, bool coupled, int64_t h, const T* p, const CellStep<T>& at) {
  const T *i = at.gates, *o = i + h, *forget = o + h, *candidate = forget + h, *cell = at.cell;
  T *di = at.changes, *d_o = di + h, *df = d_o + h, *dg = df + h, *dh = at.dh, *dc = at.dc;
  T *out = at.work, *d_out = out + h, *zeros = d_out + h, *products = at.products;
  if (!at.last_cell) std::fill_n(zeros, h, T(0));
  const T* earlier = at.last_cell ? at.last_cell : zeros;
  act[2].apply(cell, out, h);
  for (int64_t j = 0; j < h; ++j) {
    d_o[j] = dh[j] * out[j];
    d_out[j] = dh[j] * o[j];
  }
  act[2].scale_by_derivative(out, d_out, h);
  act[0].scale_by_derivative(o, d_o, h);
  for (int64_t j = 0; j < h; ++j) {
    dc[j] += d_out[j] + (p ? p[h + j] * d_o[j] : T(0));
    di[j] = dc[j] * candidate[j];
    dg[j] = dc[j] * i[j];
    df[j] = dc[j] * earlier[j];
  }
  if (coupled)
    for (int64_t j = 0; j < h; ++j) {
      di[j] -= df[j];
      df[j] = 0;
    }
  else
    act[0].scale_by_derivative(forget, df, h);
  act[0].scale_by_derivative(i, di, h);
  act[1].scale_by_derivative(candidate, dg, h);
  for (int64_t j = 0; j < h; ++j)
    dc[j] = dc[j] * forget[j] + (p ? p[j] * di[j] + p[2 * h + j] * df[j] : T(0));
  if (products)
    for (int64_t j = 0; j < h; ++j) {
      products[j] = di[j] * earlier[j];
      products[h + j] = d_o[j] * cell[j];
      products[2 * h + j] = df[j] * earlier[j];
    }
}

// The cell of sample s before step t, null if it is zero; `initial` may be null.
template <typename T>
const T* cell_before(const Recurrent& r, int64_t d, int64_t t, int64_t s, int64_t length, const T* cells,
                     const T* initial) {
  if (t == (r.backward(d) ? length - 1 : 0)) return initial ? initial + r.state(d, s) : nullptr;
  return cells + r.row(r.backward(d) ? t + 1 : t - 1, s) * r.hidden;
}

template <typename T>
Kernel backward(KernelContext& c) {
  const Recurrent r = read_recurrent(c, 4);
  const auto activations = functions_of(c, r);
  const bool coupled = c.node().int_or("input_forget", 0) != 0, usual = is_usual(c, 12, activations);
  const auto optional = [&](size_t i) { return c.has_input(i) ? c.in(i) : Slot{}; };
  const Slot x = c.in(0), w = c.in(1), initial_h = optional(4), initial_c = optional(5);
  const StepProduct<T> of_changes(c, r, c.in(2), 0, r.width(), false);
  const Lengths lengths(c, 3, r);
  const Slot y = c.in(6), cells = c.in(7), gates = c.in(8);
  const Slot dy = optional(9), dy_h = optional(10), dy_c = optional(11), peepholes = optional(12);
  const auto wanted = [&](size_t o) { return c.has_output(o) ? c.out(o) : Slot{}; };
  const Slot dx = wanted(0), dw = wanted(1), dr = wanted(2), db = wanted(3), dh0 = wanted(4), dc0 = wanted(5),
             dp = wanted(6);
  const int64_t h = r.hidden, n = r.width();
  const size_t kept = static_cast<size_t>(r.directions * r.rows()) * sizeof(T);
  const Slot changes = c.scratch(kept * static_cast<size_t>(n));
  const StateWeightGradient<T> weight_gradient(c, r, lengths, dr.defined());
  const RowSums<T> bias_gradient(c, r, n, db.defined()), peephole_gradient(c, r, 3 * h, dp.defined());
  // For dP: the products of the cells with the gates' gradients.
  const Slot peeped = c.scratch(dp.defined() ? kept * static_cast<size_t>(3 * h) : 0);
  const size_t state_bytes = static_cast<size_t>(r.directions * r.batch * h) * sizeof(T);
  const Slot held_h = c.scratch(state_bytes), held_c = c.scratch(state_bytes),
             work = c.scratch(3 * state_bytes);
  return [=](const Frame& f) {
    lengths.check(f);
    of_changes.prepare(f);
    state_in<T>(r, f.at_or_null<T>(dy_h), f.at<T>(held_h));
    state_in<T>(r, f.at_or_null<T>(dy_c), f.at<T>(held_c));
    const T *incoming = f.at_or_null<T>(dy), *before = f.at_or_null<T>(initial_c);
    for_samples(r, [&](int64_t d, int64_t first, int64_t last) {
      const GateActivation* act = &activations[static_cast<size_t>(3 * d)];
      T *states = f.at<T>(held_h) + d * r.batch * h, *carried = f.at<T>(held_c) + d * r.batch * h;
      T* all = f.at<T>(changes) + d * r.rows() * n;
      const T *all_gates = f.at<T>(gates) + d * r.rows() * n, *all_cells = f.at<T>(cells) + d * r.rows() * h;
      const T* p = peepholes.defined() ? f.at<T>(peepholes) + d * 3 * h : nullptr;
      for (int64_t k = 0; k < r.steps; ++k) {
        const int64_t t = r.backward(d) ? k : r.steps - 1 - k;
        for (int64_t s = first; s < last; ++s) {
          T* di = all + r.row(t, s) * n;
          T* products = dp.defined() ? f.at<T>(peeped) + (d * r.rows() + r.row(t, s)) * 3 * h : nullptr;
          const int64_t length = lengths.of(f, s);
          if (t >= length) {
            std::fill_n(di, n, T(0));
            if (products) std::fill_n(products, 3 * h, T(0));
            continue;
          }
          const T* cell = all_cells + r.row(t, s) * h;
          const T* last_cell = cell_before(r, d, t, s, length, all_cells, before);
          T *dh = states + s * h, *dc = carried + s * h;
          const T *own_gates = all_gates + r.row(t, s) * n,
                  *own_dy = incoming ? incoming + r.result(t, d, s) : nullptr;
          if (usual) {
            lstm_cell_gradient<T>(h, {own_gates, cell, last_cell, dh, own_dy, dc, di});
          } else {
            for (int64_t j = 0; own_dy && j < h; ++j) dh[j] += own_dy[j];
            cell_gradient(act, coupled, h, p,
                          {own_gates, cell, last_cell, di, dh, dc, f.at<T>(work) + 3 * (d * r.batch + s) * h,
                           products});
          }
          if (lengths.given()) std::fill_n(dh, h, T(0));
        }
        of_changes.run(f, d, last - first, {all + r.row(t, first) * n, r.sample_rows() * n, 1},
                       lengths.given(), states + first * h, h);
      }
    });
    if (dh0.defined()) state_out<T>(r, f.at<T>(held_h), f.at<T>(dh0));
    if (dc0.defined()) state_out<T>(r, f.at<T>(held_c), f.at<T>(dc0));
    const T* all = f.at<T>(changes);
    if (dx.defined()) sequence_gradient<T>(r, all, f.at<T>(w), f.at<T>(dx));
    if (dw.defined())
      transposed_product<T>(r, {all, n, 0, n}, {f.at<T>(x), r.input, 0, r.input}, true, f.at<T>(dw),
                            n * r.input);
    if (dr.defined()) weight_gradient.run(f, all, f.at<T>(y), f.at_or_null<T>(initial_h), f.at<T>(dr));
    if (db.defined()) bias_gradient.run_twice(f, all, f.at<T>(db));
    if (dp.defined()) peephole_gradient.run(f, f.at<T>(peeped), f.at<T>(dp), 3 * h);
  };
}

Kernel gradient_kernel(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return backward<decltype(zero)>(c); });
}

void gradient(GradientContext& g) {
  const Name dy = dy_or_empty(g, 0), dy_h = dy_or_empty(g, 1), dy_c = dy_or_empty(g, 2);
  g.retype_node("LSTMTraining", kMicrosoft);
  Names inputs = {g.x(0), g.x(1), g.x(2)};
  for (const size_t i : {4, 5, 6}) inputs.push_back(x_or_empty(g, i));
  for (const size_t o : {0, 3, 4}) inputs.push_back(g.want_y(o));
  inputs.insert(inputs.end(), {dy, dy_h, dy_c});
  if (g.has_x(7)) inputs.push_back(g.x(7));
  const auto gradients = g.emit("LSTMGrad", inputs, g.has_x(7) ? 7 : 6, g.node().attributes, kMicrosoft);
  const size_t of[] = {0, 1, 2, 3, 5, 6, 7};
  set_gradients(g, of, gradients);
}

ORTRAIN_OPERATOR({.type = "LSTM",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "LSTMTraining",
                  .signature = "X, W, R, B?, SL?, Ht0?, Ct0?, P? -> HAll?, HFinal?, CFinal?, CAll?, iofc?",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "LSTMGrad",
                  .signature = "X, W, R, SL?, Ht0?, Ct0?, HAll?, CAll?, iofc?, dHAll?, dHFinal?, dCFinal?, "
                               "P? -> dX?, dW?, dR?, dB?, dH0?, dC0?, dP?",
                  .rules = {.shape = gradient_shape},
                  .traits = {.optional_outputs = true},
                  .kernels = {.cpu = gradient_kernel}});

}  // namespace
}  // namespace ortrain
