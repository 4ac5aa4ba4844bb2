// Functions of two values, on vectors of floats and on integers: Add, Sub, Mul, Div, PRelu, Max, Min, Mod.
//
// A row is: name, formula on vectors, formula on integers. The gradients are defined with the operators
// (ops/math/binary.cpp).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise/binary_functions.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include "backend/cpu/elementwise/bf16_blocks-inl.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "built_operators.h"
#include "runtime/dtype.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_BINARY_ROWS
namespace ortrain {

// Whether an operator of this build uses a row. Many operators add and multiply; operators that scatter may
// take minima and maxima.
constexpr bool is_row_used(std::string_view type) {
  if (type == "Add" || type == "Mul") return true;
  const bool scatters =
      is_built("", "Scatter") || is_built("", "ScatterElements") || is_built("", "ScatterND");
  return is_built("", type) || ((type == "Max" || type == "Min") && scatters);
}

}  // namespace ortrain
// clang-format off
#define ORTRAIN_BINARY_ROWS(ROW) \
  ROW(Add, Add(a, b), wrap(a) + wrap(b)) \
  ROW(Sub, Sub(a, b), wrap(a) - wrap(b)) \
  ROW(Mul, Mul(a, b), wrap(a) * wrap(b)) \
  ROW(Div, Div(a, b), quotient(a, b)) \
  /* a, where a is negative b times a */ \
  ROW(PRelu, IfThenElse(Lt(a, Zero(d)), Mul(a, b), a), a < 0 ? wrap(a) * wrap(b) : wrap(a)) \
  ROW(Max, math::MaxNan(d, a, b), std::max(a, b)) \
  ROW(Min, math::MinNan(d, a, b), std::min(a, b)) \
  /* floating: the remainder with the sign of a; integers: with the sign of b */ \
  ROW(Mod, math::PerLane2(d, a, b, [](auto u, auto v) { return std::fmod(u, v); }), remainder(a, b))
// clang-format on
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

#define ORTRAIN_ROW(type, formula, ...)                       \
  struct Row##type {                                          \
    template <class D>                                        \
    static HWY_INLINE Vec<D> Apply(D d, Vec<D> a, Vec<D> b) { \
      (void)d;                                                \
      return formula;                                         \
    }                                                         \
  };
ORTRAIN_BINARY_ROWS(ORTRAIN_ROW)
#undef ORTRAIN_ROW

template <class Row, typename T, typename TA = T, typename TB = T>
void RunBinary(const void* a, int64_t step_a, const void* b, int64_t step_b, void* y, int64_t n) {
  const TA* u = static_cast<const TA*>(a);
  const TB* v = static_cast<const TB*>(b);
  T* out = static_cast<T*>(y);
  const auto f = [](auto d, auto p, auto q) HWY_ATTR { return Row::Apply(d, p, q); };
  if (step_a && step_b)
    Map2<1, 1>(u, v, out, n, f);
  else if (step_a)
    Map2<1, 0>(u, v, out, n, f);
  else if (step_b)
    Map2<0, 1>(u, v, out, n, f);
  else
    for (int64_t i = 0; i < n; ++i) Map2<1, 1>(u, v, out + i, 1, f);
}

using BinaryRun = void (*)(const void*, int64_t, const void*, int64_t, void*, int64_t);

BinaryRun FindBinary(size_t row, bool is_double) {
#define ORTRAIN_ROW(type, ...)                                 \
  {is_row_used(#type) ? RunBinary<Row##type, float> : nullptr, \
   is_row_used(#type) && kHasKernels<double> ? RunBinary<Row##type, double> : nullptr},
  static constexpr BinaryRun kRuns[][2] = {ORTRAIN_BINARY_ROWS(ORTRAIN_ROW)};
#undef ORTRAIN_ROW
  return kRuns[row][is_double];
}

// The operand of a block: floats as they lie in memory, or widened ones.
struct BlockOperand {
  BlockOperand(const void* from, int64_t step, bool is_bf16) : from(from), step(step), is_bf16(is_bf16) {
    if (is_bf16 && !step) block.Widen(from, 0, 1);
  }
  const void* At(int64_t i, int64_t count) {
    if (!is_bf16) return static_cast<const float*>(from) + i * step;
    if (step) block.Widen(from, i, count);
    return block.values;
  }

  const void* from;
  int64_t step;
  bool is_bf16;
  Block block;
};

void RunBinaryInBlocks(BinaryRun run, BlockOperand a, BlockOperand b, void* y, int64_t n) {
  Block result;
  ForBlocks(n, [&](int64_t i, int64_t count) {
    run(a.At(i, count), a.step, b.At(i, count), b.step, result.values, count);
    result.RoundTo(y, i, count);
  });
}

template <class Row, typename TA, typename TB>
void RunBinaryBf16(const void* a, int64_t step_a, const void* b, int64_t step_b, void* y, int64_t n) {
  // Sums and products cost less than the conversions.
  if constexpr (std::is_same_v<Row, RowAdd> || std::is_same_v<Row, RowMul>)
    return RunBinary<Row, BFloat16, TA, TB>(a, step_a, b, step_b, y, n);
  else
    RunBinaryInBlocks(RunBinary<Row, float>, {a, step_a, std::is_same_v<TA, BFloat16>},
                      {b, step_b, std::is_same_v<TB, BFloat16>}, y, n);
}

// From operands in bfloat16 or float, at least one of them in bfloat16, to bfloat16.
BinaryRun FindBf16(size_t row, bool bf16_a, bool bf16_b) {
#define ORTRAIN_ROW(type, ...)                                                              \
  {RunBinaryBf16<Row##type, BFloat16, BFloat16>, RunBinaryBf16<Row##type, BFloat16, float>, \
   RunBinaryBf16<Row##type, float, BFloat16>},
  if constexpr (!kHasKernels<BFloat16>) return nullptr;
  static constexpr BinaryRun kRuns[][3] = {ORTRAIN_BINARY_ROWS(ORTRAIN_ROW)};
#undef ORTRAIN_ROW
  return kRuns[row][!bf16_a ? 2 : !bf16_b ? 1 : 0];
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "backend/cpu/elementwise/functions.h"
#include "backend/cpu/elementwise/integers.h"

namespace ortrain {
namespace {

// A scalar formula, for the integer types.
template <class F>
BinaryFunction integer_function(DType dtype, F) {
  BinaryFunction found = nullptr;
  visit_numeric(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T>) found = plain_loop<T, T, F>;
  });
  return found;
}

struct BinaryRow {
  std::string_view type;
  BinaryFunction (*integer)(DType);
};

#define ORTRAIN_ROW(type, formula, integer)                              \
  {#type, [](DType t) -> BinaryFunction {                                \
     if constexpr (!is_row_used(#type)) return nullptr;                  \
     return integer_function(t, [](auto a, auto b) { return integer; }); \
   }},
const BinaryRow kRows[] = {ORTRAIN_BINARY_ROWS(ORTRAIN_ROW)};
#undef ORTRAIN_ROW

size_t find_row(std::string_view type) {
  size_t i = 0;
  while (kRows[i].type != type) ++i;
  return i;
}

}  // namespace

BinaryFunction bf16_function(std::string_view type, bool bf16_a, bool bf16_b) {
  return ORTRAIN_DISPATCH(FindBf16)(find_row(type), bf16_a, bf16_b);
}

BinaryFunction binary_function(std::string_view type, DType dtype) {
  const size_t row = find_row(type);
  if (dtype == DType::kFloat || dtype == DType::kDouble)
    return ORTRAIN_DISPATCH(FindBinary)(row, dtype == DType::kDouble);
  return kRows[row].integer(dtype);
}

}  // namespace ortrain
#endif
