// Building blocks of the generated module: the tables, handles with an owner, and conversions between Python
// and C.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ortrain_c_api.h"

namespace ortrain::python {

namespace py = pybind11;

// The tables of libortrain, the only way into it.
inline const OrtApi& api() {
  static const OrtApi& table = *OrtGetApiBase()->GetApi(ORT_API_VERSION);
  return table;
}
inline const OrtTrainingApi& training_api() {
  static const OrtTrainingApi& table = *api().GetTrainingApi(ORT_API_VERSION);
  return table;
}
inline const OrtrainApi& extension_api() {
  static const OrtrainApi& table = *OrtrainGetApi(ORTRAIN_API_VERSION);
  return table;
}

// A failed call, which becomes an exception of ortrain.errors in Python.
struct StatusError : std::exception {
  OrtErrorCode code;
  std::string message;
  StatusError(OrtErrorCode code, std::string message) : code(code), message(std::move(message)) {}
  const char* what() const noexcept override { return message.c_str(); }
};

inline void check(OrtStatus* status) {
  if (status == nullptr) return;
  StatusError error(api().GetErrorCode(status), api().GetErrorMessage(status));
  api().ReleaseStatus(status);
  throw error;
}

// Lists that belong together have one length in C, so they must have the same in Python.
inline void check_same_length(const char* first, size_t first_size, const char* other, size_t other_size) {
  if (first_size == other_size) return;
  throw py::value_error(std::string(other) + " has " + std::to_string(other_size) + " entries, expected " +
                        std::to_string(first_size) + ", as many as " + first);
}

[[noreturn]] inline void stop_thread() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

// Releases the GIL for a call of the library. Python ends a thread that asks for the GIL while the
// interpreter shuts down, by unwinding its stack, which would terminate the process in a destructor. Such a
// thread is stopped here instead, as Python itself does from 3.14 on.
class GilReleased {
 public:
  GilReleased() : thread_(PyEval_SaveThread()) { ++running_; }
  ~GilReleased() {
    --running_;
    running_.notify_all();
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {
      stop_thread();
    }
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

  // From now on the process, once its interpreter has ended, waits for the calls that daemon threads are
  // still in: afterwards the libraries free what these calls use.
  static void wait_at_exit();

 private:
  static inline std::atomic<int> running_{0};
  PyThreadState* thread_;
};

// The one environment of the process, and the CPU allocator.
OrtEnv* environment();
OrtAllocator* allocator();
const OrtMemoryInfo* cpu_memory();

// A handle that Python owns. `Release` is a member of one of the tables.
template <typename H>
struct Handle {
  using Release = void (*)(H*);
  H* raw;
  Release release;
  Handle(H* raw, Release release) : raw(raw), release(release) {}
  Handle(Handle&& other) noexcept : raw(std::exchange(other.raw, nullptr)), release(other.release) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { release(raw); }
};

// A tensor or a sequence of tensors, and the Python object whose memory it shares.
class Value {
 public:
  explicit Value(OrtValue* raw, py::object keep = py::none()) : raw_(raw), keep_(std::move(keep)) {}
  Value(Value&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)), keep_(std::move(other.keep_)) {}
  Value(const Value&) = delete;
  Value& operator=(const Value&) = delete;
  ~Value() { api().ReleaseValue(raw_); }

  OrtValue* raw() const { return raw_; }
  ONNXType kind() const;
  // Copies of the tensors of a sequence.
  std::vector<Value> elements() const;
  std::vector<int64_t> shape() const;
  ONNXTensorElementDataType element_type() const;
  void* data() const;
  // False over an array that cannot be written to.
  bool is_writable() const {
    return !py::isinstance<py::array>(keep_) || keep_.cast<py::array>().writeable();
  }

  // A tensor over the array's memory; a copy if that is not contiguous or not in native byte order.
  static Value from_array(const py::array& array);
  // A sequence of tensors, which share the memory of those given.
  static Value from_elements(const py::sequence& elements);
  // An array over the tensor's memory; `self` is the Python object of this tensor, kept alive by the array.
  py::array to_array(const py::object& self) const;

 private:
  OrtValue* raw_;
  py::object keep_;
};

// Converts the number of an element type in C to its number in ONNX, which Python uses, and back. The numbers
// of three types differ.
int onnx_number(ONNXTensorElementDataType type);
ONNXTensorElementDataType element_type(int onnx_number);
// NumPy's type for an element type, and the reverse; throws TypeError if there is none.
py::dtype numpy_type(ONNXTensorElementDataType type);
ONNXTensorElementDataType element_type(const py::dtype& dtype);
// An array of that shape with copies of the strings of a tensor, or of those that a sparse one stores.
py::array texts_of(const Value& value, const std::vector<int64_t>& shape);

// A string in the form that calls take; throws ValueError, naming the argument, if C would see its beginning
// only.
inline const char* c_text(const std::string& text, const char* argument) {
  if (text.find('\0') != std::string::npos)
    throw py::value_error(std::string(argument) + " cannot contain a null character");
  return text.c_str();
}

// Strings in the form that calls take.
class Texts {
 public:
  explicit Texts(const std::vector<std::string>& texts) {
    for (const auto& text : texts) pointers_.push_back(c_text(text, "a name"));
  }
  const char* const* data() const { return pointers_.data(); }

 private:
  std::vector<const char*> pointers_;
};

// Tensors in the form that calls take.
class Values {
 public:
  explicit Values(const std::vector<const Value*>& values) {
    for (const Value* value : values) pointers_.push_back(value->raw());
  }
  const OrtValue* const* data() const { return pointers_.data(); }

 private:
  std::vector<const OrtValue*> pointers_;
};

// Booleans in the form that calls take.
class Flags {
 public:
  explicit Flags(const std::vector<bool>& flags) : flags_(new bool[flags.size()]) {
    std::copy(flags.begin(), flags.end(), flags_.get());
  }
  const bool* data() const { return flags_.get(); }

 private:
  std::unique_ptr<bool[]> flags_;
};

// Bytes in the form that calls take; None is a null pointer.
class Bytes {
 public:
  explicit Bytes(const std::optional<py::bytes>& bytes) {
    if (bytes) view_ = static_cast<std::string_view>(*bytes);
  }
  const char* data() const { return view_.data(); }
  size_t size() const { return view_.size(); }

 private:
  std::string_view view_;
};

// A path in the form that calls take; None is a null pointer.
class Path {
 public:
  explicit Path(const std::optional<std::filesystem::path>& path) {
    if (path) text_ = path->native();
  }
  const ORTCHAR_T* data() const { return text_ ? text_->c_str() : nullptr; }

 private:
  std::optional<std::filesystem::path::string_type> text_;
};

// A property as an argument: int, float or str.
class PropertyValue {
 public:
  explicit PropertyValue(const py::object& value);
  OrtPropertyType type() const { return type_; }
  void* data();

 private:
  OrtPropertyType type_;
  int64_t int_ = 0;
  float float_ = 0;
  std::string text_;
};

// Results in memory from the allocator, to which it is returned.
std::string take_text(char* text);
py::bytes take_bytes(void* bytes, size_t size);
py::object take_property(OrtPropertyType type, void* value);
// (element type, dimensions, names of dimensions)
py::tuple take_type_and_shape(OrtTensorTypeAndShapeInfo* info);
// (kinds of value from the outermost to the tensor, element type, dimensions, names of dimensions)
py::tuple take_type_info(OrtTypeInfo* info);
// Outputs of a step or run. Those that the call creates are released even if it fails; those that the caller
// supplies remain the caller's.
struct Outputs {
  std::vector<OrtValue*> raw;
  std::vector<py::object> given;
  explicit Outputs(size_t count) : raw(count, nullptr), given(count, py::none()) {}
  // `values` is empty, or has a tensor or None for each output.
  Outputs(size_t count, const py::sequence& values);
  ~Outputs() {
    for (size_t i = 0; i < raw.size(); ++i)
      if (given[i].is_none()) api().ReleaseValue(raw[i]);
  }
  py::list take();
};

// OrtValue, and the exceptions.
void bind_support(py::module_& module);
// Bindings, metadata and what the module says of the library; after the handles.
void bind_forward(py::module_& module);
void bind_sparse(py::module_& module);
void bind_compile(py::module_& module);
void bind_logging(py::module_& module);

}  // namespace ortrain::python
