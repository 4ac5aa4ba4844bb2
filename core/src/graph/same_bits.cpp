#include "graph/same_bits.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>
#include <type_traits>

namespace ortrain {

namespace {

// The memory of `count` elements.
template <typename T>
std::string_view bytes_of(const T* elements, size_t count) {
  return {reinterpret_cast<const char*>(elements), count * sizeof(T)};
}

std::string_view bytes_of(const Tensor& tensor) { return bytes_of(tensor.raw(), tensor.bytes()); }

bool same(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && a.dtype() != DType::kString &&
         bytes_of(a) == bytes_of(b);
}

bool same(const Graph& a, const Graph& b);

bool same(const Node& a, const Node& b) {
  return a.domain == b.domain && a.op_type == b.op_type && a.inputs == b.inputs && a.outputs == b.outputs &&
         same_bits(a.attributes, b.attributes);
}

bool same(const Graph& a, const Graph& b) {
  const auto same_initializer = [&](const std::string& name) {
    return same(a.initializers.at(name), b.initializers.at(name));
  };
  return a.inputs == b.inputs && a.outputs == b.outputs && a.initializer_order == b.initializer_order &&
         std::all_of(a.initializer_order.begin(), a.initializer_order.end(), same_initializer) &&
         std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(),
                    [](const Node& x, const Node& y) { return same(x, y); });
}

bool same(const Attribute& a, const Attribute& b) {
  if (a.index() != b.index()) return false;
  return std::visit(
      [&](const auto& x) {
        using T = std::decay_t<decltype(x)>;
        const T& y = std::get<T>(b);
        if constexpr (std::is_same_v<T, float>)
          return bytes_of(&x, 1) == bytes_of(&y, 1);
        else if constexpr (std::is_same_v<T, std::vector<float>>)
          return bytes_of(x.data(), x.size()) == bytes_of(y.data(), y.size());
        else if constexpr (std::is_same_v<T, Tensor>)
          return same(x, y);
        else if constexpr (std::is_same_v<T, std::shared_ptr<Graph>>)
          return x == y || (x && y && same(*x, *y));
        else
          return x == y;
      },
      a);
}

}  // namespace

bool same_bits(const Attributes& a, const Attributes& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && same(x.second, y.second);
  });
}

size_t hash_bits(const Attributes& attributes) {
  size_t hash = 0;
  const auto add = [&](std::string_view bytes) {
    hash = hash * 0x9E3779B97F4A7C15u + std::hash<std::string_view>()(bytes);
  };
  for (const auto& [name, value] : attributes) {
    add(name);
    std::visit(
        [&](const auto& x) {
          using T = std::decay_t<decltype(x)>;
          if constexpr (std::is_same_v<T, std::string>)
            add(x);
          else if constexpr (std::is_arithmetic_v<T>)
            add(bytes_of(&x, 1));
          else if constexpr (std::is_same_v<T, std::vector<float>> || std::is_same_v<T, std::vector<int64_t>>)
            add(bytes_of(x.data(), x.size()));
          else if constexpr (std::is_same_v<T, Tensor>)
            add(bytes_of(x));
        },
        value);
  }
  return hash;
}

}  // namespace ortrain
