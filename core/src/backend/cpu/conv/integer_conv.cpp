#include "backend/cpu/conv/integer_conv.h"

#include <algorithm>
#include <cstring>

#include "runtime/threads.h"

namespace ortrain {

namespace {

// Points of a depthwise convolution that are handed over together, if lines are short.
constexpr int64_t kLinePoints = 1024;

int32_t read_code(const uint8_t* code, bool is_signed) {
  return is_signed ? static_cast<int8_t>(*code) : *code;
}

// The number of positions, `stride` elements apart, in n elements.
inline int64_t positions(int64_t n, int64_t stride) {
  return n <= 0 ? 0 : stride == 1 ? n : (n + stride - 1) / stride;
}

// Copies without a call of memcpy, since most runs are short.
inline void copy_bytes(const uint8_t* from, int64_t n, uint8_t* to) {
  const auto move = [&](auto unit, int64_t at) {
    std::memcpy(&unit, from + at, sizeof(unit));
    std::memcpy(to + at, &unit, sizeof(unit));
  };
  // Copies whole units, the last of which may overlap the unit before it.
  const auto all = [&](auto unit) {
    constexpr int64_t kSize = sizeof(unit);
    for (int64_t i = 0; i + kSize <= n; i += kSize) move(unit, i);
    if (n % kSize) move(unit, n - kSize);
  };
  struct Wide {
    uint64_t low, high;
  };
  if (n >= 16)
    all(Wide());
  else if (n >= 8)
    all(uint64_t());
  else if (n >= 4)
    all(uint32_t());
  else
    for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

// A run of output points along the innermost axis.
struct Run {
  int64_t at, count;  // of the panel's columns
  int64_t d, h;       // where the windows begin in the input, padding included
  int64_t w;          // position of the first point along the innermost axis
};

}  // namespace

// The columns of up to kLargestPanel output points of one group of an image.
class WindowColumns {
 public:
  WindowColumns(const ConvSizes& s, const uint8_t* x, uint8_t zero, int64_t begin, int64_t end)
      : s_(s), x_(x), zero_(zero), width_(end - begin) {
    const WindowAxis &d = s.window[0], &h = s.window[1], &w = s.window[2];
    for (int64_t p = begin; p < end;) {
      const int64_t ow = p % w.output, line = p / w.output, oh = line % h.output, od = line / h.output;
      const int64_t length = std::min(w.output - ow, end - p);
      runs_[count_++] = {p - begin, length, od * d.stride - d.before, oh * h.stride - h.before, ow};
      p += length;
    }
  }

  // Writes the rows [begin, end) of the columns to `rows`, which are width() long.
  void write(int64_t begin, int64_t end, uint8_t* rows) const {
    const WindowAxis &d = s_.window[0], &h = s_.window[1], &w = s_.window[2];
    // Divisions take as long as copying a short run.
    int64_t kw = begin % w.kernel, kh = begin / w.kernel % h.kernel;
    int64_t kd = begin / w.kernel / h.kernel % d.kernel, c = begin / w.kernel / h.kernel / d.kernel;
    for (int64_t row = begin; row < end; ++row, rows += width_) {
      // Output positions [lowest, highest) read inside the input.
      const int64_t shift = kw * w.dilation - w.before;
      const int64_t lowest = positions(-shift, w.stride), highest = positions(w.input - shift, w.stride);
      for (const Run* r = runs_; r != runs_ + count_; ++r) {
        uint8_t* to = rows + r->at;
        const int64_t id = r->d + kd * d.dilation, ih = r->h + kh * h.dilation;
        const int64_t first = std::clamp<int64_t>(lowest - r->w, 0, r->count);
        const int64_t last = std::clamp<int64_t>(highest - r->w, first, r->count);
        if (id < 0 || id >= d.input || ih < 0 || ih >= h.input || first == last) {
          std::fill_n(to, r->count, zero_);
          continue;
        }
        const uint8_t* from =
            x_ + ((c * d.input + id) * h.input + ih) * w.input + (r->w + first) * w.stride + shift;
        for (int64_t i = 0; i < first; ++i) to[i] = zero_;
        if (w.stride == 1)
          copy_bytes(from, last - first, to + first);
        else
          for (int64_t i = first; i < last; ++i) to[i] = from[(i - first) * w.stride];
        for (int64_t i = last; i < r->count; ++i) to[i] = zero_;
      }
      if (++kw == w.kernel) {
        kw = 0;
        if (++kh == h.kernel) {
          kh = 0;
          if (++kd == d.kernel) kd = 0, ++c;
        }
      }
    }
  }
  int64_t width() const { return width_; }

 private:
  const ConvSizes& s_;
  const uint8_t* x_;
  uint8_t zero_;
  int64_t width_, count_ = 0;
  Run runs_[kLargestPanel];
};

namespace {

// Whether windows are single elements that follow each other.
bool is_pointwise(const ConvSizes& s) {
  return std::all_of(s.window.begin(), s.window.end(), [](const WindowAxis& a) {
    return a.kernel == 1 && a.stride == 1 && a.before == 0 && a.output == a.input;
  });
}

// Merges the axes of such a convolution into one, so that lines are as long as possible.
ConvSizes merged(ConvSizes s) {
  if (!is_pointwise(s)) return s;
  WindowAxis line;
  line.input = line.output = s.input_points();
  s.window = {WindowAxis(), WindowAxis(), line};
  return s;
}

// The lines of a plane as a depthwise convolution reads them: for each pair of neighbours along the innermost
// axis of the window, a word for each output. Only the lines that a window reads are kept.
class Lines {
 public:
  static int64_t words(const ConvSizes& s, const IntegerKernels& kernels) {
    const int64_t pairs = (s.window[2].kernel + 1) / 2;
    return kept(s) * (1 + pairs * kernels.whole(s.window[2].output)) + length(s) / 2 + 1 +
           s.window[1].kernel * pairs * (kPointerWords + 1) + kPointerWords;
  }

  Lines(const ConvSizes& s, const IntegerKernels& kernels, bool is_signed, int32_t zero, uint32_t* work)
      : s_(s), kernels_(kernels), signed_(is_signed), zero_(zero) {
    const int64_t most = s.window[1].kernel * pairs_;
    const auto aligned =
        (reinterpret_cast<uintptr_t>(work) + sizeof(void*) - 1) / sizeof(void*) * sizeof(void*);
    lines_ = reinterpret_cast<const uint32_t**>(aligned);
    weights_ = reinterpret_cast<uint32_t*>(lines_ + most);
    held_ = reinterpret_cast<int32_t*>(weights_ + most);
    store_ = weights_ + most + kept_;
    padded_ = reinterpret_cast<int16_t*>(store_ + kept_ * pairs_ * line_);
    std::fill_n(padded_, length(s), int16_t{0});  // later planes keep the padding
  }

  // From here on the lines are those of `plane`.
  void of(const uint8_t* plane) {
    if (plane != plane_) std::fill_n(held_, kept_, -1);
    plane_ = plane;
  }

  // The sums of line `oh` of the output, added to y if `add`.
  void sum(int64_t oh, const uint32_t* weights, int32_t start, bool add, int32_t* y) {
    const WindowAxis& h = s_.window[1];
    int64_t count = 0;
    for (int64_t kh = 0; kh < h.kernel; ++kh) {
      const int64_t ih = oh * h.stride - h.before + kh * h.dilation;
      if (ih < 0 || ih >= h.input) continue;
      const uint32_t* line = read(ih);
      for (int64_t p = 0; p < pairs_; ++p, ++count) {
        lines_[count] = line + p * line_;
        weights_[count] = weights[kh * pairs_ + p];
      }
    }
    kernels_.sum_lines(s_.window[2].output, count, lines_, weights_, start, add, y);
  }

 private:
  static constexpr int64_t kPointerWords = sizeof(void*) / sizeof(uint32_t);

  static int64_t kept(const ConvSizes& s) {
    const WindowAxis& h = s.window[1];
    return std::min((h.kernel - 1) * h.dilation + 1, std::max<int64_t>(h.input, 1));
  }
  // The length of a padded line, and one more element: the partner of a window's last element.
  static int64_t length(const ConvSizes& s) {
    const WindowAxis& w = s.window[2];
    return std::max(w.output - 1, int64_t{0}) * w.stride + w.span() + 1;
  }

  const uint32_t* read(int64_t ih) {
    const WindowAxis& w = s_.window[2];
    uint32_t* words = store_ + ih % kept_ * pairs_ * line_;
    if (held_[ih % kept_] == ih) return words;
    held_[ih % kept_] = static_cast<int32_t>(ih);
    // The elements from `before` on are those of the input.
    const int64_t skipped = std::max<int64_t>(-w.before, 0), first = std::max<int64_t>(w.before, 0);
    const int64_t count = std::min(w.input - skipped, length(s_) - first);
    if (count > 0)
      kernels_.shift_line(count, plane_ + ih * w.input + skipped, signed_, zero_, padded_ + first);
    for (int64_t p = 0; p < pairs_; ++p) {
      const int64_t gap = 2 * p + 1 < w.kernel ? w.dilation : 1;  // the last weight of odd windows is zero
      kernels_.pair_line(w.output, padded_ + 2 * p * w.dilation, w.stride, gap, words + p * line_);
    }
    return words;
  }

  const ConvSizes& s_;
  const IntegerKernels& kernels_;
  bool signed_;
  int32_t zero_;
  int64_t pairs_ = (s_.window[2].kernel + 1) / 2, kept_ = kept(s_),
          line_ = kernels_.whole(s_.window[2].output);
  const uint8_t* plane_ = nullptr;
  const uint32_t** lines_;
  uint32_t *weights_, *store_;
  int32_t* held_;  // the number of the line in each place; -1: none
  int16_t* padded_;
};

}  // namespace

IntegerConvolution::IntegerConvolution(const ConvSizes& sizes, bool x_signed, bool w_signed)
    : sizes_(merged(sizes)),
      x_signed_(x_signed),
      w_signed_(w_signed),
      depthwise_(sizes.groups == sizes.channels && sizes.groups == sizes.filters),
      pointwise_(is_pointwise(sizes)),
      kernels_(integer_kernels()) {
  const int64_t rows = sizes_.column_rows(), filters = sizes_.filters / sizes_.groups;
  // Packing a column costs about as much as multiplying it with 16 filters; an instruction multiplies 16.
  const int64_t work =
      sizes_.batch * sizes_.groups * sizes_.output_points() * kernels_.words(rows) * (filters + 16) / 16;
  workers_ = std::clamp<int64_t>(work / kGrain, 1, max_threads());
  // The packed panel, and the zero point of X for each column.
  panel_words_ = kernels_.right_words(rows, kernels_.panel) + kernels_.panel;
  // Lines of the output have cache lines to themselves, and a tile fits in the cache.
  constexpr int64_t kPoints = 64, kTile = 32768;
  const int64_t columns = std::max(kernels_.panel, std::min(kPoints, kTile / std::max<int64_t>(filters, 1)));
  block_ = columns / kernels_.panel * kernels_.panel;
  tile_words_ = filters * block_;
  if (depthwise_) {
    panel_words_ = Lines::words(sizes_, kernels_);
    const WindowAxis &h = sizes_.window[1], &w = sizes_.window[2];
    // A block has whole lines.
    block_ =
        std::clamp<int64_t>(kLinePoints / std::max<int64_t>(w.output, 1), 1, std::max<int64_t>(h.output, 1)) *
        w.output;
    tile_words_ = block_;
  }
}

void IntegerConvolution::pack(const uint8_t* w, const uint8_t* w_zeros, bool each, uint32_t* words,
                              int32_t* sums, int32_t* zeros) const {
  const int64_t rows = sizes_.column_rows(), width = kernels_.words(rows);
  if (depthwise_) {
    const int64_t length = sizes_.window[2].kernel;
    for (int64_t line = 0; line < sizes_.filters * rows / length; ++line, w += length) {
      const int64_t filter = line * length / rows;
      const int32_t zero = w_zeros ? read_code(w_zeros + (each ? filter : 0), w_signed_) : 0;
      const auto at = [&](int64_t i) {
        return uint32_t{static_cast<uint16_t>(i < length ? read_code(w + i, w_signed_) - zero : 0)};
      };
      for (int64_t i = 0; i < length; i += 2) *words++ = at(i) | at(i + 1) << 16;
    }
    return;
  }
  parallel_for(sizes_.filters, rows, [&](int64_t begin, int64_t end) {
    kernels_.pack_left(end - begin, rows, {w + begin * rows, w_signed_, rows}, words + begin * width,
                       sums + begin);
    for (int64_t f = begin; f < end; ++f)
      zeros[f] = kernels_.left_zero(w_signed_, w_zeros ? read_code(w_zeros + (each ? f : 0), w_signed_) : 0);
  });
}

void IntegerConvolution::pack_columns(const WindowColumns& columns, uint32_t* panel) const {
  constexpr int64_t kRows = 32;  // a multiple of the group
  uint8_t some[kRows * kLargestPanel];
  const int64_t rows = sizes_.column_rows(), n = columns.width();
  for (int64_t row = 0; row < rows; row += kRows) {
    const int64_t end = std::min(row + kRows, rows);
    columns.write(row, end, some);
    kernels_.pack_right(n, row, end - row, {some, x_signed_, n}, panel);
  }
  kernels_.sum_columns(n, rows, panel);
}

void IntegerConvolution::run(const uint8_t* x, uint8_t x_zero, const uint32_t* words, const int32_t* sums,
                             const int32_t* zeros, const int32_t* bias, const Sink& sink,
                             uint32_t* work) const {
  if (depthwise_) return run_depthwise(x, x_zero, words, bias, sink, work);
  const int64_t points = sizes_.output_points(), rows = sizes_.column_rows();
  const int64_t filters = sizes_.filters / sizes_.groups, width = kernels_.words(rows);
  const int64_t image_size = sizes_.channels / sizes_.groups * sizes_.input_points();
  const int64_t blocks = (points + block_ - 1) / block_;
  // With fewer blocks than threads, each is packed several times, for parts of the filters.
  const int64_t all = sizes_.batch * sizes_.groups * blocks;
  const int64_t parts = all > 0 && all < workers_ ? std::min(filters, (workers_ + all - 1) / all) : 1;
  const int64_t items = all * parts;
  const int32_t zero = kernels_.right_zero(x_signed_, read_code(&x_zero, x_signed_));
  share_among(workers_, items, [&](int64_t worker, int64_t first, int64_t past) {
    uint32_t* panel = work + worker * (panel_words_ + tile_words_);
    auto* tile = reinterpret_cast<int32_t*>(panel + panel_words_);
    int32_t* column_zeros = reinterpret_cast<int32_t*>(panel + kernels_.right_words(rows, kernels_.panel));
    std::fill_n(column_zeros, kernels_.panel, zero);
    for (int64_t i = first; i < past; ++i) {
      const int64_t part = i % parts, item = i / parts, image = item / blocks;
      const int64_t begin = item % blocks * block_, end = std::min(begin + block_, points);
      const int64_t least = filters * part / parts, most = filters * (part + 1) / parts;
      const int64_t filter = image % sizes_.groups * filters + least;
      for (int64_t from = begin; from < end; from += kernels_.panel) {
        const int64_t to = std::min(from + kernels_.panel, end);
        const uint8_t* of_image = x + image * image_size;
        if (pointwise_)  // the columns are the image itself
          kernels_.pack_panel(0, to - from, rows, {of_image + from, x_signed_, points}, panel);
        else
          pack_columns(WindowColumns(sizes_, of_image, x_zero, from, to), panel);
        kernels_.multiply({most - least, to - from, rows, words + filter * width, sums + filter,
                           zeros + filter, bias ? bias + filter : nullptr, panel, column_zeros,
                           tile + from - begin, block_});
      }
      for (int64_t f = least; f < most; ++f)
        sink(image * filters + f, begin, end - begin, tile + (f - least) * block_);
    }
  });
}

void IntegerConvolution::run_depthwise(const uint8_t* x, uint8_t x_zero, const uint32_t* weights,
                                       const int32_t* bias, const Sink& sink, uint32_t* work) const {
  const WindowAxis &d = sizes_.window[0], &h = sizes_.window[1], &w = sizes_.window[2];
  const int64_t size = h.output * w.output, plane_words = h.kernel * pairs();
  const int64_t items = sizes_.batch * sizes_.channels * d.output;
  const int32_t zero = read_code(&x_zero, x_signed_);
  share_among(workers_, items, [&](int64_t worker, int64_t first, int64_t past) {
    uint32_t* memory = work + worker * (panel_words_ + tile_words_);
    auto* tile = reinterpret_cast<int32_t*>(memory + panel_words_);
    Lines lines(sizes_, kernels_, x_signed_, zero, memory);
    for (int64_t i = first; i < past; ++i) {
      const int64_t od = i % d.output, plane = i / d.output, channel = plane % sizes_.channels;
      for (int64_t at = 0; at < size; at += block_) {
        const int64_t end = std::min(at + block_, size);
        bool add = false;
        for (int64_t kd = 0; kd < d.kernel; ++kd) {
          // Padding is x_zero, so it adds nothing.
          const int64_t id = od * d.stride + kd * d.dilation - d.before;
          if (id < 0 || id >= d.input) continue;
          lines.of(x + plane * sizes_.input_points() + id * h.input * w.input);
          const uint32_t* of_plane = weights + (channel * d.kernel + kd) * plane_words;
          for (int64_t oh = at / w.output; oh < end / w.output; ++oh)
            lines.sum(oh, of_plane, bias ? bias[channel] : 0, add, tile + oh * w.output - at);
          add = true;
        }
        if (!add) std::fill_n(tile, end - at, bias ? bias[channel] : 0);
        sink(plane, od * size + at, end - at, tile);
      }
    }
  });
}

}  // namespace ortrain
