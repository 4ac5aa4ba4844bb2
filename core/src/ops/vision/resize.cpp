// Resize, its older form Upsample, and ResizeGrad (com.microsoft).
//
// Every mode of interpolation is separable: along one axis after the other, each element of the result is a
// weighted sum of a few elements of the input,
//     y[o] = Σ_t weight[o][t] x[index[o][t]],
// or, in tf_crop_and_resize, the extrapolation value if the sampled position is outside. These elements and
// weights are written into a table per axis when the kernel is created. The gradient uses these tables in the
// opposite direction:
//     dx[index[o][t]] += weight[o][t] dy[o].
#include <algorithm>
#include <cmath>
#include <memory>
#include <type_traits>

#include "backend/cpu/axis_order.h"
#include "op/opset.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/common/shape_helpers.h"
#include "ops/common/variant.h"
#include "runtime/checked.h"
#include "runtime/convert.h"
#include "runtime/stable_sort.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

enum class Mode { kNearest, kLinear, kCubic };
enum class Nearest { kRoundPreferFloor, kRoundPreferCeil, kFloor, kCeil };
enum class Coordinates {
  kHalfPixel,
  kHalfPixelSymmetric,
  kPytorchHalfPixel,
  kAlignCorners,
  kAsymmetric,
  kTfHalfPixelForNearest,
  kTfCropAndResize
};

// One of the names of a string attribute.
template <typename T>
T choice(const NodeContext& c, const char* attribute, const char* otherwise,
         std::initializer_list<std::pair<std::string_view, T>> known) {
  const std::string name = c.node().string_or(attribute, otherwise);
  std::string names;
  for (const auto& [text, value] : known) {
    if (text == name) return value;
    names += (names.empty() ? "" : ", ") + std::string(text);
  }
  c.reject("attribute ", attribute, " must be one of ", names, ", found '", name, "'");
}

// The sizes and the scale of one axis.
struct Axis {
  int64_t input = 1, output = 1;
  double scale = 1;
  double from = 0, to = 1;  // the part of the input, of tf_crop_and_resize
  bool identity = false;
};

struct Settings {
  Mode mode = Mode::kNearest;
  Nearest nearest = Nearest::kFloor;
  Coordinates coordinates = Coordinates::kAsymmetric;
  double cubic_a = -0.75, extrapolation = 0;
  bool exclude_outside = false, antialias = false, upsample = false;
  std::vector<Axis> axes;  // of X

  Shape output_shape() const {
    Shape shape;
    for (const Axis& a : axes) shape.push_back(a.output);
    return shape;
  }
};

// The numbers of a floating input whose value must be known.
std::vector<double> constant_numbers(const NodeContext& c, size_t i) {
  const Tensor& value = c.need_constant(i);
  std::vector<double> numbers;
  if (!visit_floating(value.dtype(), [&](auto zero) {
        using T = decltype(zero);
        const T* at = value.data<T>();
        numbers.assign(at, at + value.size());
      }))
    c.reject_dtype(i);
  return numbers;
}

// Upsample, and Resize before version 11, have scales but no sizes, and of all settings only the mode. They
// sample at o / scale; mode nearest rounds down if the scale enlarges and up if it shrinks, as in
// onnxruntime.
enum class Form { kResize, kUpsample };

Form form_of(const Node& node, int64_t opset, Form form) {
  return node.domain.empty() && opset < since::kResizeCoordinates ? Form::kUpsample : form;
}

constexpr double kLargestSize = 1e15;  // of a result: up to here doubles count elements exactly
constexpr double kLargestRoi = 1e6;    // in sizes of the input
// The most entries of an axis's table, which is computed when the kernel is created.
constexpr int64_t kLargestTable = int64_t{1} << 26;

bool given(const NodeContext& c, size_t i) { return c.has_input(i) && c.size(i) > 0; }

// How coordinates and borders are treated.
void read_modes(const NodeContext& c, Settings& s) {
  s.mode = choice<Mode>(c, "mode", "nearest",
                        {{"nearest", Mode::kNearest}, {"linear", Mode::kLinear}, {"cubic", Mode::kCubic}});
  if (!s.upsample) {
    s.nearest = choice<Nearest>(c, "nearest_mode", "round_prefer_floor",
                                {{"round_prefer_floor", Nearest::kRoundPreferFloor},
                                 {"round_prefer_ceil", Nearest::kRoundPreferCeil},
                                 {"floor", Nearest::kFloor},
                                 {"ceil", Nearest::kCeil}});
    s.coordinates = choice<Coordinates>(c, "coordinate_transformation_mode", "half_pixel",
                                        {{"half_pixel", Coordinates::kHalfPixel},
                                         {"half_pixel_symmetric", Coordinates::kHalfPixelSymmetric},
                                         {"pytorch_half_pixel", Coordinates::kPytorchHalfPixel},
                                         {"align_corners", Coordinates::kAlignCorners},
                                         {"asymmetric", Coordinates::kAsymmetric},
                                         {"tf_half_pixel_for_nn", Coordinates::kTfHalfPixelForNearest},
                                         {"tf_crop_and_resize", Coordinates::kTfCropAndResize}});
  }
  s.cubic_a = c.node().float_or("cubic_coeff_a", -0.75f);
  s.extrapolation = c.node().float_or("extrapolation_value", 0);
  s.exclude_outside = c.node().int_or("exclude_outside", 0) != 0;
  s.antialias = c.node().int_or("antialias", 0) != 0;
  c.expect(!s.antialias || s.mode != Mode::kNearest,
           "attribute antialias is not supported with mode nearest");
}

// The attribute of old versions, or the input; empty if there is neither.
std::vector<double> read_scales(const NodeContext& c, size_t scales_at) {
  const auto at = c.node().attributes.find("scales");
  if (at == c.node().attributes.end())
    return given(c, scales_at) ? constant_numbers(c, scales_at) : std::vector<double>();
  const auto* values = std::get_if<std::vector<float>>(&at->second);
  c.expect(values != nullptr, "attribute scales must hold floats");
  return {values->begin(), values->end()};
}

void apply_sizes(const NodeContext& c, Settings& s, const std::vector<int64_t>& axes,
                 const std::vector<int64_t>& sizes, const Shape& x) {
  c.expect(sizes.size() == axes.size(), "sizes ", to_string(sizes), " must have ",
           counted(axes.size(), "value"));
  // The scale that the axes get: the smallest scale for all (-1), the largest for all (1), or for each axis
  // the scale of its size (0).
  const int policy = choice<int>(c, "keep_aspect_ratio_policy", "stretch",
                                 {{"stretch", 0}, {"not_larger", -1}, {"not_smaller", 1}});
  double shared = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    Axis& a = s.axes[static_cast<size_t>(axes[i])];
    c.expect(sizes[i] >= 0 && (a.input > 0 || sizes[i] == 0), "cannot resize ", counted(a.input, "element"),
             " to ", sizes[i], " along axis ", axes[i]);
    a.output = sizes[i];
    a.scale = a.input > 0 ? static_cast<double>(a.output) / static_cast<double>(a.input) : 1;
    shared = i == 0 ? a.scale : policy < 0 ? std::min(shared, a.scale) : std::max(shared, a.scale);
  }
  if (policy == 0) return;
  for (const int64_t axis : axes) {
    Axis& a = s.axes[static_cast<size_t>(axis)];
    a.scale = shared;
    c.expect(shared * static_cast<double>(a.input) < kLargestSize, "the sizes ", to_string(sizes),
             " make axis ", axis, " of ", to_string(x), " too long");
    a.output = static_cast<int64_t>(std::floor(shared * static_cast<double>(a.input) + 0.5));
  }
}

void apply_scales(const NodeContext& c, Settings& s, const std::vector<int64_t>& axes,
                  const std::vector<double>& scales, const Shape& x) {
  c.expect(scales.size() == axes.size(), "scales must have ", counted(axes.size(), "value"), ", found ",
           scales.size());
  for (size_t i = 0; i < axes.size(); ++i) {
    Axis& a = s.axes[static_cast<size_t>(axes[i])];
    c.expect(std::isfinite(scales[i]) && scales[i] > 0, "scales must be positive, found ", scales[i]);
    c.expect(scales[i] * static_cast<double>(a.input) < kLargestSize, "a scale of ", scales[i],
             " makes axis ", axes[i], " of ", to_string(x), " too long");
    a.scale = scales[i];
    a.output = static_cast<int64_t>(std::floor(a.scale * static_cast<double>(a.input)));
  }
}

// The part of X that tf_crop_and_resize takes.
void apply_roi(const NodeContext& c, Settings& s, const std::vector<int64_t>& axes, size_t roi_at) {
  c.expect(given(c, roi_at), "tf_crop_and_resize needs the input roi");
  const std::vector<double> roi = constant_numbers(c, roi_at);
  c.expect(roi.size() == 2 * axes.size(), "roi must have two values for each of ",
           counted(axes.size(), "axis"), ", found ", roi.size());
  for (const double place : roi)
    c.expect(std::abs(place) <= kLargestRoi, "roi must be in [", -kLargestRoi, ", ", kLargestRoi, "], found ",
             place);
  for (size_t i = 0; i < axes.size(); ++i) {
    s.axes[static_cast<size_t>(axes[i])].from = roi[i];
    s.axes[static_cast<size_t>(axes[i])].to = roi[axes.size() + i];
  }
}

// Reads a node whose input X, at `x_at`, has the given shape; roi, scales and sizes follow it.
Settings read_settings(const NodeContext& c, Form form, const Shape& x, size_t x_at) {
  Settings s;
  s.upsample = form_of(c.node(), c.opset(), form) == Form::kUpsample;
  const size_t roi_at = x_at + 1, scales_at = s.upsample ? x_at + 1 : x_at + 2, sizes_at = x_at + 3;
  read_modes(c, s);

  const int64_t rank = static_cast<int64_t>(x.size());
  std::vector<int64_t> axes = c.node().ints_or("axes", {});
  if (axes.empty())
    for (int64_t i = 0; i < rank; ++i) axes.push_back(i);
  axes = normalize_axes(c, axes, rank);
  s.axes.resize(x.size());
  for (size_t i = 0; i < x.size(); ++i) s.axes[i].input = s.axes[i].output = x[i];

  const std::vector<double> scales = read_scales(c, scales_at);
  const bool by_size = !s.upsample && given(c, sizes_at);
  c.expect(by_size != !scales.empty() || rank == 0, "exactly one of scales and sizes must be given");
  if (by_size)
    apply_sizes(c, s, axes, constant_ints(c, sizes_at), x);
  else
    apply_scales(c, s, axes, scales, x);
  const bool crop = s.coordinates == Coordinates::kTfCropAndResize;
  if (crop) apply_roi(c, s, axes, roi_at);
  for (Axis& a : s.axes)
    a.identity = a.input == a.output && a.scale == 1 && (!crop || (a.from == 0 && a.to == 1));
  return s;
}

// The place in the input from which position `o` of the result is taken.
double origin(const Settings& s, const Axis& a, int64_t o) {
  const double x = static_cast<double>(o), input = static_cast<double>(a.input), output = a.scale * input;
  switch (s.coordinates) {
    case Coordinates::kAlignCorners:
      return output == 1 ? 0 : x * (input - 1) / (output - 1);
    case Coordinates::kAsymmetric:
      return x / a.scale;
    case Coordinates::kTfHalfPixelForNearest:
      return (x + 0.5) / a.scale;
    case Coordinates::kTfCropAndResize:
      return a.from * (input - 1) + (output == 1 ? (a.to - a.from) * (input - 1) / 2
                                                 : x * (a.to - a.from) * (input - 1) / (output - 1));
    case Coordinates::kPytorchHalfPixel:
      return output == 1 ? -0.5 : (x + 0.5) / a.scale - 0.5;
    case Coordinates::kHalfPixelSymmetric:
      // Centers the result if rounding made it shorter.
      return input / 2 * (1 - static_cast<double>(a.output) / output) + (x + 0.5) / a.scale - 0.5;
    case Coordinates::kHalfPixel:
      break;
  }
  return (x + 0.5) / a.scale - 0.5;
}

// Keys' cubic convolution at distance `x`.
double cubic(double x, double a) {
  x = std::abs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

// The computation along one axis: for each position of the result `taps` elements of the input and their
// weights.
struct Table {
  int64_t input, output, taps;
  std::vector<int64_t> index;   // [output][taps]
  std::vector<double> weight;   // [output][taps]; empty for mode nearest, where the only weight is 1
  std::vector<uint8_t> inside;  // [output]; empty where none is outside
};

int64_t nearest_index(Nearest mode, double x) {
  const double below = std::floor(x), rest = x - below;
  bool up = rest > 0;
  if (mode == Nearest::kFloor) up = false;
  if (mode == Nearest::kRoundPreferFloor) up = rest > 0.5;
  if (mode == Nearest::kRoundPreferCeil) up = rest >= 0.5;
  return static_cast<int64_t>(below) + up;
}

Table make_table(const Settings& s, const Axis& a, const std::string& label) {
  const bool linear = s.mode == Mode::kLinear;
  // Antialiasing stretches the interpolation's kernel over all that one element of a smaller result covers.
  const double stretch = s.antialias ? std::min(a.scale, 1.0) : 1.0;
  if (a.output == 0 || a.input == 0) return {a.input, a.output, 1, {}, {}, {}};
  const int64_t reach = cast_number<int64_t>(std::ceil((linear ? 1 : 2) / stretch));
  const int64_t taps = s.mode == Mode::kNearest ? 1 : capped_product({2, reach});
  require(capped_product({taps, a.output}) <= kLargestTable, ErrorCode::kInvalidArgument, label,
          ": resizing ", counted(a.input, "element"), " to ", a.output, " takes a table that is too large");
  Table t{a.input, a.output, taps, {}, {}, {}};
  const int64_t last = a.input - 1;
  const Nearest nearest = s.upsample && a.scale < 1 ? Nearest::kCeil : s.nearest;
  if (s.coordinates == Coordinates::kTfCropAndResize) {
    for (int64_t o = 0; o < a.output; ++o) {
      const double x = origin(s, a, o);
      t.inside.push_back(x >= 0 && x <= static_cast<double>(last));
    }
    if (std::all_of(t.inside.begin(), t.inside.end(), [](uint8_t i) { return i != 0; })) t.inside.clear();
  }
  for (int64_t o = 0; o < a.output; ++o) {
    const double x = origin(s, a, o);
    if (s.mode == Mode::kNearest) {
      t.index.push_back(std::clamp<int64_t>(nearest_index(nearest, x), 0, last));
      continue;
    }
    // If x is exactly the position of an element, that element is taken as the right neighbour. The element
    // has all the weight in any case, but the choice decides which other elements may be outside.
    const int64_t first = static_cast<int64_t>(std::ceil(x)) - reach;
    double sum = 0;
    for (int64_t i = first; i < first + t.taps; ++i) {
      const double distance = stretch * (static_cast<double>(i) - x);
      double weight = linear ? std::max(0.0, 1 - std::abs(distance)) : cubic(distance, s.cubic_a);
      if (s.exclude_outside && (i < 0 || i > last)) weight = 0;
      sum += weight;
      t.index.push_back(std::clamp<int64_t>(i, 0, last));
      t.weight.push_back(weight);
    }
    if ((s.exclude_outside || s.antialias) && sum != 0)
      for (auto w = t.weight.end() - t.taps; w != t.weight.end(); ++w) *w /= sum;
  }
  return t;
}

// One pass: a tensor [outer, input, inner] becomes [outer, output, inner], or the other way round. Elements
// of an unsigned type are only copied, forward in mode nearest.
template <typename T>
struct Pass {
  static constexpr bool kCopies = std::is_unsigned_v<T>;
  int64_t outer, inner, input, output, taps;
  std::vector<int64_t> index;
  std::vector<T> weight;
  std::vector<uint8_t> inside;
  T extrapolation;
  // For the gradient: for each element of the input, the elements of the result that read it (`users`), and
  // where they start (`starts`, [input + 1]).
  std::vector<int64_t> starts, users;
  std::vector<T> user_weights;

  Pass(const Table& t, int64_t outer_, int64_t inner_, T extrapolation_, bool back)
      : outer(outer_),
        inner(inner_),
        input(t.input),
        output(t.output),
        taps(t.taps),
        index(t.index),
        weight(t.weight.begin(), t.weight.end()),
        inside(t.inside),
        extrapolation(extrapolation_) {
    if constexpr (!kCopies)
      if (back) list_users();
  }

  void list_users() {
    std::vector<std::vector<std::pair<int64_t, T>>> lists(static_cast<size_t>(input));
    for (int64_t o = 0; o < output; ++o)
      for (int64_t k = 0; k < taps; ++k) {
        const size_t at = static_cast<size_t>(o * taps + k);
        const T w = weight.empty() ? T(1) : weight[at];
        if (w == T(0) || (!inside.empty() && !inside[static_cast<size_t>(o)])) continue;
        lists[static_cast<size_t>(index[at])].emplace_back(o, w);
      }
    for (const auto& list : lists) {
      starts.push_back(static_cast<int64_t>(users.size()));
      for (const auto& [o, w] : list) {
        users.push_back(o);
        user_weights.push_back(w);
      }
    }
    starts.push_back(static_cast<int64_t>(users.size()));
  }

  void forward(const T* x, T* y) const {
    if (inner == 1) return forward_lines(x, y);
    parallel_for(outer * output, inner * taps, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t slab = row / output, o = row % output;
        const T* from = x + slab * input * inner;
        T* to = y + row * inner;
        if (!inside.empty() && !inside[static_cast<size_t>(o)]) {
          std::fill(to, to + inner, extrapolation);
          continue;
        }
        const int64_t* i = index.data() + o * taps;
        if (kCopies || weight.empty()) {
          std::copy(from + *i * inner, from + (*i + 1) * inner, to);
          continue;
        }
        const T* w = weight.data() + o * taps;
        if (taps == 2) {
          const T *a = from + i[0] * inner, *b = from + i[1] * inner;
          for (int64_t j = 0; j < inner; ++j) to[j] = w[0] * a[j] + w[1] * b[j];
        } else {
          std::fill(to, to + inner, T(0));
          for (int64_t k = 0; k < taps; ++k) {
            const T* a = from + i[k] * inner;
            for (int64_t j = 0; j < inner; ++j) to[j] += w[k] * a[j];
          }
        }
      }
    });
  }

  // Along the innermost axis, one line after the other.
  void forward_lines(const T* x, T* y) const {
    parallel_for(outer, output * taps * 2, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const T* from = x + line * input;
        T* to = y + line * output;
        const int64_t* i = index.data();
        const T* w = weight.data();
        if (kCopies || weight.empty())
          for (int64_t o = 0; o < output; ++o) to[o] = from[i[o]];
        else if (taps == 2)
          for (int64_t o = 0; o < output; ++o)
            to[o] = w[2 * o] * from[i[2 * o]] + w[2 * o + 1] * from[i[2 * o + 1]];
        else
          for (int64_t o = 0; o < output; ++o, i += taps, w += taps) {
            T sum = 0;
            for (int64_t k = 0; k < taps; ++k) sum += w[k] * from[i[k]];
            to[o] = sum;
          }
        if (!inside.empty())
          for (int64_t o = 0; o < output; ++o)
            if (!inside[static_cast<size_t>(o)]) to[o] = extrapolation;
      }
    });
  }

  // Each element of dx adds up the gradients of the results that read it, so no two threads write to the same
  // element.
  void backward(const T* dy, T* dx) const {
    const int64_t uses = std::max<int64_t>(1, starts.back() / std::max<int64_t>(1, input));
    if (inner == 1) {
      parallel_for(outer, input * uses * 2, [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          const T* from = dy + line * output;
          int64_t u = 0;
          for (int64_t i = 0; i < input; ++i) {
            T sum = 0;
            for (const int64_t last = starts[static_cast<size_t>(i) + 1]; u < last; ++u)
              sum += user_weights[static_cast<size_t>(u)] * from[users[static_cast<size_t>(u)]];
            dx[line * input + i] = sum;
          }
        }
      });
      return;
    }
    parallel_for(outer * input, inner * uses, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t slab = row / input, i = row % input;
        const T* from = dy + slab * output * inner;
        T* to = dx + row * inner;
        std::fill(to, to + inner, T(0));
        for (int64_t u = starts[static_cast<size_t>(i)]; u < starts[static_cast<size_t>(i) + 1]; ++u) {
          const T w = user_weights[static_cast<size_t>(u)];
          const T* a = from + users[static_cast<size_t>(u)] * inner;
          for (int64_t j = 0; j < inner; ++j) to[j] += w * a[j];
        }
      }
    });
  }
};

// The kernel that runs the passes of the axes that change. Axes that shrink come first and axes that grow
// come last, so that the tensors between the passes are small. Of two axes with equal growth, the inner axis,
// whose pass is slower, works on the smaller tensor. The gradient runs the passes in reverse order.
template <typename T>
Kernel run_passes(KernelContext& c, const Settings& s, bool back, Slot from, Slot to) {
  std::vector<size_t> order;
  for (size_t i = 0; i < s.axes.size(); ++i)
    if (!s.axes[i].identity) order.push_back(i);
  stable_sort(order, [&](size_t a, size_t b) {
    const auto growth = [](const Axis& x) {
      return static_cast<double>(x.output) / static_cast<double>(std::max<int64_t>(1, x.input));
    };
    const double x = growth(s.axes[a]), y = growth(s.axes[b]);
    return x != y ? x < y : x > 1 ? a > b : a < b;
  });
  Shape at;
  for (const Axis& a : s.axes) at.push_back(a.input);
  if (order.empty())
    return [=, bytes = static_cast<size_t>(element_count(at)) * sizeof(T)](const Frame& f) {
      copy_bytes(f.at<std::byte>(to), f.at<std::byte>(from), bytes);
    };
  // Shared, because the kernel is a lambda that captures by copy.
  const auto passes = std::make_shared<std::vector<Pass<T>>>();
  int64_t largest = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    const size_t i = order[k];
    passes->emplace_back(make_table(s, s.axes[i], c.node().label()), element_count(at, 0, i),
                         element_count(at, i + 1, at.size()), cast_number<T>(s.extrapolation), back);
    at[i] = s.axes[i].output;
    if (k + 1 < order.size()) largest = std::max(largest, element_count(at));
  }
  if (back) std::reverse(passes->begin(), passes->end());
  const size_t between = static_cast<size_t>(largest) * sizeof(T);
  const Slot first = c.scratch(passes->size() > 1 ? between : 0),
             second = c.scratch(passes->size() > 2 ? between : 0);
  return [=](const Frame& f) {
    const T* source = f.at<const T>(from);
    for (size_t k = 0; k < passes->size(); ++k) {
      T* target = k + 1 == passes->size() ? f.at<T>(to) : f.at<T>(k % 2 == 0 ? first : second);
      if (!back) (*passes)[k].forward(source, target);
      if constexpr (!Pass<T>::kCopies)
        if (back) (*passes)[k].backward(source, target);
      source = target;
    }
  };
}

void shape(ShapeContext& c, Form form) {
  c.output(0, c.dtype(0), read_settings(c, form, c.shape(0), 0).output_shape());
}

Kernel kernel(KernelContext& c, Form form) {
  Settings s = read_settings(c, form, c.shape(0), 0);
  if (c.out_size(0) == 0) return c.out(0), nothing_to_do();
  const AxisOrder order = order_of_inputs(c);
  s.axes = order.sorted(s.axes);
  Kernel kernel;
  const bool floating = visit_floating(c.dtype(0), [&](auto zero) {
    const Slot x = c.in(0, order.layout(c.shape(0)));
    kernel = run_passes<decltype(zero)>(c, s, false, x, c.out(0, order.layout(c.out_shape(0))));
  });
  if (floating) return kernel;
  // Mode nearest only copies elements of any type.
  if (s.mode != Mode::kNearest || s.coordinates == Coordinates::kTfCropAndResize) c.reject_dtype(0);
  const Slot x = c.in(0), y = c.out(0);
  // A copy keeps all bits, also those of integers that are copied as floats of the same size.
  const size_t width = width_of(c, 0);
  if (width == sizeof(float)) return run_passes<float>(c, s, false, x, y);
  if (width == sizeof(double)) return run_passes<double>(c, s, false, x, y);
  const auto bytes = static_cast<int64_t>(width);
  s.axes.push_back({.input = bytes, .output = bytes, .identity = true});  // the bytes of an element
  return run_passes<uint8_t>(c, s, false, x, y);
}

// ResizeGrad(dY, X, roi, scales, sizes), UpsampleGrad(dY, X, scales): of X only the shape counts.
void grad_shape(ShapeContext& c, Form form) {
  const Shape y = read_settings(c, form, c.shape(1), 1).output_shape();
  c.expect(c.shape(0) == y, "the gradient dY must have shape ", to_string(y), ", found ",
           to_string(c.shape(0)));
  c.expect(c.dtype(0) == c.dtype(1), "dY and X must have the same type, found ", to_string(c.dtype(0)),
           " and ", to_string(c.dtype(1)));
  c.output(0, c.dtype(0), c.shape(1));
}

Kernel grad_kernel(KernelContext& c, Form form) {
  Settings s = read_settings(c, form, c.shape(1), 1);
  if (c.out_size(0) == 0) return c.out(0), nothing_to_do();
  const AxisOrder order = order_of_inputs(c);
  s.axes = order.sorted(s.axes);
  Kernel kernel;
  const bool known = visit_floating(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const Slot dy = c.in(0, order.layout(c.shape(0))), dx = c.out(0, order.layout(c.out_shape(0)));
    if (c.size(0) == 0)
      kernel = [=, bytes = static_cast<size_t>(c.out_size(0)) * sizeof(T)](const Frame& f) {
        zero_bytes(f.at<std::byte>(dx), bytes);
      };
    else
      kernel = run_passes<T>(c, s, true, dy, dx);
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

// roi, scales and sizes only place the elements, so they get no gradient.
void gradient(GradientContext& g, Form form) {
  Names inputs = {g.dy(0), g.x(0)};
  for (size_t i = 1; i < g.node().inputs.size(); ++i) inputs.push_back(g.x(i));
  g.set(0, g(form_of(g.node(), g.opset(), form) == Form::kUpsample ? "UpsampleGrad" : "ResizeGrad", inputs,
             g.node().attributes, kMicrosoft));
}

// dX is linear in dY with the weights of the forward pass, so with u the gradient of dX, the gradient of dY
// is u resized.
void grad_gradient(GradientContext& g, Form form) {
  Names inputs = {g.dy(0)};
  inputs.insert(inputs.end(), g.node().inputs.begin() + 2, g.node().inputs.end());
  g.set(0, g(form == Form::kUpsample ? "Upsample" : "Resize", inputs, g.node().attributes));
}

ORTRAIN_OPERATOR({.type = "Resize",
                  .rules = {.shape = kVariant<shape, Form::kResize>,
                            .gradient = kVariant<gradient, Form::kResize>},
                  .kernels = {.cpu = kVariant<kernel, Form::kResize>}});
ORTRAIN_OPERATOR({.type = "Upsample",
                  .rules = {.shape = kVariant<shape, Form::kUpsample>,
                            .gradient = kVariant<gradient, Form::kUpsample>},
                  .traits = {.since = 7},
                  .kernels = {.cpu = kVariant<kernel, Form::kUpsample>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "ResizeGrad",
                  .signature = "dY, X, roi?, scales?, sizes? -> dX",
                  .rules = {.shape = kVariant<grad_shape, Form::kResize>,
                            .gradient = kVariant<grad_gradient, Form::kResize>},
                  .kernels = {.cpu = kVariant<grad_kernel, Form::kResize>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "UpsampleGrad",
                  .signature = "dY, X, scales? -> dX",
                  .rules = {.shape = kVariant<grad_shape, Form::kUpsample>,
                            .gradient = kVariant<grad_gradient, Form::kUpsample>},
                  .kernels = {.cpu = kVariant<grad_kernel, Form::kUpsample>}});

// -----------------------------------------------------------------------------------------------------------
// With operators of ONNX. Axes are resized one after the other: along an axis, Y = R X with a matrix R, which
// is the identity resized along its first axis, and dX = Rᵀ dY.

// The gradient along one axis. `scale` and `size`: one element, or empty.
Name resized_axis_form(DecompositionContext& e, Name dy, int64_t axis, int64_t rank, Name length, Name scale,
                       Name size, Name region) {
  const Name square = e("Concat", {length, length}, {{"axis", int64_t{0}}});
  const Name identity = e("EyeLike", {e("Expand", {e.scalar_like(dy, 0), square})});
  Attributes attributes = e.node().attributes;
  attributes.erase("axes");
  attributes.erase("extrapolation_value");  // no element of X
  Names inputs = {identity, region, ""};
  if (!size.empty())
    inputs.push_back(e("Concat", {size, length}, {{"axis", int64_t{0}}}));
  else
    inputs[2] = e("Concat", {scale, e.constant(Tensor::of<float>({1}))}, {{"axis", int64_t{0}}});
  const Name resized = e("Resize", inputs, attributes);
  if (axis == rank - 2)
    return e("MatMul", {e("Transpose", {resized}, {{"perm", std::vector<int64_t>{1, 0}}}), dy});
  std::vector<int64_t> order(static_cast<size_t>(rank));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::swap(order[static_cast<size_t>(axis)], order.back());
  if (axis == rank - 1) return e("MatMul", {dy, resized});
  return e("Transpose", {e("MatMul", {e("Transpose", {dy}, {{"perm", order}}), resized})}, {{"perm", order}});
}

void grad_form(DecompositionContext& e, Form form) {
  const Node& node = e.node();
  const size_t scales_at = form == Form::kUpsample ? 2 : 3, sizes_at = 4;
  if (node.string_or("keep_aspect_ratio_policy", "stretch") != "stretch")
    e.reject("its gradient has a standard form only with the policy stretch");
  const bool crops = node.string_or("coordinate_transformation_mode", "") == "tf_crop_and_resize";
  const Name x = e.x(1);
  const int64_t rank = need_rank(e, x);
  std::vector<int64_t> every(static_cast<size_t>(rank));
  for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<int64_t>(i);
  const std::vector<int64_t> axes = node.ints_or("axes", every);
  const bool by_sizes = form == Form::kResize && e.has_x(sizes_at);
  const Name settings = by_sizes ? e.x(sizes_at) : e.x(scales_at);
  const Tensor* known = e.constant_value(settings);
  const auto from = e.dims(x), to = e.dims(e.x(0));
  Name dx = e.x(0);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = normalize_axis(axes[i], rank, node.label());
    const auto at = static_cast<size_t>(axis);
    const bool unchanged = crops      ? false
                           : by_sizes ? from && to && (*from)[at].same((*to)[at])
                                      : known && known->to_double().at(i) == 1;
    if (unchanged) continue;
    const auto element = [&](const std::string& values, size_t k) {
      return e("Slice",
               {values, e.int64s({static_cast<int64_t>(k)}), e.int64s({static_cast<int64_t>(k) + 1})});
    };
    const Name one = element(settings, i);
    Name region;
    if (crops) {
      const Name none = cast_like(e, e.constant(Tensor::of<float>({0})), e.x(2)),
                 all = cast_like(e, e.constant(Tensor::of<float>({1})), e.x(2));
      region = e("Concat", {element(e.x(2), i), none, element(e.x(2), axes.size() + i), all},
                 {{"axis", int64_t{0}}});
    }
    const Name length = dims_of(e, x, axis, axis + 1);
    dx = resized_axis_form(e, dx, axis, rank, length, by_sizes ? "" : one, by_sizes ? one : "", region);
  }
  e.set(0, dx == e.x(0) ? e("Identity", {dx}) : dx);
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "ResizeGrad", {cold<kVariant<grad_form, Form::kResize>>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "UpsampleGrad", {cold<kVariant<grad_form, Form::kUpsample>>});

}  // namespace
}  // namespace ortrain
