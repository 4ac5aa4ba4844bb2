// STFT and STFTGrad (com.microsoft): the Fourier transforms of windowed frames of a signal.
//
//     Y[b, t, k] = Σ_n window[n] x[b, t step + n] e^(-2πi kn/N)        N = frame_length
//
// of a signal [B, L], [B, L, 1] or [B, L, 2] (real and imaginary part), for t < 1 + (L - N) / step; one-sided
// for k <= N/2. With u = Σ_k dY[b, t, k] e^(2πi kn/N), the adjoint of the transform,
//
//     dx[b, t step + n] += window[n] u[n]        dwindow[n] += Re(conj(x[b, t step + n]) u[n])
#include <algorithm>
#include <memory>
#include <numbers>

#include "backend/cpu/fft.h"
#include "op/floating_kernel.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

using Complex = Fft::Complex;

struct Frames {
  int64_t batch, length, parts, step, n, window, frames, frequencies;

  // signal, frame_step, window and frame_length are the four inputs from `first` on.
  Frames(const NodeContext& c, size_t first) {
    const Shape& x = c.shape(first);
    c.expect(x.size() == 2 || (x.size() == 3 && (x[2] == 1 || x[2] == 2)),
             "the signal must have shape [B, L], [B, L, 1] or [B, L, 2], found ", to_string(x));
    batch = x[0];
    length = x[1];
    parts = x.size() == 2 ? 1 : x[2];
    step = constant_int(c, first + 1);
    c.expect(step >= 1, "frame_step must be positive, found ", step);
    n = length;
    if (c.has_input(first + 2)) {
      c.expect(c.rank(first + 2) == 1 && c.dtype(first + 2) == c.dtype(first),
               "the window must be a vector of ", to_string(c.dtype(first)), ", found ",
               to_string(c.dtype(first + 2)), to_string(c.shape(first + 2)));
      n = c.size(first + 2);
    }
    window = n;
    if (c.has_input(first + 3)) n = constant_int(c, first + 3);
    if (!c.has_input(first + 2)) window = n;
    c.expect(n >= 1 && n <= length, "a frame of ", counted(n, "element"),
             " does not fit in the signal of length ", length);
    c.expect(window <= n, "the window has ", counted(window, "element"), ", more than a frame of ", n);
    frames = 1 + (length - n) / step;
    frequencies = c.node().int_or("onesided", 1) != 0 ? n / 2 + 1 : n;
  }

  Shape output() const { return {batch, frames, frequencies, 2}; }
  int64_t shares(int64_t items) const { return std::min<int64_t>(items, max_threads()); }

  // Calls f(item, memory of n, working memory, share) for each of `items`.
  template <typename F>
  void each(int64_t items, int64_t cost, const Fft& fft, Complex* memory, F&& f) const {
    const int64_t count = shares(items);
    parallel_for(count, (items / std::max<int64_t>(count, 1) + 1) * cost, [&](int64_t b, int64_t e) {
      for (int64_t share = b; share < e; ++share) {
        Complex* line = memory + share * (n + fft.work());
        for (int64_t item = items * share / count; item < items * (share + 1) / count; ++item)
          f(item, line, line + n, share);
      }
    });
  }
};

void shape(ShapeContext& c) {
  c.expect(c.has_input(1), "frame_step is missing");
  c.output(0, c.dtype(0), Frames(c, 0).output());
}

Kernel kernel(KernelContext& c) {
  const Frames s(c, 0);
  return floating_kernel(c, 0, [&](auto zero) {
    using T = decltype(zero);
    const auto fft = std::make_shared<const Fft>(s.n);
    const Slot x = c.in(0), window = c.has_input(2) ? c.in(2) : Slot{}, y = c.out(0);
    const int64_t items = s.batch * s.frames;
    const Slot memory =
        c.scratch(static_cast<size_t>(s.shares(items) * (s.n + fft->work())) * sizeof(Complex));
    return Kernel([=](const Frame& f) {
      const T *signal = f.at<const T>(x), *weights = f.at_or_null<const T>(window);
      T* to = f.at<T>(y);
      s.each(items, s.n * 16, *fft, f.at<Complex>(memory),
             [&](int64_t item, Complex* line, Complex* work, int64_t) {
               const T* from = signal + (item / s.frames * s.length + item % s.frames * s.step) * s.parts;
               for (int64_t i = 0; i < s.n; ++i) {
                 const double w = i >= s.window ? 0 : weights ? static_cast<double>(weights[i]) : 1;
                 line[i] = {w * static_cast<double>(from[i * s.parts]),
                            s.parts == 2 ? w * static_cast<double>(from[2 * i + 1]) : 0};
               }
               fft->run(line, false, work);
               for (int64_t k = 0; k < s.frequencies; ++k) {
                 to[2 * (item * s.frequencies + k)] = static_cast<T>(line[k].real());
                 to[2 * (item * s.frequencies + k) + 1] = static_cast<T>(line[k].imag());
               }
             });
    });
  });
}

// STFTGrad(dY, signal, frame_step, window?, frame_length?) → dsignal, dwindow
void grad_shape(ShapeContext& c) {
  const Frames s(c, 1);
  c.expect(c.shape(0) == s.output() && c.dtype(0) == c.dtype(1), "dY must be ", to_string(c.dtype(1)),
           to_string(s.output()), ", found ", to_string(c.dtype(0)), to_string(c.shape(0)));
  c.output(0, c.dtype(1), c.shape(1));
  if (c.has_output(1)) c.output(1, c.dtype(1), c.shape(3));
}

// Frames overlap, so a thread processes whole signals; the gradient of the window is summed per thread first.
Kernel grad_kernel(KernelContext& c) {
  const Frames s(c, 1);
  return floating_kernel(c, 0, [&](auto zero) {
    using T = decltype(zero);
    const auto fft = std::make_shared<const Fft>(s.n);
    const Slot dy = c.in(0), x = c.in(1), window = c.has_input(3) ? c.in(3) : Slot{};
    const Slot dx = c.has_output(0) ? c.out(0) : Slot{}, dw = c.has_output(1) ? c.out(1) : Slot{};
    const int64_t shares = s.shares(s.batch);
    const Slot memory = c.scratch(static_cast<size_t>(shares * (s.n + fft->work())) * sizeof(Complex));
    const Slot sums = c.scratch(static_cast<size_t>(shares * s.window) * sizeof(double));
    return Kernel([=](const Frame& f) {
      const T *signal = f.at<const T>(x), *weights = f.at_or_null<const T>(window);
      T* to = f.at_or_null<T>(dx);
      double* parts = f.at<double>(sums);
      std::fill(parts, parts + shares * s.window, 0.0);
      s.each(s.batch, s.frames * s.n * 16, *fft, f.at<Complex>(memory),
             [&](int64_t image, Complex* line, Complex* work, int64_t share) {
               const int64_t size = s.length * s.parts;
               if (to) std::fill(to + image * size, to + (image + 1) * size, T(0));
               for (int64_t frame = 0; frame < s.frames; ++frame) {
                 const T* from = f.at<const T>(dy) + 2 * (image * s.frames + frame) * s.frequencies;
                 std::fill(line, line + s.n, Complex(0));
                 for (int64_t k = 0; k < s.frequencies; ++k)
                   line[k] = {static_cast<double>(from[2 * k]), static_cast<double>(from[2 * k + 1])};
                 fft->run(line, true, work);
                 const int64_t start = image * size + frame * s.step * s.parts;
                 for (int64_t i = 0; i < s.window; ++i) {
                   const double w = weights ? static_cast<double>(weights[i]) : 1;
                   const int64_t at = start + i * s.parts;
                   if (to) to[at] += static_cast<T>(w * line[i].real());
                   if (to && s.parts == 2) to[at + 1] += static_cast<T>(w * line[i].imag());
                   if (!dw.defined()) continue;
                   double& sum = parts[share * s.window + i];
                   sum += static_cast<double>(signal[at]) * line[i].real();
                   if (s.parts == 2) sum += static_cast<double>(signal[at + 1]) * line[i].imag();
                 }
               }
             });
      if (!dw.defined()) return;
      for (int64_t i = 0; i < s.window; ++i) {
        double sum = 0;
        for (int64_t share = 0; share < shares; ++share) sum += parts[share * s.window + i];
        f.at<T>(dw)[i] = static_cast<T>(sum);
      }
    });
  });
}

void gradient(GradientContext& g) {
  Names inputs = {g.dy(0)};
  for (size_t i = 0; i < g.node().inputs.size(); ++i) inputs.push_back(g.x(i));
  const bool window = g.has_x(2) && g.needs(2);
  const auto d = g.emit("STFTGrad", inputs, window ? 2 : 1, g.node().attributes, kMicrosoft);
  if (g.needs(0)) g.set(0, d[0]);
  if (window) g.set(2, d[1]);
}

// STFT(x, w) is linear in signal and window, and its gradients are the adjoints. Let u and v be the gradients
// of dsignal and dwindow. The gradient of dY is then STFT(u, w) + STFT(x, v); the gradient of the signal is
// dsignal with v in place of w, and the gradient of the window is dwindow with u in place of x.
void grad_gradient(GradientContext& g) {
  const auto with = [&](const std::string& dy, const std::string& signal, const std::string& window) {
    Names inputs = {signal, g.x(2), window};
    if (!dy.empty()) inputs.insert(inputs.begin(), dy);
    if (g.has_x(4)) inputs.push_back(g.x(4));
    while (inputs.back().empty()) inputs.pop_back();
    return inputs;
  };
  const Name window = g.has_x(3) ? g.x(3) : "", u = g.dy(0), v = g.node().outputs.size() > 1 ? g.dy(1) : "";
  const Attributes& attributes = g.node().attributes;
  Names of_dy;
  if (!u.empty()) of_dy.push_back(g("STFT", with("", u, window), attributes));
  if (!v.empty()) of_dy.push_back(g("STFT", with("", g.x(1), v), attributes));
  if (g.needs(0) && !of_dy.empty()) g.set(0, of_dy.size() == 1 ? of_dy[0] : g("Add", of_dy));
  if (g.needs(1) && !v.empty()) g.set(1, g("STFTGrad", with(g.x(0), g.x(1), v), attributes, kMicrosoft));
  if (!window.empty() && g.needs(3) && !u.empty())
    g.set(3, g.emit("STFTGrad", with(g.x(0), u, window), 2, attributes, kMicrosoft)[1]);
}

ORTRAIN_OPERATOR({.type = "STFT",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "STFTGrad",
                  .signature = "dY, signal, frame_step, window?, frame_length? -> dsignal, dwindow?",
                  .rules = {.shape = grad_shape, .gradient = grad_gradient},
                  .kernels = {.cpu = grad_kernel}});

// With operators of ONNX: the transform is a convolution of the signal with windowed waves, so its gradients
// are the gradients of a convolution.
class AdjointForm {
 public:
  explicit AdjointForm(DecompositionContext& e) : e_(e), rank_(need_rank(e, e.x(1))) {
    step_ = number(2, "frame_step");
    const auto signal = e.dims(e.x(1)), window = e.has_x(3) ? e.dims(e.x(3)) : std::nullopt;
    if (rank_ == 3 && !(signal && signal->back().known()))
      e.reject("the last dimension of the signal is not known");
    parts_ = rank_ == 3 ? signal->back().value : 1;
    if (e.has_x(4))
      n_ = number(4, "frame_length");
    else if (window && window->at(0).known())
      n_ = window->at(0).value;
    else if (!e.has_x(3) && signal && signal->at(1).known())
      n_ = signal->at(1).value;
    else
      e.reject("the length of a frame is not known");
    frequencies_ = e.node().int_or("onesided", 1) != 0 ? n_ / 2 + 1 : n_;
    waves_ = cast_like(e, e.constant(waves()), e.x(1));
    // [B, T, K, 2] as [B, 2 K, T]
    dy_ = e("Transpose", {e("Reshape", {e.x(0), e.int64s({0, 0, 2 * frequencies_})})},
            {{"perm", std::vector<int64_t>{0, 2, 1}}});
  }

  void write() {
    if (e_.has_y(0)) e_.set(0, of_signal());
    if (e_.has_y(1)) e_.set(1, of_window());
  }

 private:
  int64_t number(size_t i, const char* what) const {
    const Tensor* given = e_.constant_value(e_.x(i));
    if (!given) e_.reject(what, " is not a constant");
    return given->to_int64().at(0);
  }

  // [2 K, parts of the signal, N]: the factors of each element of a frame in the real and the imaginary part.
  Tensor waves() const {
    Tensor made(DType::kDouble, {2 * frequencies_, parts_, n_});
    double* to = made.data<double>();
    for (int64_t k = 0; k < frequencies_; ++k)
      for (int64_t part = 0; part < 2; ++part)
        for (int64_t p = 0; p < parts_; ++p)
          for (int64_t i = 0; i < n_; ++i) {
            const double angle =
                2 * std::numbers::pi * static_cast<double>(k * i % n_) / static_cast<double>(n_);
            const double sine = part == p ? 0 : part == 0 ? std::sin(angle) : -std::sin(angle);
            *to++ = part == p ? std::cos(angle) : sine;
          }
    return made;
  }

  Name of_signal() const {
    Name weights = waves_;
    if (e_.has_x(3)) {
      const Name length = e_("Shape", {e_.x(3)});
      const Name pads =
          e_("Concat", {e_.int64s({0}), e_("Sub", {e_.int64s({n_}), length})}, {{"axis", int64_t{0}}});
      weights = e_("Mul", {waves_, e_("Pad", {e_.x(3), pads})});
    }
    const Name dx = e_("ConvTranspose", {dy_, weights}, {{"strides", std::vector<int64_t>{step_}}});
    const Name shape = e_("Shape", {e_.x(1)});
    const Name rest =
        e_("Sub", {e_("Gather", {shape, e_.int64s({1})}), e_("Gather", {e_("Shape", {dx}), e_.int64s({2})})});
    const Name padded =
        e_("Pad", {dx, e_("Concat", {e_.int64s({0, 0, 0, 0, 0}), rest}, {{"axis", int64_t{0}}})});
    if (parts_ == 1) return e_("Reshape", {padded, shape});
    return e_("Transpose", {padded}, {{"perm", std::vector<int64_t>{0, 2, 1}}});
  }

  Name of_window() const {
    const Name signal = rank_ == 2 ? e_.unsqueeze(e_.x(1), {0})
                                   : e_("Transpose", {e_.x(1)}, {{"perm", std::vector<int64_t>{2, 0, 1}}});
    const Name filters = e_("Transpose", {dy_}, {{"perm", std::vector<int64_t>{1, 0, 2}}});
    const Name of_weights = e_("Conv", {signal, filters}, {{"dilations", std::vector<int64_t>{step_}}});
    const Name cut = e_("Slice", {of_weights, e_.int64s({0}), e_.int64s({n_}), e_.int64s({2})});
    const Name waves = e_("Transpose", {waves_}, {{"perm", std::vector<int64_t>{1, 0, 2}}});
    const Name sums = e_.reduce_sum(e_("Mul", {cut, waves}), {0, 1}, false);
    return e_("Slice", {sums, e_.int64s({0}), e_("Shape", {e_.x(3)}), e_.int64s({0})});
  }

  DecompositionContext& e_;
  int64_t rank_, step_ = 1, parts_ = 1, n_ = 1, frequencies_ = 1;
  std::string waves_, dy_;
};

void grad_form(DecompositionContext& e) { AdjointForm(e).write(); }
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "STFTGrad", {cold<grad_form>});

}  // namespace
}  // namespace ortrain
