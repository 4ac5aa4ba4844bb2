// Cross entropy of the scores that a matrix of constant weights makes of hidden values
// (passes/fuse_cross_entropy.cpp): the scores of a language model, one for each word of its vocabulary, are
// the largest value of a train step. This operator computes them for a few positions at a time, so that all
// of them never exist together.
//
// Hidden values [..., K] and labels [...]; weights W of N rows of K numbers, or packed in codes as for
// MatMulNBits. With p = softmax(W h), the loss of a position is -log p_label, or 0 if the label is
// ignore_index; "mean" divides the sum by the number of labels that count. The second output is the gradient
// of the hidden values for a gradient of the loss of 1, Wᵀ (p - [i = label]) / divisor: computed together,
// the scores are needed once. In mixed precision, both products multiply in bfloat16; the scores are float.
#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <type_traits>

#include "backend/cpu/matmul/mixed_product.h"
#include "backend/cpu/matmul/product.h"
#include "backend/cpu/tuning.h"
#include "op/operator.h"
#include "op/session_domain.h"
#include "ops/common/elementwise.h"
#include "ops/common/packed_weights.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

enum Input : size_t { kHidden, kLabels, kWeights, kScales, kZeroPoints };
constexpr PackedInputs kPacked = {kWeights, kScales, kZeroPoints, 99};
constexpr int64_t kTile = tuning::kUnpackedRows;

bool is_packed(const NodeContext& c) { return c.has_input(kScales); }

// The matrix of the scores: its rows, one for each class, and its columns.
struct Matrix {
  int64_t classes, width;
};

Matrix matrix_of(const NodeContext& c) {
  if (is_packed(c)) {
    const Weights w(c);
    return {w.n, w.k};
  }
  const Shape& w = c.shape(kWeights);
  c.expect(w.size() == 2, "the weights must be a matrix, found ", to_string(w));
  return c.node().int_or("transB", 0) ? Matrix{w[0], w[1]} : Matrix{w[1], w[0]};
}

void shape(ShapeContext& c) {
  const Matrix m = matrix_of(c);
  const Shape& hidden = c.shape(kHidden);
  if (!is_floating(c.dtype(kHidden))) c.reject_dtype(kHidden);
  if (c.dtype(kLabels) != DType::kInt32 && c.dtype(kLabels) != DType::kInt64) c.reject_dtype(kLabels);
  c.expect(!hidden.empty() && hidden.back() == m.width, "the hidden values must have ", m.width,
           " numbers for each position, found ", to_string(hidden));
  c.expect(c.shape(kLabels) == Shape(hidden.begin(), hidden.end() - 1),
           "there must be a label for each position of ", to_string(hidden), ", found ",
           to_string(c.shape(kLabels)));
  const DType weights = c.dtype(is_packed(c) ? kScales : kWeights);
  c.expect(weights == c.dtype(kHidden), "the weights must have the type of the hidden values, ",
           to_string(c.dtype(kHidden)), ", found ", to_string(weights));
  if (is_packed(c)) {
    const Weights w(c);
    check_packed(c, kPacked, w);
    expect_size(c, kWeights, "the weights", w.n * w.blocks * w.block * w.bits / 8);
    expect_size(c, kScales, "scales", w.n * w.blocks);
  }
  c.output(0, c.dtype(kHidden), {});
  if (c.has_output(1)) c.output(1, c.dtype(kHidden), hidden);
}

// Products with the matrix, as it is or unpacked a few rows at a time.
template <typename T>
class Projection {
 public:
  explicit Projection(KernelContext& c) : m_(matrix_of(c)) {
    if (std::is_same_v<T, float> && is_packed(c)) {
      codes_.emplace(c, kPacked, Weights(c));
      pairs_ = c.precision() == Precision::kBf16;
    } else if (is_packed(c)) {
      unpack_ = packed_rows<T>(c, kPacked, Weights(c));
      rows_ = c.scratch(static_cast<size_t>(std::min(kTile, m_.classes) * m_.width) * sizeof(T));
    } else {
      weights_ = c.in(kWeights);
      by_class_ = c.node().int_or("transB", 0) != 0;
    }
  }

  // Whether products multiply in bfloat16.
  bool pairs() const { return pairs_; }

  // scores [count, classes] = hidden [count, width] Wᵀ
  void scores(const Frame& f, int64_t count, const T* hidden, T* scores) const {
    if (codes_) return multiply(f, count, hidden, true, scores);
    each(f, [&](int64_t first, int64_t classes, MatrixView<const T> w) {
      threaded_product<T>(count, classes, m_.width, {hidden, m_.width, 1}, {w.data, w.column, w.row}, T{0},
                          scores + first, m_.classes);
    });
  }

  // hidden [count, width] = scores [count, classes] W
  void hidden(const Frame& f, int64_t count, const T* scores, T* hidden) const {
    if (codes_) return multiply(f, count, scores, false, hidden);
    each(f, [&](int64_t first, int64_t classes, MatrixView<const T> w) {
      threaded_product<T>(count, m_.width, classes, {scores + first, m_.classes, 1}, w, first ? T{1} : T{0},
                          hidden, m_.width);
    });
  }

 private:
  // Y = A W, or A Wᵀ if `transposed`, with weights in codes.
  void multiply(const Frame& f, int64_t count, const T* a, bool transposed, T* y) const {
    if constexpr (std::is_same_v<T, float>) {
      const BlockCodes codes = codes_->in(f);
      coded_product({count, a, &codes, transposed, pairs_, nullptr, y});
    }
  }

  // Calls use(first class, how many, their rows).
  template <typename F>
  void each(const Frame& f, F use) const {
    if (!unpack_) {
      const T* w = f.at<const T>(weights_);
      use(0, m_.classes,
          by_class_ ? MatrixView<const T>{w, m_.width, 1} : MatrixView<const T>{w, 1, m_.classes});
      return;
    }
    T* rows = f.at<T>(rows_);
    for (int64_t first = 0; first < m_.classes; first += kTile) {
      const int64_t count = std::min(kTile, m_.classes - first);
      parallel_for(count, 4 * m_.width, [&](int64_t begin, int64_t end) {
        unpack_(f, first + begin, end - begin, rows + begin * m_.width);
      });
      use(first, count, MatrixView<const T>{rows, m_.width, 1});
    }
  }

  Matrix m_;
  std::optional<PackedSlots> codes_;
  Unpack<T> unpack_;
  Slot weights_, rows_;
  bool by_class_ = false, pairs_ = false;
};

// How many parts the positions are divided into, whose scores exist one part after another. Products in
// bfloat16 take half as long, so that unpacking the weights for each part matters more (`pairs`).
int64_t parts_of(int64_t places, int64_t classes, size_t bytes, bool pairs) {
  const int64_t most_bytes = pairs ? 2 * tuning::kWordScoreBytes : tuning::kWordScoreBytes;
  const int64_t fitting = most_bytes / (std::max<int64_t>(classes, 1) * static_cast<int64_t>(bytes));
  const int64_t most = std::clamp<int64_t>(fitting, 16, tuning::kWordPositions);
  return std::max<int64_t>((places + most - 1) / most, 1);
}

// Reads labels as classes, and as -1 where they are to be ignored; throws for a label that is not a class.
// Returns how many are not ignored.
template <typename L>
int64_t read_labels(const std::string& label, const L* labels, int64_t places, int64_t classes,
                    std::optional<int64_t> ignored, int64_t* out) {
  int64_t counted = 0;
  for (int64_t i = 0; i < places; ++i) {
    const int64_t which = labels[i];
    const bool skipped = ignored && which == *ignored;
    out[i] = skipped ? -1 : which;
    if (skipped) continue;
    require(which >= 0 && which < classes, ErrorCode::kInvalidArgument, label, ": label ", which,
            " at position ", i, " is not one of the ", classes, " classes");
    ++counted;
  }
  return counted;
}

template <typename T>
Kernel typed_kernel(KernelContext& c) {
  const Matrix m = matrix_of(c);
  const Projection<T> projection(c);
  const int64_t places = element_count(c.shape(kLabels));
  const bool wide = c.dtype(kLabels) == DType::kInt64,
             mean = c.node().string_or("reduction", "mean") == "mean";
  std::optional<int64_t> ignored;
  if (c.node().has("ignore_index")) ignored = c.node().int_or("ignore_index", 0);
  const int64_t parts = parts_of(places, m.classes, sizeof(T), projection.pairs()),
                step = (places + parts - 1) / parts;
  const Slot hidden_slot = c.in(kHidden), labels_slot = c.in(kLabels), loss_slot = c.out(0);
  const Slot gradient_slot = c.has_output(1) ? c.out(1) : Slot{};
  const Slot scores_slot = c.scratch(static_cast<size_t>(step * m.classes) * sizeof(T));
  const Slot classes_slot = c.scratch(static_cast<size_t>(places) * sizeof(int64_t));
  const Slot losses_slot = c.scratch(static_cast<size_t>(places) * sizeof(T));
  const UnaryFunction exp = unary::Exp(c.dtype(kHidden));
  const std::string label = c.node().label();
  return [=](const Frame& f) {
    int64_t* which = f.at<int64_t>(classes_slot);
    const int64_t counted =
        wide ? read_labels(label, f.at<const int64_t>(labels_slot), places, m.classes, ignored, which)
             : read_labels(label, f.at<const int32_t>(labels_slot), places, m.classes, ignored, which);
    const T factor = mean ? T{1} / static_cast<T>(counted) : T{1};
    const T* hidden = f.at<const T>(hidden_slot);
    T *scores = f.at<T>(scores_slot), *losses = f.at<T>(losses_slot),
      *gradient = f.at_or_null<T>(gradient_slot);
    for (int64_t at = 0; at < places; at += step) {
      const int64_t count = std::min(step, places - at);
      projection.scores(f, count, hidden + at * m.width, scores);
      parallel_for(count, 2 * m.classes * exp.cost, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          T* row = scores + i * m.classes;
          const int64_t target = which[at + i];
          if (target < 0) {
            losses[at + i] = 0;
            std::fill_n(row, m.classes, T{0});
            continue;
          }
          const T highest = *std::max_element(row, row + m.classes), score = row[target];
          for (int64_t k = 0; k < m.classes; ++k) row[k] -= highest;
          exp(row, row, m.classes);
          double sum = 0;
          for (int64_t k = 0; k < m.classes; ++k) sum += static_cast<double>(row[k]);
          losses[at + i] = static_cast<T>(std::log(sum)) + highest - score;
          if (!gradient) continue;
          const T share = factor / static_cast<T>(sum);
          for (int64_t k = 0; k < m.classes; ++k) row[k] *= share;
          row[target] -= factor;
        }
      });
      if (gradient) projection.hidden(f, count, scores, gradient + at * m.width);
    }
    double sum = 0;
    for (int64_t i = 0; i < places; ++i) sum += static_cast<double>(losses[i]);
    *f.at<T>(loss_slot) = static_cast<T>(mean ? sum / static_cast<double>(counted) : sum);
  };
}

Kernel kernel(KernelContext& c) {
  Kernel made;
  if (!visit_floating(c.dtype(kHidden), [&](auto zero) { made = typed_kernel<decltype(zero)>(c); }))
    c.reject_dtype(kHidden);
  return made;
}

// For each class, one multiplication and one addition per hidden number; the gradient takes as many. Packed
// weights are unpacked for each part.
double operations_of(const Node& node, std::span<const Shape* const> inputs, const Shape&) {
  if (inputs.size() <= kWeights || !inputs[kHidden] || !inputs[kWeights]) return 0;
  const Shape& w = *inputs[kWeights];
  if (w.size() < 2) return 0;
  const int64_t of_matrix = node.int_or("transB", 0) ? w[0] : w[1];
  const int64_t classes = node.int_or("N", of_matrix);  // of packed weights
  const Shape& hidden = *inputs[kHidden];
  if (hidden.empty()) return 0;
  int64_t rows = element_count(hidden, 0, hidden.size() - 1);
  if (node.has_input(kScales)) rows += kUnpackingRows * parts_of(rows, classes, sizeof(float), false);
  const double once =
      2 * static_cast<double>(rows) * static_cast<double>(hidden.back()) * static_cast<double>(classes);
  return node.outputs.size() > 1 ? 2 * once : once;
}

ORTRAIN_OPERATOR({.domain = kSessionDomain,
                  .type = "ProjectedCrossEntropy",
                  .signature = "hidden, labels, weights, scales?, zero_points? -> loss, hidden_gradient?",
                  .rules = {.shape = shape},
                  .traits = {.optional_outputs = true, .operations = operations_of},
                  .kernels = {.cpu = kernel},
                  .made_from = {"SoftmaxCrossEntropyLoss", "Transpose"}});

}  // namespace
}  // namespace ortrain
