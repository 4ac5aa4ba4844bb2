#include "capi/maps.h"

#include <algorithm>
#include <cstring>

#include "runtime/error.h"
#include "runtime/stable_sort.h"
#include "runtime/text_tensor.h"

namespace ortrain::capi {
namespace {

constexpr const char* kMl = "ai.onnx.ml";

bool is_ml(const Node& node, const char* type) { return node.domain == kMl && node.op_type == type; }

Tensor list_of(const Node& node, const std::string& texts, const std::string& integers) {
  if (const auto at = node.attributes.find(texts); at != node.attributes.end())
    if (const auto* list = std::get_if<std::vector<std::string>>(&at->second); list && !list->empty())
      return text_tensor(*list, Shape{static_cast<int64_t>(list->size())});
  const std::vector<int64_t> list = node.ints_or(integers, {});
  require(!list.empty(), ErrorCode::kInvalidGraph, node.label(), ": it has neither ", texts, " nor ",
          integers);
  return Tensor::of(list);
}

// The positions of keys in ascending order.
std::vector<size_t> ascending(const Tensor& keys) {
  return stable_order(static_cast<size_t>(keys.size()), [&](size_t a, size_t b) {
    if (keys.dtype() == DType::kString) return text(text_places(keys)[a]) < text(text_places(keys)[b]);
    return keys.data<int64_t>()[a] < keys.data<int64_t>()[b];
  });
}

// The elements at those positions, in a new tensor.
Tensor picked(const Tensor& from, const std::vector<size_t>& order) {
  const Shape shape{static_cast<int64_t>(order.size())};
  if (from.dtype() == DType::kString) {
    std::vector<std::string> texts;
    for (const size_t i : order) texts.push_back(text(text_places(from)[i]));
    return text_tensor(std::move(texts), shape);
  }
  Tensor to(from.dtype(), shape);
  const size_t width = size_of(from.dtype());
  for (size_t i = 0; i < order.size(); ++i)
    std::memcpy(to.raw() + i * width, from.raw() + order[i] * width, width);
  return to;
}

void pass_on(Node& node) {
  node.domain.clear();
  node.op_type = "Identity";
  node.attributes.clear();
}

[[noreturn]] void misplaced(const std::string& what, const std::string& name, const char* expected) {
  fail(ErrorCode::kNotImplemented, "the model has the ", what, " '", name, "', which is a map; expected ",
       expected);
}

MapPort output_port(Graph& graph, ValueInfo& output, const MapType& type) {
  for (Node& node : graph.nodes) {
    if (std::find(node.outputs.begin(), node.outputs.end(), output.name) == node.outputs.end()) continue;
    if (!is_ml(node, "ZipMap") || !node.has_input(0)) break;
    MapPort port{type, node, list_of(node, "classlabels_strings", "classlabels_int64s"), {}};
    port.order = ascending(port.keys);
    port.keys = picked(port.keys, port.order);
    pass_on(node);
    output.dims.reset();
    return port;
  }
  misplaced("output", output.name, "a map that a ZipMap node returns");
}

MapPort input_port(Graph& graph, ValueInfo& input, const MapType& type) {
  Node* reader = nullptr;
  for (Node& node : graph.nodes)
    for (const std::string& read : values_read(node))
      if (read == input.name) {
        if (reader != nullptr || !(is_ml(node, "DictVectorizer") || is_ml(node, "CastMap")) ||
            type.in_sequence)
          misplaced("input", input.name, "a map that a single node reads, a DictVectorizer or a CastMap");
        reader = &node;
      }
  if (reader == nullptr)
    misplaced("input", input.name, "a map that a single node reads, a DictVectorizer or a CastMap");
  MapPort port{type, *reader, {}, {}};
  if (is_ml(port.node, "CastMap")) {
    const std::string to = port.node.string_or("cast_to", "TO_FLOAT");
    input.dtype = to == "TO_STRING" ? DType::kString : to == "TO_INT64" ? DType::kInt64 : DType::kFloat;
  } else {
    port.keys = list_of(port.node, "string_vocabulary", "int64_vocabulary");
  }
  pass_on(*reader);
  input.dims.reset();
  return port;
}

// The position of a key of one list in another; -1 if it is not there.
int64_t find_key(const Tensor& keys, const Tensor& wanted, int64_t i) {
  for (int64_t k = 0; k < keys.size(); ++k) {
    const bool same = keys.dtype() == DType::kString
                          ? text(text_places(keys)[k]) == text(text_places(wanted)[i])
                          : keys.data<int64_t>()[k] == wanted.data<int64_t>()[i];
    if (same) return k;
  }
  return -1;
}

Tensor vectorized(const MapPort& port, const OrtMap& map) {
  require(port.keys.dtype() == map.keys.dtype(), ErrorCode::kInvalidArgument, port.node.label(),
          ": its vocabulary is of ", to_string(port.keys.dtype()), ", but the keys of the map are ",
          to_string(map.keys.dtype()));
  const int64_t n = port.keys.size();
  const bool texts = map.values.dtype() == DType::kString;
  Tensor out = texts ? text_tensor(Shape{1, n}) : Tensor(map.values.dtype(), Shape{1, n});
  const size_t width = size_of(out.dtype());
  if (!texts) std::memset(out.raw(), 0, out.bytes());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = find_key(map.keys, port.keys, i);
    if (at < 0) continue;
    if (texts)
      own_text(out, static_cast<size_t>(i)) = text(text_places(map.values)[at]);
    else
      std::memcpy(out.raw() + static_cast<size_t>(i) * width,
                  map.values.raw() + static_cast<size_t>(at) * width, width);
  }
  return out;
}

Tensor cast(const MapPort& port, const OrtMap& map, DType to) {
  require(map.keys.dtype() == DType::kInt64, ErrorCode::kInvalidArgument, port.node.label(),
          ": the keys of its map are ", to_string(map.keys.dtype()), ", expected int64");
  const bool sparse = port.node.string_or("map_form", "DENSE") == "SPARSE";
  const int64_t n = sparse ? port.node.int_or("max_map", 1) : map.keys.size();
  std::vector<std::string> texts(static_cast<size_t>(n), sparse ? "0" : "");
  std::vector<double> numbers(static_cast<size_t>(n), 0.0);
  for (int64_t k = 0; k < map.keys.size(); ++k) {
    const int64_t at = sparse ? map.keys.data<int64_t>()[k] : k;
    require(at >= 0 && at < n, ErrorCode::kInvalidArgument, port.node.label(), ": the key ", at,
            " is out of range for max_map = ", n);
    const auto place = static_cast<size_t>(at);
    if (map.values.dtype() == DType::kString) {
      texts[place] = text(text_places(map.values)[k]);
      if (to != DType::kString) numbers[place] = std::strtod(texts[place].c_str(), nullptr);
    } else {
      numbers[place] = static_cast<double>(map.values.data<float>()[k]);
      texts[place] = std::to_string(map.values.data<float>()[k]);
    }
  }
  if (to == DType::kString) return text_tensor(std::move(texts), Shape{1, n});
  Tensor out(to, Shape{1, n});
  visit_types<float, int64_t>(to, [&](auto zero) {
    for (size_t i = 0; i < numbers.size(); ++i)
      out.data<decltype(zero)>()[i] = static_cast<decltype(zero)>(numbers[i]);
  });
  return out;
}

}  // namespace

MapPorts take_maps(Model& model, const ModelNotes& notes) {
  MapPorts ports;
  Graph& graph = model.graph;
  for (ValueInfo& output : graph.outputs)
    if (const auto map = notes.maps.find(output.name); map != notes.maps.end())
      ports.outputs.emplace(output.name, output_port(graph, output, map->second));
  for (ValueInfo& input : graph.inputs)
    if (const auto map = notes.maps.find(input.name); map != notes.maps.end())
      ports.inputs.emplace(input.name, input_port(graph, input, map->second));
  constexpr int64_t kAnyOpset = 13;
  if (!ports.inputs.empty() || !ports.outputs.empty()) model.opsets.emplace("", kAnyOpset);
  return ports;
}

Tensor tensor_of_map(const MapPort& port, const OrtMaps& given) {
  require(given.maps.size() == 1 && !given.type.in_sequence, ErrorCode::kInvalidArgument, port.node.label(),
          ": expected a map, found a sequence of maps");
  if (!is_ml(port.node, "CastMap")) return vectorized(port, given.maps[0]);
  const std::string to = port.node.string_or("cast_to", "TO_FLOAT");
  return cast(port, given.maps[0],
              to == "TO_STRING"  ? DType::kString
              : to == "TO_INT64" ? DType::kInt64
                                 : DType::kFloat);
}

OrtMaps maps_of_tensor(const MapPort& port, const Tensor& rows) {
  const auto columns = static_cast<int64_t>(port.order.size());
  const Shape& shape = rows.shape();
  require((shape.size() == 1 || shape.size() == 2) && shape.back() == columns, ErrorCode::kInvalidArgument,
          port.node.label(), ": it has ", counted(columns, "label"), ", but its input has shape ",
          to_string(shape));
  OrtMaps out{port.type, {}};
  const int64_t count = shape.size() == 2 ? shape[0] : 1;
  for (int64_t row = 0; row < count; ++row) {
    std::vector<size_t> at = port.order;
    for (size_t& place : at) place += static_cast<size_t>(row * columns);
    out.maps.push_back({port.keys, picked(rows, at)});
  }
  return out;
}

OrtMap make_map(const Tensor& keys, const Tensor& values) {
  require(keys.dtype() == DType::kString || keys.dtype() == DType::kInt64, ErrorCode::kInvalidArgument,
          "the keys of a map are int64 or strings, found ", to_string(keys.dtype()));
  require(values.dtype() == DType::kString || values.dtype() == DType::kFloat ||
              values.dtype() == DType::kDouble || values.dtype() == DType::kInt64,
          ErrorCode::kInvalidArgument, "the values of a map are float, double, int64 or strings, found ",
          to_string(values.dtype()));
  require(keys.size() == values.size() && keys.shape().size() == 1 && values.shape().size() == 1,
          ErrorCode::kInvalidArgument,
          "a map needs as many keys as values, in tensors of rank 1, found shapes ", to_string(keys.shape()),
          " and ", to_string(values.shape()));
  const std::vector<size_t> order = ascending(keys);
  return {picked(keys, order), picked(values, order)};
}

}  // namespace ortrain::capi
