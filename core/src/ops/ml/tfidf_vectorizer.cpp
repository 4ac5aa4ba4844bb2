// TfIdfVectorizer: how often each n-gram of a pool occurs in a sequence of integers or
// strings, or in each row of a matrix. The items of an n-gram may be up to max_skip_count + 1 apart, all at
// the same distance; single items are counted once.
//
//     TF: counts; IDF: the weight if the count is not zero; TFIDF: weight times count
//
// Compiled for size: the time is that of looking up n-grams (CMakeLists.txt).
#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>

#include "ops/ml/ml.h"
#include "runtime/checked.h"
#include "runtime/text_tensor.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

enum class Mode { kTf, kIdf, kTfIdf };

struct Vectorizer {
  Mode mode;
  int64_t shortest, longest, skips, width = 0;
  std::map<std::vector<int64_t>, int64_t> places;    // n-gram → its index
  std::vector<int64_t> outputs;                      // index → position in the result
  std::vector<float> weights;                        // by index; empty: ones
  std::unordered_map<std::string, int64_t> numbers;  // of the strings in the pool

  explicit Vectorizer(const NodeContext& c)
      : shortest(c.node().int_or("min_gram_length", 0)),
        longest(c.node().int_or("max_gram_length", 0)),
        skips(c.node().int_or("max_skip_count", 0)),
        outputs(c.node().ints_or("ngram_indexes", {})),
        weights(floats_of(c, "weights")) {
    const std::string name = c.node().string_or("mode", "");
    c.expect(name == "TF" || name == "IDF" || name == "TFIDF",
             "attribute mode must be TF, IDF or TFIDF, found '", name, "'");
    mode = name == "TF" ? Mode::kTf : name == "IDF" ? Mode::kIdf : Mode::kTfIdf;
    std::vector<int64_t> pool = c.node().ints_or("pool_int64s", {});
    const std::vector<std::string> strings = strings_of(c.node(), "pool_strings");
    c.expect(strings.empty() || pool.empty(), "it has both pool_int64s and pool_strings");
    for (const std::string& one : strings)
      pool.push_back(numbers.emplace(one, static_cast<int64_t>(numbers.size())).first->second);
    std::vector<int64_t> starts = c.node().ints_or("ngram_counts", {});
    const int64_t total = static_cast<int64_t>(pool.size());
    c.expect(shortest >= 1 && longest >= shortest && skips >= 0,
             "expected 1 <= min_gram_length <= max_gram_length and max_skip_count >= 0, found ", shortest,
             ", ", longest, " and ", skips);
    c.expect(!starts.empty() && static_cast<int64_t>(starts.size()) >= longest, "ngram_counts ",
             to_string(starts), " must have an entry for every length up to ", longest);
    starts.push_back(total);
    int64_t number = 0;
    for (size_t k = 0; k + 1 < starts.size(); ++k) {
      const int64_t length = static_cast<int64_t>(k) + 1, begin = starts[k], end = starts[k + 1];
      c.expect(begin >= 0 && begin <= end && end <= total && (end - begin) % length == 0, "ngram_counts ",
               to_string(starts), " does not divide the pool of ", total, " into n-grams");
      for (int64_t at = begin; at < end; at += length, ++number)
        if (length >= shortest && length <= longest)
          places.emplace(std::vector<int64_t>(pool.begin() + at, pool.begin() + at + length), number);
    }
    c.expect(static_cast<int64_t>(outputs.size()) == number, "it has ", counted(number, "n-gram"), " and ",
             outputs.size(), " ngram_indexes, expected one index for each n-gram");
    c.expect(weights.empty() || weights.size() == outputs.size(), "it has ",
             counted(outputs.size(), "n-gram"), " and ", counted(weights.size(), "weight"),
             ", expected one weight for each n-gram");
    for (const int64_t place : outputs) {
      c.expect(place >= 0 && place <= INT32_MAX, "ngram_indexes must be in [0, ", INT32_MAX, "], found ",
               place);
      width = std::max(width, place + 1);
    }
  }

  // How many distances between the items of an n-gram are tried in a sequence of n items: at most n - 1, the
  // largest distance between two items, but at least one, for single items.
  int64_t distances(int64_t n) const { return std::min(std::min(skips, n) + 1, std::max<int64_t>(n - 1, 1)); }

  template <typename T>
  int64_t number_of(T x) const {
    if constexpr (std::is_same_v<T, Text>) {
      const auto found = numbers.find(text(x));
      return found == numbers.end() ? -1 : found->second;
    } else {
      return static_cast<int64_t>(x);
    }
  }

  // Counts of one sequence; `gram` is memory for the longest n-gram.
  template <typename T>
  void count(const T* x, int64_t n, std::vector<int64_t>& gram, float* to) const {
    std::fill(to, to + width, 0.0f);
    for (int64_t distance = 1; distance <= distances(n); ++distance)
      for (int64_t start = 0; start < n; ++start) {
        gram.clear();
        for (int64_t at = start; at < n && static_cast<int64_t>(gram.size()) < longest; at += distance) {
          gram.push_back(number_of(x[at]));
          const int64_t length = static_cast<int64_t>(gram.size());
          if (length < shortest || (length == 1 && distance > 1)) continue;
          const auto found = places.find(gram);
          if (found == places.end()) continue;
          const size_t number = static_cast<size_t>(found->second);
          float& y = to[outputs[number]];
          const float weight = mode == Mode::kTf || weights.empty() ? 1 : weights[number];
          y = mode == Mode::kIdf ? weight : y + weight;
        }
      }
  }
};

void shape(ShapeContext& c) {
  const Vectorizer v(c);
  const bool takes_strings = !strings_of(c.node(), "pool_strings").empty();
  if (takes_strings ? c.dtype(0) != DType::kString
                    : c.dtype(0) != DType::kInt32 && c.dtype(0) != DType::kInt64)
    c.reject_dtype(0);
  c.expect(c.rank(0) <= 2, "its input must have shape [C] or [N, C], found ", to_string(c.shape(0)));
  c.output(0, DType::kFloat, c.rank(0) == 2 ? Shape{c.shape(0)[0], v.width} : Shape{v.width});
}

Kernel kernel(KernelContext& c) {
  const auto v = std::make_shared<const Vectorizer>(c);
  const int64_t rows = c.rank(0) == 2 ? c.shape(0)[0] : 1, n = rows > 0 ? c.size(0) / rows : 0;
  const auto grams = std::make_shared<std::vector<std::vector<int64_t>>>(static_cast<size_t>(rows));
  for (std::vector<int64_t>& gram : *grams) gram.reserve(static_cast<size_t>(std::min(v->longest, n)));
  const Slot x = c.in(0), y = c.out(0);
  Kernel kernel;
  const auto make = [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      parallel_for(rows, capped_product({n, v->longest, v->distances(n), 16}),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row)
                       v->count(f.at<T>(x) + row * n, n, (*grams)[static_cast<size_t>(row)],
                                f.at<float>(y) + row * v->width);
                   });
    };
  };
  if (c.dtype(0) == DType::kString)
    make(Text());
  else
    visit_types<int32_t, int64_t>(c.dtype(0), make);
  return kernel;
}

ORTRAIN_OPERATOR({.type = "TfIdfVectorizer",
                  .rules = {.shape = shape, .element_type = always<DType::kFloat>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
