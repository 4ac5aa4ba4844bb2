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

// One addend of an output, either a sum of products or one input. In a sum of products, each element is
// `scale` times a sum; a product in that sum has at most one element of each input in `factors`, and there
// are at most as many products as the smallest of these inputs has elements. An input is unchanged or
// broadcast, and its `scale` is 1.
//
// The products may be computed and added up in any order, in the type of the inputs or a wider type, with
// inputs rounded to bfloat16. Intermediate results may be as large as `scale` allows if that is above 1.
struct ProductTerm {
  std::vector<size_t> factors;  // input indices
  double scale = 1;
  bool is_sum = true;
};

// The addends of an output; empty if the output is not such a sum.
using ProductTermsRule = std::vector<ProductTerm> (*)(const Node& node, size_t output);
inline std::vector<ProductTerm> product_terms(const Node& node, size_t output) {
  const ProductTermsRule* rule = OperatorFacts<ProductTermsRule>::find(node);
  return rule ? (*rule)(node, output) : std::vector<ProductTerm>();
}

}  // namespace ortrain
