#include "support.h"

#ifndef _WIN32
#include <pthread.h>
#endif

#include <cmath>
#include <cstring>

namespace ortrain::python {

void GilReleased::wait_at_exit() {
  Py_AtExit([] {
    for (int running = running_; running > 0; running = running_) running_.wait(running);
  });
#ifndef _WIN32
  // A child of fork has none of the threads that were in a call.
  pthread_atfork(nullptr, nullptr, [] { running_ = 0; });
#endif
}

OrtAllocator* allocator() {
  static OrtAllocator* const allocator = [] {
    OrtAllocator* found = nullptr;
    check(api().GetAllocatorWithDefaultOptions(&found));
    return found;
  }();
  return allocator;
}

const OrtMemoryInfo* cpu_memory() {
  static const OrtMemoryInfo* const info = [] {
    OrtMemoryInfo* made = nullptr;
    check(api().CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &made));
    return made;
  }();
  return info;
}

PropertyValue::PropertyValue(const py::object& value) {
  // NumPy scalars are accepted as the equivalent Python numbers, and a bool is the int that it is in Python.
  py::object plain =
      py::hasattr(value, "item") && !py::isinstance<py::str>(value) ? value.attr("item")() : value;
  if (py::isinstance<py::int_>(plain)) {
    type_ = OrtIntProperty;
    int_ = PyLong_AsLongLong(plain.ptr());
    if (int_ == -1 && PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      throw StatusError(ORT_INVALID_ARGUMENT,
                        "a property's int has 64 bits, found " + py::str(plain).cast<std::string>());
    }
  } else if (py::isinstance<py::float_>(plain)) {
    type_ = OrtFloatProperty;
    const double given = plain.cast<double>();
    float_ = static_cast<float>(given);
    if (std::isinf(float_) && !std::isinf(given))
      throw StatusError(ORT_INVALID_ARGUMENT,
                        "a property's float has 32 bits, found " + py::str(plain).cast<std::string>());
  } else if (py::isinstance<py::str>(plain)) {
    type_ = OrtStringProperty;
    text_ = plain.cast<std::string>();
    c_text(text_, "a property's string");
  } else {
    throw py::type_error("a property is an int, a float or a str, found " +
                         py::str(py::type::of(value).attr("__name__")).cast<std::string>());
  }
}

void* PropertyValue::data() {
  switch (type_) {
    case OrtIntProperty:
      return &int_;
    case OrtFloatProperty:
      return &float_;
    default:
      return text_.data();
  }
}

namespace {

// Returns memory to the allocator at the end of a scope.
struct Taken {
  void* memory;
  ~Taken() { allocator()->Free(allocator(), memory); }
};

}  // namespace

std::string take_text(char* text) {
  Taken taken{text};
  return text;
}

py::bytes take_bytes(void* bytes, size_t size) {
  Taken taken{bytes};
  return py::bytes(static_cast<const char*>(bytes), size);
}

py::object take_property(OrtPropertyType type, void* value) {
  Taken taken{value};
  switch (type) {
    case OrtIntProperty:
      return py::int_(*static_cast<const int64_t*>(value));
    case OrtFloatProperty:
      return py::float_(static_cast<double>(*static_cast<const float*>(value)));
    default:
      return py::str(static_cast<const char*>(value));
  }
}

namespace {

py::tuple type_and_shape(const OrtTensorTypeAndShapeInfo* info) {
  ONNXTensorElementDataType type;
  size_t rank = 0;
  check(api().GetTensorElementType(info, &type));
  check(api().GetDimensionsCount(info, &rank));
  std::vector<int64_t> dims(rank);
  std::vector<const char*> names(rank);
  check(api().GetDimensions(info, dims.data(), rank));
  check(api().GetSymbolicDimensions(info, names.data(), rank));
  return py::make_tuple(onnx_number(type), dims, std::vector<std::string>(names.begin(), names.end()));
}

}  // namespace

py::tuple take_type_and_shape(OrtTensorTypeAndShapeInfo* info) {
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> owner(
      info, api().ReleaseTensorTypeAndShapeInfo);
  return type_and_shape(info);
}

py::tuple take_type_info(OrtTypeInfo* info) {
  const std::unique_ptr<OrtTypeInfo, void (*)(OrtTypeInfo*)> owner(info, api().ReleaseTypeInfo);
  ONNXType kind;
  check(api().GetOnnxTypeFromTypeInfo(info, &kind));
  py::list kinds;
  kinds.append(static_cast<int>(kind));
  if (kind == ONNX_TYPE_TENSOR || kind == ONNX_TYPE_SPARSETENSOR) {
    const OrtTensorTypeAndShapeInfo* tensor = nullptr;
    check(api().CastTypeInfoToTensorInfo(info, &tensor));
    const py::tuple known = type_and_shape(tensor);
    return py::make_tuple(kinds, known[0], known[1], known[2]);
  }
  OrtTypeInfo* inner = nullptr;
  if (kind == ONNX_TYPE_MAP) {
    const OrtMapTypeInfo* map = nullptr;
    ONNXTensorElementDataType key;
    check(api().CastTypeInfoToMapTypeInfo(info, &map));
    check(api().GetMapKeyType(map, &key));
    check(api().GetMapValueType(map, &inner));
    kinds.append(-onnx_number(key));  // after the kind of a map, the type of its keys
  } else if (kind == ONNX_TYPE_SEQUENCE) {
    const OrtSequenceTypeInfo* sequence = nullptr;
    check(api().CastTypeInfoToSequenceTypeInfo(info, &sequence));
    check(api().GetSequenceElementType(sequence, &inner));
  } else {
    const OrtOptionalTypeInfo* optional = nullptr;
    check(api().CastTypeInfoToOptionalTypeInfo(info, &optional));
    check(api().GetOptionalContainedTypeInfo(optional, &inner));
  }
  const py::tuple known = take_type_info(inner);
  kinds.attr("extend")(known[0]);
  return py::make_tuple(kinds, known[1], known[2], known[3]);
}

Outputs::Outputs(size_t count, const py::sequence& values) : Outputs(count) {
  if (values.empty()) return;
  check_same_length("output_names", count, "outputs", values.size());
  for (size_t i = 0; i < count; ++i) {
    given[i] = values[i];
    if (!given[i].is_none()) raw[i] = given[i].cast<const Value&>().raw();
  }
}

py::list Outputs::take() {
  py::list list;
  for (size_t i = 0; i < raw.size(); ++i) {
    if (given[i].is_none())
      list.append(Value(std::exchange(raw[i], nullptr)));
    else
      list.append(given[i]);
  }
  return list;
}

}  // namespace ortrain::python
