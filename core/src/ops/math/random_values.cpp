// RandomNormal, RandomUniform, their Like forms, Bernoulli and Multinomial.
//
// A value depends only on the seed, the node, the index of the run and the position of the value
// (runtime/random.h). Normal values are computed from two uniform values: G. E. P. Box, M. E. Muller, "A note
// on the generation of random normal deviates", 1958.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <optional>

#include "backend/cpu/dropout_random.h"
#include "op/operator.h"
#include "runtime/random.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// Pairs of uniform numbers of 53 bits, in [0, 1).
class Draws {
 public:
  explicit Draws(KernelContext& c) : stream_(c.stream()) {
    if (c.node().has("seed")) fixed_ = std::bit_cast<uint32_t>(c.node().float_or("seed", 0));
  }
  // Calls f(position, uniform numbers) for the positions from begin to end.
  template <typename F>
  void each(const Frame& frame, int64_t begin, int64_t end, F&& f) const {
    constexpr int64_t kBlock = 32;
    uint32_t words[4 * kBlock];
    const auto number = [](uint32_t high, uint32_t low) {
      return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
    };
    for (int64_t first = begin; first < end; first += kBlock) {
      const int64_t count = std::min(kBlock, end - first);
      random_words(fixed_ ? *fixed_ : static_cast<uint64_t>(seed()), dropout_counter(stream_, frame.run()),
                   static_cast<uint64_t>(first), count, words);
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t* w = words + 4 * i;
        f(first + i, std::array{number(w[0], w[1]), number(w[2], w[3])});
      }
    }
  }

 private:
  uint64_t stream_;
  std::optional<uint64_t> fixed_;
};

constexpr int64_t kCost = 30;  // of one value, in additions

// Calls f(element, uniform number) for n elements.
template <typename F>
void for_uniform(const Draws& draws, const Frame& frame, int64_t n, F&& f) {
  parallel_for((n + 1) / 2, 2 * kCost, [&](int64_t begin, int64_t end) {
    draws.each(frame, begin, end, [&](int64_t i, const std::array<double, 2>& u) {
      f(2 * i, u[0]);
      if (2 * i + 1 < n) f(2 * i + 1, u[1]);
    });
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
  const int64_t n = c.out_size(0);
  Kernel kernel;
  visit_floating(c.out_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      T* to = f.at<T>(y);
      if (!normal) {
        for_uniform(draws, f, n,
                    [&](int64_t i, double u) { to[i] = static_cast<T>(first + (second - first) * u); });
        return;
      }
      parallel_for((n + 1) / 2, 4 * kCost, [&](int64_t begin, int64_t end) {
        draws.each(f, begin, end, [&](int64_t i, const std::array<double, 2>& u) {
          const double radius = second * std::sqrt(-2 * std::log1p(-u[0])),
                       angle = 2 * std::numbers::pi * u[1];
          to[2 * i] = static_cast<T>(first + radius * std::cos(angle));
          if (2 * i + 1 < n) to[2 * i + 1] = static_cast<T>(first + radius * std::sin(angle));
        });
      });
    };
  });
  return kernel;
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
  const Slot x = c.in(0), y = c.out(0);
  const int64_t n = c.out_size(0);
  Kernel kernel;
  visit_floating(c.dtype(0), [&](auto from) {
    visit_numeric_or_bool(c.out_dtype(0), [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      kernel = [=](const Frame& f) {
        const From* p = f.at<From>(x);
        for_uniform(draws, f, n, [&](int64_t i, double u) {
          f.at<To>(y)[i] = static_cast<To>(u < static_cast<double>(p[i]));
        });
      };
    });
  });
  return kernel;
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
  Kernel kernel;
  visit_floating(c.dtype(0), [&](auto from) {
    visit_types<int32_t, int64_t>(c.out_dtype(0), [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      kernel = [=](const Frame& f) {
        double* all = f.at<double>(sums);
        for (int64_t row = 0; row < rows; ++row) {
          const From* logits = f.at<From>(x) + row * classes;
          double* running = all + row * classes;
          const double top = static_cast<double>(*std::max_element(logits, logits + classes));
          double sum = 0;
          for (int64_t k = 0; k < classes; ++k)
            running[k] = sum += std::exp(static_cast<double>(logits[k]) - top);
        }
        for_uniform(draws, f, rows * samples, [&](int64_t i, double u) {
          const double *begin = all + i / samples * classes, *end = begin + classes;
          // The first class whose running sum exceeds the uniform number.
          const int64_t found = std::upper_bound(begin, end, u * end[-1]) - begin;
          f.at<To>(y)[i] = static_cast<To>(std::min(found, classes - 1));
        });
      };
    });
  });
  return kernel;
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
