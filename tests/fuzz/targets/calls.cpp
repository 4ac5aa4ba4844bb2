// Sequences of calls through the tables of the C interface. The first byte of an input chooses what exists at
// the start; then each call is three bytes, its table and slot, and as many bytes as its arguments take.
//
// Arguments keep the contract of the interface: handles are alive or null, lengths are true, and memory of
// that length is there, no byte more. What the spec says of handles is kept too: those that a successful call
// takes over are not used again, and those that others need are released after them. All else is arbitrary:
// order, numbers, names, null where a pointer is expected.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "../support.h"
#include "onnxruntime_c_api.h"
#include "onnxruntime_training_c_api.h"
#include "ortrain_c_api.h"

using namespace ortrain::fuzz;
namespace fs = std::filesystem;

namespace {

const OrtApi& ort() { return *OrtGetApiBase()->GetApi(ORT_API_VERSION); }
const OrtTrainingApi& training() { return *ort().GetTrainingApi(ORT_API_VERSION); }
const OrtrainApi& extension() { return *OrtrainGetApi(ORTRAIN_API_VERSION); }
const OrtCompileApi& compiling() { return *ort().GetCompileApi(); }
const OrtModelEditorApi& editor() { return *ort().GetModelEditorApi(); }

template <typename... T>
struct Kinds {};
#include "handles.inc"
template <typename T>
concept Owned = requires(T* handle) {
  destroy(handle);
};

constexpr size_t kMostCalls = 40;
constexpr size_t kMostTexts = 32;
constexpr const char* kFiles[] = {"training_model.onnx", "eval_model.onnx", "optimizer_model.onnx",
                                  "checkpoint", "model.onnx"};

// A recorded run in a separate folder, put back when a call has written there.
class Files {
 public:
  Files() : folder_(scratch() / "run") {
    for (const char* name : kFiles) {
      std::ifstream file(fs::path(TEST_DATA) / "fixtures" / "regressor_mse" / name, std::ios::binary);
      contents_.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      if (contents_.back().empty()) wrong(std::string("cannot read ") + name);
    }
    restore();
  }
  void restore() {
    std::error_code ignored;
    if (fs::exists(folder_, ignored) && fs::last_write_time(folder_, ignored) == written_) return;
    fs::remove_all(folder_, ignored);
    fs::create_directory(folder_);
    for (size_t i = 0; i < std::size(kFiles); ++i)
      std::ofstream(folder_ / kFiles[i], std::ios::binary) << contents_[i];
    written_ = fs::last_write_time(folder_);
  }
  const fs::path& folder() const { return folder_; }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  const std::string& content(size_t i) const { return contents_[i]; }

 private:
  fs::path folder_;
  std::vector<std::string> contents_;
  fs::file_time_type written_{};
};

Files& files() {
  static Files all;
  return all;
}

// Works in a folder and comes back: some calls write to files that have no folder in their names.
class InFolder {
 public:
  explicit InFolder(const fs::path& folder) : from_(fs::current_path()) { fs::current_path(folder); }
  InFolder(const InFolder&) = delete;
  InFolder& operator=(const InFolder&) = delete;
  ~InFolder() {
    std::error_code ignored;
    fs::current_path(from_, ignored);
  }

 private:
  fs::path from_;
};

// What a parameter is (calls.py).
struct Role {
  // kDeleter: the allocator that frees given memory
  enum Kind { kValue, kPath, kArray, kBytes, kLength, kResult, kRoom, kRoomLength, kDeleter } kind;
  int other;                                          // of arrays and bytes: the parameter with their length
  enum Owner { kCallee, kCaller, kAllocator } owner;  // of a result: who frees it
  // Of a handle that is given, once the call has succeeded: kTaken: it belongs to the callee. kOutlives:
  // another handle needs it.
  enum Later { kUnaffected, kTaken, kOutlives } later;
};

// The handles of one kind that are alive.
template <typename T>
struct Handles {
  static inline std::vector<T*> all;
};

// Arrays that a call returns by a pointer of three levels belong to calls that are left out.
template <typename T>
inline constexpr bool kThreeLevels = false;
template <typename T>
inline constexpr bool kThreeLevels<T***> = true;

// A value of an enumeration; they hold any int.
template <typename T>
T enumerator(uint8_t byte) {
  static constexpr int kRare[] = {-1, INT32_MAX, INT32_MIN, 1000};
  return static_cast<T>(byte < 248 ? byte % 64 : kRare[byte % std::size(kRare)]);
}

// Frees nothing: the machine frees its memory itself.
OrtAllocator* deleter() {
  static OrtAllocator allocator = [] {
    OrtAllocator made{};
    made.version = ORT_API_VERSION;
    made.Free = [](OrtAllocator*, void*) {};
    return made;
  }();
  return &allocator;
}

void ORT_API_CALL ignore_log(void*, OrtLoggingLevel, const char*, const char*, const char*, const char*) {}

// The end of a run in the background, for which the machine waits: the arguments must live so long.
void ORT_API_CALL run_ended(void* promise, OrtValue**, size_t, OrtStatus* status) {
  ort().ReleaseStatus(status);
  static_cast<std::promise<void>*>(promise)->set_value();
}

class Machine {
 public:
  Machine(const uint8_t* data, size_t size) : data_(data), end_(data + size) {
    for (const char* name : kFiles) paths_.push_back(files().path(name));
    paths_.push_back(files().path("missing"));
    paths_.push_back(files().path("out"));
    paths_.push_back("");
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  ~Machine() {
    drop_all(OwnedKinds());
    // What others needed, the latest first: it may itself need those before.
    while (!needed_.empty()) {
      const Needed last = needed_.back();
      needed_.pop_back();
      if (!is_needed(last.handle)) last.destroy(last.handle);
    }
  }

  bool done() const { return data_ == end_; }
  uint8_t next() { return done() ? 0 : *data_++; }

  template <typename R, typename... A>
  void call(R (*function)(A...), std::array<Role, sizeof...(A)> roles) {
    if constexpr (!(kThreeLevels<A> || ...)) run(function, roles, std::index_sequence_for<A...>{});
  }
  template <typename H>
  void release(void (*function)(H*), std::array<Role, 1>) {
    H* handle = pick<H>();
    if (is_needed(handle)) return;
    std::erase(Handles<H>::all, handle);
    function(handle);
  }

  // An environment, options and sessions over the recorded run, with inputs that fit.
  void prepare(uint8_t what) {
    if (what % 4 == 0) return;
    OrtEnv* env = nullptr;
    OrtSessionOptions* options = nullptr;
    OrtMemoryInfo* memory = nullptr;
    succeed(ort().CreateEnv(ORT_LOGGING_LEVEL_FATAL, "fuzz", &env));
    succeed(ort().CreateSessionOptions(&options));
    succeed(ort().SetIntraOpNumThreads(options, 1));
    succeed(ort().CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    keep(env), keep(options), keep(memory);
    for (const int64_t width : {6, 1}) {
      const int64_t shape[] = {2, width};
      const size_t bytes = static_cast<size_t>(2 * width) * sizeof(float);
      OrtValue* value = nullptr;
      succeed(ort().CreateTensorWithDataAsOrtValue(memory, block(bytes), bytes, shape, 2,
                                                   ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
      keep(value);
    }
    if (what % 2 == 1) {
      OrtCheckpointState* state = nullptr;
      OrtTrainingSession* session = nullptr;
      succeed(training().LoadCheckpoint(files().path("checkpoint").c_str(), &state));
      keep(state);
      succeed(training().CreateTrainingSession(
          env, options, state, files().path("training_model.onnx").c_str(),
          files().path("eval_model.onnx").c_str(), files().path("optimizer_model.onnx").c_str(), &session));
      keep(session);
    }
    if (what % 4 >= 2) {
      OrtSession* session = nullptr;
      succeed(ort().CreateSession(env, files().path("model.onnx").c_str(), options, &session));
      keep(session);
    }
    if (what % 8 >= 4) prepare_parts();
  }

 private:
  // The parts of a model, none of which is in another yet.
  void prepare_parts() {
    OrtTensorTypeAndShapeInfo* shape = nullptr;
    OrtTypeInfo* type = nullptr;
    const int64_t dims[] = {2, 6};
    succeed(ort().CreateTensorTypeAndShapeInfo(&shape));
    succeed(ort().SetTensorElementType(shape, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT));
    succeed(ort().SetDimensions(shape, dims, 2));
    succeed(editor().CreateTensorTypeInfo(shape, &type));
    keep(shape), keep(type);
    const char *input = "input", *output = "output", *domain = "";
    for (const char* name : {input, output}) {
      OrtValueInfo* value = nullptr;
      succeed(editor().CreateValueInfo(name, type, &value));
      keep(value);
    }
    OrtNode* node = nullptr;
    OrtGraph* graph = nullptr;
    OrtModel* model = nullptr;
    const int version = 17;
    succeed(editor().CreateNode("Relu", domain, "", &input, 1, &output, 1, nullptr, 0, &node));
    succeed(editor().CreateGraph(&graph));
    succeed(editor().CreateModel(&domain, &version, 1, &model));
    keep(node), keep(graph), keep(model);
  }

  // What one call needs besides its arguments.
  struct Frame {
    std::vector<size_t> lengths;            // of the arrays, at the parameters that state them
    std::vector<const std::string*> given;  // files whose bytes are an argument
    std::vector<void*> results;             // the memory of results
    std::vector<std::vector<void*>> used;   // the handles that were given
    OrtAllocator* allocator = nullptr;
    std::promise<void>* ended = nullptr;
  };

  static void succeed(OrtStatus* status) {
    if (status != nullptr) wrong(ort().GetErrorMessage(status));
  }
  template <typename T>
  static void keep(T* handle) {
    auto& all = Handles<T>::all;
    if (handle == nullptr || std::find(all.begin(), all.end(), handle) != all.end()) return;
    if constexpr (Owned<T>)
      all.push_back(handle);
    else
      wrong("a call returned a handle that no call releases");
  }

  // Frees what nothing needs.
  template <typename... T>
  void drop_all(Kinds<T...>) {
    (drop<T>(), ...);
  }
  template <typename T>
  void drop() {
    for (T* handle : Handles<T>::all)
      if (!is_needed(handle)) destroy(handle);
    Handles<T>::all.clear();
  }

  bool is_needed(const void* handle) const {
    return std::any_of(needed_.begin(), needed_.end(), [&](const Needed& n) { return n.handle == handle; });
  }
  template <typename T>
  void need(T* handle) {
    if (handle != nullptr && !is_needed(handle))
      needed_.push_back({handle, [](void* it) { destroy(static_cast<T*>(it)); }});
  }

  // One of those that are alive; null now and then.
  template <typename T>
  T* pick() {
    const auto& all = Handles<T>::all;
    const uint8_t byte = next();
    return all.empty() || byte >= 250 ? nullptr : all[all.size() - 1 - byte % all.size()];
  }

  // Memory of zeros that lives as long as the machine.
  void* block(size_t bytes) {
    blocks_.push_back(std::make_unique<std::byte[]>(bytes));
    return blocks_.back().get();
  }

  const char* text() {
    static constexpr const char* kTexts[] = {"input",
                                             "target",
                                             "onnx::reducemean_output::42",
                                             "a.weight",
                                             "a.bias",
                                             "",
                                             "CPU",
                                             "Cpu",
                                             "output",
                                             "1",
                                             "0",
                                             "\xff\xfe",
                                             "ortrain.check_finite",
                                             "ortrain.memory_budget",
                                             "session.max_bytes",
                                             "session.set_denormal_as_zero",
                                             "100K",
                                             "all",
                                             "none",
                                             "Relu"};
    const size_t i = next() % (std::size(kTexts) + texts_.size());
    return i < std::size(kTexts) ? kTexts[i] : texts_[i - std::size(kTexts)].c_str();
  }

  int64_t number() {
    static constexpr int64_t kNumbers[] = {0, 1, 2, 6,   16,        32,        -1,
                                           3, 7, 1, 100, INT32_MAX, INT64_MAX, INT64_MIN};
    return kNumbers[next() % std::size(kNumbers)];
  }

  template <typename T>
  T argument(const Role& role, size_t at, Frame& frame) {
    if constexpr (!std::is_pointer_v<T>) {
      if (role.kind == Role::kLength) return static_cast<T>(frame.lengths[at]);
      if constexpr (std::is_same_v<T, int>)  // numbers of threads among them
        return static_cast<int>(next() % 4) - 1;
      else if constexpr (std::is_same_v<T, float>)
        return static_cast<float>(number()) / 8;
      else if constexpr (std::is_enum_v<T>)
        return enumerator<T>(next());
      else
        return static_cast<T>(number());
    } else {
      using P = std::remove_pointer_t<T>;
      using Plain = std::remove_const_t<P>;
      if constexpr (std::is_function_v<P>) {
        if constexpr (std::is_same_v<T, OrtLoggingFunction>) return next() % 4 == 0 ? nullptr : ignore_log;
        if constexpr (std::is_same_v<T, RunAsyncCallbackFn>) return run_ended;
        return nullptr;
      } else {
        switch (role.kind) {
          case Role::kResult:
          case Role::kRoom:
          case Role::kRoomLength:
            return result<T>(role, at, frame);
          case Role::kBytes:
            return bytes<T>(role, at, frame);
          case Role::kArray:
            return array<T>(frame.lengths[static_cast<size_t>(role.other)], frame.used[at]);
          default:
            break;
        }
        if constexpr (std::is_same_v<T, const char*>) {
          if (role.kind == Role::kPath) return paths_[next() % paths_.size()].c_str();
          return next() >= 250 ? nullptr : text();
        } else if constexpr (std::is_same_v<Plain, OrtAllocator>) {
          if (role.kind == Role::kDeleter) return deleter();
          frame.allocator = pick<OrtAllocator>();
          if (frame.allocator == nullptr && next() < 250)
            succeed(ort().GetAllocatorWithDefaultOptions(&frame.allocator));
          return frame.allocator;
        } else if constexpr (std::is_void_v<Plain>) {
          return nullptr;
        } else if constexpr (std::is_class_v<Plain>) {
          Plain* handle = pick<Plain>();
          frame.used[at] = {handle};
          return handle;
        } else {
          return array<T>(4, frame.used[at]);
        }
      }
    }
  }

  template <typename T>
  T bytes(const Role& role, size_t at, Frame& frame) {
    if (role.other < 0) return static_cast<T>(static_cast<void*>(frame.ended));  // what a callback receives
    const size_t length = frame.lengths[static_cast<size_t>(role.other)];
    const std::string* file = frame.given[at];
    void* memory = block(length);
    if (file != nullptr) std::memcpy(memory, file->data(), length);
    return static_cast<T>(memory);
  }

  template <typename T>
  T array(size_t length, std::vector<void*>& used) {
    using P = std::remove_const_t<std::remove_pointer_t<T>>;
    if constexpr (std::is_void_v<P> || std::is_class_v<P>) {
      return nullptr;
    } else {
      auto* elements = static_cast<P*>(block(length * sizeof(P)));
      for (size_t i = 0; i < length; ++i) {
        if constexpr (std::is_same_v<P, const char*>)
          elements[i] = next() >= 250 ? nullptr : text();
        else if constexpr (std::is_pointer_v<P>)
          elements[i] =
              static_cast<P>(used.emplace_back(pick<std::remove_const_t<std::remove_pointer_t<P>>>()));
        else if constexpr (std::is_enum_v<P>)
          elements[i] = enumerator<P>(next());
        else
          elements[i] = static_cast<P>(number());
      }
      return elements;
    }
  }

  // Memory for a result or, if another parameter says how many there are, for so many.
  template <typename T>
  T result(const Role& role, size_t at, Frame& frame) {
    using P = std::remove_const_t<std::remove_pointer_t<T>>;
    if constexpr (std::is_class_v<P>) {
      return pick<P>();
    } else {
      const size_t count = count_of(role, frame);
      void* memory = nullptr;
      if constexpr (std::is_void_v<P>)
        memory = block(count);
      else
        memory = block(count * sizeof(P));
      if constexpr (std::is_same_v<P, size_t>)
        if (role.kind == Role::kRoomLength) *static_cast<P*>(memory) = frame.lengths[at];
      if constexpr (std::is_pointer_v<P> && std::is_class_v<std::remove_pointer_t<P>>)
        if (role.other >= 0 && role.owner == Role::kCaller)  // values of the caller may be overwritten
          for (size_t i = 0; i < count; ++i)
            if (next() % 4 == 0)
              static_cast<P*>(memory)[i] = pick<std::remove_const_t<std::remove_pointer_t<P>>>();
      return next() >= 252 ? nullptr : static_cast<T>(frame.results[at] = memory);
    }
  }
  static size_t count_of(const Role& role, const Frame& frame) {
    return role.other >= 0 ? frame.lengths[static_cast<size_t>(role.other)] : 1;
  }

  // Takes over what the call returned.
  template <typename T>
  void take(const Role& role, size_t at, const Frame& frame) {
    if constexpr (std::is_pointer_v<T> && std::is_pointer_v<std::remove_pointer_t<T>>) {
      using P = std::remove_const_t<std::remove_pointer_t<T>>;
      using H = std::remove_pointer_t<P>;
      auto* given = static_cast<P*>(frame.results[at]);
      if (given == nullptr) return;
      if constexpr (std::is_class_v<H> && !std::is_const_v<H>) {
        for (size_t i = 0; role.owner == Role::kCaller && i < count_of(role, frame); ++i) keep(given[i]);
      } else if (role.owner == Role::kAllocator && given[0] != nullptr) {
        if constexpr (std::is_same_v<P, char*>)
          if (texts_.size() < kMostTexts) texts_.emplace_back(given[0]);
        if constexpr (!std::is_const_v<H>) frame.allocator->Free(frame.allocator, given[0]);
      }
    }
  }

  // Parts with the handles that the call took, and remembers those that others need now.
  template <typename T>
  void hand_over(const Role& role, T argument, const std::vector<void*>& used) {
    if constexpr (std::is_pointer_v<T>) {
      using P = std::remove_pointer_t<T>;
      using H = std::remove_const_t<std::remove_pointer_t<std::conditional_t<std::is_pointer_v<P>, P, T>>>;
      if constexpr (Owned<H>) {
        if (role.later == Role::kOutlives)
          for (void* handle : used) need(static_cast<H*>(handle));
        if (role.later != Role::kTaken) return;
        for (void* handle : used) std::erase(Handles<H>::all, handle);
        if constexpr (std::is_pointer_v<P>)
          for (size_t i = 0; i < used.size(); ++i)
            if (argument[i] != nullptr) wrong("an array holds a handle that the call has taken");
      }
    }
  }

  // What took over handles that others need is needed in their place.
  template <typename T>
  void need_instead(const Role& role, T owner, const std::vector<const void*>& taken) {
    if constexpr (Owned<std::remove_pointer_t<T>>)
      for (Needed& needed : needed_)
        if (role.later != Role::kTaken && std::find(taken.begin(), taken.end(), needed.handle) != taken.end())
          needed = {owner, [](void* it) { destroy(static_cast<T>(it)); }};
  }

  // A call that failed took nothing.
  template <typename T>
  static void check_kept(const Role& role, T argument, const std::vector<void*>& used) {
    if constexpr (std::is_pointer_v<T> && std::is_pointer_v<std::remove_pointer_t<T>>)
      if (role.later == Role::kTaken)
        for (size_t i = 0; i < used.size(); ++i)
          if (argument[i] != used[i]) wrong("a call that failed took a handle");
  }

  template <typename R, typename... A, size_t... I>
  void run(R (*function)(A...), const std::array<Role, sizeof...(A)>& roles, std::index_sequence<I...>) {
    Frame frame{std::vector<size_t>(sizeof...(A), 1), std::vector<const std::string*>(sizeof...(A)),
                std::vector<void*>(sizeof...(A)), std::vector<std::vector<void*>>(sizeof...(A))};
    for (size_t i = 0; i < roles.size(); ++i) {
      if (roles[i].kind == Role::kLength) frame.lengths[i] = next() % 5;
      if (roles[i].kind == Role::kRoomLength) frame.lengths[i] = next() % 64;
    }
    for (size_t i = 0; i < roles.size(); ++i)
      if (roles[i].kind == Role::kBytes && roles[i].other >= 0) {
        const uint8_t which = next();
        if (which % 8 < std::size(kFiles)) frame.given[i] = &files().content(which % 8);
        frame.lengths[static_cast<size_t>(roles[i].other)] =
            frame.given[i] != nullptr ? frame.given[i]->size() : which;
      }
    std::promise<void> ended;
    constexpr bool kInBackground = (std::is_same_v<A, RunAsyncCallbackFn> || ...);
    if (kInBackground) frame.ended = &ended;
    const std::tuple<A...> arguments{argument<A>(roles[I], I, frame)...};
    if constexpr (std::is_same_v<R, OrtStatus*>) {
      if (OrtStatus* status = function(std::get<I>(arguments)...)) {
        ort().ReleaseStatus(status);
        (check_kept<A>(roles[I], std::get<I>(arguments), frame.used[I]), ...);
        return;
      }
      if constexpr (kInBackground) ended.get_future().wait();
    } else {
      function(std::get<I>(arguments)...);
    }
    std::vector<const void*> taken;
    for (size_t i = 0; i < roles.size(); ++i)
      if (roles[i].later == Role::kTaken)
        taken.insert(taken.end(), frame.used[i].begin(), frame.used[i].end());
    if (!taken.empty()) (need_instead<A>(roles[I], std::get<I>(arguments), taken), ...);
    (hand_over<A>(roles[I], std::get<I>(arguments), frame.used[I]), ...);
    (take<A>(roles[I], I, frame), ...);
  }

  const uint8_t* data_;
  const uint8_t* end_;
  std::deque<std::string> texts_;
  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  struct Needed {
    void* handle;
    void (*destroy)(void*);
  };
  std::vector<Needed> needed_;  // handles that must outlive others, in the order in which this began
};

struct Entry {
  int table, slot;
  const char* name;
  void (*run)(Machine&);
};

constexpr Entry kCalls[] = {
#include "calls.inc"
};

const Entry* find_call(int table, int slot) {
  const auto found = std::find_if(std::begin(kCalls), std::end(kCalls),
                                  [&](const Entry& e) { return e.table == table && e.slot == slot; });
  return found == std::end(kCalls) ? nullptr : found;
}

}  // namespace

int LLVMFuzzerInitialize(int*, char***) {
  limit_memory();
  files();
  return 0;
}

// With FUZZ_SHOW in the environment, prints the calls.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool show = std::getenv("FUZZ_SHOW") != nullptr;
  files().restore();
  const InFolder there(files().folder());
  Machine machine(data, size);
  machine.prepare(machine.next());
  for (size_t calls = 0; calls < kMostCalls && !machine.done(); ++calls) {
    const int table = machine.next() % 5, low = machine.next(), high = machine.next() & 1;
    const Entry* found = find_call(table, low | high << 8);
    if (found == nullptr) continue;
    if (show) std::fprintf(stderr, "%s\n", found->name);
    found->run(machine);
  }
  return 0;
}

// Changes bytes and, half the time, puts a call behind the others that exists.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  Random random(seed + 1);
  if (below(random, 2) == 0 || size + 16 > max_size) return LLVMFuzzerMutate(data, size, max_size);
  if (size == 0) data[size++] = static_cast<uint8_t>(below(random, 8));
  const Entry& entry = kCalls[below(random, std::size(kCalls))];
  data[size++] = static_cast<uint8_t>(entry.table);
  data[size++] = static_cast<uint8_t>(entry.slot);
  data[size++] = static_cast<uint8_t>(entry.slot >> 8);
  for (size_t n = below(random, 12); n > 0; --n) data[size++] = static_cast<uint8_t>(below(random, 16));
  return size;
}
