#include "metrics/metric.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <sstream>

#include "runtime/error.h"
#include "runtime/text.h"

namespace ortrain {

namespace {

// A state holds numbers in the byte order of the machine, which is the same for all supported processors.
static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "ORTMETR1";

[[noreturn]] void no_metric(const std::string& name) {
  std::vector<std::string> known;
  for (const MetricRule* each : all_metrics()) known.push_back(each->name);
  fail(ErrorCode::kInvalidArgument, "there is no metric \"", name, "\"; known are ",
       quoted_list(known, known.size()), ", and top<k> such as \"top5\"", suggestion(name, known));
}

// The text of k in the name top<k>; empty if the name does not have that form.
std::string k_of(const std::string& name) {
  const bool fits = name.size() > 3 && name.starts_with("top") &&
                    std::all_of(name.begin() + 3, name.end(), [](char c) { return c >= '0' && c <= '9'; });
  return fits ? name.substr(3) : "";
}

std::string expected(const MetricOption& option) {
  if (!option.choices.empty()) return concat("one of ", quoted_list(option.choices, option.choices.size()));
  std::string text = "a whole number";
  if (std::isfinite(option.least)) text += concat(" of at least ", option.least);
  if (std::isfinite(option.most)) text += concat(" and at most ", option.most);
  return text;
}

double value_in(const std::string& metric, const MetricOption& option, const std::string& text) {
  if (!option.choices.empty()) {
    const auto found = std::find(option.choices.begin(), option.choices.end(), text);
    if (found != option.choices.end()) return static_cast<double>(found - option.choices.begin());
  } else {
    int64_t value = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    const auto number = static_cast<double>(value);
    if (problem == std::errc() && end == text.data() + text.size() && number >= option.least &&
        number <= option.most)
      return number;
  }
  fail(ErrorCode::kInvalidArgument, "metric ", metric, ": ", option.name, " should be ", expected(option),
       ", found \"", text, "\"");
}

// Reads values from bytes, and notices where they end.
struct Reader {
  const char* at;
  size_t left;

  bool read(void* to, size_t size) {
    if (size > left) return false;
    if (size > 0) std::memcpy(to, at, size);
    at += size, left -= size;
    return true;
  }
  bool read(std::string& text) {
    uint64_t size = 0;
    if (!read(&size, sizeof size) || size > left) return false;
    text.assign(at, static_cast<size_t>(size));
    at += size, left -= static_cast<size_t>(size);
    return true;
  }
  bool read(std::vector<double>& numbers) {
    uint64_t count = 0;
    if (!read(&count, sizeof count) || count > left / sizeof(double)) return false;
    numbers.resize(static_cast<size_t>(count));
    return read(numbers.data(), numbers.size() * sizeof(double));
  }
};

template <typename T>
void append(std::string& bytes, const T* values, size_t count) {
  bytes.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}
void append_size(std::string& bytes, size_t size) {
  const uint64_t wide = size;
  append(bytes, &wide, 1);
}

}  // namespace

Metric::Metric(const std::string& name, const std::string& options) : rule_(find_metric(name)) {
  const std::string k = k_of(name);
  if (rule_ == nullptr && !k.empty()) rule_ = find_metric("top_k");
  if (rule_ == nullptr) no_metric(name);
  for (const MetricOption& option : rule_->options) options_[option.name] = option.value;
  std::string text = k.empty() ? options : concat("k=", k, " ", options);
  std::replace(text.begin(), text.end(), ',', ' ');
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    require(equals != std::string::npos, ErrorCode::kInvalidArgument, "metric ", name,
            ": expected options such as ignore_index=-100, separated by commas or spaces, found \"", word,
            "\"");
    const std::string key = word.substr(0, equals);
    const auto found = std::find_if(rule_->options.begin(), rule_->options.end(),
                                    [&](const MetricOption& option) { return key == option.name; });
    if (found == rule_->options.end()) {
      std::vector<std::string> names;
      for (const MetricOption& option : rule_->options) names.emplace_back(option.name);
      fail(ErrorCode::kInvalidArgument, "metric ", name, ": there is no option \"", key, "\"; ",
           names.empty() ? std::string("it has none")
                         : concat("expected one of ", quoted_list(names, names.size())));
    }
    options_[key] = value_in(name, *found, word.substr(equals + 1));
  }
  reset();
}

void Metric::reset() { counts_ = rule_->make(options_); }

void Metric::update(const Tensor* prediction, const Tensor& target, const Tensor* loss) {
  require(prediction != nullptr || !rule_->reads_prediction, ErrorCode::kInvalidArgument, "metric ",
          rule_->name, ": expected a prediction, found none");
  require(loss == nullptr || loss->size() == 1, ErrorCode::kInvalidArgument, "metric ", rule_->name,
          ": expected one number as the loss of the batch, found ", loss == nullptr ? 0 : loss->size());
  counts_->update({rule_->name, prediction, target, loss});
}

void Metric::merge(const Metric& other) {
  require(described() == other.described(), ErrorCode::kInvalidArgument, "metric ", rule_->name,
          ": only a metric with the same name and options can be added. This one is \"", described(),
          "\", the other is \"", other.described(), "\"");
  counts_->merge(*other.counts_);
}

std::string Metric::described() const {
  std::string text = rule_->name;
  for (const MetricOption& option : rule_->options) {
    const double value = options_.find(option.name)->second;
    const auto place = static_cast<size_t>(option.choices.empty() ? 0 : value);
    text += concat(" ", option.name, "=");
    text += option.choices.empty() ? std::to_string(static_cast<int64_t>(value)) : option.choices[place];
  }
  return text;
}

std::string Metric::state() {
  const MetricNumbers numbers = counts_->numbers();
  std::string bytes(kMagic);
  const std::string name = described();
  append_size(bytes, name.size());
  bytes += name;
  append_size(bytes, numbers.size());
  for (const std::vector<double>& each : numbers) {
    append_size(bytes, each.size());
    append(bytes, each.data(), each.size());
  }
  return bytes;
}

void Metric::load_state(const void* data, size_t size) {
  Reader in{static_cast<const char*>(data), size};
  std::string magic(kMagic.size(), ' '), name;
  require(in.read(magic.data(), magic.size()) && magic == kMagic && in.read(name),
          ErrorCode::kInvalidArgument, "metric ", rule_->name, ": expected the state of a metric, found ",
          counted(size, "other byte"));
  require(name == described(), ErrorCode::kInvalidArgument, "metric ", rule_->name,
          ": the state belongs to \"", name, "\", expected \"", described(), "\"");
  uint64_t arrays = 0;
  MetricNumbers numbers;
  bool whole = in.read(&arrays, sizeof arrays);
  for (uint64_t i = 0; whole && i < arrays; ++i) {
    numbers.emplace_back();
    whole = in.read(numbers.back());
  }
  std::unique_ptr<MetricCounts> counts = rule_->make(options_);
  require(whole && in.left == 0 && counts->load(numbers), ErrorCode::kInvalidArgument, "metric ", rule_->name,
          ": the state is truncated or damaged");
  counts_ = std::move(counts);
}

}  // namespace ortrain
