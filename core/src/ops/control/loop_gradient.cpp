// The gradient of Loop and Scan: a Scan over their iterations from last to first, or a Loop if it carries the
// gradient of a sequence. The body recomputes an iteration from the initial values of the iteration, and then
// runs it backwards:
//
//     forward:   v', slices = body_t(v)         which also stacks v if the gradient reads it
//     backward:  dv, dc_t = gradient of body_t(v) given dv' and the gradients of the slices
//                dc += dc_t                     for every value c of an enclosing graph
//
// Random values of an iteration are stacked as well, because they would differ when recomputed.
//
// The gradient uses only operators of ONNX, so other runtimes can run such training models. Initial values
// whose shape changes from iteration to iteration are collected in a sequence instead of being stacked.
#include <algorithm>
#include <set>

#include "ops/common/shape_helpers.h"
#include "ops/control/control_flow.h"
#include "ops/control/sequence.h"

namespace ortrain {
namespace {

std::optional<std::vector<Dim>> without_axis(const std::optional<std::vector<Dim>>& dims, int64_t axis) {
  if (!dims || dims->empty()) return std::nullopt;
  std::vector<Dim> slice = *dims;
  const auto rank = static_cast<int64_t>(slice.size());
  const int64_t at = axis < 0 ? axis + rank : axis;
  if (at < 0 || at >= rank) return std::nullopt;
  slice.erase(slice.begin() + at);
  return slice;
}

int64_t entry(const std::vector<int64_t>& all, size_t k) { return k < all.size() ? all[k] : 0; }

class LoopGradient {
 public:
  LoopGradient(GradientContext& g, const LoopForm& form)
      : g_(g), s_(g.subgraphs()), form_(form), node_(g.node()), body_(subgraph_of(node_, "body")) {
    const size_t known = form_.first_result + form_.carried;
    stacks_ = body_.outputs.size() - std::min(body_.outputs.size(), known);
    in_axes_ = node_.ints_or("scan_input_axes", {});
    in_directions_ = node_.ints_or("scan_input_directions", {});
    out_axes_ = node_.ints_or("scan_output_axes", {});
    out_directions_ = node_.ints_or("scan_output_directions", {});
  }

  void build() {
    describe_inputs();
    find_active();
    differentiate();
    if (std::all_of(gradient_.gradients.begin(), gradient_.gradients.end(),
                    [](const std::string& name) { return name.empty(); }))
      return;
    begin_backward();
    stack_forward();
    emit();
  }

 private:
  const std::string& input(size_t k) const { return body_.inputs.at(form_.first_input + k).name; }
  const std::string& result(size_t k) const { return body_.outputs.at(form_.first_result + k).name; }
  bool is_loop() const { return form_.first_result == 1; }

  // Collects the known types and shapes of the body's inputs.
  void describe_inputs() {
    if (is_loop()) {
      infos_.push_back({"", DType::kInt64, std::vector<Dim>{}});
      infos_.push_back({"", DType::kBool, std::vector<Dim>{}});
    }
    for (size_t k = 0; k < form_.carried; ++k) infos_.push_back(s_.info(g_.want_y(k)));
    for (size_t k = 0; k < form_.scanned; ++k) {
      ValueInfo slice = s_.info(g_.x(form_.first_input + form_.carried + k));
      slice.dims = without_axis(slice.dims, entry(in_axes_, k));
      infos_.push_back(std::move(slice));
    }
    node_ = g_.node();  // want_y() has named all carried outputs
  }

  // The carried values that depend on a value whose gradient is requested.
  void find_active() {
    captured_ = s_.captured();
    std::set<std::string> active(captured_.begin(), captured_.end());
    for (size_t k = 0; k < form_.carried + form_.scanned; ++k)
      if (g_.needs(form_.first_input + k)) active.insert(input(k));
    for (size_t before = 0; before != active.size();) {
      before = active.size();
      for (const Node& node : body_.nodes) {
        const Operator* op = find_operator(node.domain, node.op_type);
        if (op && op->differentiable() == Differentiable::kStop) continue;
        const std::vector<std::string> read = values_read(node);
        if (std::any_of(read.begin(), read.end(), [&](const std::string& v) { return active.count(v) > 0; }))
          active.insert(node.outputs.begin(), node.outputs.end());
      }
      for (size_t k = 0; k < form_.carried; ++k)
        if (active.count(result(k))) active.insert(input(k));
    }
    for (size_t k = 0; k < form_.carried; ++k)
      if (active.count(input(k)) && is_floating(infos_[form_.first_input + k].dtype)) active_.push_back(k);
    for (size_t k = 0; k < form_.scanned; ++k)
      if (g_.needs(form_.first_input + form_.carried + k)) scanned_.push_back(k);
  }

  void differentiate() {
    std::vector<std::string> wanted;
    for (const size_t k : active_) wanted.push_back(input(k));
    for (const size_t k : scanned_) wanted.push_back(input(form_.carried + k));
    wanted.insert(wanted.end(), captured_.begin(), captured_.end());
    std::vector<std::pair<size_t, std::string>> seeds;
    for (const size_t k : active_) {
      seeds_.push_back(s_.unique(result(k) + "_grad_in"));
      seeds.emplace_back(form_.first_result + k, seeds_.back());
    }
    for (size_t k = 0; k < stacks_; ++k) {
      if (g_.dy(form_.carried + k).empty()) continue;
      stacked_.push_back(k);
      slice_seeds_.push_back(s_.unique(result(form_.carried + k) + "_grad_in"));
      seeds.emplace_back(form_.first_result + form_.carried + k, slice_seeds_.back());
    }
    gradient_ = s_.differentiate("body", infos_, wanted, seeds);
  }

  // The body of the backward loop: its states, and their values after an iteration.
  void begin_backward() {
    Graph& b = *gradient_.backward;
    const auto gradient_of = [&](size_t k) { return gradient_.gradients[k]; };
    for (size_t i = 0; i < active_.size(); ++i) {
      const size_t k = active_[i];
      ValueInfo info = infos_[form_.first_input + k];
      info.name = seeds_[i];
      b.inputs.push_back(info);
      initial_.push_back(dy_or_zeros_like_value(g_, k));
      std::string gradient = gradient_of(i);
      // The gradient of a value that changes its shape has the shape of the value before the iteration.
      if (gradient.empty()) gradient = add_zeros(s_, b, fixed(info) ? seeds_[i] : input(k), info);
      add_subgraph_output(s_, b, gradient, info);
    }
    for (size_t i = 0; i < captured_.size(); ++i) {
      const std::string gradient = gradient_of(active_.size() + scanned_.size() + i);
      if (gradient.empty()) continue;
      ValueInfo info = s_.info(captured_[i]);
      info.name = s_.unique(captured_[i] + "_grad_sum");
      b.inputs.push_back(info);
      reached_.push_back(captured_[i]);
      initial_.push_back(zeros_like_value(g_, captured_[i]));
      const std::string sum = info.is_sequence
                                  ? add_sequences(writer_of(s_, b), info.name, gradient, info.dtype)
                                  : add_node(s_, b, "Add", {info.name, gradient});
      add_subgraph_output(s_, b, sum, info);
    }
    for (size_t i = 0; i < scanned_.size(); ++i) {
      const size_t k = scanned_[i];
      ValueInfo info = infos_[form_.first_input + form_.carried + k];
      std::string gradient = gradient_of(active_.size() + i);
      if (gradient.empty()) gradient = add_zeros_like(s_, b, input(form_.carried + k), info.dtype);
      add_subgraph_output(s_, b, gradient, info);
      back_axes_.push_back(entry(in_axes_, k));
      back_directions_.push_back(1 - entry(in_directions_, k));
    }
  }

  // Whether a value has the same shape in every iteration: its dimensions are fixed, or known outside the
  // loop.
  bool fixed(const ValueInfo& info) {
    if (outer_.empty()) {
      outer_.insert("");
      std::vector<std::string> around = node_.inputs;
      const std::vector<std::string> read = values_read(body_);
      around.insert(around.end(), read.begin(), read.end());
      for (const std::string& value : around)
        for (const Dim& dim : s_.info(value).dims.value_or(std::vector<Dim>{})) outer_.insert(dim.symbol);
    }
    return info.is_tensor() && info.dims &&
           std::all_of(info.dims->begin(), info.dims->end(), [&](const Dim& dim) {
             return dim.known() || (!dim.symbol.empty() && outer_.count(dim.symbol) > 0);
           });
  }

  // Makes the loop return the values that the backward body reads, and passes these values to the backward
  // body.
  void stack_forward() {
    Graph& b = *gradient_.backward;
    const std::vector<std::string> all = values_read(b);
    const std::set<std::string> read(all.begin(), all.end());
    const size_t results = body_.outputs.size() - form_.first_result;
    while (node_.outputs.size() < results) node_.outputs.push_back("");
    for (size_t o = 0; o < results; ++o)
      if (node_.outputs[o].empty()) node_.outputs[o] = s_.unique(body_.outputs[form_.first_result + o].name);
    if (is_loop()) {
      // The number of iterations of the backward loop is the length of this stack.
      keep({body_.inputs[0].name, DType::kInt64, std::vector<Dim>{}});
      if (read.count(body_.inputs[1].name)) {
        Tensor yes(DType::kBool, {});
        *yes.data<bool>() = true;
        b.add_initializer(body_.inputs[1].name, yes);
      }
    }
    for (size_t k = 0; k < form_.carried; ++k) {
      if (!read.count(input(k))) continue;
      ValueInfo info = infos_[form_.first_input + k];
      info.name = input(k);
      keep(info);
    }
    for (const ValueInfo& saved : gradient_.saved) keep(saved);
    for (size_t k = 0; k < form_.scanned; ++k) {
      const bool first = !is_loop() && k == 0;  // a Scan needs a sliced input for the number of iterations
      if (!first && !read.count(input(form_.carried + k))) continue;
      ValueInfo info = infos_[form_.first_input + form_.carried + k];
      info.name = input(form_.carried + k);
      slice(g_.x(form_.first_input + form_.carried + k), info, entry(in_axes_, k),
            1 - entry(in_directions_, k));
    }
    for (size_t i = 0; i < stacked_.size(); ++i) {
      const size_t k = stacked_[i];
      ValueInfo info = s_.info(g_.y(form_.carried + k));
      info.dims = without_axis(info.dims, entry(out_axes_, k));
      info.name = slice_seeds_[i];
      slice(g_.dy(form_.carried + k), info, entry(out_axes_, k), 1 - entry(out_directions_, k));
    }
    const size_t stacks = node_.outputs.size() - form_.carried - tapes_;
    if (!out_axes_.empty()) {
      out_axes_.resize(stacks, 0);
      node_.attributes["scan_output_axes"] = out_axes_;
    }
    if (!out_directions_.empty()) {
      out_directions_.resize(stacks, 0);
      node_.attributes["scan_output_directions"] = out_directions_;
    }
    node_.attributes["body"] = gradient_.forward;
    s_.change(node_);
  }

  // The loop stacks a value of its body, and the backward body gets its slices under the same name.
  void keep(const ValueInfo& info) {
    if (!info.is_tensor())
      g_.reject(concat("its gradient needs the ", info.is_sequence ? "sequence" : "optional value", " '",
                       info.name,
                       "' of its body from every iteration, but a sequence can only have tensors"));
    if (!fixed(info)) return record(info);
    slice(stack(info.name, info), info, 0, 1);
  }

  // A new output of the loop that stacks a value of its body.
  std::string stack(const std::string& value, const ValueInfo& info) {
    add_subgraph_output(s_, *gradient_.forward, value, info);
    node_.outputs.push_back(s_.unique(value + "_stack"));
    return node_.outputs.back();
  }

  // Like keep(), for a value whose shape differs between iterations: the loop carries a sequence, to which
  // each iteration adds the value. The backward body reads the value by the index of the iteration.
  void record(const ValueInfo& info) {
    Graph& f = *gradient_.forward;
    const auto at = static_cast<std::ptrdiff_t>(form_.carried + tapes_++);
    const std::string before = s_.unique(info.name + "_tape"), all = s_.unique(info.name + "_tape");
    const std::string after = add_node(s_, f, "SequenceInsert", {before, info.name});
    const ValueInfo tape = sequence_of({before, info.dtype, std::nullopt});
    f.inputs.insert(f.inputs.begin() + static_cast<std::ptrdiff_t>(form_.first_input) + at, tape);
    f.outputs.insert(f.outputs.begin() + static_cast<std::ptrdiff_t>(form_.first_result) + at, tape);
    f.outputs[form_.first_result + static_cast<size_t>(at)].name = after;
    node_.inputs.insert(node_.inputs.begin() + static_cast<std::ptrdiff_t>(form_.first_input) + at,
                        s_.empty_sequence(info.dtype));
    node_.outputs.insert(node_.outputs.begin() + at, all);
    Graph& b = *gradient_.backward;
    b.nodes.insert(
        b.nodes.begin(),
        Node{
            "", "SequenceAt", s_.unique(info.name + "_again"), {all, body_.inputs[0].name}, {info.name}, {}});
  }

  void slice(const std::string& from, const ValueInfo& info, int64_t axis, int64_t direction) {
    ValueInfo stated = info;
    if (stated.dims)
      for (Dim& dim : *stated.dims)
        if (dim.symbol.starts_with("?")) dim.symbol.clear();
    gradient_.backward->inputs.push_back(std::move(stated));
    sliced_.push_back(from);
    axes_.push_back(axis);
    directions_.push_back(direction);
  }

  // Whether the backward loop carries a sequence, which is not possible in a Scan.
  bool carries_sequence() const {
    const std::vector<ValueInfo>& inputs = gradient_.backward->inputs;
    return std::any_of(inputs.begin(), inputs.end(), [](const ValueInfo& info) { return info.is_sequence; });
  }

  // The backward loop as a Loop: its body reads the slices by the index of the iteration.
  Names emit_loop() {
    Graph& b = *gradient_.backward;
    const auto states = static_cast<std::ptrdiff_t>(initial_.size());
    const std::vector<ValueInfo> slices(b.inputs.begin() + states, b.inputs.end());
    b.inputs.resize(initial_.size());
    const ValueInfo turn{s_.unique(b.name + "/turn"), DType::kInt64, std::vector<Dim>{}},
        condition{s_.unique(b.name + "/condition"), DType::kBool, std::vector<Dim>{}};
    b.inputs.insert(b.inputs.begin(), {turn, condition});
    const auto scalar = [&](int64_t value) { return g_.constant(Tensor::scalar(value)); };
    const std::string count = g_("Gather", {shape_of(g_, sliced_.at(0)), scalar(axes_.at(0))});
    const std::string last = g_("Sub", {count, scalar(1)});
    Graph first;  // nodes at the beginning of the body
    first.name = b.name;
    const std::string from_end = add_node(s_, first, "Sub", {last, turn.name});
    for (size_t i = 0; i < slices.size(); ++i) {
      Node gather;
      gather.op_type = "Gather";
      gather.name = s_.unique(b.name + "/Gather");
      gather.inputs = {sliced_[i], directions_[i] != 0 ? from_end : turn.name};
      gather.outputs = {slices[i].name};
      gather.attributes["axis"] = axes_[i];
      first.nodes.push_back(std::move(gather));
    }
    b.nodes.insert(b.nodes.begin(), first.nodes.begin(), first.nodes.end());
    ValueInfo goes_on = condition;
    goes_on.name = add_node(s_, b, "Identity", {condition.name});
    b.outputs.insert(b.outputs.begin(), goes_on);
    std::vector<std::string> inputs = {count, ""};
    inputs.insert(inputs.end(), initial_.begin(), initial_.end());
    Names gradients =
        g_.emit("Loop", inputs, initial_.size() + scanned_.size(), {{"body", gradient_.backward}});
    for (size_t i = 0; i < scanned_.size(); ++i) {
      Name& stack = gradients[initial_.size() + i];
      if (back_directions_[i] != 0)
        stack = g_("Gather", {stack, g_("Range", {last, scalar(-1), scalar(-1)})}, {{"axis", int64_t{0}}});
      stack = moved_from_front(stack, g_.x(form_.first_input + form_.carried + scanned_[i]), back_axes_[i]);
    }
    return gradients;
  }

  // The value with its first axis moved to position `axis`; the value has the rank of `like`.
  Name moved_from_front(Name value, const std::string& like, int64_t axis) {
    if (axis == 0) return value;
    const auto dims = g_.dims(like);
    if (!dims) g_.reject("its gradient needs the rank of '", like, "', which is not known");
    const auto rank = static_cast<int64_t>(dims->size());
    std::vector<int64_t> order;
    for (int64_t d = 1; d < rank; ++d) order.push_back(d);
    order.insert(order.begin() + normalize_axis(axis, rank, node_.label()), 0);
    return g_("Transpose", {value}, {{"perm", order}});
  }

  Names emit_scan() {
    std::vector<std::string> inputs = initial_;
    inputs.insert(inputs.end(), sliced_.begin(), sliced_.end());
    Attributes attributes = {{"body", gradient_.backward},
                             {"num_scan_inputs", static_cast<int64_t>(sliced_.size())},
                             {"scan_input_axes", axes_},
                             {"scan_input_directions", directions_}};
    if (!scanned_.empty()) {
      attributes["scan_output_axes"] = back_axes_;
      attributes["scan_output_directions"] = back_directions_;
    }
    return g_.emit("Scan", inputs, initial_.size() + scanned_.size(), attributes);
  }

  void emit() {
    const Names gradients = carries_sequence() ? emit_loop() : emit_scan();
    size_t at = 0;
    for (const size_t k : active_) g_.set(form_.first_input + k, gradients[at++]);
    for (const std::string& value : reached_) s_.set_captured(value, gradients[at++]);
    for (const size_t k : scanned_) g_.set(form_.first_input + form_.carried + k, gradients[at++]);
  }

  GradientContext& g_;
  SubgraphContext& s_;
  LoopForm form_;
  Node node_;  // the node, with the outputs that were added so far
  const Graph body_;
  size_t stacks_ = 0, tapes_ = 0;
  std::vector<int64_t> in_axes_, in_directions_, out_axes_, out_directions_;
  std::vector<ValueInfo> infos_;
  std::vector<std::string> captured_;
  std::vector<size_t> active_, scanned_;  // carried and sliced inputs whose gradient is requested
  std::vector<size_t> stacked_;           // stacks that have a gradient
  std::vector<std::string> seeds_, slice_seeds_;
  SubgraphGradient gradient_;
  std::set<std::string> outer_;  // names of dimensions outside the body
  std::vector<std::string> initial_, reached_, sliced_;
  std::vector<int64_t> axes_, directions_, back_axes_, back_directions_;
};

}  // namespace

void loop_gradient(GradientContext& g, const LoopForm& form) { LoopGradient(g, form).build(); }

void add_subgraph_output(SubgraphContext& s, Graph& graph, const std::string& value, const ValueInfo& like) {
  ValueInfo output = like;
  if (output.dims)
    for (Dim& dim : *output.dims)
      if (dim.symbol.starts_with("?")) dim.symbol.clear();
  output.name = add_node(s, graph, "Identity", {value});
  graph.outputs.push_back(std::move(output));
}

}  // namespace ortrain
