// Tokenizer of com.microsoft: the parts of each text that match a regular expression, or the parts between
// separators, or the characters; rows are padded to the length of the longest.
#include <algorithm>
#include <memory>
#include <regex>

#include "op/dynamic.h"
#include "runtime/text_tensor.h"

namespace ortrain {
namespace {

// The standard library's matcher needs stack memory for each character.
constexpr size_t kLongest = 4096;

// Characters of UTF-8 are counted by their first bytes.
bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }
int64_t characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(), begins_character);
}

std::regex expression(const NodeContext& c, const std::string& text) {
  try {
    return std::regex(text, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    c.reject("\"", text, "\" is not a valid regular expression: ", error.what());
  }
}

struct Splitting {
  std::vector<std::regex> separators;
  std::unique_ptr<std::regex> token;
  bool by_character = false;
  int64_t shortest = 1;

  explicit Splitting(const NodeContext& c) : shortest(c.node().int_or("mincharnum", 1)) {
    c.expect(shortest >= 1, "attribute mincharnum is ", shortest, ", expected 1 or more");
    if (const std::string token_text = c.node().string_or("tokenexp", ""); !token_text.empty())
      token = std::make_unique<std::regex>(expression(c, token_text));
    const auto at = c.node().attributes.find("separators");
    const auto* list =
        at == c.node().attributes.end() ? nullptr : std::get_if<std::vector<std::string>>(&at->second);
    by_character = list && list->size() == 1 && (*list)[0].empty();
    if (list && !by_character)
      for (const std::string& one : *list) separators.push_back(expression(c, one));
    c.expect(token || list, "it has neither tokenexp nor separators");
  }

  void keep(std::string part, std::vector<std::string>& tokens) const {
    if (!part.empty() && characters(part) >= shortest) tokens.push_back(std::move(part));
  }

  std::vector<std::string> split(const std::string& text) const {
    std::vector<std::string> tokens;
    if (token) {
      for (auto match = std::sregex_iterator(text.begin(), text.end(), *token);
           match != std::sregex_iterator(); ++match)
        keep(match->str(), tokens);
    } else if (by_character) {
      for (size_t i = 0; i < text.size();) {
        size_t end = i + 1;
        while (end < text.size() && !begins_character(text[end])) ++end;
        keep(text.substr(i, end - i), tokens);
        i = end;
      }
    } else {
      std::vector<std::string> parts = {text};
      for (const std::regex& separator : separators) {
        std::vector<std::string> finer;
        for (const std::string& part : parts)
          for (auto piece = std::sregex_token_iterator(part.begin(), part.end(), separator, -1);
               piece != std::sregex_token_iterator(); ++piece)
            finer.push_back(piece->str());
        parts = std::move(finer);
      }
      for (std::string& part : parts) keep(std::move(part), tokens);
    }
    return tokens;
  }
};

void types(TypeContext& c) {
  auto dims = c.input(0).dims;
  if (dims) dims->push_back(Dim{});
  c.output(0, DType::kString, dims);
}

void run(DynamicContext& c) {
  const Tensor& x = c.in(0);
  if (x.dtype() != DType::kString) c.reject_dtype(0);
  c.expect(c.rank(0) == 1 || c.rank(0) == 2, "its input must have shape [C] or [N, C], found ",
           to_string(x.shape()));
  const Splitting splitting(c);
  const bool marks = c.node().int_or("mark", 0) != 0;
  std::vector<std::vector<std::string>> all;
  size_t width = 0;
  for (int64_t i = 0; i < x.size(); ++i) {
    const std::string& one = text(text_places(x)[i]);
    require(one.size() <= kLongest, ErrorCode::kNotImplemented, c.node().label(), ": element ", i, " has ",
            counted(one.size(), "byte"), ", expected at most ", kLongest);
    all.push_back(splitting.split(one));
    if (marks) {
      all.back().insert(all.back().begin(), "\x02");
      all.back().emplace_back("\x03");
    }
    width = std::max(width, all.back().size());
  }
  Shape shape = x.shape();
  shape.push_back(static_cast<int64_t>(width));
  Text* y = text_places(c.out(0, DType::kString, shape));
  const Text padding = keep_text(c.node().string_or("pad_value", ""));
  for (std::vector<std::string>& tokens : all) {
    for (size_t k = 0; k < width; ++k) *y++ = k < tokens.size() ? keep_text(std::move(tokens[k])) : padding;
  }
}

ORTRAIN_OPERATOR(
    {.domain = kMicrosoft,
     .type = "Tokenizer",
     .signature = "X -> Y | mark: int, mincharnum: int, pad_value: string, separators: strings?, "
                  "tokenexp: string?, stopwords: strings?",
     .rules = {.types = types, .element_type = always<DType::kString>},
     .traits = {.stops_gradient = true},
     .kernels = {.run = run}});

}  // namespace
}  // namespace ortrain
