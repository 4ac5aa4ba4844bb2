// ScatterElements (Scatter) and ScatterND: a copy of the data with the updates written, or reduced, into the
// positions of the indices.
//
// Compiled for speed: a loop over the indices (CMakeLists.txt).
#include "backend/cpu/strided_copy.h"
#include "op/gradient_expression.h"
#include "op/wide_integers.h"
#include "ops/common/indices.h"

namespace ortrain {
namespace {

// The function of the attribute `reduction` on the element type of input 0; null where updates replace.
BinaryFunction reduction_of(const NodeContext& c) {
  const std::string name = c.node().string_or("reduction", "none");
  if (name == "none") return nullptr;
  // For bool, the sum and the maximum are "or", the product and the minimum "and".
  const bool logic = c.dtype(0) == DType::kBool;
  const char* type = name == "add"   ? (logic ? "Max" : "Add")
                     : name == "mul" ? (logic ? "Min" : "Mul")
                     : name == "max" ? "Max"
                     : name == "min" ? "Min"
                                     : nullptr;
  c.expect(type, "attribute 'reduction' must be none, add, mul, max or min, found '", name, "'");
  const BinaryFunction function = binary_function(type, logic ? DType::kUInt8 : c.dtype(0));
  if (!function) c.reject_dtype(0);
  return function;
}

// The kernel of `make`, which computes with small integers as int64, unless updates replace.
template <Kernel (*kMake)(KernelContext&)>
Kernel scatter_kernel(KernelContext& c) {
  return c.node().string_or("reduction", "none") == "none" ? kMake(c) : with_wide_integers(c, kMake);
}

void scatter_elements_shape(ShapeContext& c) {
  sheets_of(c, c.shape(0), c.shape(1));
  c.expect(c.shape(2) == c.shape(1), "updates have shape ", to_string(c.shape(2)),
           ", expected that of the indices, ", to_string(c.shape(1)));
  c.expect(c.dtype(2) == c.dtype(0), "data and updates must have the same type, found ",
           to_string(c.dtype(0)), " and ", to_string(c.dtype(2)));
  c.output(0, c.dtype(0), c.shape(0));
}

Kernel scatter_elements_kernel(KernelContext& c) {
  const Sheets s = sheets_of(c, c.shape(0), c.shape(1));
  const DType type = index_type(c, 1), dtype = c.dtype(0);
  const BinaryFunction combine = reduction_of(c);
  const bool adds =
      (dtype == DType::kFloat || dtype == DType::kDouble) && c.node().string_or("reduction", "none") == "add";
  const size_t bytes = static_cast<size_t>(c.size(0)) * width_of(c, 0);
  Kernel kernel;
  visit_width(c, 0, [&](auto zero) {
    using T = decltype(zero);
    const Slot data = c.in(0), indices = c.in(1), updates = c.in(2), out = c.out_inplace(0, {0});
    const Slot positions_slot = positions_scratch(c, s.size);
    kernel = [=, label = c.node().label()](const Frame& f) {
      int64_t* positions = f.at<int64_t>(positions_slot);
      resolve_indices(label, type, f.at<void>(indices), s.size, s.limit, positions);
      const T* from = f.at<T>(updates);
      T* to = f.at<T>(out);
      if (f.at<T>(data) != to) copy_bytes(f.at<std::byte>(out), f.at<std::byte>(data), bytes);
      if (adds)
        add_at_indices(s, dtype, positions, from, to);
      else if (combine)
        for_each_index(s, positions,
                       [=](int64_t d, int64_t k) { combine(to + d, 1, from + k, 1, to + d, 1); });
      else
        for_each_index(s, positions, [=](int64_t d, int64_t k) { to[d] = from[k]; });
    };
  });
  return kernel;
}

// The gradient of a scatter, whose positions `gather` reads. If several updates have the same position, y =
// data ∘ u_1 ∘ u_2 ...
//
// none: elements that were overwritten have no gradient. add: each addend has the whole gradient. max, min:
// the elements that equal the result share the gradient evenly. mul: each factor f has dy times the product
// of the other factors. With Π the product of the factors that are not zero, the product of the others is Π /
// f (Π if f is zero), or 0 if another factor is zero. If exactly one other factor is zero, that factor is
// still written, for the second derivative.
template <bool Elements>
void scatter_gradient(GradientContext& g) {
  const std::string reduction = g.node().string_or("reduction", "none");
  Attributes attributes;
  if (Elements) attributes["axis"] = g.node().int_or("axis", 0);
  const auto gather = [&](const std::string& value) {
    return Expression(g, g(Elements ? "GatherElements" : "GatherND", {value, g.x(1)}, attributes));
  };
  const auto scatter = [&](const std::string& data, const std::string& updates, const char* how) {
    Attributes with = attributes;
    if (std::string_view(how) != "none") with["reduction"] = std::string(how);
    return Expression(g, g(Elements ? "ScatterElements" : "ScatterND", {data, g.x(1), updates}, with));
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
    // Zeros that depend on the factors.
    const auto own = [](const Expression& f) { return f.call("Equal", f.number(0)).choose(f, f.number(0)); };
    const Expression own_data = own(data), own_update = own(updates);
    const Expression zeros = scatter(data_zero, update_zero, "add"),
                     zero_factors = scatter(own_data, own_update, "add"),
                     product = scatter(data_factor, update_factor, "mul");
    const auto others = [&](const Expression& all, const Expression& count, const Expression& sum,
                            const Expression& factor, const Expression& zero, const Expression& self) {
      const Expression none = count.call("Equal", zero).as(data),
                       one = count.call("Equal", zero + 1.0).as(data);
      return all / factor * (none + one * (sum - self));
    };
    if (g.needs(0)) g.set(0, dy * others(product, zeros, zero_factors, data_factor, data_zero, own_data));
    if (g.needs(2))
      g.set(2, gather(dy) * others(gather(product), gather(zeros), gather(zero_factors), update_factor,
                                   update_zero, own_update));
  }
}

ORTRAIN_OPERATOR({.type = "ScatterElements",
                  .rules = {.shape = scatter_elements_shape, .gradient = scatter_gradient<true>},
                  .kernels = {.cpu = scatter_kernel<scatter_elements_kernel>}});
// The name of ScatterElements before version 11.
ORTRAIN_OPERATOR({.type = "Scatter",
                  .rules = {.shape = scatter_elements_shape, .gradient = scatter_gradient<true>},
                  .kernels = {.cpu = scatter_kernel<scatter_elements_kernel>}});

void scatter_nd_shape(ShapeContext& c) {
  tuples_of(c, c.shape(0), c.shape(1), 0);
  const Shape expected = slices_shape(c.shape(0), c.shape(1), 0);
  c.expect(c.shape(2) == expected, "updates have shape ", to_string(c.shape(2)), ", expected ",
           to_string(expected));
  c.expect(c.dtype(2) == c.dtype(0), "data and updates must have the same type, found ",
           to_string(c.dtype(0)), " and ", to_string(c.dtype(2)));
  c.output(0, c.dtype(0), c.shape(0));
}

Kernel scatter_nd_kernel(KernelContext& c) {
  const Tuples t = tuples_of(c, c.shape(0), c.shape(1), 0);
  const DType type = index_type(c, 1);
  const BinaryFunction combine = reduction_of(c);
  const size_t width = width_of(c, 0), bytes = static_cast<size_t>(c.size(0)) * width;
  const Slot data = c.in(0), indices = c.in(1), updates = c.in(2), out = c.out_inplace(0, {0});
  const Slot rows = positions_scratch(c, t.rows.n);
  return [=, label = c.node().label()](const Frame& f) {
    std::byte* to = f.at<std::byte>(out);
    resolve_tuples(label, type, t, f.at<void>(indices), f.at<int64_t>(rows));
    if (f.at<std::byte>(data) != to) copy_bytes(to, f.at<std::byte>(data), bytes);
    scatter_rows(t.rows, width, combine, f.at<std::byte>(updates), f.at<int64_t>(rows), to);
  };
}

ORTRAIN_OPERATOR({.type = "ScatterND",
                  .rules = {.shape = scatter_nd_shape, .gradient = scatter_gradient<false>},
                  .kernels = {.cpu = scatter_kernel<scatter_nd_kernel>}});

}  // namespace
}  // namespace ortrain
