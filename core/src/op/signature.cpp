// Compares the nodes of a model with the signatures of their operators.
//
// A node may have the form of a newer version of its operator than the model's opset: gradient rules add such
// nodes to models with old opsets, and rules accept all forms.
//
// Asks about every operator of the build, by the names in the table of signatures (cmake/asked_operators.py).
#include "op/signature.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "op/generated/onnx_signatures.h"
#include "op/generated/onnx_versions.h"
#include "op/operator.h"
#include "runtime/error.h"
#include "runtime/shape.h"

namespace ortrain {

namespace {

struct Parameter {
  std::string_view name;
  bool optional = false;
  bool variadic = false;
  bool gaps = false;  // variadic, and items may be empty
};

struct AttributeRule {
  std::string_view name, kind;
  bool required = false;
};

// The parts of a signature's text.
struct Signature {
  std::vector<Parameter> inputs, outputs;
  std::vector<AttributeRule> attributes;  // by name
  bool needs_attributes = false;          // an attribute is required
};

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

// Calls f with each item of a list that commas separate.
template <typename F>
void for_each_item(std::string_view list, F&& f) {
  while (!(list = trimmed(list)).empty()) {
    const size_t end = std::min(list.find(','), list.size());
    f(trimmed(list.substr(0, end)));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
}

std::vector<Parameter> parameters(std::string_view list) {
  std::vector<Parameter> out;
  for_each_item(list, [&](std::string_view item) {
    Parameter p;
    p.optional = take_suffix(item, "?");
    p.variadic = take_suffix(item, "...");
    p.gaps = p.variadic && take_suffix(item, "?");
    p.name = item;
    out.push_back(p);
  });
  return out;
}

Signature parsed(std::string_view text) {
  Signature s;
  const size_t bar = std::min(text.find('|'), text.size());
  const std::string_view values = text.substr(0, bar);
  const size_t arrow = std::min(values.find("->"), values.size());
  s.inputs = parameters(values.substr(0, arrow));
  s.outputs = parameters(values.substr(std::min(arrow + 2, values.size())));
  for_each_item(text.substr(std::min(bar + 1, text.size())), [&](std::string_view item) {
    AttributeRule rule;
    rule.required = !take_suffix(item, "?");
    const size_t colon = std::min(item.find(':'), item.size());
    rule.name = trimmed(item.substr(0, colon));
    rule.kind = trimmed(item.substr(std::min(colon + 1, item.size())));
    s.attributes.push_back(rule);
    s.needs_attributes |= rule.required;
  });
  std::sort(s.attributes.begin(), s.attributes.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return s;
}

// The least number of inputs or outputs that a node must have: up to the last required parameter. Before a
// variadic parameter that may have no items, every parameter must have a place, even if it is left out.
size_t least(const std::vector<Parameter>& list) {
  size_t count = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].optional) count = i + 1;
    if (list[i].variadic && list[i].optional) count = i;
  }
  return count;
}

std::string described(const std::vector<Parameter>& list) {
  std::string out;
  for (const Parameter& p : list)
    out += concat(out.empty() ? "" : ", ", p.name, p.gaps ? "?" : "", p.variadic ? "..." : "",
                  p.optional ? "?" : "");
  return out.empty() ? "none" : out;
}

std::string too_few_or_many(const std::vector<Parameter>& expected, size_t found, const char* what) {
  return concat("expected the ", what, "s ", described(expected), ", found ", counted(found, what));
}

std::string left_out(const std::vector<Parameter>& expected, size_t i, const char* what) {
  return concat("expected the ", what, "s ", described(expected), ", found that ",
                expected[std::min(i, expected.size() - 1)].name, " (", what, " ", i, ") is left out");
}

bool fits(const std::vector<Parameter>& expected, size_t found) {
  return found <= expected.size() || (!expected.empty() && expected.back().variadic);
}

// The fault of the inputs; empty if there is none.
std::string input_fault(const std::vector<Parameter>& expected, const std::vector<std::string>& found) {
  if (found.size() < least(expected))
    return too_few_or_many(expected, found.size(), "input") + " and so fewer than it needs";
  if (!fits(expected, found.size())) return too_few_or_many(expected, found.size(), "input");
  for (size_t i = 0; i < found.size(); ++i) {
    const Parameter& p = expected[std::min(i, expected.size() - 1)];
    if (found[i].empty() && !(p.variadic ? p.gaps : p.optional)) return left_out(expected, i, "input");
  }
  return "";
}

// The fault of the outputs; empty if there is none. Only the first output must have a name, because kernels
// do not compute outputs without a name.
std::string output_fault(const std::vector<Parameter>& expected, const std::vector<std::string>& found) {
  const bool named =
      std::any_of(found.begin(), found.end(), [](const std::string& name) { return !name.empty(); });
  if (!fits(expected, found.size()) ||
      (!named && !expected.empty() && !(expected[0].variadic && expected[0].optional)))
    return too_few_or_many(expected, found.size(), "output");
  if (named && found[0].empty() && !expected[0].optional && !expected[0].variadic)
    return left_out(expected, 0, "output");
  return "";
}

constexpr std::array kKinds = {"int",    "float",   "string", "tensor", "ints",
                               "floats", "strings", "graph",  "type"};
static_assert(kKinds.size() == std::variant_size_v<Attribute>);

// Appends the faults of the attributes of a node. Both lists are sorted by name.
void add_attribute_faults(const std::vector<AttributeRule>& rules, const Node& node, std::string& text) {
  const auto add = [&](const auto&... parts) { text += concat(text.empty() ? "" : "; ", parts...); };
  auto at = node.attributes.begin();
  for (const AttributeRule& rule : rules) {
    while (at != node.attributes.end() && at->first < rule.name) ++at;
    if (at == node.attributes.end() || at->first != rule.name) {
      if (rule.required) add("attribute ", rule.name, " is required, expected ", rule.kind, ", found none");
    } else if (const std::string_view kind = kKinds[at->second.index()]; kind != rule.kind) {
      add("expected the attribute ", rule.name, " to be ", rule.kind, ", found ", kind);
    }
  }
}

// The context of a shape rule when nothing is known about the inputs: the rule ends when it asks about an
// input.
class AttributesOnly : public ShapeContext {
 public:
  struct Asked {};

  using ShapeContext::ShapeContext;
  DType dtype(size_t) const override { throw Asked(); }
  const Shape& shape(size_t) const override { throw Asked(); }
  const Tensor* constant(size_t) const override { throw Asked(); }
  std::vector<int64_t> stated_shape(size_t) const override { throw Asked(); }
  void output(size_t, DType, Shape shape) override { element_count(shape); }  // rejects impossible shapes
  void value(size_t, Tensor) override {}
};

// The fault that the operator's shape rule finds in the values of the attributes; empty if there is none.
std::string value_fault(const Operator& op, const Node& node, int64_t opset) {
  if (op.rules.shape == nullptr || node.attributes.empty()) return "";
  AttributesOnly context(node, opset);
  try {
    op.rules.shape(context);
  } catch (const AttributesOnly::Asked&) {
    return "";
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kNotImplemented) return "";  // another check reports unsupported operators
    const std::string& text = error.message();
    const std::string start = node.label() + ": ";
    return text.starts_with(start) ? text.substr(start.size()) : text;
  }
  return "";
}

// Finds the faults of the nodes of a model.
class Checker {
 public:
  explicit Checker(const Model& model) : model_(model) {}

  void check(const Graph& graph) {
    for (const Node& node : graph.nodes) {
      check(node);
      for (const auto& [name, attribute] : node.attributes)
        if (const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute); inner && *inner)
          check(**inner);
    }
  }

  void report() const {
    if (count_ == 0) return;
    fail(ErrorCode::kInvalidGraph, counted(count_, "node"), agreeing(count_, " does", " do"),
         " not have the form of the operator:", faults_,
         count_ > kNamed ? concat("\n  and ", count_ - kNamed, " more") : "");
  }

 private:
  static constexpr size_t kNamed = 1000;  // the most faults that one message lists

  // The forms of an operator: its form in the model's version, and after it the forms of newer versions,
  // which rules accept as well. Empty if the operator is unknown, or if the model's version is too old;
  // another check reports these problems.
  struct Known {
    std::vector<Signature> forms;
    const Operator* op = nullptr;
  };

  void check(const Node& node) {
    const Known& known = find(node);
    if (known.forms.empty()) return;
    std::string text = fault(known.forms.front(), node);
    if (!text.empty() && std::any_of(known.forms.begin() + 1, known.forms.end(),
                                     [&](const Signature& newer) { return fault(newer, node).empty(); }))
      text.clear();
    if (text.empty() && known.op && known.op->subgraph_fault)
      text = known.op->subgraph_fault(node, model_.opset(node.domain));
    if (text.empty() && known.op)
      text = value_fault(*known.op, node, std::max<int64_t>(model_.opset(node.domain), 1));
    if (!text.empty() && ++count_ <= kNamed) faults_ += concat("\n  ", node.label(), ": ", text);
  }

  static std::string fault(const Signature& form, const Node& node) {
    std::string text = input_fault(form.inputs, node.inputs);
    const std::string outputs = output_fault(form.outputs, node.outputs);
    if (!outputs.empty()) text += concat(text.empty() ? "" : "; ", outputs);
    if (form.needs_attributes || !node.attributes.empty()) add_attribute_faults(form.attributes, node, text);
    return text;
  }

  const Known& find(const Node& node) {
    const auto [at, fresh] = known_.try_emplace({node.op_type, node.domain});
    if (fresh) {
      at->second.op = find_operator(node.domain, node.op_type);
      const int64_t opset = model_.opset(node.domain);
      if (at->second.op && node.domain.empty() && opset < at->second.op->traits.since) return at->second;
      for (const std::string_view text : onnx_signatures(node.domain, node.op_type, opset))
        at->second.forms.push_back(parsed(text));
      if (at->second.forms.empty() && at->second.op && !at->second.op->signature.empty())
        at->second.forms.push_back(parsed(at->second.op->signature));
    }
    return at->second;
  }

  const Model& model_;
  std::map<std::pair<std::string_view, std::string_view>, Known> known_;  // by type and domain
  std::string faults_;
  size_t count_ = 0;
};

// The tables of ONNX's operators as offsets into one text, since each pointer would need a relocation. They
// list only the operators of the build.
struct Place {
  uint16_t at = 0, size = 0;
};
struct PackedRow {
  Place domain, type, text;
  int16_t since = 0;
};
struct PackedSize {
  size_t rows = 0, chars = 0;
};

constexpr int64_t since_of(const OnnxSignature& row) { return row.since; }
constexpr int64_t since_of(const OnnxOperatorVersion& row) { return row.version.since; }
constexpr std::string_view text_of(const OnnxSignature& row) { return row.text; }
constexpr std::string_view text_of(const OnnxOperatorVersion& row) { return row.version.types; }

// Counts the rows and characters of the operators of the build, and passes each with its place to put_row and
// put_char. A text that equals the text of the row before is not passed again.
template <typename Row, size_t N, class PutRow, class PutChar>
constexpr PackedSize pack(const Row (&table)[N], const PutRow& put_row, const PutChar& put_char) {
  PackedSize size;
  const auto place = [&](std::string_view text, std::string_view before, Place known) -> Place {
    if (size.rows > 0 && text == before) return known;
    const Place at = {static_cast<uint16_t>(size.chars), static_cast<uint16_t>(text.size())};
    for (const char c : text) put_char(size.chars++, c);
    return at;
  };
  const Row* before = &table[0];
  PackedRow last;
  for (const Row& row : table) {
    if (!is_built(row.domain, row.type)) continue;
    last = {place(row.domain, before->domain, last.domain), place(row.type, before->type, last.type),
            place(text_of(row), text_of(*before), last.text), static_cast<int16_t>(since_of(row))};
    put_row(size.rows++, last);
    before = &row;
  }
  return size;
}

template <const auto& kTable>
class PackedTable {
  static constexpr PackedSize kSize = pack(
      kTable, [](size_t, const PackedRow&) {}, [](size_t, char) {});
  static_assert(kSize.chars <= 0xffff);

 public:
  constexpr PackedTable() {
    pack(
        kTable, [this](size_t i, const PackedRow& row) { rows_[i] = row; },
        [this](size_t i, char c) { chars_[i] = c; });
  }
  std::string_view at(Place place) const { return {chars_ + place.at, place.size}; }
  // The rows of an operator, in the order of their versions.
  std::span<const PackedRow> rows_of(std::string_view domain, std::string_view type) const {
    const auto key = [&](const PackedRow& row) { return std::tuple(at(row.domain), at(row.type)); };
    const PackedRow* end = rows_ + kSize.rows;
    const PackedRow* first = std::lower_bound(rows_, end, std::tuple(domain, type),
                                              [&](const auto& row, const auto& of) { return key(row) < of; });
    const PackedRow* last = first;
    while (last != end && key(*last) == std::tuple(domain, type)) ++last;
    return {first, last};
  }

 private:
  PackedRow rows_[kSize.rows + 1];  // one more, since the build may have no operators
  char chars_[kSize.chars + 1] = {};
};

constexpr PackedTable<kOnnxSignatures> kSignatures;
constexpr PackedTable<kOnnxVersions> kVersions;

}  // namespace

std::vector<std::string_view> onnx_signatures(std::string_view domain, std::string_view type, int64_t opset) {
  std::span<const PackedRow> rows = kSignatures.rows_of(domain, type);
  while (rows.size() > 1 && rows[1].since <= opset) rows = rows.subspan(1);
  std::vector<std::string_view> found;
  for (const PackedRow& row : rows) found.push_back(kSignatures.at(row.text));
  return found;
}

std::optional<OnnxVersion> onnx_version(std::string_view domain, std::string_view type, int64_t opset) {
  std::optional<OnnxVersion> found;
  for (const PackedRow& row : kVersions.rows_of(domain, type))
    if (row.since <= opset) found = OnnxVersion{row.since, kVersions.at(row.text)};
  return found;
}

std::vector<OnnxTypeParameter> type_parameters(std::string_view text) {
  std::vector<OnnxTypeParameter> out;
  for_each_item(text, [&](std::string_view item) {
    OnnxTypeParameter& parameter = out.emplace_back();
    parameter.name = item.substr(0, item.find(' '));
    item.remove_prefix(parameter.name.size());
    while (!(item = trimmed(item)).empty()) {
      const std::string_view place = item.substr(0, item.find(' '));
      uint32_t index = 0;
      std::from_chars(place.data() + 1, place.data() + place.size(), index);
      parameter.places.emplace_back(place.front() == 'o', index);
      item.remove_prefix(place.size());
    }
  });
  return out;
}

std::vector<int32_t> inputs_by_parameter(const Node& node, int64_t opset) {
  std::vector<std::string_view> texts = onnx_signatures(node.domain, node.op_type, opset);
  const Operator* op = find_operator(node.domain, node.op_type);
  if (texts.empty() && op != nullptr) texts.push_back(op->signature);
  const size_t known = texts.empty() ? 0 : parsed(texts.front()).inputs.size();
  std::vector<int32_t> counts(known == 0 ? node.inputs.size() : std::min(known, node.inputs.size()), 1);
  if (!counts.empty()) counts.back() += static_cast<int32_t>(node.inputs.size() - counts.size());
  return counts;
}

void check_signatures(const Model& model) {
  Checker checker(model);
  checker.check(model.graph);
  checker.report();
}

Model load_model(const std::filesystem::path& path, ReadOptions options) {
  options.check = check_signatures;
  return read_model(path, options);
}

Model load_model(const void* data, size_t bytes, const std::string& origin, ReadOptions options) {
  options.check = check_signatures;
  return read_model(data, bytes, origin, options.directory, options);
}

}  // namespace ortrain
