// DFT and DFTGrad (com.microsoft): the discrete Fourier transform along an axis. The last axis holds the real
// and the imaginary part, or only the real part.
//
//     y[k] = Σ_n e^(-2πi kn/N) x[n],  inverse  x[n] = 1/N Σ_k e^(2πi kn/N) y[k]
//
// where the signal is truncated or zero-padded to N = dft_length. If one-sided, the forward transform returns
// the first N/2 + 1 frequencies; the inverse takes these frequencies and returns a real signal.
//
// The transform is linear, and the gradient is its adjoint: the unscaled transform in the other direction,
// zero-padded where the signal was truncated. In the one-sided inverse each frequency also represents its
// conjugate, except for the first and, if N is even, the last frequency, which are real: the gradients of all
// other frequencies count twice.
#include <algorithm>
#include <memory>

#include "backend/cpu/fft.h"
#include "op/floating_kernel.h"
#include "op/opset.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

struct Transform {
  bool inverse, onesided;
  int64_t n = 1;                      // dft_length
  int64_t outer = 1, inner = 1;       // lines: outer x inner
  int64_t signal = 1, parts = 1;      // dimensions of the input along the axis and of its last axis
  int64_t result = 1, out_parts = 2;  // as `signal` and `parts`, of the output
  int64_t shares = 1;                 // parts of the lines, each with its own memory
  size_t axis = 0;

  // For an input of shape x; dft_length is input `length_at`, and the axis is the input after dft_length.
  Transform(const NodeContext& c, const Shape& x, size_t length_at)
      : inverse(c.node().int_or("inverse", 0) != 0), onesided(c.node().int_or("onesided", 0) != 0) {
    const int64_t rank = static_cast<int64_t>(x.size());
    c.expect(rank >= 2 && (x.back() == 1 || x.back() == 2),
             "its input must have shape [..., 1] (real) or [..., 2] (complex), found ", to_string(x));
    int64_t along = c.node().int_or("axis", c.opset() < since::kDftAxisAsInput ? 1 : -2);
    if (c.has_input(length_at + 1)) along = constant_int(c, length_at + 1);
    axis = static_cast<size_t>(normalize_axis(along, rank, c.node().label()));
    c.expect(axis + 1 < x.size(), "its axis must not be the last axis of its input ", to_string(x),
             ", which holds the real and imaginary parts; found axis ", along);
    signal = x[axis];
    parts = x.back();
    n = inverse && onesided ? 2 * (signal - 1) : signal;
    if (c.has_input(length_at)) n = constant_int(c, length_at);
    c.expect(n >= 1, "dft_length must be positive, found ", n);
    c.expect(!(inverse && onesided) || parts == 2,
             "the one-sided inverse takes complex values of shape [..., 2], found ", to_string(x));
    outer = element_count(x, 0, axis);
    inner = element_count(x, axis + 1, x.size() - 1);
    result = onesided && !inverse ? n / 2 + 1 : n;
    out_parts = inverse && onesided ? 1 : 2;
    shares = std::min<int64_t>(lines(), max_threads());
  }

  Shape output(Shape x) const {
    x[axis] = result;
    x.back() = out_parts;
    return x;
  }

  int64_t lines() const { return outer * inner; }
  // The number of frequencies that the one-sided inverse reads, and whether frequency k is its own conjugate.
  int64_t frequencies() const { return n / 2 + 1; }
  bool is_real(int64_t k) const { return k == 0 || 2 * k == n; }

  template <typename T>
  void forward(const Fft& fft, const T* x, T* y, Fft::Complex* memory) const {
    each_line(fft, memory, [&](int64_t o, int64_t i, Fft::Complex* line, Fft::Complex* work) {
      const int64_t given = std::min(signal, inverse && onesided ? frequencies() : n);
      std::fill(line, line + n, Fft::Complex(0));
      for (int64_t k = 0; k < given; ++k) {
        const T* from = x + ((o * signal + k) * inner + i) * parts;
        line[k] = {static_cast<double>(from[0]), parts == 2 ? static_cast<double>(from[1]) : 0};
        if (!inverse || !onesided) continue;
        if (is_real(k))
          line[k] = line[k].real();
        else
          line[n - k] = std::conj(line[k]);
      }
      fft.run(line, inverse, work);
      const double scale = inverse ? 1 / static_cast<double>(n) : 1;
      for (int64_t k = 0; k < result; ++k) {
        T* to = y + ((o * result + k) * inner + i) * out_parts;
        to[0] = static_cast<T>(line[k].real() * scale);
        if (out_parts == 2) to[1] = static_cast<T>(line[k].imag() * scale);
      }
    });
  }

  template <typename T>
  void backward(const Fft& fft, const T* dy, T* dx, Fft::Complex* memory) const {
    each_line(fft, memory, [&](int64_t o, int64_t i, Fft::Complex* line, Fft::Complex* work) {
      std::fill(line, line + n, Fft::Complex(0));
      for (int64_t k = 0; k < result; ++k) {
        const T* from = dy + ((o * result + k) * inner + i) * out_parts;
        line[k] = {static_cast<double>(from[0]), out_parts == 2 ? static_cast<double>(from[1]) : 0};
      }
      fft.run(line, !inverse, work);
      const double scale = inverse ? 1 / static_cast<double>(n) : 1;
      for (int64_t k = 0; k < signal; ++k) {
        T* to = dx + ((o * signal + k) * inner + i) * parts;
        Fft::Complex value = k < n ? line[k] * scale : Fft::Complex(0);
        if (inverse && onesided) {
          if (k >= frequencies()) value = 0;
          value = is_real(k) ? value.real() : 2.0 * value;
        }
        to[0] = static_cast<T>(value.real());
        if (parts == 2) to[1] = static_cast<T>(value.imag());
      }
    });
  }

 private:
  // Calls f(outer index, inner index, memory of n, working memory) for every line.
  template <typename F>
  void each_line(const Fft& fft, Fft::Complex* memory, F&& f) const {
    parallel_for(shares, (lines() / std::max<int64_t>(shares, 1) + 1) * n * 16, [&](int64_t b, int64_t e) {
      for (int64_t share = b; share < e; ++share) {
        Fft::Complex* line = memory + share * (n + fft.work());
        for (int64_t l = lines() * share / shares; l < lines() * (share + 1) / shares; ++l)
          f(l / inner, l % inner, line, line + n);
      }
    });
  }
};

void shape(ShapeContext& c) {
  const Transform t(c, c.shape(0), 1);
  c.output(0, c.dtype(0), t.output(c.shape(0)));
}

// DFTGrad(dY, shape of X, dft_length?, axis?)
void grad_shape(ShapeContext& c) {
  const Shape x = constant_ints(c, 1);
  const Transform t(c, x, 2);
  c.expect(c.shape(0) == t.output(x), "dY must have shape ", to_string(t.output(x)), ", found ",
           to_string(c.shape(0)));
  c.output(0, c.dtype(0), x);
}

template <bool kBackward>
Kernel kernel(KernelContext& c) {
  const Transform t(c, kBackward ? c.out_shape(0) : c.shape(0), kBackward ? 2 : 1);
  return floating_kernel(c, 0, [&](auto zero) {
    using T = decltype(zero);
    const Slot from = c.in(0), to = c.out(0);  // requested first: rejects sizes beyond the memory
    const auto fft = std::make_shared<const Fft>(t.n);
    const Slot memory = c.scratch(static_cast<size_t>(t.shares * (t.n + fft->work())) * sizeof(Fft::Complex));
    return Kernel([=](const Frame& f) {
      if constexpr (kBackward)
        t.backward(*fft, f.at<const T>(from), f.at<T>(to), f.at<Fft::Complex>(memory));
      else
        t.forward(*fft, f.at<const T>(from), f.at<T>(to), f.at<Fft::Complex>(memory));
    });
  });
}

void gradient(GradientContext& g) {
  Attributes attributes = g.node().attributes;
  if (!g.has_x(2)) attributes.emplace("axis", int64_t{g.opset() < since::kDftAxisAsInput ? 1 : -2});
  Names inputs = {g.dy(0), shape_of(g, g.x(0))};
  for (size_t i = 1; i < g.node().inputs.size(); ++i) inputs.push_back(g.x(i));
  g.set(0, g("DFTGrad", inputs, attributes, kMicrosoft));
}

// The adjoint of the adjoint.
void grad_gradient(GradientContext& g) {
  Names inputs = {g.dy(0)};
  for (size_t i = 2; i < g.node().inputs.size(); ++i) inputs.push_back(g.x(i));
  g.set(0, g("DFT", inputs, g.node().attributes));
}

ORTRAIN_OPERATOR({.type = "DFT",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel<false>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "DFTGrad",
                  .signature = "dY, shape, dft_length?, axis? -> dX",
                  .rules = {.shape = grad_shape, .gradient = grad_gradient},
                  .kernels = {.cpu = kernel<true>}});

// With operators of ONNX: DFT in the other direction, times a factor that corrects the scale.
class AdjointForm {
 public:
  explicit AdjointForm(DecompositionContext& e)
      : e_(e), rank_(need_rank(e, e.x(0))), shape_(e.x(1)), inverse_(e.node().int_or("inverse", 0) != 0) {
    axis_ = e.node().int_or("axis", -2);
    if (e.has_x(3)) {
      const Tensor* given = e.constant_value(e.x(3));
      if (!given) e.reject("the axis is not a constant");
      axis_ = given->to_int64().at(0);
    }
    if (axis_ < 0) axis_ += rank_;
    signal_ = e("Gather", {shape_, e.constant(Tensor::scalar(axis_))});
    length_ = e.has_x(2) ? cast_like(e, e.x(2), shape_) : signal_;
    if (!e.has_x(2) && onesided() && inverse_)
      length_ = e("Mul", {e("Sub", {signal_, integer(1)}), integer(2)});
  }

  void write() {
    const Name count = cast_like(e_, length_, e_.x(0));
    Name dx;
    if (inverse_) {
      dx = e_("Div", {transform(0, onesided()), count});
      if (onesided()) dx = e_("Mul", {dx, one_sided_weights(dx)});
    } else {
      dx = e_("Mul", {transform(1, false), count});
    }
    if (e_.has_x(2)) dx = fitted(dx);
    const Name parts = e_("Gather", {shape_, e_.int64s({rank_ - 1})});
    e_.set(0, e_("Slice", {dx, e_.int64s({0}), parts, e_.int64s({rank_ - 1})}));
  }

 private:
  bool onesided() const { return e_.node().int_or("onesided", 0) != 0; }
  Name integer(int64_t value) const { return e_.constant(Tensor::scalar(value)); }

  Name transform(int64_t inverse, bool onesided) const {
    Names inputs = {e_.x(0), length_};
    Attributes attributes = {{"inverse", inverse}, {"onesided", static_cast<int64_t>(onesided)}};
    if (e_.opset() < since::kDftAxisAsInput)
      attributes.emplace("axis", axis_);
    else
      inputs.push_back(integer(axis_));
    return e_("DFT", inputs, attributes);
  }

  // 2 for each frequency and part, except where the frequency is its own conjugate: 1 and 0.
  Name one_sided_weights(Name like) const {
    const Name last = e_("Div", {length_, integer(2)}),
               places = e_("Range", {integer(0), e_("Add", {last, integer(1)}), integer(1)});
    const Name real = e_(
        "Or", {e_("Equal", {places, integer(0)}), e_("Equal", {e_("Mul", {places, integer(2)}), length_})});
    const auto weights = [&](double own_conjugate) {
      return e_.unsqueeze(e_("Where", {real, e_.scalar_like(like, own_conjugate), e_.scalar_like(like, 2)}),
                          {1});
    };
    const Name both = e_("Concat", {weights(1), weights(0)}, {{"axis", int64_t{1}}});
    std::vector<int64_t> between;  // axes between the axis of the transform and the last
    for (int64_t i = axis_ + 1; i < rank_ - 1; ++i) between.push_back(i - axis_);
    return between.empty() ? both : e_.unsqueeze(both, between);
  }

  // Truncated, or padded with zeros, to the length of the signal.
  Name fitted(Name value) const {
    const Name along = e_.int64s({axis_}), wanted = e_("Reshape", {signal_, e_.int64s({1})});
    const Name cut = e_("Slice", {value, e_.int64s({0}), wanted, along});
    const Name found = e_("Gather", {e_("Shape", {cut}), along});
    const Name front = e_.int64s(std::vector<int64_t>(static_cast<size_t>(rank_ + axis_), 0)),
               back = e_.int64s(std::vector<int64_t>(static_cast<size_t>(rank_ - 1 - axis_), 0));
    const Name pads = e_("Concat", {front, e_("Sub", {wanted, found}), back}, {{"axis", int64_t{0}}});
    return e_("Pad", {cut, pads});
  }

  DecompositionContext& e_;
  int64_t rank_, axis_;
  Name shape_, signal_, length_;  // shape of X; length of X along the axis; length of the transform
  bool inverse_;
};

void grad_form(DecompositionContext& e) { AdjointForm(e).write(); }
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "DFTGrad", {cold<grad_form>});

}  // namespace
}  // namespace ortrain
