// ScatterElements and ScatterND: a copy of the data with the updates written, or reduced into, where the
// indices say.
#include "ops/indices.h"
#include "ops/strided_copy.h"

namespace ortrain {
namespace {

// The reductions of ScatterElements and ScatterND.
enum class Reduction { kNone, kAdd, kMul, kMax, kMin };
Reduction reduction_of(const NodeContext& c) {
  const std::string name = c.node().string_or("reduction", "none");
  if (name == "none") return Reduction::kNone;
  if (name == "add") return Reduction::kAdd;
  if (name == "mul") return Reduction::kMul;
  if (name == "max") return Reduction::kMax;
  if (name == "min") return Reduction::kMin;
  c.reject("attribute 'reduction' must be none, add, mul, max or min, found '", name, "'");
}

// Calls f(T{}, combine) with the element type of input 0 and the function of the reduction. Replacing works
// on any type by its width, and is told so by an unsigned T.
template <typename F>
void visit_reduction(const NodeContext& c, Reduction reduction, F&& f) {
  if (reduction == Reduction::kNone) {
    return visit_width(c, 0, [&](auto zero) { f(zero, [](auto, auto b) { return b; }); });
  }
  const bool known = visit_numeric_or_bool(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    switch (reduction) {
      case Reduction::kAdd:
        return f(T{}, [](T a, T b) { return static_cast<T>(a + b); });
      case Reduction::kMul:
        return f(T{}, [](T a, T b) { return static_cast<T>(a * b); });
      case Reduction::kMax:
        return f(T{}, [](T a, T b) { return a < b ? b : a; });
      default:
        return f(T{}, [](T a, T b) { return b < a ? b : a; });
    }
  });
  if (!known) c.reject_dtype(0);
}

void scatter_elements_shape(ShapeContext& c) {
  sheets_of(c, c.shape(0), c.shape(1));
  c.expect(c.shape(2) == c.shape(1), "updates have shape ", to_string(c.shape(2)),
           ", expected that of the indices, ", to_string(c.shape(1)));
  c.expect(c.dtype(2) == c.dtype(0), "data and updates must have one type, found ", to_string(c.dtype(0)),
           " and ", to_string(c.dtype(2)));
  c.output(0, c.dtype(0), c.shape(0));
}

Kernel scatter_elements_kernel(KernelContext& c) {
  const Sheets s = sheets_of(c, c.shape(0), c.shape(1));
  const std::string label = c.node().label();
  const size_t bytes = static_cast<size_t>(c.size(0)) * width_of(c, 0);
  Kernel kernel;
  visit_index(c, 1, [&](auto index) {
    using I = decltype(index);
    visit_reduction(c, reduction_of(c), [&](auto zero, auto combine) {
      using T = decltype(zero);
      const Slot data = c.in(0), indices = c.in(1), updates = c.in(2), out = c.out_inplace(0, {0});
      kernel = [=](const Frame& f) {
        check_indices(label, f.at<I>(indices), s.size, s.limit);
        if (f.at<T>(data) != f.at<T>(out)) copy_bytes(f.at<std::byte>(out), f.at<std::byte>(data), bytes);
        const T* from = f.at<T>(updates);
        T* to = f.at<T>(out);
        for_each_index(s, f.at<I>(indices), [=](int64_t d, int64_t k) { to[d] = combine(to[d], from[k]); });
      };
    });
  });
  return kernel;
}

// none: what was overwritten has no gradient. add: both sides have all of it. max, min: those that equal the
// result share it evenly.
void scatter_elements_gradient(GradientContext& g) {
  const std::string reduction = g.node().string_or("reduction", "none"), indices = g.x(1);
  const Attributes axis = {{"axis", g.node().int_or("axis", 0)}};
  const auto gather = [&](const std::string& value) { return g("GatherElements", {value, indices}, axis); };
  if (reduction == "none") {
    if (g.needs(0)) g.set(0, g("ScatterElements", {g.dy(0), indices, zeros_like(g, g.x(2))}, axis));
    if (g.needs(2)) g.set(2, gather(g.dy(0)));
  } else if (reduction == "add") {
    if (g.needs(0)) g.set(0, g.dy(0));
    if (g.needs(2)) g.set(2, gather(g.dy(0)));
  } else if (reduction == "max" || reduction == "min") {
    const auto equal = [&](const std::string& a, const std::string& b) {
      return g("Cast", {g("Equal", {a, b})}, {{"to", static_cast<int64_t>(g.dtype(g.x(0)))}});
    };
    const std::string data_won = equal(g.x(0), g.y(0)), update_won = equal(g.x(2), gather(g.y(0)));
    const Attributes add = {{"axis", g.node().int_or("axis", 0)}, {"reduction", std::string("add")}};
    const std::string winners = g("ScatterElements", {data_won, indices, update_won}, add);
    const std::string share = g("Div", {g.dy(0), winners});
    if (g.needs(0)) g.set(0, g("Mul", {share, data_won}));
    if (g.needs(2)) g.set(2, g("Mul", {gather(share), update_won}));
  } else {
    g.reject("the gradient of reduction '" + reduction + "' is not implemented, only none, add, max and min");
  }
}

ORTRAIN_OPERATOR({.type = "ScatterElements",
                  .shape = scatter_elements_shape,
                  .kernel = scatter_elements_kernel,
                  .gradient = scatter_elements_gradient});

void scatter_nd_shape(ShapeContext& c) {
  tuples_of(c, c.shape(0), c.shape(1), 0);
  const Shape expected = slices_shape(c.shape(0), c.shape(1), 0);
  c.expect(c.shape(2) == expected, "updates have shape ", to_string(c.shape(2)), ", expected ",
           to_string(expected));
  c.expect(c.dtype(2) == c.dtype(0), "data and updates must have one type, found ", to_string(c.dtype(0)),
           " and ", to_string(c.dtype(2)));
  c.output(0, c.dtype(0), c.shape(0));
}

Kernel scatter_nd_kernel(KernelContext& c) {
  const Tuples t = tuples_of(c, c.shape(0), c.shape(1), 0);
  const std::string label = c.node().label();
  const size_t bytes = static_cast<size_t>(c.size(0)) * width_of(c, 0);
  Kernel kernel;
  visit_index(c, 1, [&](auto index) {
    using I = decltype(index);
    visit_reduction(c, reduction_of(c), [&](auto zero, auto combine) {
      using T = decltype(zero);
      const Slot data = c.in(0), indices = c.in(1), updates = c.in(2), out = c.out_inplace(0, {0});
      const Slot rows = rows_scratch(c, t);
      kernel = [=](const Frame& f) {
        resolve_tuples(label, t, f.at<I>(indices), f.at<int64_t>(rows));
        if (f.at<T>(data) != f.at<T>(out)) copy_bytes(f.at<std::byte>(out), f.at<std::byte>(data), bytes);
        scatter_rows(t.rows, f.at<T>(updates), f.at<int64_t>(rows), f.at<T>(out), combine);
      };
    });
  });
  return kernel;
}

void scatter_nd_gradient(GradientContext& g) {
  const std::string reduction = g.node().string_or("reduction", "none");
  if (reduction != "none" && reduction != "add")
    g.reject("the gradient of reduction '" + reduction + "' is not implemented, only none and add");
  const std::string updates = g.needs(2) ? g("GatherND", {g.dy(0), g.x(1)}) : "";
  if (g.needs(0))
    g.set(0, reduction == "add" ? g.dy(0) : g("ScatterND", {g.dy(0), g.x(1), zeros_like(g, g.x(2))}));
  if (g.needs(2)) g.set(2, updates);
}

ORTRAIN_OPERATOR({.type = "ScatterND",
                  .shape = scatter_nd_shape,
                  .kernel = scatter_nd_kernel,
                  .gradient = scatter_nd_gradient});

}  // namespace
}  // namespace ortrain
