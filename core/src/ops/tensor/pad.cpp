// Pad: a border around the tensor, filled with one value (constant), the edge, mirrored (reflect) or from the
// other side (wrap). Negative pads crop instead.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "backend/cpu/axis_order.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

enum class Mode { kConstant, kReflect, kEdge, kWrap };

Mode mode_of(const NodeContext& c) {
  const std::string mode = c.node().string_or("mode", "constant");
  if (mode == "constant") return Mode::kConstant;
  if (mode == "reflect") return Mode::kReflect;
  if (mode == "edge") return Mode::kEdge;
  if (mode == "wrap") return Mode::kWrap;
  c.reject("attribute 'mode' must be constant, reflect, edge or wrap, found '", mode, "'");
}

struct Border {
  int64_t before = 0, after = 0;
};
constexpr int64_t kMostPad = int64_t{1} << 56;
// The largest dimension of a result whose border repeats elements: a table holds the source of each position.
constexpr int64_t kMostMapped = int64_t{1} << 27;

// The attribute that holds the borders before version 11; version 1 has another name for it.
const char* attribute_of(const Node& node) { return node.has("paddings") ? "paddings" : "pads"; }

// One border per axis: pads lists all sizes before the axes, then all sizes after them.
std::vector<Border> borders_of(const NodeContext& c) {
  const std::vector<int64_t> pads = *ints_of(c, attribute_of(c.node()), 1);
  std::vector<int64_t> axes(static_cast<size_t>(c.rank(0)));
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
  if (c.has_input(3)) axes = normalize_axes(c, constant_ints(c, 3), c.rank(0));
  c.expect(pads.size() == 2 * axes.size(), "pads ", to_string(pads), " must have two entries for each of ",
           counted(axes.size(), "axis"));
  std::vector<Border> borders(static_cast<size_t>(c.rank(0)));
  for (const int64_t pad : pads)
    c.expect(pad >= -kMostPad && pad <= kMostPad, "pads ", to_string(pads), " are too large");
  for (size_t i = 0; i < axes.size(); ++i)
    borders[static_cast<size_t>(axes[i])] = {pads[i], pads[i + axes.size()]};
  return borders;
}

void shape(ShapeContext& c) {
  c.expect(c.node().has(attribute_of(c.node())) || c.has_input(1),
           "neither attribute nor input 'pads' is given");
  if (c.has_input(2)) {
    c.expect(c.dtype(2) == c.dtype(0), "the border value has type ", to_string(c.dtype(2)), ", expected ",
             to_string(c.dtype(0)));
    c.expect(c.size(2) == 1, "the border value must be a scalar, found shape ", to_string(c.shape(2)));
  }
  const std::vector<Border> borders = borders_of(c);
  const Mode mode = mode_of(c);
  Shape out = c.shape(0);
  for (size_t i = 0; i < out.size(); ++i) {
    const auto [before, after] = borders[i];
    const int64_t dim = out[i], kept = dim + std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0);
    c.expect(!__builtin_add_overflow(out[i], before, &out[i]) &&
                 !__builtin_add_overflow(out[i], after, &out[i]) && out[i] >= 0 && kept >= 0,
             "pads ", before, " and ", after, " do not fit axis ", i, " of size ", dim);
    c.expect(mode == Mode::kConstant || kept > 0 || out[i] == 0, "axis ", i, " of size ", dim,
             " has nothing to fill the border from");
    c.expect(mode == Mode::kConstant || (before == 0 && after == 0) || out[i] <= kMostMapped, "pads ", before,
             " and ", after, " make axis ", i, " longer than ", kMostMapped, " elements");
  }
  c.output(0, c.dtype(0), out);
}

// The position in [0, size) from which position p, outside or inside, takes its value.
int64_t origin(Mode mode, int64_t p, int64_t dim) {
  if (mode == Mode::kEdge) return std::clamp<int64_t>(p, 0, dim - 1);
  const int64_t period = mode == Mode::kWrap ? dim : std::max<int64_t>(1, 2 * (dim - 1));
  const int64_t phase = (p % period + period) % period;
  return mode == Mode::kReflect && phase >= dim ? period - phase : phase;
}

// A border of one value: fills the result, then copies the part of the input that remains.
Kernel constant_kernel(KernelContext& c, const std::vector<Border>& borders, AxisOrder order) {
  const Shape in_shape = order.sorted(c.shape(0)), out_shape = order.sorted(c.out_shape(0));
  Shape kept = in_shape;
  StridedCopy::View source{0, strides_of(in_shape)}, target{0, strides_of(out_shape)};
  bool only_cut = true;
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto [before, after] = borders[i];
    kept[i] += std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0);
    source.offset -= std::min<int64_t>(before, 0) * source.strides[i];
    target.offset += std::max<int64_t>(before, 0) * target.strides[i];
    only_cut &= before <= 0 && after <= 0;
  }
  const size_t width = width_of(c, 0);
  const StridedCopy copy(width, kept, source, target);
  const StridedCopy fill(width, {only_cut ? 0 : c.out_size(0)}, {0, {0}}, {0, {1}});
  Tensor border(c.dtype(0), Shape{});
  std::memset(border.raw(), 0, border.bytes());
  if (c.node().has("value"))  // before version 11
    border = Tensor::scalar(c.dtype(0), static_cast<double>(c.node().float_or("value", 0)));
  const Slot in = c.in(0, order.layout(c.shape(0))), value = c.has_input(2) ? c.in(2) : c.fixed(border),
             out = c.out(0, order.layout(c.out_shape(0)));
  return [=](const Frame& f) {
    fill(f.at<std::byte>(value), f.at<std::byte>(out));
    copy(f.at<std::byte>(in), f.at<std::byte>(out));
  };
}

// A border taken from the tensor: for every axis a table holds the source of each position.
Kernel mapped_kernel(KernelContext& c, const std::vector<Border>& borders, Mode mode, AxisOrder order) {
  const Shape in_shape = order.sorted(c.shape(0)), out_shape = order.sorted(c.out_shape(0)),
              in_strides = strides_of(in_shape);
  const size_t last = out_shape.size() - 1;
  std::vector<std::vector<int64_t>> origins(out_shape.size());  // in elements of the input
  for (size_t i = 0; i < out_shape.size(); ++i) {
    const auto [before, after] = borders[i];
    const int64_t cut = -std::min<int64_t>(before, 0), kept = in_shape[i] - cut + std::min<int64_t>(after, 0);
    for (int64_t p = 0; p < out_shape[i]; ++p)
      origins[i].push_back((cut + origin(mode, p - std::max<int64_t>(before, 0), kept)) * in_strides[i]);
  }
  Kernel kernel;
  visit_width(c, 0, [&](auto zero) {
    using T = decltype(zero);
    const Slot in = c.in(0, order.layout(c.shape(0))), out = c.out(0, order.layout(c.out_shape(0)));
    kernel = [=](const Frame& f) {
      const T* from = f.at<T>(in);
      T* to = f.at<T>(out);
      const int64_t columns = out_shape[last];
      parallel_for(element_count(out_shape, 0, last), columns, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          int64_t start = 0, rest = row;
          for (size_t d = last; d-- > 0;) {
            start += origins[d][static_cast<size_t>(rest % out_shape[d])];
            rest /= out_shape[d];
          }
          for (int64_t j = 0; j < columns; ++j)
            to[row * columns + j] = from[start + origins[last][static_cast<size_t>(j)]];
        }
      });
    };
  });
  return kernel;
}

Kernel kernel(KernelContext& c) {
  const std::vector<Border> borders = borders_of(c);
  if (std::all_of(borders.begin(), borders.end(), [](Border b) { return b.before == 0 && b.after == 0; })) {
    c.alias(0, 0);
    return nullptr;
  }
  const Mode mode = mode_of(c);
  const AxisOrder order = order_of_inputs(c);
  if (mode == Mode::kConstant) return constant_kernel(c, order.sorted(borders), order);
  if (c.out_size(0) == 0) {
    c.out(0);
    return nothing_to_do();
  }
  return mapped_kernel(c, order.sorted(borders), mode, order);
}

// constant: padding by the negated pads removes the border again.
void constant_gradient(GradientContext& g) {
  if (g.has_x(2) && g.needs(2)) {
    // The sum of the gradient over the border, which is where zeros padded with ones are one.
    Names inputs = {zeros_like(g, g.x(0)), g.x(1), g.scalar_like(g.x(0), 1)};
    if (g.has_x(3)) inputs.push_back(g.x(3));
    const Name sum = g("ReduceSum", {g("Mul", {g.dy(0), g("Pad", inputs)})}, {{"keepdims", int64_t{0}}});
    g.set(2, reshape_like(g, sum, g.x(2)));
    if (!g.needs(0)) return;
  }
  if (!g.has_x(1)) {
    std::vector<int64_t> pads = g.node().ints_or(attribute_of(g.node()), {});
    // The shape rule rejects pads beyond kMostPad.
    for (int64_t& pad : pads) pad = -std::clamp(pad, -kMostPad, kMostPad);
    return g.set(0, g("Pad", {g.dy(0)}, {{"pads", pads}}));
  }
  Names inputs = {g.dy(0), g("Neg", {g.x(1)})};
  if (g.has_x(3)) inputs.insert(inputs.end(), {"", g.x(3)});
  g.set(0, g("Pad", inputs));
}

// The indices 0, 1, 2 ... below `count`, a scalar.
Name numbers_below(GradientContext& g, Name count) {
  return g("Range", {g.constant(Tensor::scalar<int64_t>(0)), count, g.constant(Tensor::scalar<int64_t>(1))});
}

// The other modes read an element several times. Along each padded axis, they equal a Gather whose indices
// are 0, 1, 2 ... padded in the same mode, and the gradient is its GatherGrad.
Name gradient_by_axis(GradientContext& g, const std::vector<int64_t>& pads, const std::vector<int64_t>& axes,
                      int64_t rank) {
  const std::string mode = g.node().string_or("mode", "constant"), dims = shape_of(g, g.x(0));
  Name gradient = g.dy(0);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t before = pads[i], after = pads[i + axes.size()];
    if (before == 0 && after == 0) continue;
    const int64_t axis = normalize_axis(axes[i], rank, g.node().label());
    const Name dim = g("Gather", {dims, g.int64s({axis})});
    const Name numbers = numbers_below(g, g.squeeze(dim, {0}));
    const Name origins = g("Pad", {numbers, g.int64s({before, after})}, {{"mode", mode}});
    const Name shape = g("ScatterElements", {shape_of(g, gradient), g.int64s({axis}), dim});
    gradient = g("GatherGrad", {shape, origins, gradient}, {{"axis", axis}}, kMicrosoft);
  }
  return gradient;
}

// The gradient if the pads or axes are only known during the run: the node pads a tensor with the indices of
// the elements, and dY is added to the elements at the padded indices.
Name gradient_by_element(GradientContext& g) {
  const Name minus = g.int64s({-1}), count = g("Size", {g.x(0)});
  std::vector<std::string> inputs = g.node().inputs;
  inputs[0] = reshape_like(g, numbers_below(g, count), g.x(0));
  if (inputs.size() > 2) inputs[2] = "";  // the value of the border, of another type
  const Name origins = g("Pad", inputs, g.node().attributes);
  const Name gradient =
      g("GatherGrad",
        {g("Reshape", {count, minus}), g("Reshape", {origins, minus}), g("Reshape", {g.dy(0), minus})},
        {{"axis", int64_t{0}}}, kMicrosoft);
  return reshape_like(g, gradient, g.x(0));
}

void gradient(GradientContext& g) {
  if (g.node().string_or("mode", "constant") == "constant") return constant_gradient(g);
  const Tensor stated = Tensor::of(g.node().ints_or(attribute_of(g.node()), {}));
  const Tensor* pads = g.has_x(1) ? g.constant_value(g.x(1)) : &stated;
  const Tensor* axes = g.has_x(3) ? g.constant_value(g.x(3)) : nullptr;
  const std::optional<int64_t> rank = g.rank(g.x(0));
  if (!pads || !rank || (g.has_x(3) && !axes)) return g.set(0, gradient_by_element(g));
  std::vector<int64_t> padded(static_cast<size_t>(*rank));
  std::iota(padded.begin(), padded.end(), 0);
  if (axes) padded = axes->to_int64();
  if (2 * padded.size() != static_cast<size_t>(pads->size()))
    g.reject("pads ", to_string(pads->to_int64()), " must have two entries for each of ",
             counted(padded.size(), "axis"));
  g.set(0, gradient_by_axis(g, pads->to_int64(), padded, *rank));
}

ORTRAIN_OPERATOR({.type = "Pad",
                  .rules = {.shape = shape, .gradient = gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
