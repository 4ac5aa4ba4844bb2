// Transpose: y[i_perm(0), i_perm(1), ...] of x[i_0, i_1, ...].
#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/channels_last.h"
#include "backend/cpu/strided_copy.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

std::vector<int64_t> permutation_of(const NodeContext& c) {
  if (!c.node().has("perm")) {
    std::vector<int64_t> reversed(static_cast<size_t>(c.rank(0)));
    std::iota(reversed.rbegin(), reversed.rend(), 0);
    return reversed;
  }
  const std::vector<int64_t> perm = c.node().ints_or("perm", {});
  std::vector<bool> seen(perm.size(), false);
  for (const int64_t axis : perm) {
    const bool fits = axis >= 0 && std::cmp_less(axis, perm.size()) && !seen[static_cast<size_t>(axis)];
    c.expect(fits, "attribute perm is not a permutation: expected each of the axes from 0 to ",
             perm.size() - 1, " once, found ", to_string(perm));
    seen[static_cast<size_t>(axis)] = true;
  }
  c.expect(std::cmp_equal(perm.size(), c.rank(0)), "perm ", to_string(perm),
           " is not a permutation of the axes of shape ", to_string(c.shape(0)));
  return perm;
}

void shape(ShapeContext& c) {
  Shape out;
  for (const int64_t axis : permutation_of(c)) out.push_back(c.shape(0)[static_cast<size_t>(axis)]);
  c.output(0, c.dtype(0), out);
}

// Row-major order of a value [N, points..., C] is the order of [N, C, points...] with channels last. If the
// node turns one of these into the other, and the value with channels in second place is stored with channels
// last, the elements stay in order. Returns null if not.
Kernel move_channels(KernelContext& c, const std::vector<int64_t>& perm) {
  const size_t rank = perm.size();
  if (rank < 3 || perm[0] != 0 || !suits_channels_last(c)) return nullptr;
  bool to_last = true, to_second = true;
  for (size_t i = 1; i < rank; ++i) {
    to_last &= std::cmp_equal(perm[i], i + 1 < rank ? i + 1 : 1);
    to_second &= std::cmp_equal(perm[i], i > 1 ? i - 1 : rank - 1);
  }
  const bool from_last = stored_channels_last(c, 0), bf16 = lies_in_bf16(c, 0);
  // With three axes, both permutations are the same, and the node may transpose matrices.
  if (!(from_last ? to_last : to_second && rank > 3)) return nullptr;
  const auto rows = [&](const Shape& shape) { return bf16 ? bf16_row_major(shape) : nullptr; };
  const Slot in = c.in(0, from_last ? channels_last(c.shape(0), bf16) : rows(c.shape(0)));
  const Slot out =
      c.out_inplace(0, {0}, from_last ? rows(c.out_shape(0)) : channels_last(c.out_shape(0), bf16));
  const int64_t n = c.out_size(0), width = static_cast<int64_t>(bf16 ? sizeof(BFloat16) : sizeof(float));
  return [=](const Frame& f) {
    const std::byte* from = f.at<std::byte>(in);
    std::byte* to = f.at<std::byte>(out);
    if (from == to) return;
    parallel_for(n, 1, [&](int64_t begin, int64_t end) {
      std::copy(from + begin * width, from + end * width, to + begin * width);
    });
  };
}

Kernel kernel(KernelContext& c) {
  const std::vector<int64_t> perm = permutation_of(c);
  const Shape& in_shape = c.shape(0);
  // If only axes of size 1 change places, the elements stay where they are.
  int64_t last = -1;
  bool in_order = true;
  for (const int64_t axis : perm)
    if (in_shape[static_cast<size_t>(axis)] != 1) {
      in_order &= axis > last;
      last = axis;
    }
  if (in_order) {
    c.alias(0, 0);
    return nullptr;
  }
  if (Kernel moved = move_channels(c, perm)) return moved;
  const std::vector<int64_t> in_strides = strides_of(in_shape);
  std::vector<int64_t> strides;
  for (const int64_t axis : perm) strides.push_back(in_strides[static_cast<size_t>(axis)]);
  const bool narrow = follows_bf16(c, {0});
  const size_t width = narrow ? size_of(DType::kBFloat16) : width_of(c, 0);
  const StridedCopy copy(width, c.out_shape(0), {0, strides}, {0, strides_of(c.out_shape(0))});
  const Slot in = c.in(0, narrow ? bf16_row_major(in_shape) : nullptr);
  const Slot out = c.out(0, narrow ? bf16_row_major(c.out_shape(0)) : nullptr);
  return [=](const Frame& f) { copy(f.at<std::byte>(in), f.at<std::byte>(out)); };
}

// The inverse permutation.
void gradient(GradientContext& g) {
  if (!g.node().has("perm")) return g.set(0, g("Transpose", {g.dy(0)}));  // reversing is its own inverse
  const std::vector<int64_t> perm = g.node().ints_or("perm", {});
  std::vector<int64_t> inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) inverse.at(static_cast<size_t>(perm[i])) = static_cast<int64_t>(i);
  g.set(0, g("Transpose", {g.dy(0)}, {{"perm", inverse}}));
}

std::optional<InputPositions> positions(const PositionQuery& q) {
  const std::vector<int64_t> order = q.node.ints_or("perm", {});
  if (order.empty()) return InputPositions{{q.rank() - 1 - q.axis}};
  if (static_cast<int64_t>(order.size()) != q.rank()) return std::nullopt;  // the shape rule says so
  const int64_t axis = order[static_cast<size_t>(q.axis)];
  return axis >= 0 && axis < q.rank() ? std::optional(InputPositions{{axis}}) : std::nullopt;
}

ORTRAIN_OPERATOR(
    {.type = "Transpose",
     .rules = {.shape = shape, .gradient = gradient},
     .traits = {.takes_bf16 = true, .narrow_types = NarrowTypes::kPassthrough, .positions = positions},
     .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
