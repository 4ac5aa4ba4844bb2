// NonZero: the positions of the elements that are not zero, one column each, in row-major order.
//
//     y[:, k] = the indices of the k-th element of x that is not 0
// Compiled for speed: a loop over the elements (CMakeLists.txt).
#include <cstring>

#include "op/dynamic.h"
#include "ops/common/shape_helpers.h"

namespace ortrain {
namespace {

void types(TypeContext& c) {
  const auto& dims = c.input(0).dims;
  if (!dims) return c.output(0, DType::kInt64, std::nullopt);
  c.output(0, DType::kInt64, std::vector<Dim>{Dim{static_cast<int64_t>(dims->size()), ""}, Dim{}});
}

void run(DynamicContext& c) {
  const Tensor& x = c.in(0);
  const Shape& shape = x.shape();
  const size_t rank = shape.size();
  visit_width(c, 0, [&](auto zero) {
    using T = decltype(zero);
    // The bits that make an element differ from zero: a floating -0 is zero.
    const T bits =
        is_floating(x.dtype()) ? static_cast<T>(static_cast<T>(~T{0}) >> 1) : static_cast<T>(~T{0});
    const T* values = reinterpret_cast<const T*>(x.raw());
    int64_t count = 0;
    for (int64_t i = 0; i < x.size(); ++i) count += (values[i] & bits) != 0;
    int64_t* y = c.out(0, DType::kInt64, {static_cast<int64_t>(rank), count}).data<int64_t>();
    if (rank == 0 || count == 0) return;
    const int64_t inner = shape[rank - 1];
    std::vector<int64_t> index(rank, 0);  // of the current line
    int64_t k = 0;
    for (int64_t start = 0; start < x.size(); start += inner) {
      for (int64_t i = 0; i < inner; ++i) {
        if ((values[start + i] & bits) == 0) continue;
        for (size_t axis = 0; axis + 1 < rank; ++axis)
          y[static_cast<int64_t>(axis) * count + k] = index[axis];
        y[static_cast<int64_t>(rank - 1) * count + k] = i;
        ++k;
      }
      for (size_t axis = rank - 1; axis-- > 0;) {
        if (++index[axis] < shape[axis]) break;
        index[axis] = 0;
      }
    }
  });
}

ORTRAIN_OPERATOR({.type = "NonZero",
                  .rules = {.types = types},
                  .traits = {.stops_gradient = true},
                  .kernels = {.run = run}});

}  // namespace
}  // namespace ortrain
