#include <cmath>
#include <limits>
#include <vector>

#include "catch.h"
#include "ops/optimizer/optimizer_update.h"

using namespace ortrain;

namespace {

std::byte* bytes(std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); }

}  // namespace

TEST_CASE("Moments without gradients decay to zero and are never denormal") {
  AdamWFactors<double> f;
  f.alpha = 0.9;
  f.beta = 0.5;
  f.epsilon = 1e-8;
  f.step_size = 1e-3;
  const size_t n = 37;  // whole vectors and a rest
  std::vector<float> w(n, 1.f), g(n, 0.f), m(n, 1e-30f), v(n, 1e-30f);
  m[3] = std::numeric_limits<float>::quiet_NaN();
  for (int step = 0; step < 400; ++step) {
    adamw({DType::kFloat, bytes(w), bytes(g), {bytes(m), bytes(v)}, static_cast<int64_t>(n)}, f, 1);
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
