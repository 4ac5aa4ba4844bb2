// GradientBound, which passes/bound_gradients.cpp creates: computes a bound of the magnitude of a gradient
// that is a sum of products, or adds it to the bound so far. If the bound is a finite number of the
// gradient's type, the gradient is finite, so an optimizer step need not read the gradient to check this
// (session/gradient_bounds.h).
//
// Why the bound holds. Each element of the product is a sum of at most K products, where K is the size of the
// smallest factor, so its magnitude is at most |scale| K Π max|factor|. Rounding: at most 2^23 additions in
// float, each of which adds a relative error of 2^-24 to a partial sum, make the sum larger by a factor below
// 1.65; conversions of factors to bfloat16, and of the sum to the type of the gradient, by a factor below
// 1.02. The factor 2 covers both. Each addition of a gradient to the accumulated gradients rounds once, to at
// least 8 bits.
//
// Intermediate results must not overflow either. Whichever factors a kernel multiplies first, a partial
// product is at most the bound without the factors that are below 1. If this limit is not a number of the
// type in which the kernel computes, or if a factor is infinite or NaN, the bound becomes infinite, that is,
// unknown. An unknown bound does not mean that the gradient is not finite.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/optimizer/optimizer_kernels.h"
#include "op/operator.h"
#include "op/session_domain.h"

namespace ortrain {
namespace {

constexpr size_t kBound = 0, kOverwrite = 1, kGradient = 2, kFirstFactor = 3;
constexpr double kUnknown = std::numeric_limits<double>::infinity();
constexpr double kProductGrowth = 2, kSumGrowth = 1 + 0x1p-7;
constexpr int64_t kMostProducts = int64_t{1} << 23;

void gradient_bound_shape(ShapeContext& c) {
  c.expect(c.dtype(kBound) == DType::kDouble && c.size(kBound) == 1, "the bound must be one double, found ",
           to_string(c.dtype(kBound)), to_string(c.shape(kBound)));
  c.output(0, DType::kBool, {1});
}

// A factor in memory.
struct Factor {
  Slot slot;
  DType stored;
  int64_t size;

  // The largest magnitude; NaN or infinite if an element is NaN or infinite.
  double largest(const Frame& f) const {
    switch (stored) {
      case DType::kDouble:
        return std::bit_cast<double>(largest_magnitude(f.at<const uint64_t>(slot), size));
      case DType::kBFloat16:
        return std::bit_cast<float>(uint32_t{largest_magnitude(f.at<const uint16_t>(slot), size)} << 16);
      default:
        return std::bit_cast<float>(largest_magnitude(f.at<const uint32_t>(slot), size));
    }
  }
};

// Whether the factors have at most as many elements as the gradient, and the sums are short enough for the
// bound to hold.
bool is_worth_measuring(const KernelContext& c) {
  int64_t read = 0, products = INT64_MAX;
  for (size_t i = kFirstFactor; i < c.input_count(); ++i) {
    const LayoutPtr layout = c.in_layout(i);
    if (!is_floating(c.dtype(i)) || (layout && !layout->dense())) return false;
    read += c.size(i);
    products = std::min(products, c.size(i));
  }
  return read <= c.size(kGradient) && products <= kMostProducts;
}

Kernel gradient_bound_kernel(KernelContext& c) {
  const bool measured = is_worth_measuring(c);
  const Slot bound = c.state(kBound), updated = c.out(0);
  const Slot overwrite = c.has_input(kOverwrite) ? c.in(kOverwrite) : Slot{};
  std::vector<Factor> factors;
  int64_t products = kMostProducts;
  for (size_t i = kFirstFactor; measured && i < c.input_count(); ++i) {
    const LayoutPtr layout = c.in_layout(i);
    factors.push_back({c.in(i, layout), layout && layout->bf16() ? DType::kBFloat16 : c.dtype(i), c.size(i)});
    products = std::min(products, c.size(i));
  }
  const double count = kProductGrowth * static_cast<double>(products);
  const double scale = std::abs(static_cast<double>(c.node().float_or("scale", 1)));
  const bool is_double = c.dtype(kFirstFactor) == DType::kDouble;
  const double most =
      is_double ? std::numeric_limits<double>::max() : static_cast<double>(std::numeric_limits<float>::max());
  return [=, factors = std::move(factors)](const Frame& f) {
    if (updated.defined()) *f.at<bool>(updated) = true;
    double added = kUnknown;
    if (measured) {
      added = count * scale;
      double partial = count * std::max(1.0, scale);
      for (const Factor& factor : factors) {
        const double largest = factor.largest(f);
        added *= largest;
        partial *= std::max(1.0, largest);
      }
      if (!(added <= most && partial <= most)) added = kUnknown;  // also if one of them is NaN
    }
    double& sum = *f.at<double>(bound);
    const bool overwrites = overwrite.defined() && *f.at<bool>(overwrite);
    sum = overwrites ? added : (sum + added) * kSumGrowth;
  };
}

ORTRAIN_OPERATOR(
    {.domain = kSessionDomain,
     .type = "GradientBound",
     .signature = "bound, overwrite?, gradient, factors... -> updated | scale: float",
     .rules = {.shape = gradient_bound_shape, .element_type = always<DType::kBool>},
     .traits = {.stops_gradient = true, .impure = true, .updates = 1u << kBound, .takes_bf16 = true},
     .kernels = {.cpu = gradient_bound_kernel}});

}  // namespace
}  // namespace ortrain
