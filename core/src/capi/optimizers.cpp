// The list of optimizers.
#include <cmath>
#include <string>

#include "backend/cpu/optimizer/rule.h"
#include "capi/generated/bodies.h"
#include "capi/handles.h"

namespace ortrain::capi {

namespace {

// Texts of declarations have no characters that JSON escapes, except quotation marks.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string number(float value) { return std::isfinite(value) ? concat(value) : "null"; }

template <typename Items, typename F>
std::string list(const Items& items, F&& text_of) {
  std::string out = "[";
  for (const auto& item : items) out += (out.size() == 1 ? "" : ", ") + text_of(item);
  return out + "]";
}

std::string described(const OptimizerRule& rule) {
  const auto setting = [](const OptimizerSetting& s) {
    return concat("{\"name\": ", quoted(s.name), ", \"default\": ", number(s.value),
                  ", \"at_least\": ", number(s.least), ", \"less_than\": ", number(s.below),
                  ", \"flag\": ", s.is_flag ? "true" : "false", ", \"meaning\": ", quoted(s.meaning), "}");
  };
  const auto state = [](const StateDeclaration& s) {
    return concat("{\"name\": ", quoted(s.name), ", \"meaning\": ", quoted(s.meaning),
                  ", \"when\": ", s.when == nullptr ? "null" : quoted(s.when), "}");
  };
  return concat("{\"name\": ", quoted(rule.name), ", \"title\": ", quoted(rule.title),
                ", \"node\": ", quoted(rule.node), ", \"formula\": ", quoted(rule.formula),
                ", \"source\": ", quoted(rule.source), ", \"settings\": ", list(rule.settings, setting),
                ", \"states\": ", list(rule.states, state), "}");
}

}  // namespace

void ListOptimizers(OrtAllocator* allocator, char** out) {
  *out = copy_text(allocator,
                   list(all_optimizers(), [](const OptimizerRule* rule) { return described(*rule); }));
}

}  // namespace ortrain::capi
