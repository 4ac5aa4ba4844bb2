#include "backend/cpu/conv/separable_conv.h"

#include <algorithm>

#include "backend/cpu/tuning.h"
#include "runtime/checked.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

int64_t divided(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The sizes given here do not matter, because callers state how many points to compute.
std::optional<ChannelsLastConvolution> pointwise(int64_t channels, int64_t filters) {
  if (channels == 0 || filters == 0) return std::nullopt;
  return ChannelsLastConvolution({1, channels, filters, 1, Window(3)});
}

}  // namespace

SeparableConvolution::SeparableConvolution(const ConvSizes& depthwise, int64_t channels, int64_t filters)
    : sizes_(depthwise),
      window_(depthwise.window.begin() + 1, depthwise.window.end()),
      channels_(channels),
      filters_(filters),
      first_(pointwise(channels, depthwise.channels)),
      last_(pointwise(depthwise.channels, filters)),
      middle_(depthwise) {
  if (!suits()) return;
  const WindowAxis &h = window_[0], &w = window_[1];
  const int64_t work =
      capped_product({sizes_.batch, h.input, w.input, sizes_.channels, 9 + channels + filters});
  workers_ = std::clamp<int64_t>(work / tuning::kMultiplications / kGrain, 1, max_threads());
  const int64_t points = h.output * w.output, most = divided(sizes_.batch, workers_);
  const auto kept = [&](int64_t rows) {
    return std::min((rows - 1) * h.stride + h.span(), std::max<int64_t>(h.input, 1));
  };
  rows_ = std::clamp<int64_t>(divided(tuning::kSeparablePoints, w.output), 1, h.output);
  while (rows_ > 1 && (kept(rows_) * w.input + rows_ * w.output) * sizes_.channels > tuning::kSeparableFloats)
    --rows_;
  if (rows_ == h.output) {
    // Images need not stay in the cache, as each group of channels is read right after it is computed.
    const int64_t floats =
        std::max<int64_t>(capped_product({h.input * w.input + points, sizes_.channels}), 1);
    images_ = std::clamp<int64_t>(
        std::min(divided(tuning::kSeparablePoints, points), 4 * tuning::kSeparableFloats / floats), 1, most);
  }
  kept_ = images_ > 1 ? std::max<int64_t>(h.input, 1) : kept(rows_);
  // Without the first convolution, the lines are those of X.
  const int64_t panel = ChannelsLastConvolution::panel(),
                together = divided(tuning::kSeparableChannels, panel) * panel;
  group_ = first_ ? std::min(together, sizes_.channels) : sizes_.channels;
}

bool SeparableConvolution::suits() const {
  return middle_.suits() && (!first_ || first_->suits()) && (!last_ || last_->suits());
}

void SeparableConvolution::expand(const float* x, const SeparableStage& stage, int64_t from, int64_t to,
                                  int64_t begin, int64_t end, float* lines) const {
  const int64_t width = window_[1].input;
  while (from < to) {
    const int64_t place = from % kept_, count = std::min(to - from, kept_ - place);
    first_->forward_points(count * width, x + from * width * channels_, stage.weights, stage.bias,
                           stage.activation, begin, end, lines + place * width * (end - begin));
    from += count;
  }
}

void SeparableConvolution::compute(const float* x, const Stages& stages, int64_t images, int64_t begin,
                                   int64_t end, float* y, float* work) const {
  const WindowAxis &h = window_[0], &w = window_[1];
  const int64_t channels = sizes_.channels, line = w.output * channels;
  float *const kept = work, *const results = kept + kept_size();
  int64_t have = std::max<int64_t>(begin * h.stride - h.before, 0);
  for (int64_t row = begin; row < end; row += rows_) {
    const int64_t past = std::min(row + rows_, end), first = row * h.stride - h.before,
                  need = std::clamp<int64_t>(first + (past - row - 1) * h.stride + h.span(), 0, h.input);
    float* const to = last_ ? results : y + row * line;
    for (int64_t c = 0; c < channels; c += group_) {
      const int64_t c_end = std::min(c + group_, channels), kept_line = w.input * (c_end - c);
      float* const lines = kept + images * kept_ * w.input * c;
      if (first_ && images > 1) {  // all their lines are kept
        first_->forward_points(images * h.input * w.input, x, stages.first.weights, stages.first.bias,
                               stages.first.activation, c, c_end, lines);
      } else if (first_) {
        // If the stride is larger than a window, no window reads the lines between two windows.
        expand(x, stages.first, std::max(have, first), need, c, c_end, lines);
      }
      for (int64_t image = 0; image < images; ++image) {
        const DepthwiseSource from =
            first_ ? DepthwiseSource{lines + image * kept_ * kept_line, kept_, c, c_end}
                   : DepthwiseSource{x + image * h.input * kept_line, h.input, c, c_end};
        middle_.forward_lines(row, past, from, stages.middle.weights, stages.middle.bias,
                              stages.middle.activation, to + image * (past - row) * line);
      }
    }
    have = std::max(have, need);
    if (last_)
      last_->forward_points(images * (past - row) * w.output, results, stages.last.weights, stages.last.bias,
                            stages.last.activation, 0, filters_, y + row * w.output * filters_);
  }
}

void SeparableConvolution::forward(const float* x, const SeparableStage& first, const SeparableStage& middle,
                                   const SeparableStage& last, float* y, float* work) const {
  const WindowAxis &h = window_[0], &w = window_[1];
  const int64_t from = h.input * w.input * (first_ ? channels_ : sizes_.channels),
                to = h.output * w.output * (last_ ? filters_ : sizes_.channels);
  const int64_t groups = divided(sizes_.batch, images_);
  // Images are cut into bands of lines only to give all workers as much to do: the lines that two bands read
  // are computed twice.
  const int64_t bands = images_ > 1 || groups >= 4 * workers_ || groups % workers_ == 0
                            ? 1
                            : std::min(workers_, divided(h.output, rows_));
  const int64_t items = groups * bands;
  share_among(workers_, items, [&](int64_t worker, int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t image = item / bands * images_, band = item % bands;
      compute(x + image * from, {first, middle, last}, std::min(images_, sizes_.batch - image),
              h.output * band / bands, h.output * (band + 1) / bands, y + image * to,
              work + worker * (kept_size() + results_size()));
    }
  });
}

}  // namespace ortrain
