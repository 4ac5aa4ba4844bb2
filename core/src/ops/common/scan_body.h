// The body of a Scan that a standard form (op/standard_form.h) writes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "op/decomposition.h"

namespace ortrain {

using Names = std::vector<std::string>;

// Writes the body of a Scan. The body can read values of the graph around it.
class ScanBody {
 public:
  ScanBody(DecompositionContext& e, const std::string& prefix) : prefix_(prefix), type_(e.dtype(e.x(0))) {
    graph_->name = "step";
  }

  std::string input() { return declared(type_); }
  std::string input_bool() { return declared(DType::kBool); }
  std::string operator()(const std::string& type, const Names& inputs, const Attributes& attributes = {}) {
    return emit(type, inputs, 1, attributes)[0];
  }
  Names emit(const std::string& type, const Names& inputs, size_t count, const Attributes& attributes);
  void output(const std::string& value) { graph_->outputs.push_back({value, type_, std::nullopt}); }
  Attribute graph() const { return graph_; }

  std::string add(const std::string& a, const std::string& b) { return (*this)("Add", {a, b}); }
  std::string mul(const std::string& a, const std::string& b) { return (*this)("Mul", {a, b}); }
  std::string sub(const std::string& a, const std::string& b) { return (*this)("Sub", {a, b}); }
  // `yes` where the mask is true, else `no`; without a mask, `yes`.
  std::string where(const std::string& mask, const std::string& yes, const std::string& no) {
    return mask.empty() ? yes : (*this)("Where", {mask, yes, no});
  }

 private:
  std::string unique() { return concat(prefix_, "/", number_++); }
  std::string declared(DType type) {
    graph_->inputs.push_back({unique(), type, std::nullopt});
    return graph_->inputs.back().name;
  }

  std::string prefix_;
  DType type_;
  int number_ = 0;
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
};

}  // namespace ortrain
