// Sparse tensors in Python: an OrtValue over arrays of values and indices, and arrays over those of an
// OrtValue. ortrain/sparse.py is the class that callers see.
#include "support.h"

namespace ortrain::python {
namespace {

using Info = std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)>;

std::vector<int64_t> shape_of(const OrtTensorTypeAndShapeInfo* info) {
  size_t rank = 0;
  check(api().GetDimensionsCount(info, &rank));
  std::vector<int64_t> dims(rank);
  check(api().GetDimensions(info, dims.data(), rank));
  return dims;
}

using Indices = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

int64_t* data_of(const Indices& array) { return const_cast<int64_t*>(array.data()); }

// Of strings, a tensor with copies of them; otherwise one over the memory of the arrays.
Value make_sparse(const std::vector<int64_t>& shape, const py::array& given, const Indices& indices,
                  const std::optional<Indices>& starts) {
  const ONNXTensorElementDataType type = element_type(given.dtype());
  const auto count = static_cast<size_t>(indices.size());
  OrtValue* made = nullptr;
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) {
    std::vector<std::string> texts;
    for (const py::handle one : given.attr("ravel")().attr("tolist")())
      texts.push_back(one.cast<std::string>());
    std::vector<const char*> pointers;
    for (const std::string& text : texts) pointers.push_back(c_text(text, "values"));
    check(api().CreateSparseTensorAsOrtValue(allocator(), shape.data(), shape.size(), type, &made));
    Value value(made);
    const auto n = static_cast<int64_t>(texts.size());
    check(starts
              ? api().FillSparseTensorCsr(made, cpu_memory(), &n, 1, pointers.data(), indices.data(), count,
                                          starts->data(), static_cast<size_t>(starts->size()))
              : api().FillSparseTensorCoo(made, cpu_memory(), &n, 1, pointers.data(), indices.data(), count));
    return value;
  }
  const py::array values = py::module_::import("numpy").attr("ascontiguousarray")(given);
  const std::vector<int64_t> values_shape(values.shape(), values.shape() + values.ndim());
  check(api().CreateSparseTensorWithValuesAsOrtValue(cpu_memory(), const_cast<void*>(values.data()),
                                                     shape.data(), shape.size(), values_shape.data(),
                                                     values_shape.size(), type, &made));
  Value value(made, py::make_tuple(values, indices, starts));
  check(starts ? api().UseCsrIndices(made, data_of(indices), count, data_of(*starts),
                                     static_cast<size_t>(starts->size()))
               : api().UseCooIndices(made, data_of(indices), count));
  return value;
}

py::array values_of(const py::object& self) {
  const Value& value = self.cast<const Value&>();
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api().GetSparseTensorValuesTypeAndShape(value.raw(), &raw));
  const Info info(raw, api().ReleaseTensorTypeAndShapeInfo);
  if (value.element_type() == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) return texts_of(value, shape_of(raw));
  const void* data = nullptr;
  check(api().GetSparseTensorValues(value.raw(), &data));
  return py::array(numpy_type(value.element_type()), shape_of(raw), data, self);
}

py::array indices_of(const py::object& self, int which) {
  const Value& value = self.cast<const Value&>();
  const auto format = static_cast<OrtSparseIndicesFormat>(which);
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  check(api().GetSparseTensorIndicesTypeShape(value.raw(), format, &raw));
  const Info info(raw, api().ReleaseTensorTypeAndShapeInfo);
  size_t count = 0;
  const void* data = nullptr;
  check(api().GetSparseTensorIndices(value.raw(), format, &count, &data));
  const py::dtype type =
      format == ORT_SPARSE_BLOCK_SPARSE_INDICES ? py::dtype::of<int32_t>() : py::dtype::of<int64_t>();
  return py::array(type, shape_of(raw), data, self);
}

}  // namespace

void bind_sparse(py::module_& module) {
  module.def("make_sparse_tensor", &make_sparse, py::arg("shape"), py::arg("values"), py::arg("indices"),
             py::arg("starts") = py::none(),
             "A sparse tensor over arrays: coordinates as indices, or columns and the starts of rows.");
  module.def(
      "sparse_tensor_format",
      [](const Value& value) {
        OrtSparseFormat format = ORT_SPARSE_UNDEFINED;
        check(api().GetSparseTensorFormat(value.raw(), &format));
        return static_cast<int>(format);
      },
      py::arg("value"), "The format of a sparse tensor, a value of OrtSparseFormat.");
  module.def("sparse_tensor_values", &values_of, py::arg("value"),
             "An array over the values of a sparse tensor; a copy of strings.");
  module.def(
      "sparse_tensor_indices", &indices_of, py::arg("value"), py::arg("which"),
      "An array over indices of a sparse tensor, which of them as a number of OrtSparseIndicesFormat.");
}

}  // namespace ortrain::python
