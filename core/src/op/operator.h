// What an operator is: rules (shape, gradient), traits and kernels, registered under a name.
//
// An operator's file defines the functions and registers them:
//
//     void shape(ShapeContext& c) { c.output(0, c.dtype(0), c.shape(0)); }
//     Kernel kernel(KernelContext& c) { ... }
//     void gradient(GradientContext& g) { g.set(0, g("ReluGrad", {g.dy(0), g.x(0)}, {}, kMicrosoft)); }
//     ORTRAIN_OPERATOR({.type = "Relu",
//                       .rules = {.shape = shape, .gradient = gradient},
//                       .traits = {.positions = elementwise_positions},
//                       .kernels = {.cpu = kernel}});
#pragma once

#include <initializer_list>
#include <source_location>
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
#include "runtime/tensor.h"

namespace ortrain {

inline constexpr const char* kMicrosoft = "com.microsoft";

class TypeContext;           // op/dynamic.h
class DynamicContext;        // the same
class DecompositionContext;  // op/decomposition.h

// Thrown by a shape rule or a kernel maker that needs the value of an input which is not known before the
// run.
struct DataDependent : Error {
  DataDependent(ErrorCode code, std::string message, std::string value)
      : Error(code, std::move(message)), value(std::move(value)) {}
  std::string value;  // the name of that input
};

// What shape rules and kernels share: the node, its inputs' types, shapes and constant values.
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
  // The same, throwing DataDependent when it is not known.
  const Tensor& need_constant(size_t i) const;

  int64_t rank(size_t i) const { return static_cast<int64_t>(shape(i).size()); }
  int64_t size(size_t i) const { return element_count(shape(i)); }

  // Throws kInvalidGraph / kNotImplemented: '<node label>: <parts>'.
  template <typename... Parts>
  [[noreturn]] void reject(const Parts&... parts) const {
    fail(ErrorCode::kInvalidGraph, node_.label(), ": ", parts...);
  }
  template <typename... Parts>
  void expect(bool condition, const Parts&... parts) const {
    if (!condition) [[unlikely]]
      reject(parts...);
  }
  [[noreturn]] void reject_dtype(size_t i) const;  // "input i has type X, which this operator does not take"

 private:
  const Node& node_;
  int64_t opset_;
};

// Shape rule: states type and shape of every output.
class ShapeContext : public NodeContext {
 public:
  using NodeContext::NodeContext;
  virtual void output(size_t i, DType dtype, Shape shape) = 0;
  // The same for an output whose value follows from shapes alone: it is a constant of the compiled Program,
  // so that shape rules further on can read it. An operator all of whose outputs are such needs no kernel.
  virtual void value(size_t i, Tensor value) = 0;
  // The extents that the model states of output o in its value_info, -1 for those that are no numbers; empty
  // where it states none. For operators whose inputs do not tell the shape of the result (gradients of
  // pooling).
  virtual std::vector<int64_t> stated_shape(size_t o) const { return (void)o, std::vector<int64_t>(); }
};

// Kernel maker: asks for the memory of inputs and outputs and returns what runs. A maker that only aliases
// returns null.
class KernelContext : public NodeContext {
 public:
  using NodeContext::NodeContext;
  virtual DType out_dtype(size_t o) const = 0;
  virtual const Shape& out_shape(size_t o) const = 0;
  int64_t out_size(size_t o) const { return element_count(out_shape(o)); }

  // Input i row-major; a conversion is inserted when it is stored otherwise. Undefined slot when it is left
  // out.
  virtual Slot in(size_t i) = 0;
  // How input i is stored, and the input in a wanted layout (null: row-major).
  virtual LayoutPtr in_layout(size_t i) const = 0;
  virtual Slot in(size_t i, const LayoutPtr& wanted) = 0;

  // Output o in the given layout (null: row-major). Undefined slot when nobody wants it. Ask for inputs
  // first.
  virtual Slot out(size_t o, const LayoutPtr& layout = nullptr) = 0;
  // The same, but over the memory of the first of the candidate inputs that nothing reads after this node and
  // that was fetched in the same layout, where there is one. The kernel must then allow that input and output
  // are the same memory.
  virtual Slot out_inplace(size_t o, std::initializer_list<size_t> candidates,
                           const LayoutPtr& layout = nullptr) = 0;
  // Output o is input i under another shape: no memory, no kernel. Needs row-major order, of float or of
  // bfloat16; converts where it is not.
  virtual void alias(size_t o, size_t i) = 0;
  // Memory that holds nothing between runs and nothing outside this node.
  virtual Slot scratch(size_t bytes) = 0;
  // A constant that the kernel's maker computed: memory that nothing writes.
  virtual Slot fixed(Tensor value) = 0;
  // Input i to be written: model state that the node updates (running statistics, accumulation buffers).
  virtual Slot state(size_t i) = 0;
  // The storage of input i where it is the very memory of input `target` already (see
  // Traits::writes_through).
  virtual bool same_storage(size_t i, size_t target) const = 0;

  virtual Precision precision() const = 0;
  // True where output o should be stored in bfloat16: the Program allows it, o has type float, is no output
  // of the graph, and an operator that takes it so reads it.
  virtual bool wants_bf16(size_t o) const = 0;
  // True where output o is read by nothing but nodes of `op_type` (and is no output of the graph).
  virtual bool used_only_by(size_t o, std::string_view op_type) const = 0;
  // A number that tells this node from others of the graph: the stream of its random numbers.
  virtual uint64_t stream() const = 0;
};

// What the gradient of an operator is.
enum class Differentiable {
  kYes,   // there is a rule
  kStop,  // the derivative is zero or meaningless, and gradients stop here as everyone expects (Shape, Equal,
          // ArgMax)
  kNo,    // there is none yet: training through it is an error
};

// What an element type rule sees: the node, and the element types of its inputs as far as they are known.
class ElementTypes {
 public:
  ElementTypes(const Node& node, int64_t opset, std::vector<DType> inputs)
      : node_(node), opset_(opset), inputs_(std::move(inputs)) {}
  const Node& node() const { return node_; }
  int64_t opset() const { return opset_; }  // version of the node's domain in the model
  // Of input i; kUndefined where it is not known or the input is left out.
  DType operator[](size_t i) const { return i < inputs_.size() ? inputs_[i] : DType::kUndefined; }
  // The type that an attribute names, `otherwise` where the node does not have it.
  DType attribute(const std::string& name, DType otherwise) const {
    return static_cast<DType>(node_.int_or(name, static_cast<int64_t>(otherwise)));
  }

 private:
  const Node& node_;
  int64_t opset_;
  std::vector<DType> inputs_;
};

// The element type of output o; kUndefined where it depends on a type that is not known.
using ElementTypeRule = DType (*)(const ElementTypes& types, size_t o);

// Common rules: a given type; that of an input; for the first output that of the first input, for others a
// given type (the indices of MaxPool).
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

// What holds of the operator wherever it runs.
struct Rules {
  void (*shape)(ShapeContext&) = nullptr;
  void (*gradient)(GradientContext&) = nullptr;
  // Writes nodes that compute the same: instead of shape, kernel and gradient, or instead of gradient alone.
  void (*decompose)(DecompositionContext&) = nullptr;
  // In the place of `shape`, where only the run tells the shape of an output, or where a value is a sequence:
  // what can be said of the outputs before (op/dynamic.h).
  void (*types)(TypeContext&) = nullptr;
  // The element types of the outputs, which can be told where shapes cannot. Without a rule they are those of
  // the first input that is there; a Program rejects a node whose shape rule says otherwise.
  ElementTypeRule element_type = nullptr;
};

// How it is computed.
struct Kernels {
  // On the CPU, where there is one way to do it. Where there are several they stand in a list
  // (op/implementation.h).
  Kernel (*cpu)(KernelContext&) = nullptr;
  // The run of an operator with a rule `types`, between two Programs. An operator that has a kernel too is
  // run so where one of its inputs is no tensor.
  void (*run)(DynamicContext&) = nullptr;
};

struct Operator {
  std::string_view domain = "";
  std::string_view type;
  Rules rules = {};
  Traits traits = {};
  Kernels kernels = {};

  bool carries(int64_t opset) const { return !domain.empty() || opset >= traits.since; }
  Differentiable differentiable() const {
    return rules.gradient          ? Differentiable::kYes
           : traits.stops_gradient ? Differentiable::kStop
                                   : Differentiable::kNo;
  }
};

// The element type of output o of a node by the operator's rule.
DType element_type(const Operator& op, const ElementTypes& types, size_t o);

// The operator of that name, or null. Throws kFail where two operators are registered under one name.
const Operator* find_operator(std::string_view domain, std::string_view type);
// Whether a node has to be run once: what it, or a node of its subgraphs, draws or updates would be another
// the second time.
bool runs_once(const Node& node);
// All of them, sorted by domain and type.
std::vector<const Operator*> all_operators();

struct RegisterOperator {
  RegisterOperator(const Operator& op, const std::source_location& where = std::source_location::current());
  RegisterOperator() = default;  // of an operator that the build leaves out
};
// Registers an operator, where the build has it (built_operators.h, which CMake writes).
#define ORTRAIN_OPERATOR(...) ORTRAIN_OPERATOR_(__COUNTER__, __VA_ARGS__)
#define ORTRAIN_OPERATOR_(n, ...) ORTRAIN_OPERATOR__(n, __VA_ARGS__)
#define ORTRAIN_OPERATOR__(n, ...)                                                     \
  static constexpr ::ortrain::Operator operator_##n = ::ortrain::Operator __VA_ARGS__; \
  static const ::ortrain::RegisterOperator registered_##n = [] {                       \
    if constexpr (::ortrain::is_built(operator_##n.domain, operator_##n.type))         \
      return ::ortrain::RegisterOperator(operator_##n);                                \
    else                                                                               \
      return ::ortrain::RegisterOperator();                                            \
  }()

// The shape rule of operators whose only output is like their first input.
void shape_like_first(ShapeContext& c);

}  // namespace ortrain
