// RotaryEmbedding: rotates pairs of elements of each head by the angle of its position,
//     (a, b) → (a cos - b sin, a sin + b cos).
// The elements of a pair are neighbours (interleaved) or half the rotated part apart; elements after the
// rotated part stay unchanged. J. Su et al., "RoFormer: enhanced transformer with rotary position embedding",
// 2021.
#include "ops/common/indices.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// X as [batch, heads, positions, head size] in memory of either order.
struct Heads {
  int64_t batch, heads, positions, size, half;
  int64_t batch_step, head_step, position_step;
  bool interleaved;

  explicit Heads(const NodeContext& c) : interleaved(c.node().int_or("interleaved", 0) != 0) {
    const Shape& x = c.shape(0);
    c.expect(x.size() == 3 || x.size() == 4,
             "its input must have shape [N, positions, elements] or [N, heads, positions, elements], found ",
             to_string(x));
    batch = x[0];
    if (x.size() == 4) {
      heads = x[1];
      positions = x[2];
      size = x[3];
      head_step = positions * size;
      position_step = size;
    } else {
      heads = c.node().int_or("num_heads", 0);
      c.expect(heads >= 1 && heads <= x[2] && x[2] % heads == 0, "attribute num_heads must divide the ",
               counted(x[2], "element"), " of its input ", to_string(x), ", found ", heads);
      positions = x[1];
      size = x[2] / heads;
      head_step = size;
      position_step = x[2];
    }
    batch_step = heads * positions * size;
    int64_t rotated = c.node().int_or("rotary_embedding_dim", 0);
    if (rotated == 0) rotated = size;
    c.expect(rotated >= 0 && rotated % 2 == 0 && rotated <= size,
             "the rotated part must be an even number of elements up to ", size, ", found ", rotated);
    half = rotated / 2;
    const bool indexed = c.has_input(3);
    if (indexed)
      c.expect(c.dtype(3) == DType::kInt64 && c.shape(3) == Shape{batch, positions},
               "position_ids must be int64[", batch, ", ", positions, "], found ", to_string(c.dtype(3)),
               to_string(c.shape(3)));
    for (size_t i = 1; i < 3; ++i) {
      const Shape& cache = c.shape(i);
      c.expect(c.dtype(i) == c.dtype(0), "cos_cache and sin_cache must have the type of X, ",
               to_string(c.dtype(0)), ", found ", to_string(c.dtype(i)));
      c.expect(indexed ? cache.size() == 2 && cache[1] == half : cache == Shape{batch, positions, half},
               i == 1 ? "cos_cache" : "sin_cache", " must have shape ",
               indexed ? concat("[positions, ", half, "]") : to_string(Shape{batch, positions, half}),
               ", found ", to_string(cache));
    }
    c.expect(c.shape(1) == c.shape(2), "cos_cache and sin_cache must have the same shape, found ",
             to_string(c.shape(1)), " and ", to_string(c.shape(2)));
  }
};

void shape(ShapeContext& c) {
  Heads{c};
  c.output(0, c.dtype(0), c.shape(0));
}

Kernel kernel(KernelContext& c) {
  const Heads h(c);
  const Slot x_slot = c.in(0), cos_slot = c.in(1), sin_slot = c.in(2),
             ids_slot = c.has_input(3) ? c.in(3) : Slot{};
  const Slot y_slot = c.out_inplace(0, {0});
  const int64_t limit = c.shape(1)[0];
  const std::string label = c.node().label();
  Kernel kernel;
  const bool known = visit_floating(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      const T *x = f.at<const T>(x_slot), *cosines = f.at<const T>(cos_slot),
              *sines = f.at<const T>(sin_slot);
      const int64_t* ids = f.at_or_null<const int64_t>(ids_slot);
      T* y = f.at<T>(y_slot);
      if (ids) check_indices(label, ids, h.batch * h.positions, limit);
      parallel_for(h.batch * h.positions, h.heads * h.size * 2, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t angle = (ids ? from_front(ids[row], limit) : row) * h.half;
          const T *cosine = cosines + angle, *sine = sines + angle;
          for (int64_t head = 0; head < h.heads; ++head) {
            const int64_t at =
                row / h.positions * h.batch_step + head * h.head_step + row % h.positions * h.position_step;
            const T* from = x + at;
            T* to = y + at;
            const int64_t step = h.interleaved ? 2 : 1, apart = h.interleaved ? 1 : h.half;
            for (int64_t i = 0; i < h.half; ++i) {
              const T a = from[i * step], b = from[i * step + apart];
              to[i * step] = cosine[i] * a - sine[i] * b;
              to[i * step + apart] = sine[i] * a + cosine[i] * b;
            }
            for (int64_t i = 2 * h.half; i < h.size; ++i) to[i] = from[i];
          }
        }
      });
    };
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

// Rotated back by the same angles.
void gradient(GradientContext& g) {
  if (g.needs(1) || g.needs(2)) g.reject("the gradients of cos_cache and sin_cache are not supported");
  if (!g.needs(0)) return;
  Names inputs = {g.dy(0), g.x(1), g("Neg", {g.x(2)})};
  if (g.has_x(3)) inputs.push_back(g.x(3));
  g.set(0, g("RotaryEmbedding", inputs, g.node().attributes));
}

ORTRAIN_OPERATOR({.type = "RotaryEmbedding",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
