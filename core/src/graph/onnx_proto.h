// The messages of an ONNX file, named as in onnx.proto. Fields that nothing here reads or writes are left
// out: they are skipped (onnx_proto.cpp has the table of all fields).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/protobuf.h"

namespace ortrain::onnx {

using protobuf::Box;

// The text of a field, empty if it is absent.
inline const std::string& text_of(const std::optional<std::string>& field) {
  static const std::string absent;
  return field ? *field : absent;
}

struct StringStringEntryProto {
  std::optional<std::string> key, value;
  static const protobuf::Type kType;
};

struct OperatorSetIdProto {
  std::optional<std::string> domain;
  int64_t version = 0;
  static const protobuf::Type kType;
};

struct TensorProto {
  enum DataLocation : int32_t { DEFAULT = 0, EXTERNAL = 1 };
  friend constexpr bool is_known(DataLocation value) { return value == DEFAULT || value == EXTERNAL; }

  struct Segment {
    static const protobuf::Type kType;
  };
  std::vector<int64_t> dims;
  int32_t data_type = 0;
  Box<Segment> segment;
  std::vector<float> float_data;
  std::vector<int32_t> int32_data;
  std::vector<std::string> string_data;
  std::vector<int64_t> int64_data;
  std::string name;
  std::optional<std::string_view> raw_data;  // in the file, or in the tensor that is written
  std::vector<double> double_data;
  std::vector<uint64_t> uint64_data;
  std::vector<StringStringEntryProto> external_data;
  DataLocation data_location = DEFAULT;
  static const protobuf::Type kType;
};

struct SparseTensorProto {
  Box<TensorProto> values, indices;
  std::vector<int64_t> dims;
  static const protobuf::Type kType;
};

struct TensorShapeProto {
  struct Dimension {
    std::optional<int64_t> dim_value;      // one of the two
    std::optional<std::string> dim_param;  //
    std::string denotation;
    void clear_value() { dim_value.reset(), dim_param.reset(); }
    static const protobuf::Type kType;
  };
  std::vector<Dimension> dim;
  static const protobuf::Type kType;
};

struct TypeProto {
  struct Tensor {  // or sparse tensor
    std::optional<int32_t> elem_type;
    Box<TensorShapeProto> shape;
    static const protobuf::Type kType;
  };
  struct Holder {  // a sequence or an optional
    Box<TypeProto> elem_type;
    static const protobuf::Type kType;
  };
  struct Map {
    int32_t key_type = 0;
    Box<TypeProto> value_type;
    static const protobuf::Type kType;
  };
  struct Opaque {
    static const protobuf::Type kType;
  };
  // At most one of these.
  Box<Tensor> tensor_type, sparse_tensor_type;
  Box<Holder> sequence_type, optional_type;
  Box<Map> map_type;
  Box<Opaque> opaque_type;
  void clear_value() { *this = TypeProto(); }
  bool has_value() const {
    return tensor_type || sparse_tensor_type || sequence_type || optional_type || map_type || opaque_type;
  }
  static const protobuf::Type kType;
};

struct ValueInfoProto {
  std::string name;
  Box<TypeProto> type;
  static const protobuf::Type kType;
};

struct GraphProto;

struct AttributeProto {
  enum AttributeType : int32_t {
    UNDEFINED = 0,
    FLOAT = 1,
    INT = 2,
    STRING = 3,
    TENSOR = 4,
    GRAPH = 5,
    FLOATS = 6,
    INTS = 7,
    STRINGS = 8,
    TENSORS = 9,
    GRAPHS = 10,
    SPARSE_TENSOR = 11,
    SPARSE_TENSORS = 12,
    TYPE_PROTO = 13,
    TYPE_PROTOS = 14,
  };
  friend constexpr bool is_known(AttributeType value) { return value >= UNDEFINED && value <= TYPE_PROTOS; }

  std::string name;
  std::optional<float> f;
  std::optional<int64_t> i;
  std::optional<std::string> s;
  Box<TensorProto> t;
  Box<GraphProto> g;
  std::vector<float> floats;
  std::vector<int64_t> ints;
  std::vector<std::string> strings;
  Box<TypeProto> tp;
  AttributeType type = UNDEFINED;
  std::string ref_attr_name;
  Box<SparseTensorProto> sparse_tensor;
  static const protobuf::Type kType;
};

// The name of a kind of attribute, as in "FLOATS".
const char* name_of(AttributeProto::AttributeType type);

struct NodeProto {
  std::vector<std::string> input, output;
  std::string name, op_type, domain, overload;
  std::vector<AttributeProto> attribute;
  static const protobuf::Type kType;
};

struct GraphProto {
  std::vector<NodeProto> node;
  std::string name, doc_string;
  std::vector<TensorProto> initializer;
  std::vector<SparseTensorProto> sparse_initializer;
  std::vector<ValueInfoProto> input, output, value_info;
  static const protobuf::Type kType;
};

struct FunctionProto {
  std::string name, domain, overload;
  std::vector<std::string> input, output, attribute;
  std::vector<AttributeProto> attribute_proto;
  std::vector<NodeProto> node;
  std::vector<OperatorSetIdProto> opset_import;
  static const protobuf::Type kType;
};

struct ModelProto {
  int64_t ir_version = 0, model_version = 0;
  std::string producer_name, producer_version, domain, doc_string;
  std::vector<OperatorSetIdProto> opset_import;
  Box<GraphProto> graph;
  std::vector<StringStringEntryProto> metadata_props;
  std::vector<FunctionProto> functions;
  std::shared_ptr<const void> kept;  // memory that raw data are in, if this owns it
  static const protobuf::Type kType;
};

}  // namespace ortrain::onnx
