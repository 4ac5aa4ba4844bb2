// Attention (ONNX 23 to 25), its gradient, and FusedAttention, which the pass fuse_attention creates from
// separate operators.
//
//     Y = softmax(cap(scale Q Kᵀ) + mask) V        for each head
//
// The kernel is described in backend/cpu/attention/attention_kernel.h.
//
// There may be fewer heads of keys than heads of queries (J. Ainslie et al., "GQA", 2023): neighbouring heads
// of queries then share a head of keys.
//
// Compiled for speed: a loop over masks (CMakeLists.txt).
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "backend/cpu/dropout_random.h"
#include "backend/cpu/strided_copy.h"
#include "backend/cpu/tuning.h"
#include "op/opset.h"
#include "ops/attention/attention_node.h"
#include "ops/common/dropout.h"
#include "runtime/random.h"
#include "runtime/threads.h"

namespace ortrain {

// ---------------------------------------------------------------------------------------------------------
// Reading nodes.

HeadsView heads_of(const NodeContext& c, const Shape& shape, const char* what, const char* name,
                   int64_t count) {
  if (shape.size() == 4)
    return {shape[0], shape[1], shape[2], shape[3], heads_first(shape[1], shape[2], shape[3])};
  c.expect(shape.size() == 3, what,
           " must have shape [batch, heads, positions, size] or [batch, positions, heads * size], found ",
           to_string(shape));
  c.expect(count > 0 && count <= shape[2] && shape[2] % count == 0, "attribute ", name, " must divide the ",
           counted(shape[2], "element"), " of ", what, " ", to_string(shape), ", found ", count);
  const int64_t size = shape[2] / count;
  return {shape[0], count, shape[1], size, rows_first(count, shape[1], size)};
}

Attention read_attention(const NodeContext& c, const HeadsView& q, const HeadsView& k, const HeadsView& v) {
  c.expect(q.size == k.size, "queries and keys must have the same size, found ", q.size, " and ", k.size);
  c.expect(k.rows == v.rows, "there must be as many values as keys, found ", v.rows, " and ", k.rows);
  c.expect(k.heads == v.heads, "keys and values must have the same number of heads, found ", k.heads, " and ",
           v.heads);
  c.expect(k.heads > 0 && q.heads % k.heads == 0, "the number of heads of the keys must divide the ",
           counted(q.heads, "head"), " of the queries, found ", k.heads);
  c.expect(k.batch == q.batch && v.batch == q.batch,
           "queries, keys and values must have the same batch size, found ", q.batch, ", ", k.batch, " and ",
           v.batch);
  Attention a;
  a.batch = q.batch, a.heads = q.heads, a.kv_heads = k.heads;
  a.queries = q.rows, a.keys = k.rows, a.size = q.size, a.v_size = v.size;
  a.q = q.steps, a.k = k.steps, a.v = v.steps;
  a.mask_keys = a.keys;

  const Node& node = c.node();
  const float scale = node.float_or("scale", 0);
  a.scale = scale != 0 ? static_cast<double>(scale) : 1 / std::sqrt(static_cast<double>(a.size));
  a.cap = static_cast<double>(node.float_or("softcap", 0));
  // Larger windows are cut to this size, which covers all keys, so that sums of sizes and positions fit in
  // int64.
  constexpr int64_t kAll = int64_t{1} << 56;
  a.left = std::min(node.int_or("left_window_size", -1), kAll);
  a.right = std::min(node.int_or("right_window_size", -1), kAll);
  c.expect(a.left >= -1 && a.right >= -1, "a window must have a size of 0 or more, or -1 for none, found ",
           a.left, " to the left and ", a.right, " to the right");
  if (node.int_or("is_causal", 0) != 0) a.right = 0;
  const int64_t precision = node.int_or("softmax_precision", 0);
  a.double_softmax = precision == static_cast<int64_t>(DType::kDouble);
  c.expect(precision == 0 || is_floating(static_cast<DType>(precision)),
           "attribute softmax_precision must be a floating type, found ", precision);
  return a;
}

void read_mask(const NodeContext& c, size_t i, bool padded, Attention& a) {
  if (!c.has_input(i)) return;
  a.mask = c.dtype(i) == DType::kBool ? AttentionMask::kBool : AttentionMask::kAdded;
  c.expect(a.mask == AttentionMask::kBool || wide_of(c.dtype(i)) == wide_of(a.dtype),
           "the mask must be bool or of the type of the queries, ", to_string(a.dtype), ", found ",
           to_string(c.dtype(i)));
  const Shape& shape = c.shape(i);
  const Shape wanted = {a.batch, a.heads, a.queries, a.keys};
  const std::vector<int64_t> strides = strides_of(shape);
  const size_t rank = shape.size();
  c.expect(rank <= 4, "the mask must have up to four axes, found ", to_string(shape));
  int64_t* const steps[] = {&a.mask_batch, &a.mask_head, &a.mask_query, &a.mask_key};
  for (size_t axis = 0; axis < rank; ++axis) {
    const size_t place = 4 - rank + axis;
    const bool last = place == 3;
    const bool fits = shape[axis] == wanted[place] || (last && padded && shape[axis] < wanted[place]);
    c.expect(fits || shape[axis] == 1, "the mask of shape ", to_string(shape), " does not broadcast to ",
             to_string(wanted));
    if (!fits) continue;
    *steps[place] = strides[axis];
    if (last) a.mask_keys = shape[axis];
  }
}

void expect_lengths(const NodeContext& c, size_t i, const Attention& a) {
  if (!c.has_input(i)) return;
  c.expect(c.dtype(i) == DType::kInt64 && c.shape(i) == Shape{a.batch}, "nonpad_kv_seqlen must be int64[",
           a.batch, "], found ", to_string(c.dtype(i)), to_string(c.shape(i)));
}

void check_lengths(const std::string& label, const int64_t* lengths, const Attention& a) {
  for (int64_t i = 0; lengths && i < a.batch; ++i)
    require(lengths[i] >= 0 && lengths[i] <= a.keys, ErrorCode::kInvalidArgument, label, ": sample ", i,
            " has ", counted(lengths[i], "key"), ", expected 0 to ", a.keys);
}

namespace {

// Whether the products multiply in bfloat16. They do not with nonpad_kv_seqlen: products of pairs would read
// keys beyond the length, which may hold any bits.
bool multiplies_in_pairs(const KernelContext& c, const Attention& a) {
  return attention_takes_pairs() && c.precision() == Precision::kBf16 && a.dtype == DType::kFloat &&
         !a.offset_by_length && a.queries * a.keys * a.size > tuning::kSmallBf16Product;
}

}  // namespace

Kernel attention_kernel(KernelContext& c, const Attention& given,
                        std::function<AttentionForward(const Frame&)> operands) {
  Attention a = given;
  a.pairs = multiplies_in_pairs(c, a);
  const int threads = max_threads();
  const Slot scratch = c.scratch(attention_scratch(a, false, threads));
  return [=, label = c.node().label()](const Frame& f) {
    const AttentionForward forward = operands(f);
    check_lengths(label, forward.lengths, a);
    run_attention(a, forward, threads, f.at<void>(scratch));
  };
}

Names split_past(GradientContext& g, Name gradient, Name past) {
  const auto dim = [&](Name value) {
    return g("Shape", {value}, {{"start", int64_t{2}}, {"end", int64_t{3}}});
  };
  const Name before = dim(past), added = g("Sub", {dim(gradient), before});
  return g.emit("Split", {gradient, g("Concat", {before, added}, {{"axis", int64_t{0}}})}, 2,
                {{"axis", int64_t{2}}});
}

namespace {

// For each query and key, one multiplication and one addition per element of the query, as many per element
// of the result, and an exponential; half of that if a query sees only the keys before it. `first` is the
// index of input Q. An attribute may permute an operand (FusedAttention).
Operations forward_operations(const Node& node, std::span<const Shape* const> inputs, size_t first,
                              const Shape& result) {
  constexpr double kPerScore = 100;  // measured: an exponential takes as long as this many operations
  if (inputs.size() < first + 2 || !inputs[first] || !inputs[first + 1]) return {};
  const Shape &q = *inputs[first], &k = *inputs[first + 1];
  if (k.size() < 3 || q.empty()) return {};
  const std::vector<int64_t> order = node.ints_or("k_order", {});
  const size_t plain = k.size() - 2;
  const auto rows = order.size() == k.size() ? static_cast<size_t>(order[plain]) : plain;
  if (rows >= k.size()) return {};
  const int64_t heads = q.size() == 3 ? std::max<int64_t>(node.int_or("q_num_heads", 1), 1) : 1;
  const auto size = static_cast<double>(std::max<int64_t>(q.back() / heads, 1));
  const double seen = (node.int_or("is_causal", 0) != 0 ? 0.5 : 1) * static_cast<double>(k[rows]);
  const auto of_q = static_cast<double>(element_count(q)),
             of_result = static_cast<double>(element_count(result));
  return {2 * seen * (of_q + of_result), kPerScore * seen * of_q / size};
}

Operations operations_of(const Node& node, std::span<const Shape* const> inputs, const Shape& result) {
  return forward_operations(node, inputs, 0, result);
}

// The gradient computes five products where the forward pass computes two: the scores again, and two
// gradients for each of the two products.
Operations gradient_operations_of(const Node& node, std::span<const Shape* const> inputs, const Shape&) {
  if (inputs.empty() || !inputs[0]) return {};
  const Operations forward = forward_operations(node, inputs, 1, *inputs[0]);
  return {2.5 * forward.products, 2 * forward.others};
}

// ---------------------------------------------------------------------------------------------------------
// Attention(Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen) → Y, present_key, present_value,
// scores

constexpr size_t kMask = 3, kPastKey = 4, kPastValue = 5, kLengths = 6;

struct AttentionNode {
  Attention attention;
  HeadsView k, v;  // the new keys and values, which are appended to the past
  int64_t past = 0;
  bool joins;  // the kernel reads keys and values from present_key and present_value
  Shape y, present_key, present_value;

  explicit AttentionNode(const NodeContext& c) {
    for (size_t i = 1; i < 3; ++i)  // float and the 16-bit floats may be mixed: they have the same wide form
      c.expect(wide_of(c.dtype(i)) == wide_of(c.dtype(0)),
               "queries, keys and values must have the same type, found ", to_string(c.dtype(0)), " and ",
               to_string(c.dtype(i)));
    const int64_t q_heads = c.node().int_or("q_num_heads", 0), kv_heads = c.node().int_or("kv_num_heads", 0);
    const HeadsView q = heads_of(c, c.shape(0), "Q", "q_num_heads", q_heads);
    k = heads_of(c, c.shape(1), "K", "kv_num_heads", kv_heads);
    v = heads_of(c, c.shape(2), "V", "kv_num_heads", kv_heads);
    c.expect(k.batch == q.batch && v.batch == q.batch,
             "queries, keys and values must have the same batch size, found ", q.batch, ", ", k.batch,
             " and ", v.batch);
    joins = c.has_input(kPastKey);
    c.expect(joins == c.has_input(kPastValue), "past_key and past_value must be given together");
    HeadsView all_k = k, all_v = v;
    if (joins) {
      past = c.rank(kPastKey) == 4 ? c.shape(kPastKey)[2] : 0;
      for (const auto& [i, x] : {std::pair{kPastKey, &k}, std::pair{kPastValue, &v}}) {
        const Shape wanted = {x->batch, x->heads, past, x->size};
        c.expect(c.shape(i) == wanted && wide_of(c.dtype(i)) == wide_of(c.dtype(0)),
                 i == kPastKey ? "past_key" : "past_value", " must be ", to_string(c.dtype(0)),
                 to_string(wanted), ", found ", to_string(c.dtype(i)), to_string(c.shape(i)));
      }
      all_k.rows += past, all_v.rows += past;
      all_k.steps = heads_first(all_k.heads, all_k.rows, all_k.size);
      all_v.steps = heads_first(all_v.heads, all_v.rows, all_v.size);
    }
    present_key = {all_k.batch, all_k.heads, all_k.rows, all_k.size};
    present_value = {all_v.batch, all_v.heads, all_v.rows, all_v.size};
    attention = read_attention(c, q, all_k, all_v);
    Attention& a = attention;
    a.dtype = c.dtype(0);
    a.offset = past;
    const bool rows = c.rank(0) == 3;
    y = rows ? Shape{a.batch, a.queries, a.heads * a.v_size} : Shape{a.batch, a.heads, a.queries, a.v_size};
    a.y = rows ? rows_first(a.heads, a.queries, a.v_size) : heads_first(a.heads, a.queries, a.v_size);
    read_mask(c, kMask, c.opset() >= since::kPaddedMasks, a);
    c.expect(!joins || !c.has_input(kLengths), "nonpad_kv_seqlen and past_key are mutually exclusive");
    expect_lengths(c, kLengths, a);
    a.offset_by_length = c.has_input(kLengths);
  }
};

// present_value has the type of V; all other outputs have the type of Q.
DType element_types(const ElementTypes& types, size_t o) { return types[o == 2 ? 2 : 0]; }

void shape(ShapeContext& c) {
  const AttentionNode node(c);
  const int64_t mode = c.node().int_or("qk_matmul_output_mode", 0);
  c.expect(mode >= 0 && mode <= 3, "attribute qk_matmul_output_mode must be 0 to 3, found ", mode);
  const Attention& a = node.attention;
  c.output(0, a.dtype, node.y);
  if (c.has_output(1)) c.output(1, a.dtype, node.present_key);
  if (c.has_output(2)) c.output(2, c.dtype(2), node.present_value);
  if (c.has_output(3)) c.output(3, a.dtype, {a.batch, a.heads, a.queries, a.keys});
}

// Copies first the past and then the new keys or values into `present` [batch, heads, past + rows, size].
Kernel join(KernelContext& c, const HeadsView& x, size_t past_input, size_t input, int64_t past,
            Slot present) {
  const size_t width = size_of(c.dtype(0));
  const HeadSteps to = heads_first(x.heads, past + x.rows, x.size);
  const StridedCopy::View target = {past * x.size, {to.batch, to.head, to.row, 1}};
  const StridedCopy copy(width, {x.batch, x.heads, x.rows, x.size},
                         {0, {x.steps.batch, x.steps.head, x.steps.row, 1}}, target);
  const Slot added = c.in(input);
  if (past_input == 0) {
    return [=](const Frame& f) { copy(f.at<std::byte>(added), f.at<std::byte>(present)); };
  }
  const HeadSteps from = heads_first(x.heads, past, x.size);
  const StridedCopy before(width, {x.batch, x.heads, past, x.size}, {0, {from.batch, from.head, from.row, 1}},
                           {0, target.strides});
  const Slot old = c.in(past_input);
  return [=](const Frame& f) {
    before(f.at<std::byte>(old), f.at<std::byte>(present));
    copy(f.at<std::byte>(added), f.at<std::byte>(present));
  };
}

void expect_floating(const NodeContext& c) {
  if (c.dtype(0) != DType::kFloat && c.dtype(0) != DType::kDouble) c.reject_dtype(0);
}

Kernel kernel(KernelContext& c) {
  expect_floating(c);
  const AttentionNode node(c);
  const Attention& a = node.attention;
  const Slot q = c.in(0), k = c.in(1), v = c.in(2);
  const Slot mask = c.has_input(kMask) ? c.in(kMask) : Slot{};
  const Slot lengths = c.has_input(kLengths) ? c.in(kLengths) : Slot{};
  std::vector<Kernel> kernels;
  const auto present = [&](size_t o, const HeadsView& x, size_t past_input, size_t input) -> Slot {
    if (!node.joins && !c.has_output(o)) return {};
    Slot slot = c.has_output(o) ? c.out(o) : Slot{};
    if (!slot.defined() && !node.joins) return {};
    if (!slot.defined())
      slot = c.scratch(static_cast<size_t>(x.batch * x.heads * (node.past + x.rows) * x.size) *
                       size_of(c.dtype(0)));
    kernels.push_back(join(c, x, node.joins ? past_input : 0, input, node.past, slot));
    return node.joins ? slot : Slot{};
  };
  const Slot all_k = present(1, node.k, kPastKey, 1), all_v = present(2, node.v, kPastValue, 2);
  const Slot from_k = all_k.defined() ? all_k : k, from_v = all_v.defined() ? all_v : v;
  const Slot y = c.out(0), scores = c.has_output(3) ? c.out(3) : Slot{};
  const auto shown = static_cast<AttentionScores>(c.node().int_or("qk_matmul_output_mode", 0));
  kernels.push_back(attention_kernel(c, a, [=](const Frame& f) {
    AttentionForward run;
    run.q = f.at<void>(q), run.k = f.at<void>(from_k), run.v = f.at<void>(from_v);
    run.mask = f.at_or_null<void>(mask);
    run.lengths = f.at_or_null<int64_t>(lengths);
    run.y = f.at<void>(y);
    run.shown = shown;
    run.scores = f.at_or_null<void>(scores);
    return run;
  }));
  return chain(std::move(kernels));
}

void gradient(GradientContext& g) {
  if (!g.dy(3).empty()) g.reject("the gradient through its output qk_matmul_output is not supported");
  const bool joins = g.has_x(kPastKey);
  if (joins || !g.dy(1).empty() || !g.dy(2).empty()) {
    const auto rank = g.rank(g.x(1));
    if (rank != 4)
      g.reject(
          "a gradient through past or present keys and values requires operands of shape [batch, heads, "
          "positions, "
          "size], but the rank of the keys is 3 or not known");
  }
  const Name key = joins ? g.want_y(1) : g.x(1), value = joins ? g.want_y(2) : g.x(2);
  const bool needs_key = g.needs(1) || (joins && g.needs(kPastKey));
  const bool needs_value = g.needs(2) || (joins && g.needs(kPastValue));
  Name dk, dv;
  if (!g.dy(0).empty()) {
    Names inputs = {g.dy(0), g.x(0), key, value};
    for (const size_t i : {kMask, kLengths}) inputs.push_back(g.has_x(i) ? g.x(i) : "");
    inputs.push_back("");  // probabilities
    inputs.push_back(joins ? g.x(kPastKey) : "");
    while (inputs.back().empty()) inputs.pop_back();
    Attributes attributes = g.node().attributes;
    attributes.erase("qk_matmul_output_mode");
    attributes["padded_mask"] = int64_t{g.opset() >= since::kPaddedMasks};
    const bool wants_mask = g.has_x(kMask) && g.needs(kMask);
    const Names made = g.emit("AttentionGrad", inputs, wants_mask ? 4 : 3, attributes, kMicrosoft);
    if (g.needs(0)) g.set(0, made[0]);
    if (needs_key) dk = made[1];
    if (needs_value) dv = made[2];
    if (wants_mask) g.set(kMask, g.unbroadcast(made[3], made[3], kMask));
  }
  const auto give = [&](Name own, size_t present, size_t past, size_t input, bool needed) {
    if (!needed) return;
    const Name more = g.dy(present);
    if (!more.empty()) own = own.empty() ? more : g("Add", {own, more});
    if (own.empty()) return;
    if (!joins) return g.set(input, own);
    const Names parts = split_past(g, own, g.x(past));
    if (g.needs(past)) g.set(past, parts[0]);
    if (g.needs(input)) g.set(input, parts[1]);
  };
  give(dk, 1, kPastKey, 1, needs_key);
  give(dv, 2, kPastValue, 2, needs_value);
}

ORTRAIN_OPERATOR({.type = "Attention",
                  .rules = {.shape = shape, .gradient = gradient, .element_type = element_types},
                  .traits = {.operations = operations_of},
                  .kernels = {.cpu = kernel}});

// ---------------------------------------------------------------------------------------------------------
// FusedAttention(Q, K, V, mask, ratio, training_mode) → Y, probabilities, key
//
// The pass fuse_attention creates this operator from separate operators; it never appears in a written model.
// If one of the operators was a Dropout, the pass creates FusedDropoutAttention. The operands may be stored
// in any order that keeps the elements of a row contiguous: transposed by q_order, Q is [batch, heads,
// queries, size], or [batch, queries, size]; k_order and v_order describe K and V in this way; Y is the
// result transposed by y_order. A false element of a bool mask (a true one with inverted_mask) replaces the
// score by the attribute replaced. Dropout draws the random numbers of the original node, and passes their
// key to the gradient. The gradient also gets the probabilities before dropout if they are not much larger
// than the operands; otherwise the gradient recomputes them.

// The permutation in an attribute, of 3 or 4 axes; the identity if the node does not have it.
std::vector<int64_t> order_of(const NodeContext& c, const char* name, size_t rank) {
  std::vector<int64_t> plain(rank);
  std::iota(plain.begin(), plain.end(), 0);
  const std::vector<int64_t> order = c.node().ints_or(name, plain);
  if (order.empty()) return plain;
  c.expect(
      (rank == 3 || rank == 4) && std::is_permutation(order.begin(), order.end(), plain.begin(), plain.end()),
      "attribute ", name,
      " must be a permutation of the operand's axes, of which there must be 3 or 4; found ", to_string(order),
      " for an operand of ", counted(rank, "axis"));
  return order;
}

HeadsView ordered(const NodeContext& c, const Shape& shape, const char* name) {
  const std::vector<int64_t> order = order_of(c, name, shape.size());
  c.expect((shape.size() == 3 || shape.size() == 4) && order.back() == static_cast<int64_t>(shape.size()) - 1,
           "an operand of shape ", to_string(shape), " cannot be permuted by attribute ", name);
  const std::vector<int64_t> strides = strides_of(shape);
  const auto dim = [&](size_t i) { return shape[static_cast<size_t>(order[i])]; };
  const auto step = [&](size_t i) { return strides[static_cast<size_t>(order[i])]; };
  // An operand without an axis of heads is read as one batch whose heads are the batch axis, as in the mask.
  if (shape.size() == 3) return {1, dim(0), dim(1), dim(2), {0, step(0), step(1)}};
  return {dim(0), dim(1), dim(2), dim(3), {step(0), step(1), step(2)}};
}

// [batch, heads, queries, size] or [batch, queries, size] in the order of an attribute.
Shape reordered(const NodeContext& c, const Attention& a, size_t rank, const char* name) {
  const Shape plain =
      rank == 3 ? Shape{a.heads, a.queries, a.v_size} : Shape{a.batch, a.heads, a.queries, a.v_size};
  const std::vector<int64_t> order = order_of(c, name, plain.size());
  Shape out = plain;
  for (size_t i = 0; i < order.size(); ++i) out[i] = plain[static_cast<size_t>(order[i])];
  return out;
}

// The strides of Y: its order maps the plain order to memory.
HeadSteps result_steps(const NodeContext& c, const Shape& memory, const char* name) {
  const std::vector<int64_t> strides = strides_of(memory);
  const std::vector<int64_t> order = order_of(c, name, memory.size());
  std::vector<int64_t> steps(memory.size());
  for (size_t i = 0; i < memory.size(); ++i) steps[static_cast<size_t>(order[i])] = strides[i];
  c.expect(steps.back() == 1 || memory.back() <= 1, "attribute ", name,
           " must keep the last axis last, found ", to_string(order));
  if (steps.size() == 3) return {0, steps[0], steps[1]};
  return {steps[0], steps[1], steps[2]};
}

Attention read_fused(const NodeContext& c, size_t first, size_t mask) {
  HeadsView q = ordered(c, c.shape(first), "q_order"), k = ordered(c, c.shape(first + 1), "k_order"),
            v = ordered(c, c.shape(first + 2), "v_order");
  // Batches and heads broadcast, as they do in matrix products and with the mask. All heads of queries share
  // a single head of keys anyway.
  const auto of_mask = [&](size_t from_back) -> int64_t {
    if (!c.has_input(mask) || c.shape(mask).size() < from_back) return 1;
    return c.shape(mask)[c.shape(mask).size() - from_back];
  };
  const auto broadcast = [](HeadsView& x, int64_t batch, int64_t heads) {
    if (x.batch == 1 && batch > 1) x.batch = batch, x.steps.batch = 0;
    if (x.heads == 1 && heads > 1) x.heads = heads, x.steps.head = 0;
  };
  const int64_t batch = std::max({q.batch, k.batch, v.batch, of_mask(4)}),
                kv_heads = std::max(k.heads, v.heads);
  broadcast(q, batch, std::max(kv_heads, of_mask(3)));
  broadcast(k, batch, kv_heads);
  broadcast(v, batch, kv_heads);
  // Queries and keys also broadcast to the mask, if there is only one query or one key.
  const auto broadcast_rows = [](HeadsView& x, int64_t rows) {
    if (x.rows == 1 && rows > 1) x.rows = rows, x.steps.row = 0;
  };
  broadcast_rows(q, of_mask(2));
  broadcast_rows(k, of_mask(1));
  c.expect(kv_heads == 1 || kv_heads == q.heads,
           "keys and values must have one head, or as many as the queries (", q.heads, "), found ", kv_heads);
  Attention a = read_attention(c, q, k, v);
  a.dtype = c.dtype(first);
  a.replaced = static_cast<double>(c.node().float_or("replaced", -std::numeric_limits<float>::infinity()));
  const Shape y = reordered(c, a, c.shape(first).size(), "y_order");
  a.y = result_steps(c, y, "y_order");
  read_mask(c, mask, false, a);
  a.inverted_mask = c.node().int_or("inverted_mask", 0) != 0;
  const auto factor = c.node().attributes.find("factor");
  if (factor != c.node().attributes.end())
    if (const Tensor* value = std::get_if<Tensor>(&factor->second)) {
      c.expect(value->size() == 1, "attribute factor must hold one number, found shape ",
               to_string(value->shape()));
      a.scale = value->to_double()[0];
    }
  return a;
}

DType fused_types(const ElementTypes& types, size_t o) { return o == 2 ? DType::kUInt64 : types[0]; }

void fused_shape(ShapeContext& c) {
  for (size_t i = 1; i < 3; ++i)
    c.expect(c.dtype(i) == c.dtype(0), "queries, keys and values must have the same type, found ",
             to_string(c.dtype(0)), " and ", to_string(c.dtype(i)));
  expect_scalar(c, 4, "ratio");
  expect_scalar(c, 5, "training_mode");
  const Attention a = read_fused(c, 0, 3);
  c.output(0, a.dtype, reordered(c, a, c.shape(0).size(), "y_order"));
  const bool keeps = a.keys <= tuning::kKeptKeys * a.size;
  if (c.has_output(1)) c.output(1, a.dtype, keeps ? Shape{a.batch, a.heads, a.queries, a.keys} : Shape{0});
  if (c.has_output(2)) c.output(2, DType::kUInt64, {2});
}

// An operand that broadcasts over batches, heads or rows is first copied to its full size. Its gradient is
// computed in full size in separate memory and then summed.
struct Whole {
  Slot operand, gradient;
  std::vector<Kernel> before, after;
};

bool repeats_row(const HeadSteps& steps, int64_t rows) { return rows > 1 && steps.row == 0; }

Whole make_whole(KernelContext& c, int64_t batch, int64_t heads, int64_t rows, int64_t size, HeadSteps& steps,
                 Slot operand, Slot gradient) {
  const bool repeats =
      (batch > 1 && steps.batch == 0) || (heads > 1 && steps.head == 0) || repeats_row(steps, rows);
  if (!repeats) return {operand, gradient, {}, {}};
  const Shape shape = {batch, heads, rows, size};
  const HeadSteps from = steps, to = heads_first(heads, rows, size);
  const size_t bytes = static_cast<size_t>(std::max<int64_t>(element_count(shape), 1)) * size_of(c.dtype(0));
  Whole whole{c.scratch(bytes), {}, {}, {}};
  const StridedCopy copy(size_of(c.dtype(0)), shape, {0, {from.batch, from.head, from.row, 1}},
                         {0, {to.batch, to.head, to.row, 1}});
  whole.before.push_back([=, target = whole.operand](const Frame& f) {
    copy(f.at<std::byte>(operand), f.at<std::byte>(target));
  });
  steps = to;
  if (!gradient.defined()) return whole;
  whole.gradient = c.scratch(bytes);
  visit_floating(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    whole.after.push_back([=, source = whole.gradient](const Frame& f) {
      const T* each = f.at<const T>(source);
      T* sum = f.at<T>(gradient);
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t h = 0; h < heads; ++h) {
          for (int64_t i = 0; i < rows; ++i) {
            const bool first =
                (from.batch != 0 || b == 0) && (from.head != 0 || h == 0) && (from.row != 0 || i == 0);
            T* row = sum + b * from.batch + h * from.head + i * from.row;
            for (int64_t j = 0; j < size; ++j) row[j] = (first ? T{0} : row[j]) + *each++;
          }
        }
    });
  });
  return whole;
}

Kernel fused_kernel(KernelContext& c) {
  expect_floating(c);
  Attention a = read_fused(c, 0, 3);
  Slot q = c.in(0), k = c.in(1);
  const Slot v = c.in(2), mask = c.has_input(3) ? c.in(3) : Slot{};
  std::vector<Kernel> kernels;
  const auto repeat_row = [&](Slot& operand, int64_t heads, int64_t rows, HeadSteps& steps) {
    if (!repeats_row(steps, rows)) return;
    Whole whole = make_whole(c, a.batch, heads, rows, a.size, steps, operand, {});
    operand = whole.operand;
    std::move(whole.before.begin(), whole.before.end(), std::back_inserter(kernels));
  };
  repeat_row(q, a.heads, a.queries, a.q);
  repeat_row(k, a.kv_heads, a.keys, a.k);
  const std::optional<DropoutMode> mode =
      c.has_input(5) ? std::optional<DropoutMode>(std::in_place, c, 4, 5) : std::nullopt;
  Slot y = c.out(0);
  if (!y.defined())  // if only the probabilities are recomputed
    y = c.scratch(static_cast<size_t>(c.out_size(0)) * size_of(c.out_dtype(0)));
  const Slot kept = c.has_output(1) ? c.out(1) : Slot{}, drawn = c.has_output(2) ? c.out(2) : Slot{};
  const Slot probabilities = kept.defined() && c.out_size(1) > 0 ? kept : Slot{};
  const std::optional<uint64_t> own =
      c.node().has("seed") ? std::optional<uint64_t>(static_cast<uint64_t>(c.node().int_or("seed", 0)))
                           : std::nullopt;
  const uint64_t stream = static_cast<uint64_t>(c.node().int_or("stream", 0));
  kernels.push_back(attention_kernel(c, a, [=](const Frame& f) {
    AttentionForward run;
    run.q = f.at<void>(q), run.k = f.at<void>(k), run.v = f.at<void>(v);
    run.mask = f.at_or_null<void>(mask);
    run.y = f.at<void>(y);
    run.shown = AttentionScores::kProbabilities;
    run.scores = f.at_or_null<void>(probabilities);
    if (mode) {
      run.dropout = {mode->ratio(f), own ? *own : static_cast<uint64_t>(seed()),
                     dropout_counter(stream, f.run())};
      if (drawn.defined()) {
        f.at<uint64_t>(drawn)[0] = run.dropout.key;
        f.at<uint64_t>(drawn)[1] = run.dropout.high;
      }
    }
    return run;
  }));
  return chain(std::move(kernels));
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "FusedAttention",
                  .signature = "Q, K, V, mask?, ratio?, training_mode? -> Y, mask_out?, key?",
                  .rules = {.shape = fused_shape, .element_type = fused_types},
                  .traits = {.independent_outputs = true, .operations = operations_of},
                  .kernels = {.cpu = fused_kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "FusedDropoutAttention",
                  .signature = "Q, K, V, mask?, ratio?, training_mode? -> Y, mask_out?, key?",
                  .rules = {.shape = fused_shape, .element_type = fused_types},
                  .traits = {.impure = true, .operations = operations_of},
                  .kernels = {.cpu = fused_kernel}});

// ---------------------------------------------------------------------------------------------------------
// AttentionGrad(dY, Q, K, V, mask, nonpad_kv_seqlen, probabilities, past_key, ratio, training_mode, key)
//     → dQ, dK, dV, dmask
//
// The gradient of Attention, whose attributes it takes, and of FusedAttention (attribute fused). With
// padded_mask, the mask may cover only the first keys. K and V include the past keys and values; past_key is
// read only for its length. dmask is [batch, heads, queries, keys of the mask].

constexpr size_t kDropoutRatio = 8, kDropoutKey = 10;

struct GradNode {
  Attention attention;

  explicit GradNode(const NodeContext& c) {
    for (size_t i = 1; i < 4; ++i)
      c.expect(c.dtype(i) == c.dtype(0), "dY, queries, keys and values must have the same type, found ",
               to_string(c.dtype(0)), " and ", to_string(c.dtype(i)));
    Attention& a = attention;
    Shape y;
    if (c.node().int_or("fused", 0) != 0) {
      a = read_fused(c, 1, 4);
      y = reordered(c, a, c.shape(1).size(), "y_order");
    } else {
      const int64_t q_heads = c.node().int_or("q_num_heads", 0),
                    kv_heads = c.node().int_or("kv_num_heads", 0);
      a = read_attention(c, heads_of(c, c.shape(1), "Q", "q_num_heads", q_heads),
                         heads_of(c, c.shape(2), "K", "kv_num_heads", kv_heads),
                         heads_of(c, c.shape(3), "V", "kv_num_heads", kv_heads));
      a.dtype = c.dtype(0);
      const bool rows = c.rank(1) == 3;
      y = rows ? Shape{a.batch, a.queries, a.heads * a.v_size} : Shape{a.batch, a.heads, a.queries, a.v_size};
      a.y = rows ? rows_first(a.heads, a.queries, a.v_size) : heads_first(a.heads, a.queries, a.v_size);
      read_mask(c, 4, c.node().int_or("padded_mask", 0) != 0, a);
      expect_lengths(c, 5, a);
      a.offset_by_length = c.has_input(5);
      c.expect(!c.has_input(7) || c.rank(7) == 4, "past_key must have four axes, found shape ",
               c.has_input(7) ? to_string(c.shape(7)) : "");
      if (c.has_input(7)) a.offset = c.shape(7)[2];
    }
    const Shape scores = {a.batch, a.heads, a.queries, a.keys};
    c.expect(!c.has_input(6) || c.size(6) == 0 || (c.shape(6) == scores && c.dtype(6) == a.dtype),
             "the probabilities must be ", to_string(a.dtype), to_string(scores), ", found ",
             c.has_input(6) ? concat(to_string(c.dtype(6)), to_string(c.shape(6))) : "");
    expect_scalar(c, kDropoutRatio, "ratio");
    expect_scalar(c, kDropoutRatio + 1, "training_mode");
    c.expect(
        !c.has_input(kDropoutKey) || (c.dtype(kDropoutKey) == DType::kUInt64 && c.size(kDropoutKey) == 2),
        "the key of the random numbers for dropout must be two uint64 values, found ",
        c.has_input(kDropoutKey) ? concat(to_string(c.dtype(kDropoutKey)), to_string(c.shape(kDropoutKey)))
                                 : "");
    c.expect(c.shape(0) == y, "dY must have shape ", to_string(y), ", found ", to_string(c.shape(0)));
  }
};

void gradient_shape(ShapeContext& c) {
  const GradNode node(c);
  const Attention& a = node.attention;
  for (size_t o = 0; o < 3; ++o)
    if (c.has_output(o)) c.output(o, a.dtype, c.shape(o + 1));
  if (!c.has_output(3)) return;
  Shape scores = {a.batch, a.heads, a.queries, a.mask_keys};
  if (c.node().int_or("fused", 0) != 0 && c.rank(1) == 3) scores.erase(scores.begin());
  c.output(3, a.dtype, scores);
}

Kernel gradient_kernel(KernelContext& c) {
  expect_floating(c);
  const GradNode node(c);
  Attention a = node.attention;
  const auto input = [&](size_t i) { return c.has_input(i) ? c.in(i) : Slot{}; };
  const Slot dy = c.in(0), given_q = c.in(1), given_k = c.in(2), given_v = c.in(3), mask = input(4),
             lengths = input(5), probabilities = c.has_input(6) && c.size(6) > 0 ? c.in(6) : Slot{},
             drawn = input(kDropoutKey);
  const std::optional<DropoutMode> mode =
      drawn.defined() ? std::optional<DropoutMode>(std::in_place, c, kDropoutRatio, kDropoutRatio + 1)
                      : std::nullopt;
  const auto output = [&](size_t o) { return c.has_output(o) ? c.out(o) : Slot{}; };
  const Slot given_dq = output(0), given_dk = output(1), given_dv = output(2), dmask = output(3);
  Whole of_q = make_whole(c, a.batch, a.heads, a.queries, a.size, a.q, given_q, given_dq);
  Whole of_k = make_whole(c, a.batch, a.kv_heads, a.keys, a.size, a.k, given_k, given_dk);
  Whole of_v = make_whole(c, a.batch, a.kv_heads, a.keys, a.v_size, a.v, given_v, given_dv);
  const Slot q = of_q.operand, k = of_k.operand, v = of_v.operand, dq = of_q.gradient, dk = of_k.gradient,
             dv = of_v.gradient;
  a.pairs = multiplies_in_pairs(c, a);
  const int threads = max_threads();
  const Slot scratch = c.scratch(attention_scratch(a, true, threads));
  std::vector<Kernel> kernels;
  for (Whole* whole : {&of_q, &of_k, &of_v})
    for (Kernel& kernel : whole->before) kernels.push_back(std::move(kernel));
  kernels.push_back([=, label = c.node().label()](const Frame& f) {
    AttentionBackward run;
    run.dy = f.at<void>(dy), run.q = f.at<void>(q), run.k = f.at<void>(k), run.v = f.at<void>(v);
    run.mask = f.at_or_null<void>(mask);
    run.lengths = f.at_or_null<int64_t>(lengths);
    run.probabilities = f.at_or_null<void>(probabilities);
    if (mode) {
      const uint64_t* words = f.at<uint64_t>(drawn);
      run.dropout = {mode->ratio(f), words[0], words[1]};
    }
    run.dq = f.at_or_null<void>(dq), run.dk = f.at_or_null<void>(dk), run.dv = f.at_or_null<void>(dv);
    run.dmask = f.at_or_null<void>(dmask);
    check_lengths(label, run.lengths, a);
    run_attention_gradient(a, run, threads, f.at<void>(scratch));
  });
  for (Whole* whole : {&of_q, &of_k, &of_v})
    for (Kernel& kernel : whole->after) kernels.push_back(std::move(kernel));
  return chain(std::move(kernels));
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "AttentionGrad",
                  .signature = "dY, Q, K, V, mask?, nonpad_kv_seqlen?, probabilities?, past_key?, ratio?, "
                               "training_mode?, key? -> dQ?, dK?, dV?, dmask?",
                  .rules = {.shape = gradient_shape, .decompose = decompose_attention_gradient},
                  .traits = {.operations = gradient_operations_of},
                  .kernels = {.cpu = gradient_kernel}});

}  // namespace
}  // namespace ortrain
