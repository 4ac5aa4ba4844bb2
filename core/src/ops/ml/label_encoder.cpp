// LabelEncoder and CategoryMapper: a table from keys to values, numbers or strings. All NaNs are the same
// key.
//
// Compiled for size: the time is that of looking up keys (CMakeLists.txt).
#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <memory>
#include <numeric>
#include <unordered_map>

#include "ops/ml/ml.h"
#include "runtime/text_tensor.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

enum class Of { kLabelEncoder, kCategoryMapper };

struct Table {
  Tensor keys, values, otherwise;
};

// The keys or values (`side`) of a LabelEncoder, under their attribute's name, as a tensor; undefined if the
// node has none.
Tensor table_side(const Node& node, const std::string& side) {
  const auto length = [](const auto& list) { return Shape{static_cast<int64_t>(list.size())}; };
  if (const auto at = node.attributes.find(side + "_tensor"); at != node.attributes.end()) {
    const auto* tensor = std::get_if<Tensor>(&at->second);
    require(tensor != nullptr, ErrorCode::kInvalidGraph, node.label(), ": attribute ", at->first,
            " must hold a tensor");
    return *tensor;
  }
  if (std::vector<std::string> texts = strings_of(node, side + "_strings"); !texts.empty()) {
    Shape shape = length(texts);
    return text_tensor(std::move(texts), std::move(shape));
  }
  if (const std::vector<int64_t> ints = node.ints_or(side + "_int64s", {}); !ints.empty())
    return Tensor::of(ints);
  const auto at = node.attributes.find(side + "_floats");
  const auto* floats = at == node.attributes.end() ? nullptr : std::get_if<std::vector<float>>(&at->second);
  return floats && !floats->empty() ? Tensor::of(*floats) : Tensor();
}

// The value for keys that are not in the table.
Tensor default_value(const Node& node, DType type) {
  if (const auto at = node.attributes.find("default_tensor"); at != node.attributes.end()) {
    const auto* tensor = std::get_if<Tensor>(&at->second);
    require(tensor && tensor->dtype() == type && tensor->size() == 1, ErrorCode::kInvalidGraph, node.label(),
            ": attribute default_tensor must hold one ", to_string(type));
    return *tensor;
  }
  if (type == DType::kString) return text_tensor({node.string_or("default_string", "_Unused")}, Shape{});
  if (type == DType::kInt64) return Tensor::scalar(node.int_or("default_int64", -1));
  return Tensor::scalar(type, is_floating(type) ? static_cast<double>(node.float_or("default_float", -0.0f))
                                                : static_cast<double>(node.int_or("default_int64", -1)));
}

// The table from strings to integers or, for integer inputs, from integers to strings.
Table two_ways(DType input, std::vector<std::string> texts, std::vector<int64_t> integers, const Node& node) {
  require(texts.size() == integers.size() && !texts.empty(), ErrorCode::kInvalidGraph, node.label(),
          ": it has ", counted(texts.size(), "string"), " and ", counted(integers.size(), "integer"),
          ", expected equal numbers of both, at least 1");
  const Shape shape{static_cast<int64_t>(texts.size())};
  Tensor strings = text_tensor(std::move(texts), shape), numbers = Tensor::of(integers);
  if (input == DType::kString) return {strings, numbers, default_value(node, DType::kInt64)};
  return {numbers, strings, default_value(node, DType::kString)};
}

// A LabelEncoder of version 1 maps between classes and their positions.
template <Of F>
bool maps_two_ways(const Node& node) {
  return F == Of::kCategoryMapper || !strings_of(node, "classes_strings").empty();
}

template <Of F>
Table table_of(const Node& node, DType input) {
  if constexpr (F == Of::kCategoryMapper)
    return two_ways(input, strings_of(node, "cats_strings"), node.ints_or("cats_int64s", {}), node);
  if (maps_two_ways<F>(node)) {
    std::vector<std::string> classes = strings_of(node, "classes_strings");
    std::vector<int64_t> numbers(classes.size());
    std::iota(numbers.begin(), numbers.end(), 0);
    return two_ways(input, std::move(classes), std::move(numbers), node);
  }
  Table table{table_side(node, "keys"), table_side(node, "values"), {}};
  for (const auto& [tensor, side] : {std::pair(&table.keys, "keys"), std::pair(&table.values, "values")})
    require(tensor->defined(), ErrorCode::kInvalidGraph, node.label(), ": it has none of the attributes ",
            side, "_int64s, ", side, "_floats, ", side, "_strings and ", side, "_tensor");
  table.otherwise = default_value(node, table.values.dtype());
  return table;
}

template <Of F>
DType value_type(const ElementTypes& types, size_t) {
  const Node& node = types.node();
  if (maps_two_ways<F>(node))
    return types[0] == DType::kUndefined ? DType::kUndefined
           : types[0] == DType::kString  ? DType::kInt64
                                         : DType::kString;
  return table_side(node, "values").dtype();
}

template <Of F>
void shape(ShapeContext& c) {
  const Table table = table_of<F>(c.node(), c.dtype(0));
  c.expect(table.keys.dtype() == c.dtype(0), "its keys are ", to_string(table.keys.dtype()),
           ", but the input is ", to_string(c.dtype(0)));
  c.expect(table.keys.size() == table.values.size(), "it has ", counted(table.keys.size(), "key"), " and ",
           counted(table.values.size(), "value"), ", expected one value for each key");
  c.output(0, table.values.dtype(), c.shape(0));
}

uint64_t key_of(double x) { return std::bit_cast<uint64_t>(std::isnan(x) ? std::nan("") : x == 0 ? 0.0 : x); }
uint64_t key_of(float x) { return key_of(static_cast<double>(x)); }
uint64_t key_of(std::integral auto x) { return static_cast<uint64_t>(static_cast<int64_t>(x)); }
const std::string& key_of(Text x) { return text(x); }

// The kernel for keys of type T, which the hash map stores as type K.
template <typename T, typename K>
Kernel look_up(KernelContext& c, Table table) {
  // The position of each key's value; for a key that occurs twice, the first value.
  const auto places = std::make_shared<std::unordered_map<K, size_t>>();
  const size_t width = size_of(table.values.dtype());
  for (int64_t i = 0; i < table.keys.size(); ++i)
    places->emplace(key_of(reinterpret_cast<const T*>(table.keys.raw())[i]), static_cast<size_t>(i) * width);
  const int64_t n = c.size(0);
  const Slot x = c.in(0), y = c.out(0);
  return [=, table = std::move(table)](const Frame& f) {
    parallel_for(n, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto found = places->find(key_of(f.at<T>(x)[i]));
        std::memcpy(f.at<std::byte>(y) + static_cast<size_t>(i) * width,
                    found == places->end() ? table.otherwise.raw() : table.values.raw() + found->second,
                    width);
      }
    });
  };
}

template <Of F>
Kernel kernel(KernelContext& c) {
  Table table = table_of<F>(c.node(), c.dtype(0));
  const DType keys = table.keys.dtype(), values = table.values.dtype();
  Kernel kernel;
  const bool known =
      values == DType::kString || visit_types<float, double, int16_t, int32_t, int64_t>(values, [](auto) {});
  if (known && keys == DType::kString)
    kernel = look_up<Text, std::string>(c, std::move(table));
  else if (known)
    visit_types<float, double, int16_t, int32_t, int64_t>(
        keys, [&](auto zero) { kernel = look_up<decltype(zero), uint64_t>(c, table); });
  if (!kernel)
    c.reject("keys of ", to_string(keys), " and values of ", to_string(values), " are not supported");
  return kernel;
}

ORTRAIN_OPERATOR({.domain = kMl,
                  .type = "LabelEncoder",
                  .rules = {.shape = shape<Of::kLabelEncoder>, .element_type = value_type<Of::kLabelEncoder>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = kernel<Of::kLabelEncoder>}});
ORTRAIN_OPERATOR({.domain = kMl,
                  .type = "CategoryMapper",
                  .rules = {.shape = shape<Of::kCategoryMapper>,
                            .element_type = value_type<Of::kCategoryMapper>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = kernel<Of::kCategoryMapper>}});

}  // namespace
}  // namespace ortrain
