// Outputs whose elements are sums of products of input elements. Their magnitude has a bound that follows
// from the magnitudes of the inputs (passes/bound_gradients.cpp). An operator's file declares its rule
// beside the operator.
//
//     ORTRAIN_OPERATOR_FACT(ProductTermsRule, kMicrosoft, "FusedMatMul", matmul_terms);
#pragma once

#include <cstddef>
#include <vector>

#include "op/operator_facts.h"

namespace ortrain {

// One addend of an output. Either a sum of products: each element is `scale` times a sum of at most as many
// products as the smallest of the inputs `factors` has elements, where each product has one element of each
// of them as factors, or none. Or one input, unchanged or broadcast: `scale` is 1.
//
// The products may be computed and added up in any order, in the type of the inputs or a wider one, with
// inputs rounded to bfloat16. Intermediate results may be as large as `scale` allows if that is above 1.
struct ProductTerm {
  std::vector<size_t> factors;  // input indices
  double scale = 1;
  bool is_sum = true;
};

// The addends of an output; empty if the output is something else.
using ProductTermsRule = std::vector<ProductTerm> (*)(const Node& node, size_t output);
inline std::vector<ProductTerm> product_terms(const Node& node, size_t output) {
  const ProductTermsRule* rule = OperatorFacts<ProductTermsRule>::find(node);
  return rule ? (*rule)(node, output) : std::vector<ProductTerm>();
}

}  // namespace ortrain
