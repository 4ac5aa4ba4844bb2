// How values are stored by our kernels: every conversion between orders and types, on every instruction set.
#include "backend/cpu/stored_layout.h"

#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/stored_values.h"
#include "catch.h"
#include "targets.h"

namespace ortrain {
namespace {

using Bytes = std::vector<std::byte>;

// Values with ties between two neighbors in bfloat16, infinities, numbers that become infinite, and NaN.
std::vector<float> numbers(int64_t n) {
  std::mt19937 random(7);
  std::vector<float> made(static_cast<size_t>(n));
  for (float& v : made) v = std::bit_cast<float>(static_cast<uint32_t>(random()));
  const float special[] = {std::bit_cast<float>(0x3f808000u),
                           std::bit_cast<float>(0x3f818000u),
                           std::bit_cast<float>(0x7f7fffffu),
                           std::bit_cast<float>(0x7f800001u),
                           std::bit_cast<float>(0xffffffffu),
                           std::bit_cast<float>(0x00000001u),
                           -0.0f,
                           std::numeric_limits<float>::infinity()};
  for (size_t i = 0; i < std::size(special) && i < made.size(); ++i) made[i] = special[i];
  return made;
}

// The place of element i of a row-major value [N, C, P].
int64_t place(int64_t i, const Shape& shape, Order order) {
  const int64_t channels = shape[1], points = element_count(shape, 2, shape.size());
  if (order == Order::kRowMajor) return i;
  const int64_t n = i / (channels * points), c = i / points % channels, p = i % points;
  return (n * points + p) * channels + c;
}

Bytes stored(const std::vector<float>& values, const Shape& shape, Order order, bool bf16) {
  Bytes bytes(values.size() * (bf16 ? 2 : 4));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = static_cast<size_t>(place(static_cast<int64_t>(i), shape, order));
    const BFloat16 half(values[i]);
    if (bf16)
      std::memcpy(bytes.data() + at * 2, &half, 2);
    else
      std::memcpy(bytes.data() + at * 4, &values[i], 4);
  }
  return bytes;
}

Bytes run(const Kernel& kernel, Bytes from, size_t size) {
  Bytes to(size);
  std::byte* const addresses[] = {from.data(), to.data()};
  kernel(Frame(addresses, 0));
  return to;
}

TEST_CASE("values are converted between the orders and types in which they are stored") {
  const Slot source{0}, target{1};
  for (const Shape& shape : {Shape{2, 5, 7}, Shape{3, 64, 33}, Shape{1, 40, 9, 11}, Shape{2, 3, 2, 3, 5}}) {
    std::vector<float> values = numbers(element_count(shape));
    // What was stored in bfloat16 once stays as it is.
    std::vector<float> narrow = values;
    for (float& v : narrow) v = static_cast<float>(BFloat16(v));
    on_every_target([&] {
      for (const Order from_order : {Order::kRowMajor, Order::kChannelsLast})
        for (const Order to_order : {Order::kRowMajor, Order::kChannelsLast})
          for (const bool from_bf16 : {false, true})
            for (const bool to_bf16 : {false, true}) {
              const LayoutPtr from = stored_layout(shape, from_order, from_bf16),
                              to = stored_layout(shape, to_order, to_bf16);
              if (same_layout(from, to)) continue;
              const Kernel kernel = !from ? to->from_plain(source, target)
                                    : !to ? from->to_plain(source, target)
                                          : to->from(*from, source, target);
              const std::vector<float>& v = from_bf16 ? narrow : values;
              const Bytes expected = stored(v, shape, to_order, to_bf16);
              INFO(to_string(shape) << " " << int(from_order) << from_bf16 << " to " << int(to_order)
                                    << to_bf16);
              CHECK(run(kernel, stored(v, shape, from_order, from_bf16), expected.size()) == expected);
            }
    });
  }
}

TEST_CASE("bytes are converted between orders") {
  const Slot source{0}, target{1};
  for (const Shape& shape : {Shape{2, 5, 7}, Shape{3, 64, 33}, Shape{1, 70, 15, 11}, Shape{2, 16, 130}}) {
    Bytes plain(static_cast<size_t>(element_count(shape))), last = plain;
    for (size_t i = 0; i < plain.size(); ++i) {
      plain[i] = static_cast<std::byte>(i * 7 % 251);
      last[static_cast<size_t>(place(static_cast<int64_t>(i), shape, Order::kChannelsLast))] = plain[i];
    }
    const LayoutPtr layout = byte_layout(shape, Order::kChannelsLast);
    INFO(to_string(shape));
    CHECK(run(layout->from_plain(source, target), plain, plain.size()) == last);
    CHECK(run(layout->to_plain(source, target), last, last.size()) == plain);
  }
}

TEST_CASE("a layout says what it is") {
  const Shape shape{2, 3, 4};
  CHECK(stored_layout(shape, Order::kRowMajor, false) == nullptr);
  CHECK(stored_layout({2, 3, 1}, Order::kChannelsLast, false) == nullptr);
  const LayoutPtr last = stored_layout(shape, Order::kChannelsLast, true),
                  plain = stored_layout(shape, Order::kRowMajor, true);
  CHECK(order_of(last) == Order::kChannelsLast);
  CHECK(order_of(plain) == Order::kRowMajor);
  CHECK(last->bf16());
  CHECK(last->bytes() == 48);
  CHECK_FALSE(same_layout(last, plain));
  CHECK_FALSE(same_layout(last, stored_layout(shape, Order::kChannelsLast, false)));
  CHECK(last->reshaped({6, 4}) == nullptr);
  CHECK(same_layout(plain->reshaped({6, 4}), stored_layout({6, 4}, Order::kRowMajor, true)));
  CHECK(same_layout(stored_layout({2, 1, 4}, Order::kChannelsLast, true),
                    stored_layout({2, 1, 4}, Order::kRowMajor, true)));
}

}  // namespace
}  // namespace ortrain
