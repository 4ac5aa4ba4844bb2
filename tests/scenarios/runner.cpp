// Runs a scenario with the C++ classes; README.md beside this file says what a scenario is.
#include <algorithm>
#include <array>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>
#ifdef _WIN32
#define NOMINMAX
#include <fcntl.h>
#include <io.h>
#include <windows.h>

#include <psapi.h>
#endif

#include "onnxruntime_training_cxx_api.h"

namespace {

using Arguments = std::vector<std::string>;

/** The script is at fault, or something went otherwise than it says. */
struct ScriptError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename... Parts>
[[noreturn]] void stop(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw ScriptError(message.str());
}

// Numbers and tensors as the script writes them.

int64_t read_integer(const std::string& text) {
  size_t used = 0;
  const int64_t value = std::stoll(text, &used);
  if (used != text.size()) stop(text, " is not a whole number");
  return value;
}

float read_number(const std::string& text) {
  if (text.compare(0, 5, "bits:") == 0) {
    const auto bits = static_cast<uint32_t>(std::stoul(text.substr(5), nullptr, 16));
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  size_t used = 0;
  const double value = std::stod(text, &used);
  if (used != text.size()) stop(text, " is not a number");
  return static_cast<float>(value);
}

std::string bits_of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  char text[9];
  std::snprintf(text, sizeof text, "%08" PRIx32, bits);
  return text;
}

struct Type {
  const char* name;
  ONNXTensorElementDataType type;
  size_t bytes;
};

constexpr std::array<Type, 6> kTypes{{{"float", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4},
                                      {"float16", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2},
                                      {"double", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 8},
                                      {"int64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8},
                                      {"int32", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 4},
                                      {"bool", ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1}}};

const Type& type_named(const std::string& name) {
  for (const Type& type : kTypes)
    if (name == type.name) return type;
  stop("there is no type ", name);
}

std::vector<int64_t> read_shape(const std::string& text) {
  std::vector<int64_t> shape;
  if (text == "-") return shape;
  std::istringstream dims(text);
  for (std::string dim; std::getline(dims, dim, 'x');) shape.push_back(read_integer(dim));
  return shape;
}

Ort::Value make_tensor(const Type& type, const std::vector<int64_t>& shape) {
  const Ort::AllocatorWithDefaultOptions allocator;
  return Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), type.type);
}

size_t bytes_of(const Type& type, const Ort::Value& value) {
  return value.GetTensorTypeAndShapeInfo().GetElementCount() * type.bytes;
}

template <typename Info>
std::string print_type(const Info& info, const Type*& type) {
  type = std::find_if(kTypes.begin(), kTypes.end(),
                      [&](const Type& known) { return known.type == info.GetElementType(); });
  if (type == kTypes.end()) stop("a tensor is of type ", info.GetElementType());
  std::string dims;
  for (const int64_t dim : info.GetShape()) dims += (dims.empty() ? "" : "x") + std::to_string(dim);
  return type->name + (" " + (dims.empty() ? "-" : dims));
}

std::string print(const Ort::Value& value) {
  const Ort::TensorTypeAndShapeInfo info = value.GetTensorTypeAndShapeInfo();
  const Type* type = nullptr;
  const std::string text = print_type(info, type) + " ";
  if (info.GetDimensionsCount() == 0 && type->type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
    return text + bits_of(*value.GetTensorData<float>());
  uint64_t hash = 0xcbf29ce484222325u;
  const auto* data = static_cast<const unsigned char*>(value.GetTensorRawData());
  const size_t bytes = bytes_of(*type, value);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ data[i]) * 0x100000001b3u;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016" PRIx64, hash);
  return text + digits;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) stop("cannot open ", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<uint8_t> bytes_of_file(const std::string& path) {
  const std::string content = read_file(path);
  return {content.begin(), content.end()};
}

/** Tensors of a script as the list that a step takes; they stay the script's. */
class Borrowed {
 public:
  Borrowed() = default;
  Borrowed(Borrowed&&) = default;
  void add(const Ort::Value& value) { values_.emplace_back(static_cast<OrtValue*>(value)); }
  ~Borrowed() {
    for (Ort::Value& value : values_) value.release();
  }
  const std::vector<Ort::Value>& values() const { return values_; }

 private:
  std::vector<Ort::Value> values_;
};

/** Names, and tensors unless only names are given. */
class Pairs {
 public:
  void add(const std::string& name) { names_.push_back(name); }
  void add(const std::string& name, const Ort::Value& value) {
    names_.push_back(name);
    values_.add(value);
  }
  size_t size() const { return names_.size(); }
  const std::vector<std::string>& texts() const { return names_; }
  const std::vector<Ort::Value>& all() const { return values_.values(); }
  const Ort::Value* values() const { return all().data(); }
  Ort::Value* values() { return const_cast<Ort::Value*>(all().data()); }
  const char* const* names() const {
    pointers_.clear();
    for (const std::string& name : names_) pointers_.push_back(name.c_str());
    return pointers_.data();
  }

 private:
  std::vector<std::string> names_;
  mutable std::vector<const char*> pointers_;
  Borrowed values_;
};

/** The objects of a script, and what its commands do. */
class Runner {
 public:
  Runner(std::string data, std::string out) : data_(std::move(data)), out_(std::move(out)) {}

  /** Runs a script; returns whether it did what it says. */
  bool run(const std::string& path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) lines_.push_back(line);
    try {
      run_lines(0, lines_.size(), 0);
      return true;
    } catch (const Ort::Exception& error) {
      report(path, "error " + std::to_string(error.GetOrtErrorCode()) + ": " + error.what());
    } catch (const std::exception& error) {
      report(path, error.what());
    }
    return false;
  }

 private:
  using Object = std::variant<Ort::CheckpointState, Ort::TrainingSession, Ort::Session, Ort::Value>;

  struct Command {
    size_t fewest, most;  // number of arguments
    void (Runner::*run)(const Arguments&);
  };

  static constexpr size_t kAny = 64;

  void report(const std::string& path, const std::string& what) const {
    std::cout.flush();
    std::cerr << path << ':' << line_ + 1 << ": " << lines_.at(line_) << ": " << what << '\n';
  }

  void log(const std::string& line) const {
    if (logging_) std::cout << line << '\n';
  }

  void log(const std::string& what, const Ort::Value& value) const {
    if (logging_) log(what + " " + print(value));
  }

  void log(const std::string& what, float value) const { log(what + " " + bits_of(value)); }

  void log(const std::string& what, const std::vector<std::string>& names) const {
    std::string line = what;
    for (const std::string& name : names) line += " " + name;
    log(line);
  }

  void log(const std::string& what, const Ort::Property& value) const {
    const auto text = [](const auto& held) -> std::string {
      using Held = std::decay_t<decltype(held)>;
      if constexpr (std::is_same_v<Held, int64_t>)
        return std::to_string(held);
      else if constexpr (std::is_same_v<Held, float>)
        return bits_of(held);
      else
        return held;
    };
    log(what + " " + std::visit(text, value));
  }

  void log_each(const std::string& what, const std::vector<std::string>& names,
                const std::vector<Ort::Value>& values) const {
    for (size_t i = 0; i < values.size(); ++i) log(what + " " + names.at(i), values[i]);
  }

  // Labels.

  template <typename Kind>
  Kind& find(const std::string& label) {
    const auto found = objects_.find(label);
    if (found == objects_.end() || !std::holds_alternative<Kind>(found->second))
      stop(label, " is of another kind or names nothing");
    return std::get<Kind>(found->second);
  }

  Ort::CheckpointState& state(const std::string& label) { return find<Ort::CheckpointState>(label); }
  Ort::TrainingSession& session(const std::string& label) { return find<Ort::TrainingSession>(label); }
  Ort::Session& model(const std::string& label) { return find<Ort::Session>(label); }
  Ort::Value& tensor(const std::string& label) { return find<Ort::Value>(label); }

  template <typename Kind>
  void keep(const std::string& label, Kind object) {
    objects_.insert_or_assign(label, Object(std::move(object)));
  }

  static bool flag(const std::string& text, const char* yes, const char* no) {
    if (text != yes && text != no) stop("expected ", yes, " or ", no, ", found ", text);
    return text == yes;
  }

  /** A path in the form that the library takes. */
  static std::filesystem::path::string_type path_of(const std::string& text) {
    return std::filesystem::u8path(text).native();
  }

  /** A path; none for `-`. */
  static std::optional<std::filesystem::path::string_type> path_or_none(const std::string& text) {
    return text == "-" ? std::nullopt : std::optional(path_of(text));
  }

  /** The tensors from a token on. */
  Borrowed borrowed(const Arguments& a, size_t begin) { return borrowed(a, begin, a.size()); }

  /** As many tensors as a token says, which stand behind it; others follow. */
  Borrowed counted(const Arguments& a, size_t at) {
    const int64_t count = read_integer(a[at]);
    if (count < 0 || static_cast<size_t>(count) + at + 1 >= a.size()) stop("there are no other tensors");
    return borrowed(a, at + 1, at + 1 + static_cast<size_t>(count));
  }

  static size_t count_of_pairs(const Arguments& a, size_t at) {
    const int64_t count = read_integer(a[at]);
    if (count < 0 || static_cast<size_t>(count) * 2 + at + 1 > a.size()) stop("there are not so many inputs");
    return static_cast<size_t>(count);
  }

  Pairs pairs(const Arguments& a, size_t begin, size_t end) {
    Pairs found;
    if ((end - begin) % 2 != 0) stop("there is no tensor for ", a[end - 1]);
    for (; begin < end; begin += 2) found.add(a[begin], tensor(a[begin + 1]));
    return found;
  }

  /** As many pairs as a token says, which stand behind it. */
  Pairs pairs(const Arguments& a, size_t at) { return pairs(a, at + 1, at + 1 + 2 * count_of_pairs(a, at)); }

  /** The pairs behind counted ones. */
  Pairs pairs_behind(const Arguments& a, size_t at) {
    return pairs(a, at + 2 * count_of_pairs(a, at - 1), a.size());
  }

  /** The names behind counted pairs. */
  static Pairs names_behind(const Arguments& a, size_t at) {
    Pairs found;
    for (size_t i = at + 2 * count_of_pairs(a, at - 1); i < a.size(); ++i) found.add(a[i]);
    return found;
  }

  Borrowed borrowed(const Arguments& a, size_t begin, size_t end) {
    Borrowed tensors;
    for (; begin < end; ++begin) tensors.add(tensor(a[begin]));
    return tensors;
  }

  // What commands do.

  void read_tensor(const std::string& label, const std::string& path) {
    const std::string content = read_file(path);
    const size_t header = content.find('\n');
    if (header == std::string::npos) stop(path, " is not a tensor file");
    std::istringstream words(content.substr(0, header));
    std::string name, dims;
    words >> name >> dims;
    const Type& type = type_named(name);
    Ort::Value value = make_tensor(type, read_shape(dims));
    if (bytes_of(type, value) != content.size() - header - 1) stop(path, " has another size");
    std::memcpy(value.GetTensorMutableRawData(), content.data() + header + 1, content.size() - header - 1);
    keep(label, std::move(value));
  }

  void make_zeros(const std::string& label, const std::string& name, const std::string& dims) {
    const Type& type = type_named(name);
    Ort::Value value = make_tensor(type, read_shape(dims));
    std::memset(value.GetTensorMutableRawData(), 0, bytes_of(type, value));
    keep(label, std::move(value));
  }

  void describe(const std::string& label) {
    const Ort::Session& model = find<Ort::Session>(label);
    const Type* type = nullptr;
    const auto line = [&](const std::string& what, const std::string& name, const Ort::TypeInfo& info) {
      log(what + " " + name + " " + print_type(info.GetTensorTypeAndShapeInfo(), type));
    };
    const std::vector<std::string> inputs = model.GetInputNames(), outputs = model.GetOutputNames();
    for (size_t i = 0; i < inputs.size(); ++i) line("input", inputs[i], model.GetInputTypeInfo(i));
    for (size_t i = 0; i < outputs.size(); ++i) line("output", outputs[i], model.GetOutputTypeInfo(i));
  }

  void resident() const {
#ifdef _WIN32
    PROCESS_MEMORY_COUNTERS memory;
    if (!GetProcessMemoryInfo(GetCurrentProcess(), &memory, sizeof memory))
      stop("cannot read the size of the memory");
    log("resident " + std::to_string(memory.WorkingSetSize / 1024));
#else
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.compare(0, 6, "VmRSS:") == 0) log("resident " + std::to_string(std::stol(line.substr(6))));
#endif
  }

  void measure(const Arguments& arguments) {
    const int64_t steps = read_integer(arguments[0]);
    if (steps < 1) stop("expected 1 step or more");
    Ort::TrainingSession& on = session(arguments[1]);
    const Borrowed inputs = borrowed(arguments, 2);
    std::vector<int64_t> times;
    for (int64_t i = 0; i < steps; ++i) {
      const auto began = std::chrono::steady_clock::now();
      const std::vector<Ort::Value> outputs = on.TrainStep(inputs.values());
      const auto took = std::chrono::steady_clock::now() - began;
      times.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count());
    }
    std::sort(times.begin(), times.end());
    log("nanoseconds " + std::to_string(times[static_cast<size_t>(steps - 1) / 2]));
  }

  static const std::map<std::string, Command>& commands();

  // Commands. Those that call a method of the API are generated.

  void command_seed(const Arguments& a);
  void command_tensor(const Arguments& a) { read_tensor(a[0], a[1]); }
  void command_zeros(const Arguments& a) { make_zeros(a[0], a[1], a[2]); }
  void command_show(const Arguments& a) { log("tensor", tensor(a[0])); }
  void command_load(const Arguments& a);
  void command_map(const Arguments& a);
  void command_load_buffer(const Arguments& a);
  void command_session(const Arguments& a);
  void command_train_input_names(const Arguments& a);
  void command_train_output_names(const Arguments& a);
  void command_eval_input_names(const Arguments& a);
  void command_eval_output_names(const Arguments& a);
  void command_learning_rate(const Arguments& a);
  void command_show_learning_rate(const Arguments& a);
  void command_group_names(const Arguments& a);
  void command_show_group(const Arguments& a);
  void command_group_attribute(const Arguments& a);
  void command_show_group_attribute(const Arguments& a);
  void command_schedule(const Arguments& a);
  void command_lr_schedule(const Arguments& a);
  void command_train(const Arguments& a);
  void command_eval(const Arguments& a);
  void command_train_into(const Arguments& a);
  void command_eval_into(const Arguments& a);
  void command_optimizer_step(const Arguments& a);
  void command_scheduler_step(const Arguments& a);
  void command_reset(const Arguments& a);
  void command_to_buffer(const Arguments& a);
  void command_from_buffer(const Arguments& a);
  void command_gradients_to_buffer(const Arguments& a);
  void command_buffer_to_gradients(const Arguments& a);
  void command_set_gradient(const Arguments& a);
  void command_scale_gradients(const Arguments& a);
  void command_show_gradient_norm(const Arguments& a);
  void command_int_property(const Arguments& a);
  void command_float_property(const Arguments& a);
  void command_string_property(const Arguments& a);
  void command_show_int_property(const Arguments& a);
  void command_show_float_property(const Arguments& a);
  void command_show_string_property(const Arguments& a);
  void command_show_parameter(const Arguments& a);
  void command_update_parameter(const Arguments& a);
  void command_save(const Arguments& a);
  void command_assign(const Arguments& a);
  void command_export(const Arguments& a);
  void command_release(const Arguments& a) {
    if (objects_.erase(a[0]) == 0) stop(a[0], " names nothing");
  }
  void command_log(const Arguments& a) { logging_ = flag(a[0], "on", "off"); }
  void command_resident(const Arguments&) { resident(); }
  void command_measure(const Arguments& a) { measure(a); }
  void command_model(const Arguments& a);
  void command_model_buffer(const Arguments& a);
  void command_describe(const Arguments& a) { describe(a[0]); }
  void command_run(const Arguments& a);
  void command_run_into(const Arguments& a);

  // Scripts.

  void run_command(const Arguments& tokens) {
    const auto found = commands().find(tokens.at(0));
    if (found == commands().end()) stop("there is no such command");
    const Arguments arguments(tokens.begin() + 1, tokens.end());
    if (arguments.size() < found->second.fewest || arguments.size() > found->second.most)
      stop("wrong number of tokens");
    (this->*found->second.run)(arguments);
  }

  void run_failing(const Arguments& tokens) {
    if (tokens.size() < 3) stop("wrong number of tokens");
    const int64_t code = read_integer(tokens[1]);
    try {
      run_command({tokens.begin() + 2, tokens.end()});
    } catch (const Ort::Exception& error) {
      if (error.GetOrtErrorCode() != code)
        stop("expected an error of code ", code, ", found ", error.GetOrtErrorCode(), ": ", error.what());
      log("error " + tokens[1] + " " + error.what());
      return;
    }
    stop("expected an error of code ", code, ", found none");
  }

  std::string resolve(std::string token, int64_t number) const {
    for (size_t at; (at = token.find("{}")) != std::string::npos;)
      token.replace(at, 2, std::to_string(number));
    if (token.compare(0, 5, "data:") == 0) return data_ + "/" + token.substr(5);
    if (token.compare(0, 4, "out:") == 0) return out_ + "/" + token.substr(4);
    return token;
  }

  Arguments tokens_of(size_t at, int64_t number) const {
    Arguments tokens;
    if (lines_[at].compare(0, 1, "#") == 0) return tokens;
    std::istringstream words(lines_[at]);
    for (std::string token; words >> token;) tokens.push_back(resolve(token, number));
    return tokens;
  }

  /** The `end` that belongs to the `repeat` at `start`. */
  size_t end_of(size_t start) const {
    int depth = 0;
    for (size_t at = start; at < lines_.size(); ++at) {
      const Arguments tokens = tokens_of(at, 0);
      if (tokens.empty()) continue;
      if (tokens[0] == "repeat") ++depth;
      if (tokens[0] == "end" && --depth == 0) return at;
    }
    stop("this repeat has no end");
  }

  void run_lines(size_t begin, size_t end, int64_t number) {
    for (size_t at = begin; at < end; ++at) {
      line_ = at;
      const Arguments tokens = tokens_of(at, number);
      if (tokens.empty()) continue;
      if (tokens[0] == "repeat") {
        if (tokens.size() != 2 && tokens.size() != 3) stop("wrong number of tokens");
        const size_t last = end_of(at);
        const int64_t rounds = read_integer(tokens[1]);
        const int64_t first = tokens.size() == 3 ? read_integer(tokens[2]) : 0;
        for (int64_t i = first; i < first + rounds; ++i) run_lines(at + 1, last, i);
        at = last;
      } else if (tokens[0] == "fails") {
        run_failing(tokens);
      } else {
        run_command(tokens);
      }
    }
  }

  const std::string data_, out_;
  const Ort::Env env_{ORT_LOGGING_LEVEL_ERROR, "runner"};
  std::map<std::string, Object> objects_;
  std::vector<std::string> lines_;
  size_t line_ = 0;
  bool logging_ = true;
};

#include "generated/cpp/commands.h"

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: " << argv[0] << " SCRIPT DATA OUT\n";
    return 1;
  }
#ifdef _WIN32
  _setmode(_fileno(stdout), _O_BINARY);  // lines end in \n on every system
#endif
  return Runner(argv[2], argv[3]).run(argv[1]) ? 0 : 1;
}
