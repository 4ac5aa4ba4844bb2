#include "program/program.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "op/implementation.h"
#include "op/left_out.h"
#include "op/operator.h"
#include "program/cost.h"
#include "program/finite_check.h"
#include "program/guarded_arena.h"
#include "program/memory_plan.h"
#include "program/recompute.h"
#include "program/stated_shape.h"
#include "runtime/convert.h"
#include "runtime/memory.h"
#include "runtime/memory_in_use.h"
#include "runtime/stop.h"
#include "runtime/system.h"

namespace ortrain {

void Arena::reserve(size_t bytes) {
  if (bytes <= bytes_) return;
  // The old block is freed before the new one is allocated: nothing in it outlives a run. If the allocation
  // fails, an empty arena is left; the new generation makes every Program notice.
  ++generation_;
  bytes_ = 0;
  block_.reset();
  try {
    block_ = allocate(bytes);
  } catch (const Error& error) {
    fail(error.code(), error.message(), " for the values between the nodes of a run", memory_in_use());
  }
  bytes_ = bytes;
}

namespace {

enum class Where { kArena, kFixed, kInput, kOutput };

// A piece of memory. Its index is the number of its slot.
struct Storage {
  Where where = Where::kArena;
  size_t bytes = 0;
  Tensor fixed;           // kFixed: keeps the memory alive
  size_t input = 0;       // kInput: number of the input
  size_t output = 0;      // kOutput: number of the output
  int first = INT32_MAX;  // kArena: the steps between which it is in use
  int last = -1;
  std::vector<int> values;  // the values stored in it
};

// A value of the graph, and the place where it is stored.
struct Value {
  std::string name;
  DType dtype = DType::kUndefined;
  Shape shape;
  LayoutPtr layout;                               // of the first copy
  int storage = -1;                               // the first copy; -1 while only its other form is stored
  std::vector<std::pair<LayoutPtr, int>> copies;  // the same value in other layouts
  bool constant = false;                          // its storage is fixed and already holds the value
  int uses_left = 0;                              // readers not compiled yet, including the graph's outputs
  // A value of a narrow type (wide_of) and its wide form are two values with one name. Operators produce one
  // of them; the other gets memory, and a conversion into it, when something reads it.
  int other = -1;          // the other form
  bool converted = false;  // of the two, this is the one that no operator produces
};

struct Step {
  Kernel kernel;
  const Node* node = nullptr;  // named in errors
  bool converts = false;       // converts a value to the layout that the node needs
};

struct Output {
  int value = -1;
  Slot slot;
};

}  // namespace

struct Program::Impl {
  Graph graph;  // after compilation the nodes are only used in error messages
  std::vector<Storage> storages;
  std::vector<Value> values;
  std::vector<Step> steps;
  std::vector<Output> outputs;
  size_t input_count = 0;
  std::vector<std::pair<DType, Shape>> input_types;
  std::vector<int> input_storages;
  std::vector<int> direct_storages;  // in tensors that callers give for outputs
  std::vector<size_t> offsets;       // of arena storages
  ProgramMemory memory;
  std::shared_ptr<Arena> arena;
  uint64_t arena_generation = UINT64_MAX;  // different from that of any arena: addresses are not set
  std::vector<std::byte*> addresses;
  std::vector<FiniteCheck> checks;  // of each step, if the run is checked
  size_t interruptible = SIZE_MAX;  // the last step before which a run may stop
  // After how many steps each state is up to date, in ascending order.
  std::vector<std::pair<size_t, std::string>> updates;

  int add_storage(Storage storage) {
    storages.push_back(std::move(storage));
    addresses.push_back(storages.back().fixed.defined() ? storages.back().fixed.raw() : nullptr);
    return static_cast<int>(storages.size()) - 1;
  }
  int add_fixed(Tensor tensor) {
    Storage storage;
    storage.where = Where::kFixed;
    storage.bytes = tensor.bytes();
    storage.fixed = std::move(tensor);
    return add_storage(std::move(storage));
  }
  void place_arena() {
    arena->reserve(memory.arena);
    for (size_t i = 0; i < storages.size(); ++i)
      if (storages[i].where == Where::kArena) addresses[i] = arena->base() + offsets[i];
    arena_generation = arena->generation();
  }
  // Allows access only to the parts of the arena that are in use at this step.
  void guard(size_t step) const {
    forbid_access(arena->base(), arena->bytes());
    for (size_t i = 0; i < storages.size(); ++i) {
      const Storage& s = storages[i];
      if (s.where == Where::kArena && std::cmp_less_equal(s.first, step) &&
          std::cmp_greater_equal(s.last, step))
        allow_access(addresses[i], s.bytes);
    }
  }
};

namespace {

[[noreturn]] void reject_bytes(const Node* node, size_t bytes, size_t most) {
  fail(ErrorCode::kInvalidArgument, node ? node->label() : "the graph",
       ": with these input shapes its values take ", counted(bytes, "byte"),
       ", but session.max_bytes allows at most ", most);
}

class Compiler {
 public:
  Compiler(Program::Impl& program, const ProgramRequest& request) : program_(program), request_(request) {}
  // `nodes` are those of the requested graph, or others that compute the same outputs.
  void compile(const std::vector<Node>& nodes);

  // Used by the node contexts.
  Value& value(int i) { return program_.values[static_cast<size_t>(i)]; }
  Storage& storage(int i) { return program_.storages[static_cast<size_t>(i)]; }
  int find_value(const std::string& name) const {
    const auto found = value_index_.find(name);
    return found == value_index_.end() ? -1 : found->second;
  }
  int add_value(Value v);
  // The wide form of value v.
  int wide_form(int v);
  // Gives value v memory if it has none, and converts its other form into it.
  void materialize(int v, const Node* node);
  int uses(const std::string& name) const {
    const auto found = uses_.find(name);
    return found == uses_.end() ? 0 : found->second;
  }
  const std::vector<const Node*>& readers(const std::string& name) { return readers_[name]; }
  bool is_output(const std::string& name) const { return output_names_.count(name) > 0; }
  Precision precision() const { return request_.precision; }
  // The storage in which the value with that name should be produced, if it is produced in this layout.
  int placement(const std::string& name, const LayoutPtr& layout) {
    const auto found = placement_.find(name);
    if (found == placement_.end()) return -1;
    const Value& state = value(found->second);
    return same_layout(state.layout, layout) ? state.storage : -1;
  }
  // The dimensions that the graph states for a value.
  std::vector<int64_t> stated_shape(const std::string& name) const { return (*stated_shapes_)(name); }
  int64_t opset(const std::string& domain) const {
    const auto found = request_.opsets->find(domain);
    return found == request_.opsets->end() ? 1 : found->second;
  }
  // The storage that holds the value in the requested layout; inserts a conversion if there is none.
  int fetch(int v, const LayoutPtr& wanted, const Node* node);
  // How many readers of the values in a storage are not compiled yet.
  int pending(int s) {
    int sum = 0;
    for (const int v : storage(s).values) sum += value(v).uses_left;
    return sum;
  }
  const ProgramLimits& limits() const { return request_.limits; }
  int new_storage(size_t bytes, bool fixed) {
    const size_t most = request_.limits.bytes;
    if (fixed) fixed_bytes_ += std::min(bytes, most + 1);
    if (bytes > most || fixed_bytes_ > most) [[unlikely]]
      reject_bytes(node_, std::max(bytes, fixed_bytes_), most);
    if (fixed)
      return program_.add_fixed(Tensor(DType::kUInt8, {static_cast<int64_t>(std::max<size_t>(bytes, 1))}));
    Storage s;
    s.bytes = bytes;
    return program_.add_storage(std::move(s));
  }
  int new_fixed(Tensor tensor) { return program_.add_fixed(std::move(tensor)); }
  void touch(int s) {
    const int now = static_cast<int>(program_.steps.size());
    storage(s).first = std::min(storage(s).first, now);
    storage(s).last = std::max(storage(s).last, now);
  }
  void push(Kernel kernel, const Node* node, bool converts = false) {
    program_.steps.push_back({std::move(kernel), node, converts});
  }
  // The step that converts between a narrow type and its wide form.
  void push_conversion(DType narrow, int source, int target, int64_t count, bool widening, const Node* node) {
    const auto convert = widening ? to_wide : from_wide;
    push(
        [=](const Frame& f) { convert(narrow, f.at<std::byte>({source}), f.at<std::byte>({target}), count); },
        node, true);
  }
  // Adds the value of a narrow type whose wide form an operator produced.
  void add_narrow_form(int wide, DType dtype);

 private:
  void count_uses();
  void add_given(const std::string& name, const Tensor& tensor, bool constant);
  void add_inputs_and_constants();
  void set_outputs();
  void place_storages();
  void compile_node(const Node& node);
  void find_placements();
  void run_now(size_t from);

  Program::Impl& program_;
  const ProgramRequest& request_;
  const Node* node_ = nullptr;  // the node that is being compiled
  size_t fixed_bytes_ = 0;      // of values that are computed while compiling
  std::unordered_map<std::string, int> value_index_;
  std::unordered_map<std::string, int> uses_;
  std::unordered_map<std::string, std::vector<const Node*>> readers_;
  std::unordered_map<std::string, int> placement_;  // the state that a value overwrites
  std::unordered_map<std::string, int> output_names_;
  std::optional<StatedShapes> stated_shapes_;
};

class NodeShapes : public ShapeContext {
 public:
  NodeShapes(Compiler& compiler, const Node& node)
      : ShapeContext(node, compiler.opset(node.domain)), compiler_(compiler) {
    for (const std::string& name : node.inputs)
      inputs.push_back(name.empty() ? -1 : compiler.find_value(name));
    results.resize(node.outputs.size());
    known.resize(node.outputs.size());
  }
  DType dtype(size_t i) const override { return input(i).dtype; }
  const Shape& shape(size_t i) const override { return input(i).shape; }
  const Tensor* constant(size_t i) const override {
    if (!input(i).constant) return nullptr;
    compiler_.materialize(inputs[i], &node());
    return &compiler_.storage(input(i).storage).fixed;
  }
  void output(size_t o, DType dtype, Shape shape) override {
    if (o >= results.size()) return;  // a trailing optional output that the node does not have
    check_value(*this, o, dtype, shape, compiler_.limits());
    results[o] = {dtype, std::move(shape)};
  }
  std::vector<int64_t> stated_shape(size_t o) const override {
    return o < results.size() ? compiler_.stated_shape(node().outputs[o]) : std::vector<int64_t>();
  }
  void value(size_t o, Tensor value) override {
    output(o, value.dtype(), value.shape());
    if (o < results.size()) known[o] = std::move(value);
  }

  // From here on the kernel maker is called; it sees wide forms instead of narrow types.
  void widen(NarrowTypes narrow_types) {
    stated.clear();
    for (const auto& [dtype, shape] : results) stated.push_back(dtype);
    if (narrow_types == NarrowTypes::kNative) return;
    const bool passthrough = narrow_types == NarrowTypes::kPassthrough;
    const bool wide_half = !passthrough || std::any_of(inputs.begin(), inputs.end(), [&](int v) {
      return v >= 0 && is_half(compiler_.value(v).dtype) && compiler_.value(v).converted;
    });
    const auto widened = [&](DType t) { return is_half(t) ? wide_half : passthrough && is_packed(t); };
    for (int& v : inputs)
      if (v >= 0 && widened(compiler_.value(v).dtype)) v = compiler_.wide_form(v);
    for (size_t o = 0; o < results.size(); ++o)
      if (!known[o].defined() && widened(results[o].first)) results[o].first = wide_of(results[o].first);
  }

  std::vector<int> inputs;
  std::vector<std::pair<DType, Shape>> results;
  std::vector<DType> stated;  // types of the outputs according to the shape rule
  std::vector<Tensor> known;  // outputs whose value the shape rule stated

 private:
  const Value& input(size_t i) const {
    if (i >= inputs.size() || inputs[i] < 0) reject("input ", i, " is required but missing");
    return compiler_.value(inputs[i]);
  }

  Compiler& compiler_;
};

class NodeKernel : public KernelContext {
 public:
  NodeKernel(Compiler& compiler, const Node& node, const NodeShapes& shapes, bool folding)
      : KernelContext(node, compiler.opset(node.domain)),
        compiler_(compiler),
        shapes_(shapes),
        folding_(folding),
        made_(node.outputs.size(), -1),
        fetched_(node.inputs.size(), -1) {
    for (size_t o = 0; o < made_.size(); ++o)
      if (shapes_.known[o].defined()) made_[o] = compiler_.new_fixed(shapes_.known[o]);
  }

  // Whether the shape rule has stated the value of every output that is read, so that no kernel is needed.
  bool all_known() const {
    const Operator* op = find_operator(node().domain, node().op_type);
    if (op && op->traits.updates != 0) return false;  // the updates count even if the outputs are known
    for (size_t o = 0; o < made_.size(); ++o)
      if (made_[o] < 0 && has_output(o) && (o == 0 || wanted(o))) return false;
    return true;
  }

  // Whether the outputs have no elements and the node has no other effect. Such a node needs no kernel, whose
  // loops might run over the other dimensions. The outputs get their memory here.
  bool makes_nothing(const Operator& op) {
    if (op.traits.impure || op.traits.updates != 0) return false;
    for (size_t o = 0; o < made_.size(); ++o)
      if (has_output(o) && (made_[o] >= 0 || out_size(o) > 0)) return false;
    for (size_t o = 0; o < made_.size(); ++o) out(o);
    return !made_.empty();
  }

  DType dtype(size_t i) const override { return shapes_.dtype(i); }
  const Shape& shape(size_t i) const override { return shapes_.shape(i); }
  const Tensor* constant(size_t i) const override { return shapes_.constant(i); }
  DType out_dtype(size_t o) const override { return shapes_.results.at(o).first; }
  const Shape& out_shape(size_t o) const override { return shapes_.results.at(o).second; }

  Slot in(size_t i) override { return in(i, nullptr); }
  LayoutPtr in_layout(size_t i) const override {
    const int v = shapes_.inputs.at(i);
    return v < 0 ? nullptr : compiler_.value(v).layout;
  }
  Slot in(size_t i, const LayoutPtr& wanted) override {
    if (!has_input(i)) return {};
    const int s = compiler_.fetch(shapes_.inputs[i], wanted, &node());
    fetched_[i] = s;
    used_.push_back(s);
    return {s};
  }

  Slot out(size_t o, const LayoutPtr& layout = nullptr) override { return make(o, layout, -1); }

  Slot out_inplace(size_t o, std::initializer_list<size_t> candidates, const LayoutPtr& layout) override {
    if (!wanted(o)) return {};
    if (folding_ || compiler_.placement(node().outputs[o], layout) >= 0) return make(o, layout, -1);
    for (const size_t i : candidates) {
      if (i >= fetched_.size() || fetched_[i] < 0) continue;
      const Storage& s = compiler_.storage(fetched_[i]);
      if (s.where == Where::kArena && s.bytes == bytes_of_output(o, layout) &&
          compiler_.pending(fetched_[i]) == 1 && !taken(fetched_[i]))
        return make(o, layout, fetched_[i]);
    }
    return make(o, layout, -1);
  }

  void alias(size_t o, size_t i) override {
    if (!wanted(o)) return;
    const LayoutPtr stored = in_layout(i);
    const LayoutPtr layout = !stored                    ? nullptr
                             : out_shape(o) == shape(i) ? stored
                                                        : stored->reshaped(out_shape(o));
    const int s = compiler_.fetch(shapes_.inputs.at(i), layout ? stored : nullptr, &node());
    used_.push_back(s);
    layouts_.resize(made_.size());
    layouts_[o] = layout;
    made_[o] = s;
  }

  Slot scratch(size_t bytes) override {
    const int s = compiler_.new_storage(bytes, folding_);
    used_.push_back(s);
    return {s};
  }

  Slot fixed(Tensor value) override {
    const int s = compiler_.new_fixed(std::move(value));
    used_.push_back(s);
    return {s};
  }

  Slot state(size_t i) override {
    const int v = shapes_.inputs.at(i);
    expect(v >= 0, "input ", i, " is required but missing");
    const Value& input = compiler_.value(v);
    if (is_state(v)) {
      used_.push_back(input.storage);
      return {input.storage};
    }
    if (input.converted && is_state(input.other)) return wide_state(input.other);
    // Not model state but a given or computed value: the node updates a copy, and the update is discarded
    // after the run.
    const Slot from = in(i), copy = scratch(bytes_of_input(i));
    compiler_.touch(from.index);
    compiler_.touch(copy.index);
    compiler_.push(
        [from, copy, bytes = bytes_of_input(i)](const Frame& f) {
          if (bytes > 0) std::memcpy(f.at<std::byte>(copy), f.at<std::byte>(from), bytes);
        },
        &node());
    return copy;
  }

  bool same_storage(size_t i, size_t target) const override {
    const int a = shapes_.inputs.at(i), b = shapes_.inputs.at(target);
    if (a < 0 || b < 0 || compiler_.value(a).storage < 0) return false;
    const Value &x = compiler_.value(a), &y = compiler_.value(b);
    return x.storage == y.storage && same_layout(x.layout, y.layout);
  }

  Precision precision() const override { return folding_ ? Precision::kFloat : compiler_.precision(); }

  bool wants_bf16(size_t o) const override {
    if (precision() == Precision::kFloat || !has_output(o) || out_dtype(o) != DType::kFloat) return false;
    const std::string& name = node().outputs[o];
    if (compiler_.is_output(name)) return false;
    const auto& readers = compiler_.readers(name);
    return std::any_of(readers.begin(), readers.end(), [](const Node* n) {
      const Operator* op = find_operator(n->domain, n->op_type);
      return op && op->traits.takes_bf16;
    });
  }

  bool used_only_by(size_t o, std::string_view op_type) const override {
    if (!has_output(o)) return true;
    const std::string& name = node().outputs[o];
    if (compiler_.is_output(name)) return false;
    const auto& readers = compiler_.readers(name);
    return std::all_of(readers.begin(), readers.end(), [&](const Node* n) { return n->op_type == op_type; });
  }

  LayoutPtr layout_for_readers(size_t o) const override {
    if (folding_ || !has_output(o) || compiler_.is_output(node().outputs[o])) return nullptr;
    for (const Node* reader : compiler_.readers(node().outputs[o]))
      for (const std::string& name : reader->inputs) {
        const int v = compiler_.find_value(name);
        if (v < 0) continue;
        const Value& other = compiler_.value(v);
        if (other.layout && other.shape == out_shape(o)) return other.layout;
      }
    return nullptr;
  }

  uint64_t stream() const override {
    return std::hash<std::string>{}(node().outputs.empty() ? "" : node().outputs[0]);
  }

  // After the kernel was created: records which memory it uses and adds the outputs to the program's values.
  void finish(Kernel kernel) {
    if (kernel) {
      for (const int s : used_) compiler_.touch(s);
      compiler_.push(std::move(kernel), &node());
      for (auto& [wide, state] : wide_states_) {
        const Value& v = compiler_.value(state);
        compiler_.touch(wide);
        compiler_.push_conversion(v.dtype, wide, v.storage, element_count(v.shape), false, &node());
      }
    }
    for (size_t o = 0; o < made_.size(); ++o) {
      if (!has_output(o)) continue;
      Value v;
      v.name = node().outputs[o];
      v.dtype = out_dtype(o);
      v.shape = out_shape(o);
      v.layout = o < layouts_.size() ? layouts_[o] : nullptr;
      v.uses_left = compiler_.uses(v.name);
      if (made_[o] < 0) {
        expect(v.uses_left == 0, "the kernel did not produce output ", o, " ('", v.name, "')");
        continue;
      }
      v.storage = made_[o];
      if (folding_ || shapes_.known[o].defined()) fold(v);
      const int made = compiler_.add_value(std::move(v));
      if (shapes_.stated[o] != out_dtype(o)) compiler_.add_narrow_form(made, shapes_.stated[o]);
    }
  }

 private:
  bool wanted(size_t o) const { return has_output(o) && (o == 0 || compiler_.uses(node().outputs[o]) > 0); }
  bool is_state(int v) const {
    const Value& value = compiler_.value(v);
    return value.storage >= 0 && compiler_.storage(value.storage).where == Where::kFixed && !value.constant;
  }
  // The wide form of model state, for the node to update: converted before the kernel and back after it.
  Slot wide_state(int v) {
    const Value& state = compiler_.value(v);
    const int64_t count = element_count(state.shape);
    const int wide = compiler_.new_storage(bytes_of(wide_of(state.dtype), count), false);
    compiler_.touch(wide);
    compiler_.push_conversion(state.dtype, state.storage, wide, count, true, &node());
    used_.push_back(wide);
    wide_states_.emplace_back(wide, v);
    compiler_.value(v).other = -1;  // earlier conversions are stale
    return {wide};
  }
  size_t bytes_of_input(size_t i) const { return bytes_of(dtype(i), size(i)); }
  bool taken(int s) const { return std::find(made_.begin(), made_.end(), s) != made_.end(); }
  size_t bytes_of_output(size_t o, const LayoutPtr& layout) const {
    return layout ? layout->bytes() : bytes_of(out_dtype(o), element_count(out_shape(o)));
  }
  Slot make(size_t o, const LayoutPtr& layout, int over) {
    if (!wanted(o)) return {};
    if (made_[o] >= 0) return {made_[o]};
    int s = over;
    if (s < 0 && !folding_) {
      s = compiler_.placement(node().outputs[o], layout);
      if (s >= 0 && compiler_.storage(s).bytes != bytes_of_output(o, layout)) s = -1;
    }
    if (s < 0) s = compiler_.new_storage(bytes_of_output(o, layout), folding_);
    layouts_.resize(made_.size());
    layouts_[o] = layout;
    made_[o] = s;
    used_.push_back(s);
    return {s};
  }
  // The memory of a folded value keeps its type and shape, so that shape rules can read it. A view of another
  // constant, such as the result of a Reshape, has the same memory, but another shape.
  void fold(Value& v) {
    expect(!v.layout, "a constant cannot have a private layout");
    Storage& s = compiler_.storage(v.storage);
    Tensor value(v.dtype, v.shape, s.fixed.raw(), std::make_shared<Tensor>(s.fixed));
    if (s.values.empty())
      s.fixed = std::move(value);
    else
      v.storage = compiler_.new_fixed(std::move(value));
    v.constant = true;
  }

  Compiler& compiler_;
  const NodeShapes& shapes_;
  bool folding_;
  std::vector<int> made_;  // storage of each output
  std::vector<LayoutPtr> layouts_;
  std::vector<int> fetched_;  // storage from which each input was fetched
  std::vector<int> used_;
  std::vector<std::pair<int, int>> wide_states_;  // storage and the state that is updated in it
};

int Compiler::add_value(Value v) {
  const int index = static_cast<int>(program_.values.size());
  if (v.storage >= 0) storage(v.storage).values.push_back(index);
  value_index_[v.name] = index;
  program_.values.push_back(std::move(v));
  return index;
}

int Compiler::wide_form(int v) {
  if (value(v).other >= 0) return value(v).other;
  Value wide = value(v);
  wide.dtype = wide_of(wide.dtype);
  wide.layout = nullptr;
  wide.storage = -1;
  wide.copies.clear();
  wide.other = v;
  wide.converted = true;
  const int index = add_value(std::move(wide));
  value(v).other = index;
  value_index_[value(v).name] = v;  // the name refers to the value in its own type
  return index;
}

void Compiler::add_narrow_form(int wide, DType dtype) {
  Value narrow = value(wide);
  narrow.dtype = dtype;
  narrow.layout = nullptr;
  narrow.storage = -1;
  narrow.copies.clear();
  narrow.other = wide;
  narrow.converted = true;
  value(wide).other = add_value(std::move(narrow));
}

void Compiler::materialize(int v, const Node* node) {
  if (value(v).storage >= 0) return;
  const int other = value(v).other, source = fetch(other, nullptr, node);
  const DType dtype = value(v).dtype;
  const bool widening = dtype == wide_of(value(other).dtype);
  const size_t before = program_.steps.size();
  const int64_t count = element_count(value(v).shape);
  const int target = value(v).constant ? new_fixed(Tensor(dtype, value(v).shape))
                                       : new_storage(bytes_of(dtype, count), false);
  touch(source);
  touch(target);
  push_conversion(widening ? value(other).dtype : dtype, source, target, count, widening, node);
  if (value(v).constant) run_now(before);
  value(v).storage = target;
  storage(target).values.push_back(v);
}

int Compiler::fetch(int v, const LayoutPtr& wanted, const Node* node) {
  materialize(v, node);
  if (same_layout(value(v).layout, wanted)) return value(v).storage;
  for (const auto& [layout, s] : value(v).copies)
    if (same_layout(layout, wanted)) return s;
  const size_t bytes = wanted ? wanted->bytes() : bytes_of(value(v).dtype, element_count(value(v).shape));
  const bool fixed = value(v).constant;
  const size_t before = program_.steps.size();
  const auto convert = [&](int source, const auto& make) {
    const int target = new_storage(bytes, fixed);
    Kernel kernel = make(Slot{source}, Slot{target});
    if (!kernel) return -1;
    touch(source);
    touch(target);
    push(std::move(kernel), node, true);
    return target;
  };
  int target = -1;
  const LayoutPtr stored = value(v).layout;
  if (!wanted) {
    target = convert(value(v).storage, [&](Slot from, Slot to) { return stored->to_plain(from, to); });
  } else if (!stored) {
    target = convert(value(v).storage, [&](Slot from, Slot to) { return wanted->from_plain(from, to); });
  } else {
    target = convert(value(v).storage, [&](Slot from, Slot to) { return wanted->from(*stored, from, to); });
    if (target < 0) {
      const int plain = fetch(v, nullptr, node);
      target = convert(plain, [&](Slot from, Slot to) { return wanted->from_plain(from, to); });
    }
  }
  if (fixed) run_now(before);  // a constant is converted only once
  value(v).copies.emplace_back(wanted, target);
  storage(target).values.push_back(v);
  return target;
}

void Compiler::run_now(size_t from) {
  const Frame frame(program_.addresses.data(), 0);
  for (size_t i = from; i < program_.steps.size(); ++i) program_.steps[i].kernel(frame);
  program_.steps.resize(from);
}

void Compiler::find_placements() {
  for (const Node& node : program_.graph.nodes) {
    const Operator* op = find_operator(node.domain, node.op_type);
    if (!op || !op->traits.writes_through) continue;
    const NodeShapes shapes(*this, node);
    size_t input = 0, target = 0;
    if (!op->traits.writes_through(shapes, input, target) || !node.has_input(input) ||
        !node.has_input(target))
      continue;
    const int state = find_value(node.inputs[target]);
    if (state < 0 || storage(value(state).storage).where != Where::kFixed || value(state).constant) continue;
    placement_.emplace(node.inputs[input], state);
  }
}

// Throws the current exception again, with the node in its message.
[[noreturn]] void rethrow_for(const Node* node, const char* otherwise) {
  const std::string label = node ? node->label() : otherwise;
  try {
    throw;
  } catch (const DataDependent&) {
    throw;
  } catch (const Error& error) {
    if (!node || error.message().find(label) != std::string::npos) throw;
    fail(error.code(), label, ": ", error.message());
  } catch (const std::bad_alloc&) {
    fail(ErrorCode::kFail, label, ": out of memory", memory_in_use());
  } catch (const std::exception& error) {
    fail(ErrorCode::kRuntimeException, label, ": ", error.what());
  }
}

// Rejects types whose kernels the build leaves out.
void check_has_kernels(const Node& node, const char* kind, size_t i, const std::string& name, DType dtype) {
  const LibraryPart part = part_of(dtype);
  if (part.is_built) return;
  fail(ErrorCode::kNotImplemented, node.label(), ": ", kind, " ", i, " ('", name, "') has type ",
       to_string(dtype), "; this build of the library leaves out ", part.title, ": CMake option ",
       part.option);
}

void Compiler::compile_node(const Node& node) {
  const Operator* op = find_operator(node.domain, node.op_type);
  require(op != nullptr, ErrorCode::kNotImplemented, node.label(), ": this operator is not supported",
          left_out_hint());
  NodeShapes shapes(*this, node);
  for (size_t i = 0; i < node.inputs.size(); ++i)
    require(node.inputs[i].empty() || shapes.inputs[i] >= 0, ErrorCode::kInvalidGraph, node.label(),
            ": input ", i, " ('", node.inputs[i], "') is not produced by any node");
  infer_shapes(*op, shapes);
  std::vector<DType> types;
  for (const int v : shapes.inputs) types.push_back(v < 0 ? DType::kUndefined : value(v).dtype);
  for (size_t i = 0; i < types.size(); ++i) check_has_kernels(node, "input", i, node.inputs[i], types[i]);
  const ElementTypes ruled(node, shapes.opset(), std::move(types));
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    const DType found = shapes.results[o].first;
    shapes.expect(found == DType::kUndefined || found == element_type(*op, ruled, o), "output ", o,
                  " has type ", to_string(found), " by its shape rule, but its element type rule says ",
                  to_string(element_type(*op, ruled, o)));
    check_has_kernels(node, "output", o, node.outputs[o], found);
    shapes.expect(node.outputs[o].empty() || found != DType::kUndefined || uses(node.outputs[o]) == 0,
                  "output ", o, " ('", node.outputs[o], "') is read but this operator does not produce it");
  }

  const bool folding = !op->traits.impure && std::all_of(shapes.inputs.begin(), shapes.inputs.end(),
                                                         [&](int v) { return v < 0 || value(v).constant; });
  const size_t before = program_.steps.size();
  shapes.widen(op->traits.narrow_types);
  NodeKernel context(*this, node, shapes, folding);
  const bool nothing_to_do = context.all_known() || context.makes_nothing(*op);
  context.finish(nothing_to_do ? nullptr : make_kernel(*op, context));
  if (folding) run_now(before);
  for (size_t i = 0; i < node.inputs.size() && i < 32; ++i)
    if ((op->traits.updates >> i & 1) && request_.states.count(node.inputs[i]))
      program_.updates.emplace_back(program_.steps.size(), node.inputs[i]);
  // Graph outputs are converted immediately, so that the wide form need not be kept until the end.
  for (const std::string& name : node.outputs)
    if (const int v = is_output(name) ? find_value(name) : -1; v >= 0) materialize(v, &node);
  for (const int v : shapes.inputs) {
    if (v < 0) continue;
    --value(v).uses_left;
    if (const int other = value(v).other; other >= 0) --value(other).uses_left;
  }
}

// Counts the readers of each value.
void Compiler::count_uses() {
  uses_ = {};
  for (const Node& node : program_.graph.nodes)
    for (const std::string& name : node.inputs)
      if (!name.empty()) {
        ++uses_[name];
        readers_[name].push_back(&node);
      }
  for (const std::string& name : request_.outputs) {
    ++uses_[name];
    ++output_names_[name];
  }
}

// Adds a constant, or state of the model.
void Compiler::add_given(const std::string& name, const Tensor& tensor, bool constant) {
  if (find_value(name) >= 0) return;
  Value v;
  v.name = name;
  v.dtype = tensor.dtype();
  v.shape = tensor.shape();
  v.constant = constant;
  v.uses_left = uses(name);
  if (const auto layout = request_.layouts.find(name); !constant && layout != request_.layouts.end())
    v.layout = layout->second;
  v.storage = program_.add_fixed(tensor);
  add_value(std::move(v));
}

// Adds the values that exist before the first node runs.
void Compiler::add_inputs_and_constants() {
  for (size_t i = 0; i < request_.inputs.size(); ++i) {
    Value v;
    v.name = request_.inputs[i];
    v.dtype = request_.example_inputs[i].dtype();
    v.shape = request_.example_inputs[i].shape();
    v.uses_left = uses(v.name);
    Storage s;
    s.where = Where::kInput;
    s.input = i;
    s.bytes = request_.example_inputs[i].bytes();
    v.storage = program_.add_storage(std::move(s));
    program_.input_storages.push_back(v.storage);
    program_.input_types.emplace_back(v.dtype, v.shape);
    add_value(std::move(v));
  }
  stated_shapes_.emplace(*request_.graph, [this](const std::string& name) -> const Shape* {
    if (const int v = find_value(name); v >= 0) return &value(v).shape;
    return request_.shape_of ? request_.shape_of(name) : nullptr;
  });
  for (const auto& [name, tensor] : request_.constants) add_given(name, tensor, true);
  for (const auto& [name, tensor] : request_.states) add_given(name, tensor, false);
  for (const auto& [name, tensor] : request_.graph->initializers)
    if (uses(name) > 0) add_given(name, tensor, true);
}

// Sets the requested outputs. The first `direct_outputs` of them are written to the caller's memory, unless
// this memory has another use too.
void Compiler::set_outputs() {
  for (const std::string& name : request_.outputs) {
    const int v = find_value(name);
    require(v >= 0, ErrorCode::kInvalidGraph, "the graph's output '", name, "' is not produced by any node");
    const int s = fetch(v, nullptr, nullptr);
    program_.outputs.push_back({v, Slot{s}});
  }
  for (const Output& output : program_.outputs) touch(output.slot.index);
  for (size_t o = 0; o < std::min(request_.direct_outputs, program_.outputs.size()); ++o) {
    const Value& v = value(program_.outputs[o].value);
    Storage& s = storage(program_.outputs[o].slot.index);
    if (s.where != Where::kArena || s.bytes != bytes_of(v.dtype, element_count(v.shape))) continue;
    s.where = Where::kOutput;
    s.output = o;
    program_.direct_storages.push_back(program_.outputs[o].slot.index);
  }
}

// Gives each storage a place in the arena for as long as it is in use.
void Compiler::place_storages() {
  std::vector<MemoryRequest> requests, exact;
  std::vector<size_t> owners;
  for (size_t i = 0; i < program_.storages.size(); ++i) {
    const Storage& s = program_.storages[i];
    if (s.where != Where::kArena || s.last < 0) continue;
    requests.push_back({align_up(std::max<size_t>(s.bytes, 1)) + kGuardBytes, s.first, s.last});
    exact.push_back({s.bytes, s.first, s.last});
    owners.push_back(i);
  }
  const MemoryPlan plan = plan_memory(requests);
  if (plan.bytes > request_.limits.bytes && request_.memory_budget == 0)
    reject_bytes(node_, plan.bytes, request_.limits.bytes);
  program_.offsets.assign(program_.storages.size(), 0);
  for (size_t k = 0; k < owners.size(); ++k) program_.offsets[owners[k]] = plan.offsets[k];
  program_.memory = {plan.bytes, most_in_use(exact)};
  program_.arena = request_.arena ? request_.arena : std::make_shared<Arena>();
}

void Compiler::compile(const std::vector<Node>& nodes) {
  program_.graph.nodes = nodes;  // our own copy, so that the request need not outlive us
  count_uses();
  add_inputs_and_constants();
  find_placements();
  for (const Node& node : program_.graph.nodes) {
    check_stop();
    node_ = &node;
    try {
      compile_node(node);
    } catch (...) {
      rethrow_for(&node, "");
    }
  }
  node_ = nullptr;
  set_outputs();
  place_storages();
}

// Roughly how long a node takes, for recomputation: the data it moves at one speed, plus the arithmetic it
// does at another.
double seconds_of(const Node& node, const std::unordered_map<std::string, const Value*>& values,
                  Precision precision) {
  const auto find = [&](const std::vector<std::string>& names, size_t i) -> const Value* {
    const auto at = i < names.size() ? values.find(names[i]) : values.end();
    return at == values.end() ? nullptr : at->second;
  };
  const auto elements = [](const Value* v) { return v ? static_cast<double>(element_count(v->shape)) : 0.; };
  double bytes = 0;
  for (const std::vector<std::string>* names : {&node.inputs, &node.outputs})
    for (size_t i = 0; i < names->size(); ++i)
      if (const Value* v = find(*names, i))
        bytes += static_cast<double>(bytes_of(v->dtype, element_count(v->shape)));
  const Value* made = find(node.outputs, 0);
  Operations operations{.others = cost::kOperationsPerElement * elements(made)};
  const Operator* op = find_operator(node.domain, node.op_type);
  if (made && op && op->traits.operations) {
    std::vector<const Shape*> shapes;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Value* v = find(node.inputs, i);
      shapes.push_back(v ? &v->shape : nullptr);
    }
    operations = op->traits.operations(node, shapes, made->shape);
  }
  if (precision == Precision::kBf16) operations.products /= cost::kBf16Speedup;
  return cost::kCallSeconds + bytes / cost::kBytesPerSecond +
         (operations.products + operations.others) / cost::kOperationsPerSecond;
}

Footprint footprint_of(const Program::Impl& program, Precision precision) {
  Footprint footprint;
  footprint.live = program.memory.live;
  footprint.nodes.resize(program.graph.nodes.size());
  const auto index_of = [&](const Step& step) {
    return step.node ? static_cast<size_t>(step.node - program.graph.nodes.data()) : SIZE_MAX;
  };
  std::unordered_map<std::string, const Value*> values;
  std::vector<bool> holds_value(program.storages.size(), false);
  for (const Value& v : program.values) {
    if (v.converted) continue;
    values[v.name] = &v;
    holds_value[static_cast<size_t>(v.storage)] = true;
    const Storage& s = program.storages[static_cast<size_t>(v.storage)];
    if (s.where == Where::kArena && s.last >= 0) footprint.bytes[v.name] = s.bytes;
  }
  std::vector<bool> runs(footprint.nodes.size(), false);
  for (const Step& step : program.steps)
    if (const size_t i = index_of(step); i != SIZE_MAX && !step.converts) runs[i] = true;
  for (size_t i = 0; i < footprint.nodes.size(); ++i) {
    const Node& node = program.graph.nodes[i];
    Footprint::OfNode& cost = footprint.nodes[i];
    const auto made = node.has_output(0) ? values.find(node.outputs[0]) : values.end();
    for (size_t k = 0; k < node.inputs.size() && made != values.end(); ++k) {
      const auto read = values.find(node.inputs[k]);
      if (read == values.end() || read->second->storage != made->second->storage) continue;
      if (runs[i] && cost.over < 0) cost.over = static_cast<int>(k);
      if (!runs[i] && k == 0) cost.alias = true;
    }
    cost.folded = !runs[i] && made != values.end() && made->second->constant;
    if (!cost.folded && !cost.alias) cost.seconds = seconds_of(node, values, precision);
  }
  // Scratch memory, and values in other layouts, which are mostly produced for one node.
  for (size_t k = 0; k < program.storages.size(); ++k) {
    const Storage& s = program.storages[k];
    if (s.where != Where::kArena || s.last < 0 || holds_value[k]) continue;
    const auto first = static_cast<size_t>(s.first);
    const size_t i = first < program.steps.size() ? index_of(program.steps[first]) : SIZE_MAX;
    if (i != SIZE_MAX) footprint.nodes[i].scratch += s.bytes;
  }
  return footprint;
}

// Roughly how long a step takes.
double seconds_of(const Footprint& footprint) {
  double total = 0;
  for (const Footprint::OfNode& node : footprint.nodes) total += node.seconds;
  return total;
}

std::unique_ptr<Program::Impl> compile(const ProgramRequest& request, const std::vector<Node>& nodes) {
  auto program = std::make_unique<Program::Impl>();
  Compiler(*program, request).compile(nodes);
  return program;
}

// A program for the same outputs within `bytes`, which `whole` exceeds; nothing if none was found. The memory
// of each choice of values to drop is first estimated, then found by compiling; the target of the estimate is
// adjusted until the result fits.
std::unique_ptr<Program::Impl> compile_within(const ProgramRequest& request, Recomputation& recomputation,
                                              size_t bytes, size_t whole) {
  constexpr int kAttempts = 5;
  constexpr double kCloseEnough = 0.97;
  const auto budget = static_cast<double>(bytes);
  std::unique_ptr<Program::Impl> best;
  double target = budget, fits = 0, too_much = static_cast<double>(whole);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto nodes = recomputation.fit(static_cast<size_t>(target));
    if (!nodes) break;
    auto tried = compile(request, *nodes);
    const auto arena = static_cast<double>(tried->memory.arena);
    if (arena <= budget) {
      best = std::move(tried);
      fits = target;
      if (arena >= kCloseEnough * budget) break;
    } else {
      too_much = target;
    }
    target *= budget / arena;
    if (target <= fits || target >= too_much) target = (fits + too_much) / 2;
  }
  return best;
}

// The same within the memory budget of the request.
std::unique_ptr<Program::Impl> compile_within_budget(const ProgramRequest& request,
                                                     const Program::Impl& whole) {
  constexpr double kStep = 0.9;
  Recomputation recomputation(whole.graph.nodes, request.outputs, footprint_of(whole, request.precision));
  if (auto best = compile_within(request, recomputation, request.memory_budget, whole.memory.arena))
    return best;
  // Tries choices from the whole memory down to the smallest choice, and returns the first that fits. If none
  // fits, the error names the least memory that was found.
  size_t least = whole.memory.arena;
  int failures = 0;
  for (auto target = static_cast<double>(whole.memory.arena); failures < 3; target *= kStep) {
    const auto nodes = recomputation.fit(static_cast<size_t>(target));
    failures = nodes ? 0 : failures + 1;
    if (!nodes) continue;
    auto tried = compile(request, *nodes);
    if (tried->memory.arena <= request.memory_budget) return tried;
    least = std::min(least, tried->memory.arena);
  }
  fail(ErrorCode::kInvalidArgument, "ortrain.memory_budget: ", counted(request.memory_budget, "byte"),
       agreeing(request.memory_budget, " is", " are"),
       " too few; with these input shapes, the intermediate values of a step need at least ",
       counted(least, "byte"), " with recomputation, ", whole.memory.arena, " without");
}

// A program for the same outputs in the least memory that costs at most about `longest` more than `seconds`
// by the cost model of recomputation; nothing if even a tenth less memory costs more time than that. `whole`,
// which takes the memory `arena`, is released before another program is compiled: both would take memory at
// once.
std::unique_ptr<Program::Impl> compile_slower(const ProgramRequest& request, Recomputation& recomputation,
                                              double seconds, double longest, size_t arena,
                                              std::unique_ptr<Program::Impl>& whole) {
  constexpr int kAttempts = 3;
  double estimate = longest;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto chosen = recomputation.least(estimate);
    if (!chosen) break;
    whole.reset();
    auto tried = compile(request, *chosen);
    if (tried->memory.arena >= arena) break;
    const double more = seconds_of(footprint_of(*tried, request.precision)) - seconds;
    if (more <= longest) return tried;
    estimate *= longest / more;
  }
  return nullptr;
}

// A program for the same outputs in less memory, or `whole` itself: the least memory that costs at most about
// a sixteenth more time. If that saves nothing or leaves much memory in use, an eighth, but no more than it
// takes to leave less: beyond the sixteenth, mostly products are computed again.
std::unique_ptr<Program::Impl> compile_in_less(const ProgramRequest& request,
                                               std::unique_ptr<Program::Impl> whole) {
  constexpr double kLittleTime = 0.06, kMoreTime = 0.12;
  constexpr size_t kMuch = size_t{400} << 20;
  const Footprint footprint = footprint_of(*whole, request.precision);
  const double seconds = seconds_of(footprint);
  const size_t arena = whole->memory.arena;
  std::vector<Node> nodes = std::move(whole->graph.nodes);
  Recomputation recomputation(nodes, request.outputs, footprint);
  const auto slower = [&](double more) {
    return compile_slower(request, recomputation, seconds, more * seconds, arena, whole);
  };
  auto best = slower(kLittleTime);
  if (!best || best->memory.arena > kMuch) {
    if (auto tried = slower(kMoreTime)) best = std::move(tried);
    if (best && arena > kMuch && best->memory.arena < kMuch)
      if (auto larger = compile_within(request, recomputation, kMuch, arena)) best = std::move(larger);
  }
  if (best) return best;
  if (!whole) return compile(request, nodes);
  whole->graph.nodes = std::move(nodes);  // the steps of `whole` point to these nodes
  return whole;
}

void run_timed(const Step& step, const Frame& frame, Profile& profile) {
  const auto start = Profile::Clock::now();
  step.kernel(frame);
  const auto end = Profile::Clock::now();
  const Node* node = step.node;
  const std::string name = !node                                          ? ""
                           : node->name.empty() && !node->outputs.empty() ? node->outputs[0]
                                                                          : node->name;
  profile.record(step.converts || !node ? "(layout)" : node->op_type, name, start, end);
}

void run_watched(const Step& step, const Frame& frame, Profile* profile, FiniteCheck* check) {
  if (check) check->before(frame);
  if (profile)
    run_timed(step, frame, *profile);
  else
    step.kernel(frame);
  if (check && step.node) check->after(frame, *step.node);
}

// The floating-point values that each step reads and produces, if they are in memory at that time.
std::vector<FiniteCheck> checks_of(const Program::Impl& program) {
  std::unordered_map<std::string, std::vector<const Value*>> values;
  for (const Value& v : program.values)
    if (is_floating(v.dtype)) values[v.name].push_back(&v);
  const auto stored = [&](const Value& v, const LayoutPtr& layout, int storage, size_t step) {
    std::optional<CheckedValue> found;
    if (storage < 0) return found;
    const Storage& s = program.storages[static_cast<size_t>(storage)];
    const auto now = static_cast<int>(step);
    if (s.where == Where::kArena && (now < s.first || now > s.last)) return found;
    const DType dtype = layout && layout->bf16() ? DType::kBFloat16 : v.dtype;
    const auto count =
        layout ? static_cast<int64_t>(layout->bytes() / size_of(dtype)) : element_count(v.shape);
    found = CheckedValue{v.name, dtype, count, Slot{storage}};
    return found;
  };
  // The first of a value's forms and copies that exists.
  const auto find = [&](const std::string& name, size_t step) -> std::optional<CheckedValue> {
    const auto at = values.find(name);
    if (at == values.end()) return std::nullopt;
    for (const Value* v : at->second) {
      if (auto found = stored(*v, v->layout, v->storage, step)) return found;
      for (const auto& [layout, storage] : v->copies)
        if (auto found = stored(*v, layout, storage, step)) return found;
    }
    return std::nullopt;
  };
  std::vector<FiniteCheck> checks;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    std::vector<CheckedValue> inputs, outputs;
    if (const Node* node = program.steps[i].converts ? nullptr : program.steps[i].node) {
      for (const std::string& name : node->inputs)
        if (auto found = find(name, i)) inputs.push_back(*std::move(found));
      for (const std::string& name : node->outputs)
        if (auto found = find(name, i)) outputs.push_back(*std::move(found));
    }
    checks.emplace_back(std::move(inputs), std::move(outputs));
  }
  return checks;
}

// The index of the first step that updates one of the states, or SIZE_MAX.
size_t first_update(const Program::Impl& program, const std::set<std::string>& states) {
  for (size_t i = 0; !states.empty() && i < program.steps.size(); ++i) {
    const Node* node = program.steps[i].node;
    const Operator* op = node ? find_operator(node->domain, node->op_type) : nullptr;
    for (size_t k = 0; op && k < node->inputs.size(); ++k)
      if ((op->traits.updates >> k & 1) && states.contains(node->inputs[k])) return i;
  }
  return SIZE_MAX;
}

}  // namespace

Program::Program(const ProgramRequest& request)
    : impl_(compile(request, request.nodes ? *request.nodes : request.graph->nodes)) {
  if (request.memory_budget == kAutomaticBudget) {
    impl_ = compile_in_less(request, std::move(impl_));
  } else if (request.memory_budget > 0 && impl_->memory.arena > request.memory_budget) {
    impl_ = compile_within_budget(request, *impl_);
  }
  if (request.memory_budget > 0) system::return_freed_memory();  // freed by the search
  if (impl_->memory.arena > request.limits.bytes)
    reject_bytes(nullptr, impl_->memory.arena, request.limits.bytes);
  if (request.check_finite) impl_->checks = checks_of(*impl_);
  impl_->interruptible = first_update(*impl_, request.updated_together);
}

Program::~Program() = default;

DType Program::output_dtype(size_t i) const {
  return impl_->values[static_cast<size_t>(impl_->outputs.at(i).value)].dtype;
}

const Shape& Program::output_shape(size_t i) const {
  return impl_->values[static_cast<size_t>(impl_->outputs.at(i).value)].shape;
}

const ProgramMemory& Program::memory() const { return impl_->memory; }

void Program::run(std::span<const Tensor* const> inputs, std::span<const Tensor* const> outputs, uint64_t run,
                  const std::atomic<bool>* terminate, Profile* profile, const StateWatch* watch) {
  Impl& p = *impl_;
  if (p.arena->generation() != p.arena_generation) p.place_arena();
  for (size_t i = 0; i < inputs.size(); ++i)
    p.addresses[static_cast<size_t>(p.input_storages[i])] = inputs[i]->raw();
  for (const int s : p.direct_storages)
    p.addresses[static_cast<size_t>(s)] = outputs[p.storages[static_cast<size_t>(s)].output]->raw();
  if (profile) profile->memory(p.memory.arena, p.memory.live);
  const Frame frame(p.addresses.data(), run);
  const GuardScope guarded(p.arena->base(), p.arena->bytes());
  size_t i = 0, notified = watch ? 0 : p.updates.size();
  const auto notify = [&] {
    for (; notified < p.updates.size() && p.updates[notified].first <= i; ++notified)
      (*watch)(p.updates[notified].second);
  };
  try {
    for (; i < p.steps.size(); ++i) {
      if (i <= p.interruptible) check_terminate(terminate);
      if (notified < p.updates.size()) [[unlikely]]
        notify();
      if constexpr (kGuardsArenas) p.guard(i);
      if (profile || !p.checks.empty()) [[unlikely]]
        run_watched(p.steps[i], frame, profile,
                    p.checks.empty() || i >= p.interruptible ? nullptr : &p.checks[i]);
      else
        p.steps[i].kernel(frame);
    }
  } catch (...) {
    rethrow_for(p.steps[i].node, "the outputs");
  }
  if constexpr (kGuardsArenas) p.guard(p.steps.size());
  notify();
  for (size_t o = 0; o < outputs.size(); ++o) {
    const std::byte* made = p.addresses[static_cast<size_t>(p.outputs[o].slot.index)];
    if (const size_t bytes = outputs[o]->bytes(); bytes > 0 && made != outputs[o]->raw())
      std::memcpy(outputs[o]->raw(), made, bytes);
  }
}

}  // namespace ortrain
