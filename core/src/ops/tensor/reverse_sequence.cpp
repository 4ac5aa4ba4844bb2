// ReverseSequence: the first sequence_lens[b] steps of sample b in reverse order, the other steps unchanged.
#include "backend/cpu/strided_copy.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

struct Axes {
  int64_t batch, time;
};

Axes axes_of(const NodeContext& c) {
  const Axes axes{c.node().int_or("batch_axis", 1), c.node().int_or("time_axis", 0)};
  c.expect((axes.batch == 0 && axes.time == 1) || (axes.batch == 1 && axes.time == 0),
           "batch_axis and time_axis must be 0 and 1 or 1 and 0, found ", axes.batch, " and ", axes.time);
  c.expect(c.rank(0) >= 2, "its input must have at least two axes, found shape ", to_string(c.shape(0)));
  return axes;
}

void shape(ShapeContext& c) {
  const Axes axes = axes_of(c);
  const Shape wanted = {c.shape(0)[static_cast<size_t>(axes.batch)]};
  c.expect(c.dtype(1) == DType::kInt64 && c.shape(1) == wanted, "sequence_lens must be int64 of shape ",
           to_string(wanted), ", found ", to_string(c.dtype(1)), " ", to_string(c.shape(1)));
  c.output(0, c.dtype(0), c.shape(0));
}

Kernel kernel(KernelContext& c) {
  const Axes axes = axes_of(c);
  const Shape& x_shape = c.shape(0);
  const int64_t batch = x_shape[static_cast<size_t>(axes.batch)],
                steps = x_shape[static_cast<size_t>(axes.time)];
  const int64_t bytes = element_count(x_shape, 2, x_shape.size()) * static_cast<int64_t>(width_of(c, 0));
  const int64_t batch_step = axes.batch == 0 ? steps * bytes : bytes,
                time_step = axes.batch == 0 ? bytes : batch * bytes;
  const Slot x = c.in(0), lengths = c.in(1), y = c.out(0);
  return [=, label = c.node().label()](const Frame& f) {
    const int64_t* given = f.at<int64_t>(lengths);
    for (int64_t b = 0; b < batch; ++b)
      require(given[b] >= 0 && given[b] <= steps, ErrorCode::kInvalidArgument, label, ": sequence_lens[", b,
              "] must be in [0, ", steps, "], found ", given[b]);
    parallel_for(batch, steps * bytes / 8, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        for (int64_t t = 0; t < steps; ++t) {
          const int64_t from = t < given[b] ? given[b] - 1 - t : t;
          std::copy_n(f.at<std::byte>(x) + b * batch_step + from * time_step, bytes,
                      f.at<std::byte>(y) + b * batch_step + t * time_step);
        }
    });
  };
}

// Reversing is its own inverse.
void gradient(GradientContext& g) {
  g.set(0, g("ReverseSequence", {g.dy(0), g.x(1)},
             {{"batch_axis", g.node().int_or("batch_axis", 1)},
              {"time_axis", g.node().int_or("time_axis", 0)}}));
}

ORTRAIN_OPERATOR({.type = "ReverseSequence",
                  .rules = {.shape = shape, .gradient = gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
