// Facts about a few operators that only one part of the core needs. Each kind of fact is a type. A fact is
// declared beside the operator, or in the part of the core that needs it; no other source has to know about
// it.
//
//     ORTRAIN_OPERATOR_FACT(ProductTermsRule, kMicrosoft, "FusedMatMul", matmul_terms);
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "built_operators.h"
#include "graph/graph.h"
#include "runtime/registry.h"

namespace ortrain {

// Whether the build needs facts of this kind. A specialization beside the kind is false in builds that do
// not.
template <typename Fact>
inline constexpr bool kIsNeeded = true;

template <typename Fact>
class OperatorFacts {
 public:
  // The fact about the node's operator, or null.
  static const Fact* find(const Node& node) { return facts().find({node.domain, node.op_type}); }

  struct Declare {
    Declare() = default;  // for facts that are not part of this build
    Declare(std::string_view domain, std::string_view type, Fact fact,
            SourcePlace where = SourcePlace::here()) {
      facts().add({std::string(domain), std::string(type)}, std::move(fact),
                  concat("a fact about ", domain, domain.empty() ? "" : ".", type), where);
    }
  };

 private:
  using Facts = Registry<std::pair<std::string, std::string>, Fact>;
  static Facts& facts() {
    static Facts facts;
    return facts;
  }
};

#define ORTRAIN_OPERATOR_FACT(fact, domain, type, ...) \
  ORTRAIN_OPERATOR_FACT_(__COUNTER__, fact, domain, type, __VA_ARGS__)
#define ORTRAIN_OPERATOR_FACT_(n, fact, domain, type, ...) \
  ORTRAIN_OPERATOR_FACT__(n, fact, domain, type, __VA_ARGS__)
// Without the operator, the constant does nothing, and clang would warn that it is unused.
#define ORTRAIN_OPERATOR_FACT__(n, fact, domain, type, ...)                                        \
  [[maybe_unused]] static const ::ortrain::OperatorFacts<::ortrain::fact>::Declare fact_##n = [] { \
    if constexpr (::ortrain::is_built(domain, type) && ::ortrain::kIsNeeded<::ortrain::fact>)      \
      return ::ortrain::OperatorFacts<::ortrain::fact>::Declare(domain, type, __VA_ARGS__);        \
    else                                                                                           \
      return ::ortrain::OperatorFacts<::ortrain::fact>::Declare();                                 \
  }()

}  // namespace ortrain
