// ScatterElements (Scatter) and ScatterND: a copy of the data with the updates written, or reduced into,
// where the indices say.
#include "ops/gradient_expression.h"
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

// The gradient of a scatter, whose places `gather` reads. Where several updates meet, y = data ∘ u_1 ∘ u_2
// ...
//
// none: what was overwritten has no gradient. add: all have all of it. max, min: those that equal the result
// share it evenly. mul: each factor f has dy times the product of the others. With zeros replaced by ones
// that is Π / f, but nothing where another factor is zero: where there are more zeros than f itself.
void scatter_gradient(GradientContext& g) {
  const std::string reduction = g.node().string_or("reduction", "none");
  const bool elements = g.node().op_type != "ScatterND";
  Attributes attributes;
  if (elements) attributes["axis"] = g.node().int_or("axis", 0);
  const auto gather = [&](const std::string& value) {
    return Expression(g, g(elements ? "GatherElements" : "GatherND", {value, g.x(1)}, attributes));
  };
  const auto scatter = [&](const std::string& data, const std::string& updates, const char* how) {
    Attributes with = attributes;
    if (std::string_view(how) != "none") with["reduction"] = std::string(how);
    return Expression(g, g(elements ? "ScatterElements" : "ScatterND", {data, g.x(1), updates}, with));
  };
  const Expression dy(g, g.dy(0)), data(g, g.x(0)), updates(g, g.x(2)), y(g, g.y(0));
  if (reduction == "none" || reduction == "add") {
    if (g.needs(0)) g.set(0, reduction == "add" ? dy : scatter(dy, zeros_like(g, updates), "none"));
    if (g.needs(2)) g.set(2, gather(dy));
  } else if (reduction == "max" || reduction == "min") {
    const Expression data_won = data.call("Equal", y).as(data),
                     update_won = updates.call("Equal", gather(y)).as(data);
    const Expression share = dy / scatter(data_won, update_won, "add");
    if (g.needs(0)) g.set(0, share * data_won);
    if (g.needs(2)) g.set(2, gather(share) * update_won);
  } else {
    const auto is_zero = [](const Expression& f) { return f.call("Equal", f.number(0)).as(f); };
    const Expression data_zero = is_zero(data), update_zero = is_zero(updates);
    const Expression data_factor = data + data_zero, update_factor = updates + update_zero;
    const Expression zeros = scatter(data_zero, update_zero, "add"),
                     product = scatter(data_factor, update_factor, "mul");
    const auto others = [&](const Expression& all, const Expression& none, const Expression& factor,
                            const Expression& zero) {
      return all / factor * none.call("Equal", zero).as(data);
    };
    if (g.needs(0)) g.set(0, dy * others(product, zeros, data_factor, data_zero));
    if (g.needs(2)) g.set(2, gather(dy) * others(gather(product), gather(zeros), update_factor, update_zero));
  }
}

ORTRAIN_OPERATOR({.type = "ScatterElements",
                  .shape = scatter_elements_shape,
                  .kernel = scatter_elements_kernel,
                  .gradient = scatter_gradient});
// Its name before version 11.
ORTRAIN_OPERATOR({.type = "Scatter",
                  .shape = scatter_elements_shape,
                  .kernel = scatter_elements_kernel,
                  .gradient = scatter_gradient});

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

ORTRAIN_OPERATOR({.type = "ScatterND",
                  .shape = scatter_nd_shape,
                  .kernel = scatter_nd_kernel,
                  .gradient = scatter_gradient});

}  // namespace
}  // namespace ortrain
