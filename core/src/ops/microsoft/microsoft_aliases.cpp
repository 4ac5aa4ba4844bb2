// Operators of com.microsoft that the ONNX standard also has, in another form: ExpandDims, Trilu, GridSample,
// GatherND, Pad, Range, RotaryEmbedding, NhwcMaxPool, CDist, ComplexMul, ComplexMulConj, UnfoldTensor,
// Unique, MatMulInteger16, ShrunkenGather.
#include <algorithm>
#include <numeric>

#include "op/decomposition.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/opset.h"
#include "ops/common/decomposed.h"

namespace ortrain {
namespace {

// Replaces the node by the standard operator of the same name.
void alias(DecompositionContext& e) { e.set(0, e(e.node().op_type, e.node().inputs, e.node().attributes)); }

// Gather of few rows, which training graphs insert before operators, so that these compute only those rows.
void shrunken_gather(DecompositionContext& e) { e.set(0, e("Gather", e.node().inputs, e.node().attributes)); }

// Inserts an axis of size 1 at a constant position.
void expand_dims(DecompositionContext& e) {
  const Tensor* axis = e.constant_value(e.x(1));
  if (!axis) e.reject("its axis should be a constant");
  e.set(0, e.unsqueeze(e.x(0), axis->to_int64()));
}

// Replaces the names of the modes by their newer names.
void grid_sample(DecompositionContext& e) {
  Attributes attributes = e.node().attributes;
  const std::string mode = e.node().string_or("mode", "bilinear");
  const bool renamed = e.opset() >= since::kGridSampleModes;
  attributes["mode"] = renamed && mode == "bilinear"  ? std::string("linear")
                       : renamed && mode == "bicubic" ? std::string("cubic")
                                                      : mode;
  e.set(0, e("GridSample", e.node().inputs, attributes));
}

// The input pads may have shape [1, 2 rank].
void pad(DecompositionContext& e) {
  std::vector<std::string> inputs = e.node().inputs;
  inputs[1] = e("Reshape", {e.x(1), e.int64s({-1})});
  e.set(0, e("Pad", inputs, {{"mode", e.node().string_or("mode", "constant")}}));
}

void range(DecompositionContext& e) {
  const Name step = e.has_x(2) ? as_scalar(e, e.x(2)) : e.scalar_like(e.x(0), 1);
  e.set(0, e("Range", {as_scalar(e, e.x(0)), as_scalar(e, e.x(1)), step}));
}

void nhwc_max_pool(DecompositionContext& e) {
  e.set(0, channels_last(e, e("MaxPool", {channels_first(e, e.x(0))}, e.node().attributes),
                         need_rank(e, e.x(0))));
}

// position_ids is either a single value, the position of the first token of every row, or one position per
// token. The number of heads follows from the caches if it is not given.
void rotary_embedding(DecompositionContext& e) {
  const std::string &x = e.x(0), &ids = e.x(1), &cosines = e.x(2), &sines = e.x(3);
  const auto shape = e.dims(x), cache = e.dims(cosines), positions = e.dims(ids);
  if (!shape || !positions)
    e.reject("the shapes of its inputs are not known; run ONNX shape inference on the model first");
  Attributes attributes = {{"interleaved", e.node().int_or("interleaved", 0)}};
  const int64_t rotated = e.node().int_or("rotary_embedding_dim", 0);
  int64_t heads = e.node().int_or("num_heads", 0);
  if (rotated) attributes["rotary_embedding_dim"] = rotated;
  if (shape->size() == 3) {
    if (heads == 0 && !rotated && shape->back().known() && cache && cache->back().value > 0)
      heads = shape->back().value / (2 * cache->back().value);
    if (heads == 0) e.reject("num_heads is missing and does not follow from the shapes of its inputs");
    attributes["num_heads"] = heads;
  }
  Name all = ids;
  if (positions->size() == 1) {
    const int64_t place = shape->size() == 4 ? 2 : 1;
    const Name zero = e.constant(Tensor::scalar(int64_t{0})), one = e.constant(Tensor::scalar(int64_t{1}));
    const Name count = dims_of(e, x, place, place + 1);
    const Name along = e("Range", {zero, as_scalar(e, count), one});
    const Name rows = e("Concat", {dims_of(e, x, 0, 1), count}, {{"axis", int64_t{0}}});
    all = e("Expand", {e("Add", {along, ids}), rows});
  }
  e.set(0, e("RotaryEmbedding", {x, cosines, sines, all}, attributes));
}

// The distances between the rows of A and those of B.
void cdist(DecompositionContext& e) {
  const std::string metric = e.node().string_or("metric", "sqeuclidean");
  if (metric != "sqeuclidean" && metric != "euclidean")
    e.reject("metric must be 'sqeuclidean' or 'euclidean', found '", metric, "'");
  const Name difference = e("Sub", {e.unsqueeze(e.x(0), {1}), e.unsqueeze(e.x(1), {0})});
  e.set(0, reduce(e, metric == "euclidean" ? "ReduceL2" : "ReduceSumSquare", difference, {2}, false));
}

// Complex numbers as pairs along the last axis: (a + bi)(c + di), or (a + bi)(c - di) with the conjugate.
template <bool Conjugate>
void complex_mul(DecompositionContext& e) {
  const auto part = [&](size_t i, int64_t which) {
    return Expression(e, e("Slice", {e.x(i), e.int64s({which}), e.int64s({which + 1}), e.int64s({-1})}));
  };
  const Expression a = part(0, 0), b = part(0, 1), c = part(1, 0), d = part(1, 1);
  const Expression real = Conjugate ? a * c + b * d : a * c - b * d;
  const Expression imaginary = Conjugate ? b * c - a * d : a * d + b * c;
  e.set(0, e("Concat", {real, imaginary}, {{"axis", int64_t{-1}}}));
}

// Windows of `size` neighbours along an axis, `step` apart; the position in the window is a new last axis.
void unfold(DecompositionContext& e) {
  const auto dims = e.dims(e.x(0));
  const int64_t size = e.node().int_or("size", 0), step = e.node().int_or("step", 1);
  if (!dims) e.reject("the shape of its input is not known; run ONNX shape inference on the model first");
  const int64_t rank = static_cast<int64_t>(dims->size());
  const int64_t axis = normalize_axis(e.node().int_or("dim", -1), rank, e.node().label());
  const Dim& dim = (*dims)[static_cast<size_t>(axis)];
  if (!dim.known()) e.reject("the size of axis ", axis, " must be declared in the model");
  if (size < 1 || size > dim.value || step < 1)
    e.reject(
        concat("size must be in [1, ", dim.value, "] and step be positive, found ", size, " and ", step));
  const int64_t windows = (dim.value - size) / step + 1;
  constexpr int64_t kMostPlaces = 1 << 24;
  if (windows > kMostPlaces / size)
    e.reject("its ", counted(windows, "window"), " of ", counted(size, "element"), " must have at most ",
             kMostPlaces, " elements together");
  std::vector<int64_t> places;
  for (int64_t w = 0; w < windows; ++w)
    for (int64_t i = 0; i < size; ++i) places.push_back(w * step + i);
  const Name chosen =
      e("Gather", {e.x(0), e.constant(Tensor::of(places, {windows, size}))}, {{"axis", axis}});
  std::vector<int64_t> order(static_cast<size_t>(rank) + 1);
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin() + axis + 1, order.begin() + axis + 2, order.end());
  e.set(0, e("Transpose", {chosen}, {{"perm", order}}));
}

// The distinct elements of a vector in order of first occurrence; the index of each element among them; the
// number of occurrences of each.
void unique(DecompositionContext& e) {
  const auto found = e.emit("Unique", {e.x(0)}, 4, {{"sorted", int64_t{0}}});
  e.set(0, found[0]);
  e.set(1, found[2]);
  e.set(2, found[3]);
}

// A product of 16-bit integers, summed in 32 bits.
void matmul_integer16(DecompositionContext& e) {
  const Attributes wide = {{"to", static_cast<int64_t>(DType::kInt32)}};
  e.set(0, e("MatMul", {e("Cast", {e.x(0)}, wide), e("Cast", {e.x(1)}, wide)}));
}

ORTRAIN_DECOMPOSITION("Unique", "x -> y, idx, counts", unique);
ORTRAIN_DECOMPOSITION("MatMulInteger16", "A, B -> Y", matmul_integer16);
ORTRAIN_DECOMPOSITION("UnfoldTensor", "input -> output", unfold);
ORTRAIN_DECOMPOSITION("Trilu", "X, k? -> Y", alias);
ORTRAIN_DECOMPOSITION("GatherND", "data, indices -> output", alias);
ORTRAIN_DECOMPOSITION("ExpandDims", "X, axis -> Y", expand_dims);
ORTRAIN_DECOMPOSITION("ShrunkenGather", "data, indices -> output", shrunken_gather);
ORTRAIN_DECOMPOSITION("GridSample", "X, Grid -> Y", grid_sample);
ORTRAIN_DECOMPOSITION("Pad", "data, pads, value? -> output", pad);
ORTRAIN_DECOMPOSITION("Range", "start, limit, delta? -> Y", range);
ORTRAIN_DECOMPOSITION("NhwcMaxPool", "x -> y", nhwc_max_pool);
ORTRAIN_DECOMPOSITION("RotaryEmbedding", "input, position_ids, cos_cache, sin_cache -> output",
                      rotary_embedding);
ORTRAIN_DECOMPOSITION("CDist", "A, B -> C", cdist);
ORTRAIN_DECOMPOSITION("ComplexMul", "A, B -> C", complex_mul<false>);
ORTRAIN_DECOMPOSITION("ComplexMulConj", "A, B -> C", complex_mul<true>);

}  // namespace
}  // namespace ortrain
