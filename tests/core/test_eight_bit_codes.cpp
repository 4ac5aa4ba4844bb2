#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "backend/cpu/optimizer/rules/eight_bit_codes.h"
#include "catch.h"

using namespace ortrain;

namespace {

// The distance to a level, exact in double.
double distance(const EightBitCodes& codes, float x, size_t code) {
  return std::abs(static_cast<double>(x) - static_cast<double>(codes.levels[code]));
}

double least_distance(const EightBitCodes& codes, float x) {
  double least = std::numeric_limits<double>::infinity();
  for (size_t code = 0; code < 256; ++code) least = std::min(least, distance(codes, x, code));
  return least;
}

// All levels, the middles between them, and the floats beside both.
std::vector<float> near_levels(const EightBitCodes& codes) {
  std::vector<float> all;
  const auto add = [&](float x) {
    for (const float direction : {-2.0f, 2.0f}) all.push_back(std::nextafter(x, direction));
    all.push_back(x);
  };
  for (size_t i = 0; i < 256; ++i) {
    add(codes.levels[i]);
    if (i > 0) add((codes.levels[i - 1] + codes.levels[i]) / 2);
  }
  std::erase_if(all, [&](float x) { return std::abs(x) > 1 || x < codes.levels[0]; });
  all.push_back(1);  // the scale of a block is its largest magnitude
  return all;
}

}  // namespace

TEST_CASE("Codes of 8 bits are those of the nearest level, in vectors and one by one") {
  for (const bool is_signed : {true, false}) {
    const EightBitCodes& codes = eight_bit_codes(is_signed);
    std::vector<float> x = near_levels(codes);
    while (x.size() % 16 != 3) x.push_back(0);  // whole vectors and a rest
    const auto n = static_cast<int64_t>(x.size());
    std::vector<uint8_t> written(x.size());
    REQUIRE(write_codes(codes, x.data(), n, written.data()) == 1);
    for (size_t i = 0; i < x.size(); ++i) {
      INFO("x = " << x[i] << ", code " << int{written[i]});
      // A float in the middle of two levels may be rounded, so that either is nearest.
      const double rounding = std::abs(static_cast<double>(x[i])) * std::numeric_limits<float>::epsilon();
      CHECK(distance(codes, x[i], written[i]) <= least_distance(codes, x[i]) + rounding);
      CHECK(codes.code(x[i]) == written[i]);
    }
  }
}

TEST_CASE("Every code of 8 bits is read as its level and written as itself") {
  for (const bool is_signed : {true, false}) {
    const EightBitCodes& codes = eight_bit_codes(is_signed);
    std::vector<uint8_t> given(256), written(256);
    for (size_t i = 0; i < 256; ++i) given[i] = static_cast<uint8_t>(i);
    std::vector<float> numbers(256);
    read_codes(codes, given.data(), 256, 1, numbers.data());
    for (size_t i = 0; i < 256; ++i) CHECK(numbers[i] == codes.levels[i]);
    CHECK(write_codes(codes, numbers.data(), 256, written.data()) == 1);
    CHECK(written == given);
  }
}
