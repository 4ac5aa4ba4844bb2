#include "backend/cpu/conv/byte_conv.h"

#include <algorithm>

#include "runtime/threads.h"

namespace ortrain {

namespace {

constexpr int64_t kBlock = 48;                // points whose windows are looked up together
constexpr int64_t kCopiedWords = 256 * 1024;  // the most words of several images that are copied at once

int32_t read(uint8_t code, bool is_signed) { return is_signed ? static_cast<int8_t>(code) : code; }

}  // namespace

bool ByteConvolution::suits(const ConvSizes& s) {
  return s.groups == 1 || (s.groups == s.channels && s.groups == s.filters);
}

ByteConvolution::ByteConvolution(const ConvSizes& sizes, bool x_signed, bool w_signed, bool with_quads)
    : sizes_(sizes),
      x_signed_(x_signed),
      w_signed_(w_signed),
      depthwise_(sizes.groups > 1),
      direct_(true),
      kernels_(byte_conv_kernels(with_quads)),
      point_words_(kernels_.words(sizes.channels)) {
  if (depthwise_) {
    const WindowAxis& w = sizes_.window[2];
    const int64_t vectors = (line_groups() * w.kernel + 24) * w.output * sizes_.channels / kernels_.lanes;
    workers_ = std::clamp<int64_t>(
        sizes_.batch * sizes_.window[0].output * sizes_.window[1].output * vectors / kGrain, 1,
        max_threads());
    images_ = 1;
    return;
  }
  direct_ = kernels_.group == 4 && kernels_.left.of(x_signed_) == 0 && sizes_.channels % kernels_.group == 0;
  for (const WindowAxis& a : sizes_.window) direct_ = direct_ && a.before == 0 && a.reach() <= 0;
  images_ = direct_ ? sizes_.batch
                    : std::clamp<int64_t>(kCopiedWords / std::max<int64_t>(image_words(), 1), 1,
                                          std::max<int64_t>(sizes_.batch, 1));
  const WindowAxis &d = sizes_.window[0], &h = sizes_.window[1], &w = sizes_.window[2];
  // Neighbors along the innermost axis are one run.
  const bool joined = w.dilation == 1;
  run_words_ = (joined ? w.kernel : 1) * point_words_;
  for (int64_t kd = 0; kd < d.kernel; ++kd)
    for (int64_t kh = 0; kh < h.kernel; ++kh)
      for (int64_t kw = 0; kw < (joined ? 1 : w.kernel); ++kw)
        runs_.push_back(((kd * d.dilation * padded(1) + kh * h.dilation) * padded(2) + kw * w.dilation) *
                        point_words_);
}

uint32_t ByteConvolution::zero_word(int32_t x_zero) const {
  const uint8_t zero = static_cast<uint8_t>(x_zero);
  const uint8_t* const rows[] = {&zero, &zero, &zero, &zero};
  uint32_t word = 0;
  kernels_.combine(1, rows, x_signed_, &word);
  return word;
}

int64_t ByteConvolution::padded(int axis) const {
  const WindowAxis& a = sizes_.window[static_cast<size_t>(axis)];
  return direct_ && !depthwise_ ? a.input : std::max<int64_t>(a.output - 1, 0) * a.stride + a.span();
}

int64_t ByteConvolution::image_words() const { return padded(0) * padded(1) * padded(2) * point_words_; }

int64_t ByteConvolution::lines() const { return sizes_.window[0].kernel * sizes_.window[1].kernel; }

int64_t ByteConvolution::line_words() const {
  // The lines as words, with a vector after them that products may read, and a line of zeros as bytes.
  return line_groups() * padded(2) * sizes_.channels + kernels_.lanes +
         sizes_.window[2].input * sizes_.channels / 4 + 1;
}

int64_t ByteConvolution::weight_words() const {
  return depthwise_ ? line_groups() * sizes_.window[2].kernel * whole_filters()
                    : lines() * sizes_.window[2].kernel * point_words_ * whole_filters();
}

int64_t ByteConvolution::work_words() const {
  if (depthwise_) return workers_ * line_words();
  return direct_ ? 0 : images_ * image_words();
}

bool ByteConvolution::pack(const uint8_t* w, const int32_t* w_zeros, int32_t x_zero, uint32_t* words,
                           int32_t* offsets) const {
  std::fill_n(words, weight_words(), 0u);
  std::fill_n(offsets, whole_filters(), 0);
  const int64_t taps = lines() * sizes_.window[2].kernel, channels = depthwise_ ? 1 : sizes_.channels;
  const int32_t lowest = kernels_.group == 4 ? -128 : -32768, highest = -lowest - 1;
  const int64_t bits = 32 / kernels_.group, rows = taps * point_words_;
  for (int64_t f = 0; f < sizes_.filters; ++f) {
    uint32_t sum = 0;
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int32_t value = read(*w++, w_signed_) - w_zeros[f];
        if (value < lowest || value > highest) return false;
        sum += static_cast<uint32_t>(value);
        int64_t at, place;
        if (depthwise_) {  // the group holds lines
          const int64_t kernel = sizes_.window[2].kernel, line = tap / kernel;
          place = line % kernels_.group;
          at = (line / kernels_.group * kernel + tap % kernel) * whole_filters() + f;
        } else {
          const int64_t panel = f / kernels_.panel * kernels_.panel;
          const int64_t width = kernels_.whole(std::min(kernels_.panel, sizes_.filters - panel));
          place = c % kernels_.group;
          at = panel * rows + (tap * point_words_ + c / kernels_.group) * width + f - panel;
        }
        words[at] |= (static_cast<uint32_t>(value) & (~0u >> (32 - bits))) << (place * bits);
      }
    const int32_t code = x_zero + kernels_.left.of(x_signed_);
    offsets[f] = static_cast<int32_t>(0u - static_cast<uint32_t>(code) * sum);
  }
  return true;
}

void ByteConvolution::run(const uint8_t* x, int32_t x_zero, const uint32_t* words, const FilterCodes& codes,
                          uint8_t* y, uint32_t* work) const {
  if (depthwise_) return run_depthwise(x, x_zero, words, codes, y, work);
  const int64_t from = sizes_.input_points() * sizes_.channels, to = sizes_.output_points() * sizes_.filters;
  for (int64_t image = 0; image < sizes_.batch; image += images_) {
    const int64_t count = std::min(images_, sizes_.batch - image);
    if (!direct_) pad(x + image * from, x_zero, count, work);
    multiply(direct_ ? reinterpret_cast<const uint32_t*>(x) : work, count, words, codes, y + image * to);
  }
}

void ByteConvolution::pad(const uint8_t* x, int32_t x_zero, int64_t images, uint32_t* words) const {
  const WindowAxis &d = sizes_.window[0], &h = sizes_.window[1], &w = sizes_.window[2];
  const int64_t channels = sizes_.channels, width = padded(2), per_image = padded(0) * padded(1);
  const uint32_t zero = zero_word(x_zero);
  const int64_t first = std::clamp<int64_t>(w.before, 0, width), skipped = std::max<int64_t>(-w.before, 0);
  const int64_t count = std::max<int64_t>(std::min(w.input - skipped, width - first), 0);
  parallel_for(images * per_image, 1 + width * point_words_ / 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = i / per_image, line = i % per_image;
      const int64_t id = line / padded(1) - d.before, ih = line % padded(1) - h.before;
      uint32_t* to = words + i * width * point_words_;
      const auto fill = [&](int64_t at, int64_t past) {
        std::fill(to + at * point_words_, to + past * point_words_, zero);
      };
      if (id < 0 || id >= d.input || ih < 0 || ih >= h.input) {
        fill(0, width);
        continue;
      }
      fill(0, first);
      const int64_t from = ((image * d.input + id) * h.input + ih) * w.input + skipped;
      kernels_.to_words(count, channels, x + from * channels, x_signed_, to + first * point_words_);
      fill(first + count, width);
    }
  });
}

void ByteConvolution::multiply(const uint32_t* x, int64_t images, const uint32_t* words,
                               const FilterCodes& codes, uint8_t* y) const {
  const WindowAxis &d = sizes_.window[0], &h = sizes_.window[1], &w = sizes_.window[2];
  const int64_t points = images * sizes_.output_points(), filters = sizes_.filters;
  const int64_t blocks = (points + kBlock - 1) / kBlock;
  const int64_t panels = (filters + kernels_.panel - 1) / kernels_.panel;
  const int64_t rows = static_cast<int64_t>(runs_.size()) * run_words_;
  const int64_t vectors = std::min(kernels_.panel, kernels_.whole(filters)) / kernels_.lanes;
  // A panel of filters stays in the cache while all blocks are multiplied with it.
  parallel_for(blocks * panels, kBlock * vectors * (rows + 16) * 2, [&](int64_t begin, int64_t end) {
    const uint32_t* windows[kBlock];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t panel = i / blocks * kernels_.panel, point = i % blocks * kBlock;
      const int64_t count = std::min(kBlock, points - point);
      int64_t ow = point % w.output, line = point / w.output;
      for (int64_t p = 0; p < count; ++line, ow = 0) {
        const int64_t oh = line % h.output, rest = line / h.output, od = rest % d.output;
        const uint32_t* from = x + rest / d.output * image_words() +
                               (od * d.stride * padded(1) + oh * h.stride) * padded(2) * point_words_;
        for (; ow < w.output && p < count; ++ow, ++p) windows[p] = from + ow * w.stride * point_words_;
      }
      kernels_.multiply({windows, count, runs_.data(), static_cast<int64_t>(runs_.size()), run_words_,
                         words + panel * rows, std::min(kernels_.panel, filters - panel), codes.from(panel),
                         y + point * filters + panel, filters});
    }
  });
}

void ByteConvolution::run_depthwise(const uint8_t* x, int32_t x_zero, const uint32_t* words,
                                    const FilterCodes& codes, uint8_t* y, uint32_t* work) const {
  const WindowAxis &d = sizes_.window[0], &h = sizes_.window[1], &w = sizes_.window[2];
  const int64_t channels = sizes_.channels, width = padded(2), group_words = width * channels;
  const int64_t first = std::clamp<int64_t>(w.before, 0, width), skipped = std::max<int64_t>(-w.before, 0);
  const int64_t count = std::max<int64_t>(std::min(w.input - skipped, width - first), 0);
  const int64_t items = sizes_.batch * d.output * h.output;
  share_among(workers_, items, [&](int64_t worker, int64_t from, int64_t past) {
    uint32_t* memory = work + worker * line_words();
    auto* zeros = reinterpret_cast<uint8_t*>(memory + line_groups() * group_words + kernels_.lanes);
    std::fill_n(zeros, w.input * channels, static_cast<uint8_t>(x_zero));
    // Later images overwrite all but the padding.
    std::fill_n(memory, line_groups() * group_words + kernels_.lanes, zero_word(x_zero));
    for (int64_t i = from; i < past; ++i) {
      const int64_t oh = i % h.output, od = i / h.output % d.output, image = i / h.output / d.output;
      for (int64_t group = 0; group < line_groups(); ++group) {
        const uint8_t* rows[4];
        for (int64_t r = 0; r < kernels_.group; ++r) {
          const int64_t line = group * kernels_.group + r;
          const int64_t id = od * d.stride - d.before + line / h.kernel * d.dilation;
          const int64_t ih = oh * h.stride - h.before + line % h.kernel * h.dilation;
          const bool inside =
              line < lines() && id >= 0 && id < d.input && ih >= 0 && ih < h.input && count > 0;
          const int64_t at = ((image * d.input + id) * h.input + ih) * w.input + skipped;
          rows[r] = inside ? x + at * channels : zeros;
        }
        kernels_.combine(count * channels, rows, x_signed_, memory + group * group_words + first * channels);
      }
      kernels_.sum_line({memory, line_groups(), group_words, channels, w.output, w.kernel, w.stride,
                         w.dilation, words, codes, y + i * w.output * channels});
    }
  });
}

}  // namespace ortrain
