#include "graph/onnx_proto.h"

namespace ortrain::onnx {

namespace {

using protobuf::checked;
using protobuf::checked_numbers;
using protobuf::Field;
using protobuf::field;
using protobuf::one_of;
using protobuf::packed;
using protobuf::Type;

// Messages that are not stored (NodeDeviceConfigurationProto, ShardingSpecProto and what they hold,
// TensorAnnotation, TrainingInfoProto). Of their fields, those matter that can be malformed: messages and
// lists of numbers.
constexpr Type kFlat;
constexpr Field kIntIntListEntryFields[] = {checked_numbers(2)};
constexpr Type kIntIntListEntryType(kIntIntListEntryFields);
constexpr Field kShardedDimFields[] = {checked(2, kFlat)};
constexpr Type kShardedDimType(kShardedDimFields);
constexpr Field kShardingSpecFields[] = {checked_numbers(2), checked(3, kIntIntListEntryType),
                                         checked(4, kShardedDimType)};
constexpr Type kShardingSpecType(kShardingSpecFields);
constexpr Field kNodeDevicesFields[] = {checked(2, kShardingSpecType)};
constexpr Type kNodeDevicesType(kNodeDevicesFields);
constexpr Field kAnnotationFields[] = {checked(2, StringStringEntryProto::kType)};
constexpr Type kAnnotationType(kAnnotationFields);
constexpr Field kTrainingInfoFields[] = {
    checked(1, GraphProto::kType),
    checked(2, GraphProto::kType),
    checked(3, StringStringEntryProto::kType),
    checked(4, StringStringEntryProto::kType),
};
constexpr Type kTrainingInfoType(kTrainingInfoFields);

constexpr Field kStringStringEntryFields[] = {
    field<&StringStringEntryProto::key>(1),
    field<&StringStringEntryProto::value>(2),
};

constexpr Field kOperatorSetIdFields[] = {
    field<&OperatorSetIdProto::domain>(1),
    field<&OperatorSetIdProto::version>(2),
};

constexpr Field kTensorFields[] = {
    field<&TensorProto::dims>(1),           field<&TensorProto::data_type>(2),
    field<&TensorProto::segment>(3),        packed<&TensorProto::float_data>(4),
    packed<&TensorProto::int32_data>(5),    field<&TensorProto::string_data>(6),
    packed<&TensorProto::int64_data>(7),    field<&TensorProto::name>(8),
    field<&TensorProto::raw_data>(9),       packed<&TensorProto::double_data>(10),
    packed<&TensorProto::uint64_data>(11),  field<&TensorProto::external_data>(13),
    field<&TensorProto::data_location>(14), checked(16, StringStringEntryProto::kType),  // metadata_props
};

constexpr Field kSparseTensorFields[] = {
    field<&SparseTensorProto::values>(1),
    field<&SparseTensorProto::indices>(2),
    field<&SparseTensorProto::dims>(3),
};

constexpr Field kTensorShapeDimensionFields[] = {
    one_of<&TensorShapeProto::Dimension::dim_value>(1),
    one_of<&TensorShapeProto::Dimension::dim_param>(2),
    field<&TensorShapeProto::Dimension::denotation>(3),
};

constexpr Field kTensorShapeFields[] = {
    field<&TensorShapeProto::dim>(1),
};

constexpr Field kTypeTensorFields[] = {
    field<&TypeProto::Tensor::elem_type>(1),
    field<&TypeProto::Tensor::shape>(2),
};

constexpr Field kTypeHolderFields[] = {
    field<&TypeProto::Holder::elem_type>(1),
};

constexpr Field kTypeMapFields[] = {
    field<&TypeProto::Map::key_type>(1),
    field<&TypeProto::Map::value_type>(2),
};

constexpr Field kTypeFields[] = {
    one_of<&TypeProto::tensor_type>(1),        one_of<&TypeProto::sequence_type>(4),
    one_of<&TypeProto::map_type>(5),           one_of<&TypeProto::opaque_type>(7),
    one_of<&TypeProto::sparse_tensor_type>(8), one_of<&TypeProto::optional_type>(9),
};

constexpr Field kValueInfoFields[] = {
    field<&ValueInfoProto::name>(1), field<&ValueInfoProto::type>(2),
    checked(4, StringStringEntryProto::kType),  // metadata_props
};

constexpr Field kAttributeFields[] = {
    field<&AttributeProto::name>(1),
    field<&AttributeProto::f>(2),
    field<&AttributeProto::i>(3),
    field<&AttributeProto::s>(4),
    field<&AttributeProto::t>(5),
    field<&AttributeProto::g>(6),
    field<&AttributeProto::floats>(7),
    field<&AttributeProto::ints>(8),
    field<&AttributeProto::strings>(9),
    checked(10, TensorProto::kType),  // tensors
    checked(11, GraphProto::kType),   // graphs
    field<&AttributeProto::tp>(14),
    checked(15, TypeProto::kType),  // type_protos
    field<&AttributeProto::type>(20),
    field<&AttributeProto::ref_attr_name>(21),
    field<&AttributeProto::sparse_tensor>(22),
    checked(23, SparseTensorProto::kType),  // sparse_tensors
};

constexpr Field kNodeFields[] = {
    field<&NodeProto::input>(1),     field<&NodeProto::output>(2),
    field<&NodeProto::name>(3),      field<&NodeProto::op_type>(4),
    field<&NodeProto::attribute>(5), field<&NodeProto::domain>(7),
    field<&NodeProto::overload>(8),  checked(9, StringStringEntryProto::kType),  // metadata_props
    checked(10, kNodeDevicesType),                                               // device_configurations
};

constexpr Field kGraphFields[] = {
    field<&GraphProto::node>(1),
    field<&GraphProto::name>(2),
    field<&GraphProto::initializer>(5),
    field<&GraphProto::doc_string>(10),
    field<&GraphProto::input>(11),
    field<&GraphProto::output>(12),
    field<&GraphProto::value_info>(13),
    checked(14, kAnnotationType),  // quantization_annotation
    field<&GraphProto::sparse_initializer>(15),
    checked(16, StringStringEntryProto::kType),  // metadata_props
};

constexpr Field kFunctionFields[] = {
    field<&FunctionProto::name>(1),      field<&FunctionProto::input>(4),
    field<&FunctionProto::output>(5),    field<&FunctionProto::attribute>(6),
    field<&FunctionProto::node>(7),      field<&FunctionProto::opset_import>(9),
    field<&FunctionProto::domain>(10),   field<&FunctionProto::attribute_proto>(11),
    checked(12, ValueInfoProto::kType),                                               // value_info
    field<&FunctionProto::overload>(13), checked(14, StringStringEntryProto::kType),  // metadata_props
};

constexpr Field kModelFields[] = {
    field<&ModelProto::ir_version>(1),
    field<&ModelProto::producer_name>(2),
    field<&ModelProto::producer_version>(3),
    field<&ModelProto::domain>(4),
    field<&ModelProto::model_version>(5),
    field<&ModelProto::doc_string>(6),
    field<&ModelProto::graph>(7),
    field<&ModelProto::opset_import>(8),
    field<&ModelProto::metadata_props>(14),
    checked(20, kTrainingInfoType),  // training_info
    field<&ModelProto::functions>(25),
    checked(26, kFlat),  // configuration
};

}  // namespace

constinit const Type StringStringEntryProto::kType(kStringStringEntryFields);
constinit const Type OperatorSetIdProto::kType(kOperatorSetIdFields);
constinit const Type TensorProto::Segment::kType;
constinit const Type TensorProto::kType(kTensorFields);
constinit const Type SparseTensorProto::kType(kSparseTensorFields);
constinit const Type TensorShapeProto::Dimension::kType(kTensorShapeDimensionFields);
constinit const Type TensorShapeProto::kType(kTensorShapeFields);
constinit const Type TypeProto::Tensor::kType(kTypeTensorFields);
constinit const Type TypeProto::Holder::kType(kTypeHolderFields);
constinit const Type TypeProto::Map::kType(kTypeMapFields);
constinit const Type TypeProto::Opaque::kType;
constinit const Type TypeProto::kType(kTypeFields);
constinit const Type ValueInfoProto::kType(kValueInfoFields);
constinit const Type AttributeProto::kType(kAttributeFields);
constinit const Type NodeProto::kType(kNodeFields);
constinit const Type GraphProto::kType(kGraphFields);
constinit const Type FunctionProto::kType(kFunctionFields);
constinit const Type ModelProto::kType(kModelFields);

const char* name_of(AttributeProto::AttributeType type) {
  static constexpr const char* kNames[] = {
      "UNDEFINED", "FLOAT",   "INT",    "STRING",        "TENSOR",         "GRAPH",      "FLOATS",     "INTS",
      "STRINGS",   "TENSORS", "GRAPHS", "SPARSE_TENSOR", "SPARSE_TENSORS", "TYPE_PROTO", "TYPE_PROTOS"};
  return kNames[type];
}

}  // namespace ortrain::onnx
