// Products with weights of few bits, and rows of such weights (com.microsoft): MatMulNBits, MatMulBnb4,
// GatherBlockQuantized. The weights stay packed in memory; a kernel unpacks as many of them at a time as fit
// in the cache. In mixed precision, A and Y may be stored in bfloat16, and products with many rows multiply
// in bfloat16.
//
// W has N rows of K numbers, in blocks of block_size neighbours that share a scale:
//     MatMulNBits: (code - zero_point) scale, codes of 2, 4 or 8 bits, lowest bits first, each row by itself;
//         the zero point is 2^(bits-1) where none is given. g_idx names the block of each place of a row.
//     MatMulBnb4: codebook[code] absmax, over the rows as one; the high half of a byte comes first. The
//         codebooks are those of T. Dettmers et al., "QLoRA: efficient finetuning of quantized LLMs", 2023.
// Y = A Wᵀ + bias;  dA = dY W. The quantized weights are not trained. AdaptedMatMulNBits is one of both plus
// low up, the product of an adapter (passes/fuse_adapter.cpp).
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/matmul/mixed_product.h"
#include "backend/cpu/matmul/product.h"
#include "backend/cpu/tuning.h"
#include "op/operator.h"
#include "op/session_domain.h"
#include "ops/common/indices.h"
#include "ops/common/packed_weights.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr int64_t kTile = tuning::kUnpackedRows;

// ---------------------------------------------------------------------------------------------------------------------
// Codes with scales and zero points.

constexpr PackedInputs kNBits = {1, 2, 3, 4};
constexpr PackedInputs kGathered = {0, 2, 3, 99};

// ---------------------------------------------------------------------------------------------------------------------
// Codebooks.

constexpr std::array<std::array<double, 16>, 2> kCodebooks = {
    {{0, 0x1.555556p-8, 0x1.555556p-1, 1, 0x1.555556p-2, 0.5, 0x1.555556p-3, 0.25, -0.0, -0x1.555556p-8,
      -0x1.555556p-1, -1, -0x1.555556p-2, -0.5, -0x1.555556p-3, -0.25},
     {-1, -0x1.647362p-1, -0x1.0cd660p-1, -0x1.946540p-2, -0x1.23449ap-2, -0x1.7a6a7ep-3, -0x1.74f0e2p-4, 0,
      0x1.45f5fep-4, 0x1.4995c6p-3, 0x1.f809bap-3, 0x1.5a0674p-2, 0x1.c34970p-2, 0x1.200f56p-1, 0x1.722766p-1,
      1}}};

void check_codebook(const NodeContext& c, const Weights& w) {
  const int64_t kind = c.node().int_or("quant_type", -1);
  c.expect(kind == 0 || kind == 1, "quant_type must be 0 (FP4) or 1 (NF4), found ", kind);
  c.expect(c.dtype(1) == DType::kUInt8, "the weights must be packed in uint8, found ", to_string(c.dtype(1)));
  expect_size(c, 1, "the weights", (w.n * w.k + 1) / 2);
  expect_size(c, 2, "absmax", (w.n * w.k + w.block - 1) / w.block);
}

template <typename T>
Unpack<T> codebook_rows(KernelContext& c, const Weights& w) {
  const Slot codes_slot = c.in(1), scales_slot = c.in(2);
  const auto& book = kCodebooks[static_cast<size_t>(c.node().int_or("quant_type", 0))];
  return [=](const Frame& f, int64_t row, int64_t count, T* to) {
    const uint8_t* codes = f.at<const uint8_t>(codes_slot);
    const T* scales = f.at<const T>(scales_slot);
    const int64_t first = row * w.k;
    for (int64_t i = 0; i < count * w.k; ++i) {
      const int64_t at = first + i;
      const uint8_t byte = codes[at / 2];
      to[i] = static_cast<T>(book[at % 2 ? byte & 15 : byte >> 4]) * scales[at / w.block];
    }
  };
}

// ---------------------------------------------------------------------------------------------------------------------
// Products. The node's A is [..., columns] and its result [..., rows]; if transposed, the other way round.

enum class Product { kNBits, kNBitsGrad, kCodebook, kAdapted };

bool is_transposed(const Node& node, Product kind) {
  if (kind == Product::kCodebook) return node.int_or("transB", 1) == 0;
  return kind == Product::kAdapted ? node.int_or("transposed", 0) != 0 : kind == Product::kNBitsGrad;
}

// The product of low and up that AdaptedMatMulNBits adds: an adapter of low rank.
struct Adapter {
  static constexpr size_t kLow = 6, kUp = 7;  // inputs
  int64_t rank, row, column;                  // up is [rank, columns of Y], with these strides

  explicit Adapter(const NodeContext& c) {
    const Shape& up = c.shape(kUp);
    const bool turned = c.node().int_or("transUp", 0) != 0;
    rank = up[turned ? 1 : 0], row = turned ? 1 : up[1], column = turned ? up[1] : 1;
  }

  static void check(const ShapeContext& c, const Shape& y) {
    for (const size_t i : {kLow, kUp})
      c.expect(c.dtype(i) == c.dtype(0), "the adapter must have the type of A, ", to_string(c.dtype(0)),
               ", found ", to_string(c.dtype(i)));
    c.expect(c.rank(kUp) == 2, "the adapter's second matrix must have two axes, found ",
             to_string(c.shape(kUp)));
    const Adapter adapter(c);
    Shape low = y;
    low.back() = adapter.rank;
    c.expect(c.shape(kLow) == low && c.size(kUp) == adapter.rank * y.back(), "the adapter must be ",
             to_string(low), " times a matrix with ", counted(y.back(), "column"), ", found ",
             to_string(c.shape(kLow)), " and ", to_string(c.shape(kUp)));
  }
};

void check_product(ShapeContext& c, Product kind) {
  const Weights w(c);
  if (!is_floating(c.dtype(0))) c.reject_dtype(0);
  c.expect(c.dtype(2) == c.dtype(0), "the scales must have the type of A, ", to_string(c.dtype(0)),
           ", found ", to_string(c.dtype(2)));
  const bool transposed = is_transposed(c.node(), kind);
  if (kind == Product::kCodebook) {
    check_codebook(c, w);
  } else {
    c.expect(c.node().int_or("weight_prepacked", 0) == 0,
             "its weights are packed for another library (weight_prepacked); save the model without it");
    check_packed(c, kNBits, w);
    expect_size(c, 1, "the weights", w.n * w.blocks * w.block * w.bits / 8);
    expect_size(c, 2, "scales", w.n * w.blocks);
    if (c.has_input(5) && !transposed)
      c.expect(c.dtype(5) == c.dtype(0) && c.shape(5) == Shape{w.n}, "bias must be ", to_string(c.dtype(0)),
               "[", w.n, "], found ", to_string(c.dtype(5)), to_string(c.shape(5)));
  }
  Shape y = c.shape(0);
  c.expect(!y.empty() && y.back() == (transposed ? w.n : w.k), "the last axis of A must have size ",
           transposed ? w.n : w.k, ", found shape ", to_string(y));
  y.back() = transposed ? w.k : w.n;
  if (kind == Product::kAdapted) Adapter::check(c, y);
  c.output(0, c.dtype(0), std::move(y));
}

// A kernel for products with so many rows that packing blocks of the weights pays off, in float or bfloat16;
// nothing for other products.
std::optional<Kernel> packed_product(KernelContext& c, Product kind) {
  const Weights w(c);
  const bool transposed = !is_transposed(c.node(), kind);
  const int64_t m = c.size(0) / (transposed ? w.k : w.n);
  if (kind == Product::kCodebook || c.dtype(0) != DType::kFloat || c.has_input(4) || m < kLeastCodedRows)
    return std::nullopt;
  const bool biased = transposed && c.has_input(5);
  const PackedSlots slots(c, kNBits, w);
  const auto fetch = [&c](size_t i) {
    const bool halves = lies_in_bf16(c, i);
    return StoredSlot{c.in(i, halves ? bf16_row_major(c.shape(i)) : nullptr), halves};
  };
  const StoredSlot a = fetch(0);
  std::optional<Adapter> adapter;
  StoredSlot low, up;
  if (kind == Product::kAdapted) adapter.emplace(c), low = fetch(Adapter::kLow), up = fetch(Adapter::kUp);
  const Slot bias = biased ? c.in(5) : Slot{};
  const bool narrow = c.wants_bf16(0), pairs = c.precision() == Precision::kBf16;
  const StoredSlot y{c.out(0, narrow ? bf16_row_major(c.out_shape(0)) : nullptr), narrow};
  return [=](const Frame& f) {
    const BlockCodes codes = slots.in(f);
    const MixedTerm of_columns{StoredInput(f.at_or_null<const float>(bias)), Bias::kRow};
    CodedProduct p{m, a.in(f), &codes, transposed, pairs, {&of_columns, bias.defined() ? 1u : 0u}, y.out(f)};
    if (adapter)
      p.added = {{low.in(f), adapter->rank, 1}, {up.in(f), adapter->row, adapter->column}, adapter->rank};
    coded_product(p);
  };
}

// Adds the adapter's product to the result [m, n] of a kernel.
template <typename T>
Kernel then_adapter(KernelContext& c, Kernel kernel, int64_t m, int64_t n, Slot y) {
  return [=, kernel = std::move(kernel), adapter = Adapter(c), low = c.in(Adapter::kLow),
          up = c.in(Adapter::kUp)](const Frame& f) {
    kernel(f);
    threaded_product<T>(m, n, adapter.rank, {f.at<const T>(low), adapter.rank, 1},
                        {f.at<const T>(up), adapter.row, adapter.column}, T{1}, f.at<T>(y), n);
  };
}

template <typename T>
Kernel typed_product(KernelContext& c, Product kind) {
  const Weights w(c);
  const Node& node = c.node();
  const bool codebook = kind == Product::kCodebook;
  const Unpack<T> unpack = codebook ? codebook_rows<T>(c, w) : packed_rows<T>(c, kNBits, w);
  const bool transposed = is_transposed(node, kind);
  const bool biased = !transposed && !codebook && c.has_input(5);
  const Slot a_slot = c.in(0), bias_slot = biased ? c.in(5) : Slot{}, y_slot = c.out(0);
  const Slot groups_slot = !codebook && c.has_input(4) ? c.in(4) : Slot{};
  const std::string label = node.label();
  const int64_t m = c.size(0) / (transposed ? w.n : w.k), tiles = (w.n + kTile - 1) / kTile;
  const int64_t parts = transposed ? 1 : std::min<int64_t>(tiles, max_threads());
  const Slot scratch = c.scratch(static_cast<size_t>(parts * kTile * w.k) * sizeof(T));
  Kernel kernel = [=](const Frame& f) {
    if (groups_slot.defined()) check_indices(label, f.at<const int32_t>(groups_slot), w.k, w.blocks);
    const T* a = f.at<const T>(a_slot);
    const T* bias = f.at_or_null<const T>(bias_slot);
    T *y = f.at<T>(y_slot), *rows = f.at<T>(scratch);
    if (transposed) {  // one tile of weights after the other, because each adds to the whole result
      for (int64_t at = 0; at < w.n; at += kTile) {
        const int64_t count = std::min(kTile, w.n - at);
        parallel_for(count, 4 * w.k, [&](int64_t begin, int64_t end) {
          unpack(f, at + begin, end - begin, rows + begin * w.k);
        });
        threaded_product<T>(m, w.k, count, {a + at, w.n, 1}, {rows, w.k, 1}, at ? T{1} : T{0}, y, w.k);
      }
      return;
    }
    parallel_for(parts, tiles * kTile * w.k * (m + 4) / parts, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        T* own = rows + part * kTile * w.k;
        for (int64_t tile = tiles * part / parts; tile < tiles * (part + 1) / parts; ++tile) {
          const int64_t at = tile * kTile, count = std::min(kTile, w.n - at);
          unpack(f, at, count, own);
          if (bias)
            for (int64_t i = 0; i < m; ++i) std::copy_n(bias + at, count, y + i * w.n + at);
          product<T>(m, count, w.k, {a, w.k, 1}, {own, 1, w.k}, bias ? T{1} : T{0}, y + at, w.n);
        }
      }
    });
  };
  if (kind == Product::kAdapted)
    return then_adapter<T>(c, std::move(kernel), m, transposed ? w.k : w.n, y_slot);
  return kernel;
}

Kernel make_product(KernelContext& c, Product kind) {
  if (std::optional<Kernel> packed = packed_product(c, kind)) return *std::move(packed);
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = typed_product<decltype(zero)>(c, kind); }))
    c.reject_dtype(0);
  return kernel;
}

template <Product P>
void product_shape(ShapeContext& c) {
  check_product(c, P);
}
template <Product P>
Kernel product_kernel(KernelContext& c) {
  return make_product(c, P);
}

void expect_frozen(GradientContext& g, size_t first, size_t last) {
  for (size_t i = first; i <= last; ++i)
    if (g.needs(i))
      g.reject("its quantized weights cannot be trained, only its other operand can; freeze \"", g.x(i),
               "\"");
}

// dA = dY W
void nbits_gradient(GradientContext& g) {
  expect_frozen(g, 1, 4);
  if (g.needs(0)) {
    Names inputs = {g.dy(0)};
    for (size_t i = 1; i < 5; ++i) inputs.push_back(g.has_x(i) ? g.x(i) : "");
    while (inputs.back().empty()) inputs.pop_back();
    g.set(0, g("MatMulNBitsGrad", inputs, g.node().attributes, kMicrosoft));
  }
  if (g.needs(5)) g.set(5, g.unbroadcast(g.dy(0), g.y(0), 5));
}

// d dY of dA = dY W
void nbits_grad_gradient(GradientContext& g) {
  expect_frozen(g, 1, 4);
  std::vector<std::string> inputs = g.node().inputs;
  inputs[0] = g.dy(0);
  g.set(0, g("MatMulNBits", inputs, g.node().attributes, kMicrosoft));
}

void codebook_gradient(GradientContext& g) {
  expect_frozen(g, 1, 2);
  Attributes attributes = g.node().attributes;
  attributes["transB"] = int64_t{is_transposed(g.node(), Product::kCodebook)};
  g.set(0, g("MatMulBnb4", {g.dy(0), g.x(1), g.x(2)}, attributes, kMicrosoft));
}

// ---------------------------------------------------------------------------------------------------------------------
// GatherBlockQuantized: rows of a table that is packed along its last axis.

struct Table {
  Weights w;
  Shape rows;  // the unpacked rows that an index selects
};

Table read_table(const NodeContext& c) {
  const Shape& data = c.shape(0);
  const int64_t bits = c.node().int_or("bits", 4);
  c.expect(c.dtype(0) == DType::kUInt8, "the table must be packed in uint8, found ", to_string(c.dtype(0)));
  c.expect(bits == 2 || bits == 4 || bits == 8, "bits must be 2, 4 or 8, found ", bits);
  const int64_t rank = static_cast<int64_t>(data.size());
  c.expect(rank >= 2, "the table must have at least 2 axes, found ", to_string(data));
  const std::string label = c.node().label();
  c.expect(normalize_axis(c.node().int_or("gather_axis", 0), rank, label) == 0 &&
               normalize_axis(c.node().int_or("quantize_axis", 1), rank, label) == rank - 1,
           "gather_axis must be the first axis of the table and quantize_axis the last, found gather_axis ",
           c.node().int_or("gather_axis", 0), " and quantize_axis ", c.node().int_or("quantize_axis", 1),
           " for ", to_string(data));
  Shape rows(data.begin() + 1, data.end());
  rows.back() *= 8 / bits;
  return {
      Weights(c, element_count(data, 0, data.size() - 1), rows.back(), c.node().int_or("block_size", 128)),
      rows};
}

void gather_shape(ShapeContext& c) {
  const Table t = read_table(c);
  if (!is_floating(c.dtype(2))) c.reject_dtype(2);
  c.expect(t.w.k % t.w.block == 0, "the last axis of the table must hold whole blocks of ", t.w.block,
           ", found ", counted(t.w.k, "number"));
  check_packed(c, kGathered, t.w);
  expect_size(c, 2, "scales", t.w.n * t.w.blocks);
  index_type(c, 1);
  Shape y = c.shape(1);
  y.insert(y.end(), t.rows.begin(), t.rows.end());
  c.output(0, c.dtype(2), std::move(y));
}

template <typename T>
Kernel typed_gather(KernelContext& c) {
  const Table t = read_table(c);
  const Unpack<T> unpack = packed_rows<T>(c, kGathered, t.w);
  const DType type = index_type(c, 1);
  const Slot indices_slot = c.in(1), y_slot = c.out(0), positions_slot = positions_scratch(c, c.size(1));
  const int64_t n = c.size(1), dim = c.shape(0)[0], size = element_count(t.rows), rows = size / t.w.k;
  const std::string label = c.node().label();
  const IndexNames names{c.node().inputs[1], c.node().inputs[0]};
  return [=](const Frame& f) {
    int64_t* positions = f.at<int64_t>(positions_slot);
    T* y = f.at<T>(y_slot);
    resolve_indices(label, type, f.at<void>(indices_slot), n, dim, positions, &names);
    parallel_for(n, 4 * size, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) unpack(f, positions[i] * rows, rows, y + i * size);
    });
  };
}

Kernel gather_kernel(KernelContext& c) {
  Kernel kernel;
  if (!visit_floating(c.dtype(2), [&](auto zero) { kernel = typed_gather<decltype(zero)>(c); }))
    c.reject_dtype(2);
  return kernel;
}

// For each element of the product, one multiplication and one addition per element of a row of input 0, and
// the operations that unpack the weights.
Operations operations_of(const Node&, std::span<const Shape* const> inputs, const Shape& product) {
  if (inputs.empty() || !inputs[0] || inputs[0]->empty() || product.empty()) return {};
  const int64_t rows = element_count(product, 0, product.size() - 1) + kUnpackingRows;
  return {2 * static_cast<double>(rows) * static_cast<double>(product.back()) *
          static_cast<double>(inputs[0]->back())};
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "MatMulNBits",
                  .signature = "A, B, scales, zero_points?, g_idx?, bias? -> Y",
                  .rules = {.shape = product_shape<Product::kNBits>, .gradient = nbits_gradient},
                  .traits = {.takes_bf16 = true, .operations = operations_of},
                  .kernels = {.cpu = product_kernel<Product::kNBits>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "MatMulNBitsGrad",
                  .signature = "dY, B, scales, zero_points?, g_idx? -> dA",
                  .rules = {.shape = product_shape<Product::kNBitsGrad>, .gradient = nbits_grad_gradient},
                  .traits = {.takes_bf16 = true, .operations = operations_of},
                  .kernels = {.cpu = product_kernel<Product::kNBitsGrad>}});
ORTRAIN_OPERATOR({.domain = kSessionDomain,
                  .type = "AdaptedMatMulNBits",
                  .signature = "A, B, scales, zero_points?, g_idx?, bias?, low, up -> Y",
                  .rules = {.shape = product_shape<Product::kAdapted>},
                  .traits = {.takes_bf16 = true, .operations = operations_of},
                  .kernels = {.cpu = product_kernel<Product::kAdapted>},
                  .made_from = {"MatMulNBits"}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "MatMulBnb4",
                  .signature = "A, B, absmax -> Y",
                  .rules = {.shape = product_shape<Product::kCodebook>, .gradient = codebook_gradient},
                  .traits = {.operations = operations_of},
                  .kernels = {.cpu = product_kernel<Product::kCodebook>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "GatherBlockQuantized",
                  .signature = "data, indices, scales, zero_points? -> output",
                  .rules = {.shape = gather_shape, .element_type = type_of_input<2>},
                  .kernels = {.cpu = gather_kernel}});

}  // namespace
}  // namespace ortrain
