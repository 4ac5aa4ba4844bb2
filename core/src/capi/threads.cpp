// Threads of sessions: how many, on which processors, and functions of the program that make them.
#include <algorithm>
#include <charconv>
#include <optional>

#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "runtime/thread_pool.h"

namespace ortrain::capi {
namespace {

constexpr const char* kAffinities = "session.intra_op_thread_affinities";
constexpr size_t kLongestAffinity = 4096;
constexpr int kMostProcessors = 4096;  // in a range

// The parts of a text between separators; a separator at the end is ignored.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

int processor_from(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  require(error == std::errc() && end == text.data() + text.size() && number > 0, ErrorCode::kFail,
          kAffinities, ": expected the number of a processor, 1 or more, found \"", text, "\"");
  return number - 1;
}

std::vector<int> processors_from(std::string_view group) {
  std::vector<int> processors;
  if (group.find('-') == group.npos) {
    for (const std::string_view one : split(group, ',')) processors.push_back(processor_from(one));
    return processors;
  }
  const std::vector<std::string_view> ends = split(group, '-');
  require(ends.size() == 2, ErrorCode::kFail, kAffinities, ": expected a range such as 3-4, found \"", group,
          "\"");
  const int first = processor_from(ends[0]), last = processor_from(ends[1]);
  require(first <= last && last - first < kMostProcessors, ErrorCode::kFail, kAffinities,
          ": expected an ascending range of at most ", kMostProcessors, " processors, found \"", group, "\"");
  for (int i = first; i <= last; ++i) processors.push_back(i);
  return processors;
}

// The processors of each thread except the caller's, such as 1,2;3-4. The text counts them from 1.
std::vector<std::vector<int>> affinities_from(std::string_view text, int threads) {
  require(!text.empty(), ErrorCode::kFail, kAffinities, " is empty, expected processors such as 1,2;3-4");
  std::vector<std::vector<int>> processors;
  if (threads == 1) return processors;
  for (const std::string_view group : split(text, ';')) processors.push_back(processors_from(group));
  require(processors.size() + 1 == static_cast<size_t>(threads), ErrorCode::kFail, kAffinities, ": found ",
          counted(processors.size(), "group"), " of processors, expected ", threads - 1, ", one for each of ",
          counted(threads, "thread"), " except the caller's");
  return processors;
}

}  // namespace

void check_threads(int count) {
  require(count >= 0, ErrorCode::kInvalidArgument, "expected a number of threads, 0 for the default, found ",
          count);
}

int thread_count(int wanted) {
  return std::min(wanted > 0 ? wanted : regions::wanted_threads(), regions::most_threads());
}

std::shared_ptr<GivenThreads> make_threads(const OrtThreadFunctions& given,
                                           const std::optional<std::string>& affinities, int threads) {
  std::vector<std::vector<int>> processors;
  if (affinities) processors = affinities_from(*affinities, threads);
  if (given.create != nullptr) {
    require(given.join != nullptr, ErrorCode::kFail,
            "the options have a function that creates threads, but none that joins them; expected a call of "
            "SessionOptionsSetCustomJoinThreadFn or SetGlobalCustomJoinThreadFn");
    ThreadFunctions functions;
    functions.create = [create = given.create, options = given.options](void (*work)(void*),
                                                                        void* parameter) {
      return static_cast<const void*>(create(options, work, parameter));
    };
    functions.join = [join = given.join](const void* handle) {
      join(static_cast<OrtCustomThreadHandle>(handle));
    };
    return std::make_shared<GivenThreads>(std::move(functions), threads);
  }
  if (processors.empty()) return nullptr;
  return std::make_shared<GivenThreads>(bound_threads(std::move(processors)), threads);
}

std::shared_ptr<GivenThreads> threads_of(const OrtSessionOptions& options, const SessionOptions& settings) {
  std::optional<std::string> affinities;
  if (const auto text = settings.config.find(kAffinities); text != settings.config.end())
    affinities = text->second;
  return make_threads(options.threads, affinities, thread_count(settings.intra_op_threads));
}

std::shared_ptr<GivenThreads> threads_of(const OrtThreadingOptions& options) {
  const std::optional<std::string> affinities =
      options.affinities.empty() ? std::nullopt : std::optional(options.affinities);
  return make_threads(options.functions, affinities, thread_count(options.intra_op_threads));
}

void SessionOptionsSetCustomCreateThreadFn(OrtSessionOptions* options,
                                           OrtCustomCreateThreadFn ort_custom_create_thread_fn) {
  options->threads.create = ort_custom_create_thread_fn;
}
void SessionOptionsSetCustomThreadCreationOptions(OrtSessionOptions* options,
                                                  void* ort_custom_thread_creation_options) {
  options->threads.options = ort_custom_thread_creation_options;
}
void SessionOptionsSetCustomJoinThreadFn(OrtSessionOptions* options,
                                         OrtCustomJoinThreadFn ort_custom_join_thread_fn) {
  options->threads.join = ort_custom_join_thread_fn;
}

void SetGlobalCustomCreateThreadFn(OrtThreadingOptions* tp_options,
                                   OrtCustomCreateThreadFn ort_custom_create_thread_fn) {
  tp_options->functions.create = ort_custom_create_thread_fn;
}
void SetGlobalCustomThreadCreationOptions(OrtThreadingOptions* tp_options,
                                          void* ort_custom_thread_creation_options) {
  tp_options->functions.options = ort_custom_thread_creation_options;
}
void SetGlobalCustomJoinThreadFn(OrtThreadingOptions* tp_options,
                                 OrtCustomJoinThreadFn ort_custom_join_thread_fn) {
  tp_options->functions.join = ort_custom_join_thread_fn;
}
void SetGlobalIntraOpThreadAffinity(OrtThreadingOptions* tp_options, const char* affinity_string) {
  const size_t length = std::char_traits<char>::length(affinity_string);
  require(length >= 1 && length <= kLongestAffinity, ErrorCode::kInvalidArgument,
          "Size of affinity string must be between 1 and ", kLongestAffinity, ", found ", length);
  tp_options->affinities = affinity_string;
}

}  // namespace ortrain::capi
