// NonMaxSuppression: selects the boxes with the highest scores, without boxes that overlap a selected box,
// for each image and each class.
//
// Boxes of a class are visited from the highest score down; a box is selected unless its intersection over
// union with a previously selected box is above the threshold (Felzenszwalb et al. 2010, "Object detection
// with discriminatively trained part-based models", 3.4).
//
// Compiled for speed: a loop over pairs of boxes (CMakeLists.txt).
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "op/dynamic.h"

namespace ortrain {
namespace {

void types(TypeContext& c) { c.output(0, DType::kInt64, std::vector<Dim>{Dim{}, Dim{3, ""}}); }

// Two opposite corners of a box, the lower coordinates first.
struct Box {
  float y0, x0, y1, x1;
};

Box box_of(const float* v, bool center) {
  if (center) return {v[1] - v[3] / 2, v[0] - v[2] / 2, v[1] + v[3] / 2, v[0] + v[2] / 2};
  return {std::min(v[0], v[2]), std::min(v[1], v[3]), std::max(v[0], v[2]), std::max(v[1], v[3])};
}

float area(const Box& b) { return (b.y1 - b.y0) * (b.x1 - b.x0); }

bool overlap(const Box& a, const Box& b, float threshold) {
  const float height = std::min(a.y1, b.y1) - std::max(a.y0, b.y0);
  const float width = std::min(a.x1, b.x1) - std::max(a.x0, b.x0);
  if (height <= 0 || width <= 0) return false;
  const float both = height * width, either = area(a) + area(b) - both;
  return either > 0 && both / either > threshold;
}

void run(DynamicContext& c) {
  const Tensor &boxes = c.in(0), &scores = c.in(1);
  if (boxes.dtype() != DType::kFloat) c.reject_dtype(0);
  if (scores.dtype() != DType::kFloat) c.reject_dtype(1);
  c.expect(c.rank(0) == 3 && c.shape(0)[2] == 4 && c.rank(1) == 3 && c.shape(1)[0] == c.shape(0)[0] &&
               c.shape(1)[2] == c.shape(0)[1],
           "expected boxes [batches, boxes, 4] and scores [batches, classes, boxes], found ",
           to_string(c.shape(0)), " and ", to_string(c.shape(1)));
  const int64_t most = c.single_value_or<int64_t>(2, 0);
  const float threshold = c.single_value_or<float>(3, 0.f);
  c.expect(threshold >= 0 && threshold <= 1,
           "the threshold of intersection over union must be in [0, 1], found ", threshold);
  const bool any_score = !c.has_input(4), center = c.node().int_or("center_point_box", 0) != 0;
  const float least_score = c.single_value_or<float>(4, 0.f);
  const int64_t batches = c.shape(0)[0], classes = c.shape(1)[1], count = c.shape(0)[1];

  std::vector<std::array<int64_t, 3>> chosen;
  std::vector<int64_t> candidates;
  std::vector<Box> kept;
  for (int64_t b = 0; b < batches; ++b) {
    const float* box = boxes.data<float>() + b * count * 4;
    for (int64_t k = 0; k < classes && most > 0; ++k) {
      const float* score = scores.data<float>() + (b * classes + k) * count;
      candidates.clear();
      for (int64_t i = 0; i < count; ++i)
        if (any_score || score[i] > least_score) candidates.push_back(i);
      std::stable_sort(candidates.begin(), candidates.end(),
                       [=](int64_t i, int64_t j) {  // NaN scores come last
                         return score[i] > score[j] || (std::isnan(score[j]) && !std::isnan(score[i]));
                       });
      kept.clear();
      for (const int64_t i : candidates) {
        if (static_cast<int64_t>(kept.size()) >= most) break;
        const Box candidate = box_of(box + i * 4, center);
        if (std::any_of(kept.begin(), kept.end(),
                        [&](const Box& other) { return overlap(candidate, other, threshold); }))
          continue;
        kept.push_back(candidate);
        chosen.push_back({b, k, i});
      }
    }
  }
  int64_t* out = c.out(0, DType::kInt64, {static_cast<int64_t>(chosen.size()), 3}).data<int64_t>();
  for (const auto& row : chosen) out = std::copy(row.begin(), row.end(), out);
}

ORTRAIN_OPERATOR({.type = "NonMaxSuppression",
                  .rules = {.types = types},
                  .traits = {.stops_gradient = true},
                  .kernels = {.run = run}});

}  // namespace
}  // namespace ortrain
