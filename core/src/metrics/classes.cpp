#include "metrics/classes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "runtime/error.h"

namespace ortrain {

namespace {

// The index of the largest of n numbers; if several are equal, of the first.
template <typename T>
int64_t place_of_largest(const T* x, int64_t n) {
  constexpr int64_t kLanes = 16;
  if (n < 2 * kLanes) return std::max_element(x, x + n) - x;
  std::array<T, kLanes> lanes;
  std::copy_n(x, kLanes, lanes.begin());
  int64_t i = kLanes;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t k = 0; k < kLanes; ++k) lanes[k] = lanes[k] < x[i + k] ? x[i + k] : lanes[k];
  T largest = *std::max_element(lanes.begin(), lanes.end());
  for (; i < n; ++i) largest = std::max(largest, x[i]);
  const T* found = std::find(x, x + n, largest);
  return found == x + n ? 0 : found - x;  // not found if the largest is NaN
}

template <typename T>
void find_largest(const T* scores, const ScoreLayout& layout, int64_t* classes) {
  if (layout.inner == 1) {
    for (int64_t r = 0; r < layout.rows; ++r)
      classes[r] = place_of_largest(scores + r * layout.classes, layout.classes);
    return;
  }
  std::vector<T> best(static_cast<size_t>(layout.inner));
  for (int64_t r = 0; r < layout.rows; ++r) {
    const T* row = scores + r * layout.classes * layout.inner;
    int64_t* found = classes + r * layout.inner;
    std::copy_n(row, layout.inner, best.begin());
    std::fill_n(found, layout.inner, int64_t{0});
    for (int64_t c = 1; c < layout.classes; ++c) {
      const T* each = row + c * layout.inner;
      for (int64_t i = 0; i < layout.inner; ++i) {
        const bool larger = best[static_cast<size_t>(i)] < each[i];
        best[static_cast<size_t>(i)] = larger ? each[i] : best[static_cast<size_t>(i)];
        found[i] = larger ? c : found[i];
      }
    }
  }
}

int64_t product(const Shape& shape, size_t begin, size_t end) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(begin),
                         shape.begin() + static_cast<std::ptrdiff_t>(end), int64_t{1}, std::multiplies<>());
}

Shape without(const Shape& shape, size_t axis) {
  Shape rest = shape;
  rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(axis));
  return rest;
}

// For targets that are probabilities of classes, the likeliest class of each item.
std::vector<int64_t> likeliest(const std::string& metric, const Tensor& target) {
  const Shape& shape = target.shape();
  const ScoreLayout layout{shape[0], shape[1], product(shape, 2, shape.size())};
  with_numbers(target, [&](const auto* x) {
    for (int64_t r = 0; r < layout.rows; ++r)
      for (int64_t i = 0; i < layout.inner; ++i) {
        double sum = 0;
        for (int64_t c = 0; c < layout.classes; ++c)
          sum += static_cast<double>(x[(r * layout.classes + c) * layout.inner + i]);
        require(
            std::abs(sum - 1) <= 1e-3 + 1e-5, ErrorCode::kInvalidArgument, "metric ", metric,
            ": expected probabilities of classes as targets, whose sum over the classes is 1, found the sum ",
            sum, "; for rows with several labels, use auc_multilabel");
      }
  });
  return predicted_classes(target, layout);
}

}  // namespace

std::vector<int64_t> whole_numbers(const Tensor& tensor) {
  std::vector<int64_t> out(static_cast<size_t>(tensor.size()));
  const bool known = visit_numeric_or_bool(tensor.dtype(), [&](auto type) {
    const auto* x = tensor.data<decltype(type)>();
    std::transform(x, x + tensor.size(), out.begin(), [](auto value) { return cast_number<int64_t>(value); });
  });
  if (!known) {
    const std::vector<double> values = tensor.to_double();
    std::transform(values.begin(), values.end(), out.begin(),
                   [](double v) { return cast_number<int64_t>(v); });
  }
  return out;
}

std::vector<int64_t> predicted_classes(const Tensor& scores, const ScoreLayout& layout) {
  std::vector<int64_t> classes(static_cast<size_t>(layout.items()));
  with_numbers(scores, [&](const auto* x) {
    if (layout.classes == 1)
      std::transform(x, x + layout.items(), classes.begin(), [](auto score) { return int64_t{score > 0}; });
    else
      find_largest(x, layout, classes.data());
  });
  return classes;
}

ClassBatch class_batch(const MetricBatch& batch) {
  const Shape &shape = batch.prediction->shape(), &given = batch.target.shape();
  require(!shape.empty(), ErrorCode::kInvalidArgument, "metric ", batch.metric,
          ": expected scores [batch, classes, ...] as the prediction, found a scalar");
  const bool probabilities =
      is_floating(batch.target.dtype()) && given == shape && given.size() > 1 && given[1] > 1;
  ClassBatch out;
  out.targets = probabilities ? likeliest(batch.metric, batch.target) : whole_numbers(batch.target);
  const Shape of_targets = probabilities ? without(given, 1) : given;
  const size_t rank = shape.size();
  const bool classes_last =
      rank > 2 && without(shape, rank - 1) == of_targets && of_targets != without(shape, 1);
  if (rank == 1 || (!classes_last && shape[1] == 1))
    out.layout = {batch.prediction->size(), 1, 1};
  else if (classes_last)
    out.layout = {product(shape, 0, rank - 1), shape.back(), 1};
  else
    out.layout = {shape[0], shape[1], product(shape, 2, rank)};
  require(out.layout.classes > 0, ErrorCode::kInvalidArgument, "metric ", batch.metric,
          ": expected scores of at least one class, found the shape ", to_string(shape));
  require(static_cast<int64_t>(out.targets.size()) == out.layout.items(), ErrorCode::kInvalidArgument,
          "metric ", batch.metric, ": expected one class index for each of ",
          counted(out.layout.items(), "prediction"), ", found ", counted(out.targets.size(), "target"));
  return out;
}

ClassPairs class_pairs(const MetricBatch& batch, int64_t ignored, int64_t most) {
  ClassBatch given = class_batch(batch);
  ClassPairs out{std::max<int64_t>(given.layout.classes, 2),
                 predicted_classes(*batch.prediction, given.layout), std::move(given.targets)};
  int64_t largest = out.classes - 1;
  size_t kept = 0;
  for (size_t i = 0; i < out.expected.size(); ++i) {
    const int64_t expected = out.expected[i];
    if (expected == ignored) continue;
    require(expected >= 0, ErrorCode::kInvalidArgument, "metric ", batch.metric,
            ": expected as targets class indices of 0 or more, or the ignored index ", ignored, ", found ",
            expected);
    largest = std::max(largest, expected);
    out.predicted[kept] = out.predicted[i];
    out.expected[kept++] = expected;
  }
  require(largest < most, ErrorCode::kInvalidArgument, "metric ", batch.metric, ": expected at most ",
          counted(most, "class"), ", found ", static_cast<uint64_t>(largest) + 1);
  out.classes = largest + 1;
  out.predicted.resize(kept);
  out.expected.resize(kept);
  return out;
}

}  // namespace ortrain
