// Products in the tile registers of AMX, with an emulator of these registers in place of the instructions, so
// that the test needs AVX-512 alone. test_mixed_product.cpp and test_integer_product.cpp run the instructions
// where the processor has them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../../tests/core/test_amx_tiles.cpp"  // from core/src
#include <hwy/foreach_target.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cpu/matmul/amx_tiles-inl.h"
#include "catch.h"

#ifndef ORTRAIN_AMX_CASE
#define ORTRAIN_AMX_CASE
namespace ortrain {
struct AmxCase {
  int64_t m, n, words;
  bool in_tiles, add;
  float scale;
};
// What a case found: the largest error, and whether memory around C changed or the registers were misused.
struct AmxFound {
  double error;
  bool spilled, misused;
};
}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

#if ORTRAIN_HAS_AMX_TILES

struct Register {
  int64_t rows = 0, bytes = 0;
  std::array<std::array<uint8_t, 64>, 16> data{};
};

// Eight registers. Shapes are checked as the processor checks them.
struct EmulatedUnit {
  static inline std::array<Register, 8> registers;
  static inline bool configured = false, misused = false;

  static void Configure(const void* shapes) {
    uint8_t memory[64];
    std::memcpy(memory, shapes, sizeof memory);
    misused = misused || memory[0] != 1;
    for (size_t t = 0; t < 8; ++t) {
      registers[t] = Register();
      registers[t].bytes = memory[16 + 2 * t] | memory[17 + 2 * t] << 8;
      registers[t].rows = memory[48 + t];
      misused = misused || registers[t].rows < 1 || registers[t].rows > 16 || registers[t].bytes < 4 ||
                registers[t].bytes > 64;
    }
    configured = true;
  }
  static void Release() { configured = false; }
  template <int T>
  static void Load(const void* from, int64_t row_bytes) {
    Register& r = registers[T];
    misused = misused || !configured;
    for (int64_t i = 0; i < r.rows; ++i)
      std::memcpy(r.data[static_cast<size_t>(i)].data(), static_cast<const char*>(from) + i * row_bytes,
                  static_cast<size_t>(r.bytes));
  }
  template <int T>
  static void Store(void* to, int64_t row_bytes) {
    const Register& r = registers[T];
    misused = misused || !configured;
    for (int64_t i = 0; i < r.rows; ++i)
      std::memcpy(static_cast<char*>(to) + i * row_bytes, r.data[static_cast<size_t>(i)].data(),
                  static_cast<size_t>(r.bytes));
  }
  template <int T>
  static void Zero() {
    registers[T].data = {};
  }
  template <class Words, int Sums, int A, int B>
  static void Multiply() {
    Register& c = registers[Sums];
    const Register &a = registers[A], &b = registers[B];
    misused = misused || !configured || a.rows != c.rows || b.bytes != c.bytes || a.bytes != 4 * b.rows;
    for (int64_t i = 0; i < c.rows; ++i)
      for (int64_t j = 0; j < c.bytes / 4; ++j) {
        typename Words::Sum sum;
        uint8_t* at = c.data[static_cast<size_t>(i)].data() + 4 * j;
        std::memcpy(&sum, at, 4);
        for (int64_t w = 0; w < b.rows; ++w) {
          const uint8_t *x = a.data[static_cast<size_t>(i)].data() + 4 * w,
                        *y = b.data[static_cast<size_t>(w)].data() + 4 * j;
          if constexpr (std::is_same_v<Words, PairsInTiles>) {
            BFloat16 u[2], v[2];
            std::memcpy(u, x, 4), std::memcpy(v, y, 4);
            for (int p = 0; p < 2; ++p) sum += static_cast<float>(u[p]) * static_cast<float>(v[p]);
          } else {
            for (int p = 0; p < 4; ++p) sum += int32_t{x[p]} * static_cast<int8_t>(y[p]);
          }
        }
        std::memcpy(at, &sum, 4);
      }
  }
};

// Small integers, whose sums are exact in float.
std::vector<BFloat16> SomeHalves(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<BFloat16> values;
  for (int64_t i = 0; i < n; ++i) values.emplace_back(static_cast<float>(random() % 9) - 4);
  return values;
}

AmxFound Pairs(const AmxCase& t) {
  const int64_t k = 2 * t.words, stored = (t.n + kTileSize - 1) / kTileSize * kTileSize, c_row = t.n + 5;
  const int64_t steps = (t.words + kTileSize - 1) / kTileSize, a_row = t.words + 3;
  // A as rows of words, and B as rows of the words of all columns.
  const std::vector<BFloat16> a = SomeHalves(t.m * a_row * 2, 1), b = SomeHalves(t.words * stored * 2, 2);
  const auto* rows = reinterpret_cast<const uint32_t*>(a.data());
  std::vector<uint32_t> tiles(static_cast<size_t>((t.m + kTileSize - 1) / kTileSize * steps * kTileWords),
                              0xffffffff);
  for (int64_t i = 0; i < t.m; ++i)
    for (int64_t w = 0; w < t.words; ++w)
      tiles[static_cast<size_t>((i / kTileSize * steps + w / kTileSize) * kTileWords +
                                i % kTileSize * kTileSize + w % kTileSize)] = rows[i * a_row + w];
  const LeftTiles left =
      t.in_tiles ? LeftTiles::of_tiles(tiles.data(), steps) : LeftTiles::of_rows(rows, a_row);
  const auto* right = reinterpret_cast<const float*>(b.data());
  std::vector<float> c(static_cast<size_t>(t.m * c_row), 7);
  EmulatedUnit::misused = false;
  MultiplyPairsInTiles<EmulatedUnit>(t.m, t.n, t.words, left, right, stored, t.scale, c.data(), c_row, t.add);
  AmxFound found{0, false, EmulatedUnit::misused || EmulatedUnit::configured};
  for (int64_t i = 0; i < t.m; ++i)
    for (int64_t j = 0; j < c_row; ++j) {
      const float value = c[static_cast<size_t>(i * c_row + j)];
      if (j >= t.n) {
        found.spilled = found.spilled || value != 7;
        continue;
      }
      float sum = 0;
      for (int64_t l = 0; l < k; ++l)
        sum += static_cast<float>(a[static_cast<size_t>(2 * i * a_row + l)]) *
               static_cast<float>(b[static_cast<size_t>(2 * (l / 2 * stored + j) + l % 2)]);
      sum = sum * t.scale + (t.add ? 7.0f : 0.0f);
      found.error = std::max(found.error, static_cast<double>(std::abs(sum - value)));
    }
  return found;
}

AmxFound Bytes(const AmxCase& t) {
  const int64_t stored = (t.n + kTileSize - 1) / kTileSize * kTileSize;
  std::mt19937 random(3);
  std::vector<uint8_t> a(static_cast<size_t>(4 * t.m * t.words)),
      b(static_cast<size_t>(4 * t.words * stored));
  for (auto* bytes : {&a, &b})
    for (uint8_t& byte : *bytes) byte = static_cast<uint8_t>(random());
  std::vector<int32_t> c(static_cast<size_t>(t.m * stored), 7);
  EmulatedUnit::misused = false;
  MultiplyInTiles<BytesInTiles, EmulatedUnit>(t.m, t.n, t.words, LeftTiles::of_rows(a.data(), t.words),
                                              b.data(), stored, c.data(), stored, t.add);
  AmxFound found{0, false, EmulatedUnit::misused || EmulatedUnit::configured};
  for (int64_t i = 0; i < t.m; ++i)
    for (int64_t j = 0; j < stored; ++j) {
      int32_t sum = j >= t.n || t.add ? 7 : 0;
      for (int64_t l = 0; j < t.n && l < 4 * t.words; ++l)
        sum += int32_t{a[static_cast<size_t>(4 * i * t.words + l)]} *
               static_cast<int8_t>(b[static_cast<size_t>(4 * (l / 4 * stored + j) + l % 4)]);
      found.error =
          std::max(found.error, std::abs(static_cast<double>(sum) - c[static_cast<size_t>(i * stored + j)]));
    }
  return found;
}

// Words whose rows are along m, turned: the number of wrong ones.
AmxFound Turned(const AmxCase& t) {
  std::vector<uint32_t> from(static_cast<size_t>(t.words * (t.m + 2))),
      to(static_cast<size_t>(t.m * (t.words + 3)), 9);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint32_t>(i) + 100;
  TurnWords(from.data(), t.m + 2, t.words, t.m, to.data(), t.words + 3);
  AmxFound found{0, false, false};
  for (int64_t i = 0; i < t.m; ++i)
    for (int64_t w = 0; w < t.words + 3; ++w) {
      const uint32_t value = to[static_cast<size_t>(i * (t.words + 3) + w)];
      if (w < t.words)
        found.error += value != from[static_cast<size_t>(w * (t.m + 2) + i)];
      else
        found.spilled = found.spilled || value != 9;
    }
  return found;
}

// Twice the depth, with the rows of A along m: the sums of Pairs with other distances.
AmxFound Panels(const AmxCase& t) {
  const int64_t n = std::min<int64_t>(t.n, kPanel * kTileSize), a_column = t.m + 1;
  const int64_t stored = (n + kTileSize - 1) / kTileSize * kTileSize;
  const std::vector<BFloat16> a = SomeHalves(2 * t.words * a_column * 2, 5),
                              b = SomeHalves(2 * t.words * stored * 2, 6);
  std::vector<float> c(static_cast<size_t>(t.m * stored), 7);
  EmulatedUnit::misused = false;
  PanelInTiles<EmulatedUnit>(
      t.m, n, {t.words, 2, t.words * a_column, t.words * stored}, reinterpret_cast<const float*>(a.data()), 1,
      a_column, reinterpret_cast<const float*>(b.data()), stored, c.data(), stored, t.add, false, t.scale);
  AmxFound found{0, false, EmulatedUnit::misused || EmulatedUnit::configured};
  for (int64_t i = 0; i < t.m; ++i)
    for (int64_t j = 0; j < stored; ++j) {
      const float value = c[static_cast<size_t>(i * stored + j)];
      if (j >= n) {
        found.spilled = found.spilled || value != 7;
        continue;
      }
      float sum = 0;
      for (int64_t w = 0; w < 2 * t.words; ++w)
        for (int64_t p = 0; p < 2; ++p)
          sum += static_cast<float>(a[static_cast<size_t>(2 * (w * a_column + i) + p)]) *
                 static_cast<float>(b[static_cast<size_t>(2 * (w * stored + j) + p)]);
      sum = sum * t.scale + (t.add ? 7.0f : 0.0f);
      found.error = std::max(found.error, static_cast<double>(std::abs(sum - value)));
    }
  return found;
}

bool HasTiles() { return true; }
#else
AmxFound Panels(const AmxCase&) { return {}; }
AmxFound Pairs(const AmxCase&) { return {}; }
AmxFound Bytes(const AmxCase&) { return {}; }
AmxFound Turned(const AmxCase&) { return {}; }
bool HasTiles() { return false; }
#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {
HWY_EXPORT(Pairs);
HWY_EXPORT(Bytes);
HWY_EXPORT(Turned);
HWY_EXPORT(Panels);
HWY_EXPORT(HasTiles);

TEST_CASE("products in tiles of AMX are exact for all shapes") {
  if (!HWY_DYNAMIC_DISPATCH(HasTiles)()) {
    WARN("SKIPPED: the processor has no AVX-512");
    return;
  }
  for (const int64_t m : {1, 15, 16, 17, 32, 33, 70})
    for (const int64_t n : {1, 16, 20, 33, 64})
      for (const int64_t words : {1, 15, 16, 17, 40})
        for (const unsigned bits : {0u, 1u, 2u, 3u, 4u, 7u}) {
          const AmxCase t{m, n, words, (bits & 1) != 0, (bits & 2) != 0, bits & 4 ? 0.5f : 1.0f};
          INFO(m << " x " << n << " x " << words << " words, combination " << bits);
          for (const AmxFound& found : {HWY_DYNAMIC_DISPATCH(Pairs)(t), HWY_DYNAMIC_DISPATCH(Bytes)(t),
                                        HWY_DYNAMIC_DISPATCH(Turned)(t), HWY_DYNAMIC_DISPATCH(Panels)(t)}) {
            CHECK(found.error == 0);
            CHECK(!found.spilled);
            CHECK(!found.misused);
          }
        }
}

}  // namespace
}  // namespace ortrain
#endif
