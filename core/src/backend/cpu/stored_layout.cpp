#include "backend/cpu/stored_layout.h"

#include <algorithm>
#include <utility>

#include "backend/cpu/bf16_conversion.h"
#include "backend/cpu/stored_values.h"
#include "backend/cpu/strided_copy.h"
#include "runtime/dtype.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr int64_t kWide = sizeof(float), kNarrow = sizeof(BFloat16);

bool is_row_major(const Shape& shape) {
  return shape.size() < 3 || shape[1] == 1 || element_count(shape, 2, shape.size()) == 1;
}

// How elements are stored.
struct Form {
  Order order = Order::kRowMajor;
  StoredInBf16 bf16 = false;
  bool bytes = false;  // elements of one byte instead of floats

  bool operator==(const Form&) const = default;
  int64_t width() const { return bytes ? 1 : bf16 ? kNarrow : kWide; }
  Form row_major() const { return {Order::kRowMajor, false, bytes}; }
};

// Converts between forms of the same order.
Kernel convert_flat(int64_t n, Form from, Slot source, Slot target) {
  return [=](const Frame& f) {
    parallel_for(n, 1, [&](int64_t begin, int64_t end) {
      if (from.bf16)
        widen_bf16(f.at<const BFloat16>(source) + begin, f.at<float>(target) + begin, end - begin);
      else
        narrow_bf16(f.at<const float>(source) + begin, f.at<BFloat16>(target) + begin, end - begin);
    });
  };
}

// Converts between forms of different order and type: each image is a matrix that is transposed.
Kernel convert_transposed(const Shape& shape, Form from, Slot source, Slot target) {
  constexpr int64_t kLines = 32;  // of the source, in a unit of work
  const int64_t channels = shape[1], points = element_count(shape, 2, shape.size());
  const bool last = from.order == Order::kChannelsLast;
  const int64_t rows = last ? points : channels, columns = last ? channels : points;
  const int64_t parts = (rows + kLines - 1) / kLines;
  return [=, images = shape[0]](const Frame& f) {
    parallel_for(images * parts, kLines * columns, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i % parts * kLines, height = std::min(kLines, rows - row);
        const int64_t image = i / parts * rows * columns, at = image + row * columns, to = image + row;
        if (from.bf16)
          widen_bf16_transposed(f.at<const BFloat16>(source) + at, columns, height, columns,
                                f.at<float>(target) + to, rows);
        else
          narrow_bf16_transposed(f.at<const float>(source) + at, columns, height, columns,
                                 f.at<BFloat16>(target) + to, rows);
      }
    });
  };
}

// Steps between elements along each axis.
std::vector<int64_t> steps_of(const Shape& shape, Order order) {
  if (order == Order::kRowMajor) return strides_of(shape);
  std::vector<int64_t> steps(shape.size());
  int64_t step = shape[1];
  for (size_t a = shape.size(); a-- > 2;) {
    steps[a] = step;
    step *= shape[a];
  }
  steps[1] = 1;
  steps[0] = step;
  return steps;
}

// Converts to channels last for few channels, as images have: a transposition would move too few of them at
// once.
template <int64_t kChannels>
Kernel interleave(const Shape& shape, Slot source, Slot target) {
  const int64_t points = element_count(shape, 2, shape.size());
  return [=, all = shape[0] * points](const Frame& f) {
    const float* from = f.at<const float>(source);
    float* to = f.at<float>(target);
    parallel_for(all, kChannels, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end;) {
        const int64_t image = i / points, past = std::min(end, (image + 1) * points);
        const float* x = from + image * (kChannels - 1) * points;
        for (; i < past; ++i)
          for (int64_t c = 0; c < kChannels; ++c) to[i * kChannels + c] = x[c * points + i];
      }
    });
  };
}

Kernel convert(const Shape& shape, Form from, Slot source, Form to, Slot target) {
  if (from == Form{} && to == Form{Order::kChannelsLast}) {
    if (shape[1] == 2) return interleave<2>(shape, source, target);
    if (shape[1] == 3) return interleave<3>(shape, source, target);
    if (shape[1] == 4) return interleave<4>(shape, source, target);
  }
  if (from.bf16 == to.bf16) {
    // Bytes are written in blocks, for which the axes are in the order of the target.
    Shape dims = shape;
    std::vector<int64_t> source_steps = steps_of(shape, from.order), target_steps = steps_of(shape, to.order);
    if (to.bytes && to.order == Order::kChannelsLast)
      for (auto* axes : {&dims, &source_steps, &target_steps})
        std::rotate(axes->begin() + 1, axes->begin() + 2, axes->end());
    const StridedCopy reorder(static_cast<size_t>(from.width()), dims, {0, source_steps}, {0, target_steps});
    return [=](const Frame& f) { reorder(f.at<const std::byte>(source), f.at<std::byte>(target)); };
  }
  if constexpr (!kHasKernels<BFloat16>) return nullptr;  // no value is stored in bfloat16
  return from.order == to.order ? convert_flat(element_count(shape), from, source, target)
                                : convert_transposed(shape, from, source, target);
}

class StoredLayout : public Layout {
 public:
  static constexpr char kKind = 0;

  StoredLayout(Shape shape, Form form) : shape_(std::move(shape)), form_(form) {}

  size_t bytes() const override { return static_cast<size_t>(element_count(shape_) * form_.width()); }
  const void* kind() const override { return &kKind; }
  bool equals(const Layout& other) const override {
    const auto* o = layout_as<StoredLayout>(&other);
    return o && o->shape_ == shape_ && o->form_ == form_;
  }
  bool dense() const override { return true; }
  bool bf16() const override { return form_.bf16; }
  LayoutPtr reshaped(const Shape& shape) const override {
    return form_.order == Order::kRowMajor ? stored_layout(shape, Order::kRowMajor, form_.bf16) : nullptr;
  }
  Kernel to_plain(Slot from, Slot plain) const override {
    return convert(shape_, form_, from, form_.row_major(), plain);
  }
  Kernel from_plain(Slot plain, Slot to) const override {
    return convert(shape_, form_.row_major(), plain, form_, to);
  }
  Kernel from(const Layout& other, Slot source, Slot to) const override {
    const auto* o = layout_as<StoredLayout>(&other);
    return o && o->shape_ == shape_ && o->form_.bytes == form_.bytes
               ? convert(shape_, o->form_, source, form_, to)
               : nullptr;
  }
  Order order() const { return form_.order; }

 private:
  Shape shape_;
  Form form_;
};

}  // namespace

LayoutPtr stored_layout(const Shape& shape, Order order, bool bf16) {
  if (is_row_major(shape)) order = Order::kRowMajor;
  if (order == Order::kRowMajor && !bf16) return nullptr;
  return std::make_shared<StoredLayout>(shape, Form{order, bf16});
}

LayoutPtr byte_layout(const Shape& shape, Order order) {
  if (is_row_major(shape) || order == Order::kRowMajor) return nullptr;
  return std::make_shared<StoredLayout>(shape, Form{order, false, true});
}

Order order_of(const LayoutPtr& layout) {
  const auto* stored = layout_as<StoredLayout>(layout.get());
  return stored ? stored->order() : Order::kRowMajor;
}

}  // namespace ortrain
