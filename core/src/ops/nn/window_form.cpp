#include "ops/nn/window_form.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "ops/common/decomposed.h"

namespace ortrain {
namespace {

using Ints = std::vector<int64_t>;

// The results of value() for all axes, as the list of an attribute.
template <typename F>
Ints each(const std::vector<WindowForm>& windows, F&& value) {
  Ints values;
  for (const WindowForm& w : windows) values.push_back(value(w));
  return values;
}

Ints pads_of(const std::vector<WindowForm>& windows, const Ints& after) {
  Ints pads = each(windows, [](const WindowForm& w) { return w.before; });
  pads.insert(pads.end(), after.begin(), after.end());
  return pads;
}

// The spatial axes of the value cut to [0, ends).
Name cut(DecompositionContext& e, Name value, Name ends, size_t count) {
  Ints axes(count);
  std::iota(axes.begin(), axes.end(), 2);
  return e("Slice", {value, e.int64s(Ints(count, 0)), ends, e.int64s(axes)});
}

// [N, C, spatial...] as [C / groups, groups N, spatial...].
Name channels_as_batch(DecompositionContext& e, Name x, int64_t groups) {
  const std::vector<Dim> dims = *e.dims(x);
  Ints order(dims.size());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[0], order[1]);
  const Name swapped = e("Transpose", {x}, {{"perm", order}});
  if (groups == 1) return swapped;
  if (!dims[1].known()) e.reject("the number of channels of \"", x, "\" is not known");
  const int64_t each = dims[1].value / groups;
  const Name apart = e("Reshape", {swapped, with_dims_after(e, {groups, each, -1}, x, 2)});
  Ints grouped(dims.size() + 1);
  std::iota(grouped.begin(), grouped.end(), 0);
  std::swap(grouped[0], grouped[1]);
  return e("Reshape", {e("Transpose", {apart}, {{"perm", grouped}}), with_dims_after(e, {each, -1}, x, 2)});
}

// From this number of channels on, matrix products of channels are efficient.
constexpr int64_t kManyChannels = 16;
constexpr int64_t kMostProducts = 32;

bool has_many_channels(const DecompositionContext& e, const std::string& value, size_t axis) {
  const auto dims = e.dims(value);
  return dims && dims->size() > axis && (*dims)[axis].known() && (*dims)[axis].value >= kManyChannels;
}

// The gradient of the weights as a matrix product of dY with the elements of X that each element of a filter
// reads: dW[m, c, k] = Σ_(n, o) dY[n, m, o] X[n, c, o stride + k dilation]. `order` swaps samples and
// channels.
Name weight_products(DecompositionContext& e, const std::vector<WindowForm>& windows, Name dy, Name x,
                     const Ints& order) {
  const size_t count = windows.size();
  int64_t elements = 1;
  Ints front(2, 0), back(2, 0), kernel, axes(count), steps, begin(count, 0);
  for (const WindowForm& w : windows) {
    elements *= w.kernel;
    kernel.push_back(w.kernel);
    steps.push_back(w.stride);
    front.push_back(w.before);
    back.push_back(std::max<int64_t>(0, (*w.output - 1) * w.stride + w.span() - *w.input - w.before));
  }
  std::iota(axes.begin(), axes.end(), 2);
  const auto rows = [&](Name value) {  // [C, N, spatial...] as [C, all the rest]
    return e("Flatten", {value}, {{"axis", int64_t{1}}});
  };
  Name seen = e("Transpose", {x}, {{"perm", order}});
  Ints pads = front;
  pads.insert(pads.end(), back.begin(), back.end());
  if (std::any_of(pads.begin(), pads.end(), [](int64_t p) { return p != 0; }))
    seen = e("Pad", {seen, e.int64s(pads)});
  const Name gradients = rows(e("Transpose", {dy}, {{"perm", order}}));
  Names parts;
  for (int64_t k = 0; k < elements; ++k) {
    Ints first(count), last(count);
    int64_t rest = k;
    for (size_t i = count; i-- > 0; rest /= windows[i].kernel) {
      first[i] = rest % windows[i].kernel * windows[i].dilation;
      last[i] = first[i] + (*windows[i].output - 1) * windows[i].stride + 1;
    }
    const Name part = e("Slice", {seen, e.int64s(first), e.int64s(last), e.int64s(axes), e.int64s(steps)});
    parts.push_back(e.unsqueeze(e("Gemm", {gradients, rows(part)}, {{"transB", int64_t{1}}}), {2}));
  }
  const Name all = parts.size() == 1 ? parts[0] : e("Concat", parts, {{"axis", int64_t{2}}});
  kernel.insert(kernel.begin(), {0, 0});
  return e("Reshape", {all, e.int64s(kernel)});
}

}  // namespace

std::vector<WindowForm> windows_of(const DecompositionContext& e, const Dims& input, const Dims& output,
                                   const std::vector<int64_t>& kernel) {
  const Node& node = e.node();
  const Ints sizes = node.ints_or("kernel_shape", kernel);
  const size_t count = sizes.size();
  const Ints strides = node.ints_or("strides", Ints(count, 1)),
             dilations = node.ints_or("dilations", Ints(count, 1)),
             pads = node.ints_or("pads", Ints(2 * count, 0));
  const std::string automatic = node.string_or("auto_pad", "NOTSET");
  const auto size_at = [&](const Dims& dims, size_t i) -> std::optional<int64_t> {
    if (!dims || dims->size() != count + 2 || !(*dims)[i + 2].known()) return std::nullopt;
    return (*dims)[i + 2].value;
  };
  std::vector<WindowForm> windows;
  for (size_t i = 0; i < count; ++i) {
    WindowForm w{sizes[i],           strides.at(i),     dilations.at(i),   pads.at(i),
                 pads.at(i + count), size_at(input, i), size_at(output, i)};
    if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
      if (!w.input || !w.output)
        e.reject("auto_pad ", automatic,
                 " needs the spatial sizes of the input and the output, which the model does not "
                 "declare; make them fixed");
      const int64_t total = std::max<int64_t>(0, (*w.output - 1) * w.stride + w.span() - *w.input);
      w.before = automatic == "SAME_UPPER" ? total / 2 : total - total / 2;
      w.after = total - w.before;
    } else if (automatic == "VALID") {
      w.before = w.after = 0;
    }
    windows.push_back(w);
  }
  return windows;
}

std::vector<int64_t> kernel_of(const DecompositionContext& e, const std::string& weights) {
  const auto dims = e.dims(weights);
  Ints kernel;
  for (size_t i = 2; dims && i < dims->size(); ++i) {
    if (!(*dims)[i].known()) e.reject("the size of the kernel \"", weights, "\" is not known");
    kernel.push_back((*dims)[i].value);
  }
  if (kernel.empty()) e.reject("the shape of the kernel \"", weights, "\" is not known");
  return kernel;
}

Name spread_windows(DecompositionContext& e, const std::vector<WindowForm>& windows, Name dy, Name weights,
                    int64_t groups, Name like) {
  // The result of ConvTranspose has all elements that the windows reach, and `extra` more.
  bool exact = true;
  Ints after, extra;
  for (const WindowForm& w : windows) {
    after.push_back(w.after);
    extra.push_back(w.stride - 1);
    if (!w.input || !w.output) {
      exact &= w.stride == 1;
      continue;
    }
    const int64_t reached = (*w.output - 1) * w.stride + w.span() - w.before;  // without padding at the end
    const int64_t missing = *w.input - reached;  // negative: the windows reach into the padding
    after.back() = std::max<int64_t>(0, -missing);
    extra.back() = std::max<int64_t>(0, missing);
  }
  const Attributes attributes = {
      {"group", groups},
      {"strides", each(windows, [](const WindowForm& w) { return w.stride; })},
      {"dilations", each(windows, [](const WindowForm& w) { return w.dilation; })},
      {"kernel_shape", each(windows, [](const WindowForm& w) { return w.kernel; })},
      {"pads", pads_of(windows, after)},
      {"output_padding", extra}};
  const Name spread = e("ConvTranspose", {dy, weights}, attributes);
  return exact ? spread : cut(e, spread, dims_of(e, like, 2, kToTheLast), windows.size());
}

Name spread_by_convolution(DecompositionContext& e, const std::vector<WindowForm>& windows, Name dy,
                           Name weights) {
  const size_t count = windows.size();
  bool worth_it = has_many_channels(e, weights, 0) && has_many_channels(e, weights, 1), flips = false;
  Ints pads, after, order(count + 2), axes(count);
  for (const WindowForm& w : windows) {
    const int64_t before = w.span() - 1 - w.before, end = w.span() - 1 - w.after;
    // Without padding, the result has more elements than dY, and each element is a sum over a whole filter.
    worth_it &= w.stride == 1 && before >= 0 && end >= 0 && (w.kernel == 1 || w.before + w.after > 0);
    flips |= w.kernel > 1;
    pads.push_back(before);
    after.push_back(end);
  }
  if (!worth_it) return "";
  pads.insert(pads.end(), after.begin(), after.end());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[0], order[1]);
  std::iota(axes.begin(), axes.end(), 2);
  Name filters = e("Transpose", {weights}, {{"perm", order}});
  const Name back = e.int64s(Ints(count, -1));
  if (flips)
    filters = e("Slice", {filters, back, e.int64s(Ints(count, INT64_MIN + 1)), e.int64s(axes), back});
  return e("Conv", {dy, filters},
           {{"dilations", each(windows, [](const WindowForm& w) { return w.dilation; })}, {"pads", pads}});
}

Name weight_gradient(DecompositionContext& e, const std::vector<WindowForm>& windows, Name dy, Name x,
                     int64_t groups) {
  const size_t count = windows.size();
  // dW[m, c, k] = sum over samples and windows o of dY[n, m, o] X[n, c, o stride + k dilation - before]: a
  // convolution of X, whose channels are the samples here, with dY as the kernel; strides and dilations
  // change places.
  bool exact = true, shorter = false;
  Ints after, used, kernel;
  for (const WindowForm& w : windows) {
    kernel.push_back(w.kernel);
    after.push_back(w.after);
    used.push_back(INT64_MAX);
    if (!w.input || !w.output) {
      exact &= w.stride == 1;
      continue;
    }
    const int64_t reach = (*w.output - 1) * w.stride + w.span() - *w.input - w.before;
    after.back() = std::max<int64_t>(0, reach);
    if (reach < 0) used.back() = *w.input + reach, shorter = true;
  }
  const bool known =
      std::all_of(windows.begin(), windows.end(), [](const WindowForm& w) { return w.input && w.output; });
  Ints order(count + 2);
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[0], order[1]);
  const int64_t elements = std::accumulate(kernel.begin(), kernel.end(), int64_t{1}, std::multiplies<>());
  if (groups == 1 && known && elements <= kMostProducts && has_many_channels(e, x, 1))
    return weight_products(e, windows, dy, x, order);
  const Name data = shorter ? cut(e, x, e.int64s(used), count) : x;
  const Name filters = e("Transpose", {dy}, {{"perm", order}});
  const Attributes attributes = {{"group", groups},
                                 {"strides", each(windows, [](const WindowForm& w) { return w.dilation; })},
                                 {"dilations", each(windows, [](const WindowForm& w) { return w.stride; })},
                                 {"pads", pads_of(windows, after)}};
  const Name gradient = e("Conv", {channels_as_batch(e, data, groups), filters}, attributes);
  const Name transposed = e("Transpose", {gradient}, {{"perm", order}});
  return exact ? transposed : cut(e, transposed, e.int64s(kernel), count);
}

}  // namespace ortrain
