// Trilu: keeps the upper or lower triangle of the last two axes, counted from diagonal k; the rest is 0.
#include <algorithm>
#include <cstring>

#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

void shape(ShapeContext& c) {
  c.expect(c.rank(0) >= 2, "its input must have at least rank 2, found shape ", to_string(c.shape(0)));
  if (c.has_input(1))
    c.expect(c.dtype(1) == DType::kInt64 && c.size(1) == 1, "k must be a single int64, found ",
             to_string(c.dtype(1)), to_string(c.shape(1)));
  c.output(0, c.dtype(0), c.shape(0));
}

Kernel kernel(KernelContext& c) {
  const int64_t width = static_cast<int64_t>(width_of(c, 0));
  const int64_t rows = c.shape(0)[c.shape(0).size() - 2], columns = c.shape(0).back();
  const int64_t matrices = element_count(c.shape(0), 0, c.shape(0).size() - 2);
  const bool upper = c.node().int_or("upper", 1) != 0;
  const Slot in = c.in(0), k_slot = c.has_input(1) ? c.in(1) : Slot{}, out = c.out_inplace(0, {0});
  return [=](const Frame& f) {
    // Beyond the corners the result no longer changes; clamping keeps r + k in range.
    const int64_t k = k_slot.defined() ? std::clamp(*f.at<int64_t>(k_slot), -rows - 1, columns + 1) : 0;
    const std::byte* from = f.at<std::byte>(in);
    std::byte* to = f.at<std::byte>(out);
    parallel_for(matrices * rows, columns, [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t r = row % rows;
        // The first kept column of the upper triangle, the first dropped column of the lower triangle.
        const int64_t edge = std::clamp<int64_t>(upper ? r + k : r + k + 1, 0, columns);
        const int64_t keep_from = upper ? edge : 0, keep_to = upper ? columns : edge;
        const std::byte* s = from + row * columns * width;
        std::byte* t = to + row * columns * width;
        std::memset(t, 0, static_cast<size_t>(keep_from * width));
        std::memset(t + keep_to * width, 0, static_cast<size_t>((columns - keep_to) * width));
        if (s != t)
          std::memcpy(t + keep_from * width, s + keep_from * width,
                      static_cast<size_t>((keep_to - keep_from) * width));
      }
    });
  };
}

void gradient(GradientContext& g) {
  Names inputs = {g.dy(0)};
  if (g.has_x(1)) inputs.push_back(g.x(1));
  g.set(0, g("Trilu", inputs, {{"upper", g.node().int_or("upper", 1)}}));
}

ORTRAIN_OPERATOR({.type = "Trilu",
                  .rules = {.shape = shape, .gradient = gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
