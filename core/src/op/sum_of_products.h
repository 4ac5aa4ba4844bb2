// Outputs whose elements are sums of products of input elements. Their magnitude has a bound that follows
// from the magnitudes of the inputs (passes/bound_gradients.cpp). An operator's file declares its rule
// beside the operator.
//
//     ORTRAIN_SUM_OF_PRODUCTS(kMicrosoft, "FusedMatMul", product_terms);
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "graph/graph.h"

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
std::vector<ProductTerm> product_terms(const Node& node, size_t output);

struct RegisterProductTerms {
  RegisterProductTerms(std::string_view domain, std::string_view type, ProductTermsRule rule);
};
#define ORTRAIN_SUM_OF_PRODUCTS(domain, type, rule) ORTRAIN_SUM_OF_PRODUCTS_(__COUNTER__, domain, type, rule)
#define ORTRAIN_SUM_OF_PRODUCTS_(n, domain, type, rule) ORTRAIN_SUM_OF_PRODUCTS__(n, domain, type, rule)
#define ORTRAIN_SUM_OF_PRODUCTS__(n, domain, type, rule) \
  static const ::ortrain::RegisterProductTerms terms_##n(domain, type, rule)

}  // namespace ortrain
