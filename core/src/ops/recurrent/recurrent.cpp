#include "ops/recurrent/recurrent.h"
#include "backend/cpu/tuning.h"

#include <cctype>

namespace ortrain {

namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

template <typename V>
V list_or_empty(const Node& node, const std::string& name) {
  const auto it = node.attributes.find(name);
  if (it == node.attributes.end()) return {};
  const V* list = std::get_if<V>(&it->second);
  require(list != nullptr, ErrorCode::kInvalidGraph, node.label(), ": the attribute '", name,
          "' is not a list of the right type");
  return *list;
}

}  // namespace

Shape Recurrent::kept_shape(int64_t n) const {
  const Shape sequence = sequence_shape(n);
  if (directions == 1) return {sequence[0], 1, sequence[1], n};
  return {directions, sequence[0], sequence[1], n};
}

Recurrent read_recurrent(const NodeContext& c, int64_t gates, int64_t hidden) {
  c.expect(c.rank(0) == 3, "X must have three axes, found shape ", to_string(c.shape(0)));
  const std::string direction = c.node().string_or("direction", "forward");
  c.expect(direction == "forward" || direction == "reverse" || direction == "bidirectional",
           "direction must be 'forward', 'reverse' or 'bidirectional', found '", direction, "'");
  const int64_t layout = c.node().int_or("layout", 0);
  c.expect(layout == 0 || layout == 1, "layout must be 0 or 1, found ", layout);
  Recurrent r;
  r.batch_first = layout == 1;
  r.steps = c.shape(0)[r.batch_first ? 1 : 0];
  r.batch = c.shape(0)[r.batch_first ? 0 : 1];
  r.input = c.shape(0)[2];
  r.directions = direction == "bidirectional" ? 2 : 1;
  r.reverse = direction == "reverse";
  r.gates = gates;
  r.hidden = hidden;
  c.expect(hidden > 0, "R must have at least one column, found shape ", to_string(c.shape(2)));
  c.expect(!c.node().has("hidden_size") || c.node().int_or("hidden_size", 0) == hidden, "hidden_size is ",
           c.node().int_or("hidden_size", 0), ", but R has shape ", to_string(c.shape(2)));
  return r;
}

Recurrent read_recurrent(const NodeContext& c, int64_t gates) {
  c.expect(c.rank(1) == 3 && c.rank(2) == 3, "W and R must have three axes, found shapes ",
           to_string(c.shape(1)), " and ", to_string(c.shape(2)));
  const Recurrent r = read_recurrent(c, gates, c.shape(2)[2]);
  expect_input(c, 1, {r.directions, r.width(), r.input}, "W");
  expect_input(c, 2, {r.directions, r.width(), r.hidden}, "R");
  return r;
}

void expect_input(const NodeContext& c, size_t i, const Shape& shape, const char* what) {
  if (!c.has_input(i)) return;
  c.expect(c.dtype(i) == c.dtype(0), what, " must have the type of X, ", to_string(c.dtype(0)), ", found ",
           to_string(c.dtype(i)));
  c.expect(c.shape(i) == shape, what, " must have shape ", to_string(shape), ", found ",
           to_string(c.shape(i)));
}

void expect_lengths(const NodeContext& c, size_t i, const Recurrent& r) {
  if (c.has_input(i))
    c.expect(c.dtype(i) == DType::kInt32 && c.shape(i) == Shape{r.batch},
             "sequence_lens must be int32 of shape ", to_string(Shape{r.batch}), ", found ",
             to_string(c.dtype(i)), " ", to_string(c.shape(i)));
}

Lengths::Lengths(KernelContext& c, size_t i, const Recurrent& r) : steps_(r.steps), batch_(r.batch) {
  if (!c.has_input(i)) return;
  slot_ = c.in(i);
  label_ = c.node().label();
}

void Lengths::check(const Frame& f) const {
  if (!slot_.defined()) return;
  for (int64_t b = 0; b < batch_; ++b)
    require(of(f, b) >= 0 && of(f, b) <= steps_, ErrorCode::kInvalidArgument, label_, ": sequence_lens[", b,
            "] must be in [0, ", steps_, "], found ", of(f, b));
}

std::vector<ActivationChoice> choose_activations(const Node& node, size_t directions,
                                                 const std::vector<std::string_view>& defaults) {
  using Kind = ActivationKind;
  struct Row {
    std::string_view name;
    Kind kind;
    std::string_view function;
    UnaryFunction (*kernel)(DType);
    int parameters;
    double alpha, beta;
  };
  static const Row rows[] = {
      {"Affine", Kind::kAffine, "", nullptr, 2, 1, 0},
      {"Relu", Kind::kRelu, "Relu", unary::Relu, 0, 0, 0},
      {"LeakyRelu", Kind::kLeakyRelu, "LeakyRelu", unary::LeakyRelu, 1, 0.01f, 0},
      {"ThresholdedRelu", Kind::kThresholdedRelu, "ThresholdedRelu", unary::ThresholdedRelu, 1, 1, 0},
      {"Tanh", Kind::kTanh, "Tanh", unary::Tanh, 0, 0, 0},
      {"ScaledTanh", Kind::kScaledTanh, "Tanh", unary::Tanh, 2, 1, 1},
      {"Sigmoid", Kind::kSigmoid, "Sigmoid", unary::Sigmoid, 0, 0, 0},
      {"HardSigmoid", Kind::kHardSigmoid, "HardSigmoid", unary::HardSigmoid, 2, 0.2f, 0.5},
      {"Elu", Kind::kElu, "Elu", unary::Elu, 1, 1, 0},
      {"Softsign", Kind::kSoftsign, "Softsign", unary::Softsign, 0, 0, 0},
      {"Softplus", Kind::kSoftplus, "Softplus", unary::Softplus, 0, 0, 0},
  };
  const auto expect = [&](bool condition, const auto&... parts) {
    require(condition, ErrorCode::kInvalidGraph, node.label(), ": ", parts...);
  };
  const auto names = list_or_empty<std::vector<std::string>>(node, "activations");
  const auto alphas = list_or_empty<std::vector<float>>(node, "activation_alpha");
  const auto betas = list_or_empty<std::vector<float>>(node, "activation_beta");
  const size_t count = defaults.size() * directions;
  expect(names.empty() || names.size() == count, "activations must name ", counted(count, "function"),
         ", found ", names.size());
  std::vector<ActivationChoice> out;
  // The functions that have alpha or beta take the values of these attributes in order.
  size_t next_alpha = 0, next_beta = 0;
  for (size_t i = 0; i < count; ++i) {
    const std::string_view name = names.empty() ? defaults[i % defaults.size()] : names[i];
    const Row* row = std::find_if(std::begin(rows), std::end(rows),
                                  [&](const Row& known) { return lower(known.name) == lower(name); });
    expect(row != std::end(rows), "there is no activation function '", name, "'");
    ActivationChoice a{row->kind, row->function, row->kernel, row->alpha, row->beta};
    if (row->parameters > 0 && next_alpha < alphas.size())
      a.alpha = static_cast<double>(alphas[next_alpha++]);
    if (row->parameters > 1 && next_beta < betas.size()) a.beta = static_cast<double>(betas[next_beta++]);
    // The derivative is computed from the function's value, which must tell on which side of zero the
    // argument was.
    expect((a.kind != Kind::kLeakyRelu && a.kind != Kind::kElu) || a.alpha >= 0, "alpha of ", row->name,
           " must not be negative, found ", a.alpha);
    out.push_back(a);
  }
  expect(next_alpha == alphas.size() && next_beta == betas.size(),
         "there are more values of activation_alpha or activation_beta than functions that take one");
  return out;
}

std::vector<GateActivation> read_activations(const NodeContext& c, const Recurrent& r,
                                             const std::vector<std::string_view>& defaults) {
  const auto choices = choose_activations(c.node(), static_cast<size_t>(r.directions), defaults);
  const bool clips = c.node().has("clip");
  const double clip = static_cast<double>(c.node().float_or("clip", 0));
  c.expect(!clips || clip > 0, "clip must be positive, found ", clip);
  if (!is_floating(c.dtype(0))) c.reject_dtype(0);
  std::vector<GateActivation> out;
  for (const ActivationChoice& choice : choices) {
    GateActivation a;
    a.kind_ = choice.kind, a.alpha_ = choice.alpha, a.beta_ = choice.beta;
    if (choice.kernel) {
      a.function_ = choice.kernel(c.dtype(0));
      a.function_.a = a.alpha_, a.function_.b = a.beta_;
    }
    if (clips) {
      a.clip_ = clip;
      visit_floating(c.dtype(0), [&](auto zero) {
        decltype(zero) limits[2] = {static_cast<decltype(zero)>(-clip), static_cast<decltype(zero)>(clip)};
        a.apply(limits, 2);
        a.at_limits_[0] = static_cast<double>(limits[0]), a.at_limits_[1] = static_cast<double>(limits[1]);
      });
    }
    out.push_back(a);
  }
  return out;
}

template <typename T>
void GateActivation::apply(const T* x, T* y, int64_t n) const {
  const T alpha = static_cast<T>(alpha_), beta = static_cast<T>(beta_);
  if (clip_ != HUGE_VAL) {
    const T limit = static_cast<T>(clip_);
    for (int64_t i = 0; i < n; ++i) y[i] = std::min(std::max(x[i], -limit), limit);
    x = y;
  }
  if (kind_ == Kind::kAffine) {
    for (int64_t i = 0; i < n; ++i) y[i] = alpha * x[i] + beta;
    return;
  }
  if (kind_ == Kind::kScaledTanh) {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] * beta;
    x = y;
  }
  function_(x, y, n);
  if (kind_ == Kind::kScaledTanh)
    for (int64_t i = 0; i < n; ++i) y[i] *= alpha;
}

template <typename T>
void GateActivation::scale_by_derivative(const T* y, T* d, int64_t n) const {
  const T alpha = static_cast<T>(alpha_), beta = static_cast<T>(beta_);
  const auto scale = [&](auto derivative) {
    for (int64_t i = 0; i < n; ++i) d[i] *= derivative(y[i]);
  };
  switch (kind_) {
    case Kind::kAffine:
      scale([&](T) { return alpha; });
      break;
    case Kind::kRelu:
      scale([](T v) { return T(v > 0); });
      break;
    case Kind::kLeakyRelu:
      scale([&](T v) { return v > 0 ? T(1) : alpha; });
      break;
    case Kind::kThresholdedRelu:
      scale([](T v) { return T(v != 0); });
      break;
    case Kind::kTanh:
      scale([](T v) { return 1 - v * v; });
      break;
    case Kind::kScaledTanh:  // alpha beta (1 - (y / alpha)²)
      scale([&](T v) { return alpha == 0 ? T(0) : beta * (alpha - v * v / alpha); });
      break;
    case Kind::kSigmoid:
      scale([](T v) { return v * (1 - v); });
      break;
    case Kind::kHardSigmoid:
      scale([&](T v) { return v > 0 && v < 1 ? alpha : T(0); });
      break;
    case Kind::kElu:
      scale([&](T v) { return v < 0 ? v + alpha : T(1); });
      break;
    case Kind::kSoftsign:
      scale([](T v) { return (1 - std::abs(v)) * (1 - std::abs(v)); });
      break;
    case Kind::kSoftplus:
      scale([](T v) { return -std::expm1(-v); });
      break;
  }
  if (clip_ == HUGE_VAL) return;
  const T low = static_cast<T>(at_limits_[0]), high = static_cast<T>(at_limits_[1]);
  for (int64_t i = 0; i < n; ++i)
    if (y[i] == low || y[i] == high) d[i] = 0;
}

template <typename T>
StepProduct<T>::StepProduct(KernelContext& c, const Recurrent& r, Slot weights, int64_t first_row,
                            int64_t rows, bool transposed)
    : weights_(weights),
      directions_(r.directions),
      direction_size_(r.width() * r.hidden),
      start_(first_row * r.hidden),
      hidden_(r.hidden),
      k_(transposed ? r.hidden : rows),
      n_(transposed ? rows : r.hidden),
      transposed_(transposed) {
  if (r.steps < tuning::kPackedSteps || k_ == 0 || n_ == 0) return;
  packed_size_ = packed_size<T>(k_, n_);
  packed_ = c.scratch(static_cast<size_t>(directions_ * packed_size_) * sizeof(T));
}

template <typename T>
MatrixView<const T> StepProduct<T>::operand(const Frame& f, int64_t d) const {
  const T* data = f.at<const T>(weights_) + d * direction_size_ + start_;
  return transposed_ ? MatrixView<const T>{data, 1, hidden_} : MatrixView<const T>{data, hidden_, 1};
}

template <typename T>
void StepProduct<T>::prepare(const Frame& f) const {
  for (int64_t d = 0; packed_.defined() && d < directions_; ++d)
    pack<T>(k_, n_, operand(f, d), f.at<T>(packed_) + d * packed_size_);
}

template <typename T>
void StepProduct<T>::run(const Frame& f, int64_t d, int64_t m, MatrixView<const T> a, bool add, T* y,
                         int64_t y_row) const {
  if (packed_.defined())
    multiply_packed<T>(m, n_, k_, a, f.at<const T>(packed_) + d * packed_size_, add, y, y_row);
  else
    product<T>(m, n_, k_, a, operand(f, d), T(add), y, y_row);
}

template <typename T>
void input_products(const Recurrent& r, const T* x, const T* w, const T* b, int64_t summed, T* gates) {
  const int64_t n = r.width(), rows = r.rows();
  for (int64_t d = 0; d < r.directions; ++d) {
    T* to = gates + d * rows * n;
    if (b && rows > 0) {
      const T *wb = b + 2 * d * n, *rb = wb + n;
      std::copy_n(wb, n, to);
      for (int64_t j = 0; j < summed * r.hidden; ++j) to[j] += rb[j];
      parallel_for(rows - 1, n, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin + 1; i <= end; ++i) std::copy_n(to, n, to + i * n);
      });
    }
    threaded_product<T>(rows, n, r.input, {x, r.input, 1}, {w + d * n * r.input, 1, r.input}, T(b ? 1 : 0),
                        to, n);
  }
}

template <typename T>
void transposed_product(const Recurrent& r, Columns<T> a, Columns<T> b, bool shared, T* y, int64_t y_step) {
  const int64_t rows = r.rows();
  for (int64_t d = 0; d < r.directions; ++d)
    threaded_product<T>(a.count, b.count, rows, {a.data + d * rows * a.width + a.first, 1, a.width},
                        {b.data + (shared ? 0 : d * rows * b.width) + b.first, b.width, 1}, T(0),
                        y + d * y_step, b.count);
}

template <typename T>
RowSums<T>::RowSums(KernelContext& c, const Recurrent& r, int64_t count, bool wanted)
    : sum_(Reduce::kSum, dtype_of<T>(), {r.rows(), count}, {true, false}),
      work_(c.scratch(wanted ? sum_.scratch_bytes() : 0)),
      directions_(r.directions),
      rows_(r.rows()),
      count_(count) {}

template <typename T>
void RowSums<T>::run(const Frame& f, const T* a, T* y, int64_t y_step) const {
  for (int64_t d = 0; d < directions_; ++d)
    sum_.run(a + d * rows_ * count_, y + d * y_step, f.at<std::byte>(work_));
}

template <typename T>
void RowSums<T>::run_twice(const Frame& f, const T* a, T* y) const {
  run(f, a, y, 2 * count_);
  for (int64_t d = 0; d < directions_; ++d, y += 2 * count_) std::copy_n(y, count_, y + count_);
}

template <typename T>
void sequence_gradient(const Recurrent& r, const T* gates, const T* w, T* dx) {
  const int64_t n = r.width(), rows = r.rows();
  for (int64_t d = 0; d < r.directions; ++d)
    threaded_product<T>(rows, r.input, n, {gates + d * rows * n, n, 1}, {w + d * n * r.input, r.input, 1},
                        T(d > 0), dx, r.input);
}

template <typename T>
void gather_previous(const Recurrent& r, const Frame& f, const Lengths& lengths, const T* results,
                     const T* initial, T* previous) {
  const int64_t h = r.hidden;
  parallel_for(r.directions * r.batch, r.steps * h, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t d = i / r.batch, b = i % r.batch, length = lengths.of(f, b);
      const int64_t back = r.backward(d) ? 1 : -1, first = r.backward(d) ? length - 1 : 0;
      for (int64_t t = 0; t < r.steps; ++t) {
        T* to = previous + (d * r.rows() + r.row(t, b)) * h;
        if (t >= length || (t == first && !initial))
          std::fill(to, to + h, T(0));
        else
          std::copy_n(t == first ? initial + r.state(d, b) : results + r.result(t + back, d, b), h, to);
      }
    }
  });
}

template <typename T>
StateWeightGradient<T>::StateWeightGradient(KernelContext& c, const Recurrent& r, const Lengths& lengths,
                                            bool wanted)
    : r_(r), lengths_(lengths) {
  if (wanted && (r.directions > 1 || r.batch_first || lengths.given()))
    previous_ = c.scratch(static_cast<size_t>(r.directions * r.rows() * r.hidden) * sizeof(T));
}

template <typename T>
void StateWeightGradient<T>::run(const Frame& f, const T* changes, const T* results, const T* initial,
                                 T* dr) const {
  const int64_t h = r_.hidden, n = r_.width();
  if (previous_.defined()) {
    gather_previous<T>(r_, f, lengths_, results, initial, f.at<T>(previous_));
    transposed_product<T>(r_, {changes, n, 0, n}, {f.at<const T>(previous_), h, 0, h}, false, dr, n * h);
    return;
  }
  // The rows of a step are contiguous, and so are the steps: the states before a step are the results of its
  // neighbour.
  const int64_t b = r_.batch, later = std::max<int64_t>(r_.rows() - b, 0);
  const T* const first = changes + (r_.reverse ? later * n : 0);
  threaded_product<T>(n, h, later, {r_.reverse ? changes : changes + b * n, 1, n},
                      {r_.reverse ? results + b * h : results, h, 1}, T(0), dr, h);
  if (initial && r_.steps > 0) threaded_product<T>(n, h, b, {first, 1, n}, {initial, h, 1}, T(1), dr, h);
}

template <typename T>
void state_out(const Recurrent& r, const T* held, T* state) {
  for (int64_t d = 0; d < r.directions; ++d)
    for (int64_t b = 0; b < r.batch; ++b)
      std::copy_n(held + (d * r.batch + b) * r.hidden, r.hidden, state + r.state(d, b));
}

template <typename T>
void state_in(const Recurrent& r, const T* state, T* held) {
  if (!state) {
    std::fill_n(held, r.directions * r.batch * r.hidden, T(0));
    return;
  }
  for (int64_t d = 0; d < r.directions; ++d)
    for (int64_t b = 0; b < r.batch; ++b)
      std::copy_n(state + r.state(d, b), r.hidden, held + (d * r.batch + b) * r.hidden);
}

Name x_or_empty(const GradientContext& g, size_t i) { return g.has_x(i) ? g.x(i) : ""; }
Name dy_or_empty(const GradientContext& g, size_t o) { return g.node().has_output(o) ? g.dy(o) : ""; }
void set_gradients(GradientContext& g, std::span<const size_t> of, const Names& gradients) {
  for (size_t k = 0; k < gradients.size(); ++k)
    if (g.has_x(of[k]) && g.needs(of[k])) g.set(of[k], gradients[k]);
}

#define ORTRAIN_RECURRENT(T)                                                                                \
  template void GateActivation::apply<T>(const T*, T*, int64_t) const;                                      \
  template void GateActivation::scale_by_derivative<T>(const T*, T*, int64_t) const;                        \
  template class StepProduct<T>;                                                                            \
  template class StateWeightGradient<T>;                                                                    \
  template void input_products<T>(const Recurrent&, const T*, const T*, const T*, int64_t, T*);             \
  template void transposed_product<T>(const Recurrent&, Columns<T>, Columns<T>, bool, T*, int64_t);         \
  template class RowSums<T>;                                                                                \
  template void sequence_gradient<T>(const Recurrent&, const T*, const T*, T*);                             \
  template void gather_previous<T>(const Recurrent&, const Frame&, const Lengths&, const T*, const T*, T*); \
  template void state_out<T>(const Recurrent&, const T*, T*);                                               \
  template void state_in<T>(const Recurrent&, const T*, T*)
ORTRAIN_RECURRENT(float);
ORTRAIN_RECURRENT(double);

}  // namespace ortrain
