// RandomNormal, RandomUniform, their Like forms, Bernoulli and Multinomial.
//
// A value depends only on the seed, the node, the index of the run and the position of the value
// (runtime/random.h). Normal values are computed from two uniform values: G. E. P. Box, M. E. Muller, "A note
// on the generation of random normal deviates", 1958.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <optional>

#include "backend/cpu/dropout_random.h"
#include "op/operator.h"
#include "runtime/convert.h"
#include "runtime/random.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// Uniform numbers of 53 bits, in [0, 1).
class Draws {
 public:
  explicit Draws(KernelContext& c) : stream_(c.stream()) {
    if (c.node().has("seed")) fixed_ = std::bit_cast<uint32_t>(c.node().float_or("seed", 0));
  }

  static constexpr int64_t kMost = 64;  // numbers of a piece

  // Calls f(first, numbers, count) for pieces of n numbers, which f may overwrite. Each piece begins at an
  // even number.
  template <typename F>
  void pieces(const Frame& frame, int64_t n, int64_t cost, F&& f) const {
    parallel_for((n + 1) / 2, 2 * cost, [&](int64_t begin, int64_t end) {
      double numbers[kMost];
      for (int64_t pair = begin; pair < end; pair += kPairs) {
        const int64_t count = std::min(kPairs, end - pair);
        fill(frame, pair, count, numbers);
        f(2 * pair, numbers, std::min(2 * count, n - 2 * pair));
      }
    });
  }

 private:
  static constexpr int64_t kPairs = kMost / 2;

  void fill(const Frame& frame, int64_t pair, int64_t count, double* numbers) const {
    uint32_t words[4 * kPairs];
    random_words(fixed_ ? *fixed_ : static_cast<uint64_t>(seed()), dropout_counter(stream_, frame.run()),
                 static_cast<uint64_t>(pair), count, words);
    for (int64_t i = 0; i < 2 * count; ++i)
      numbers[i] = static_cast<double>((uint64_t{words[2 * i]} << 32 | words[2 * i + 1]) >> 11) * 0x1p-53;
  }

  uint64_t stream_;
  std::optional<uint64_t> fixed_;
};

constexpr int64_t kCost = 30;  // of one value, in additions

// Writes numbers as elements of an integer or float type of four or eight bytes, from element `first` on.
void write_numbers(DType dtype, const double* numbers, int64_t count, std::byte* to, int64_t first) {
  visit_types<float, double, int32_t, int64_t>(dtype, [&](auto zero) {
    using T = decltype(zero);
    std::transform(numbers, numbers + count, reinterpret_cast<T*>(to) + first,
                   [](double number) { return static_cast<T>(number); });
  });
}

// Whether the shape is that of input 0.
enum class ShapeFrom { kAttribute, kInput };

template <ShapeFrom From>
void shape(ShapeContext& c) {
  constexpr bool like = From == ShapeFrom::kInput;
  DType type = static_cast<DType>(c.node().int_or("dtype", static_cast<int64_t>(DType::kUndefined)));
  if (type == DType::kUndefined) type = like ? c.dtype(0) : DType::kFloat;
  c.expect(is_floating(type), "it cannot produce values of type ", to_string(type));
  if (like) return c.output(0, type, c.shape(0));
  c.expect(c.node().has("shape"), "the attribute 'shape' is missing");
  const std::vector<int64_t> dims = c.node().ints_or("shape", {});
  for (const int64_t dim : dims)
    c.expect(dim >= 0, "the shape ", to_string(dims), " has a negative dimension");
  c.output(0, type, dims);
}

enum class Law { kUniform, kNormal };

template <Law L>
Kernel kernel(KernelContext& c) {
  constexpr bool normal = L == Law::kNormal;
  const double first =
      static_cast<double>(normal ? c.node().float_or("mean", 0) : c.node().float_or("low", 0));
  const double second =
      static_cast<double>(normal ? c.node().float_or("scale", 1) : c.node().float_or("high", 1));
  const Draws draws(c);
  const Slot y = c.out(0);
  return [=, n = c.out_size(0), type = c.out_dtype(0)](const Frame& f) {
    draws.pieces(f, n, normal ? 2 * kCost : kCost, [&](int64_t at, double* u, int64_t count) {
      for (int64_t i = 0; i < count; i += normal ? 2 : 1) {
        if constexpr (normal) {
          const double radius = second * std::sqrt(-2 * std::log1p(-u[i])),
                       angle = 2 * std::numbers::pi * u[i + 1];
          u[i] = first + radius * std::cos(angle);
          u[i + 1] = first + radius * std::sin(angle);
        } else {
          u[i] = first + (second - first) * u[i];
        }
      }
      write_numbers(type, u, count, f.at<std::byte>(y), at);
    });
  };
}

// Bernoulli: 1 with the probability in the input.
void bernoulli_shape(ShapeContext& c) {
  if (!is_floating(c.dtype(0))) c.reject_dtype(0);
  const DType type = c.node().has("dtype") ? static_cast<DType>(c.node().int_or("dtype", 0)) : c.dtype(0);
  c.expect(is_half(type) || visit_numeric_or_bool(type, [](auto) {}), "it cannot produce values of type ",
           to_string(type));
  c.output(0, type, c.shape(0));
}

Kernel bernoulli_kernel(KernelContext& c) {
  const Draws draws(c);
  const Slot x = c.in(0), y = c.out(0), one = c.fixed(Tensor::scalar(c.out_dtype(0), 1.0));
  return [=, n = c.out_size(0), from = c.dtype(0), width = size_of(c.out_dtype(0))](const Frame& f) {
    draws.pieces(f, n, kCost, [&](int64_t at, const double* u, int64_t count) {
      double p[Draws::kMost];
      read_numbers(from, f.at<std::byte>(x), at, at + count, p);
      for (int64_t i = 0; i < count; ++i) {
        std::byte* to = f.at<std::byte>(y) + static_cast<size_t>(at + i) * width;
        if (u[i] < p[i])
          std::memcpy(to, f.at<std::byte>(one), width);
        else
          std::memset(to, 0, width);
      }
    });
  };
}

// Multinomial: for each row of unnormalized log-probabilities, `sample_size` drawn columns.
void multinomial_shape(ShapeContext& c) {
  if (!is_floating(c.dtype(0))) c.reject_dtype(0);
  c.expect(c.rank(0) == 2, "its input must have two axes, found shape ", to_string(c.shape(0)));
  const int64_t samples = c.node().int_or("sample_size", 1);
  c.expect(samples >= 0, "sample_size must not be negative, found ", samples);
  c.expect(c.shape(0)[1] > 0 || c.shape(0)[0] == 0,
           "the second axis of its input, the classes, must not be empty; found shape ",
           to_string(c.shape(0)));
  const DType type = static_cast<DType>(c.node().int_or("dtype", static_cast<int64_t>(DType::kInt32)));
  c.expect(type == DType::kInt32 || type == DType::kInt64, "dtype must be int32 or int64, found ",
           to_string(type));
  c.output(0, type, {c.shape(0)[0], samples});
}

Kernel multinomial_kernel(KernelContext& c) {
  const Draws draws(c);
  const Slot x = c.in(0), y = c.out(0);
  const int64_t rows = c.shape(0)[0], classes = c.shape(0)[1], samples = c.out_shape(0)[1];
  const Slot sums = c.scratch(static_cast<size_t>(rows * classes) * sizeof(double));
  return [=, from = c.dtype(0), to = c.out_dtype(0)](const Frame& f) {
    double* all = f.at<double>(sums);
    for (double* running = all; running < all + rows * classes; running += classes) {
      read_numbers(from, f.at<std::byte>(x), running - all, running - all + classes, running);
      const double top = *std::max_element(running, running + classes);
      double sum = 0;
      for (int64_t k = 0; k < classes; ++k) running[k] = sum += std::exp(running[k] - top);
    }
    draws.pieces(f, rows * samples, kCost, [&](int64_t at, double* u, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        const double *begin = all + (at + i) / samples * classes, *end = begin + classes;
        // The first class whose running sum exceeds the uniform number.
        const int64_t found = std::upper_bound(begin, end, u[i] * end[-1]) - begin;
        u[i] = static_cast<double>(std::min(found, classes - 1));
      }
      write_numbers(to, u, count, f.at<std::byte>(y), at);
    });
  };
}

template <ShapeFrom From>
DType random_type(const ElementTypes& types, size_t) {
  return types.attribute("dtype", From == ShapeFrom::kInput ? types[0] : DType::kFloat);
}

DType bernoulli_type(const ElementTypes& types, size_t) { return types.attribute("dtype", types[0]); }

DType multinomial_type(const ElementTypes& types, size_t) { return types.attribute("dtype", DType::kInt32); }

constexpr Operator random_operator(const char* type, void (*shape_rule)(ShapeContext&),
                                   ElementTypeRule type_rule, Kernel (*maker)(KernelContext&)) {
  return {.type = type,
          .rules = {.shape = shape_rule, .element_type = type_rule},
          .traits = {.stops_gradient = true, .impure = true},
          .kernels = {.cpu = maker}};
}
template <ShapeFrom From, Law L>
constexpr Operator drawing_operator(const char* type) {
  return random_operator(type, shape<From>, random_type<From>, kernel<L>);
}
ORTRAIN_OPERATOR({drawing_operator<ShapeFrom::kAttribute, Law::kNormal>("RandomNormal")});
ORTRAIN_OPERATOR({drawing_operator<ShapeFrom::kAttribute, Law::kUniform>("RandomUniform")});
ORTRAIN_OPERATOR({drawing_operator<ShapeFrom::kInput, Law::kNormal>("RandomNormalLike")});
ORTRAIN_OPERATOR({drawing_operator<ShapeFrom::kInput, Law::kUniform>("RandomUniformLike")});
ORTRAIN_OPERATOR({random_operator("Bernoulli", bernoulli_shape, bernoulli_type, bernoulli_kernel)});
ORTRAIN_OPERATOR({random_operator("Multinomial", multinomial_shape, multinomial_type, multinomial_kernel)});

}  // namespace
}  // namespace ortrain
