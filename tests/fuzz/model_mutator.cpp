#include "model_mutator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

namespace ortrain::fuzz {

namespace {

using google::protobuf::RepeatedPtrField;

bool one_in(Random& random, size_t n) { return below(random, n) == 0; }

// Pointers to the parts of a model that can be changed, however deep they lie.
struct Parts {
  std::vector<onnx::GraphProto*> graphs;
  std::vector<RepeatedPtrField<onnx::NodeProto>*> bodies;  // of graphs and functions
  std::vector<onnx::NodeProto*> nodes;
  std::vector<RepeatedPtrField<onnx::AttributeProto>*> attribute_lists;
  std::vector<onnx::AttributeProto*> attributes;
  std::vector<onnx::TensorProto*> tensors;
  std::vector<onnx::ValueInfoProto*> values;
  std::vector<onnx::TypeProto*> types;
  std::vector<std::string*> names;  // of values, wherever they stand

  explicit Parts(onnx::ModelProto& model) {
    if (model.has_graph()) add(*model.mutable_graph());
    for (auto& function : *model.mutable_functions()) {
      add_body(*function.mutable_node());
      add_attributes(*function.mutable_attribute_proto());
      for (auto& name : *function.mutable_input()) names.push_back(&name);
      for (auto& name : *function.mutable_output()) names.push_back(&name);
    }
  }

 private:
  void add(onnx::TypeProto& type) {
    types.push_back(&type);
    if (type.has_sequence_type() && type.sequence_type().has_elem_type())
      add(*type.mutable_sequence_type()->mutable_elem_type());
    if (type.has_optional_type() && type.optional_type().has_elem_type())
      add(*type.mutable_optional_type()->mutable_elem_type());
  }
  void add_values(RepeatedPtrField<onnx::ValueInfoProto>& list) {
    for (auto& value : list) {
      values.push_back(&value);
      names.push_back(value.mutable_name());
      if (value.has_type()) add(*value.mutable_type());
    }
  }
  void add_attributes(RepeatedPtrField<onnx::AttributeProto>& list) {
    attribute_lists.push_back(&list);
    for (auto& attribute : list) {
      attributes.push_back(&attribute);
      if (attribute.has_t()) tensors.push_back(attribute.mutable_t());
      if (attribute.has_g()) add(*attribute.mutable_g());
      if (attribute.has_tp()) add(*attribute.mutable_tp());
    }
  }
  void add_body(RepeatedPtrField<onnx::NodeProto>& body) {
    bodies.push_back(&body);
    for (auto& node : body) {
      nodes.push_back(&node);
      for (auto& name : *node.mutable_input()) names.push_back(&name);
      for (auto& name : *node.mutable_output()) names.push_back(&name);
      add_attributes(*node.mutable_attribute());
    }
  }
  void add(onnx::GraphProto& graph) {
    graphs.push_back(&graph);
    add_values(*graph.mutable_input());
    add_values(*graph.mutable_output());
    add_values(*graph.mutable_value_info());
    for (auto& tensor : *graph.mutable_initializer()) {
      tensors.push_back(&tensor);
      names.push_back(tensor.mutable_name());
    }
    add_body(*graph.mutable_node());
  }
};

template <typename T>
T* pick(const std::vector<T*>& all, Random& random) {
  return all.empty() ? nullptr : all[below(random, all.size())];
}

std::string some_name(const Parts& parts, Random& random) {
  const std::string* name = pick(parts.names, random);
  switch (below(random, 16)) {
    case 0:
      return "";
    case 1:
      return (name != nullptr ? *name : std::string()) + "_";
    case 2:
      return std::string("\xff\0x", 3);
    default:
      return name != nullptr ? *name : "x";
  }
}

int32_t some_type(Random& random) {
  // float, int64 and their like more often than the rest, and types that do not exist now and then
  static constexpr int32_t kCommon[] = {1, 1, 1, 7, 7, 6, 9, 11, 10, 16, 2, 3};
  return one_in(random, 3) ? static_cast<int32_t>(below(random, 32)) - 1 : kCommon[below(random, 12)];
}

template <typename List, typename Make>
void mutate_list(List& list, Random& random, Make&& make) {
  switch (below(random, 5)) {
    case 0:
      list.Add(make());
      break;
    case 1:
      if (list.size() > 0) list.RemoveLast();
      break;
    case 2:
      list.Clear();
      break;
    default: {
      const auto made = make();
      if (list.size() > 0)
        list.Set(static_cast<int>(below(random, static_cast<size_t>(list.size()))), made);
      else
        list.Add(made);
    }
  }
}

template <typename T>
void remove_one(RepeatedPtrField<T>& list, Random& random) {
  if (list.size() > 0)
    list.DeleteSubrange(static_cast<int>(below(random, static_cast<size_t>(list.size()))), 1);
}

template <typename T>
void duplicate_one(RepeatedPtrField<T>& list, Random& random) {
  if (list.size() == 0) return;
  const T copy = list.Get(static_cast<int>(below(random, static_cast<size_t>(list.size()))));
  *list.Add() = copy;
}

template <typename T>
void swap_two(RepeatedPtrField<T>& list, Random& random) {
  if (list.size() < 2) return;
  const auto n = static_cast<size_t>(list.size());
  const auto first = static_cast<int>(below(random, n)), second = static_cast<int>(below(random, n));
  list.SwapElements(first, second);
}

void mutate_shape(onnx::TensorShapeProto& shape, Random& random) {
  const auto n = static_cast<size_t>(shape.dim_size());
  switch (below(random, 6)) {
    case 0:
      shape.add_dim()->set_dim_value(interesting_integer(random));
      return;
    case 1:
      remove_one(*shape.mutable_dim(), random);
      return;
    case 2:
      shape.clear_dim();
      return;
    default:
      break;
  }
  if (n == 0) return;
  auto& dim = *shape.mutable_dim(static_cast<int>(below(random, n)));
  switch (below(random, 4)) {
    case 0:
      dim.set_dim_param(std::string(1, static_cast<char>('a' + below(random, 3))));
      break;
    case 1:
      dim.clear_value();
      break;
    default:
      dim.set_dim_value(interesting_integer(random));
  }
}

void mutate_type(onnx::TypeProto& type, Random& random) {
  switch (below(random, 8)) {
    case 0: {
      onnx::TypeProto inner = type;
      *type.mutable_sequence_type()->mutable_elem_type() = std::move(inner);
      break;
    }
    case 1: {
      onnx::TypeProto inner = type;
      *type.mutable_optional_type()->mutable_elem_type() = std::move(inner);
      break;
    }
    case 2:
      type.mutable_map_type()->set_key_type(some_type(random));
      break;
    case 3:
      if (type.has_tensor_type()) type.mutable_tensor_type()->clear_shape();
      break;
    case 4:
      if (type.has_sequence_type()) {
        onnx::TypeProto inner = type.sequence_type().elem_type();
        type = std::move(inner);
      } else {
        type.clear_value();
      }
      break;
    case 5:
      type.mutable_tensor_type()->set_elem_type(some_type(random));
      break;
    default:
      mutate_shape(*type.mutable_tensor_type()->mutable_shape(), random);
  }
}

std::string mutated_text(const std::string& text, const Parts& parts, Random& random) {
  switch (below(random, 6)) {
    case 0:
      return "";
    case 1:
      return some_name(parts, random);
    case 2:
      return text + text;
    case 3:
      return text.substr(0, text.size() / 2);
    default: {
      // that of another attribute: modes and directions of one operator given to another
      std::vector<const std::string*> others;
      for (const auto* attribute : parts.attributes)
        if (attribute->has_s()) others.push_back(&attribute->s());
      if (!others.empty()) return *others[below(random, others.size())];
      std::string changed = text.empty() ? "x" : text;
      changed[below(random, changed.size())] ^= static_cast<char>(1u << below(random, 8));
      return changed;
    }
  }
}

// Changes that matter to lists of axes, such as a permutation: the order, duplicates, and axes that are
// counted from the end or just outside. The length stays.
void mutate_axes(google::protobuf::RepeatedField<int64_t>& axes, Random& random) {
  const auto n = static_cast<size_t>(axes.size());
  const auto first = static_cast<int>(below(random, n)), second = static_cast<int>(below(random, n));
  switch (below(random, 5)) {
    case 0:
      axes.SwapElements(first, second);
      break;
    case 1:
      axes.Set(first, axes.Get(second));
      break;
    case 2:
      axes.Set(first, static_cast<int64_t>(below(random, n)));
      break;
    case 3:
      axes.Set(first, static_cast<int64_t>(below(random, n)) - static_cast<int64_t>(n));
      break;
    default:
      axes.Set(first, one_in(random, 2) ? interesting_integer(random) : static_cast<int64_t>(n));
  }
}

void mutate_attribute(onnx::AttributeProto& attribute, const Parts& parts, Random& random) {
  using Type = onnx::AttributeProto;
  if (one_in(random, 8)) {  // says another kind than it holds, or holds another
    attribute.set_type(
        static_cast<Type::AttributeType>(below(random, static_cast<size_t>(Type::AttributeType_MAX) + 1)));
    if (one_in(random, 2)) return;
  }
  switch (attribute.type()) {
    case Type::FLOAT:
      attribute.set_f(static_cast<float>(interesting_float(random)));
      break;
    case Type::INT:
      if (one_in(random, 3))  // unsigned: it wraps
        attribute.set_i(static_cast<int64_t>(static_cast<uint64_t>(attribute.i()) +
                                             (one_in(random, 2) ? uint64_t{1} : ~uint64_t{0})));
      else
        attribute.set_i(interesting_integer(random));
      break;
    case Type::STRING:
      attribute.set_s(mutated_text(attribute.s(), parts, random));
      break;
    case Type::INTS:
      if (attribute.ints_size() > 0 && one_in(random, 2))
        mutate_axes(*attribute.mutable_ints(), random);
      else
        mutate_list(*attribute.mutable_ints(), random, [&] { return interesting_integer(random); });
      break;
    case Type::FLOATS:
      mutate_list(*attribute.mutable_floats(), random,
                  [&] { return static_cast<float>(interesting_float(random)); });
      break;
    case Type::STRINGS:
      if (one_in(random, 3))
        remove_one(*attribute.mutable_strings(), random);
      else
        *attribute.add_strings() = mutated_text("", parts, random);
      break;
    case Type::TENSOR:
      mutate_tensor(*attribute.mutable_t(), random);
      break;
    case Type::GRAPH:
      if (onnx::GraphProto* other = pick(parts.graphs, random); other != nullptr && one_in(random, 2)) {
        onnx::GraphProto copy = *other;
        *attribute.mutable_g() = std::move(copy);
      } else {
        attribute.mutable_g()->clear_node();
      }
      break;
    case Type::TYPE_PROTO:
      mutate_type(*attribute.mutable_tp(), random);
      break;
    default:
      attribute.set_type(Type::INT);
      attribute.set_i(interesting_integer(random));
  }
}

void mutate_attributes(const Parts& parts, Random& random) {
  onnx::AttributeProto* attribute = pick(parts.attributes, random);
  auto* list = pick(parts.attribute_lists, random);
  switch (below(random, 8)) {
    case 0:
      if (list != nullptr) remove_one(*list, random);
      break;
    case 1:
      if (list != nullptr && attribute != nullptr) {
        const onnx::AttributeProto copy = *attribute;
        *list->Add() = copy;
      }
      break;
    case 2:
      if (attribute != nullptr) attribute->set_name(mutated_text(attribute->name(), parts, random));
      break;
    case 3:
      if (attribute != nullptr) attribute->set_ref_attr_name(mutated_text(attribute->name(), parts, random));
      break;
    default:
      if (attribute != nullptr) mutate_attribute(*attribute, parts, random);
  }
}

void mutate_names(RepeatedPtrField<std::string>& names, const Parts& parts, Random& random) {
  const auto n = static_cast<size_t>(names.size());
  switch (below(random, 8)) {
    case 0:
      *names.Add() = some_name(parts, random);
      break;
    case 1:
      if (n > 0) names.RemoveLast();
      break;
    case 2:
      names.Clear();
      break;
    case 3:
      if (n > 0) names.Mutable(static_cast<int>(below(random, n)))->clear();
      break;
    case 4:
      swap_two(names, random);
      break;
    default:
      if (n > 0) *names.Mutable(static_cast<int>(below(random, n))) = some_name(parts, random);
  }
}

// Moves a node into a function that its place then calls.
void wrap_in_function(onnx::ModelProto& model, onnx::NodeProto& node, Random& random) {
  auto& function = *model.add_functions();
  function.set_domain("f");
  function.set_name("f" + std::to_string(below(random, 3)));
  *function.mutable_input() = node.input();
  *function.mutable_output() = node.output();
  for (const auto& attribute : node.attribute()) {
    if (one_in(random, 2))
      *function.add_attribute() = attribute.name();
    else
      *function.add_attribute_proto() = attribute;
  }
  *function.add_node() = node;
  *function.mutable_opset_import() = model.opset_import();
  for (auto& attribute : *function.mutable_node(0)->mutable_attribute())
    if (one_in(random, 2)) {
      const std::string name = attribute.name();
      const auto type = attribute.type();
      attribute.Clear();
      attribute.set_name(name);
      attribute.set_ref_attr_name(name);
      attribute.set_type(type);
    }
  if (one_in(random, 4)) {  // a function that calls itself
    function.mutable_node(0)->set_domain("f");
    function.mutable_node(0)->set_op_type(function.name());
  }
  node.set_domain("f");
  node.set_op_type(function.name());
  auto& opset = *model.add_opset_import();
  opset.set_domain("f");
  opset.set_version(1);
}

// Puts the nodes of the graph into a branch of an If, or the body of a Loop or Scan.
void wrap_in_subgraph(onnx::GraphProto& graph, Random& random) {
  onnx::GraphProto inner;
  *inner.mutable_node() = graph.node();
  for (const auto& output : graph.output()) *inner.add_output() = output;
  static constexpr const char* kTypes[] = {"If", "Loop", "Scan"};
  const size_t kind = below(random, 3);
  onnx::NodeProto node;
  node.set_op_type(kTypes[kind]);
  for (const auto& value : graph.input()) node.add_input(value.name());
  for (const auto& output : graph.output()) node.add_output(output.name());
  const auto give = [&](const char* name) {
    auto& attribute = *node.add_attribute();
    attribute.set_name(name);
    attribute.set_type(onnx::AttributeProto::GRAPH);
    *attribute.mutable_g() = inner;
  };
  if (kind == 0) {
    give("then_branch");
    give("else_branch");
  } else {
    *inner.mutable_input() = graph.input();
    give("body");
    if (kind == 2) {
      auto& count = *node.add_attribute();
      count.set_name("num_scan_inputs");
      count.set_type(onnx::AttributeProto::INT);
      count.set_i(interesting_integer(random));
    }
  }
  graph.clear_node();
  *graph.add_node() = std::move(node);
}

void mutate_nodes(onnx::ModelProto& model, const Parts& parts, Random& random,
                  const std::vector<std::pair<std::string, std::string>>& operators) {
  auto* body = pick(parts.bodies, random);
  onnx::NodeProto* node = pick(parts.nodes, random);
  switch (below(random, 10)) {
    case 0:
      if (body != nullptr) remove_one(*body, random);
      break;
    case 1:
      if (body != nullptr) duplicate_one(*body, random);
      break;
    case 2:
      if (body != nullptr) swap_two(*body, random);
      break;
    case 3:
    case 4:
      if (node == nullptr) break;
      if (!operators.empty() && !one_in(random, 4)) {
        const auto& chosen = operators[below(random, operators.size())];
        const std::string& domain = chosen.first;
        node->set_domain(domain);
        node->set_op_type(chosen.second);
        if (std::none_of(model.opset_import().begin(), model.opset_import().end(),
                         [&](const auto& opset) { return opset.domain() == domain; })) {
          auto& opset = *model.add_opset_import();
          opset.set_domain(domain);
          opset.set_version(1);
        }
      } else if (onnx::NodeProto* other = pick(parts.nodes, random)) {
        node->set_op_type(other->op_type());
        node->set_domain(other->domain());
      }
      break;
    case 5:
      if (node != nullptr) wrap_in_function(model, *node, random);
      break;
    case 6:
      if (onnx::GraphProto* graph = pick(parts.graphs, random)) wrap_in_subgraph(*graph, random);
      break;
    default:
      if (node != nullptr)
        mutate_names(one_in(random, 3) ? *node->mutable_output() : *node->mutable_input(), parts, random);
  }
}

void mutate_values(const Parts& parts, Random& random) {
  onnx::GraphProto* graph = pick(parts.graphs, random);
  switch (below(random, 10)) {
    case 0:
      if (graph != nullptr) remove_one(*graph->mutable_input(), random);
      break;
    case 1:
      if (graph != nullptr) remove_one(*graph->mutable_output(), random);
      break;
    case 2:
      if (graph != nullptr && !parts.values.empty()) {
        const onnx::ValueInfoProto copy = *pick(parts.values, random);
        auto* list = one_in(random, 3)   ? graph->mutable_input()
                     : one_in(random, 2) ? graph->mutable_output()
                                         : graph->mutable_value_info();
        *list->Add() = copy;
      }
      break;
    case 3:
      if (graph != nullptr)
        swap_two(one_in(random, 2) ? *graph->mutable_input() : *graph->mutable_output(), random);
      break;
    case 4:
      if (std::string* name = pick(parts.names, random)) *name = some_name(parts, random);
      break;
    case 5:
      if (graph != nullptr) graph->clear_value_info();
      break;
    default:
      if (onnx::TypeProto* type = pick(parts.types, random)) mutate_type(*type, random);
  }
}

void mutate_initializers(const Parts& parts, Random& random) {
  onnx::GraphProto* graph = pick(parts.graphs, random);
  onnx::TensorProto* tensor = pick(parts.tensors, random);
  switch (below(random, 8)) {
    case 0:
      if (graph != nullptr) remove_one(*graph->mutable_initializer(), random);
      break;
    case 1:
      if (graph != nullptr) duplicate_one(*graph->mutable_initializer(), random);
      break;
    case 2: {  // an input, or any other value, becomes an initializer
      if (graph == nullptr) break;
      onnx::TensorProto added;
      added.set_name(some_name(parts, random));
      added.set_data_type(some_type(random));
      const size_t n = below(random, 4);
      added.add_dims(static_cast<int64_t>(n));
      added.set_raw_data(std::string(n * 4, '\1'));
      *graph->add_initializer() = std::move(added);
      break;
    }
    default:
      if (tensor != nullptr) mutate_tensor(*tensor, random);
  }
}

void mutate_header(onnx::ModelProto& model, const Parts& parts, Random& random) {
  const auto n = static_cast<size_t>(model.opset_import_size());
  switch (below(random, 6)) {
    case 0:
      model.set_ir_version(static_cast<int64_t>(below(random, 18)));
      break;
    case 1:
      remove_one(*model.mutable_opset_import(), random);
      break;
    case 2:
      model.add_opset_import()->set_domain(some_name(parts, random));
      break;
    case 3: {
      auto& entry = *model.add_metadata_props();
      entry.set_key(some_name(parts, random));
      entry.set_value(some_name(parts, random));
      break;
    }
    default:
      if (n > 0)
        model.mutable_opset_import(static_cast<int>(below(random, n)))
            ->set_version(one_in(random, 8) ? interesting_integer(random)
                                            : static_cast<int64_t>(below(random, 27)) + 1);
  }
}

void make_external(onnx::TensorProto& tensor, Random& random) {
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  if (one_in(random, 2)) tensor.clear_raw_data();
  if (one_in(random, 3)) tensor.clear_external_data();
  const auto entry = [&](const char* key, const std::string& value) {
    auto& added = *tensor.add_external_data();
    added.set_key(key);
    added.set_value(value);
  };
  static constexpr const char* kPlaces[] = {
      kExternalFile, kExternalFile, kExternalFile, "../data.bin", "/dev/null", "", ".", "missing"};
  const auto number = [&] {
    switch (below(random, 4)) {
      case 0:
        return std::to_string(interesting_integer(random));
      case 1:
        return std::string(one_in(random, 2) ? "0x10" : "18446744073709551616");
      default:
        return std::to_string(below(random, kExternalBytes + 2));
    }
  };
  entry("location", kPlaces[below(random, std::size(kPlaces))]);
  if (one_in(random, 2)) entry("offset", number());
  if (one_in(random, 2)) entry("length", number());
}

}  // namespace

size_t below(Random& random, size_t n) { return static_cast<size_t>(random() >> 4) % n; }

int64_t interesting_integer(Random& random) {
  static constexpr int64_t kNumbers[] = {0,
                                         1,
                                         -1,
                                         2,
                                         -2,
                                         3,
                                         4,
                                         5,
                                         7,
                                         8,
                                         16,
                                         17,
                                         31,
                                         32,
                                         63,
                                         64,
                                         65,
                                         127,
                                         128,
                                         255,
                                         256,
                                         1000,
                                         32767,
                                         65536,
                                         1000000,
                                         16777217,
                                         (int64_t{1} << 31) - 1,
                                         int64_t{1} << 31,
                                         -(int64_t{1} << 31),
                                         int64_t{1} << 32,
                                         int64_t{1} << 40,
                                         int64_t{1} << 53,
                                         int64_t{1} << 61,
                                         int64_t{1} << 62,
                                         std::numeric_limits<int64_t>::max(),
                                         std::numeric_limits<int64_t>::max() - 1,
                                         std::numeric_limits<int64_t>::min(),
                                         std::numeric_limits<int64_t>::min() + 1};
  // mostly small ones: large ones are rejected soon
  return kNumbers[one_in(random, 3) ? below(random, std::size(kNumbers)) : below(random, 11)];
}

double interesting_float(Random& random) {
  using Limits = std::numeric_limits<float>;
  static const double kNumbers[] = {0.0,
                                    -0.0,
                                    1.0,
                                    -1.0,
                                    0.5,
                                    2.0,
                                    -2.5,
                                    1e-7,
                                    1e-40,
                                    1e30,
                                    -1e30,
                                    3.5e9,
                                    1e19,
                                    255.5,
                                    Limits::infinity(),
                                    -Limits::infinity(),
                                    Limits::quiet_NaN(),
                                    Limits::max(),
                                    Limits::lowest(),
                                    Limits::denorm_min(),
                                    1e308};
  return kNumbers[below(random, std::size(kNumbers))];
}

void mutate_tensor(onnx::TensorProto& tensor, Random& random) {
  switch (below(random, 8)) {
    case 0:
      tensor.set_data_type(some_type(random));
      return;
    case 1:
      mutate_list(*tensor.mutable_dims(), random, [&] { return interesting_integer(random); });
      return;
    case 2:
      make_external(tensor, random);
      return;
    case 3:  // several shapes of the same elements
      if (tensor.dims_size() > 0) {
        if (one_in(random, 2))
          tensor.add_dims(1);
        else
          tensor.mutable_dims()->SwapElements(0, tensor.dims_size() - 1);
      }
      return;
    default:
      break;
  }
  if (tensor.int64_data_size() > 0)
    mutate_list(*tensor.mutable_int64_data(), random, [&] { return interesting_integer(random); });
  else if (tensor.int32_data_size() > 0)
    mutate_list(*tensor.mutable_int32_data(), random,
                [&] { return static_cast<int32_t>(interesting_integer(random)); });
  else if (tensor.float_data_size() > 0)
    mutate_list(*tensor.mutable_float_data(), random,
                [&] { return static_cast<float>(interesting_float(random)); });
  else if (tensor.double_data_size() > 0)
    mutate_list(*tensor.mutable_double_data(), random, [&] { return interesting_float(random); });
  else if (!tensor.raw_data().empty()) {
    std::string& bytes = *tensor.mutable_raw_data();
    const auto put = [&](auto number) {
      const size_t n = bytes.size() / sizeof number;
      if (n > 0) std::memcpy(&bytes[below(random, n) * sizeof number], &number, sizeof number);
    };
    switch (below(random, 8)) {
      case 0:
        bytes.resize(bytes.size() / 2);
        break;
      case 1:
        bytes += bytes;
        break;
      case 2:
        bytes[below(random, bytes.size())] ^= static_cast<char>(1u << below(random, 8));
        break;
      default:
        switch (tensor.data_type()) {
          case onnx::TensorProto::FLOAT:
            put(static_cast<float>(interesting_float(random)));
            break;
          case onnx::TensorProto::DOUBLE:
            put(interesting_float(random));
            break;
          case onnx::TensorProto::INT64:
          case onnx::TensorProto::UINT64:
            put(interesting_integer(random));
            break;
          case onnx::TensorProto::INT32:
          case onnx::TensorProto::UINT32:
            put(static_cast<int32_t>(interesting_integer(random)));
            break;
          default:
            put(static_cast<int16_t>(interesting_integer(random)));
        }
    }
  }
}

void mutate_model(onnx::ModelProto& model, Random& random,
                  const std::vector<std::pair<std::string, std::string>>& operators) {
  const Parts parts(model);
  switch (below(random, 16)) {
    case 0:
      mutate_header(model, parts, random);
      break;
    case 1:
    case 2:
    case 3:
      mutate_values(parts, random);
      break;
    case 4:
    case 5:
    case 6:
      mutate_initializers(parts, random);
      break;
    case 7:
    case 8:
    case 9:
    case 10:
      mutate_nodes(model, parts, random, operators);
      break;
    default:
      mutate_attributes(parts, random);
  }
}

void cross_models(onnx::ModelProto& model, const onnx::ModelProto& from, Random& random) {
  const Parts parts(model);
  onnx::ModelProto copy = from;
  const Parts others(copy);
  if (parts.bodies.empty() || others.nodes.empty()) return;
  switch (below(random, 4)) {
    case 0: {  // a node in the place of another, over the same values
      onnx::NodeProto* to = pick(parts.nodes, random);
      if (to == nullptr) break;
      onnx::NodeProto node = *pick(others.nodes, random);
      *node.mutable_input() = to->input();
      *node.mutable_output() = to->output();
      *to = std::move(node);
      break;
    }
    case 1: {  // a node behind the others, over values that are there
      onnx::NodeProto node = *pick(others.nodes, random);
      for (auto& input : *node.mutable_input()) input = some_name(parts, random);
      *pick(parts.bodies, random)->Add() = std::move(node);
      break;
    }
    case 2: {
      const onnx::AttributeProto* attribute = pick(others.attributes, random);
      if (attribute != nullptr && !parts.attribute_lists.empty())
        *pick(parts.attribute_lists, random)->Add() = *attribute;
      break;
    }
    default: {
      const onnx::TensorProto* tensor = pick(others.tensors, random);
      if (tensor == nullptr || parts.graphs.empty()) break;
      auto& added = *pick(parts.graphs, random)->add_initializer();
      added = *tensor;
      added.set_name(some_name(parts, random));
    }
  }
}

}  // namespace ortrain::fuzz
