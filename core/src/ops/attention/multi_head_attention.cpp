// MultiHeadAttention (com.microsoft), produced by optimizers of transformer models:
//
//     (query, key, value, bias, key_padding_mask, attention_bias, past_key, past_value)
//         → output, present_key, present_value
//
// Operands are [batch, positions, heads * size]; key and value may also be [batch, heads, positions, size].
// bias holds the biases of query, key and value, concatenated. mask_filter_value is added to the scores of
// keys that key_padding_mask hides; the mask is int32, either 0 or not 0 for each key ([batch, keys], [batch,
// queries, keys]) or the number of keys ([batch], or [3 * batch + 2], of which the first [batch] are read).
#include <algorithm>
#include <cmath>

#include "backend/cpu/strided_copy.h"
#include "op/gradient_expression.h"
#include "op/standard_form.h"
#include "ops/attention/attention_node.h"
#include "ops/common/decomposed.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr size_t kBias = 3, kPadding = 4, kScoreBias = 5, kPastKey = 6, kPastValue = 7, kInputs = 8;
constexpr float kFilter = -10000;

enum class Padding { kNone, kLengths, kKeys, kQueriesAndKeys };

struct HeadsNode {
  Attention attention;
  HeadsView q, k, v;
  int64_t past = 0, hidden = 0, v_hidden = 0;
  Padding padding = Padding::kNone;
  float filter;

  explicit HeadsNode(const NodeContext& c) : filter(c.node().float_or("mask_filter_value", kFilter)) {
    for (size_t i = kInputs; i < c.input_count(); ++i)
      c.expect(!c.has_input(i), "input ", i,
               " (keys and values that are kept in a shared buffer) is not supported");
    c.expect(
        c.has_input(1) && c.has_input(2),
        "inputs key and value are required; query, key and value packed into one input are not supported");
    for (const size_t i : {size_t{1}, size_t{2}, kBias, kScoreBias})
      c.expect(!c.has_input(i) || c.dtype(i) == c.dtype(0), "its operands must have the same type, found ",
               to_string(c.dtype(0)), " and ", c.has_input(i) ? to_string(c.dtype(i)) : "");
    const int64_t heads = c.node().int_or("num_heads", 0);
    c.expect(c.rank(0) == 3, "query must have shape [batch, positions, heads * size], found ",
             to_string(c.shape(0)));
    q = heads_of(c, c.shape(0), "query", "num_heads", heads);
    k = heads_of(c, c.shape(1), "key", "num_heads", heads);
    v = heads_of(c, c.shape(2), "value", "num_heads", heads);
    hidden = q.heads * q.size, v_hidden = v.heads * v.size;
    HeadsView all_k = k, all_v = v;
    c.expect(c.has_input(kPastKey) == c.has_input(kPastValue),
             "past_key and past_value must be given together");
    if (c.has_input(kPastKey)) {
      past = c.rank(kPastKey) == 4 ? c.shape(kPastKey)[2] : 0;
      for (const auto& [i, x] : {std::pair{kPastKey, &k}, std::pair{kPastValue, &v}}) {
        const Shape wanted = {x->batch, x->heads, past, x->size};
        c.expect(c.shape(i) == wanted, i == kPastKey ? "past_key" : "past_value", " must have shape ",
                 to_string(wanted), ", found ", to_string(c.shape(i)));
      }
    }
    if (copies_keys(c)) {
      all_k.rows += past, all_v.rows += past;
      all_k.steps = heads_first(all_k.heads, all_k.rows, all_k.size);
      all_v.steps = heads_first(all_v.heads, all_v.rows, all_v.size);
    }
    if (c.has_input(kBias)) {
      c.expect(c.shape(kBias) == Shape{2 * hidden + v_hidden}, "bias must have shape [",
               2 * hidden + v_hidden, "], found ", to_string(c.shape(kBias)));
      c.expect(c.rank(1) == 3 && c.rank(2) == 3,
               "with bias, key and value must have shape [batch, positions, heads * size], found ",
               to_string(c.shape(1)), " and ", to_string(c.shape(2)));
    }
    attention = read_attention(c, q, all_k, all_v);
    Attention& a = attention;
    a.dtype = c.dtype(0);
    a.offset = past;
    if (c.node().int_or("unidirectional", 0) != 0) a.right = 0;
    a.y = rows_first(a.heads, a.queries, a.v_size);
    read_mask(c, kScoreBias, false, a);
    c.expect(a.mask != AttentionMask::kBool, "attention_bias must have the type of query, ",
             to_string(a.dtype), ", found bool");
    if (!c.has_input(kPadding)) return;
    const Shape& mask = c.shape(kPadding);
    padding = mask == Shape{a.batch} || mask == Shape{3 * a.batch + 2} ? Padding::kLengths
              : mask == Shape{a.batch, a.keys}                         ? Padding::kKeys
              : mask == Shape{a.batch, a.queries, a.keys}              ? Padding::kQueriesAndKeys
                                                                       : Padding::kNone;
    c.expect(padding != Padding::kNone && c.dtype(kPadding) == DType::kInt32,
             "key_padding_mask must be int32 of shape ", to_string(Shape{a.batch}), ", ",
             to_string(Shape{3 * a.batch + 2}), ", ", to_string(Shape{a.batch, a.keys}), " or ",
             to_string(Shape{a.batch, a.queries, a.keys}), ", found ", to_string(c.dtype(kPadding)),
             to_string(mask));
  }

  // Whether the kernel copies keys and values before it uses them, to join them with the past.
  static bool copies_keys(const NodeContext& c) { return c.has_input(kPastKey); }
};

void shape(ShapeContext& c) {
  const HeadsNode node(c);
  const Attention& a = node.attention;
  c.expect(!c.has_output(3), "its output qk is not supported");
  c.output(0, a.dtype, {a.batch, a.queries, node.v_hidden});
  if (c.has_output(1)) c.output(1, a.dtype, {a.batch, a.heads, a.keys, a.size});
  if (c.has_output(2)) c.output(2, a.dtype, {a.batch, a.heads, a.keys, a.v_size});
}

// x + bias, in rows of `width` elements.
template <typename T>
void add_bias(const T* x, const T* bias, int64_t rows, int64_t width, T* y) {
  parallel_for(rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < width; ++j) y[i * width + j] = x[i * width + j] + bias[j];
  });
}

// The mask that is added to the scores: the filter value where the padding hides a key, plus the bias of the
// scores.
template <typename T>
void make_mask(const HeadsNode& node, const int32_t* padding, const T* bias, const Attention& from, T* mask) {
  const Attention& a = node.attention;
  const int64_t heads = from.mask_head ? a.heads : 1;
  parallel_for(a.batch * heads * a.queries, a.keys, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t query = line % a.queries, head = line / a.queries % heads,
                    batch = line / a.queries / heads;
      const T* added =
          bias ? bias + batch * from.mask_batch + head * from.mask_head + query * from.mask_query : nullptr;
      T* to = mask + line * a.keys;
      for (int64_t key = 0; key < a.keys; ++key) {
        bool seen = true;
        if (node.padding == Padding::kLengths)
          seen = key < padding[batch];
        else if (node.padding == Padding::kKeys)
          seen = padding[batch * a.keys + key] != 0;
        else if (node.padding == Padding::kQueriesAndKeys)
          seen = padding[(batch * a.queries + query) * a.keys + key] != 0;
        to[key] = (seen ? T{0} : static_cast<T>(node.filter)) + (added ? added[key * from.mask_key] : T{0});
      }
    }
  });
}

template <typename T>
Kernel typed(KernelContext& c) {
  const HeadsNode node(c);
  Attention a = node.attention;
  const auto scratch = [&](int64_t elements) {
    return c.scratch(static_cast<size_t>(std::max<int64_t>(elements, 1)) * sizeof(T));
  };
  std::vector<Kernel> kernels;
  // Operands with their part of the bias.
  const Slot bias = c.has_input(kBias) ? c.in(kBias) : Slot{};
  const auto operand = [&](size_t i, const HeadsView& x, int64_t offset) {
    const Slot given = c.in(i);
    if (!bias.defined()) return given;
    const int64_t rows = x.batch * x.rows, width = x.heads * x.size;
    const Slot sum = scratch(rows * width);
    kernels.push_back([=](const Frame& f) {
      add_bias(f.at<const T>(given), f.at<const T>(bias) + offset, rows, width, f.at<T>(sum));
    });
    return sum;
  };
  const Slot q = operand(0, node.q, 0), k = operand(1, node.k, node.hidden),
             v = operand(2, node.v, 2 * node.hidden);

  // Present keys and values: first the past, then the new keys and values.
  const bool joins = HeadsNode::copies_keys(c);
  const auto present = [&](size_t o, const HeadsView& x, size_t past_input, Slot added) {
    Slot all = c.has_output(o) ? c.out(o) : Slot{};
    if (!all.defined() && !joins) return added;
    if (!all.defined()) all = scratch(x.batch * x.heads * (node.past + x.rows) * x.size);
    const HeadSteps to = heads_first(x.heads, node.past + x.rows, x.size);
    const StridedCopy copy(sizeof(T), {x.batch, x.heads, x.rows, x.size},
                           {0, {x.steps.batch, x.steps.head, x.steps.row, 1}},
                           {node.past * x.size, {to.batch, to.head, to.row, 1}});
    kernels.push_back([=](const Frame& f) { copy(f.at<std::byte>(added), f.at<std::byte>(all)); });
    if (joins) {
      const HeadSteps from = heads_first(x.heads, node.past, x.size);
      const StridedCopy before(sizeof(T), {x.batch, x.heads, node.past, x.size},
                               {0, {from.batch, from.head, from.row, 1}},
                               {0, {to.batch, to.head, to.row, 1}});
      const Slot old = c.in(past_input);
      kernels.push_back([=](const Frame& f) { before(f.at<std::byte>(old), f.at<std::byte>(all)); });
    }
    return joins ? all : added;
  };
  const Slot all_k = present(1, node.k, kPastKey, k), all_v = present(2, node.v, kPastValue, v);

  const Slot padding = c.has_input(kPadding) ? c.in(kPadding) : Slot{};
  Slot mask = c.has_input(kScoreBias) ? c.in(kScoreBias) : Slot{};
  if (padding.defined()) {
    const int64_t heads = a.mask_head ? a.heads : 1;
    const Slot given = mask;
    mask = scratch(a.batch * heads * a.queries * a.keys);
    kernels.push_back([=](const Frame& f) {
      make_mask<T>(node, f.at<const int32_t>(padding), f.at_or_null<const T>(given), node.attention,
                   f.at<T>(mask));
    });
    a.mask = AttentionMask::kAdded;
    a.mask_batch = heads * a.queries * a.keys, a.mask_head = heads > 1 ? a.queries * a.keys : 0;
    a.mask_query = a.keys, a.mask_key = 1;
  }
  const Slot y = c.out(0);
  kernels.push_back(attention_kernel(c, a, [=](const Frame& f) {
    AttentionForward run;
    run.q = f.at<void>(q), run.k = f.at<void>(all_k), run.v = f.at<void>(all_v);
    run.mask = f.at_or_null<void>(mask);
    run.y = f.at<void>(y);
    return run;
  }));
  return chain(std::move(kernels));
}

Kernel kernel(KernelContext& c) {
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = typed<decltype(zero)>(c); })) c.reject_dtype(0);
  return kernel;
}

// The mask that the kernel adds to the scores, as nodes. `all_keys`, of rank `keys_rank`, are the past and
// new keys.
Name mask_of(NodeWriter& g, Name all_keys, int64_t keys_rank) {
  Name mask = g.has_x(kScoreBias) ? g.x(kScoreBias) : "";
  if (!g.has_x(kPadding)) return mask;
  const auto rank = g.rank(g.x(kPadding));
  if (!rank)
    g.reject("the rank of key_padding_mask is not known; run ONNX shape inference on the model first");
  Name seen;
  if (*rank == 1) {
    // The first [batch] values are the lengths, also of [3 * batch + 2] values.
    const auto shape = [&](const std::string& value, int64_t axis) {
      return g("Shape", {value}, {{"start", axis}, {"end", axis + 1}});
    };
    const Name batch = shape(g.x(0), 0);
    const Name lengths = g("Slice", {g.x(kPadding), g.int64s({0}), batch});
    const Name keys = g.squeeze(shape(all_keys, keys_rank == 4 ? 2 : 1), {0});
    const Name zero = g.constant(Tensor::scalar<int64_t>(0)), one = g.constant(Tensor::scalar<int64_t>(1));
    const Name places = g("Range", {zero, keys, one});
    const Attributes wide = {{"to", static_cast<int64_t>(DType::kInt64)}};
    seen = g("Less", {places, g.unsqueeze(g("Cast", {lengths}, wide), {1})});
  } else {
    seen = g("Cast", {g.x(kPadding)}, {{"to", static_cast<int64_t>(DType::kBool)}});
  }
  const Name added = g(
      "Where", {seen, g.scalar_like(g.x(0), 0),
                g.scalar_like(g.x(0), static_cast<double>(g.node().float_or("mask_filter_value", kFilter)))});
  const Name padding = g.unsqueeze(added, *rank == 3 ? std::vector<int64_t>{1} : std::vector<int64_t>{1, 2});
  return mask.empty() ? padding : g("Add", {padding, mask});
}

int64_t rank_of(GradientContext& g, size_t i, const char* what) {
  const auto rank = g.rank(g.x(i));
  if (!rank) g.reject("the rank of ", what, " is not known; run ONNX shape inference on the model first");
  return *rank;
}

// A gradient [batch, heads, positions, size] in the shape of input i.
Name like_operand(GradientContext& g, Name gradient, size_t i, int64_t rank) {
  if (rank == 4) return gradient;
  const Name rows = g("Transpose", {gradient}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  return g("Reshape", {rows, g("Shape", {g.x(i)})});
}

void gradient(GradientContext& g) {
  const bool joins = g.has_x(kPastKey);
  const int64_t ranks[] = {3, rank_of(g, 1, "key"), rank_of(g, 2, "value")};
  const auto q_dims = g.dims(g.x(0)), v_dims = g.dims(g.x(2));
  Names operands = {g.x(0), g.x(1), g.x(2)};
  std::vector<int64_t> starts;  // of the three parts of the bias, and its end
  if (g.has_x(kBias)) {
    if (!q_dims || !v_dims || !q_dims->back().known() || !v_dims->back().known())
      g.reject(
          "the last dimensions of query and value are not known; run ONNX shape inference on the model "
          "first");
    const int64_t hidden = q_dims->back().value, v_hidden = v_dims->back().value;
    starts = {0, hidden, 2 * hidden, 2 * hidden + v_hidden};
    for (size_t i = 0; i < (joins ? 1 : 3); ++i)
      operands[i] =
          g("Add", {operands[i], g("Slice", {g.x(kBias), g.int64s({starts[i]}), g.int64s({starts[i + 1]})})});
  }
  if (joins) operands[1] = g.want_y(1), operands[2] = g.want_y(2);

  Names made(3);
  if (!g.dy(0).empty()) {
    const Name mask = mask_of(g, operands[1], joins ? 4 : ranks[1]);
    Names inputs = {g.dy(0), operands[0], operands[1], operands[2], mask, "", "", joins ? g.x(kPastKey) : ""};
    while (inputs.back().empty()) inputs.pop_back();
    const Node& node = g.node();
    Attributes attributes = {{"q_num_heads", node.int_or("num_heads", 0)},
                             {"kv_num_heads", node.int_or("num_heads", 0)},
                             {"is_causal", node.int_or("unidirectional", 0)}};
    if (node.float_or("scale", 0) != 0) attributes["scale"] = node.float_or("scale", 0);
    const bool wants_mask = g.has_x(kScoreBias) && g.needs(kScoreBias);
    made = g.emit("AttentionGrad", inputs, wants_mask ? 4 : 3, attributes, kMicrosoft);
    if (wants_mask) g.set(kScoreBias, g.unbroadcast(made[3], made[3], kScoreBias));
  }

  // Present keys and values are outputs too, [batch, heads, past + new, size].
  for (const size_t i : {size_t{1}, size_t{2}}) {
    const auto sum = [&](Name a, Name b) { return a.empty() ? b : b.empty() ? a : g("Add", {a, b}); };
    const Name present = g.dy(i);
    if (!joins) {
      made[i] = sum(made[i], present.empty() ? "" : like_operand(g, present, i, ranks[i]));
      continue;
    }
    const size_t past = kPastKey + i - 1;
    const Name all = sum(made[i], present);
    if (all.empty()) continue;
    const Names parts = split_past(g, all, g.x(past));
    if (g.needs(past)) g.set(past, parts[0]);
    made[i] = like_operand(g, parts[1], i, ranks[i]);
  }
  for (size_t i = 0; i < 3; ++i)
    if (g.needs(i) && !made[i].empty()) g.set(i, made[i]);
  if (!g.has_x(kBias) || !g.needs(kBias)) return;
  Names parts;
  for (size_t i = 0; i < 3; ++i)
    parts.push_back(made[i].empty()
                        ? g("Expand", {g.scalar_like(g.x(0), 0), g.int64s({starts[i + 1] - starts[i]})})
                        : g.reduce_sum(made[i], {0, 1}, false));
  g.set(kBias, g("Concat", parts, {{"axis", int64_t{0}}}));
}

// As separate operators, for other runtimes:  P = softmax(scale Q Kᵀ + mask),  Y = P V.
void standard_form(DecompositionContext& e) {
  const Node& node = e.node();
  const auto q_dims = e.dims(e.x(0)), v_dims = e.dims(e.x(2));
  const int64_t heads = node.int_or("num_heads", 0);
  if (heads < 1 || !q_dims || !q_dims->back().known() || !v_dims || !v_dims->back().known())
    e.reject(
        "the last dimensions of query and value are not known; run ONNX shape inference on the model first");
  const int64_t hidden = q_dims->back().value;
  const int64_t starts[] = {0, hidden, 2 * hidden, 2 * hidden + v_dims->back().value};
  const Attributes swapped = {{"perm", std::vector<int64_t>{0, 2, 1, 3}}};
  // An operand with its part of the bias, as [batch, heads, positions, size].
  const auto apart = [&](size_t i) {
    if (need_rank(e, e.x(i)) == 4) return e.x(i);
    Name x = e.x(i);
    if (e.has_x(kBias))
      x = e("Add", {x, e("Slice", {e.x(kBias), e.int64s({starts[i]}), e.int64s({starts[i + 1]})})});
    return e("Transpose", {e("Reshape", {x, e.int64s({0, 0, heads, -1})})}, swapped);
  };
  const Expression q(e, apart(0));
  Name k = apart(1), v = apart(2);
  if (e.has_x(kPastKey)) {
    k = e("Concat", {e.x(kPastKey), k}, {{"axis", int64_t{2}}});
    v = e("Concat", {e.x(kPastValue), v}, {{"axis", int64_t{2}}});
  }
  const float given = node.float_or("scale", 0);
  const double scale = given != 0 ? static_cast<double>(given)
                                  : 1 / std::sqrt(static_cast<double>(hidden) / static_cast<double>(heads));
  Expression scores =
      scale *
      q.call("MatMul", Expression(e, e("Transpose", {k}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}})));
  if (const Name mask = mask_of(e, k, 4); !mask.empty()) scores = scores + Expression(e, mask);
  if (node.int_or("unidirectional", 0) != 0) {
    const auto places = [&](int64_t axis) {
      const Name count = as_scalar(e, dims_of(e, scores, axis, axis + 1));
      return e("Range",
               {e.constant(Tensor::scalar(int64_t{0})), count, e.constant(Tensor::scalar(int64_t{1}))});
    };
    Name queries = e.unsqueeze(places(2), {1});
    if (e.has_x(kPastKey)) queries = e("Add", {queries, dims_of(e, e.x(kPastKey), 2, 3)});
    const Expression seen(e, e("LessOrEqual", {places(3), queries}));
    scores = seen.choose(scores, scores.number(kUnseen));
  }
  const Expression weights = scores.call("Softmax", {{"axis", int64_t{-1}}});
  const Name y = e("Transpose", {weights.call("MatMul", Expression(e, v))}, swapped);
  e.set(0, e("Reshape", {y, e.int64s({0, 0, -1})}));
  if (e.has_y(1)) e.set(1, k);
  if (e.has_y(2)) e.set(2, v);
}

ORTRAIN_OPERATOR(
    {.domain = kMicrosoft,
     .type = "MultiHeadAttention",
     .signature = "query, key?, value?, bias?, key_padding_mask?, attention_bias?, past_key?, past_value?, "
                  "past_sequence_length?, cache_indirection? -> output, present_key?, present_value?, qk?",
     .rules = {.shape = shape, .gradient = gradient},
     .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "MultiHeadAttention", {cold<standard_form>});

}  // namespace
}  // namespace ortrain
