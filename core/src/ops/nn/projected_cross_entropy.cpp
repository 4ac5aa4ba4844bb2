// Cross entropy of scores that are the product of hidden values and a matrix of constant weights
// (passes/fuse_cross_entropy.cpp). The scores of a language model, one for each word of its vocabulary, are
// the largest value of a train step. This operator computes the scores of a few positions at a time, so that
// memory never holds all scores.
//
// Hidden values [..., K] and labels [...]; weights W of N rows of K numbers, or packed in codes as for
// MatMulNBits. With p = softmax(W h), the loss of a position is -log p_label, or 0 if the label is
// ignore_index; "mean" divides the sum by the number of labels that count. Positions with ignored labels take
// no part in the products: in training data of a chat, these are most positions. The second output is the
// gradient of the hidden values for a gradient of the loss of 1, Wᵀ (p - [i = label]) / divisor: loss and
// gradient are computed together, so the scores are computed once. The kernel for float keeps only the
// exponentials of the scores, which the second product reads; it computes them and their sums while the
// scores are in the cache. In mixed precision, products with packed weights multiply in bfloat16, and
// exponentials are rounded to bfloat16.
#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "backend/cpu/matmul/mixed_product.h"
#include "backend/cpu/matmul/product.h"
#include "backend/cpu/norm/word_scores.h"
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
  c.expect(!hidden.empty() && hidden.back() == m.width, "the hidden values must have ",
           counted(m.width, "number"), " for each position, found ", to_string(hidden));
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

// Products with the matrix in float, or in bfloat16 if it is packed in codes and the precision is mixed.
class FloatProjection {
 public:
  explicit FloatProjection(KernelContext& c)
      : m_(matrix_of(c)),
        weights_(c.in(kWeights)),
        by_class_(c.node().int_or("transB", 0) != 0),
        pairs_(multiplies_pairs(c)) {
    if (is_packed(c)) codes_.emplace(c, kPacked, Weights(c));
  }

  static bool multiplies_pairs(const KernelContext& c) {
    return kHasKernels<BFloat16> && is_packed(c) && c.precision() == Precision::kBf16;
  }

  // Passes the rows of scores [count, classes] = hidden [count, width] Wᵀ to `take`, some columns at a time.
  void scores(const Frame& f, int64_t count, const float* hidden, const TakeLine& take) const {
    if (codes_) {
      const BlockCodes codes = codes_->in(f);
      return coded_product({count, hidden, &codes, true, pairs_, nullptr, {}, &take});
    }
    const StoredMatrix w = weights(f);
    MixedProduct p = product(count, m_.classes, m_.width);
    p.a = {hidden, m_.width, 1}, p.b = {w.values, w.column, w.row}, p.take = &take;
    mixed_product_by_columns(p);
  }

  // hidden [count, width] = scores [count, classes] W
  void hidden(const Frame& f, int64_t count, StoredInput scores, float* hidden) const {
    if (codes_) {
      const BlockCodes codes = codes_->in(f);
      return coded_product({count, scores, &codes, false, pairs_, nullptr, hidden});
    }
    MixedProduct p = product(count, m_.width, m_.classes);
    p.a = {scores, m_.classes, 1}, p.b = weights(f), p.y = hidden;
    mixed_product_by_columns(p);
  }

 private:
  static MixedProduct product(int64_t m, int64_t n, int64_t k) {
    MixedProduct p;
    p.m = m, p.n = n, p.k = k;
    return p;
  }

  // [classes, width]
  StoredMatrix weights(const Frame& f) const {
    const float* w = f.at<const float>(weights_);
    return by_class_ ? StoredMatrix{w, m_.width, 1} : StoredMatrix{w, 1, m_.classes};
  }

  Matrix m_;
  Slot weights_;
  bool by_class_, pairs_;
  std::optional<PackedSlots> codes_;
};

// Products with the matrix in double; a packed matrix is unpacked a few rows at a time.
class DoubleProjection {
 public:
  explicit DoubleProjection(KernelContext& c) : m_(matrix_of(c)) {
    if (is_packed(c)) {
      unpack_ = packed_rows<double>(c, kPacked, Weights(c));
      rows_ = c.scratch(static_cast<size_t>(std::min(kTile, m_.classes) * m_.width) * sizeof(double));
    } else {
      weights_ = c.in(kWeights);
      by_class_ = c.node().int_or("transB", 0) != 0;
    }
  }

  // scores [count, classes] = hidden [count, width] Wᵀ
  void scores(const Frame& f, int64_t count, const double* hidden, double* scores) const {
    each(f, [&](int64_t first, int64_t classes, MatrixView<const double> w) {
      threaded_product<double>(count, classes, m_.width, {hidden, m_.width, 1}, {w.data, w.column, w.row}, 0,
                               scores + first, m_.classes);
    });
  }

  // hidden [count, width] = scores [count, classes] W
  void hidden(const Frame& f, int64_t count, const double* scores, double* hidden) const {
    each(f, [&](int64_t first, int64_t classes, MatrixView<const double> w) {
      threaded_product<double>(count, m_.width, classes, {scores + first, m_.classes, 1}, w, first ? 1 : 0,
                               hidden, m_.width);
    });
  }

 private:
  // Calls use(first class, how many, their rows).
  template <typename F>
  void each(const Frame& f, F use) const {
    if (!unpack_) {
      const double* w = f.at<const double>(weights_);
      use(0, m_.classes,
          by_class_ ? MatrixView<const double>{w, m_.width, 1} : MatrixView<const double>{w, 1, m_.classes});
      return;
    }
    double* rows = f.at<double>(rows_);
    for (int64_t first = 0; first < m_.classes; first += kTile) {
      const int64_t count = std::min(kTile, m_.classes - first);
      parallel_for(count, 4 * m_.width, [&](int64_t begin, int64_t end) {
        unpack_(f, first + begin, end - begin, rows + begin * m_.width);
      });
      use(first, count, MatrixView<const double>{rows, m_.width, 1});
    }
  }

  Matrix m_;
  Unpack<double> unpack_;
  Slot weights_, rows_;
  bool by_class_ = false;
};

// The number of parts into which the positions are divided: memory holds the scores of one part at a time.
// Products in bfloat16 (`pairs`) take half as long, so the time to unpack the weights for each part matters
// more, and parts are larger.
int64_t parts_of(int64_t places, int64_t classes, size_t bytes, bool pairs) {
  const int64_t fitting =
      tuning::kWordScoreBytes / (std::max<int64_t>(classes, 1) * static_cast<int64_t>(bytes));
  const int64_t most =
      std::clamp<int64_t>(fitting, 16, pairs ? 2 * tuning::kWordPositions : tuning::kWordPositions);
  return std::max<int64_t>((places + most - 1) / most, 1);
}

// The positions whose labels count.
struct Counted {
  int64_t count, divisor;  // of the sum of losses
  const int64_t *places, *classes;
};

// Writes the positions and classes of the labels that are not ignored, and returns their number; throws for a
// label that is not a class.
template <typename L>
int64_t read_labels(const std::string& label, const L* labels, int64_t places, int64_t classes,
                    std::optional<int64_t> ignored, int64_t* at, int64_t* out) {
  int64_t found = 0;
  for (int64_t i = 0; i < places; ++i) {
    const int64_t which = labels[i];
    if (ignored && which == *ignored) continue;
    require(which >= 0 && which < classes, ErrorCode::kInvalidArgument, label, ": label ", which,
            " at position ", i, " is not one of the ", counted(classes, "class"));
    at[found] = i;
    out[found++] = which;
  }
  return found;
}

// The labels of a node.
class Labels {
 public:
  explicit Labels(KernelContext& c)
      : places_(element_count(c.shape(kLabels))),
        classes_(matrix_of(c).classes),
        wide_(c.dtype(kLabels) == DType::kInt64),
        mean_(c.node().string_or("reduction", "mean") == "mean"),
        label_(c.node().label()),
        given_(c.in(kLabels)),
        read_(c.scratch(static_cast<size_t>(2 * places_) * sizeof(int64_t))) {
    if (c.node().has("ignore_index")) ignored_ = c.node().int_or("ignore_index", 0);
  }

  int64_t places() const { return places_; }
  Counted read(const Frame& f) const {
    int64_t *at = f.at<int64_t>(read_), *which = at + places_;
    const int64_t found =
        wide_ ? read_labels(label_, f.at<const int64_t>(given_), places_, classes_, ignored_, at, which)
              : read_labels(label_, f.at<const int32_t>(given_), places_, classes_, ignored_, at, which);
    return {found, mean_ ? found : 1, at, which};
  }

 private:
  int64_t places_, classes_;
  bool wide_, mean_;
  std::optional<int64_t> ignored_;
  std::string label_;
  Slot given_, read_;
};

// The rows of positions that count, next to each other: in place if the positions are neighbours, else
// copies.
template <typename T>
class CountedRows {
 public:
  // For up to `step` positions at a time.
  CountedRows(KernelContext& c, int64_t step, int64_t width)
      : width_(width), copies_(c.scratch(static_cast<size_t>(step * width) * sizeof(T))) {}

  // Rows of a matrix with one row for each position.
  const T* read(const Frame& f, const T* matrix, const int64_t* places, int64_t count) const {
    if (are_neighbours(places, count)) return matrix + places[0] * width_;
    T* rows = f.at<T>(copies_);
    for (int64_t i = 0; i < count; ++i) std::copy_n(matrix + places[i] * width_, width_, rows + i * width_);
    return rows;
  }

  // Where to write rows, which `write` then puts into the matrix.
  T* place_to_write(const Frame& f, T* matrix, const int64_t* places, int64_t count) const {
    return are_neighbours(places, count) ? matrix + places[0] * width_ : f.at<T>(copies_);
  }
  void write(const T* rows, T* matrix, const int64_t* places, int64_t count) const {
    if (are_neighbours(places, count)) return;
    for (int64_t i = 0; i < count; ++i) std::copy_n(rows + i * width_, width_, matrix + places[i] * width_);
  }

 private:
  static bool are_neighbours(const int64_t* places, int64_t count) {
    return places[count - 1] - places[0] == count - 1;
  }

  int64_t width_;
  Slot copies_;
};

// Calls use(first, count) for equal parts of up to `step` of the positions that count.
template <typename F>
void in_parts(int64_t places, int64_t step, F use) {
  if (places == 0) return;
  const int64_t parts = (places + step - 1) / step;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = places * part / parts;
    use(first, places * (part + 1) / parts - first);
  }
}

template <typename T>
T mean_of(const T* losses, const Counted& counted) {
  double sum = 0;
  for (int64_t i = 0; i < counted.count; ++i) sum += static_cast<double>(losses[i]);
  return static_cast<T>(sum / static_cast<double>(counted.divisor));
}

// The memory of a part of the positions: exponentials [count, classes], of the type E; the reference and sum
// of each group of them [count, groups]; the scores of the labels; and the factor of each position's
// gradient.
template <typename E>
struct PartOfWords {
  const int64_t* which;
  int64_t classes, groups;
  E* exponentials;  // null: no gradient
  ScoreGroup* group;
  float *targets, *factors, *losses;

  void take(int64_t row, int64_t column, int64_t n, const float* line) const {
    word_exponentials(line, n, group + row * groups + column / kScoreGroup,
                      exponentials ? exponentials + row * classes + column : nullptr);
    const int64_t target = which[row];
    if (target >= column && target < column + n) targets[row] = line[target - column];
  }

  // Computes the loss of a position, and turns the exponentials into the gradient of the scores except for
  // the factor.
  void finish(int64_t row, float share) const {
    const int64_t target = which[row];
    factors[row] = 0;
    const std::span<const ScoreGroup> own(group + row * groups, static_cast<size_t>(groups));
    std::optional<float> found;
    for (const ScoreGroup& g : own)
      if (g.sum != 0) found = std::max(g.reference, found.value_or(g.reference));
    const float common = found.value_or(0);
    E* line = exponentials ? exponentials + row * classes : nullptr;
    double sum = 0;
    for (int64_t g = 0; g < groups; ++g) {
      const ScoreGroup& here = own[static_cast<size_t>(g)];
      if (here.reference == common || here.sum == 0) {
        sum += static_cast<double>(here.sum);
        continue;
      }
      const float factor = std::exp(here.reference - common);
      sum += static_cast<double>(here.sum) * static_cast<double>(factor);
      if (line)
        scale_exponentials(line + g * kScoreGroup, std::min(kScoreGroup, classes - g * kScoreGroup), factor);
    }
    const double score = static_cast<double>(targets[row]);
    losses[row] = static_cast<float>(std::log(sum) + static_cast<double>(common) - score);
    if (!line) return;
    const double chance = static_cast<double>(word_exponential(targets[row] - common));
    line[target] = E(static_cast<float>(chance - sum));
    factors[row] = static_cast<float>(static_cast<double>(share) / sum);
  }
};

// The kernel for float. E: the type of the exponentials.
template <typename E>
Kernel float_kernel(KernelContext& c) {
  const Matrix m = matrix_of(c);
  const FloatProjection projection(c);
  const Labels labels(c);
  const int64_t places = labels.places(), groups = (m.classes + kScoreGroup - 1) / kScoreGroup;
  const int64_t parts = parts_of(places, m.classes, sizeof(E), FloatProjection::multiplies_pairs(c)),
                step = (places + parts - 1) / parts;
  const Slot hidden_slot = c.in(kHidden), loss_slot = c.out(0);
  const Slot gradient_slot = c.has_output(1) ? c.out(1) : Slot{};
  const auto take_memory = [&](int64_t count, size_t bytes) {
    return c.scratch(static_cast<size_t>(count) * bytes);
  };
  const Slot exponentials_slot = gradient_slot.defined() ? take_memory(step * m.classes, sizeof(E)) : Slot{};
  const Slot groups_slot = take_memory(step * groups, sizeof(ScoreGroup)),
             targets_slot = take_memory(step, sizeof(float)), factors_slot = take_memory(step, sizeof(float)),
             losses_slot = take_memory(places, sizeof(float));
  const CountedRows<float> rows(c, step, m.width);
  return [=](const Frame& f) {
    const Counted counted = labels.read(f);
    const float share = 1.0f / static_cast<float>(counted.divisor);
    const float* hidden = f.at<const float>(hidden_slot);
    float *losses = f.at<float>(losses_slot), *gradient = f.at_or_null<float>(gradient_slot);
    if (gradient && counted.count < places) std::fill_n(gradient, places * m.width, 0.0f);
    in_parts(counted.count, step, [&](int64_t at, int64_t count) {
      const int64_t* of = counted.places + at;
      const PartOfWords<E> part{counted.classes + at,
                                m.classes,
                                groups,
                                f.at_or_null<E>(exponentials_slot),
                                f.at<ScoreGroup>(groups_slot),
                                f.at<float>(targets_slot),
                                f.at<float>(factors_slot),
                                losses + at};
      projection.scores(f, count, rows.read(f, hidden, of, count),
                        [&](int64_t row, int64_t column, int64_t n, const float* line) {
                          part.take(row, column, n, line);
                        });
      parallel_for(count, m.classes / 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) part.finish(i, share);
      });
      if (!gradient) return;
      float* to = rows.place_to_write(f, gradient, of, count);
      projection.hidden(f, count, static_cast<const E*>(part.exponentials), to);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t j = 0; j < m.width; ++j) to[i * m.width + j] *= part.factors[i];
      rows.write(to, gradient, of, count);
    });
    *f.at<float>(loss_slot) = mean_of(losses, counted);
  };
}

Kernel double_kernel(KernelContext& c) {
  const Matrix m = matrix_of(c);
  const DoubleProjection projection(c);
  const Labels labels(c);
  const int64_t places = labels.places();
  const int64_t parts = parts_of(places, m.classes, sizeof(double), false),
                step = (places + parts - 1) / parts;
  const Slot hidden_slot = c.in(kHidden), loss_slot = c.out(0);
  const Slot gradient_slot = c.has_output(1) ? c.out(1) : Slot{};
  const Slot scores_slot = c.scratch(static_cast<size_t>(step * m.classes) * sizeof(double));
  const Slot losses_slot = c.scratch(static_cast<size_t>(places) * sizeof(double));
  const UnaryFunction exp = unary::Exp(DType::kDouble);
  const CountedRows<double> rows(c, step, m.width);
  return [=](const Frame& f) {
    const Counted counted = labels.read(f);
    const double factor = 1 / static_cast<double>(counted.divisor);
    const double* hidden = f.at<const double>(hidden_slot);
    double *scores = f.at<double>(scores_slot), *losses = f.at<double>(losses_slot),
           *gradient = f.at_or_null<double>(gradient_slot);
    if (gradient && counted.count < places) std::fill_n(gradient, places * m.width, 0.0);
    in_parts(counted.count, step, [&](int64_t at, int64_t count) {
      const int64_t* of = counted.places + at;
      projection.scores(f, count, rows.read(f, hidden, of, count), scores);
      parallel_for(count, 2 * m.classes * exp.cost, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          double* row = scores + i * m.classes;
          const int64_t target = counted.classes[at + i];
          const double highest = *std::max_element(row, row + m.classes), score = row[target];
          for (int64_t k = 0; k < m.classes; ++k) row[k] -= highest;
          exp(row, row, m.classes);
          double sum = 0;
          for (int64_t k = 0; k < m.classes; ++k) sum += row[k];
          losses[at + i] = std::log(sum) + highest - score;
          if (!gradient) continue;
          const double share = factor / sum;
          for (int64_t k = 0; k < m.classes; ++k) row[k] *= share;
          row[target] -= factor;
        }
      });
      if (!gradient) return;
      double* to = rows.place_to_write(f, gradient, of, count);
      projection.hidden(f, count, scores, to);
      rows.write(to, gradient, of, count);
    });
    *f.at<double>(loss_slot) = mean_of(losses, counted);
  };
}

Kernel kernel(KernelContext& c) {
  if (c.dtype(kHidden) == DType::kFloat)
    return FloatProjection::multiplies_pairs(c) ? float_kernel<BFloat16>(c) : float_kernel<float>(c);
  if (kHasKernels<double> && c.dtype(kHidden) == DType::kDouble) return double_kernel(c);
  c.reject_dtype(kHidden);
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
