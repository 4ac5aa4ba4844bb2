// DynamicQuantizeLSTM (com.microsoft): an LSTM with weights of 8 bits, W [D, inputs, 4 H] and R [D, H, 4 H].
//
// The inputs are quantized to 8 bits, with the scale and zero point of their range. onnxruntime also
// quantizes the hidden state in each step. Here the hidden state keeps its precision: it is multiplied as a
// number of 24 bits, three digits of 8 bits, for which the weights are read once.
//
//   h = s (65536 a + 256 b + c - 2²³),  h R = s (65536 (a - 128) R + 256 b R + c R)
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/elementwise/quantization.h"
#include "backend/cpu/matmul/integer_product.h"
#include "op/decomposition.h"
#include "op/gradient_expression.h"
#include "ops/common/decomposed.h"
#include "ops/recurrent/lstm.h"

namespace ortrain {
namespace {

constexpr size_t kScaleW = 8, kScaleR = 10;  // inputs; zero points follow

Recurrent read(const NodeContext& c) {
  c.expect(c.rank(1) == 3 && c.rank(2) == 3, "W and R must have three axes, found shapes ",
           to_string(c.shape(1)), " and ", to_string(c.shape(2)));
  return read_recurrent(c, 4, c.shape(2)[1]);
}

void check_weights(const NodeContext& c, size_t i, size_t scale, int64_t height, const Recurrent& r,
                   const char* what) {
  if (c.dtype(i) != DType::kUInt8 && c.dtype(i) != DType::kInt8) c.reject_dtype(i);
  const Shape wanted = {r.directions, height, r.width()}, tensor = {r.directions},
              columns = {r.directions, r.width()};
  c.expect(c.shape(i) == wanted, what, " must have shape ", to_string(wanted), ", found ",
           to_string(c.shape(i)));
  for (const size_t at : {scale, scale + 1}) {
    c.expect(c.has_input(at), "the scale or the zero point of ", what, " is missing");
    const DType type = at == scale ? DType::kFloat : c.dtype(i);
    c.expect(c.dtype(at) == type, "input ", at, " must have type ", to_string(type), ", found ",
             to_string(c.dtype(at)));
    c.expect(c.shape(at) == c.shape(scale) && (c.shape(at) == tensor || c.shape(at) == columns),
             "scale and zero point of ", what, " must both have shape ", to_string(tensor), " or ",
             to_string(columns), ", found ", to_string(c.shape(at)));
  }
}

void shape(ShapeContext& c) {
  if (c.dtype(0) != DType::kFloat) c.reject_dtype(0);
  const Recurrent r = read(c);
  check_weights(c, 1, kScaleW, r.input, r, "W");
  check_weights(c, 2, kScaleR, r.hidden, r, "R");
  expect_input(c, 3, {r.directions, 2 * r.width()}, "B");
  lstm_shape(c, r);
}

// Weights [D, k, 4 H], packed for products. Constant weights are packed only once.
class PackedWeights {
 public:
  PackedWeights(KernelContext& c, size_t i, size_t scale, const Recurrent& r, int64_t k)
      : kernels_(integer_kernels()),
        k_(k),
        n_(r.width()),
        directions_(r.directions),
        is_signed_(c.dtype(i) == DType::kInt8),
        each_(c.rank(scale) > 1) {
    scale_ = c.in(scale);
    const Tensor *w = c.constant(i), *zeros = c.constant(scale + 1);
    if (w && zeros) {
      Tensor once(DType::kUInt8, {directions_ * words() * 4});
      pack(reinterpret_cast<const uint8_t*>(w->raw()), reinterpret_cast<const uint8_t*>(zeros->raw()),
           reinterpret_cast<uint32_t*>(once.raw()));
      packed_ = c.fixed(std::move(once));
    } else {
      codes_ = c.in(i), zeros_ = c.in(scale + 1);
      packed_ = c.scratch(static_cast<size_t>(directions_ * words()) * 4);
    }
  }

  const IntegerKernels& kernels() const { return kernels_; }
  // Packs weights that are not constant.
  void prepare(const Frame& f) const {
    if (codes_.defined())
      pack(f.at<const uint8_t>(codes_), f.at<const uint8_t>(zeros_), f.at<uint32_t>(packed_));
  }
  // The columns of panel `p` of y = A W for direction d and m packed rows, with their sums and zero points.
  void multiply(const Frame& f, int64_t d, int64_t p, int64_t m, const uint32_t* rows, const int32_t* sums,
                const int32_t* zeros, int32_t* y) const {
    const uint32_t* matrix = f.at<const uint32_t>(packed_) + d * words();
    const int64_t column = p * kernels_.panel;
    kernels_.multiply({m, std::min(kernels_.panel, n_ - column), k_, rows, sums, zeros, nullptr,
                       matrix + kernels_.right_words(k_, column),
                       reinterpret_cast<const int32_t*>(matrix + kernels_.right_words(k_, n_)) + column,
                       y + column, n_});
  }
  int64_t panels() const { return (n_ + kernels_.panel - 1) / kernels_.panel; }
  // The scales of direction d, one for each column if each().
  const float* scales(const Frame& f, int64_t d) const {
    return f.at<const float>(scale_) + d * (each_ ? n_ : 1);
  }
  bool each() const { return each_; }

 private:
  // The size of one direction: the panels, then the zero points of the columns.
  int64_t words() const { return kernels_.right_words(k_, n_) + kernels_.whole(n_); }

  void pack(const uint8_t* w, const uint8_t* zeros, uint32_t* packed) const {
    parallel_for(directions_ * panels(), kernels_.panel * k_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t d = i / panels(), column = i % panels() * kernels_.panel;
        const int64_t count = std::min(kernels_.panel, n_ - column);
        uint32_t* to = packed + d * words();
        kernels_.pack_panel(column, count, k_, {w + d * k_ * n_, is_signed_, n_}, to);
        int32_t* to_zeros = reinterpret_cast<int32_t*>(to + kernels_.right_words(k_, n_)) + column;
        for (int64_t j = 0; j < kernels_.whole(count); ++j) {
          const uint8_t code = j >= count ? 0 : zeros[each_ ? d * n_ + column + j : d];
          to_zeros[j] = kernels_.right_zero(is_signed_, is_signed_ ? static_cast<int8_t>(code) : code);
        }
      }
    });
  }

  IntegerKernels kernels_;
  int64_t k_, n_, directions_;
  bool is_signed_, each_;
  Slot codes_, zeros_, packed_, scale_;
};

// gates = X Wᵀ + biases, with X quantized.
std::function<void(const Frame&, float*)> input_kernel(KernelContext& c, const Recurrent& r) {
  const PackedWeights w(c, 1, kScaleW, r, r.input);
  const Slot x = c.in(0), bias = c.has_input(3) ? c.in(3) : Slot{};
  const int64_t rows = r.rows(), k = r.input, n = r.width(), words = w.kernels().words(k);
  const Slot codes = c.scratch(static_cast<size_t>(rows * k)),
             packed = c.scratch(static_cast<size_t>(rows * words) * 4),
             row_sums = c.scratch(static_cast<size_t>(2 * rows) * 4),
             sums = c.scratch(static_cast<size_t>(rows * n) * 4);
  return [=, directions = r.directions](const Frame& f, float* gates) {
    w.prepare(f);
    const float* from = f.at<const float>(x);
    uint8_t* q = f.at<uint8_t>(codes);
    const DynamicQuantization how = dynamic_quantization(range_with_zero(from, rows * k));
    int32_t *left_sums = f.at<int32_t>(row_sums), *left_zeros = left_sums + rows, *made = f.at<int32_t>(sums);
    uint32_t* left = f.at<uint32_t>(packed);
    quantize<uint8_t>(from, rows * k, how.scale, how.zero, q);
    w.kernels().pack_left(rows, k, {q, false, k}, left, left_sums);
    std::fill_n(left_zeros, rows, w.kernels().left_zero(false, how.zero));
    for (int64_t d = 0; d < directions; ++d) {
      parallel_for(w.panels(), rows * words * 4, [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; ++p) w.multiply(f, d, p, rows, left, left_sums, left_zeros, made);
      });
      const float *wb = bias.defined() ? f.at<const float>(bias) + 2 * d * n : nullptr,
                  *scales = w.scales(f, d);
      parallel_for(rows, 2 * n, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          float* to = gates + (d * rows + i) * n;
          for (int64_t j = 0; j < n; ++j)
            to[j] = static_cast<float>(made[i * n + j]) * (how.scale * scales[w.each() ? j : 0]);
          if (wb)
            for (int64_t j = 0; j < n; ++j) to[j] += wb[j] + wb[n + j];
        }
      });
    }
  };
}

constexpr int64_t kDigits = 3;

// Writes the digits of h to rows of `digits` that are `row` apart, and returns s; NaN if a value is not
// finite.
float split(const float* h, int64_t n, uint8_t* digits, int64_t row) {
  float most = 0;
  bool finite = true;
  for (int64_t j = 0; j < n; ++j) {
    const float magnitude = std::abs(h[j]);
    most = std::max(most, magnitude);
    finite &= magnitude <= std::numeric_limits<float>::max();
  }
  if (!finite) {
    for (int64_t k = 0; k < kDigits; ++k) std::fill_n(digits + k * row, n, uint8_t{0});
    return std::numeric_limits<float>::quiet_NaN();
  }
  constexpr float kHalf = 8388607;  // 2²³ - 1
  // Smaller values would make the inverse infinite.
  const float s = std::max(most / kHalf, std::numeric_limits<float>::min()), inverse = 1 / s;
  for (int64_t j = 0; j < n; ++j) {
    const float scaled = std::min(std::max(h[j] * inverse, -kHalf), kHalf);
    // Rounds to the nearest integer: no bits are left for a fraction.
    const double shifted = static_cast<double>(scaled) + 8388608.0;
    const uint32_t number = static_cast<uint32_t>(shifted + 0.5);
    digits[j] = static_cast<uint8_t>(number >> 16);
    digits[row + j] = static_cast<uint8_t>(number >> 8);
    digits[2 * row + j] = static_cast<uint8_t>(number);
  }
  return s;
}

// gates += states Rᵀ
auto state_kernel(KernelContext& c, const Recurrent& r) {
  const PackedWeights w(c, 2, kScaleR, r, r.hidden);
  const int64_t h = r.hidden, n = r.width(), words = w.kernels().words(h);
  const int64_t samples = r.directions * r.batch, rows = kDigits * samples;
  const Slot digits = c.scratch(static_cast<size_t>(rows * h)),
             packed = c.scratch(static_cast<size_t>(rows * words) * 4),
             row_sums = c.scratch(static_cast<size_t>(2 * rows) * 4),
             sums = c.scratch(static_cast<size_t>(rows * n) * 4),
             scales = c.scratch(static_cast<size_t>(samples) * sizeof(float));
  const auto prepare = [=](const Frame& f) {
    w.prepare(f);
    int32_t* zeros = f.at<int32_t>(row_sums) + rows;
    for (int64_t i = 0; i < rows; ++i) zeros[i] = w.kernels().left_zero(false, i % kDigits == 0 ? 128 : 0);
  };
  const auto multiply = [=, batch = r.batch](const Frame& f, int64_t d, int64_t first, int64_t last,
                                             const float* states, float* gates, int64_t step) {
    const int64_t sample = d * batch + first, count = last - first, row = kDigits * sample;
    uint8_t* split_states = f.at<uint8_t>(digits) + row * h;
    uint32_t* left = f.at<uint32_t>(packed) + row * words;
    int32_t *left_sums = f.at<int32_t>(row_sums) + row, *made = f.at<int32_t>(sums) + row * n;
    float* steps = f.at<float>(scales) + sample;
    for (int64_t i = 0; i < count; ++i)
      steps[i] = split(states + i * h, h, split_states + kDigits * i * h, h);
    w.kernels().pack_left(kDigits * count, h, {split_states, false, h}, left, left_sums);
    for (int64_t p = 0; p < w.panels(); ++p)
      w.multiply(f, d, p, kDigits * count, left, left_sums, left_sums + rows, made);
    const float* of_columns = w.scales(f, d);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t *high = made + kDigits * i * n, *middle = high + n, *low = middle + n;
      float* to = gates + i * step;
      for (int64_t j = 0; j < n; ++j)
        to[j] += (65536 * static_cast<float>(high[j]) + 256 * static_cast<float>(middle[j]) +
                  static_cast<float>(low[j])) *
                 (steps[i] * of_columns[w.each() ? j : 0]);
    }
  };
  return std::pair(prepare, multiply);
}

Kernel kernel(KernelContext& c) {
  const Recurrent r = read(c);
  const auto inputs = input_kernel(c, r);
  const auto [prepare, multiply] = state_kernel(c, r);
  LstmProducts<float> products;
  products.inputs = [inputs, prepare = prepare](const Frame& f, float* gates) {
    inputs(f, gates);
    prepare(f);
  };
  products.states = multiply;
  return lstm_forward<float>(c, r, std::move(products));
}

// Weights as floats, transposed to the order of LSTM.
Name float_weights(DecompositionContext& e, size_t value, size_t scale) {
  const bool by_column = need_rank(e, e.x(scale)) > 1;
  const auto wide = [&](const std::string& v) {
    return Expression(e, e.unsqueeze(v, by_column ? std::vector<int64_t>{1} : std::vector<int64_t>{1, 2}));
  };
  const Expression zero = wide(cast_like(e, e.x(scale + 1), e.x(scale)));
  const Expression steps(e, cast_like(e, e.x(value), e.x(scale)));
  return e("Transpose", {(steps - zero) * wide(e.x(scale))}, {{"perm", std::vector<int64_t>{0, 2, 1}}});
}

// The LSTM with weights as floats, from which the gradient is built.
void decompose(DecompositionContext& e) {
  const auto range = e.emit("DynamicQuantizeLinear", {e.x(0)}, 3);
  Names inputs = {
      e("DequantizeLinear", {e("QuantizeLinear", {e.x(0), range[1], range[2]}), range[1], range[2]}),
      float_weights(e, 1, kScaleW), float_weights(e, 2, kScaleR)};
  for (size_t i = 3; i < 8; ++i) inputs.push_back(e.has_x(i) ? e.x(i) : "");
  const auto found = e.emit("LSTM", inputs, 3, e.node().attributes);
  for (size_t o = 0; o < 3; ++o)
    if (e.has_y(o)) e.set(o, found[o]);
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "DynamicQuantizeLSTM",
                  .signature = "X, W, R, B?, sequence_lens?, initial_h?, initial_c?, P?, W_scale, "
                               "W_zero_point, R_scale, R_zero_point -> Y?, Y_h?, Y_c?",
                  .rules = {.shape = shape, .decompose = decompose},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
