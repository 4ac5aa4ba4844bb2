// TensorScatter: a cache with an update written along one axis, starting at a separate position for each
// sample of the batch (the first axis); in mode circular the update wraps around at the end.
// TensorScatterGrad (com.microsoft) reads the gradient where the update was written.
#include <algorithm>

#include "backend/cpu/strided_copy.h"
#include "op/gradient_expression.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

struct Update {
  int64_t batch, outer, limit, length, inner;  // outer: axes between the batch and the updated axis
  bool circular;

  Update(const NodeContext& c, const Shape& cache, const Shape& update, size_t indices_at) {
    const int64_t rank = static_cast<int64_t>(cache.size());
    c.expect(rank >= 2, "the cache must have at least rank 2, found ", to_string(cache));
    const size_t axis = axis_of(c, -2, rank);
    c.expect(axis != 0, "its axis must not be 0, the axis of the batch");
    Shape expected = cache;
    if (update.size() == cache.size()) expected[axis] = update[axis];
    c.expect(update == expected && update[axis] <= cache[axis], "an update of shape ", to_string(update),
             " does not fit a cache of shape ", to_string(cache), " along axis ", axis);
    const std::string mode = c.node().string_or("mode", "linear");
    c.expect(mode == "linear" || mode == "circular", "attribute mode must be linear or circular, found '",
             mode, "'");
    if (c.has_input(indices_at))
      c.expect(c.dtype(indices_at) == DType::kInt64 && c.shape(indices_at) == Shape{cache[0]},
               "write_indices must be int64[", cache[0], "], found ", to_string(c.dtype(indices_at)),
               to_string(c.shape(indices_at)));
    circular = mode == "circular";
    batch = cache[0];
    outer = element_count(cache, 1, axis);
    limit = cache[axis];
    length = update[axis];
    inner = element_count(cache, axis + 1, cache.size());
  }

  // Throws if a sample's update does not fit.
  void check(const std::string& label, const int64_t* starts) const {
    for (int64_t b = 0; starts && b < batch; ++b)
      require(starts[b] >= 0 && (circular || starts[b] <= limit - length), ErrorCode::kInvalidArgument, label,
              ": write_indices[", b, "] is ", starts[b], ", but ", counted(length, "element"),
              agreeing(length, " is", " are"), " written to an axis of ", limit);
  }

  // Calls f(position in the cache, position in the update, count) for runs of elements.
  template <typename F>
  void each(const int64_t* starts, F&& f) const {
    parallel_for(batch * outer, length * inner, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t start = limit > 0 && starts ? starts[row / outer] % limit : 0;
        const int64_t first = std::min(length, limit - start);
        f((row * limit + start) * inner, row * length * inner, first * inner);
        if (first < length) f(row * limit * inner, (row * length + first) * inner, (length - first) * inner);
      }
    });
  }
};

void shape(ShapeContext& c) {
  Update(c, c.shape(0), c.shape(1), 2);
  c.expect(c.dtype(0) == c.dtype(1), "cache and update must have the same type, found ",
           to_string(c.dtype(0)), " and ", to_string(c.dtype(1)));
  c.output(0, c.dtype(0), c.shape(0));
}

Kernel kernel(KernelContext& c) {
  const Update u(c, c.shape(0), c.shape(1), 2);
  const int64_t width = static_cast<int64_t>(width_of(c, 0));
  const size_t bytes = static_cast<size_t>(c.size(0) * width);
  const Slot past = c.in(0), update = c.in(1), starts = c.has_input(2) ? c.in(2) : Slot{};
  const Slot present = c.out_inplace(0, {0});
  return [=, label = c.node().label()](const Frame& f) {
    const int64_t* at = f.at_or_null<int64_t>(starts);
    u.check(label, at);
    std::byte* to = f.at<std::byte>(present);
    if (f.at<std::byte>(past) != to) copy_bytes(to, f.at<std::byte>(past), bytes);
    u.each(at, [&](int64_t cache, int64_t from, int64_t n) {
      std::copy_n(f.at<std::byte>(update) + from * width, n * width, to + cache * width);
    });
  };
}

// TensorScatterGrad(dY, shape of the update, write_indices?)
void grad_shape(ShapeContext& c) {
  const Shape update = constant_ints(c, 1);
  Update(c, c.shape(0), update, 2);
  c.output(0, c.dtype(0), update);
}

Kernel grad_kernel(KernelContext& c) {
  const Update u(c, c.shape(0), c.out_shape(0), 2);
  const int64_t width = static_cast<int64_t>(width_of(c, 0));
  const Slot dy = c.in(0), starts = c.has_input(2) ? c.in(2) : Slot{}, d = c.out(0);
  return [=, label = c.node().label()](const Frame& f) {
    const int64_t* at = f.at_or_null<int64_t>(starts);
    u.check(label, at);
    u.each(at, [&](int64_t cache, int64_t to, int64_t n) {
      std::copy_n(f.at<std::byte>(dy) + cache * width, n * width, f.at<std::byte>(d) + to * width);
    });
  };
}

// Elements that were overwritten have no gradient: dcache is dY with zeros written over these elements.
void gradient(GradientContext& g) {
  const auto with_starts = [&](std::vector<std::string> inputs) {
    if (g.has_x(2)) inputs.push_back(g.x(2));
    return inputs;
  };
  if (g.needs(0))
    g.set(0, g("TensorScatter", with_starts({g.dy(0), zeros_like(g, g.x(1))}), g.node().attributes));
  if (g.needs(1))
    g.set(1, g("TensorScatterGrad", with_starts({g.dy(0), shape_of(g, g.x(1))}), g.node().attributes,
               kMicrosoft));
}

// The gradient of dY is a TensorScatter of the incoming gradient into zeros.
void grad_gradient(GradientContext& g) {
  Names inputs = {zeros_like(g, g.x(0)), g.dy(0)};
  if (g.has_x(2)) inputs.push_back(g.x(2));
  g.set(0, g("TensorScatter", inputs, g.node().attributes));
}

ORTRAIN_OPERATOR({.type = "TensorScatter",
                  .rules = {.shape = shape, .gradient = gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "TensorScatterGrad",
                  .signature = "dY, shape, write_indices? -> dupdate",
                  .rules = {.shape = grad_shape, .gradient = grad_gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = grad_kernel}});

// TensorScatterGrad with operators of ONNX: the elements of dY along the axis at the places that were
// written.
void grad_form(DecompositionContext& e) {
  const std::string &dy = e.x(0), &shape = e.x(1);
  const int64_t rank = need_rank(e, dy);
  const int64_t axis = normalize_axis(e.node().int_or("axis", -2), rank, e.node().label());
  const auto scalar = [&](const std::string& dims) {
    return e("Reshape", {e("Gather", {dims, e.int64s({axis})}), e.int64s({})});
  };
  std::vector<int64_t> along(static_cast<size_t>(rank), 1), by_sample = along;
  along[static_cast<size_t>(axis)] = by_sample[0] = -1;
  const Name numbers = e("Range", {e.constant(Tensor::scalar(int64_t{0})), scalar(shape),
                                   e.constant(Tensor::scalar(int64_t{1}))});
  Expression places(e, e("Reshape", {numbers, e.int64s(along)}));
  if (e.has_x(2)) places = places + Expression(e, e("Reshape", {e.x(2), e.int64s(by_sample)}));
  if (e.node().string_or("mode", "linear") == "circular")
    places = places.call("Mod", Expression(e, scalar(e("Shape", {dy}))));
  e.set(0, e("GatherElements", {dy, e("Expand", {places, shape})}, {{"axis", axis}}));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "TensorScatterGrad", {cold<grad_form>});

}  // namespace
}  // namespace ortrain
