// LinearRegressor and LinearClassifier of ai.onnx.ml: scores S = X Wᵀ + b, transformed; the classifier adds
// the label of the largest score. With one row of coefficients and two labels the scores are -s and s.
//
//     dX = dS W
#include <algorithm>

#include "backend/cpu/matmul/product.h"
#include "op/gradient_expression.h"
#include "ops/common/shape_helpers.h"
#include "ops/ml/ml.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

struct Linear {
  Rows rows;
  std::vector<float> weights, bias;
  Labels labels;
  int64_t scores = 1;  // rows of the weights
  bool mirrored = false;
  PostTransform transform;

  Linear(const NodeContext& c, bool classifies)
      : rows(c),
        weights(floats_of(c, "coefficients")),
        bias(floats_of(c, "intercepts")),
        labels(c, "classlabels_ints"),
        transform(read_post_transform(c)) {
    const int64_t count = static_cast<int64_t>(weights.size());
    c.expect(rows.features > 0 && count > 0 && count % rows.features == 0, "its ",
             counted(count, "coefficient"), agreeing(count, " is", " are"), " not a multiple of the ",
             counted(rows.features, "feature"));
    scores = count / rows.features;
    if (bias.empty()) bias.assign(static_cast<size_t>(scores), 0);
    c.expect(static_cast<int64_t>(bias.size()) == scores, "it has coefficients for ",
             counted(scores, "score"), ", but ", counted(bias.size(), "intercept"));
    if (!classifies) {
      const int64_t targets = c.node().int_or("targets", 1);
      c.expect(targets == scores, "attribute targets is ", targets, ", but there are coefficients for ",
               counted(scores, "target"));
      return;
    }
    mirrored = scores == 1 && labels.size() == 2;
    if (labels.empty())
      for (int64_t i = 0; i < scores; ++i) labels.values.push_back(i);
    c.expect(mirrored || static_cast<int64_t>(labels.size()) == scores, "it has ", counted(scores, "score"),
             " and ", counted(labels.size(), "label"), ", expected one label for each score");
  }
  int64_t width() const { return mirrored ? 2 : scores; }
};

template <bool Classifies>
void shape(ShapeContext& c) {
  const Linear l(c, Classifies);
  constexpr size_t at = Classifies ? 1 : 0;
  if (Classifies && c.has_output(0)) c.output(0, l.labels.type(), {l.rows.count});
  if (c.has_output(at)) c.output(at, DType::kFloat, {l.rows.count, l.width()});
}

template <bool Classifies>
Kernel kernel(KernelContext& c) {
  const Linear l(c, Classifies);
  const int64_t n = l.rows.count, features = l.rows.features, width = l.width();
  const Slot x = c.in(0), weights = c.fixed(Tensor::of(l.weights)),
             floats = c.scratch(static_cast<size_t>(n * features) * 4),
             raw = c.scratch(static_cast<size_t>(n * l.scores) * 4),
             made = c.scratch(static_cast<size_t>(n * width) * 4);
  const Slot label = Classifies && c.has_output(0) ? c.out(0) : Slot{};
  constexpr size_t at = Classifies ? 1 : 0;
  const Slot y = c.has_output(at) ? c.out(at) : made;
  Kernel kernel;
  visit_ml(c, 0, [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      float *rows = f.at<float>(floats), *sums = f.at<float>(raw);
      std::copy(f.at<T>(x), f.at<T>(x) + n * features, rows);
      for (int64_t i = 0; i < n * l.scores; ++i) sums[i] = l.bias[static_cast<size_t>(i % l.scores)];
      threaded_product<float>(n, l.scores, features, {rows, features, 1}, {f.at<float>(weights), 1, features},
                              1, sums, l.scores);
      parallel_for(n, width * 16, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          float* to = f.at<float>(y) + i * width;
          const float* s = sums + i * l.scores;
          if (l.mirrored)
            to[0] = -s[0], to[1] = s[0];
          else
            std::copy(s, s + width, to);
          if (label.defined()) {
            const size_t best = static_cast<size_t>(std::max_element(to, to + width) - to);
            f.at<int64_t>(label)[i] = width > 1 ? l.labels[best] : s[0] > 0 ? l.labels[0] : 0;
          }
          transform_scores(l.transform, to, width);
        }
      });
    };
  });
  return kernel;
}

template <bool Classifies>
void gradient(GradientContext& g) {
  constexpr size_t at = Classifies ? 1 : 0;
  Name d = scores_gradient(g, g.dy(at), g.y(at));
  const auto found = g.node().attributes.find("coefficients");
  const auto* given =
      found == g.node().attributes.end() ? nullptr : std::get_if<std::vector<float>>(&found->second);
  if (!given) g.reject("attribute coefficients must hold floats");
  const std::vector<float>& weights = *given;
  const auto dims = g.dims(g.x(0));
  if (!dims || dims->empty() || dims->back().value <= 0)
    g.reject("its gradient needs an input with a known number of features");
  const int64_t features = dims->back().value, scores = static_cast<int64_t>(weights.size()) / features;
  const size_t labels =
      g.node().ints_or("classlabels_ints", {}).size() + strings_of(g.node(), "classlabels_strings").size();
  if (Classifies && scores == 1 && labels == 2)
    d = g("MatMul", {d, g.constant(Tensor::of(std::vector<float>{-1, 1}, {2, 1}))});
  const Expression x(g, g.x(0)), dx(g, g("MatMul", {d, g.constant(Tensor::of(weights, {scores, features}))}));
  g.set(0, reshape_like(g, g.dtype(x) == DType::kFloat ? dx : dx.as(x), x));
}

ORTRAIN_OPERATOR(
    {.domain = kMl,
     .type = "LinearRegressor",
     .rules = {.shape = shape<false>, .gradient = gradient<false>, .element_type = always<DType::kFloat>},
     .kernels = {.cpu = kernel<false>}});
ORTRAIN_OPERATOR(
    {.domain = kMl,
     .type = "LinearClassifier",
     .rules = {.shape = shape<true>, .gradient = gradient<true>, .element_type = classifier_types},
     .kernels = {.cpu = kernel<true>}});

}  // namespace
}  // namespace ortrain
