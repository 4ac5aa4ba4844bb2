// Compiled at -O3: convolutions of few channels take 0.9 of the time (CMakeLists.txt).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/direct_conv.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <numeric>

#include "backend/cpu/conv/direct_conv.h"
#include "backend/cpu/conv/padded_line.h"
#include "backend/cpu/matmul/product_tiles-inl.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "backend/cpu/tuning.h"
#include "runtime/threads.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_DIRECT_CONV_TYPES
#define ORTRAIN_DIRECT_CONV_TYPES
namespace ortrain {

struct DirectFunctions {
  void (*add_product)(int64_t m, int64_t n, int64_t k, const float* a, const float* b, int64_t b_row,
                      float* c, int64_t c_row);
  void (*rectify)(int64_t n, float* y);
};

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

// C += A B for rows of B that overlap; reads up to a panel of memory after the last column of B.
void AddProduct(int64_t m, int64_t n, int64_t k, const float* a, const float* b, int64_t b_row, float* c,
                int64_t c_row) {
  const int64_t width = kPanel * LanesOf<float>();
  for (int64_t j = 0; j < n; j += width)
    Panel<float>(m, HWY_MIN(width, n - j), {k}, a, k, 1, b + j, b_row, c + j, c_row, true, false, 1.0f);
}

// y = max(y, 0)
void Rectify(int64_t n, float* y) {
  const hn::ScalableTag<float> d;
  for (int64_t i = 0; i < n; i += LanesOf<float>()) {
    const auto v = LoadUpTo(d, y + i, n - i);
    // NaN stays.
    StoreUpTo(hn::IfThenElse(hn::Lt(v, hn::Zero(d)), hn::Zero(d), v), d, y + i, n - i);
  }
}

DirectFunctions FindDirect() { return {AddProduct, Rectify}; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

constexpr int64_t kSlack = 512;  // floats of the largest panel

}  // namespace

DirectConvolution::DirectConvolution(const ConvSizes& sizes) : sizes_(sizes), workers_(conv_workers(sizes)) {
  const WindowAxis& w = sizes_.window[2];
  phases_ = w.stride;
  length_ = ((w.output - 1) * w.stride + w.span() + phases_ - 1) / phases_;
  by_taps_ = w.kernel / phases_ > lines();
  const WindowAxis& h = sizes_.window[1];
  turns_ = sizes_.window[0].kernel == 1 && h.dilation == 1 && h.stride < h.kernel ? h.kernel : 1;
}

int64_t DirectConvolution::turn_of(int64_t line) const {
  const WindowAxis& h = sizes_.window[1];
  return turns_ > 1 ? line % h.output * h.stride % h.kernel : 0;
}

int64_t DirectConvolution::lines() const {
  return sizes_.channels / sizes_.groups * sizes_.window[0].kernel * sizes_.window[1].kernel;
}

int64_t DirectConvolution::lines_size() const { return lines() * phases_ * length_ + kSlack; }

bool DirectConvolution::suits() const {
  const WindowAxis& w = sizes_.window[2];
  if (w.stride > 1 && w.kernel / w.stride < tuning::kDirectTaps) return false;
  if (w.span() > tuning::kDirectLines) return false;
  return sizes_.groups == 1 && sizes_.filters <= tuning::kDirectFilters &&
         w.output >= tuning::kDirectColumns && lines_size() <= tuning::kDirectLines;
}

template <typename F>
void DirectConvolution::each_step(F&& f) const {
  const WindowAxis& w = sizes_.window[2];
  const int64_t filters = sizes_.filters / sizes_.groups, all = lines();
  int64_t weights = 0;
  const auto step = [&](int64_t line, int64_t tap, int64_t b_row, int64_t depth, int64_t next_tap) {
    const int64_t at = tap * w.dilation;
    f(Step{(at % phases_ * all + line) * length_ + at / phases_, b_row, depth, weights}, line, tap, next_tap);
    weights += filters * depth;
  };
  if (!by_taps_) {
    for (int64_t tap = 0; tap < w.kernel; ++tap) step(0, tap, length_, all, 0);
    return;
  }
  // The distance between taps that read the same phase.
  const int64_t together = phases_ / std::gcd(phases_, w.dilation);
  for (int64_t line = 0; line < all; ++line)
    for (int64_t tap = 0; tap < std::min(together, w.kernel); ++tap)
      step(line, tap, w.dilation * together / phases_, (w.kernel - tap + together - 1) / together, together);
}

void DirectConvolution::pack(const float* w, float* packed) const {
  const int64_t filters = sizes_.filters / sizes_.groups, taps = sizes_.window[2].kernel;
  const int64_t rows = sizes_.window[1].kernel, size = filters * sizes_.column_rows();
  for (int64_t turn = 0; turn < turns_; ++turn)
    for (int64_t group = 0; group < sizes_.groups; ++group, packed += size)
      each_step([&](const Step& step, int64_t line, int64_t tap, int64_t next_tap) {
        float* to = packed + step.weights;
        for (int64_t p = 0; p < step.depth; ++p, to += 1) {
          const int64_t at = next_tap ? line : p, row = (at % rows - turn + rows) % rows;
          const float* from = w + group * size + (at / rows * rows + row) * taps + tap + p * next_tap;
          for (int64_t f = 0; f < filters; ++f) to[f * step.depth] = from[f * sizes_.column_rows()];
        }
      });
}

// The rows of the window from `first_row` on that the output line `line` reads, at their places among the
// lines, with their padding, divided into phases.
void DirectConvolution::write_lines(const float* x, int64_t line, int64_t first_row, float* to) const {
  const WindowAxis &d = sizes_.window[0], &h = sizes_.window[1], &w = sizes_.window[2];
  const int64_t top = line % h.output * h.stride, front = line / h.output * d.stride - d.before;
  const int64_t all = lines();
  for (int64_t outer = 0; outer < all / h.kernel; ++outer)
    for (int64_t row = first_row; row < h.kernel; ++row) {
      const int64_t id = front + outer % d.kernel * d.dilation, ih = top + row * h.dilation - h.before;
      const bool inside = id >= 0 && id < d.input && ih >= 0 && ih < h.input;
      const float* from = inside ? x + ((outer / d.kernel * d.input + id) * h.input + ih) * w.input : nullptr;
      const int64_t place = outer * h.kernel + (row + turn_of(line)) % h.kernel;
      for (int64_t phase = 0; phase < phases_; ++phase)
        write_padded_line(w, phase, from, length_, to + (phase * all + place) * length_);
    }
}

void DirectConvolution::run(const float* x, const float* packed, const float* bias, const float* addend,
                            bool relu, float* y, float* work) const {
  const int64_t filters = sizes_.filters / sizes_.groups, points = sizes_.output_points();
  const int64_t width = sizes_.window[2].output, lines = width > 0 ? points / width : 0;
  const int64_t image_size = sizes_.channels / sizes_.groups * sizes_.input_points();
  const int64_t rows = sizes_.window[1].kernel, stride = sizes_.window[1].stride;
  const DirectFunctions functions = ORTRAIN_DISPATCH(FindDirect)();
  const int64_t items = sizes_.batch * sizes_.groups * lines;
  share_among(workers_, items, [&](int64_t worker, int64_t first, int64_t past) {
    float* buffer = work + worker * lines_size();
    for (int64_t i = first; i < past; ++i) {
      const int64_t image = i / lines, line = i % lines, group = image % sizes_.groups;
      // Of the line above, all but the first rows are needed again.
      const bool again = turns_ > 1 && i > first && line % sizes_.window[1].output > 0;
      write_lines(x + image * image_size, line, again ? rows - stride : 0, buffer);
      const int64_t at = image * filters * points + line * width;
      for (int64_t f = 0; f < filters; ++f) {
        const float start = bias ? bias[group * filters + f] : 0;
        float* to = y + at + f * points;
        if (addend)
          for (int64_t j = 0; j < width; ++j) to[j] = addend[at + f * points + j] + start;
        else
          std::fill_n(to, width, start);
      }
      const float* weights =
          packed + (turn_of(line) * sizes_.groups + group) * filters * sizes_.column_rows();
      each_step([&](const Step& step, int64_t, int64_t, int64_t) {
        functions.add_product(filters, width, step.depth, weights + step.weights, buffer + step.from,
                              step.b_row, y + at, points);
      });
      for (int64_t f = 0; relu && f < filters; ++f) functions.rectify(width, y + at + f * points);
    }
  });
}

}  // namespace ortrain
#endif
