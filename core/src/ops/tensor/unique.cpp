// Unique: every value once, or every slice along an axis, with the position of its first occurrence, the
// index of every element's value among the values, and the number of occurrences. Sorted, or in the order of
// first occurrence.
//
// Compiled for speed: loops over the elements (CMakeLists.txt).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "backend/cpu/strided_copy.h"
#include "op/dynamic.h"
#include "ops/common/shape_helpers.h"
#include "runtime/half.h"
#include "runtime/text_tensor.h"

namespace ortrain {
namespace {

void types(TypeContext& c) {
  if (!state_selected_slices(c)) return;
  for (size_t o = 1; o < c.node().outputs.size(); ++o) c.output(o, DType::kInt64, std::vector<Dim>{Dim{}});
}

// -1, 0 or 1: how two elements are sorted. NaN comes last, and all NaNs are equal.
template <typename T>
int compare(T a, T b) {
  if constexpr (std::is_same_v<T, Text>) {
    return text(a).compare(text(b));
  } else if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    return compare(static_cast<float>(a), static_cast<float>(b));
  } else {
    if constexpr (std::is_floating_point_v<T>)
      if (std::isnan(a) || std::isnan(b)) return std::isnan(a) - std::isnan(b);
    return (a > b) - (a < b);
  }
}

// Compares two rows of `length` elements in this way, element by element.
template <typename T>
int compare_rows(const std::byte* a, const std::byte* b, int64_t length) {
  const T *u = reinterpret_cast<const T*>(a), *v = reinterpret_cast<const T*>(b);
  for (int64_t i = 0; i < length; ++i)
    if (const int c = compare(u[i], v[i])) return c;
  return 0;
}

using CompareRows = int (*)(const std::byte* a, const std::byte* b, int64_t length);

// Ranks `count` rows of `length` elements of `width` bytes: fills `first` with the row of each value's first
// occurrence, in the requested order, and `inverse` with the position of every row's value in it.
void rank_rows(const std::byte* rows, int64_t count, int64_t length, size_t width, CompareRows compare,
               bool sorted, std::vector<int64_t>& first, std::vector<int64_t>& inverse) {
  const int64_t bytes = length * static_cast<int64_t>(width);
  const auto order_of = [=](int64_t a, int64_t b) {
    return compare(rows + a * bytes, rows + b * bytes, length);
  };
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return order_of(a, b) < 0; });
  inverse.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || order_of(order[i - 1], order[i]) != 0) first.push_back(order[i]);
    inverse[static_cast<size_t>(order[i])] = static_cast<int64_t>(first.size()) - 1;
  }
  if (sorted) return;
  std::vector<int64_t> by_place(first.size()), moved(first.size());
  std::iota(by_place.begin(), by_place.end(), int64_t{0});
  std::sort(by_place.begin(), by_place.end(), [&](int64_t a, int64_t b) {
    return first[static_cast<size_t>(a)] < first[static_cast<size_t>(b)];
  });
  for (size_t k = 0; k < by_place.size(); ++k)
    moved[static_cast<size_t>(by_place[k])] = static_cast<int64_t>(k);
  for (int64_t& place : inverse) place = moved[static_cast<size_t>(place)];
  std::sort(first.begin(), first.end());
}

void run(DynamicContext& c) {
  const Tensor& x = c.in(0);
  const bool flat = !c.node().has("axis"), sorted = c.node().int_or("sorted", 1) != 0;
  const Shape shape = flat ? Shape{x.size()} : x.shape();
  const size_t axis = flat ? 0 : axis_of(c, 0, c.rank(0)), width = width_of(c, 0);
  const int64_t count = shape[axis], outer = element_count(shape, 0, axis);
  const int64_t inner = element_count(shape, axis + 1, shape.size()), length = outer * inner;
  // Slices are stored contiguously, so that they can be compared.
  const std::byte* rows = x.raw();
  if (outer > 1 && x.size() > 0) {
    std::byte* moved = c.buffer(0).reset(DType::kUInt8, {static_cast<int64_t>(x.bytes())}).raw();
    StridedCopy(width, {outer, count, inner}, {0, {count * inner, inner, 1}}, {0, {inner, length, 1}})(rows,
                                                                                                       moved);
    rows = moved;
  }
  std::vector<int64_t> first, inverse;
  CompareRows compare = nullptr;
  const auto pick = [&](auto zero) { compare = compare_rows<decltype(zero)>; };
  if (x.dtype() == DType::kString)
    pick(Text());
  else if (!visit_numeric_or_bool(x.dtype(), pick) && !visit_types<Float16, BFloat16>(x.dtype(), pick))
    c.reject_dtype(0);
  rank_rows(rows, count, length, width, compare, sorted, first, inverse);

  const auto found = static_cast<int64_t>(first.size());
  if (c.has_output(0)) {
    Shape result = shape;
    result[axis] = found;
    std::byte* y = c.out(0, x.dtype(), result).raw();
    const size_t row = static_cast<size_t>(inner) * width;
    for (int64_t o = 0; o < outer && row > 0; ++o)
      for (int64_t k = 0; k < found; ++k)
        std::memcpy(y + static_cast<size_t>(o * found + k) * row,
                    x.raw() + static_cast<size_t>(o * count + first[static_cast<size_t>(k)]) * row, row);
  }
  if (c.has_output(1))
    std::copy(first.begin(), first.end(), c.out(1, DType::kInt64, {found}).data<int64_t>());
  if (c.has_output(2))
    std::copy(inverse.begin(), inverse.end(), c.out(2, DType::kInt64, {count}).data<int64_t>());
  if (c.has_output(3)) {
    int64_t* counts = c.out(3, DType::kInt64, {found}).data<int64_t>();
    std::fill(counts, counts + found, int64_t{0});
    for (const int64_t place : inverse) ++counts[place];
  }
}

ORTRAIN_OPERATOR({.type = "Unique",
                  .rules = {.types = types},
                  .traits = {.stops_gradient = true},
                  .kernels = {.run = run}});

}  // namespace
}  // namespace ortrain
