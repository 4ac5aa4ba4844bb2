// The body of a Scan that a standard form (op/standard_form.h) writes.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "op/decomposition.h"

namespace ortrain {

// Writes the body of a Scan. The body can read values of the graph around it.
class ScanBody {
 public:
  ScanBody(DecompositionContext& e, const std::string& prefix) : prefix_(prefix), type_(e.dtype(e.x(0))) {
    graph_->name = "step";
  }

  Name input() { return declared(type_); }
  Name input_bool() { return declared(DType::kBool); }
  Name operator()(std::string_view type, Inputs inputs, NewAttributes attributes = {}) {
    return emit(type, inputs, 1, attributes)[0];
  }
  Names emit(std::string_view type, Inputs inputs, size_t count, NewAttributes attributes);
  void output(const std::string& value) { graph_->outputs.push_back({value, type_, std::nullopt}); }
  Attribute graph() const { return graph_; }

  Name add(Name a, Name b) { return (*this)("Add", {a, b}); }
  Name mul(Name a, Name b) { return (*this)("Mul", {a, b}); }
  Name sub(Name a, Name b) { return (*this)("Sub", {a, b}); }
  // `yes` where the mask is true, else `no`; without a mask, `yes`.
  Name where(Name mask, Name yes, Name no) { return mask.empty() ? yes : (*this)("Where", {mask, yes, no}); }

 private:
  Name unique() { return names_.emplace_back(concat(prefix_, "/", number_++)); }
  Name declared(DType type) {
    const Name name = unique();
    graph_->inputs.push_back({name, type, std::nullopt});
    return name;
  }

  std::string prefix_;
  DType type_;
  int number_ = 0;
  std::deque<std::string> names_;
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
};

}  // namespace ortrain
