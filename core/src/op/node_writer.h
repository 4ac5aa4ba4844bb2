// The interface of rules that write nodes (gradient rules and decompositions). A rule is applied to one node
// of a model, can ask for known types, shapes and constants of values, and adds nodes.
//
// Rules are many and run once per node, so these types keep their code small: names, lists and attributes
// refer to what the caller holds, and have no destructor.
#pragma once

#include <cstddef>
#include <deque>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "graph/graph.h"
#include "runtime/error.h"

namespace ortrain {

// The name of a value of the graph; empty for an omitted input. It refers to a string that outlives it: names
// that a writer returns are valid as long as the writer.
class Name {
 public:
  Name() : Name("") {}
  Name(const char (&omitted)[1]);
  Name(const std::string& text) : text_(&text) {}
  Name(const std::string&&) = delete;  // the string would not outlive the name

  operator const std::string&() const { return *text_; }
  const std::string& text() const { return *text_; }
  bool empty() const { return text_->empty(); }
  friend bool operator==(Name a, Name b) { return *a.text_ == *b.text_; }

 private:
  const std::string* text_;
};

using Names = std::vector<Name>;

// A list as an argument: elements in braces, or a vector.
template <typename T>
class List : public std::span<const T> {
 public:
  List(std::initializer_list<T> list) : std::span<const T>(list.begin(), list.size()) {}
  List(const std::vector<T>& list) : std::span<const T>(list) {}
};

// The inputs of a new node.
class Inputs {
 public:
  Inputs(std::initializer_list<Name> names) : names_(names.begin(), names.size()) {}
  Inputs(const Names& names) : names_(names) {}
  Inputs(const std::vector<std::string>& texts) : texts_(texts) {}
  std::vector<std::string> texts() const;

 private:
  std::span<const Name> names_;
  std::span<const std::string> texts_;
};

// An attribute of a new node: {"axis", int64_t{0}}.
class NewAttribute {
 public:
  template <typename T>
  NewAttribute(std::string_view name, const T& value) : name_(name), value_(&value) {}
  NewAttribute(std::string_view name, int64_t value) : name_(name), value_(value) {}
  NewAttribute(std::string_view name, float value) : name_(name), value_(value) {}
  NewAttribute(std::string_view name, const char* value) : name_(name), value_(value) {}
  void add_to(Attributes& attributes) const;

 private:
  std::string_view name_;
  std::variant<int64_t, float, const char*, const std::string*, const Tensor*, const std::vector<int64_t>*,
               const List<int64_t>*, const std::vector<float>*, const std::vector<std::string>*,
               const std::shared_ptr<Graph>*, const Attribute*>
      value_;
};

// The attributes of a new node: in braces, or those of another node.
class NewAttributes {
 public:
  NewAttributes() = default;
  NewAttributes(std::initializer_list<NewAttribute> list) : list_(list.begin(), list.size()) {}
  NewAttributes(const Attributes& all) : all_(&all) {}
  Attributes made() const;

 private:
  std::span<const NewAttribute> list_;
  const Attributes* all_ = nullptr;
};

class NodeWriter {
 public:
  virtual ~NodeWriter() = default;

  virtual const Node& node() const = 0;
  virtual int64_t opset(std::string_view domain = "") const = 0;

  bool has_x(size_t i) const { return node().has_input(i); }
  bool has_y(size_t o) const { return node().has_output(o); }
  Name x(size_t i) const;  // input i
  Name y(size_t o) const;  // output o

  // Adds a node and returns the name of its output, or of its outputs.
  Names emit(std::string_view op_type, Inputs inputs, size_t output_count, NewAttributes attributes = {},
             std::string_view domain = "");
  Name operator()(std::string_view op_type, Inputs inputs, NewAttributes attributes = {},
                  std::string_view domain = "");

  // Constants: initializers of the new graph, shared where equal.
  Name constant(const Tensor& value) { return keep(add_constant(value)); }
  Name int64s(List<int64_t> values);
  // A scalar of the element type of value `like`.
  Name scalar_like(const std::string& like, double value);

  // The type and the dimensions of a value, as far as they are known.
  virtual DType dtype(const std::string& value) const = 0;
  virtual std::optional<std::vector<Dim>> dims(const std::string& value) const = 0;
  // The value of a constant, or of anything that depends only on constants, if it is known; else null.
  virtual const Tensor* constant_value(const std::string& value) const = 0;
  std::optional<int64_t> rank(const std::string& value) const;

  // ReduceSum over constant axes, given as an attribute or an input as the opset requires.
  Name reduce_sum(const std::string& value, List<int64_t> axes, bool keepdims);
  // Squeeze / Unsqueeze over constant axes, in the opset's form.
  Name unsqueeze(const std::string& value, List<int64_t> axes);
  Name squeeze(const std::string& value, List<int64_t> axes);

  // Throws: '<node label>: <parts>'.
  template <typename... Parts>
  [[noreturn]] void reject(const Parts&... parts) const {
    reject_with(kKindsOf<Parts...>, passed_part(parts)...);
  }

  // Stores a name as long as the writer exists.
  Name keep(std::string name) const;

 protected:
  // Adds a node of which the operator, the inputs and the attributes are given; returns the names of its
  // outputs.
  virtual std::vector<std::string> add_node(Node node, size_t output_count) = 0;
  virtual std::string add_constant(const Tensor& value) = 0;

 private:
  [[noreturn]] void reject_with(const char* kinds, ...) const;

  mutable std::deque<std::string> kept_;
};

}  // namespace ortrain
