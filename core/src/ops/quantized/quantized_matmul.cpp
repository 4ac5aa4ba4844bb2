// MatMulInteger, QLinearMatMul and MatMulIntegerToFloat (com.microsoft): products of 8-bit integers, summed
// in 32 bits.
//
//   Y = (A - a_zero_point) (B - b_zero_point)
//   y = saturate(round(Y a_scale b_scale / y_scale) + y_zero_point)
//   y = Y a_scale b_scale + bias
//
// A may have a scale and zero point for each row, B for each column.
#include <algorithm>

#include "backend/cpu/elementwise/quantization.h"
#include "backend/cpu/matmul/integer_product.h"
#include "op/decomposition.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

bool is_small(DType t) { return t == DType::kUInt8 || t == DType::kInt8; }

// The indices of a node's inputs.
struct Places {
  size_t a, a_zero, b, b_zero;
};
constexpr Places kInteger = {0, 2, 1, 3}, kLinear = {0, 2, 3, 5}, kToFloat = {0, 4, 1, 5};

constexpr size_t kBias = 6;  // of MatMulIntegerToFloat

// Batches of [m, k] x [k, n]; the index of an operand's matrix for each batch.
struct Batches {
  int64_t m = 1, n = 1, k = 1;
  Shape batch;
  std::vector<int64_t> a, b;
};

Batches read_batches(const NodeContext& c, const Places& at) {
  Shape a = c.shape(at.a), b = c.shape(at.b);
  c.expect(!a.empty() && !b.empty(), "its operands must have at least one axis, found ", to_string(a),
           " and ", to_string(b));
  if (a.size() == 1) a.insert(a.begin(), 1);
  if (b.size() == 1) b.push_back(1);
  Batches p;
  p.m = a[a.size() - 2], p.k = a.back(), p.n = b.back();
  c.expect(b[b.size() - 2] == p.k, "inner dimensions differ: ", to_string(c.shape(at.a)), " and ",
           to_string(c.shape(at.b)));
  const Shape front_a(a.begin(), a.end() - 2), front_b(b.begin(), b.end() - 2);
  p.batch = broadcast(front_a, front_b);
  const std::vector<int64_t> a_strides = broadcast_strides(front_a, p.batch),
                             b_strides = broadcast_strides(front_b, p.batch);
  for (int64_t i = 0; i < element_count(p.batch); ++i) {
    int64_t rest = i, from_a = 0, from_b = 0;
    for (size_t axis = p.batch.size(); axis-- > 0; rest /= p.batch[axis]) {
      from_a += rest % p.batch[axis] * a_strides[axis];
      from_b += rest % p.batch[axis] * b_strides[axis];
    }
    p.a.push_back(from_a), p.b.push_back(from_b);
  }
  return p;
}

// A scale or zero point: a single value, one per row of A ([M] or [..., M, 1]) or one per column of B ([N] or
// [..., 1, N]); `per_matrix` of them for each matrix of the operand.
struct Parameter {
  Slot slot;
  bool single = true;
  int64_t per_matrix = 0;
  size_t at(int64_t matrix, int64_t place) const {
    return static_cast<size_t>(single ? 0 : matrix * per_matrix + place);
  }
};

Parameter read_parameter(const NodeContext& c, size_t i, size_t operand, int64_t places, bool rows) {
  Parameter p;
  if (!c.has_input(i) || c.size(i) == 1) return p;
  const Shape& found = c.shape(i);
  Shape full = c.shape(operand);
  if (full.size() >= 2) full[full.size() - (rows ? 1 : 2)] = 1;
  c.expect(found == Shape{places} || found == full, "input ", i, " must be a single value, or have shape ",
           to_string(Shape{places}), " or ", to_string(full), ", found ", to_string(found));
  p.single = false;
  p.per_matrix = found == Shape{places} ? 0 : places;
  return p;
}

void check_operands(const NodeContext& c, const Places& at) {
  for (const size_t i : {at.a, at.b})
    if (!is_small(c.dtype(i))) c.reject_dtype(i);
  const Batches p = read_batches(c, at);
  const std::pair<size_t, size_t> zeros[] = {{at.a_zero, at.a}, {at.b_zero, at.b}};
  for (const auto& [zero, operand] : zeros) {
    if (!c.has_input(zero)) continue;
    c.expect(c.dtype(zero) == c.dtype(operand), "input ", zero, " must have the type of input ", operand,
             ", ", to_string(c.dtype(operand)), ", found ", to_string(c.dtype(zero)));
    read_parameter(c, zero, operand, operand == at.a ? p.m : p.n, operand == at.a);
  }
}

Shape result_shape(const NodeContext& c, const Places& at) {
  const Batches p = read_batches(c, at);
  Shape y = p.batch;
  if (c.rank(at.a) > 1) y.push_back(p.m);
  if (c.rank(at.b) > 1) y.push_back(p.n);
  return y;
}

void integer_shape(ShapeContext& c) {
  check_operands(c, kInteger);
  c.output(0, DType::kInt32, result_shape(c, kInteger));
}

void linear_shape(ShapeContext& c) {
  for (size_t i = 0; i < 8; ++i) c.expect(c.has_input(i), "input ", i, " is missing");
  check_operands(c, kLinear);
  const Batches p = read_batches(c, kLinear);
  for (const size_t i : {1, 4, 6})
    c.expect(wide_of(c.dtype(i)) == DType::kFloat, "input ", i, " must be float32 or a 16-bit float, found ",
             to_string(c.dtype(i)));
  read_parameter(c, 1, 0, p.m, true);
  read_parameter(c, 4, 3, p.n, false);
  for (const size_t i : {6, 7})
    c.expect(c.size(i) == 1, "scale and zero point of the result must be a single value each, found shape ",
             to_string(c.shape(i)));
  if (!is_small(c.dtype(7))) c.reject_dtype(7);
  c.output(0, c.dtype(7), result_shape(c, kLinear));
}

void to_float_shape(ShapeContext& c) {
  check_operands(c, kToFloat);
  const Batches p = read_batches(c, kToFloat);
  for (const size_t i : {size_t{2}, size_t{3}, kBias}) {
    if (i == kBias && !c.has_input(i)) continue;
    c.expect(wide_of(c.dtype(i)) == DType::kFloat && c.dtype(i) == c.dtype(2),
             "scales and bias must be float32 or a 16-bit float, all of them the same, found ",
             to_string(c.dtype(2)), " and ", to_string(c.dtype(i)));
  }
  read_parameter(c, 2, 0, p.m, true);
  read_parameter(c, 3, 1, p.n, false);
  c.expect(!c.has_input(kBias) || c.shape(kBias) == Shape{p.n}, "the bias must have shape [", p.n,
           "], found ", c.has_input(kBias) ? to_string(c.shape(kBias)) : "");
  c.output(0, c.dtype(2), result_shape(c, kToFloat));
}

// The zero points of an operand: one for the tensor, or one for each row or column.
struct ZeroPoints {
  Parameter parameter;
  bool is_signed;

  ZeroPoints(const NodeContext& c, size_t zero, size_t operand, int64_t places, bool rows)
      : parameter(read_parameter(c, zero, operand, places, rows)),
        is_signed(c.dtype(operand) == DType::kInt8) {}
  int32_t at(const uint8_t* zeros, int64_t matrix, int64_t place) const {
    if (!zeros) return 0;
    const uint8_t code = zeros[parameter.at(matrix, place)];
    return is_signed ? static_cast<int8_t>(code) : code;
  }
};

int64_t matrices(const NodeContext& c, size_t i) {
  const Shape& shape = c.shape(i);
  return shape.size() < 2 ? 1 : element_count(shape, 0, shape.size() - 2);
}

// The integer product into `y`. A constant B is packed here.
Kernel integer_product(KernelContext& c, const Places& at, const Batches& p, Slot y) {
  const IntegerKernels kernels = integer_kernels();
  const int64_t m = p.m, n = p.n, k = p.k, words = kernels.words(k), rows = matrices(c, at.a) * m;
  const int64_t panels = (n + kernels.panel - 1) / kernels.panel, b_count = matrices(c, at.b);
  const ZeroPoints a_zero(c, at.a_zero, at.a, m, true), b_zero(c, at.b_zero, at.b, n, false);

  // The rows of A, then their sums and their zero points.
  const auto pack_a = [=](const uint8_t* a, const uint8_t* zeros, uint32_t* packed) {
    int32_t* sums = reinterpret_cast<int32_t*>(packed + rows * words);
    parallel_for(rows, k, [&](int64_t begin, int64_t end) {
      kernels.pack_left(end - begin, k, {a + begin * k, a_zero.is_signed, k}, packed + begin * words,
                        sums + begin);
      for (int64_t i = begin; i < end; ++i)
        sums[rows + i] = kernels.left_zero(a_zero.is_signed, a_zero.at(zeros, i / m, i % m));
    });
  };
  // For each matrix of B its panels, then the zero points of its columns.
  const int64_t b_zeros = kernels.right_words(k, n), b_size = b_zeros + kernels.whole(n);
  const auto pack_b = [=](const uint8_t* b, const uint8_t* zeros, uint32_t* packed) {
    parallel_for(b_count * panels, kernels.panel * k, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t matrix = i / panels, column = i % panels * kernels.panel;
        const int64_t count = std::min(kernels.panel, n - column);
        uint32_t* to = packed + matrix * b_size;
        int32_t* to_zeros = reinterpret_cast<int32_t*>(to + b_zeros) + column;
        kernels.pack_panel(column, count, k, {b + matrix * k * n, b_zero.is_signed, n}, to);
        for (int64_t j = 0; j < kernels.whole(count); ++j)
          to_zeros[j] =
              kernels.right_zero(b_zero.is_signed, j < count ? b_zero.at(zeros, matrix, column + j) : 0);
      }
    });
  };

  const Slot a = c.in(at.a), a_zeros = c.has_input(at.a_zero) ? c.in(at.a_zero) : Slot{};
  const Slot left = c.scratch(static_cast<size_t>(rows * (words + 2)) * 4);
  const Tensor* known_zeros = c.has_input(at.b_zero) ? c.constant(at.b_zero) : nullptr;
  Slot right, b, zeros;
  if (c.constant(at.b) && (known_zeros || !c.has_input(at.b_zero))) {
    Tensor once(DType::kUInt8, {b_count * b_size * 4});
    const auto codes = [](const Tensor* t) {
      return t ? reinterpret_cast<const uint8_t*>(t->raw()) : nullptr;
    };
    pack_b(codes(c.constant(at.b)), codes(known_zeros), reinterpret_cast<uint32_t*>(once.raw()));
    right = c.fixed(std::move(once));
  } else {
    b = c.in(at.b);
    if (c.has_input(at.b_zero)) zeros = c.in(at.b_zero);
    right = c.scratch(static_cast<size_t>(b_count * b_size) * 4);
  }

  const std::vector<int64_t> of_a = p.a, of_b = p.b;
  const int64_t products = static_cast<int64_t>(of_a.size()) * panels;
  return [=](const Frame& f) {
    uint32_t *packed_a = f.at<uint32_t>(left), *packed_b = f.at<uint32_t>(right);
    pack_a(f.at<const uint8_t>(a), f.at_or_null<const uint8_t>(a_zeros), packed_a);
    if (b.defined()) pack_b(f.at<const uint8_t>(b), f.at_or_null<const uint8_t>(zeros), packed_b);
    if (products == 0) return;
    // With fewer panels than threads, the rows are divided too. A vector of words takes an item of work.
    const int64_t threads = max_threads(), wanted = (threads + products - 1) / products;
    const int64_t parts = std::clamp<int64_t>(m / 6, 1, wanted);
    const int64_t cost = m * words * kernels.panel / kernels.lanes / parts;
    parallel_for(products * parts, cost, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t part = i % parts, product = i / parts;
        const int64_t batch = product / panels, column = product % panels * kernels.panel;
        const int64_t first = m * part / parts, row = of_a[static_cast<size_t>(batch)] * m + first;
        const uint32_t* matrix = packed_b + of_b[static_cast<size_t>(batch)] * b_size;
        const int32_t* sums = reinterpret_cast<const int32_t*>(packed_a + rows * words) + row;
        kernels.multiply({m * (part + 1) / parts - first, std::min(kernels.panel, n - column), k,
                          packed_a + row * words, sums, sums + rows, nullptr,
                          matrix + kernels.right_words(k, column),
                          reinterpret_cast<const int32_t*>(matrix + b_zeros) + column,
                          f.at<int32_t>(y) + (batch * m + first) * n + column, n});
      }
    });
  };
}

Kernel integer_kernel(KernelContext& c) {
  const Batches p = read_batches(c, kInteger);
  const Slot y = c.out(0);
  return integer_product(c, kInteger, p, y);
}

Kernel linear_kernel(KernelContext& c) {
  const Batches p = read_batches(c, kLinear);
  Parameter a_scale = read_parameter(c, 1, 0, p.m, true), b_scale = read_parameter(c, 4, 3, p.n, false);
  a_scale.slot = c.in(1), b_scale.slot = c.in(4);
  const Slot y_scale = c.in(6), y_zero = c.in(7);
  const Slot sums = c.scratch(static_cast<size_t>(c.out_size(0)) * 4);
  Kernel product = integer_product(c, kLinear, p, sums);
  const Slot y = c.out(0);
  Kernel kernel;
  visit_types<uint8_t, int8_t>(c.out_dtype(0), [&](auto type) {
    using Q = decltype(type);
    kernel = [=, product = std::move(product)](const Frame& f) {
      product(f);
      const float *of_a = f.at<float>(a_scale.slot), *of_b = f.at<float>(b_scale.slot);
      const double of_y = static_cast<double>(*f.at<float>(y_scale)), zero = *f.at<Q>(y_zero);
      const int32_t* from = f.at<int32_t>(sums);
      Q* to = f.at<Q>(y);
      parallel_for(static_cast<int64_t>(p.a.size()) * p.m, p.n, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const size_t batch = static_cast<size_t>(row / p.m);
          const double left = static_cast<double>(of_a[a_scale.at(p.a[batch], row % p.m)]);
          requantize<Q>(from + row * p.n, p.n,
                        {left, of_b + b_scale.at(p.b[batch], 0), !b_scale.single, of_y, zero},
                        to + row * p.n);
        }
      });
    };
  });
  return kernel;
}

Kernel to_float_kernel(KernelContext& c) {
  const Batches p = read_batches(c, kToFloat);
  Parameter a_scale = read_parameter(c, 2, 0, p.m, true), b_scale = read_parameter(c, 3, 1, p.n, false);
  a_scale.slot = c.in(2), b_scale.slot = c.in(3);
  const Slot bias = c.has_input(kBias) ? c.in(kBias) : Slot{};
  const Slot sums = c.scratch(static_cast<size_t>(c.out_size(0)) * 4);
  Kernel product = integer_product(c, kToFloat, p, sums);
  const Slot y = c.out(0);
  return [=, product = std::move(product)](const Frame& f) {
    product(f);
    const float *of_a = f.at<float>(a_scale.slot), *of_b = f.at<float>(b_scale.slot),
                *added = f.at_or_null<float>(bias);
    const int32_t* from = f.at<int32_t>(sums);
    float* to = f.at<float>(y);
    parallel_for(static_cast<int64_t>(p.a.size()) * p.m, 2 * p.n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const size_t batch = static_cast<size_t>(row / p.m);
        const float left = of_a[a_scale.at(p.a[batch], row % p.m)];
        for (int64_t j = 0; j < p.n; ++j)
          to[row * p.n + j] =
              static_cast<float>(from[row * p.n + j]) * (left * of_b[b_scale.at(p.b[batch], j)]) +
              (added ? added[j] : 0);
      }
    });
  };
}

// The product of the dequantized operands, whose operators have gradients.
void decompose_to_float(DecompositionContext& e) {
  const auto dequantized = [&](size_t value, size_t scale, size_t zero_point) {
    Names inputs = {e.x(value), e.x(scale)};
    if (e.has_x(zero_point)) inputs.push_back(e.x(zero_point));
    return e("DequantizeLinear", inputs, {{"axis", int64_t{-1}}});
  };
  const Name y = e("MatMul", {dequantized(0, 2, 4), dequantized(1, 3, 5)});
  e.set(0, e.has_x(kBias) ? e("Add", {y, e.x(kBias)}) : y);
}

ORTRAIN_OPERATOR(
    {.domain = kMicrosoft,
     .type = "MatMulIntegerToFloat",
     .signature = "A, B, a_scale, b_scale, a_zero_point?, b_zero_point?, bias? -> Y",
     .rules = {.shape = to_float_shape, .decompose = decompose_to_float, .element_type = type_of_input<2>},
     .kernels = {.cpu = to_float_kernel}});
ORTRAIN_OPERATOR({.type = "MatMulInteger",
                  .rules = {.shape = integer_shape, .element_type = always<DType::kInt32>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = integer_kernel}});
ORTRAIN_OPERATOR({.type = "QLinearMatMul",
                  .rules = {.shape = linear_shape, .element_type = type_of_input<7>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = linear_kernel}});

}  // namespace
}  // namespace ortrain
