#include "capi/sparse.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "capi/generated/bodies.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "op/operator.h"
#include "op/session_domain.h"
#include "runtime/text_tensor.h"

namespace ortrain::capi {
namespace {

// ---- types and formats of sparse tensors ----

const OrtSparseTensor& sparse_of(const OrtValue& value) {
  require(value.sparse != nullptr, ErrorCode::kRuntimeException, "the value is ",
          value.maps ? "a map" : ortrain::describe(value.value), ", expected a sparse tensor");
  return *value.sparse;
}

const OrtSparseTensor& filled(const OrtValue& value) {
  const OrtSparseTensor& tensor = sparse_of(value);
  require(tensor.format != ORT_SPARSE_UNDEFINED, ErrorCode::kFail, "the sparse tensor has no indices yet");
  return tensor;
}

OrtSparseTensor& unfilled(const OrtValue& value) {
  const OrtSparseTensor& tensor = sparse_of(value);
  require(tensor.format == ORT_SPARSE_UNDEFINED, ErrorCode::kFail, "the sparse tensor has indices already");
  return const_cast<OrtSparseTensor&>(tensor);
}

Shape shape_of(const char* what, const int64_t* dims, size_t rank, ErrorCode code) {
  Shape shape(dims, dims + rank);
  require(std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size >= 0; }), code, what, " is ",
          to_string(shape), ", expected no negative dimension");
  return shape;
}

OrtValue* make_sparse(OrtAllocator* allocator, const int64_t* dims, size_t rank,
                      ONNXTensorElementDataType type) {
  const DType dtype = dtype_of(type);
  const bool complex = dtype == DType::kComplex64 || dtype == DType::kComplex128;
  require(type <= ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ && !complex, ErrorCode::kNotImplemented,
          "sparse tensors of type ", to_string(dtype), " are not supported");
  Shape shape = shape_of("dense_shape", dims, rank, ErrorCode::kInvalidArgument);
  return new OrtValue{
      Nothing{}, nullptr,
      std::make_shared<OrtSparseTensor>(OrtSparseTensor{allocator, dtype, std::move(shape), {}, {}, {}, {}})};
}

void check_range(const char* what, const int64_t* numbers, int64_t count, int64_t step, int64_t end) {
  for (int64_t i = 0; i < count; i += step)
    require(numbers[i] >= 0 && numbers[i] < end, ErrorCode::kInvalidArgument, what, " ", i / step, " is ",
            numbers[i], ", expected a number of 0 or more and below ", end);
}

// Both return the shape of the indices.
Shape check_coo(const Shape& dense, int64_t count, const int64_t* indices, size_t indices_num) {
  const auto given = static_cast<int64_t>(indices_num);
  if (given == 2 * count && (dense.size() == 2 || count == 0)) {
    for (int64_t axis = 0; count > 0 && axis < 2; ++axis)
      check_range(axis == 0 ? "the row of value" : "the column of value", indices + axis, given - axis, 2,
                  dense[static_cast<size_t>(axis)]);
    return {count, 2};
  }
  require(given == count, ErrorCode::kInvalidArgument, "a sparse tensor of shape ", to_string(dense), " and ",
          counted(count, "value"), " needs ", counted(count, "index"),
          dense.size() == 2 ? ", or twice as many" : "", ", found ", given);
  check_range("the index of value", indices, given, 1, element_count(dense));
  return {count};
}

void check_csr(const Shape& dense, int64_t count, const int64_t* columns, size_t columns_num,
               const int64_t* starts, size_t starts_num) {
  require(dense.size() == 2, ErrorCode::kFail, "the shape is ", to_string(dense), ", expected a matrix");
  require(columns_num == static_cast<size_t>(count), ErrorCode::kInvalidArgument, "there are ",
          counted(count, "value"), " and ", counted(columns_num, "column"), ", expected as many");
  const size_t rows = count == 0 ? 0 : static_cast<size_t>(dense[0]) + 1;
  require(starts_num == rows, ErrorCode::kFail, "there are ", counted(starts_num, "start"),
          " of rows, expected ", rows, " for ", counted(count, "value"), " in a matrix of shape ",
          to_string(dense));
  check_range("the column of value", columns, count, 1, dense[1]);
  for (size_t i = 0; i < rows; ++i) {
    const int64_t least = i == 0 ? 0 : starts[i - 1];
    const int64_t most = i == 0 ? 0 : count;
    const bool fits = starts[i] >= least && starts[i] <= most && (i + 1 < rows || starts[i] == count);
    require(fits, ErrorCode::kInvalidArgument, "start ", i, " of ", rows, " is ", starts[i],
            "; starts begin with 0, end with ", count, ", and never decrease");
  }
}

void check_blocks(const Shape& values, const Shape& indices) {
  if (element_count(values) == 0 && element_count(indices) == 0) return;
  require(values.size() >= 3, ErrorCode::kFail, "the values have shape ", to_string(values),
          ", expected the number of blocks and the dimensions of a block");
  require(indices == Shape({2, values[0]}), ErrorCode::kFail, "the indices have shape ", to_string(indices),
          ", expected ", to_string(Shape{2, values[0]}), " for ", counted(values[0], "block"));
}

Tensor copied(OrtAllocator* allocator, DType dtype, const Shape& shape, const void* from, const char* name) {
  Tensor to = allocate_tensor(allocator, dtype, shape);
  if (to.size() == 0) return to;
  check_pointer(from, name);
  if (dtype != DType::kString) {
    std::memcpy(to.raw(), from, to.bytes());
    return to;
  }
  for (size_t i = 0; i < static_cast<size_t>(to.size()); ++i) {
    const char* one = static_cast<const char* const*>(from)[i];
    check_pointer(one, "values[i]");
    own_text(to, i) = one;
  }
  return to;
}

// A sparse tensor that takes copies, and a sparse tensor that uses memory of the caller.
OrtSparseTensor& to_fill(const OrtValue& value) {
  OrtSparseTensor& tensor = unfilled(value);
  require(tensor.allocator != nullptr, ErrorCode::kFail,
          "the sparse tensor uses values of the caller, expected a call that uses indices of the caller");
  return tensor;
}
OrtSparseTensor& to_use(const OrtValue& value) {
  OrtSparseTensor& tensor = unfilled(value);
  require(tensor.allocator == nullptr, ErrorCode::kFail,
          "the sparse tensor has no values yet, expected a call that fills it");
  return tensor;
}

Tensor view(DType dtype, Shape shape, void* data) { return Tensor(dtype, std::move(shape), data); }

const Tensor& indices_of(const OrtValue& value, OrtSparseIndicesFormat format) {
  const OrtSparseTensor& tensor = filled(value);
  require(format >= ORT_SPARSE_COO_INDICES && format <= ORT_SPARSE_BLOCK_SPARSE_INDICES,
          ErrorCode::kInvalidArgument, "indices_format is ", static_cast<int>(format),
          ", expected a number from 0 to 3");
  const OrtSparseFormat needed = format == ORT_SPARSE_COO_INDICES            ? ORT_SPARSE_COO
                                 : format == ORT_SPARSE_BLOCK_SPARSE_INDICES ? ORT_SPARSE_BLOCK_SPARSE
                                                                             : ORT_SPARSE_CSRC;
  require(tensor.format == needed, ErrorCode::kFail, "the sparse tensor has the format ",
          static_cast<int>(tensor.format), ", expected ", static_cast<int>(needed), " for such indices");
  return format == ORT_SPARSE_CSR_OUTER_INDICES ? tensor.starts : tensor.indices;
}

// ---- models with sparse inputs ----

bool multiplies(const Node& node) {
  return node.domain == kMicrosoft && node.op_type == "SparseToDenseMatMul";
}

void rewrite(Graph& graph, const std::map<std::string, SparsePort>& ports) {
  for (Node& node : graph.nodes) {
    const auto port_of = [&](size_t i) { return ports.find(node.inputs[i]); };
    require(!multiplies(node) || port_of(0) != ports.end(), ErrorCode::kInvalidGraph, node.label(),
            ": its input A is a tensor, expected a sparse one that is an input of the model");
    for (size_t i = 0; i < node.inputs.size(); ++i)
      require(port_of(i) == ports.end() || (i == 0 && multiplies(node)), ErrorCode::kInvalidGraph,
              node.label(), ": its input ", i, ", '", node.inputs[i],
              "', is a sparse tensor, which this operator does not take");
    if (multiplies(node)) {
      const SparsePort& port = port_of(0)->second;
      const bool known =
          visit_types<float, double, int32_t, int64_t, uint32_t, uint64_t>(port.info.dtype, [](auto) {});
      require(known, ErrorCode::kInvalidGraph, node.label(), ": its input A has type ",
              to_string(port.info.dtype), ", expected float, double, int32, int64, uint32 or uint64");
      node.domain = kSessionDomain;
      node.op_type = "SparseProduct";
      node.inputs.insert(node.inputs.begin() + 1, {port.indices, port.shape});
    }
    for (auto& [name, attribute] : node.attributes)
      if (auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute); inner && *inner)
        rewrite(**inner, ports);
  }
}

// The coordinates of the values of a matrix that is stored by rows.
Tensor coordinates(const OrtSparseTensor& given) {
  const int64_t count = given.values.size();
  check_csr(given.shape, count, given.indices.data<int64_t>(), static_cast<size_t>(given.indices.size()),
            given.starts.data<int64_t>(), static_cast<size_t>(given.starts.size()));
  Tensor pairs(DType::kInt64, {count, 2});
  int64_t* to = pairs.data<int64_t>();
  const int64_t* columns = given.indices.data<int64_t>();
  const int64_t* starts = given.starts.data<int64_t>();
  for (int64_t row = 0; row + 1 < given.starts.size(); ++row)
    for (int64_t i = starts[row]; i < starts[row + 1]; ++i) {
      *to++ = row;
      *to++ = columns[i];
    }
  return pairs;
}

}  // namespace

// ---- calls ----

void CreateSparseTensorAsOrtValue(OrtAllocator* allocator, const int64_t* dense_shape, size_t dense_shape_len,
                                  ONNXTensorElementDataType type, OrtValue** out) {
  *out = make_sparse(allocator, dense_shape, dense_shape_len, type);
}

void CreateSparseTensorWithValuesAsOrtValue(const OrtMemoryInfo*, void* p_data, const int64_t* dense_shape,
                                            size_t dense_shape_len, const int64_t* values_shape,
                                            size_t values_shape_len, ONNXTensorElementDataType type,
                                            OrtValue** out) {
  require(type != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, ErrorCode::kInvalidArgument,
          "strings cannot be stored in memory of the caller; create the sparse tensor with an allocator and "
          "fill it");
  Shape shape = shape_of("values_shape", values_shape, values_shape_len, ErrorCode::kInvalidArgument);
  require(p_data != nullptr || element_count(shape) == 0, ErrorCode::kInvalidArgument,
          "p_data is null, expected values of shape ", to_string(shape));
  std::unique_ptr<OrtValue> made(make_sparse(nullptr, dense_shape, dense_shape_len, type));
  made->sparse->values = view(made->sparse->dtype, std::move(shape), p_data);
  *out = made.release();
}

void FillSparseTensorCoo(OrtValue* ort_value, const OrtMemoryInfo*, const int64_t* values_shape,
                         size_t values_shape_len, const void* values, const int64_t* indices_data,
                         size_t indices_num) {
  OrtSparseTensor& tensor = to_fill(*ort_value);
  OrtSparseTensor made = tensor;
  const int64_t count =
      element_count(shape_of("values_shape", values_shape, values_shape_len, ErrorCode::kFail));
  const Shape places = check_coo(tensor.shape, count, indices_data, indices_num);
  made.format = ORT_SPARSE_COO;
  made.values = copied(made.allocator, made.dtype, {count}, values, "values");
  made.indices = copied(made.allocator, DType::kInt64, places, indices_data, "indices_data");
  tensor = std::move(made);
}

void FillSparseTensorCsr(OrtValue* ort_value, const OrtMemoryInfo*, const int64_t* values_shape,
                         size_t values_shape_len, const void* values, const int64_t* inner_indices_data,
                         size_t inner_indices_num, const int64_t* outer_indices_data,
                         size_t outer_indices_num) {
  OrtSparseTensor& tensor = to_fill(*ort_value);
  OrtSparseTensor made = tensor;
  const int64_t count =
      element_count(shape_of("values_shape", values_shape, values_shape_len, ErrorCode::kFail));
  check_csr(tensor.shape, count, inner_indices_data, inner_indices_num, outer_indices_data,
            outer_indices_num);
  made.format = ORT_SPARSE_CSRC;
  made.values = copied(made.allocator, made.dtype, {count}, values, "values");
  made.indices = copied(made.allocator, DType::kInt64, {count}, inner_indices_data, "inner_indices_data");
  made.starts = copied(made.allocator, DType::kInt64, {static_cast<int64_t>(outer_indices_num)},
                       outer_indices_data, "outer_indices_data");
  tensor = std::move(made);
}

void FillSparseTensorBlockSparse(OrtValue* ort_value, const OrtMemoryInfo*, const int64_t* values_shape,
                                 size_t values_shape_len, const void* values,
                                 const int64_t* indices_shape_data, size_t indices_shape_len,
                                 const int32_t* indices_data) {
  OrtSparseTensor& tensor = to_fill(*ort_value);
  OrtSparseTensor made = tensor;
  const Shape shape = shape_of("values_shape", values_shape, values_shape_len, ErrorCode::kFail);
  const Shape places = shape_of("indices_shape", indices_shape_data, indices_shape_len, ErrorCode::kFail);
  check_blocks(shape, places);
  made.format = ORT_SPARSE_BLOCK_SPARSE;
  made.values = copied(made.allocator, made.dtype, shape, values, "values");
  made.indices = copied(made.allocator, DType::kInt32, places, indices_data, "indices_data");
  tensor = std::move(made);
}

void UseCooIndices(OrtValue* ort_value, int64_t* indices_data, size_t indices_num) {
  OrtSparseTensor& tensor = unfilled(*ort_value);
  Shape places = check_coo(tensor.shape, tensor.values.size(), indices_data, indices_num);
  to_use(*ort_value).indices = view(DType::kInt64, std::move(places), indices_data);
  tensor.format = ORT_SPARSE_COO;
}

void UseCsrIndices(OrtValue* ort_value, int64_t* inner_data, size_t inner_num, int64_t* outer_data,
                   size_t outer_num) {
  OrtSparseTensor& tensor = to_use(*ort_value);
  check_csr(tensor.shape, tensor.values.size(), inner_data, inner_num, outer_data, outer_num);
  tensor.indices = view(DType::kInt64, {static_cast<int64_t>(inner_num)}, inner_data);
  tensor.starts = view(DType::kInt64, {static_cast<int64_t>(outer_num)}, outer_data);
  tensor.format = ORT_SPARSE_CSRC;
}

void UseBlockSparseIndices(OrtValue* ort_value, const int64_t* indices_shape, size_t indices_shape_len,
                           int32_t* indices_data) {
  OrtSparseTensor& tensor = to_use(*ort_value);
  Shape places = shape_of("indices_shape", indices_shape, indices_shape_len, ErrorCode::kFail);
  check_blocks(tensor.values.shape(), places);
  if (element_count(places) > 0) check_pointer(indices_data, "indices_data");
  tensor.indices = view(DType::kInt32, std::move(places), indices_data);
  tensor.format = ORT_SPARSE_BLOCK_SPARSE;
}

void GetSparseTensorFormat(const OrtValue* ort_value, OrtSparseFormat* out) {
  *out = sparse_of(*ort_value).format;
}
void GetSparseTensorValuesTypeAndShape(const OrtValue* ort_value, OrtTensorTypeAndShapeInfo** out) {
  *out = new OrtTensorTypeAndShapeInfo(describe(filled(*ort_value).values));
}
void GetSparseTensorValues(const OrtValue* ort_value, const void** out) {
  const Tensor& values = filled(*ort_value).values;
  require(values.dtype() != DType::kString, ErrorCode::kInvalidArgument,
          "the values are strings, expected a call for the strings of a tensor");
  *out = values.raw();
}
void GetSparseTensorIndicesTypeShape(const OrtValue* ort_value, OrtSparseIndicesFormat indices_format,
                                     OrtTensorTypeAndShapeInfo** out) {
  *out = new OrtTensorTypeAndShapeInfo(describe(indices_of(*ort_value, indices_format)));
}
void GetSparseTensorIndices(const OrtValue* ort_value, OrtSparseIndicesFormat indices_format,
                            size_t* num_indices, const void** indices) {
  const Tensor& found = indices_of(*ort_value, indices_format);
  *num_indices = static_cast<size_t>(found.size());
  *indices = found.raw();
}

// ---- sessions ----

SparsePorts take_sparse(Model& model, const ModelNotes& notes) {
  SparsePorts ports;
  Graph& graph = model.graph;
  std::vector<ValueInfo> added;
  for (ValueInfo& input : graph.inputs) {
    if (notes.sparse.count(input.name) == 0) continue;
    SparsePort port{input, graph.unique_name(input.name + " indices"),
                    graph.unique_name(input.name + " shape")};
    const std::vector<Dim> any(2);
    const std::vector<Dim>& dims = input.dims ? *input.dims : any;
    const Dim none{0, ""}, pair{2, ""};
    // The input for the shape has a last dimension of 0: without elements, it carries dimensions only.
    std::vector<Dim> carried = dims;
    carried.push_back(none);
    added.push_back({port.indices, DType::kInt64, std::vector<Dim>{Dim(), pair}});
    added.push_back({port.shape, DType::kInt64, std::move(carried)});
    input.dims = std::vector<Dim>(1);
    ports.inputs.emplace(input.name, std::move(port));
  }
  rewrite(graph, ports.inputs);
  graph.inputs.insert(graph.inputs.end(), added.begin(), added.end());
  const auto passed = [&](const ValueInfo& output) { return ports.inputs.count(output.name) > 0; };
  if (std::any_of(graph.outputs.begin(), graph.outputs.end(), passed)) {
    for (const ValueInfo& output : graph.outputs) ports.outputs.push_back(output.name);
    std::erase_if(graph.outputs, passed);
  }
  return ports;
}

OrtSparseTensor sparse_of_tensor(const Tensor& tensor) {
  const bool is_text = tensor.dtype() == DType::kString;
  require(is_text || !is_packed(tensor.dtype()), ErrorCode::kNotImplemented, "sparse tensors of type ",
          to_string(tensor.dtype()), " are not supported");
  const size_t width = is_text ? sizeof(Text) : size_of(tensor.dtype());
  const std::vector<std::byte> zero(width);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const bool is_zero =
        is_text ? text(text_places(tensor)[i]).empty()
                : std::memcmp(tensor.raw() + static_cast<size_t>(i) * width, zero.data(), width) == 0;
    if (!is_zero) places.push_back(i);
  }
  const auto count = static_cast<int64_t>(places.size());
  OrtSparseTensor made{
      default_allocator(), tensor.dtype(), tensor.shape(), ORT_SPARSE_COO, {}, Tensor::of(places), {}};
  if (is_text) {
    std::vector<std::string> texts;
    for (const int64_t place : places) texts.push_back(text(text_places(tensor)[place]));
    made.values = text_tensor(std::move(texts), Shape{count});
    return made;
  }
  made.values = Tensor(tensor.dtype(), Shape{count});
  for (size_t i = 0; i < places.size(); ++i)
    std::memcpy(made.values.raw() + i * width, tensor.raw() + static_cast<size_t>(places[i]) * width, width);
  return made;
}

std::vector<std::pair<std::string, Value>> tensors_of_sparse(const std::string& name, const SparsePort& port,
                                                             const OrtSparseTensor& given) {
  const ErrorCode refused = ErrorCode::kInvalidArgument;
  require(given.dtype == port.info.dtype, refused, "input '", name, "': expected a sparse tensor of type ",
          to_string(port.info.dtype), ", found one of type ", to_string(given.dtype));
  require(!port.info.dims || port.info.dims->size() == given.shape.size(), refused, "input '", name,
          "': expected rank ", port.info.dims ? port.info.dims->size() : 0, ", found shape ",
          to_string(given.shape));
  for (size_t i = 0; port.info.dims && i < given.shape.size(); ++i) {
    const Dim& dim = (*port.info.dims)[i];
    require(!dim.known() || dim.value == given.shape[i], refused, "input '", name, "': expected size ",
            dim.value, " along dimension ", i, ", found shape ", to_string(given.shape));
  }
  require(given.shape.size() == 2, refused, "input '", name, "': expected a matrix, found shape ",
          to_string(given.shape));
  require(given.format == ORT_SPARSE_COO || given.format == ORT_SPARSE_CSRC, refused, "input '", name,
          "': expected a sparse tensor with coordinates or rows, found the format ",
          static_cast<int>(given.format));
  Tensor pairs;
  if (given.format == ORT_SPARSE_CSRC) {
    pairs = coordinates(given);
  } else {
    pairs = given.indices;
    require(pairs.shape().size() == 2, ErrorCode::kFail, "input '", name,
            "': expected a pair of row and column for each value, found indices that count elements");
  }
  Shape carried = given.shape;
  carried.push_back(0);
  return {{name, given.values},
          {port.indices, std::move(pairs)},
          {port.shape, Tensor(DType::kInt64, std::move(carried))}};
}

}  // namespace ortrain::capi
