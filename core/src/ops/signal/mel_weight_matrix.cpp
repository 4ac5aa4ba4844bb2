// MelWeightMatrix: the weights [dft_length / 2 + 1, num_mel_bins] that turn a spectrum into mel bins.
//
// mel(f) = 2595 log10(1 + f/700). Between the mels of the lower and the upper edge there are num_mel_bins + 2
// equidistant points; each is mapped to the frequency bin ⌊(dft_length + 1) f / sample_rate⌋. Bin m rises
// from point m to point m + 1, where it is 1, and falls to zero at point m + 2.
#include <cmath>
#include <numbers>

#include "ops/common/shape_helpers.h"
#include "runtime/convert.h"

namespace ortrain {
namespace {

double edge(const NodeContext& c, size_t i) {
  c.expect(c.size(i) == 1 && is_floating(c.dtype(i)), "input ", i,
           " must be a single floating-point value, found ", to_string(c.dtype(i)), to_string(c.shape(i)));
  return c.need_constant(i).to_double()[0];
}

void shape(ShapeContext& c) {
  const int64_t bins = constant_int(c, 0), length = constant_int(c, 1), rate = constant_int(c, 2);
  const double low = edge(c, 3), high = edge(c, 4);
  constexpr int64_t kMost = INT32_MAX;
  c.expect(bins >= 0 && length >= 1 && rate >= 1 && bins <= kMost && length <= kMost && rate <= kMost,
           "num_mel_bins, dft_length and sample_rate must be positive and at most ", kMost, ", found ", bins,
           ", ", length, " and ", rate);
  c.expect(low >= 0 && high >= low && std::isfinite(high),
           "the edges must not be negative and must be in ascending order, found ", low, " and ", high);
  const DType type =
      static_cast<DType>(c.node().int_or("output_datatype", static_cast<int64_t>(DType::kFloat)));
  const int64_t spectrum = length / 2 + 1;
  const double low_mel = 2595 * std::log1p(low / 700) / std::numbers::ln10;
  const double high_mel = 2595 * std::log1p(high / 700) / std::numbers::ln10;
  const double gap = (high_mel - low_mel) / static_cast<double>(bins + 2);
  const auto point = [&](int64_t m) {
    const double hertz =
        700 * std::expm1((low_mel + static_cast<double>(m) * gap) / 2595 * std::numbers::ln10);
    return cast_number<int64_t>(
        std::floor(static_cast<double>(length + 1) * hertz / static_cast<double>(rate)));
  };
  c.expect(bins == 0 || point(bins + 1) <= spectrum, "the upper edge of ", high,
           " Hz is above the frequencies of a transform of length ", length, " at ", counted(rate, "sample"),
           " per second");
  c.output(0, type, {spectrum, bins});  // stated first: rejects sizes beyond the memory
  // The 16-bit floats are converted from float.
  Tensor weights(is_half(type) ? DType::kFloat : type, {spectrum, bins});
  if (!visit_numeric(weights.dtype(), [&](auto zero) {
        using T = decltype(zero);
        T* to = weights.data<T>();
        std::fill(to, to + weights.size(), T(0));
        for (int64_t m = 0; m < bins; ++m) {
          const int64_t start = point(m), top = point(m + 1), end = point(m + 2);
          const auto put = [&](int64_t k, int64_t rise, int64_t run) {
            if (k < spectrum)
              to[k * bins + m] = static_cast<T>(static_cast<double>(rise) / static_cast<double>(run));
          };
          if (start == top) put(top, 1, 1);
          for (int64_t k = start; start < top && k <= top; ++k) put(k, k - start, top - start);
          for (int64_t k = top; k < end; ++k) put(k, end - k, end - top);
        }
      }))
    c.reject("it cannot produce values of type ", to_string(type));
  if (is_half(type)) {
    Tensor narrow(type, {spectrum, bins});
    from_wide(type, weights.raw(), narrow.raw(), narrow.size());
    weights = narrow;
  }
  c.value(0, std::move(weights));
}

DType matrix_type(const ElementTypes& types, size_t) {
  return types.attribute("output_datatype", DType::kFloat);
}

ORTRAIN_OPERATOR({.type = "MelWeightMatrix",
                  .rules = {.shape = shape, .element_type = matrix_type},
                  .traits = {.stops_gradient = true}});

}  // namespace
}  // namespace ortrain
