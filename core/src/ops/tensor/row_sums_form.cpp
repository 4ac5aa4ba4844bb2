#include "ops/tensor/row_sums_form.h"

namespace ortrain {

std::string row_sums(DecompositionContext& e, const std::string& count, const std::string& inner,
                     const std::string& places, const std::string& updates) {
  const auto beside = [&](const std::string& first) {
    return e("Concat", {first, inner}, {{"axis", int64_t{0}}});
  };
  const std::string rows = e("Reshape", {updates, beside(e.int64s({-1}))});
  const std::string column = e("Reshape", {places, e.int64s({-1, 1})});
  return e("ScatterElements",
           {e("Expand", {e.scalar_like(updates, 0), beside(count)}),
            e("Expand", {column, e("Shape", {rows})}), rows},
           {{"axis", int64_t{0}}, {"reduction", std::string("add")}});
}

std::string product_of_dims(DecompositionContext& e, const std::string& shape, int64_t begin, int64_t end) {
  const std::string part = e("Slice", {shape, e.int64s({begin}), e.int64s({end}), e.int64s({0})});
  const std::string filled = e("Concat", {e.int64s({1}), part}, {{"axis", int64_t{0}}});  // never empty
  return e("ReduceProd", {filled}, {{"keepdims", int64_t{1}}});
}

}  // namespace ortrain
