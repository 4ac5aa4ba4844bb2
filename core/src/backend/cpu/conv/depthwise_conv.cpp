#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/depthwise_conv.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>

#include "backend/cpu/conv/depthwise_conv.h"
#include "backend/cpu/conv/padded_line.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "backend/cpu/tuning.h"
#include "runtime/threads.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_DEPTHWISE_CONV_TYPES
#define ORTRAIN_DEPTHWISE_CONV_TYPES
namespace ortrain {

// `sums` and `products` read up to four vectors after the n-th element; `sums` also writes them.
struct DepthwiseFunctions {
  // y[i] = start + sum over t of w[taps[t]] x[i + shifts[t]]
  void (*sums)(int64_t n, const std::vector<int64_t>& taps, const std::vector<int64_t>& shifts,
               const float* w, float start, const float* x, float* y);
  // Copies lines that are `from_step` and `to_step` elements apart.
  void (*copy)(int64_t lines, int64_t width, const float* from, int64_t from_step, float* to,
               int64_t to_step);
  // totals[t] += sum over i of dy[i] x[i + shifts[t]]
  void (*products)(int64_t n, const std::vector<int64_t>& shifts, const float* dy, const float* x,
                   double* totals);
};

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

void Sums(int64_t n, const std::vector<int64_t>& taps, const std::vector<int64_t>& shifts, const float* w,
          float start, const float* x, float* y) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), count = static_cast<int64_t>(taps.size());
  for (int64_t i = 0; i < n; i += 4 * lanes) {
    auto a = hn::Set(d, start), b = a, c = a, e = a;
    for (int64_t t = 0; t < count; ++t) {
      const auto weight = hn::Set(d, w[taps[t]]);
      const float* from = x + i + shifts[t];
      a = hn::MulAdd(weight, hn::LoadU(d, from), a);
      b = hn::MulAdd(weight, hn::LoadU(d, from + lanes), b);
      c = hn::MulAdd(weight, hn::LoadU(d, from + 2 * lanes), c);
      e = hn::MulAdd(weight, hn::LoadU(d, from + 3 * lanes), e);
    }
    hn::StoreU(a, d, y + i);
    hn::StoreU(b, d, y + i + lanes);
    hn::StoreU(c, d, y + i + 2 * lanes);
    hn::StoreU(e, d, y + i + 3 * lanes);
  }
}

void Products(int64_t n, const std::vector<int64_t>& shifts, const float* dy, const float* x,
              double* totals) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), count = static_cast<int64_t>(shifts.size());
  for (int64_t t = 0; t < count; t += 3) {
    // If fewer than three are left, the last one is computed again and the copies are ignored.
    const float* from[] = {x + shifts[t], x + shifts[HWY_MIN(t + 1, count - 1)],
                           x + shifts[HWY_MIN(t + 2, count - 1)]};
    auto a = hn::Zero(d), b = a, c = a, a2 = a, b2 = a, c2 = a;
    for (int64_t i = 0; i < n; i += 2 * lanes) {
      const auto v = hn::LoadU(d, dy + i), v2 = hn::LoadU(d, dy + i + lanes);
      a = hn::MulAdd(v, hn::LoadU(d, from[0] + i), a);
      b = hn::MulAdd(v, hn::LoadU(d, from[1] + i), b);
      c = hn::MulAdd(v, hn::LoadU(d, from[2] + i), c);
      a2 = hn::MulAdd(v2, hn::LoadU(d, from[0] + i + lanes), a2);
      b2 = hn::MulAdd(v2, hn::LoadU(d, from[1] + i + lanes), b2);
      c2 = hn::MulAdd(v2, hn::LoadU(d, from[2] + i + lanes), c2);
    }
    totals[t] += hn::GetLane(hn::SumOfLanes(d, hn::Add(a, a2)));
    if (t + 1 < count) totals[t + 1] += hn::GetLane(hn::SumOfLanes(d, hn::Add(b, b2)));
    if (t + 2 < count) totals[t + 2] += hn::GetLane(hn::SumOfLanes(d, hn::Add(c, c2)));
  }
}

void Copy(int64_t lines, int64_t width, const float* from, int64_t from_step, float* to, int64_t to_step) {
  const hn::ScalableTag<float> d;
  for (; lines > 0; --lines, from += from_step, to += to_step)
    ForVectors<float>(width, [&](int64_t i, int64_t count)
                                 HWY_ATTR { StoreUpTo(LoadUpTo(d, from + i, count), d, to + i, count); });
}

DepthwiseFunctions FindDepthwise() { return {Sums, Copy, Products}; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

DepthwiseFunctions functions() { return ORTRAIN_DISPATCH(FindDepthwise)(); }

constexpr int64_t kSlack = 64;  // floats in four of the largest vectors

constexpr int64_t kLongest = 1 << 20;  // elements along an axis; then no size overflows

int64_t rounded(int64_t floats) { return (floats + 15) / 16 * 16; }  // to cache lines

bool is_depthwise(const ConvSizes& s) {
  const WindowAxis& d = s.window[0];
  if (s.groups != s.channels || s.groups != s.filters || s.batch * s.filters == 0) return false;
  if (d.input != 1 || d.output != 1 || d.kernel != 1 || d.before != 0) return false;
  return std::all_of(s.window.begin(), s.window.end(), [](const WindowAxis& a) {
    return a.stride <= 8 && a.before >= 0 && a.before + a.input <= kLongest && a.span() <= kLongest &&
           a.input > 0 && a.output > 0;
  });
}

}  // namespace

DepthwiseConvolution::DepthwiseConvolution(const ConvSizes& sizes)
    : sizes_(sizes), h_(sizes_.window[1]), w_(sizes_.window[2]), suits_(is_depthwise(sizes)) {
  if (!suits_) return;
  const int64_t taps = sizes_.column_rows(), parts = h_.stride * w_.stride;
  const int64_t work = sizes_.batch * sizes_.filters * sizes_.output_points() * taps;
  workers_ = std::clamp<int64_t>(work / tuning::kMultiplications / kGrain, 1, max_threads());
  above_ = (h_.kernel - 1) * h_.dilation / h_.stride;
  left_ = (w_.kernel - 1) * w_.dilation / w_.stride;
  length_ = std::max(w_.output + left_, (w_.before + w_.input - 1) / w_.stride + 1);
  const int64_t most = std::max(h_.output, (h_.before + h_.input - 1) / h_.stride + 1);
  const int64_t fitting = tuning::kDepthwiseElements / (parts * length_) - above_;
  rows_ = std::clamp(fitting, std::min(tuning::kDepthwiseLines, most), most);
  whole_ = rows_ == most;
  const int64_t band = (rows_ + above_) * length_;
  lines_size_ = rounded(parts * band + left_ + kSlack);
  sums_size_ = rounded(rows_ * length_ + kSlack);
  totals_size_ = rounded(2 * taps);
  suits_ = lines_size_ + sums_size_ + totals_size_ <= tuning::kDepthwiseLargest;
  phases_.resize(static_cast<size_t>(parts));
  for (int64_t i = 0; i < taps; ++i) {
    const int64_t row = i / w_.kernel * h_.dilation, column = i % w_.kernel * w_.dilation;
    const int64_t part = row % h_.stride * w_.stride + column % w_.stride;
    const int64_t back = row / h_.stride * length_ + column / w_.stride;
    window_.taps.push_back(i);
    window_.shifts.push_back(part * band + back);
    phases_[static_cast<size_t>(part)].taps.push_back(i);
    phases_[static_cast<size_t>(part)].shifts.push_back(left_ + above_ * length_ - back);
  }
}

DepthwiseConvolution::Work DepthwiseConvolution::work_of(float* work, int64_t worker) const {
  float* lines = work + worker * (lines_size_ + sums_size_ + totals_size_);
  return {lines, lines + lines_size_, reinterpret_cast<double*>(lines + lines_size_ + sums_size_)};
}

template <typename F>
void DepthwiseConvolution::share(int64_t items, float* work, F&& f) const {
  share_among(workers_, items, [&](int64_t worker, int64_t begin, int64_t end) {
    const Work own = work_of(work, worker);
    std::fill_n(own.lines, lines_size_ + sums_size_, 0.0f);  // the padding, and the slack after the lines
    for (int64_t i = begin; i < end; ++i) f(own, i);
  });
}

void DepthwiseConvolution::write_band(const float* x, int64_t first, float* lines) const {
  const int64_t depth = rows_ + above_, band = depth * length_;
  if (whole_ && w_.stride == 1) {
    for (int64_t ih = 0; ih < std::min(h_.stride, h_.input); ++ih) {
      const int64_t row = ih + h_.before, count = (h_.input - ih + h_.stride - 1) / h_.stride;
      float* to = lines + row % h_.stride * band + row / h_.stride * length_ + w_.before;
      functions().copy(count, w_.input, x + ih * w_.input, h_.stride * w_.input, to, length_);
    }
    return;
  }
  for (int64_t row = 0; row < depth * h_.stride; ++row) {
    const int64_t ih = first * h_.stride + row - h_.before;
    const float* from = ih >= 0 && ih < h_.input ? x + ih * w_.input : nullptr;
    for (int64_t phase = 0; phase < w_.stride; ++phase) {
      const int64_t part = row % h_.stride * w_.stride + phase;
      write_padded_line(w_, phase, from, length_, lines + part * band + row / h_.stride * length_);
    }
  }
}

void DepthwiseConvolution::write_gradient(const float* dy, int64_t first, int64_t count, float* lines) const {
  const int64_t begin = std::max<int64_t>(first, 0), end = std::clamp(h_.output, begin, first + count);
  if (!whole_) {  // the previous band left its lines here
    std::fill_n(lines, (begin - first) * length_, 0.0f);
    std::fill(lines + (end - first) * length_, lines + count * length_, 0.0f);
  }
  functions().copy(end - begin, w_.output, dy + begin * w_.output, w_.output,
                   lines + (begin - first) * length_, length_);
}

void DepthwiseConvolution::read_phase(const float* sums, int64_t phase, int64_t first, int64_t count,
                                      float* dx) const {
  const int64_t stride = w_.stride;
  if (stride == 1 && h_.stride == 1) {
    const int64_t begin = std::max(first, h_.before), end = std::min(first + count, h_.before + h_.input);
    if (begin >= end) return;
    functions().copy(end - begin, w_.input, sums + (begin - first) * length_ + w_.before, length_,
                     dx + (begin - h_.before) * w_.input, w_.input);
    return;
  }
  // Element j of a line is element j * stride + shift of dX.
  const int64_t shift = phase % stride - w_.before, from = shift < 0 ? (-shift + stride - 1) / stride : 0;
  for (int64_t line = first; line < first + count; ++line, sums += length_) {
    const int64_t row = line * h_.stride + phase / stride - h_.before;
    if (row < 0 || row >= h_.input) continue;
    float* to = dx + row * w_.input;
    for (int64_t j = from; j * stride + shift < w_.input; ++j) to[j * stride + shift] = sums[j];
  }
}

void DepthwiseConvolution::forward(const float* x, const float* w, const float* bias, const float* addend,
                                   const Activation& activation, float* y, float* work) const {
  const DepthwiseFunctions f = functions();
  const int64_t bands = (h_.output + rows_ - 1) / rows_, width = w_.output;
  share(sizes_.batch * sizes_.filters * bands, work, [&](const Work& own, int64_t item) {
    const int64_t plane = item / bands, channel = plane % sizes_.filters, first = item % bands * rows_;
    const int64_t count = std::min(rows_, h_.output - first);
    write_band(x + plane * sizes_.input_points(), first, own.lines);
    f.sums(count * length_, window_.taps, window_.shifts, w + channel * sizes_.column_rows(),
           bias ? bias[channel] : 0, own.lines, own.sums);
    const int64_t at = plane * sizes_.output_points() + first * width, size = count * width;
    f.copy(count, width, own.sums, length_, y + at, width);
    for (int64_t i = at; addend && i < at + size; ++i) y[i] += addend[i];
    activation.apply(size, y + at);
  });
}

void DepthwiseConvolution::backward_data(const float* dy, const float* w, float* dx, float* work) const {
  const DepthwiseFunctions f = functions();
  const int64_t lines = (h_.before + h_.input - 1) / h_.stride + 1, bands = (lines + rows_ - 1) / rows_;
  share(sizes_.batch * sizes_.filters * bands, work, [&](const Work& own, int64_t item) {
    const int64_t plane = item / bands, channel = plane % sizes_.filters, first = item % bands * rows_;
    const int64_t count = std::min(rows_, lines - first);
    // A window that begins before the first element of a line reads the zeros after the previous line.
    write_gradient(dy + plane * sizes_.output_points(), first - above_, count + above_, own.lines + left_);
    for (size_t phase = 0; phase < phases_.size(); ++phase) {
      f.sums(count * length_, phases_[phase].taps, phases_[phase].shifts, w + channel * sizes_.column_rows(),
             0, own.lines, own.sums);
      read_phase(own.sums, static_cast<int64_t>(phase), first, count, dx + plane * sizes_.input_points());
    }
  });
}

void DepthwiseConvolution::backward_weights(const float* dy, const float* x, float* dw, float* work) const {
  const DepthwiseFunctions f = functions();
  const int64_t taps = sizes_.column_rows();
  share(sizes_.filters, work, [&](const Work& own, int64_t channel) {
    std::fill_n(own.totals, taps, 0.0);
    for (int64_t n = 0; n < sizes_.batch; ++n) {
      const int64_t plane = n * sizes_.filters + channel;
      for (int64_t first = 0; first < h_.output; first += rows_) {
        const int64_t count = std::min(rows_, h_.output - first);
        write_band(x + plane * sizes_.input_points(), first, own.lines);
        write_gradient(dy + plane * sizes_.output_points(), first, count, own.sums);
        std::fill(own.sums + count * length_, own.sums + sums_size_, 0.0f);
        f.products(count * length_, window_.shifts, own.sums, own.lines, own.totals);
      }
    }
    for (int64_t t = 0; t < taps; ++t) {
      const auto total = static_cast<float>(own.totals[t]);
      // The products include zeros of the padding of dY times X: NaN if X is infinite there.
      dw[channel * taps + t] = std::isfinite(total) ? total : weight_gradient(dy, x, channel, t);
    }
  });
}

float DepthwiseConvolution::weight_gradient(const float* dy, const float* x, int64_t channel,
                                            int64_t tap) const {
  double total = 0;
  for (int64_t n = 0; n < sizes_.batch; ++n) {
    const int64_t plane = n * sizes_.filters + channel;
    for (int64_t oh = 0; oh < h_.output; ++oh)
      for (int64_t ow = 0; ow < w_.output; ++ow) {
        const int64_t ih = oh * h_.stride + tap / w_.kernel * h_.dilation - h_.before;
        const int64_t iw = ow * w_.stride + tap % w_.kernel * w_.dilation - w_.before;
        if (ih < 0 || ih >= h_.input || iw < 0 || iw >= w_.input) continue;
        total += static_cast<double>(dy[plane * sizes_.output_points() + oh * w_.output + ow]) *
                 x[plane * sizes_.input_points() + ih * w_.input + iw];
      }
  }
  return static_cast<float>(total);
}

}  // namespace ortrain
#endif
