// Custom operators: operators that a program defines, for the sessions whose options name them.
//
// A session replaces each of their nodes by one of the domain kCustomDomain, which keeps its type and has an
// attribute with the number of a CustomNode. The result of such a node is known only after it has run, so it
// runs between two Programs.
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
  // What can be known about the outputs.
  virtual void types(TypeContext& c) = 0;
  virtual void run(DynamicContext& c) = 0;
};

// The custom operators of a session.
class CustomOperators {
 public:
  virtual ~CustomOperators() = default;
  // The node, not prepared yet; null if the operator is not one of these.
  virtual std::shared_ptr<CustomNode> find(const Node& node, int64_t opset) const = 0;
};

// The number by which nodes refer to a CustomNode, as long as it exists, in the attribute of that name.
inline constexpr const char* kCustomNumber = "number";
int64_t number_of(const std::shared_ptr<CustomNode>& node);

// Registers the gradient of an operator outside this library, as a function of a model file: its inputs are
// named "I(i)", "O(o)" and "GO(o)" (inputs and outputs of the node, and gradients of the outputs), its
// outputs "GI(i)". Custom operators that its nodes use become known, with a derivative of zero. An empty
// model: the operator itself has a derivative of zero. Replaces what was registered before; throws
// kInvalidArgument if the library has the operator itself, or if a name is not of that form.
void register_gradient(const std::string& domain, const std::string& type, const Model& gradient);

// An operator of register_gradient, or that of nodes in kCustomDomain; null if there is none.
const Operator* find_custom_operator(std::string_view domain, std::string_view type);
// Whether the operator has a gradient, but no kernel unless a session replaces its nodes.
bool is_only_declared(const Operator& op);

}  // namespace ortrain
