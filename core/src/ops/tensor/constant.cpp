// Operators that create a tensor from attributes or scalars: Constant, ConstantOfShape, Range, EyeLike; and
// Identity.
//
// Compiled for speed: a loop over the elements of Range (CMakeLists.txt).
#include <cmath>
#include <cstring>

#include "backend/cpu/strided_copy.h"
#include "op/dynamic.h"
#include "ops/common/shape_helpers.h"
#include "runtime/convert.h"
#include "runtime/text_tensor.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// The value of a Constant node, whichever attribute holds it.
Tensor constant_value(const Node& node) {
  const auto typed = [&]<typename T>(const char* name, T) -> const T* {
    const auto found = node.attributes.find(name);
    if (found == node.attributes.end()) return nullptr;
    const T* value = std::get_if<T>(&found->second);
    require(value != nullptr, ErrorCode::kInvalidGraph, node.label(), ": attribute '", name,
            "' has the wrong type");
    return value;
  };
  if (const Tensor* t = typed("value", Tensor{})) return *t;
  if (const float* f = typed("value_float", 0.f)) return Tensor::scalar(*f);
  if (const auto* f = typed("value_floats", std::vector<float>{})) return Tensor::of(*f);
  if (const int64_t* i = typed("value_int", int64_t{})) return Tensor::scalar(*i);
  if (const auto* i = typed("value_ints", std::vector<int64_t>{})) return Tensor::of(*i);
  if (const auto* s = typed("value_string", std::string())) return text_tensor({*s}, Shape{});
  if (const auto* s = typed("value_strings", std::vector<std::string>{}))
    return text_tensor(*s, Shape{static_cast<int64_t>(s->size())});
  std::string found;
  for (const auto& [name, value] : node.attributes) found += (found.empty() ? "" : ", ") + name;
  fail(ErrorCode::kNotImplemented, node.label(),
       ": expected one attribute of value, value_float, value_floats, value_int, value_ints, value_string, "
       "value_strings; found: ",
       found.empty() ? "none" : found);
}

void constant_shape(ShapeContext& c) { c.value(0, constant_value(c.node())); }

DType constant_type(const ElementTypes& types, size_t) { return constant_value(types.node()).dtype(); }

ORTRAIN_OPERATOR({.type = "Constant",
                  .rules = {.shape = constant_shape, .element_type = constant_type},
                  .traits = {.stops_gradient = true}});

Tensor fill_value(const Node& node) {
  const auto found = node.attributes.find("value");
  if (found == node.attributes.end()) return Tensor::scalar(0.f);
  const Tensor* value = std::get_if<Tensor>(&found->second);
  require(value && value->size() == 1, ErrorCode::kInvalidGraph, node.label(),
          ": attribute 'value' must be a tensor with one element");
  return *value;
}

DType fill_type(const ElementTypes& types, size_t) { return fill_value(types.node()).dtype(); }

void constant_of_shape_shape(ShapeContext& c) {
  const std::vector<int64_t> shape = constant_ints(c, 0);
  for (const int64_t dim : shape)
    c.expect(dim >= 0, "the requested shape ", to_string(shape), " has a negative dimension");
  c.output(0, fill_value(c.node()).dtype(), shape);
}

Kernel constant_of_shape_kernel(KernelContext& c) {
  Tensor value = fill_value(c.node());
  if (is_packed(value.dtype())) {
    Tensor byte(c.out_dtype(0), {1});
    to_wide(value.dtype(), value.raw(), byte.raw(), 1);
    value = byte;
  }
  const int64_t count = c.out_size(0);
  const Slot out = c.out(0);
  const StridedCopy fill(size_of(value.dtype()), {count}, {0, {0}}, {0, {1}});
  return [=](const Frame& f) { fill(value.raw(), f.at<std::byte>(out)); };
}

ORTRAIN_OPERATOR({.type = "ConstantOfShape",
                  .rules = {.shape = constant_of_shape_shape, .element_type = fill_type},
                  .traits = {.stops_gradient = true, .narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = constant_of_shape_kernel}});

// ceil((limit - start) / delta), at least 0
template <typename T>
int64_t range_count(const NodeContext& c, T start, T limit, T delta) {
  c.expect(delta != T{0}, "delta must not be 0");
  if constexpr (std::is_floating_point_v<T>) {
    const double count = std::ceil((static_cast<double>(limit) - start) / delta);
    c.expect(std::isfinite(count) && count < 0x1p62, "the range from ", start, " to ", limit, " by ", delta,
             " has no finite number of elements");
    return count > 0 ? static_cast<int64_t>(count) : 0;
  } else {
    const __int128 distance = static_cast<__int128>(limit) - start, step = delta;
    const __int128 count = step > 0 ? (distance + step - 1) / step : (distance + step + 1) / step;
    if ((distance > 0) != (step > 0) || distance == 0) return 0;
    c.expect(count < (static_cast<__int128>(1) << 62), "the range from ", start, " to ", limit, " by ", delta,
             " has too many elements");
    return static_cast<int64_t>(count);
  }
}

void range_shape(ShapeContext& c) {
  for (size_t i = 0; i < 3; ++i) {
    c.expect(c.has_input(i) && c.size(i) == 1, "input ", i, " must be a scalar, found ",
             c.has_input(i) ? concat("shape ", to_string(c.shape(i))) : "none");
    c.expect(c.dtype(i) == c.dtype(0), "its inputs must have the same type, found ", to_string(c.dtype(0)),
             " and ", to_string(c.dtype(i)));
  }
  int64_t count = 0;
  const auto number = [&](size_t i) { return c.need_constant(i).to_double()[0]; };
  if (is_half(c.dtype(0))) return c.output(0, c.dtype(0), {range_count(c, number(0), number(1), number(2))});
  const bool known = visit_numeric(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    count = range_count(c, *c.need_constant(0).data<T>(), *c.need_constant(1).data<T>(),
                        *c.need_constant(2).data<T>());
  });
  if (!known) c.reject_dtype(0);
  c.output(0, c.dtype(0), {count});
}

Kernel range_kernel(KernelContext& c) {
  Kernel kernel;
  visit_numeric(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const T start = *c.need_constant(0).data<T>(), delta = *c.need_constant(2).data<T>();
    const int64_t count = c.out_size(0);
    const Slot out = c.out(0);
    kernel = [=](const Frame& f) {
      T* values = f.at<T>(out);
      for (int64_t i = 0; i < count; ++i) values[i] = static_cast<T>(start + static_cast<T>(i) * delta);
    };
  });
  return kernel;
}

ORTRAIN_OPERATOR({.type = "Range",
                  .rules = {.shape = range_shape},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = range_kernel}});

DType eye_like_type(const ElementTypes& types, size_t) { return types.attribute("dtype", types[0]); }

void eye_like_shape(ShapeContext& c) {
  c.expect(c.rank(0) == 2, "its input must have rank 2, found shape ", to_string(c.shape(0)));
  c.output(0, static_cast<DType>(c.node().int_or("dtype", static_cast<int64_t>(c.dtype(0)))), c.shape(0));
}

Kernel eye_like_kernel(KernelContext& c) {
  Kernel kernel;
  const int64_t rows = c.out_shape(0)[0], columns = c.out_shape(0)[1], k = c.node().int_or("k", 0);
  const Slot out = c.out(0);
  const bool known = visit_numeric_or_bool(c.out_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      T* values = f.at<T>(out);
      zero_bytes(f.at<std::byte>(out), static_cast<size_t>(rows * columns) * sizeof(T));
      for (int64_t r = 0; r < rows; ++r)
        if (k >= -r && k < columns - r) values[r * columns + r + k] = T{1};
    };
  });
  if (!known)
    fail(ErrorCode::kNotImplemented, c.node().label(), ": an output of type ", to_string(c.out_dtype(0)),
         " is not supported");
  return kernel;
}

ORTRAIN_OPERATOR({.type = "EyeLike",
                  .rules = {.shape = eye_like_shape, .element_type = eye_like_type},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = eye_like_kernel}});

Kernel identity_kernel(KernelContext& c) {
  c.alias(0, 0);
  return nullptr;
}

void identity_gradient(GradientContext& g) { g.set(0, g.dy(0)); }

void identity_types(TypeContext& c) { c.output(0, c.input(0)); }

void identity_run(DynamicContext& c) { c.set(0, c.value(0)); }

ORTRAIN_OPERATOR(
    {.type = "Identity",
     .rules = {.shape = shape_like_first, .gradient = identity_gradient, .types = identity_types},
     .traits = {.takes_sequences = true,
                .narrow_types = NarrowTypes::kPassthrough,
                .positions = elementwise_positions},
     .kernels = {.cpu = identity_kernel, .run = identity_run}});

}  // namespace
}  // namespace ortrain
