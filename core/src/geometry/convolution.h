// Convolution: sizes, windows, and the activation of com.microsoft FusedConv.
#pragma once

#include <algorithm>
#include <cmath>

#include "geometry/sliding_window.h"
#include "op/operator.h"

namespace ortrain {

// The attribute by which a session allows Winograd's convolution (passes/winograd.cpp).
inline constexpr const char* kWinograd = "winograd";

// The shapes, groups and window of a node whose inputs `x_at` and `w_at` are X and W.
struct Convolution {
  Shape x, w, y;
  int64_t groups;
  Window window;

  Convolution(const NodeContext& c, size_t x_at, size_t w_at)
      : x(c.shape(x_at)),
        w(c.shape(w_at)),
        groups(c.node().int_or("group", 1)),
        window(read_convolution(c, x, w)) {
    y = output_shape(x[0], w[0], window);
  }
};

// The activation that FusedConv finally applies to each element. `a` and `b` are the operator's alpha and
// beta, or the bounds.
struct Activation {
  enum class Kind { kNone, kRelu, kLeakyRelu, kClip, kSigmoid, kTanh, kHardSigmoid };
  Kind kind = Kind::kNone;
  float a = 0, b = 0;

  // values[i] = activation(values[i])
  template <typename T>
  void apply(int64_t n, T* values) const {
    const T alpha = static_cast<T>(a), beta = static_cast<T>(b);
    const auto each = [&](auto f) {
      for (int64_t i = 0; i < n; ++i) values[i] = f(values[i]);
    };
    switch (kind) {
      case Kind::kRelu:
        return each([](T v) { return v < T(0) ? T(0) : v; });
      case Kind::kLeakyRelu:
        return each([=](T v) { return v < T(0) ? alpha * v : v; });
      case Kind::kClip:
        return each([=](T v) { return v < alpha ? alpha : v > beta ? beta : v; });
      case Kind::kSigmoid:
        return each([](T v) { return T(1) / (T(1) + std::exp(-v)); });
      case Kind::kTanh:
        return each([](T v) { return std::tanh(v); });
      case Kind::kHardSigmoid:
        return each([=](T v) { return std::min(T(1), std::max(T(0), alpha * v + beta)); });
      case Kind::kNone:
        return;
    }
  }
};

// The activation of a node, from its attributes activation and activation_params.
Activation read_activation(const Node& node);

}  // namespace ortrain
