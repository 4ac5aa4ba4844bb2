// Matrices whose rows are packed in codes of 2, 4 or 8 bits with scales and zero points, unpacked a few rows
// at a time. The codes are described in ops/quantized/quantized_weights.cpp.
#pragma once

#include <algorithm>
#include <functional>
#include <type_traits>

#include "backend/cpu/matmul/block_codes.h"
#include "op/operator.h"
#include "ops/common/indices.h"
#include "runtime/checked.h"

namespace ortrain {

// The sizes of the weights that a node declares.
struct Weights {
  int64_t n, k, block, bits;
  int64_t blocks;  // of a row (for codebooks, of the whole matrix)

  // The weights of a product.
  explicit Weights(const NodeContext& c)
      : Weights(c, c.node().int_or("N", 0), c.node().int_or("K", 0), c.node().int_or("block_size", 0)) {}

  Weights(const NodeContext& c, int64_t rows, int64_t columns, int64_t block_size)
      : n(rows), k(columns), block(block_size), bits(c.node().int_or("bits", 4)) {
    c.expect(n > 0 && k > 0, "its weights must have rows and columns, found ", n, " and ", k);
    c.expect(block <= INT32_MAX && k <= INT32_MAX && checked_product({n, k + block, 8}).has_value(),
             "its weights are too large: ", counted(n, "row"), " of ", counted(k, "column"), " in blocks of ",
             block);
    c.expect(block >= 16 && (block & (block - 1)) == 0,
             "block_size must be a power of two and at least 16, found ", block);
    blocks = (k + block - 1) / block;
  }
};

// Unpacks rows [row, row + count) into `to`.
template <typename T>
using Unpack = std::function<void(const Frame&, int64_t row, int64_t count, T* to)>;

inline void expect_size(const NodeContext& c, size_t i, const char* what, int64_t size) {
  c.expect(c.size(i) == size, what, " must hold ", counted(size, "value"), ", found ", to_string(c.shape(i)));
}

// Codes, scales and zero points of rows of k values, in inputs that are optional from the third on.
struct PackedInputs {
  size_t codes, scales, zero_points, group_index;
};

inline void check_packed(const NodeContext& c, const PackedInputs& at, const Weights& w) {
  c.expect(w.bits == 2 || w.bits == 4 || w.bits == 8, "bits must be 2, 4 or 8, found ", w.bits);
  c.expect(c.dtype(at.codes) == DType::kUInt8, "the weights must be packed in uint8, found ",
           to_string(c.dtype(at.codes)));
  if (c.has_input(at.zero_points)) {
    if (c.dtype(at.zero_points) == DType::kUInt8)
      expect_size(c, at.zero_points, "zero_points", w.n * ((w.blocks * w.bits + 7) / 8));
    else
      c.expect(c.dtype(at.zero_points) == c.dtype(at.scales) && c.size(at.zero_points) == w.n * w.blocks,
               "zero_points must be packed in uint8, or be ", counted(w.n * w.blocks, "value"),
               " of the type of the scales, ", to_string(c.dtype(at.scales)), "; found ",
               to_string(c.dtype(at.zero_points)), to_string(c.shape(at.zero_points)));
  }
  if (c.has_input(at.group_index))
    c.expect(c.dtype(at.group_index) == DType::kInt32 &&
                 (c.size(at.group_index) == w.k || c.size(at.group_index) == w.blocks * w.block),
             "g_idx must hold ", counted(w.k, "int32 value"), ", found ", to_string(c.dtype(at.group_index)),
             to_string(c.shape(at.group_index)));
}

// The memory of a node's codes, scales and zero points, for nodes without group_index.
struct PackedSlots {
  Weights w;
  Slot codes, scales, zeros;
  bool packed_zeros;

  PackedSlots(KernelContext& c, const PackedInputs& at, const Weights& weights)
      : w(weights),
        codes(c.in(at.codes)),
        scales(c.in(at.scales)),
        zeros(c.has_input(at.zero_points) ? c.in(at.zero_points) : Slot{}),
        packed_zeros(zeros.defined() && c.dtype(at.zero_points) == DType::kUInt8) {}

  BlockCodes in(const Frame& f) const {
    return {w.n,
            w.k,
            w.block,
            w.bits,
            w.blocks,
            f.at<const uint8_t>(codes),
            f.at<const float>(scales),
            packed_zeros ? f.at<const uint8_t>(zeros) : nullptr,
            packed_zeros ? nullptr : f.at_or_null<const float>(zeros)};
  }
};

template <typename T>
Unpack<T> packed_rows(KernelContext& c, const PackedInputs& at, const Weights& w) {
  if constexpr (std::is_same_v<T, float>)
    if (!c.has_input(at.group_index))
      return [slots = PackedSlots(c, at, w)](const Frame& f, int64_t row, int64_t count, float* to) {
        const CodesPart part{row, count, 0, slots.w.k};
        unpack(slots.in(f), part, {}, to, slots.w.k);
      };
  const Slot codes_slot = c.in(at.codes), scales_slot = c.in(at.scales);
  const Slot zeros_slot = c.has_input(at.zero_points) ? c.in(at.zero_points) : Slot{};
  const Slot groups_slot = c.has_input(at.group_index) ? c.in(at.group_index) : Slot{};
  const bool packed_zeros = zeros_slot.defined() && c.dtype(at.zero_points) == DType::kUInt8;
  return [=](const Frame& f, int64_t row, int64_t count, T* to) {
    const int64_t bits = w.bits, per_byte = 8 / bits, mask = (1 << bits) - 1;
    const int64_t row_bytes = w.blocks * w.block / per_byte, zero_bytes = (w.blocks * bits + 7) / 8;
    const auto code_at = [&](const uint8_t* bytes, int64_t i) {
      return static_cast<int32_t>(bytes[i / per_byte] >> (i % per_byte * bits) & mask);
    };
    const int32_t* groups = f.at_or_null<const int32_t>(groups_slot);
    for (int64_t r = row; r < row + count; ++r, to += w.k) {
      const uint8_t* codes = f.at<const uint8_t>(codes_slot) + r * row_bytes;
      const T* scales = f.at<const T>(scales_slot) + r * w.blocks;
      const auto zero_of = [&](int64_t b) {
        if (packed_zeros) return static_cast<T>(code_at(f.at<const uint8_t>(zeros_slot) + r * zero_bytes, b));
        if (zeros_slot.defined()) return f.at<const T>(zeros_slot)[r * w.blocks + b];
        return static_cast<T>(1 << (bits - 1));
      };
      if (groups) {
        for (int64_t i = 0; i < w.k; ++i) {
          const int64_t b = from_front(groups[i], w.blocks);
          to[i] = (static_cast<T>(code_at(codes, i)) - zero_of(b)) * scales[b];
        }
        continue;
      }
      for (int64_t b = 0; b < w.blocks; ++b) {
        const T zero = zero_of(b), scale = scales[b];
        const uint8_t* bytes = codes + b * w.block / per_byte;
        T* out = to + b * w.block;
        const int64_t left = std::min(w.block, w.k - b * w.block);
        if (bits == 4) {
          for (int64_t i = 0; i < left / 2; ++i) {
            out[2 * i] = (static_cast<T>(bytes[i] & 15) - zero) * scale;
            out[2 * i + 1] = (static_cast<T>(bytes[i] >> 4) - zero) * scale;
          }
          if (left % 2) out[left - 1] = (static_cast<T>(bytes[left / 2] & 15) - zero) * scale;
        } else {
          for (int64_t i = 0; i < left; ++i) out[i] = (static_cast<T>(code_at(bytes, i)) - zero) * scale;
        }
      }
    }
  };
}

}  // namespace ortrain
