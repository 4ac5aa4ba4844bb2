#include "backend/cpu/channels_last.h"

#include <algorithm>
#include <utility>

#include "backend/cpu/strided_copy.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

class ChannelsLast : public Layout {
 public:
  explicit ChannelsLast(Shape shape) : shape_(std::move(shape)) {}
  size_t bytes() const override { return static_cast<size_t>(element_count(shape_)) * sizeof(float); }
  bool equals(const Layout& other) const override {
    const auto* o = dynamic_cast<const ChannelsLast*>(&other);
    return o && o->shape_ == shape_;
  }
  bool dense() const override { return true; }
  Kernel to_plain(Slot from, Slot plain) const override { return copy(strides(), from, {}, plain); }
  Kernel from_plain(Slot plain, Slot to) const override {
    switch (shape_[1]) {
      case 2:
        return interleave<2>(plain, to);
      case 3:
        return interleave<3>(plain, to);
      case 4:
        return interleave<4>(plain, to);
      default:
        return copy({}, plain, strides(), to);
    }
  }

 private:
  // Steps between elements along each axis of the shape.
  std::vector<int64_t> strides() const {
    std::vector<int64_t> steps(shape_.size());
    int64_t step = shape_[1];
    for (size_t a = shape_.size(); a-- > 2;) {
      steps[a] = step;
      step *= shape_[a];
    }
    steps[1] = 1;
    steps[0] = step;
    return steps;
  }
  // For so few channels, as images have, a copy has nothing to move at once.
  template <int64_t kChannels>
  Kernel interleave(Slot plain, Slot to) const {
    const int64_t points = element_count(shape_, 2, shape_.size());
    return [=, all = shape_[0] * points](const Frame& f) {
      const float* from = f.at<const float>(plain);
      float* values = f.at<float>(to);
      parallel_for(all, kChannels, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end;) {
          const int64_t image = i / points, past = std::min(end, (image + 1) * points);
          const float* x = from + image * kChannels * points - image * points;
          for (; i < past; ++i)
            for (int64_t c = 0; c < kChannels; ++c) values[i * kChannels + c] = x[c * points + i];
        }
      });
    };
  }
  // Without strides, a side is row-major.
  Kernel copy(std::vector<int64_t> from_strides, Slot from, std::vector<int64_t> to_strides, Slot to) const {
    std::vector<int64_t> plain(shape_.size(), 1);
    for (size_t a = shape_.size() - 1; a-- > 0;) plain[a] = plain[a + 1] * shape_[a + 1];
    const StridedCopy reorder(sizeof(float), shape_, {0, from_strides.empty() ? plain : from_strides},
                              {0, to_strides.empty() ? plain : to_strides});
    return [=](const Frame& f) { reorder(f.at<const std::byte>(from), f.at<std::byte>(to)); };
  }

  Shape shape_;
};

bool is_row_major(const Shape& shape) {
  return shape.size() < 3 || shape[1] == 1 || element_count(shape, 2, shape.size()) == 1;
}

}  // namespace

LayoutPtr channels_last(const Shape& shape) {
  if (is_row_major(shape)) return nullptr;
  return std::make_shared<ChannelsLast>(shape);
}

bool suits_channels_last(const KernelContext& c) {
  if (c.dtype(0) != DType::kFloat) return false;
  for (size_t i = 0; i < c.input_count(); ++i)
    if (c.has_input(i) && !c.constant(i)) return true;
  return false;
}

Tensor with_channels_last(const Tensor& values) {
  const Shape& shape = values.shape();
  Tensor made(DType::kFloat, shape);
  const int64_t channels = shape[1], points = element_count(shape, 2, shape.size());
  const float* from = values.data<float>();
  float* to = made.data<float>();
  for (int64_t n = 0; n < shape[0]; ++n)
    for (int64_t p = 0; p < points; ++p)
      for (int64_t c = 0; c < channels; ++c) *to++ = from[(n * channels + c) * points + p];
  return made;
}

LayoutPtr stored_channels_last(const KernelContext& c, size_t i) {
  const LayoutPtr layout = c.in_layout(i);
  return layout && same_layout(layout, channels_last(c.shape(i))) ? layout : nullptr;
}

}  // namespace ortrain
