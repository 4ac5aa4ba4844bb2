#include <cmath>
#include <cstdint>
#include <limits>

#include "backend/cpu/optimizer/rules/eight_bit_codes.h"
#include "catch.h"

using namespace ortrain;

namespace {

template <class Code>
float next_level(int32_t code) {
  return level_of<Code>(code) - level_of<Code>(code - 1);
}

// Levels are sorted, have their own codes, and numbers are no farther from the level of their code than the
// distance of two levels allows.
template <class Code>
void check_codes() {
  for (int32_t code = 0; code <= Code::kMost; ++code) {
    INFO("code " << code);
    CHECK(code_of<Code>(level_of<Code>(code)) == code);
    if (code == 0) continue;
    const float below = level_of<Code>(code - 1), step = next_level<Code>(code);
    CHECK(step > 0);
    for (int i = 1; i < 16; ++i) {
      const float share = static_cast<float>(i) / 16, x = below + share * step;
      const int32_t found = code_of<Code>(x);
      CHECK((found == code - 1 || found == code));
      // At powers of two an interval's middle and that of its neighbour differ by as much as 2 : 1.
      CHECK(std::abs(level_of<Code>(found) - x) <= step * (2.0f / 3 + 1e-4f));
    }
  }
  CHECK(level_of<Code>(Code::kMost) == Code::kLevels);
  CHECK(code_of<Code>(1.001f * Code::kLevels) == Code::kMost);
  CHECK(code_of<Code>(std::numeric_limits<float>::infinity()) == Code::kMost);
  CHECK(code_of<Code>(0) == 0);
}

}  // namespace

TEST_CASE("Codes of 8 bits number the intervals around their levels") {
  check_codes<FirstMomentCode>();
  check_codes<SecondRootCode>();
}

TEST_CASE("Two levels of 8 bits differ by at most an eighth, or a sixteenth of a root") {
  for (int32_t code = 17; code <= FirstMomentCode::kMost; ++code)
    CHECK(next_level<FirstMomentCode>(code) <= level_of<FirstMomentCode>(code) / 8);
  for (int32_t code = 33; code <= SecondRootCode::kMost; ++code)
    CHECK(next_level<SecondRootCode>(code) <= level_of<SecondRootCode>(code) / 16);
}

TEST_CASE("A first moment of 8 bits keeps its sign and 0, and a root is never 0") {
  CHECK(level_of<FirstMomentCode>(0) == 0);
  for (const int32_t code : {-127, -1, 1, 64}) {
    CHECK(level_of<FirstMomentCode>(-code) == -level_of<FirstMomentCode>(code));
    CHECK(code_of<FirstMomentCode>(level_of<FirstMomentCode>(code)) == code);
  }
  CHECK(level_of<SecondRootCode>(0) > 0);
}
