// OrtValue in Python: a tensor, or a sequence of tensors, that shares memory with NumPy and, through DLPack,
// with other libraries.
#include <cstring>
#include <limits>
#include <string_view>

#include "support.h"

namespace ortrain::python {
namespace {

struct TypeRow {
  ONNXTensorElementDataType type;
  int number;           // NumPy's number for it, -1 if NumPy does not have it
  const char* numpy;    // its name in NumPy, or in ml_dtypes
  const char* onnx;     // name in ONNX
  uint8_t dlpack_code;  // kind of number in DLPack
  uint8_t bits;
};

// DLDataTypeCode; kNone: the protocol's version 0 does not have it.
constexpr uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6, kNone = 255;

// NPY_HALF, NPY_CFLOAT, NPY_CDOUBLE, NPY_OBJECT
constexpr int kHalf = 23, kComplexFloat = 14, kComplexDouble = 15, kObject = 17;

const TypeRow kTypes[] = {
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, py::dtype::num_of<float>(), "float32", "float", kFloat, 32},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, py::dtype::num_of<uint8_t>(), "uint8", "uint8", kUInt, 8},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, py::dtype::num_of<int8_t>(), "int8", "int8", kInt, 8},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, py::dtype::num_of<uint16_t>(), "uint16", "uint16", kUInt, 16},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, py::dtype::num_of<int16_t>(), "int16", "int16", kInt, 16},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, py::dtype::num_of<int32_t>(), "int32", "int32", kInt, 32},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, py::dtype::num_of<int64_t>(), "int64", "int64", kInt, 64},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, py::dtype::num_of<bool>(), "bool", "bool", kBool, 8},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, kHalf, "float16", "float16", kFloat, 16},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, py::dtype::num_of<double>(), "float64", "double", kFloat, 64},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, py::dtype::num_of<uint32_t>(), "uint32", "uint32", kUInt, 32},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, py::dtype::num_of<uint64_t>(), "uint64", "uint64", kUInt, 64},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64, kComplexFloat, "complex64", "complex64", kComplex, 64},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128, kComplexDouble, "complex128", "complex128", kComplex, 128},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, kObject, "object", "string", kNone, 64},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, -1, "bfloat16", "bfloat16", kBfloat, 16},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN, -1, "float8_e4m3fn", "float8e4m3fn", kNone, 8},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ, -1, "float8_e4m3fnuz", "float8e4m3fnuz", kNone, 8},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2, -1, "float8_e5m2", "float8e5m2", kNone, 8},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ, -1, "float8_e5m2fnuz", "float8e5m2fnuz", kNone, 8},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0, -1, "float8_e8m0fnu", "float8e8m0", kNone, 8},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4, -1, "uint4", "uint4", kNone, 4},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4, -1, "int4", "int4", kNone, 4},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1, -1, "float4_e2m1fn", "float4e2m1", kNone, 4},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2, -1, "uint2", "uint2", kNone, 2},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2, -1, "int2", "int2", kNone, 2},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT6E2M3, -1, "float6_e2m3fn", "float6e2m3", kNone, 6},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT6E3M2, -1, "float6_e3m2fn", "float6e3m2", kNone, 6},
};

const TypeRow& row(ONNXTensorElementDataType type) {
  for (const TypeRow& r : kTypes)
    if (r.type == type) return r;
  throw py::type_error("there is no NumPy type for element type " + std::to_string(type));
}

// Elements smaller than a byte are packed in a tensor, the first in the lowest bits, and take a byte each in
// an array.
bool is_packed(const TypeRow& type) { return type.bits < 8; }

size_t count_of(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<size_t>(dim);
  return count;
}

void pack(const TypeRow& type, const uint8_t* bytes, size_t count, uint8_t* packed) {
  unsigned word = 0, filled = 0;
  for (size_t i = 0; i < count; ++i) {
    word |= (bytes[i] & ((1u << type.bits) - 1)) << filled;
    for (filled += type.bits; filled >= 8; filled -= 8, word >>= 8) *packed++ = static_cast<uint8_t>(word);
  }
  if (filled > 0) *packed = static_cast<uint8_t>(word);
}

void unpack(const TypeRow& type, const uint8_t* packed, size_t count, uint8_t* bytes) {
  const bool sign = std::string_view(type.numpy).starts_with("int");
  const int spare = 8 - type.bits;
  unsigned word = 0;
  int held = 0;
  for (size_t i = 0; i < count; ++i) {
    if (held < type.bits) {
      word |= static_cast<unsigned>(*packed++) << held;
      held += 8;
    }
    const auto raised = static_cast<uint8_t>(word << spare);
    bytes[i] = static_cast<uint8_t>(sign ? static_cast<int8_t>(raised) >> spare : raised >> spare);
    word >>= type.bits;
    held -= type.bits;
  }
}

// The structures of the DLPack protocol, version 0: https://dmlc.github.io/dlpack
struct DlDevice {
  int32_t type;
  int32_t id;
};
struct DlDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  int32_t ndim;
  DlDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DlManagedTensor {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManagedTensor*);
};
constexpr int32_t kDlCpu = 1;

// A DLPack tensor together with the shape it points to and the Python object whose memory it shares.
struct Exported {
  DlManagedTensor managed;
  std::vector<int64_t> shape;
  py::object owner;
};

void delete_exported(DlManagedTensor* managed) {
  const py::gil_scoped_acquire acquire;
  delete static_cast<Exported*>(managed->context);
}

// Frees the tensor of a capsule that was not consumed; a consumer renames the capsule.
void delete_capsule(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, "dltensor")) return;
  auto* managed = static_cast<DlManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
  managed->deleter(managed);
}

py::object to_dlpack(const py::object& self) {
  const Value& value = self.cast<const Value&>();
  const TypeRow& type = row(value.element_type());
  if (type.dlpack_code == kNone) throw py::type_error(std::string("DLPack has no ") + type.numpy);
  auto exported = std::make_unique<Exported>();
  exported->shape = value.shape();
  exported->owner = self;
  exported->managed = {{value.data(),
                        {kDlCpu, 0},
                        static_cast<int32_t>(exported->shape.size()),
                        {type.dlpack_code, type.bits, 1},
                        exported->shape.data(),
                        nullptr,
                        0},
                       exported.get(),
                       delete_exported};
  PyObject* capsule = PyCapsule_New(&exported->managed, "dltensor", delete_capsule);
  if (capsule == nullptr) throw py::error_already_set();
  exported.release();
  return py::reinterpret_steal<py::object>(capsule);
}

void check_cpu(const std::string& device_type, int device_id) {
  if (device_type != "cpu" || device_id != 0)
    throw StatusError(ORT_INVALID_ARGUMENT, "there is no device '" + device_type + "' with id " +
                                                std::to_string(device_id) + ", available: cpu");
}

// A tensor over the memory of an array that holds the bits of another type.
Value from_bits(const py::array& array, int element_type) {
  const TypeRow& type = row(python::element_type(element_type));
  if (is_packed(type) || array.itemsize() * 8 != type.bits)
    throw StatusError(ORT_INVALID_ARGUMENT, "expected an array whose elements have the size of a " +
                                                std::string(type.onnx) + ", " + std::to_string(type.bits) +
                                                " bits, found " + std::to_string(array.itemsize() * 8));
  const py::array contiguous = py::module_::import("numpy").attr("ascontiguousarray")(array);
  const std::vector<int64_t> shape(array.shape(), array.shape() + array.ndim());
  OrtValue* made = nullptr;
  check(api().CreateTensorWithDataAsOrtValue(cpu_memory(), const_cast<void*>(contiguous.data()),
                                             static_cast<size_t>(contiguous.nbytes()), shape.data(),
                                             shape.size(), type.type, &made));
  return Value(made, contiguous);
}

void update_in_place(const Value& value, const py::object& data) {
  if (!value.is_writable())
    throw py::value_error("the OrtValue shares the memory of an array that cannot be written to");
  std::optional<Value> converted;
  if (py::isinstance<py::array>(data))
    converted.emplace(Value::from_array(data.cast<py::array>()));
  else if (!py::isinstance<Value>(data))
    throw py::type_error("expected a NumPy array or an OrtValue, found " +
                         py::str(py::type::of(data).attr("__name__")).cast<std::string>());
  const Value& source = converted ? *converted : data.cast<const Value&>();
  const TypeRow& wanted = row(value.element_type());
  const TypeRow& found = row(source.element_type());
  const size_t count = count_of(value.shape()), given = count_of(source.shape());
  if (wanted.type != found.type || count != given)
    throw StatusError(ORT_INVALID_ARGUMENT, "expected " + std::to_string(count) + " elements of type " +
                                                wanted.numpy + ", found " + std::to_string(given) +
                                                " of type " + found.numpy);
  size_t bytes = 0;
  check(api().GetTensorSizeInBytes(value.raw(), &bytes));
  if (bytes > 0) std::memmove(value.data(), source.data(), bytes);
}

std::string describe(const Value& value) {
  if (value.kind() == ONNX_TYPE_SEQUENCE)
    return "OrtValue(a sequence of " + std::to_string(value.elements().size()) + " tensors)";
  const bool sparse = value.kind() == ONNX_TYPE_SPARSETENSOR;
  if (value.kind() != ONNX_TYPE_TENSOR && !sparse) return "OrtValue(nothing)";
  std::string shape;
  for (int64_t dim : value.shape()) shape += (shape.empty() ? "" : ", ") + std::to_string(dim);
  return std::string(sparse ? "OrtValue(sparse " : "OrtValue(") + row(value.element_type()).numpy +
         ", shape=[" + shape + "])";
}

}  // namespace

py::dtype numpy_type(ONNXTensorElementDataType type) {
  const TypeRow& found = row(type);
  if (found.number >= 0) return py::dtype(found.number);
  try {
    return py::dtype::from_args(py::module_::import("ml_dtypes").attr(found.numpy));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ImportError) && !error.matches(PyExc_AttributeError)) throw;
  }
  // Without ml_dtypes, or with one that does not know the type, an array holds the bits.
  return found.bits == 16 ? py::dtype::of<uint16_t>() : py::dtype::of<uint8_t>();
}

namespace {

// Types whose numbers differ: in C, and in ONNX.
constexpr std::pair<ONNXTensorElementDataType, int> kRenumbered[] = {
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0, 24},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2, 25},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2, 26},
};

}  // namespace

int onnx_number(ONNXTensorElementDataType type) {
  for (const auto& [in_c, in_onnx] : kRenumbered)
    if (type == in_c) return in_onnx;
  return type;
}

ONNXTensorElementDataType element_type(int onnx_number) {
  for (const auto& [in_c, in_onnx] : kRenumbered)
    if (onnx_number == in_onnx) return in_c;
  return static_cast<ONNXTensorElementDataType>(onnx_number);
}

ONNXTensorElementDataType element_type(const py::dtype& dtype) {
  if (dtype.kind() == 'U' || dtype.kind() == 'S') return ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
  for (const TypeRow& r : kTypes)
    if (r.number == dtype.num()) return r.type;
  // Types with several numbers, and those that other packages add.
  const auto name = py::str(dtype.attr("name")).cast<std::string>();
  for (const TypeRow& r : kTypes)
    if (name == r.numpy) return r.type;
  throw py::type_error("a tensor cannot have the NumPy type " + name);
}

ONNXType Value::kind() const {
  ONNXType kind;
  check(api().GetValueType(raw_, &kind));
  return kind;
}

std::vector<Value> Value::elements() const {
  size_t count = 0;
  check(api().GetValueCount(raw_, &count));
  std::vector<Value> elements;
  for (size_t i = 0; i < count; ++i) {
    OrtValue* element = nullptr;
    check(api().GetValue(raw_, static_cast<int>(i), allocator(), &element));
    elements.emplace_back(element);
  }
  return elements;
}

Value Value::from_elements(const py::sequence& elements) {
  std::vector<const OrtValue*> raw;
  for (const py::handle element : elements) raw.push_back(element.cast<const Value&>().raw());
  OrtValue* made = nullptr;
  check(api().CreateValue(raw.data(), raw.size(), ONNX_TYPE_SEQUENCE, &made));
  return Value(made, py::list(elements));
}

std::vector<int64_t> Value::shape() const {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api().GetTensorTypeAndShape(raw_, &info));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> owner(
      info, api().ReleaseTensorTypeAndShapeInfo);
  size_t rank = 0;
  check(api().GetDimensionsCount(info, &rank));
  std::vector<int64_t> dims(rank);
  check(api().GetDimensions(info, dims.data(), rank));
  return dims;
}

ONNXTensorElementDataType Value::element_type() const {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api().GetTensorTypeAndShape(raw_, &info));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> owner(
      info, api().ReleaseTensorTypeAndShapeInfo);
  ONNXTensorElementDataType type;
  check(api().GetTensorElementType(info, &type));
  return type;
}

void* Value::data() const {
  void* data = nullptr;
  check(api().GetTensorMutableData(raw_, &data));
  return data;
}

namespace {

// A tensor of strings with copies of the elements, each a str or bytes.
Value from_texts(const py::array& given) {
  const std::vector<int64_t> shape(given.shape(), given.shape() + given.ndim());
  std::vector<std::string> texts;
  for (const py::handle one : given.attr("ravel")().attr("tolist")()) {
    if (!py::isinstance<py::str>(one) && !py::isinstance<py::bytes>(one))
      throw py::type_error("a tensor of strings takes str and bytes, found " +
                           py::str(py::type::of(one).attr("__name__")).cast<std::string>());
    texts.push_back(one.cast<std::string>());
  }
  OrtValue* made = nullptr;
  check(api().CreateTensorAsOrtValue(allocator(), shape.data(), shape.size(),
                                     ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &made));
  Value value(made);
  for (size_t i = 0; i < texts.size(); ++i) {
    char* place = nullptr;
    check(api().GetResizedStringTensorElementBuffer(made, i, texts[i].size(), &place));
    std::copy(texts[i].begin(), texts[i].end(), place);
  }
  return value;
}

}  // namespace

py::array texts_of(const Value& value, const std::vector<int64_t>& shape) {
  py::list texts;
  const size_t count = count_of(shape);
  for (size_t at = 0; at < count; ++at) {
    size_t length = 0;
    check(api().GetStringTensorElementLength(value.raw(), at, &length));
    std::string one(length, '\0');
    check(api().GetStringTensorElement(value.raw(), length, at, one.data()));
    texts.append(py::reinterpret_steal<py::object>(
        PyUnicode_DecodeUTF8(one.data(), static_cast<Py_ssize_t>(length), "surrogateescape")));
  }
  const py::object array = py::module_::import("numpy").attr("empty")(shape, py::arg("dtype") = "object");
  array.attr("flat") = texts;
  return array;
}

Value Value::from_array(const py::array& given) {
  const auto type = python::element_type(given.dtype());
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) return from_texts(given);
  py::array array = given;
  const bool aligned = (array.flags() & py::detail::npy_api::NPY_ARRAY_ALIGNED_) != 0;
  const char order = array.dtype().byteorder();
  if (!aligned || (array.flags() & py::array::c_style) == 0 || (order != '=' && order != '|'))
    array = py::module_::import("numpy").attr("require")(given, given.dtype().attr("newbyteorder")("="),
                                                         py::make_tuple("C_CONTIGUOUS", "ALIGNED"));
  const std::vector<int64_t> shape(array.shape(), array.shape() + array.ndim());
  OrtValue* made = nullptr;
  if (const TypeRow& found = row(type); is_packed(found)) {
    check(api().CreateTensorAsOrtValue(allocator(), shape.data(), shape.size(), type, &made));
    Value value(made);
    pack(found, static_cast<const uint8_t*>(array.data()), count_of(shape),
         static_cast<uint8_t*>(value.data()));
    return value;
  }
  check(api().CreateTensorWithDataAsOrtValue(cpu_memory(), const_cast<void*>(array.data()),
                                             static_cast<size_t>(array.nbytes()), shape.data(), shape.size(),
                                             type, &made));
  return Value(made, array);
}

py::array Value::to_array(const py::object& self) const {
  const TypeRow& type = row(element_type());
  if (type.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) return texts_of(*this, shape());
  if (!is_packed(type)) return py::array(numpy_type(type.type), shape(), data(), self);
  py::array unpacked(numpy_type(type.type), shape());
  unpack(type, static_cast<const uint8_t*>(data()), count_of(shape()),
         static_cast<uint8_t*>(unpacked.mutable_data()));
  return unpacked;
}

namespace {

void translate_errors() {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const StatusError& error) {
      const py::object made = py::module_::import("ortrain.errors")
                                  .attr("error_from_status")(static_cast<int>(error.code), error.message);
      PyErr_SetObject(py::type::of(made).ptr(), made.ptr());
    }
  });
}

void bind_types(py::module_& module) {
  module.def(
      "numpy_type", [](int type) { return numpy_type(element_type(type)); }, py::arg("element_type"),
      "The NumPy dtype of an element type, a number of ONNX's TensorProto.DataType.");

  module.def(
      "onnx_type", [](int type) { return row(element_type(type)).onnx; }, py::arg("element_type"),
      "The ONNX name of an element type, a number of ONNX's TensorProto.DataType.");
}

// Functions that make a value.
void bind_making(py::class_<Value>& value) {
  value
      .def_static(
          "ortvalue_from_numpy",
          [](const py::array& array, const std::string& device_type, int device_id, int) {
            check_cpu(device_type, device_id);
            return Value::from_array(array);
          },
          py::arg("numpy_obj"), py::arg("device_type") = "cpu", py::arg("device_id") = 0,
          py::arg("vendor_id") = -1,
          "A tensor over the memory of an array, which it keeps alive.\n\n"
          "An array that is not contiguous, or not in native byte order, is copied, and so is one whose "
          "elements are smaller than a byte (int4 of ml_dtypes): a tensor packs them.")
      .def_static(
          "ortvalue_from_shape_and_type",
          [](const std::vector<int64_t>& shape, const py::object& type, const std::string& device_type,
             int device_id, int, const py::object&) {
            check_cpu(device_type, device_id);
            OrtValue* made = nullptr;
            const auto element = py::isinstance<py::int_>(type)
                                     ? python::element_type(type.cast<int>())
                                     : python::element_type(py::dtype::from_args(type));
            check(api().CreateTensorAsOrtValue(allocator(), shape.data(), shape.size(), element, &made));
            return Value(made);
          },
          py::arg("shape"), py::arg("element_type"), py::arg("device_type") = "cpu", py::arg("device_id") = 0,
          py::arg("vendor_id") = -1, py::arg("memory_info") = py::none(),
          "A tensor that owns its memory; the elements are uninitialized.")
      .def_static("ortvalue_from_sequence", &Value::from_elements, py::arg("values"),
                  "A sequence of tensors, OrtValues of one element type, whose memory it shares.")
      .def_static("ortvalue_from_numpy_with_onnx_type", &from_bits, py::arg("data"),
                  py::arg("onnx_element_type"),
                  "A tensor of a type that NumPy lacks, over the memory of an array with its bits.\n\n"
                  "The elements of the array must have the size of those of the type.")
      .def_static(
          "from_dlpack",
          [](const py::object& data) {
            return Value::from_array(py::module_::import("numpy").attr("from_dlpack")(data));
          },
          py::arg("data"), "A tensor over the memory of an object that has __dlpack__.")
      .def_static(
          "ort_value_from_sparse_tensor",
          [](const py::object& sparse) { return sparse.attr("_get_c_tensor")(); }, py::arg("sparse_tensor"),
          "The value of a SparseTensor.")
      .def_static(
          "ortvalue_from_map",
          [](const Value& keys, const Value& values) {
            const OrtValue* parts[] = {keys.raw(), values.raw()};
            OrtValue* made = nullptr;
            check(api().CreateValue(parts, 2, ONNX_TYPE_MAP, &made));
            return Value(made);
          },
          py::arg("keys"), py::arg("values"), "A map, of two tensors with as many keys as values.");
}

// Properties that describe a value.
void bind_description(py::class_<Value>& value) {
  value
      .def(
          "tensor_size_in_bytes",
          [](const Value& value) {
            size_t size = 0;
            check(api().GetTensorSizeInBytes(value.raw(), &size));
            return size;
          },
          "Size of the tensor's elements in bytes.")
      .def(
          "is_sparse_tensor", [](const Value& value) { return value.kind() == ONNX_TYPE_SPARSETENSOR; },
          "Whether this is a sparse tensor.")
      .def(
          "is_map", [](const Value& value) { return value.kind() == ONNX_TYPE_MAP; },
          "Whether this is a map.")
      .def("shape", &Value::shape, "The dimensions.")
      .def(
          "element_type", [](const Value& value) { return onnx_number(value.element_type()); },
          "Element type, a value of ONNXTensorElementDataType (as in ONNX TensorProto.DataType).")
      .def(
          "data_type",
          [](const Value& value) {
            return std::string(value.kind() == ONNX_TYPE_SPARSETENSOR ? "sparse_tensor(" : "tensor(") +
                   row(value.element_type()).onnx + ")";
          },
          "Type of the tensor in ONNX notation, such as tensor(float).")
      .def_property_readonly(
          "dtype", [](const Value& value) { return numpy_type(value.element_type()); },
          "Element type as a NumPy dtype.")
      .def(
          "device_name", [](const Value&) { return "cpu"; }, "Name of the device that holds the elements.")
      .def(
          "is_tensor", [](const Value& value) { return value.kind() == ONNX_TYPE_TENSOR; },
          "Whether this is a dense tensor.")
      .def(
          "is_tensor_sequence", [](const Value& value) { return value.kind() == ONNX_TYPE_SEQUENCE; },
          "Whether this is a sequence of tensors or maps.")
      .def(
          "has_value",
          [](const Value& value) {
            int has = 0;
            check(api().HasValue(value.raw(), &has));
            return has != 0;
          },
          "Whether this holds anything; an optional output of a model may not.")
      .def("__repr__", &describe);
}

// Functions that return the contents of a value.
void bind_contents(py::class_<Value>& value) {
  value
      .def("update_inplace", &update_in_place, py::arg("data"),
           "Copies the elements of an array or an OrtValue into the tensor, in row-major order.\n\n"
           "It must have the tensor's type and number of elements; its shape may differ.")
      .def(
          "as_sparse_tensor",
          [](const py::object& self) {
            return py::module_::import("ortrain.sparse").attr("SparseTensor")(self);
          },
          "The SparseTensor over this value. Raises ValueError if it is not sparse.")
      .def("elements", &Value::elements,
           "Copies of the tensors or maps of a sequence; the keys and values of a map.")
      .def(
          "numpy", [](const py::object& self) { return self.cast<const Value&>().to_array(self); },
          "An array over the tensor's memory, which keeps the tensor alive. Writing to it changes the "
          "tensor.\n\n"
          "Types that NumPy does not have are those of ml_dtypes, or their bits if that is not installed. "
          "Elements smaller than a byte are copied into a byte each.")
      .def(
          "data_ptr", [](const Value& value) { return reinterpret_cast<uintptr_t>(value.data()); },
          "Address of the first element.")
      .def(
          "__dlpack__",
          [](const py::object& self, const py::args&, const py::kwargs&) { return to_dlpack(self); },
          "The tensor as a DLPack capsule that shares its memory.")
      .def(
          "__dlpack_device__", [](const Value&) { return py::make_tuple(kDlCpu, 0); },
          "The device in DLPack's notation, (1, 0) for the CPU.");
}

}  // namespace

void bind_support(py::module_& module) {
  GilReleased::wait_at_exit();
  translate_errors();
  module.attr("__version__") = ORTRAIN_VERSION;
  bind_types(module);
  py::class_<Value> value(
      module, "OrtValue",
      "A tensor, or a sequence of tensors, on the CPU. A tensor shares memory with the NumPy arrays "
      "created from it.");
  bind_making(value);
  bind_description(value);
  bind_contents(value);
  bind_sparse(module);
  bind_compile(module);
  bind_logging(module);
}

}  // namespace ortrain::python
