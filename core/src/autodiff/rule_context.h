// The context of one gradient rule, implemented on top of the builder that walks the graph.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "autodiff/gradient_builder.h"
#include "op/gradient_context.h"
#include "op/subgraph_context.h"

namespace ortrain {

class RuleContext : public GradientContext, public SubgraphContext {
 public:
  RuleContext(GradientBuilder& builder, size_t node_index) : builder_(builder), index_(node_index) {}

  const Node& node() const override;
  int64_t opset(std::string_view domain) const override;
  Name dy(size_t o) const override;
  bool needs(size_t i) const override;
  void set(size_t i, const std::string& gradient) override;
  Name want_y(size_t o) override;
  void retype_node(std::string_view op_type, std::string_view domain) override;
  SubgraphContext& subgraphs() override { return *this; }

  std::vector<std::string> captured() const override;
  void set_captured(const std::string& value, const std::string& gradient) override;
  ValueInfo info(const std::string& value) const override;
  std::vector<ValueInfo> output_types(const std::string& attribute,
                                      const std::vector<ValueInfo>& inputs) const override;
  SubgraphGradient differentiate(const std::string& attribute, const std::vector<ValueInfo>& inputs,
                                 const std::vector<std::string>& wanted,
                                 const std::vector<std::pair<size_t, std::string>>& seeds) override;
  std::string empty_sequence(DType dtype) override;
  std::string unique(const std::string& base) override;
  void change(Node node) override;
  DType dtype(const std::string& value) const override;
  std::optional<std::vector<Dim>> dims(const std::string& value) const override;
  const Tensor* constant_value(const std::string& value) const override;

 private:
  std::vector<std::string> add_node(Node node, size_t output_count) override;
  std::string add_constant(const Tensor& value) override;
  const Graph& subgraph(const std::string& attribute) const;

  GradientBuilder& builder_;
  size_t index_;
  int emitted_ = 0;
  std::set<size_t> set_;
};

}  // namespace ortrain
