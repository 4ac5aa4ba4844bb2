// Operators of ai.onnx.ml that prepare features: ArrayFeatureExtractor, Binarizer, FeatureVectorizer,
// Imputer, Normalizer, OneHotEncoder and Scaler.
//
// Compiled for size: features are few next to what models compute from them (CMakeLists.txt).
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "op/gradient_expression.h"
#include "ops/common/indices.h"
#include "ops/ml/ml.h"
#include "runtime/convert.h"
#include "runtime/text_tensor.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// The incoming gradient, cast to the type of X: most operators of this file return float for any numeric
// type.
Expression incoming(GradientContext& g, const Expression& x) {
  const Expression dy(g, g.dy(0));
  return g.dtype(dy) == g.dtype(x) ? dy : dy.as(x);
}

// -----------------------------------------------------------------------------------------------------------
// ArrayFeatureExtractor: the features (positions of the last axis) that the indices select.

void extract_shape(ShapeContext& c) {
  c.expect(c.rank(0) >= 1 && c.dtype(1) == DType::kInt64,
           "it takes features of rank 1 or more and int64 indices, found shape ", to_string(c.shape(0)),
           " and ", to_string(c.dtype(1)));
  Shape out(c.shape(0).begin(), c.shape(0).end() - 1);
  if (out.empty()) out.push_back(1);
  out.push_back(c.size(1));
  c.output(0, c.dtype(0), out);
}

Kernel extract_kernel(KernelContext& c) {
  const int64_t dim = c.shape(0).back(), n = c.size(1);
  const IndexedRows rows{element_count(c.shape(0), 0, c.shape(0).size() - 1), dim, n, 1};
  const size_t width = width_of(c, 0);
  const Slot x = c.in(0), indices = c.in(1), y = c.out(0);
  return [=, label = c.node().label()](const Frame& f) {
    const int64_t* at = f.at<int64_t>(indices);
    check_indices(label, at, n, dim);
    for (int64_t i = 0; i < n; ++i)
      if (at[i] < 0) reject_index(label, at[i], i, dim);
    gather_rows(rows, width, f.at<std::byte>(x), at, f.at<std::byte>(y));
  };
}

void extract_gradient(GradientContext& g) {
  const Name flat = g.int64s({-1});
  const auto rank = g.rank(g.x(0));
  if (!rank) g.reject("its gradient needs an input of known rank");
  const Name dy = *rank == 1 ? g("Reshape", {g.dy(0), flat}) : g.dy(0);
  g.set(0, g("GatherGrad", {shape_of(g, g.x(0)), g("Reshape", {g.x(1), flat}), dy}, {{"axis", *rank - 1}},
             kMicrosoft));
}

// -----------------------------------------------------------------------------------------------------------
// Binarizer: 1 where x > threshold, else 0.

Kernel binarize_kernel(KernelContext& c) {
  const float threshold = c.node().float_or("threshold", 0);
  const int64_t n = c.size(0);
  const Slot x = c.in(0), y = c.out_inplace(0, {0});
  Kernel kernel;
  visit_ml(c, 0, [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      parallel_for(n, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          f.at<T>(y)[i] = static_cast<double>(f.at<T>(x)[i]) > static_cast<double>(threshold) ? T(1) : T(0);
      });
    };
  });
  return kernel;
}

// -----------------------------------------------------------------------------------------------------------
// FeatureVectorizer: the features of all inputs side by side, each truncated or zero-padded to the length in
// inputdimensions.

std::vector<int64_t> vector_lengths(const NodeContext& c) {
  std::vector<int64_t> lengths = c.node().ints_or("inputdimensions", {});
  if (lengths.empty())
    for (size_t i = 0; i < c.input_count(); ++i) lengths.push_back(c.rank(i) > 0 ? c.shape(i).back() : 1);
  c.expect(lengths.size() == c.input_count(), "inputdimensions ", to_string(lengths),
           " must have a value for each of the ", counted(c.input_count(), "input"));
  return lengths;
}

// Rows of input i; a vector is one row.
int64_t vector_rows(const NodeContext& c, size_t i) { return c.rank(i) == 2 ? c.shape(i)[0] : 1; }

void vectorize_shape(ShapeContext& c) {
  int64_t sum = 0;
  for (const int64_t length : vector_lengths(c)) {
    c.expect(length >= 0 && length <= INT32_MAX, "inputdimensions must be in [0, ", INT32_MAX, "], found ",
             length);
    sum += length;
  }
  for (size_t i = 0; i < c.input_count(); ++i)
    c.expect(c.rank(i) >= 1 && c.rank(i) <= 2 && vector_rows(c, i) == vector_rows(c, 0),
             "its inputs must be vectors, or matrices with the same number of rows, found ",
             to_string(c.shape(0)), " and ", to_string(c.shape(i)));
  c.output(0, DType::kFloat, {vector_rows(c, 0), sum});
}

Kernel vectorize_kernel(KernelContext& c) {
  const std::vector<int64_t> lengths = vector_lengths(c);
  const int64_t rows = c.out_shape(0)[0], width = c.out_shape(0)[1];
  std::vector<Slot> inputs;
  for (size_t i = 0; i < lengths.size(); ++i) inputs.push_back(c.in(i));
  const Slot y = c.out(0);
  std::vector<Kernel> parts;
  int64_t offset = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t features = c.shape(i).back(), length = lengths[i], kept = std::min(features, length);
    visit_ml(c, i, [&](auto zero) {
      using T = decltype(zero);
      parts.push_back([=, x = inputs[i]](const Frame& f) {
        for (int64_t row = 0; row < rows; ++row) {
          const T* from = f.at<T>(x) + row * features;
          float* to = f.at<float>(y) + row * width + offset;
          for (int64_t k = 0; k < length; ++k) to[k] = k < kept ? static_cast<float>(from[k]) : 0;
        }
      });
    });
    offset += length;
  }
  return chain(std::move(parts));
}

void vectorize_gradient(GradientContext& g) {
  int64_t offset = 0;
  const std::vector<int64_t> lengths = g.node().ints_or("inputdimensions", {});
  if (!lengths.empty() && lengths.size() != g.node().inputs.size())
    g.reject("inputdimensions ", to_string(lengths), " must have a value for each of the ",
             counted(g.node().inputs.size(), "input"));
  for (const int64_t length : lengths)
    if (length < 0 || length > INT32_MAX)
      g.reject("inputdimensions must be in [0, ", INT32_MAX, "], found ", length);
  for (size_t i = 0; i < g.node().inputs.size(); ++i) {
    const auto dims = g.dims(g.x(i));
    if (!dims || dims->empty() || !dims->back().known())
      g.reject("its gradient needs inputs with known numbers of features");
    const int64_t features = dims->back().value, length = lengths.empty() ? features : lengths[i];
    if (g.needs(i)) {
      const int64_t kept = std::min(features, length);
      Name d = g("Slice", {g.dy(0), g.int64s({offset}), g.int64s({offset + kept}), g.int64s({1})});
      if (features > kept) d = g("Pad", {d, g.int64s({0, 0, 0, features - kept})});
      const Expression x(g, g.x(i));
      d = reshape_like(g, d, x);
      g.set(i, g.dtype(x) == DType::kFloat ? d : Expression(g, d).as(x).name());
    }
    offset += length;
  }
}

// -----------------------------------------------------------------------------------------------------------
// Imputer: missing values (equal to replaced_value, or NaN if that is NaN) become the imputed value of their
// feature.

struct Imputed {
  std::vector<double> values;
  double missing;
  explicit Imputed(const NodeContext& c) {
    const bool floating = is_floating(c.dtype(0));
    if (floating) {
      const std::vector<float> given = floats_of(c, "imputed_value_floats");
      values.assign(given.begin(), given.end());
      missing = static_cast<double>(c.node().float_or("replaced_value_float", 0));
    } else {
      const std::vector<int64_t> given = c.node().ints_or("imputed_value_int64s", {});
      values.assign(given.begin(), given.end());
      missing = static_cast<double>(c.node().int_or("replaced_value_int64", 0));
    }
    const int64_t features = c.rank(0) > 0 ? c.shape(0).back() : 1,
                  count = static_cast<int64_t>(values.size());
    c.expect(count == 1 || count == features, "attribute ",
             floating ? "imputed_value_floats" : "imputed_value_int64s",
             " must have one value, or one for each of ", counted(features, "feature"), ", found ", count);
  }
};

void impute_shape(ShapeContext& c) {
  Imputed{c};
  shape_like_first(c);
}

Kernel impute_kernel(KernelContext& c) {
  const Imputed imputed(c);
  const int64_t n = c.size(0), period = static_cast<int64_t>(imputed.values.size());
  const Slot x = c.in(0), y = c.out_inplace(0, {0});
  Kernel kernel;
  visit_ml(c, 0, [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> values;
    for (const double value : imputed.values) values.push_back(cast_number<T>(value));
    const bool nan = std::isnan(imputed.missing);
    const T missing = cast_number<T>(imputed.missing);
    kernel = [=](const Frame& f) {
      parallel_for(n, 2, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const T v = f.at<T>(x)[i];
          f.at<T>(y)[i] = (nan ? v != v : v == missing) ? values[static_cast<size_t>(i % period)] : v;
        }
      });
    };
  });
  return kernel;
}

void impute_gradient(GradientContext& g) {
  const Expression x(g, g.x(0)), dy(g, g.dy(0));
  const double missing = static_cast<double>(g.node().float_or("replaced_value_float", 0));
  const Expression gone = std::isnan(missing) ? x.call("IsNaN") : x.call("Equal", x.number(missing));
  g.set(0, gone.choose(dy.number(0), dy));
}

// -----------------------------------------------------------------------------------------------------------
// Normalizer: x over its largest element (MAX), its sum of magnitudes (L1) or the root of its sum of squares
// (L2), row by row. If that is zero, x is unchanged.

void float_rows_shape(ShapeContext& c) {
  Rows{c};
  c.output(0, DType::kFloat, c.shape(0));
}

void normalize_shape(ShapeContext& c) {
  const std::string norm = c.node().string_or("norm", "MAX");
  c.expect(norm == "MAX" || norm == "L1" || norm == "L2", "attribute norm must be MAX, L1 or L2, found '",
           norm, "'");
  c.expect(norm != "MAX" || Rows(c).features > 0, "norm MAX requires at least one feature");
  float_rows_shape(c);
}

Kernel normalize_kernel(KernelContext& c) {
  const Rows rows(c);
  const std::string norm = c.node().string_or("norm", "MAX");
  const int64_t n = rows.features;
  const Slot x = c.in(0), y = c.out(0);
  Kernel kernel;
  visit_ml(c, 0, [&](auto zero) {
    using T = decltype(zero);
    kernel = [=, largest = norm == "MAX", squares = norm == "L2"](const Frame& f) {
      if (n == 0) return;
      parallel_for(rows.count, 4 * n, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const T* from = f.at<T>(x) + row * n;
          float* to = f.at<float>(y) + row * n;
          double size = largest ? static_cast<double>(*std::max_element(from, from + n)) : 0;
          for (int64_t i = 0; !largest && i < n; ++i) {
            const double v = static_cast<double>(from[i]);
            size += squares ? v * v : std::abs(v);
          }
          if (squares) size = std::sqrt(size);
          for (int64_t i = 0; i < n; ++i)
            to[i] = static_cast<float>(static_cast<double>(from[i]) / (size == 0 ? 1 : size));
        }
      });
    };
  });
  return kernel;
}

// dx = (dy - s Σ dy y) / size, with s = d size / dx: 1 at the largest, sign(x), or y.
void normalize_gradient(GradientContext& g) {
  const Expression x(g, g.x(0)), dy = incoming(g, x);
  const std::string norm = g.node().string_or("norm", "MAX");
  const auto sum = [&](const Expression& v) { return Expression(g, g.reduce_sum(v, {-1}, true)); };
  const Expression size = norm == "L1"   ? sum(x.call("Abs"))
                          : norm == "L2" ? sum(x * x).call("Sqrt")
                                         : Expression(g, g.emit("TopK", {x, g.int64s({1})}, 2)[0]);
  const Expression over = size.call("Equal", size.number(0)).choose(size.number(1), size), y = x / over;
  const auto largest = [&] {
    const Expression hit = x.call("Equal", size).as(x);
    return hit / sum(hit);
  };
  const Expression derivative = norm == "L1" ? x.call("Sign") : norm == "L2" ? y : largest();
  g.set(0, (dy - derivative * sum(dy * y)) / over);
}

// -----------------------------------------------------------------------------------------------------------
// OneHotEncoder: a new last axis with a one at the category that equals the value.

std::string categories_name(const NodeContext& c) {
  return c.dtype(0) == DType::kString ? "cats_strings" : "cats_int64s";
}

int64_t categories_count(const NodeContext& c) {
  return static_cast<int64_t>(c.dtype(0) == DType::kString ? strings_of(c.node(), "cats_strings").size()
                                                           : c.node().ints_or("cats_int64s", {}).size());
}

void one_hot_shape(ShapeContext& c) {
  const int64_t categories = categories_count(c);
  c.expect(categories > 0, "attribute ", categories_name(c), " is required but missing");
  Shape out = c.shape(0);
  out.push_back(categories);
  c.output(0, DType::kFloat, out);
}

// `place_of` returns the category of element i, or -1.
template <typename F>
Kernel one_hot(KernelContext& c, F place_of) {
  const bool zeros = c.node().int_or("zeros", 1) != 0;
  const int64_t n = c.size(0), width = categories_count(c);
  const Slot x = c.in(0), y = c.out(0);
  return [=, label = c.node().label(), name = categories_name(c)](const Frame& f) {
    float* to = f.at<float>(y);
    std::fill(to, to + n * width, 0.0f);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t place = place_of(f.at<void>(x), i);
      require(zeros || place >= 0, ErrorCode::kInvalidArgument, label, ": element ", i, " is not in ", name);
      if (place >= 0) to[i * width + place] = 1;
    }
  };
}

Kernel one_hot_kernel(KernelContext& c) {
  if (c.dtype(0) == DType::kString) {
    const auto places = std::make_shared<std::unordered_map<std::string, int64_t>>();
    for (std::string& one : strings_of(c.node(), "cats_strings"))
      places->emplace(std::move(one), static_cast<int64_t>(places->size()));
    return one_hot(c, [places](const void* x, int64_t i) {
      const auto found = places->find(text(static_cast<const Text*>(x)[i]));
      return found == places->end() ? int64_t{-1} : found->second;
    });
  }
  const std::vector<int64_t> categories = c.node().ints_or("cats_int64s", {});
  const auto places = std::make_shared<std::unordered_map<int64_t, int64_t>>();
  for (size_t i = 0; i < categories.size(); ++i) places->emplace(categories[i], static_cast<int64_t>(i));
  Kernel kernel;
  visit_ml(c, 0, [&](auto zero) {
    using T = decltype(zero);
    kernel = one_hot(c, [places](const void* x, int64_t i) {
      // Values are truncated to integers, as in onnxruntime.
      const T v = static_cast<const T*>(x)[i];
      const bool whole = std::abs(static_cast<double>(v)) < 0x1p63;
      const auto found = whole ? places->find(static_cast<int64_t>(v)) : places->end();
      return found == places->end() ? int64_t{-1} : found->second;
    });
  });
  return kernel;
}

// -----------------------------------------------------------------------------------------------------------
// Scaler: (x - offset) scale, with one value for all features or one per feature.

std::vector<float> scaler_numbers(const NodeContext& c, const char* name, float otherwise) {
  std::vector<float> values = floats_of(c, name);
  if (values.empty()) values.push_back(otherwise);
  const int64_t count = static_cast<int64_t>(values.size()), features = c.rank(0) > 0 ? c.shape(0).back() : 1;
  c.expect(count == 1 || count == features, "attribute ", name, " must have one value, or one for each of ",
           counted(features, "feature"), ", found ", count);
  return values;
}

void scale_shape(ShapeContext& c) {
  scaler_numbers(c, "offset", 0);
  scaler_numbers(c, "scale", 1);
  c.output(0, DType::kFloat, c.shape(0));
}

Kernel scale_kernel(KernelContext& c) {
  const std::vector<float> offset = scaler_numbers(c, "offset", 0), scale = scaler_numbers(c, "scale", 1);
  const int64_t n = c.size(0);
  const Slot x = c.in(0), y = c.out(0);
  Kernel kernel;
  visit_ml(c, 0, [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      parallel_for(n, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const auto of = [i](const std::vector<float>& v) { return v[static_cast<size_t>(i) % v.size()]; };
          f.at<float>(y)[i] = (static_cast<float>(f.at<T>(x)[i]) - of(offset)) * of(scale);
        }
      });
    };
  });
  return kernel;
}

void scale_gradient(GradientContext& g) {
  const Expression x(g, g.x(0)), dy(g, g.dy(0));
  const auto at = g.node().attributes.find("scale");
  const Expression d =
      at == g.node().attributes.end()
          ? dy
          : dy * Expression(g, g.constant(Tensor::of(std::get<std::vector<float>>(at->second))));
  g.set(0, g.dtype(x) == DType::kFloat ? d : d.as(x));
}

ORTRAIN_OPERATOR({.domain = kMl,
                  .type = "ArrayFeatureExtractor",
                  .rules = {.shape = extract_shape, .gradient = extract_gradient},
                  .kernels = {.cpu = extract_kernel}});
ORTRAIN_OPERATOR({.domain = kMl,
                  .type = "Binarizer",
                  .rules = {.shape = shape_like_first},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = binarize_kernel}});
ORTRAIN_OPERATOR({.domain = kMl,
                  .type = "FeatureVectorizer",
                  .rules = {.shape = vectorize_shape,
                            .gradient = vectorize_gradient,
                            .element_type = always<DType::kFloat>},
                  .kernels = {.cpu = vectorize_kernel}});
ORTRAIN_OPERATOR({.domain = kMl,
                  .type = "Imputer",
                  .rules = {.shape = impute_shape, .gradient = impute_gradient},
                  .kernels = {.cpu = impute_kernel}});
ORTRAIN_OPERATOR({.domain = kMl,
                  .type = "Normalizer",
                  .rules = {.shape = normalize_shape,
                            .gradient = normalize_gradient,
                            .element_type = always<DType::kFloat>},
                  .kernels = {.cpu = normalize_kernel}});
ORTRAIN_OPERATOR({.domain = kMl,
                  .type = "OneHotEncoder",
                  .rules = {.shape = one_hot_shape, .element_type = always<DType::kFloat>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = one_hot_kernel}});
ORTRAIN_OPERATOR(
    {.domain = kMl,
     .type = "Scaler",
     .rules = {.shape = scale_shape, .gradient = scale_gradient, .element_type = always<DType::kFloat>},
     .kernels = {.cpu = scale_kernel}});

}  // namespace
}  // namespace ortrain
