#include "session/io_binding.h"

#include <algorithm>

#include "runtime/error.h"

namespace ortrain {

namespace {

bool lists(const std::vector<ValueInfo>& infos, const std::string& name) {
  return std::any_of(infos.begin(), infos.end(), [&](const ValueInfo& info) { return info.name == name; });
}

std::string listed(const std::vector<ValueInfo>& infos) {
  std::string text;
  for (const ValueInfo& info : infos) text += (text.empty() ? "" : ", ") + info.name;
  return text.empty() ? "none" : text;
}

// The number of a name, which is added at the end if it is new.
size_t place_of(std::vector<std::string>& names, const std::string& name) {
  const auto at = std::find(names.begin(), names.end(), name);
  const auto number = static_cast<size_t>(at - names.begin());
  if (at == names.end()) names.push_back(name);
  return number;
}

const std::byte* memory_of(const Value& value) {
  const auto* tensor = std::get_if<Tensor>(&value);
  return tensor != nullptr ? tensor->raw() : nullptr;
}

}  // namespace

void IoBinding::bind_input(const InferenceSession& session, const std::string& name, const Value& value) {
  require(lists(session.inputs(), name) || lists(session.overridable_initializers(), name),
          ErrorCode::kInvalidArgument, "binding an input: the model has no input '", name,
          "'; its inputs: ", listed(session.inputs()));
  const size_t number = place_of(input_names_, name);
  if (number == inputs_.size())
    inputs_.push_back(value);
  else
    inputs_[number] = value;
}

void IoBinding::set_output(const InferenceSession& session, const std::string& name, Value value,
                           bool replaceable) {
  require(lists(session.outputs(), name), ErrorCode::kInvalidArgument,
          "binding an output: the model has no output '", name,
          "'; its outputs: ", listed(session.outputs()));
  const size_t number = place_of(output_names_, name);
  if (number == outputs_.size()) {
    outputs_.push_back(std::move(value));
    replaceable_.push_back(replaceable);
  } else {
    outputs_[number] = std::move(value);
    replaceable_[number] = replaceable;
  }
}

void IoBinding::bind_output(const InferenceSession& session, const std::string& name, const Tensor& tensor) {
  set_output(session, name, tensor, false);
}

void IoBinding::bind_output(const InferenceSession& session, const std::string& name) {
  set_output(session, name, Tensor(), true);
}

void IoBinding::clear_inputs() {
  input_names_.clear();
  inputs_.clear();
}

void IoBinding::clear_outputs() {
  output_names_.clear();
  outputs_.clear();
  replaceable_.clear();
}

void IoBinding::run(InferenceSession& session, const RunOptions* options) {
  require(!output_names_.empty(), ErrorCode::kInvalidArgument,
          "a run with a binding: no output is bound, expected at least one");
  // An output of the last run may be an input of this run: this run then computes the output in other memory.
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const std::byte* memory = replaceable_[i] ? memory_of(outputs_[i]) : nullptr;
    if (memory != nullptr && std::any_of(inputs_.begin(), inputs_.end(),
                                         [&](const Value& input) { return memory_of(input) == memory; }))
      outputs_[i] = Tensor();
  }
  session.run(input_names_, inputs_, output_names_, outputs_, options, replaceable_);
}

}  // namespace ortrain
