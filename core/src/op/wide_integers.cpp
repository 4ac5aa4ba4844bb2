#include "op/wide_integers.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/convert.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

template <typename F>
bool visit_small_integer(DType dtype, F&& f) {
  return visit_types<int8_t, int16_t, uint8_t, uint16_t, uint32_t>(dtype, f);
}

bool is_small_integer(DType dtype) {
  return visit_small_integer(dtype, [](auto) {});
}

DType seen_as(DType dtype) { return is_small_integer(dtype) ? DType::kInt64 : dtype; }

// Values of a small type in memory, and as int64.
struct Conversion {
  DType dtype;
  Slot small, wide;
  int64_t n;

  void widen(const Frame& f) const {
    visit_small_integer(dtype, [&](auto zero) {
      const auto* from = f.at<decltype(zero)>(small);
      int64_t* to = f.at<int64_t>(wide);
      parallel_for(n, 1,
                   [&](int64_t begin, int64_t end) { std::copy(from + begin, from + end, to + begin); });
    });
  }
  void narrow(const Frame& f, Overflow overflow) const {
    visit_small_integer(dtype, [&](auto zero) {
      using T = decltype(zero);
      constexpr int64_t kLow = std::numeric_limits<T>::min(), kHigh = std::numeric_limits<T>::max();
      const int64_t* from = f.at<int64_t>(wide);
      T* to = f.at<T>(small);
      parallel_for(n, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          to[i] = static_cast<T>(overflow == Overflow::kWraps ? from[i] : std::clamp(from[i], kLow, kHigh));
      });
    });
  }
};

// The context in which the kernel is made.
class WideContext : public KernelContext {
 public:
  explicit WideContext(KernelContext& c)
      : KernelContext(c.node(), c.opset()), c_(c), inputs_(c.input_count()), outputs_(c.output_count()) {}

  DType dtype(size_t i) const override { return seen_as(c_.dtype(i)); }
  const Shape& shape(size_t i) const override { return c_.shape(i); }
  const Tensor* constant(size_t i) const override { return c_.constant(i); }
  DType out_dtype(size_t o) const override { return seen_as(c_.out_dtype(o)); }
  const Shape& out_shape(size_t o) const override { return c_.out_shape(o); }

  Slot in(size_t i) override { return in(i, nullptr); }
  LayoutPtr in_layout(size_t i) const override {
    return is_small_integer(c_.dtype(i)) ? nullptr : c_.in_layout(i);
  }
  Slot in(size_t i, const LayoutPtr& wanted) override {
    if (!has_input(i) || !is_small_integer(c_.dtype(i))) return c_.in(i, wanted);
    if (!inputs_[i].defined()) {
      before_.push_back({c_.dtype(i), c_.in(i), wide_scratch(size(i)), size(i)});
      inputs_[i] = before_.back().wide;
    }
    return inputs_[i];
  }
  Slot out(size_t o, const LayoutPtr& layout) override { return out_inplace(o, {}, layout); }
  Slot out_inplace(size_t o, std::initializer_list<size_t> candidates, const LayoutPtr& layout) override {
    if (!is_small_integer(c_.out_dtype(o))) return c_.out_inplace(o, candidates, layout);
    if (outputs_[o].defined()) return outputs_[o];
    const Slot small = c_.out(o);
    if (!small.defined()) return small;
    after_.push_back({c_.out_dtype(o), small, wide_scratch(out_size(o)), out_size(o)});
    return outputs_[o] = after_.back().wide;
  }
  void alias(size_t o, size_t i) override { c_.alias(o, i); }
  Slot scratch(size_t bytes) override { return c_.scratch(bytes); }
  Slot fixed(Tensor value) override { return c_.fixed(std::move(value)); }
  Slot state(size_t i) override { return c_.state(i); }
  bool same_storage(size_t i, size_t target) const override { return c_.same_storage(i, target); }

  Precision precision() const override { return c_.precision(); }
  bool wants_bf16(size_t o) const override { return c_.wants_bf16(o); }
  bool used_only_by(size_t o, std::string_view op_type) const override { return c_.used_only_by(o, op_type); }
  LayoutPtr layout_for_readers(size_t o) const override { return c_.layout_for_readers(o); }
  uint64_t stream() const override { return c_.stream(); }

  // `kernel`, and the conversions around it.
  Kernel around(Kernel kernel, Overflow overflow) {
    if (!kernel || (before_.empty() && after_.empty())) return kernel;
    return [before = std::move(before_), after = std::move(after_), kernel = std::move(kernel),
            overflow](const Frame& f) {
      for (const Conversion& conversion : before) conversion.widen(f);
      kernel(f);
      for (const Conversion& conversion : after) conversion.narrow(f, overflow);
    };
  }

 private:
  Slot wide_scratch(int64_t n) { return c_.scratch(static_cast<size_t>(n) * sizeof(int64_t)); }

  KernelContext& c_;
  std::vector<Slot> inputs_, outputs_;  // in int64
  std::vector<Conversion> before_, after_;
};

}  // namespace

Kernel with_wide_integers(KernelContext& c, const std::function<Kernel(KernelContext&)>& make,
                          Overflow overflow) {
  WideContext wide(c);
  return wide.around(make(wide), overflow);
}

}  // namespace ortrain
