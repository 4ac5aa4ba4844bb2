// Custom operators: operators that a program defines, for the sessions whose options name them.
//
// A session replaces each node of a custom operator by a node of the domain kCustomDomain, which keeps the
// type of the operator and has an attribute with the number of a CustomNode. The shapes of the outputs may be
// known only after the node has run, so the node runs between two Programs.
//
// Gradients are registered for the whole process, because the gradient builder does not know the session.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

class DynamicContext;
class TypeContext;
struct Operator;

inline constexpr const char* kCustomDomain = "ortrain.custom";

// The information about a node when it is prepared.
struct CustomUse {
  std::vector<ValueInfo> inputs, outputs;  // undefined where nothing is known
  std::vector<const Tensor*> constants;    // of the inputs that are initializers; else null
};

// One node of a custom operator. A run of a session uses it from one thread at a time.
class CustomNode {
 public:
  virtual ~CustomNode() = default;
  // Prepares the node for its runs; throws if the operator refuses the node.
  virtual void prepare(const CustomUse& use) = 0;
  // States the types and shapes of the outputs as far as they are known.
  virtual void types(TypeContext& c) = 0;
  virtual void run(DynamicContext& c) = 0;
};

// The custom operators of a session.
class CustomOperators {
 public:
  virtual ~CustomOperators() = default;
  // A CustomNode for the node, not prepared yet; null if the operator is not a custom operator of the
  // session.
  virtual std::shared_ptr<CustomNode> find(const Node& node, int64_t opset) const = 0;
};

// The attribute of a node with the number of its CustomNode. The number is valid as long as the CustomNode
// exists.
inline constexpr const char* kCustomNumber = "number";
int64_t number_of(const std::shared_ptr<CustomNode>& node);

// Registers the gradient of an operator outside this library, as a function of a model file: its inputs are
// named "I(i)", "O(o)" and "GO(o)" (inputs and outputs of the node, and gradients of the outputs), its
// outputs "GI(i)". Unknown operators of the function's nodes are registered too, with a derivative of zero.
// If the function has no outputs, the derivative of the operator is zero. Replaces a gradient that was
// registered before. Throws kInvalidArgument if the operator is part of the library, or if a name does not
// have that form.
void register_gradient(const std::string& domain, const std::string& type, const Model& gradient);

// An operator that register_gradient() registered, or the operator of all nodes in kCustomDomain; otherwise
// null.
const Operator* find_custom_operator(std::string_view domain, std::string_view type);
// Whether the library knows only the gradient of the operator, so that nodes run only if a session replaces
// them.
bool is_only_declared(const Operator& op);

}  // namespace ortrain
