#include "geometry/sliding_window.h"

#include <algorithm>

#include "runtime/checked.h"

namespace ortrain {

namespace {

// The largest size of an input and of a window along an axis. Sums of two such sizes fit in int64.
constexpr int64_t kMostInput = int64_t{1} << 56;

void check_axis_values(const NodeContext& c, const char* name, const std::vector<int64_t>& values,
                       int64_t smallest) {
  for (const int64_t v : values) {
    c.expect(v >= smallest, "every value of attribute ", name, " must be at least ", smallest, ", found ",
             to_string(values));
    c.expect(v <= kMaxStep, "every value of attribute ", name, " must be at most ", kMaxStep, ", found ",
             to_string(values));
  }
}

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The attributes, without the sizes of input and output.
Window read_attributes(const NodeContext& c, size_t axes, std::vector<int64_t> kernel) {
  c.expect(axes >= 1 && axes <= 3, "its input must have shape [N, C, D1] to [N, C, D1, D2, D3], found ",
           counted(axes, "spatial axis"));
  if (kernel.empty()) {
    c.expect(c.node().has("kernel_shape"), "attribute kernel_shape is required but missing");
    kernel = read_axis_values(c, "kernel_shape", axes, 1, 1);
  }
  const std::vector<int64_t> strides = read_axis_values(c, "strides", axes, 1, 1);
  const std::vector<int64_t> dilations = read_axis_values(c, "dilations", axes, 1, 1);
  Window window(axes);
  for (size_t i = 0; i < axes; ++i) {
    window[i].kernel = kernel[i];
    window[i].stride = strides[i];
    window[i].dilation = dilations[i];
    c.expect(window[i].span() < kMostInput, "a window of ", counted(kernel[i], "element"), " with dilation ",
             dilations[i], " is too long");
  }
  if (read_auto_pad(c) == AutoPad::kNone) {
    const std::vector<int64_t> pads = read_axis_values(c, "pads", 2 * axes, 0, 0);
    for (size_t i = 0; i < axes; ++i) {
      window[i].before = pads[i];
      window[i].after = pads[axes + i];
    }
  }
  return window;
}

// Completes an axis whose input is known: padding of SAME, number of windows.
void place_windows(WindowAxis& a, AutoPad auto_pad, bool round_up) {
  if (auto_pad == AutoPad::kUpper || auto_pad == AutoPad::kLower) {
    a.output = ceil_divide(a.input, a.stride);
    const int64_t total =
        std::max<int64_t>(0, a.output == 0 ? 0 : (a.output - 1) * a.stride + a.span() - a.input);
    a.pad(total, auto_pad);
    return;
  }
  const int64_t room = a.input + a.before + a.after - a.span();
  if (room < 0) {
    a.output = 0;
    return;
  }
  a.output = (round_up ? ceil_divide(room, a.stride) : room / a.stride) + 1;
  // A window that would start in the padding after the input is omitted.
  if (round_up && (a.output - 1) * a.stride >= a.input + a.before) --a.output;
}

}  // namespace

AutoPad read_auto_pad(const NodeContext& c) {
  const std::string name = c.node().string_or("auto_pad", "NOTSET");
  if (name == "NOTSET" || name.empty()) return AutoPad::kNone;
  if (name == "VALID") return AutoPad::kValid;
  if (name == "SAME_UPPER") return AutoPad::kUpper;
  if (name == "SAME_LOWER") return AutoPad::kLower;
  c.reject("attribute auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER, found '", name, "'");
}

std::vector<int64_t> read_axis_values(const NodeContext& c, const char* name, size_t count, int64_t otherwise,
                                      int64_t smallest) {
  const std::vector<int64_t> values = c.node().ints_or(name, {});
  if (values.empty()) return std::vector<int64_t>(count, otherwise);
  c.expect(values.size() == count, "attribute ", name, " must have ", counted(count, "value"), ", found ",
           to_string(values));
  check_axis_values(c, name, values, smallest);
  return values;
}

void check_window_attributes(const NodeContext& c) {
  const auto check = [&](const char* name, int64_t smallest) {
    const std::vector<int64_t> values = c.node().ints_or(name, {});
    check_axis_values(c, name, values, smallest);
    return values.size();
  };
  size_t axes = check("kernel_shape", 1);
  for (const char* name : {"strides", "dilations"})
    if (const size_t count = check(name, 1); count > 0) {
      c.expect(axes == 0 || count == axes, "attribute ", name, " must have ", counted(axes, "value"),
               ", as others of the node have, found ", count);
      axes = count;
    }
  const size_t pads = check("pads", 0);
  c.expect(pads == 0 || (axes == 0 ? pads % 2 == 0 : pads == 2 * axes),
           "attribute pads must have two values for each axis of the windows, found ", pads,
           axes == 0 ? "" : concat(" for ", counted(axes, "axis")));
  read_groups(c);
  read_auto_pad(c);
}

Window read_window(const NodeContext& c, const Shape& input, const std::vector<int64_t>& kernel) {
  c.expect(input.size() >= 3, "its input must have shape [N, C, D1, ...], found ", to_string(input));
  Window window = read_attributes(c, input.size() - 2, kernel);
  const AutoPad auto_pad = read_auto_pad(c);
  const bool round_up = c.node().int_or("ceil_mode", 0) != 0;
  for (size_t i = 0; i < window.size(); ++i) {
    WindowAxis& a = window[i];
    a.input = input[2 + i];
    place_windows(a, auto_pad, round_up);
    c.expect(a.output >= 1, "a window that spans ", counted(a.span(), "element"), " does not fit axis ",
             2 + i, " of its input ", to_string(input), " with padding ", a.before, " and ", a.after);
  }
  return window;
}

void check_convolution_axes(const NodeContext& c, const Shape& x, const Shape& w) {
  c.expect(x.size() >= 3 && x.size() <= 5,
           "its input X must have shape [N, C, D1] to [N, C, D1, D2, D3], found ", to_string(x));
  c.expect(w.size() == x.size(), "its weights W must have as many axes as X ", to_string(x), ", found ",
           to_string(w));
}

int64_t read_groups(const NodeContext& c) {
  const int64_t groups = c.node().int_or("group", 1);
  c.expect(groups >= 1, "attribute group must be at least 1, found ", groups);
  return groups;
}

std::vector<int64_t> read_kernel(const NodeContext& c, const Shape& w) {
  const std::vector<int64_t> kernel(w.begin() + 2, w.end());
  for (const int64_t k : kernel) c.expect(k >= 1, "the kernel of W ", to_string(w), " is empty");
  const std::vector<int64_t> stated = c.node().ints_or("kernel_shape", kernel);
  c.expect(stated.empty() || stated == kernel, "attribute kernel_shape is ", to_string(stated),
           ", but W has shape ", to_string(w));
  return kernel;
}

Window read_convolution(const NodeContext& c, const Shape& x, const Shape& w) {
  check_convolution_axes(c, x, w);
  const int64_t groups = read_groups(c);
  c.expect(checked_product({w[1], groups}) == x[1], "its input X ", to_string(x), " has ",
           counted(x[1], "channel"), ", but the weights W ", to_string(w), " take ", w[1], " in each of ",
           counted(groups, "group"));
  c.expect(w[0] % groups == 0, "the ", counted(w[0], "filter"), " of W ", to_string(w),
           agreeing(w[0], " is", " are"), " not divisible into ", counted(groups, "group"));
  return read_window(c, x, read_kernel(c, w));
}

Window read_window_from_output(const NodeContext& c, const Shape& output,
                               const std::vector<int64_t>& stated) {
  c.expect(output.size() >= 3, "dY must have shape [N, C, D1, ...], found ", to_string(output));
  const Window attributes = read_attributes(c, output.size() - 2, {});
  const AutoPad auto_pad = read_auto_pad(c);
  const bool round_up = c.node().int_or("ceil_mode", 0) != 0;
  Window window(attributes.size());
  for (size_t i = 0; i < window.size(); ++i) {
    const auto place = [&](int64_t input) {
      window[i] = attributes[i];
      window[i].input = input;
      place_windows(window[i], auto_pad, round_up);
      return window[i].output;
    };
    const int64_t wanted = output[2 + i];
    if (i < stated.size() && stated[i] >= 0) {
      c.expect(place(stated[i]) == wanted, "axis ", 2 + i, " of the input has ",
               counted(stated[i], "element"), ", which yields ", counted(window[i].output, "window"),
               ", but dY has shape ", to_string(output));
      continue;
    }
    // The number of windows grows with the input, so the input sizes with this number of windows are
    // consecutive.
    const WindowAxis& a = attributes[i];
    const auto reach = checked_product({wanted, a.stride});
    c.expect(reach && *reach < kMostInput, "axis ", 2 + i, " of its result would be too long: dY has shape ",
             to_string(output), " and the stride is ", a.stride);
    int64_t found = 0, above = *reach + a.span() + 1;  // the range of the smallest size with `wanted` windows
    while (found < above) {
      const int64_t middle = found + (above - found) / 2;
      if (place(middle) < wanted)
        found = middle + 1;
      else
        above = middle;
    }
    c.expect(place(found) == wanted, "no size of axis ", 2 + i, " of its result yields the ",
             counted(wanted, "window"), " of ", to_string(output));
    c.expect(place(found + 1) != wanted, "the size of axis ", 2 + i, " of its result is not known: ", found,
             " and ", found + 1, " both yield the ", counted(wanted, "window"), " of ", to_string(output),
             "; state the shape of the result in the model's value_info");
    place(found);
  }
  return window;
}

Shape output_shape(int64_t batch, int64_t channels, const Window& window) {
  Shape shape = {batch, channels};
  for (const WindowAxis& a : window) shape.push_back(a.output);
  return shape;
}

Window three_axes(const Window& window) {
  Window out(3 - window.size());
  out.insert(out.end(), window.begin(), window.end());
  return out;
}

}  // namespace ortrain
