// An operator is a set of rules (shape, gradient), traits and kernels, registered under a name.
//
// An operator's file defines the functions and registers them:
//
//     void shape(ShapeContext& c) { c.output(0, c.dtype(0), c.shape(0)); }
//     Kernel kernel(KernelContext& c) { ... }
//     void gradient(GradientContext& g) { g.set(0, g("ReluGrad", {g.dy(0), g.x(0)}, {}, kMicrosoft)); }
//     ORTRAIN_OPERATOR({.type = "Relu",  // in other domains also .signature = "X -> Y"
//                       .rules = {.shape = shape, .gradient = gradient},
//                       .traits = {.positions = elementwise_positions},
//                       .kernels = {.cpu = kernel}});
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "built_operators.h"
#include "graph/graph.h"
#include "op/gradient_context.h"
#include "op/kernel.h"
#include "op/traits.h"
#include "runtime/error.h"
#include "runtime/generated/parts.h"
#include "runtime/registry.h"
#include "runtime/tensor.h"

namespace ortrain {

inline constexpr const char* kMicrosoft = "com.microsoft";

class TypeContext;           // op/dynamic.h
class DynamicContext;        // op/dynamic.h
class DecompositionContext;  // op/decomposition.h

// Thrown by a shape rule or a kernel maker that needs an input value which is not known before the run.
struct DataDependent : Error {
  DataDependent(ErrorCode code, std::string message, std::string value)
      : Error(code, std::move(message)), value(std::move(value)) {}
  std::string value;  // the name of that input
};

// The context that shape rules and kernel makers share: the node, and the types, shapes and constant values
// of its inputs.
class NodeContext {
 public:
  virtual ~NodeContext() = default;
  NodeContext(const Node& node, int64_t opset) : node_(node), opset_(opset) {}

  const Node& node() const { return node_; }
  int64_t opset() const { return opset_; }  // version of the node's domain in the model
  size_t input_count() const { return node_.inputs.size(); }
  size_t output_count() const { return node_.outputs.size(); }
  bool has_input(size_t i) const { return node_.has_input(i); }
  bool has_output(size_t i) const { return node_.has_output(i); }

  virtual DType dtype(size_t i) const = 0;         // of input i
  virtual const Shape& shape(size_t i) const = 0;  // of input i
  // The value of input i when it is known at compile time, else null.
  virtual const Tensor* constant(size_t i) const = 0;
  // Like constant(), but throws DataDependent if the value is not known.
  const Tensor& need_constant(size_t i) const;

  int64_t rank(size_t i) const { return static_cast<int64_t>(shape(i).size()); }
  int64_t size(size_t i) const { return element_count(shape(i)); }

  // Throws kInvalidGraph: '<node label>: <parts>'.
  template <typename... Parts>
  [[noreturn]] void reject(const Parts&... parts) const {
    reject_with(kKindsOf<Parts...>, passed_part(parts)...);
  }
  template <typename... Parts>
  void expect(bool condition, const Parts&... parts) const {
    if (!condition) [[unlikely]]
      reject(parts...);
  }
  // Fails with "input i has type X, which this operator does not accept".
  [[noreturn]] void reject_dtype(size_t i) const;

 private:
  [[noreturn]] void reject_with(const char* kinds, ...) const;

  const Node& node_;
  int64_t opset_;
};

// Shape rule: states type and shape of every output.
class ShapeContext : public NodeContext {
 public:
  using NodeContext::NodeContext;
  virtual void output(size_t i, DType dtype, Shape shape) = 0;
  // States an output whose value depends only on shapes. The value is a constant of the compiled Program, so
  // later shape rules can read it. An operator needs no kernel if all its outputs are such constants.
  virtual void value(size_t i, Tensor value) = 0;
  // The dimensions that the model's value_info states for output o, -1 for dimensions that are not numbers;
  // empty if the value_info does not state the shape. For operators whose inputs do not determine the shape
  // of the result (gradients of pooling).
  virtual std::vector<int64_t> stated_shape(size_t o) const { return (void)o, std::vector<int64_t>(); }
};

// Kernel maker: requests the memory of inputs and outputs and returns the kernel. A maker that only aliases
// memory returns null.
class KernelContext : public NodeContext {
 public:
  using NodeContext::NodeContext;
  virtual DType out_dtype(size_t o) const = 0;
  virtual const Shape& out_shape(size_t o) const = 0;
  int64_t out_size(size_t o) const { return element_count(out_shape(o)); }

  // Input i, row-major; a conversion is inserted if it is stored otherwise. Undefined slot if the node does
  // not have the input.
  virtual Slot in(size_t i) = 0;
  // How input i is stored, and the input in a requested layout (null: row-major).
  virtual LayoutPtr in_layout(size_t i) const = 0;
  virtual Slot in(size_t i, const LayoutPtr& wanted) = 0;

  // Output o in the given layout (null: row-major). Undefined slot if nothing reads it. Request inputs first.
  virtual Slot out(size_t o, const LayoutPtr& layout = nullptr) = 0;
  // Like out(), but reuses the memory of the first candidate input that nothing reads after this node and
  // that was requested in the same layout, if there is such an input. The kernel must then allow input and
  // output to share memory.
  virtual Slot out_inplace(size_t o, std::initializer_list<size_t> candidates,
                           const LayoutPtr& layout = nullptr) = 0;
  // Output o is input i under another shape: no memory, no kernel. Needs row-major order, in float or
  // bfloat16; converts if necessary.
  virtual void alias(size_t o, size_t i) = 0;
  // Scratch memory: its contents are lost between runs and are not visible outside this node.
  virtual Slot scratch(size_t bytes) = 0;
  // A constant computed by the kernel maker: memory that is never written.
  virtual Slot fixed(Tensor value) = 0;
  // Input i for writing: model state that the node updates (running statistics, accumulation buffers).
  virtual Slot state(size_t i) = 0;
  // Whether input i is already stored in the memory of input `target` (see Traits::writes_through).
  virtual bool same_storage(size_t i, size_t target) const = 0;

  virtual Precision precision() const = 0;
  // True if output o should be stored in bfloat16: the Program allows it, o has type float and is not a graph
  // output, and an operator that accepts bfloat16 storage reads it.
  virtual bool wants_bf16(size_t o) const = 0;
  // True if only nodes of `op_type` read output o (and it is not a graph output).
  virtual bool used_only_by(size_t o, std::string_view op_type) const = 0;
  // How another input of the same shape is stored, of an operator that reads output o, if that input is
  // already computed: elementwise operators read all inputs in one order.
  virtual LayoutPtr layout_for_readers(size_t o) const = 0;
  // A number that identifies this node in the graph: the stream of its random numbers.
  virtual uint64_t stream() const = 0;
};

// Whether an operator has a gradient.
enum class Differentiable {
  kYes,   // there is a rule
  kStop,  // the derivative is zero or meaningless, and gradients stop here as expected (Shape, Equal,
          // ArgMax)
  kNo,    // there is no rule yet: training through the operator is an error
};

// The argument of an element type rule: the node, and the element types of its inputs if known.
class ElementTypes {
 public:
  ElementTypes(const Node& node, int64_t opset, std::vector<DType> inputs)
      : node_(node), opset_(opset), inputs_(std::move(inputs)) {}
  const Node& node() const { return node_; }
  int64_t opset() const { return opset_; }  // version of the node's domain in the model
  // The type of input i; kUndefined if the type is not known or the node does not have the input.
  DType operator[](size_t i) const { return i < inputs_.size() ? inputs_[i] : DType::kUndefined; }
  // The type that an attribute names; `otherwise` if the node does not have the attribute.
  DType attribute(const std::string& name, DType otherwise) const {
    return static_cast<DType>(node_.int_or(name, static_cast<int64_t>(otherwise)));
  }

 private:
  const Node& node_;
  int64_t opset_;
  std::vector<DType> inputs_;
};

// The element type of output o; kUndefined if it depends on an unknown type.
using ElementTypeRule = DType (*)(const ElementTypes& types, size_t o);

// Common rules: a given type; the type of an input; the type of the first input for the first output and a
// given type for the other outputs (the indices of MaxPool).
template <DType kType>
DType always(const ElementTypes&, size_t) {
  return kType;
}
template <size_t kInput>
DType type_of_input(const ElementTypes& types, size_t) {
  return types[kInput];
}
template <DType kOthers>
DType first_like_input(const ElementTypes& types, size_t o) {
  return o == 0 ? types[0] : kOthers;
}

// The rules of an operator, which are the same on every device.
struct Rules {
  void (*shape)(ShapeContext&) = nullptr;
  void (*gradient)(GradientContext&) = nullptr;
  // Writes nodes that compute the same outputs. This replaces shape, kernel and gradient, or only the
  // gradient.
  void (*decompose)(DecompositionContext&) = nullptr;
  // Used instead of `shape` if an output shape is data-dependent or a value is a sequence: states the types
  // and shapes of the outputs, as far as they are known before the run (op/dynamic.h).
  void (*types)(TypeContext&) = nullptr;
  // The element types of the outputs, which can be known even if shapes are not. Without a rule, all outputs
  // have the type of the first input that is present; a Program rejects a node whose shape rule disagrees.
  ElementTypeRule element_type = nullptr;
};

// The functions that compute an operator.
struct Kernels {
  // On the CPU, if there is only one kernel. If there are several, they are in a list (op/implementation.h).
  Kernel (*cpu)(KernelContext&) = nullptr;
  // Runs an operator with a rule `types`, between two Programs. An operator that also has a kernel is run
  // this way if one of its inputs is not a tensor.
  void (*run)(DynamicContext&) = nullptr;
};

// For an operator that only a pass creates: operators of ONNX or com.microsoft that are always among the
// nodes that the pass replaces. A build without one of these operators leaves this operator out.
struct MadeFrom {
  std::string_view first = {}, second = {};
};

// Strings without a default have no address, which the loader would have to relocate.
struct Operator {
  std::string_view domain = {};
  std::string_view type;
  // Inputs, outputs and attributes in the notation of op/signature.h, for operators that ONNX does not
  // define.
  std::string_view signature = {};
  // The fault of a node's subgraphs, whose inputs and outputs no signature states; empty if there is none.
  std::string (*subgraph_fault)(const Node& node, int64_t opset) = nullptr;
  Rules rules = {};
  Traits traits = {};
  Kernels kernels = {};
  MadeFrom made_from = {};

  bool carries(int64_t opset) const { return !domain.empty() || opset >= traits.since; }
  Differentiable differentiable() const {
    return rules.gradient          ? Differentiable::kYes
           : traits.stops_gradient ? Differentiable::kStop
                                   : Differentiable::kNo;
  }
};

// The element type of output o of a node, by the operator's rule.
DType element_type(const Operator& op, const ElementTypes& types, size_t o);

// Runs the shape rule. All errors name the node, even errors from functions that do not know the node.
void infer_shapes(const Operator& op, ShapeContext& c);

// The operator of that name, or null. Throws kFail if two operators are registered under the same name.
const Operator* find_operator(std::string_view domain, std::string_view type);
// Whether a node must run only once: it, or a node of its subgraphs, draws random numbers or updates state,
// so a second run would give another result.
bool runs_once(const Node& node);
// All operators, sorted by domain and type.
std::vector<const Operator*> all_operators();

// The operator without the rules that this build has no use for.
constexpr Operator without_left_out(Operator op) {
  if (!kArtifactsPart.is_built) {
    op.rules.gradient = nullptr;
    // Sessions decompose operators without a kernel, and those with this trait.
    if (op.kernels.cpu && !op.traits.decomposed_to_run) op.rules.decompose = nullptr;
  }
  return op;
}

// Functions that are called rarely. Compilers also make functions small that only such functions call: rules
// and the makers of kernels run once per model, but lie in sources with loops, which are compiled for speed.
template <auto function>
[[gnu::cold]] void cold(DecompositionContext& c) {
  function(c);
}
template <const Operator& op>
struct Cold {
  [[gnu::cold]] static void shape(ShapeContext& c) { op.rules.shape(c); }
  [[gnu::cold]] static void gradient(GradientContext& c) { op.rules.gradient(c); }
  [[gnu::cold]] static void decompose(DecompositionContext& c) { op.rules.decompose(c); }
  [[gnu::cold]] static Kernel cpu(KernelContext& c) { return op.kernels.cpu(c); }
};
template <const Operator& given>
constexpr Operator with_cold_functions() {
  Operator op = given;
  if constexpr (given.rules.shape != nullptr) op.rules.shape = Cold<given>::shape;
  if constexpr (given.rules.gradient != nullptr) op.rules.gradient = Cold<given>::gradient;
  if constexpr (given.rules.decompose != nullptr) op.rules.decompose = Cold<given>::decompose;
  if constexpr (given.kernels.cpu != nullptr) op.kernels.cpu = Cold<given>::cpu;
  return op;
}

static constexpr bool is_part_of_build(const Operator& op) {
  const auto found = [](std::string_view type) {
    return type.empty() || is_built("", type) || is_built(kMicrosoft, type);
  };
  return is_built(op.domain, op.type) && found(op.made_from.first) && found(op.made_from.second);
}

// Writes the members that differ from the defaults. This code takes a third of what operators take as
// constants, whose addresses the loader has to relocate. The members of made_from matter only when the
// library is compiled.
template <const Operator& op>
[[gnu::cold]] void describe(Operator& to) {
  constexpr Operator usual = {};
  if constexpr (!op.domain.empty()) to.domain = {op.domain.data(), op.domain.size()};
  if constexpr (!op.type.empty()) to.type = {op.type.data(), op.type.size()};
  if constexpr (!op.signature.empty()) to.signature = {op.signature.data(), op.signature.size()};
  if constexpr (op.subgraph_fault != nullptr) to.subgraph_fault = op.subgraph_fault;

  if constexpr (op.rules.shape != nullptr) to.rules.shape = op.rules.shape;
  if constexpr (op.rules.gradient != nullptr) to.rules.gradient = op.rules.gradient;
  if constexpr (op.rules.decompose != nullptr) to.rules.decompose = op.rules.decompose;
  if constexpr (op.rules.types != nullptr) to.rules.types = op.rules.types;
  if constexpr (op.rules.element_type != nullptr) to.rules.element_type = op.rules.element_type;
  if constexpr (op.kernels.cpu != nullptr) to.kernels.cpu = op.kernels.cpu;
  if constexpr (op.kernels.run != nullptr) to.kernels.run = op.kernels.run;

  constexpr const Traits& given = op.traits;
  if constexpr (given.stops_gradient) to.traits.stops_gradient = true;
  if constexpr (given.quantized) to.traits.quantized = true;
  if constexpr (given.since != usual.traits.since) to.traits.since = given.since;
  if constexpr (given.impure) to.traits.impure = true;
  if constexpr (given.decomposed_to_run) to.traits.decomposed_to_run = true;
  if constexpr (given.updates != 0) to.traits.updates = given.updates;
  if constexpr (given.takes_sequences) to.traits.takes_sequences = true;
  if constexpr (given.takes_bf16) to.traits.takes_bf16 = true;
  if constexpr (given.narrow_types != usual.traits.narrow_types) to.traits.narrow_types = given.narrow_types;
  if constexpr (given.optional_outputs) to.traits.optional_outputs = true;
  if constexpr (given.independent_outputs) to.traits.independent_outputs = true;
  if constexpr (given.any_order != 0) to.traits.any_order = given.any_order;
  if constexpr (given.weights != usual.traits.weights) to.traits.weights = given.weights;
  if constexpr (given.writes_through != nullptr) to.traits.writes_through = given.writes_through;
  if constexpr (given.positions != nullptr) to.traits.positions = given.positions;
  if constexpr (given.operations != nullptr) to.traits.operations = given.operations;
  if constexpr (given.repeat != nullptr) to.traits.repeat = given.repeat;
  if constexpr (given.train != nullptr) to.traits.train = given.train;
}

struct RegisterOperator {
  RegisterOperator(void (*describe)(Operator&), SourcePlace where = SourcePlace::here());
  RegisterOperator() = default;  // for operators that are not part of this build
};
// Registers an operator if it is part of this build. CMake writes built_operators.h, in small builds for each
// source with the operators that the source names (cmake/asked_operators.py). Without the operator, the
// constant does nothing, and clang would warn that it is unused.
#define ORTRAIN_OPERATOR(...) ORTRAIN_OPERATOR_(__COUNTER__, __VA_ARGS__)
#define ORTRAIN_OPERATOR_(n, ...) ORTRAIN_OPERATOR__(n, __VA_ARGS__)
#define ORTRAIN_OPERATOR__(n, ...)                                                                 \
  static constexpr ::ortrain::Operator given_##n =                                                 \
      ::ortrain::without_left_out(::ortrain::Operator __VA_ARGS__);                                \
  static constexpr ::ortrain::Operator operator_##n = ::ortrain::with_cold_functions<given_##n>(); \
  [[maybe_unused]] static const ::ortrain::RegisterOperator registered_##n = [] {                  \
    if constexpr (::ortrain::is_part_of_build(operator_##n))                                       \
      return ::ortrain::RegisterOperator(::ortrain::describe<operator_##n>);                       \
    else                                                                                           \
      return ::ortrain::RegisterOperator();                                                        \
  }()

// Registers the operators of a table, of<0>() to of<N - 1>(), that are part of this build.
template <size_t N, class Of>
bool register_rows(Of, SourcePlace where = SourcePlace::here()) {
  const auto row = [&]<size_t I>() {
    static constexpr Operator given = without_left_out(Of().template operator()<I>());
    static constexpr Operator op = with_cold_functions<given>();
    if constexpr (is_part_of_build(op)) RegisterOperator(describe<op>, where);
  };
  return [&]<size_t... I>(std::index_sequence<I...>) {
    (row.template operator()<I>(), ...);
    return true;
  }
  (std::make_index_sequence<N>());
}

// The shape rule of operators whose only output has the type and shape of the first input.
void shape_like_first(ShapeContext& c);

}  // namespace ortrain
