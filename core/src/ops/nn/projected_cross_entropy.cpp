// Cross entropy of scores that are the product of hidden values and a matrix of constant weights
// (passes/fuse_cross_entropy.cpp). The scores of a language model, one for each word of its vocabulary, are
// the largest value of a train step. This operator computes the scores of a block of words at a time, so that
// memory never holds all scores.
//
// Hidden values [..., K] and labels [...]; weights W of N rows of K numbers, or packed in codes as for
// MatMulNBits. With p = softmax(W h), the loss of a position is -log p_label, or 0 if the label is
// ignore_index; "mean" divides the sum by the number of labels that count. Positions with ignored labels take
// no part in the products: in training data of a chat, these are most positions. The second output is the
// gradient of the hidden values for a gradient of the loss of 1, Wᵀ (p - [i = label]) / divisor: loss and
// gradient are computed together, so the scores are computed once.
//
// The kernel for float passes over the words once. It computes the exponentials of the scores of a block
// while the scores are in the cache, and adds the product of these exponentials and W to the gradient. The
// exponentials so far, and with them the gradient, are relative to a reference of each position; they are
// scaled when a later score needs a larger one (Milakov and Gimelshein, "Online normalizer calculation for
// softmax", 2018). So memory holds the exponentials of one block alone, and quantized weights are unpacked
// twice for hundreds of positions. In mixed precision, products with packed weights multiply in bfloat16,
// and exponentials are rounded to bfloat16.
//
// Compiled for size: the loops over scores are functions of the backend (CMakeLists.txt).
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

// Neighbouring rows of the matrix.
struct Words {
  int64_t first, count;
};

// Products with rows of the matrix in float, or in bfloat16 if it is packed in codes and the precision is
// mixed.
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

  // Passes the rows of scores [count, words] = hidden [count, width] Wᵀ to `take`, some columns at a time.
  void scores(const Frame& f, const Words& words, int64_t count, const float* hidden,
              const TakeLine& take) const {
    if (codes_) {
      const BlockCodes codes = codes_->in(f).of_rows(words.first, words.count);
      return coded_product({count, hidden, &codes, true, pairs_, {}, {}, &take});
    }
    const StoredMatrix w = weights(f, words.first);
    MixedProduct p = product(count, words.count, m_.width);
    p.a = {hidden, m_.width, 1}, p.b = {w.values, w.column, w.row}, p.take = &take;
    mixed_product_by_columns(p);
  }

  // hidden [count, width] = or += scores [count, words] W
  void hidden(const Frame& f, const Words& words, int64_t count, StoredInput scores, float* hidden,
              bool add) const {
    const MixedTerm before{StoredInput(static_cast<const float*>(hidden))};
    const std::span<const MixedTerm> terms(&before, add ? 1 : 0);
    if (codes_) {
      const BlockCodes codes = codes_->in(f).of_rows(words.first, words.count);
      return coded_product({count, scores, &codes, false, pairs_, terms, hidden});
    }
    MixedProduct p = product(count, m_.width, words.count);
    p.a = {scores, words.count, 1}, p.b = weights(f, words.first), p.y = hidden, p.terms = terms;
    mixed_product_by_columns(p);
  }

  // hidden [width] += factor W[word]
  void add_word(const Frame& f, int64_t word, float factor, float* hidden) const {
    if (!codes_) {
      const StoredMatrix w = weights(f, word);
      for (int64_t j = 0; j < m_.width; ++j) hidden[j] += factor * w.values.floats()[j * w.column];
      return;
    }
    constexpr int64_t kColumns = 256;
    float values[kColumns];
    for (int64_t j = 0; j < m_.width; j += kColumns) {
      const int64_t columns = std::min(kColumns, m_.width - j);
      unpack(codes_->in(f), {word, 1, j, columns}, {}, values, columns);
      for (int64_t i = 0; i < columns; ++i) hidden[j + i] += factor * values[i];
    }
  }

 private:
  static MixedProduct product(int64_t m, int64_t n, int64_t k) {
    MixedProduct p;
    p.m = m, p.n = n, p.k = k;
    return p;
  }

  // [classes, width] from class `first` on
  StoredMatrix weights(const Frame& f, int64_t first) const {
    const float* w = f.at<const float>(weights_);
    return by_class_ ? StoredMatrix{w + first * m_.width, m_.width, 1}
                     : StoredMatrix{w + first, 1, m_.classes};
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

// What is known of a position after some of the words.
struct WordsSoFar {
  double sum = 0;                   // of e^(score - reference)
  float reference = 0, target = 0;  // target: the score of the label
};

// The memory of a block of words and a part of the positions: the exponentials [count, words], of the type E,
// without those of the labels; the reference and sum of each group of them [count, groups].
template <typename E>
struct WordBlock {
  const int64_t* which;  // the labels
  Words words;
  int64_t rows, groups;
  E* exponentials;  // null: no gradient
  ScoreGroup* group;
  WordsSoFar* so_far;

  void take(int64_t row, int64_t column, int64_t n, const float* line) const {
    E* to = exponentials ? exponentials + row * words.count + column : nullptr;
    // Fetches the memory of the next row, which another thread may have read last.
    if (to && row + 1 < rows)
      for (int64_t i = 0; i < n; i += 64 / static_cast<int64_t>(sizeof(E)))
        __builtin_prefetch(to + words.count + i, 1);
    word_exponentials(line, n, group + row * groups + column / kScoreGroup, to);
    const int64_t target = which[row] - words.first - column;
    if (target < 0 || target >= n) return;
    so_far[row].target = line[target];
    if (to) to[target] = E(0.0f);
  }

  // Adds the block to what is known of a position. The sums before are in `gradient` [width]; they and the
  // exponentials become relative to the same reference.
  void join(int64_t row, float* gradient, int64_t width) const {
    const std::span<const ScoreGroup> own(group + row * groups, static_cast<size_t>(groups));
    std::optional<float> found;
    for (const ScoreGroup& g : own)
      if (g.sum != 0) found = std::max(g.reference, found.value_or(g.reference));
    if (!found) return;
    WordsSoFar& known = so_far[row];
    if (known.sum == 0) {
      known.reference = *found;
    } else if (*found > known.reference) {
      const float factor = std::exp(known.reference - *found);
      known.sum *= static_cast<double>(factor);
      if (gradient) scale_exponentials(gradient, width, factor);
      known.reference = *found;
    }
    for (int64_t g = 0; g < groups; ++g) {
      const ScoreGroup& here = own[static_cast<size_t>(g)];
      if (here.reference == known.reference || here.sum == 0) {
        known.sum += static_cast<double>(here.sum);
        continue;
      }
      const float factor = std::exp(here.reference - known.reference);
      known.sum += static_cast<double>(here.sum) * static_cast<double>(factor);
      if (exponentials)
        scale_exponentials(exponentials + row * words.count + g * kScoreGroup,
                           std::min(kScoreGroup, words.count - g * kScoreGroup), factor);
    }
  }
};

// Positions that are computed together: those of equal parts.
int64_t positions_at_a_time(int64_t places) {
  const int64_t parts = (places + tuning::kWordPositions - 1) / tuning::kWordPositions;
  return parts == 0 ? 0 : (places + parts - 1) / parts;
}

// The words of a block: as many as the memory for exponentials holds. They are an even number of groups,
// which two threads share equally, but not a multiple of eight, so that rows of exponentials do not all map
// to the same sets of a cache.
int64_t words_at_a_time(int64_t positions, int64_t classes) {
  static_assert(tuning::kWordScores / tuning::kWordPositions >= 2 * kScoreGroup);
  const int64_t even = tuning::kWordScores / positions / kScoreGroup / 2 * 2;
  return std::min(classes, (even % 8 == 0 ? even - 2 : even) * kScoreGroup);
}

// The kernel for float. E: the type of the exponentials.
template <typename E>
class FloatKernel {
 public:
  explicit FloatKernel(KernelContext& c)
      : m_(matrix_of(c)),
        projection_(c),
        labels_(c),
        step_(positions_at_a_time(labels_.places())),
        hidden_(c.in(kHidden)),
        loss_(c.out(0)),
        from_(c, step_, m_.width),
        to_(c, c.has_output(1) ? step_ : 0, m_.width) {
    const int64_t scores = std::min(tuning::kWordScores, step_ * m_.classes),
                  groups = scores / kScoreGroup + step_;
    const auto take_memory = [&](int64_t count, size_t bytes) {
      return c.scratch(static_cast<size_t>(count) * bytes);
    };
    if (c.has_output(1)) gradient_ = c.out(1), exponentials_ = take_memory(scores, sizeof(E));
    groups_ = take_memory(groups, sizeof(ScoreGroup));
    so_far_ = take_memory(step_, sizeof(WordsSoFar));
    losses_ = take_memory(labels_.places(), sizeof(float));
  }

  void operator()(const Frame& f) const {
    const Counted counted = labels_.read(f);
    float *losses = f.at<float>(losses_), *gradient = f.at_or_null<float>(gradient_);
    if (gradient && counted.count < labels_.places())
      std::fill_n(gradient, labels_.places() * m_.width, 0.0f);
    in_parts(counted.count, step_, [&](int64_t at, int64_t count) {
      const int64_t* places = counted.places + at;
      const float* hidden = from_.read(f, f.at<const float>(hidden_), places, count);
      float* to = gradient ? to_.place_to_write(f, gradient, places, count) : nullptr;
      pass_over_words(f, counted.classes + at, count, hidden, to);
      finish(f, counted.classes + at, count, 1.0f / static_cast<float>(counted.divisor), losses + at, to);
      if (gradient) to_.write(to, gradient, places, count);
    });
    *f.at<float>(loss_) = mean_of(losses, counted);
  }

 private:
  void pass_over_words(const Frame& f, const int64_t* which, int64_t count, const float* hidden,
                       float* to) const {
    auto* so_far = f.at<WordsSoFar>(so_far_);
    std::fill_n(so_far, count, WordsSoFar{});
    const int64_t most = words_at_a_time(count, m_.classes);
    for (int64_t first = 0; first < m_.classes; first += most) {
      const Words words{first, std::min(most, m_.classes - first)};
      const WordBlock<E> block{which,
                               words,
                               count,
                               (words.count + kScoreGroup - 1) / kScoreGroup,
                               f.at_or_null<E>(exponentials_),
                               f.at<ScoreGroup>(groups_),
                               so_far};
      projection_.scores(f, words, count, hidden,
                         [&](int64_t row, int64_t column, int64_t n, const float* line) {
                           block.take(row, column, n, line);
                         });
      parallel_for(count, words.count / 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          block.join(i, to && first > 0 ? to + i * m_.width : nullptr, m_.width);
      });
      if (to) projection_.hidden(f, words, count, static_cast<const E*>(block.exponentials), to, first > 0);
    }
  }

  // Computes the losses, and turns the sums in `to` into the gradients.
  void finish(const Frame& f, const int64_t* which, int64_t count, float share, float* losses,
              float* to) const {
    const auto* so_far = f.at<const WordsSoFar>(so_far_);
    parallel_for(count, 4 * m_.width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const WordsSoFar& known = so_far[i];
        losses[i] = static_cast<float>(std::log(known.sum) + static_cast<double>(known.reference) -
                                       static_cast<double>(known.target));
        if (!to) continue;
        float* row = to + i * m_.width;
        const double chance = static_cast<double>(word_exponential(known.target - known.reference));
        projection_.add_word(f, which[i], static_cast<float>(chance - known.sum), row);
        const float factor = static_cast<float>(static_cast<double>(share) / known.sum);
        for (int64_t j = 0; j < m_.width; ++j) row[j] *= factor;
      }
    });
  }

  Matrix m_;
  FloatProjection projection_;
  Labels labels_;
  int64_t step_;
  Slot hidden_, loss_, gradient_, exponentials_, groups_, so_far_, losses_;
  CountedRows<float> from_, to_;
};

// Keeps the scores of a part of the positions.
constexpr int64_t kDoublePositions = 64;

Kernel double_kernel(KernelContext& c) {
  const Matrix m = matrix_of(c);
  const DoubleProjection projection(c);
  const Labels labels(c);
  const int64_t places = labels.places();
  const int64_t step = std::min(places, kDoublePositions);
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
    return FloatProjection::multiplies_pairs(c) ? Kernel(FloatKernel<BFloat16>(c)) : FloatKernel<float>(c);
  if (kHasKernels<double> && c.dtype(kHidden) == DType::kDouble) return double_kernel(c);
  c.reject_dtype(kHidden);
}

// For each class, one multiplication and one addition per hidden number; the gradient takes as many. Packed
// weights are unpacked for each part.
Operations operations_of(const Node& node, std::span<const Shape* const> inputs, const Shape&) {
  if (inputs.size() <= kWeights || !inputs[kHidden] || !inputs[kWeights]) return {};
  const Shape& w = *inputs[kWeights];
  if (w.size() < 2) return {};
  const int64_t of_matrix = node.int_or("transB", 0) ? w[0] : w[1];
  const int64_t classes = node.int_or("N", of_matrix);  // of packed weights
  const Shape& hidden = *inputs[kHidden];
  if (hidden.empty()) return {};
  int64_t rows = element_count(hidden, 0, hidden.size() - 1);
  if (node.has_input(kScales))
    rows += kUnpackingRows * ((rows + tuning::kWordPositions - 1) / tuning::kWordPositions);
  const double once =
      2 * static_cast<double>(rows) * static_cast<double>(hidden.back()) * static_cast<double>(classes);
  return {node.outputs.size() > 1 ? 2 * once : once};
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
