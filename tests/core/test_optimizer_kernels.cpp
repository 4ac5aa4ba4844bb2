#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/optimizer/optimizer_kernels.h"
#include "catch.h"

using namespace ortrain;

TEST_CASE("Moments without gradients decay to zero and are never denormal") {
  AdamWFactors<float> f{};
  f.gradient_scale = f.root_scale = f.decay_before = f.decay_after = 1;
  f.alpha = 0.9f;
  f.beta = 0.5f;
  f.epsilon = 1e-8f;
  f.step_size = 1e-3f;
  const size_t n = 37;  // whole vectors and a rest
  std::vector<float> w(n, 1.f), g(n, 0.f), m(n, 1e-30f), v(n, 1e-30f);
  m[3] = std::numeric_limits<float>::quiet_NaN();
  for (int step = 0; step < 400; ++step) {
    adamw_update(w.data(), g.data(), m.data(), v.data(), static_cast<int64_t>(n), f);
    for (size_t i = 0; i < n; ++i) {
      if (i != 3) REQUIRE(std::fpclassify(m[i]) != FP_SUBNORMAL);
      REQUIRE(std::fpclassify(v[i]) != FP_SUBNORMAL);
    }
  }
  for (size_t i = 0; i < n; ++i) {
    if (i == 3) continue;
    CHECK(m[i] == 0);
    CHECK(v[i] == 0);
    CHECK(w[i] == 1);
  }
  CHECK(std::isnan(m[3]));  // keeps NaN visible
  CHECK(std::isnan(w[3]));
}
