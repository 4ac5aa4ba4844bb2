#include "ops/tensor/row_sums_form.h"

namespace ortrain {

Name row_sums(DecompositionContext& e, Name count, Name inner, Name places, Name updates) {
  const auto beside = [&](const std::string& first) {
    return e("Concat", {first, inner}, {{"axis", int64_t{0}}});
  };
  const Name rows = e("Reshape", {updates, beside(e.int64s({-1}))});
  const Name column = e("Reshape", {places, e.int64s({-1, 1})});
  return e("ScatterElements",
           {e("Expand", {e.scalar_like(updates, 0), beside(count)}),
            e("Expand", {column, e("Shape", {rows})}), rows},
           {{"axis", int64_t{0}}, {"reduction", std::string("add")}});
}

Name product_of_dims(DecompositionContext& e, Name shape, int64_t begin, int64_t end) {
  const Name part = e("Slice", {shape, e.int64s({begin}), e.int64s({end}), e.int64s({0})});
  const Name filled = e("Concat", {e.int64s({1}), part}, {{"axis", int64_t{0}}});  // never empty
  return e("ReduceProd", {filled}, {{"keepdims", int64_t{1}}});
}

}  // namespace ortrain
