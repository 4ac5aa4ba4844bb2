// StringConcat: concatenates the texts of two tensors, with broadcasting.
#include "op/operator.h"
#include "ops/common/elementwise.h"
#include "runtime/broadcast.h"
#include "runtime/text_tensor.h"

namespace ortrain {
namespace {

void shape(ShapeContext& c) {
  for (size_t i = 0; i < 2; ++i)
    if (c.dtype(i) != DType::kString) c.reject_dtype(i);
  c.output(0, DType::kString, broadcast_inputs(c));
}

Kernel kernel(KernelContext& c) {
  const Slot a = c.in(0), b = c.in(1), y = c.out(0);
  const Broadcast<2> both({c.shape(0), c.shape(1)}, c.out_shape(0));
  return [=](const Frame& f) {
    both.walk(0, both.size(), [&](int64_t at, const std::array<int64_t, 2>& in, int64_t n) {
      for (int64_t i = 0; i < n; ++i)
        f.at<Text>(y)[at + i] = keep_text(text(f.at<Text>(a)[in[0] + i * both.step(0)]) +
                                          text(f.at<Text>(b)[in[1] + i * both.step(1)]));
    });
  };
}

ORTRAIN_OPERATOR({.type = "StringConcat",
                  .rules = {.shape = shape, .element_type = always<DType::kString>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
