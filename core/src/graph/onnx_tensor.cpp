#include "graph/onnx_tensor.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/convert.h"
#include "runtime/memory.h"
#include "runtime/path.h"
#include "runtime/text_tensor.h"

namespace ortrain {

static_assert(std::endian::native == std::endian::little, "ONNX stores raw data in little-endian order");

using onnx::text_of;

namespace {

// The elements of a typed field, each converted to T. Values out of range are rejected: the file is damaged.
template <typename T, typename Field>
void copy_field(const Field& field, const char* field_name, Tensor& tensor) {
  T* to = reinterpret_cast<T*>(tensor.raw());
  for (const auto value : field) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      require(std::in_range<T>(value), ErrorCode::kInvalidGraph, field_name, " holds ", value,
              ", which is out of range for ", to_string(tensor.dtype()));
    *to++ = static_cast<T>(value);
  }
}

template <typename T, typename Field>
void read_field(const Field& field, const char* field_name, size_t values_per_element,
                const onnx::TensorProto& proto, Tensor& tensor, DType dtype, const Shape& shape,
                size_t count) {
  const size_t found = field.size();
  if (found != count * values_per_element) {
    const bool elsewhere = proto.float_data.size() + proto.int32_data.size() + proto.int64_data.size() +
                               proto.double_data.size() + proto.uint64_data.size() >
                           field.size();
    fail(ErrorCode::kInvalidGraph, "a tensor of type ", to_string(dtype), " and shape ", to_string(shape),
         " needs ", counted(count * values_per_element, "value"), " in ", field_name, ", found ", found,
         elsewhere ? " (and values in a field that is wrong for this type)" : "");
  }
  tensor = Tensor(dtype, shape);
  copy_field<T>(field, field_name, tensor);
}

void read_typed(const onnx::TensorProto& proto, Tensor& tensor, DType dtype, const Shape& shape,
                size_t count) {
  const auto read = [&]<typename T>(T, const auto& field, const char* name, size_t each = 1) {
    read_field<T>(field, name, each, proto, tensor, dtype, shape, count);
  };
  switch (dtype) {
    case DType::kFloat:
      return read(float{}, proto.float_data, "float_data");
    case DType::kComplex64:
      return read(float{}, proto.float_data, "float_data", 2);
    case DType::kDouble:
      return read(double{}, proto.double_data, "double_data");
    case DType::kComplex128:
      return read(double{}, proto.double_data, "double_data", 2);
    case DType::kInt64:
      return read(int64_t{}, proto.int64_data, "int64_data");
    case DType::kUInt64:
      return read(uint64_t{}, proto.uint64_data, "uint64_data");
    case DType::kUInt32:
      return read(uint32_t{}, proto.uint64_data, "uint64_data");
    case DType::kInt32:
      return read(int32_t{}, proto.int32_data, "int32_data");
    case DType::kInt16:
      return read(int16_t{}, proto.int32_data, "int32_data");
    case DType::kInt8:
      return read(int8_t{}, proto.int32_data, "int32_data");
    case DType::kUInt8:
      return read(uint8_t{}, proto.int32_data, "int32_data");
    case DType::kBool:
      return read(bool{}, proto.int32_data, "int32_data");
    // Small floats are stored as their bits.
    case DType::kUInt16:
    case DType::kFloat16:
    case DType::kBFloat16:
      return read(uint16_t{}, proto.int32_data, "int32_data");
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat8E8M0:
      return read(uint8_t{}, proto.int32_data, "int32_data");
    // Packed as in raw data, one byte per value of the field.
    case DType::kUInt4:
    case DType::kInt4:
    case DType::kFloat4E2M1:
    case DType::kUInt2:
    case DType::kInt2:
      return read_field<uint8_t>(proto.int32_data, "int32_data", 1, proto, tensor, dtype, shape,
                                 bytes_of(dtype, static_cast<int64_t>(count)));
    // One element per value of the field.
    case DType::kFloat6E2M3:
    case DType::kFloat6E3M2: {
      Tensor bytes;
      read_field<uint8_t>(proto.int32_data, "int32_data", 1, proto, bytes, DType::kUInt8, shape, count);
      tensor = Tensor(dtype, shape);
      return from_wide(dtype, bytes.raw(), tensor.raw(), bytes.size());
    }
    default:
      break;
  }
  fail(ErrorCode::kNotImplemented, "tensors of type ", to_string(dtype), " are not supported");
}

// Files in ORT format store indices in the narrowest type that holds them.
bool is_index(DType dtype) {
  return dtype == DType::kInt64 || dtype == DType::kInt32 || dtype == DType::kInt16 || dtype == DType::kInt8;
}

int64_t index_at(const Tensor& indices, int64_t i) {
  switch (indices.dtype()) {
    case DType::kInt8:
      return indices.data<int8_t>()[i];
    case DType::kInt16:
      return indices.data<int16_t>()[i];
    case DType::kInt32:
      return indices.data<int32_t>()[i];
    default:
      return indices.data<int64_t>()[i];
  }
}

uint64_t parse_size(const std::string& text, const char* key) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  require(error == std::errc{} && stop == end && !text.empty(), ErrorCode::kInvalidGraph,
          "the external data's ", key, " should be a number of bytes, found \"", text, "\"");
  return value;
}

// A mapping of a file. If the process already has a mapping of the file, it is shared.
std::shared_ptr<const std::byte> mapping_of(const system::File& file, const std::filesystem::path& path,
                                            size_t bytes) {
  // New contents have another time: files are replaced, not changed.
  using Key = std::tuple<std::filesystem::path, size_t, std::filesystem::file_time_type>;
  static std::mutex mutex;
  static auto* known = new std::map<Key, std::weak_ptr<const std::byte>>;
  std::error_code error;
  const Key key{std::filesystem::weakly_canonical(path, error), bytes,
                std::filesystem::last_write_time(path, error)};
  const std::lock_guard lock(mutex);
  std::erase_if(*known, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = known->find(key); !error && found != known->end())
    if (auto mapping = found->second.lock()) return mapping;
  const std::byte* mapped = file.map(bytes);
  require(mapped != nullptr, ErrorCode::kFail, "cannot map the external data '", to_utf8(path),
          "': ", system::reason());
  std::shared_ptr<const std::byte> mapping(mapped,
                                           [bytes](const std::byte* at) { system::unmap(at, bytes); });
  if (!error) (*known)[key] = mapping;
  return mapping;
}

}  // namespace

ExternalFiles::File& ExternalFiles::open(const std::string& location) {
  namespace fs = std::filesystem;
  if (auto known = files_.find(location); known != files_.end()) return known->second;
  require(!folder_.empty(), ErrorCode::kInvalidArgument, "its data is stored in an external file \"",
          location, "\", which is not available for a model read from memory");
  const fs::path relative = from_utf8(location);
  const bool climbs =
      std::any_of(relative.begin(), relative.end(), [](const fs::path& part) { return part == ".."; });
  require(
      !location.empty() && location.find('\0') == std::string::npos && !relative.has_root_path() && !climbs,
      ErrorCode::kInvalidGraph,
      "the external data's location should be a path inside the model's folder, found \"", location, "\"");
  const fs::path path = folder_ / relative;
  std::error_code error;
  const fs::path root = fs::weakly_canonical(folder_, error), real = fs::weakly_canonical(path, error);
  const auto [inside, rest] = std::mismatch(root.begin(), root.end(), real.begin(), real.end());
  require(!error && inside == root.end(), ErrorCode::kInvalidGraph,
          "the external data's location should be a path inside the model's folder, found \"", location,
          "\", a link to a file outside of it");

  File opened{system::File::open(path), 0};
  require(static_cast<bool>(opened.file),
          system::failure() == system::Failure::kNotFound ? ErrorCode::kNoSuchFile : ErrorCode::kFail,
          "cannot open the external data file '", to_utf8(path), "': ", system::reason());
  const std::optional<system::FileInfo> info = opened.file.info();
  require(info && info->kind == system::FileInfo::kFile, ErrorCode::kInvalidGraph, "the external data '",
          to_utf8(path), "' is not a file");
  opened.bytes = info->bytes;
  return files_.emplace(location, std::move(opened)).first->second;
}

Tensor ExternalFiles::read(const onnx::TensorProto& proto, DType dtype, const Shape& shape, size_t bytes) {
  std::optional<std::string> location;
  uint64_t offset = 0;
  std::optional<uint64_t> length;
  for (const auto& entry : proto.external_data) {
    if (entry.key == "location") location = text_of(entry.value);
    if (entry.key == "offset") offset = parse_size(text_of(entry.value), "offset");
    if (entry.key == "length") length = parse_size(text_of(entry.value), "length");
  }
  require(location.has_value(), ErrorCode::kInvalidGraph, "its data is external, but no location is given");
  require(length.value_or(bytes) == bytes, ErrorCode::kInvalidGraph, "its type and shape need ",
          counted(bytes, "byte"), ", but the external data is ", counted(length.value_or(0), "byte"),
          " long");
  const auto given = given_.find(*location);
  File* file = given == given_.end() ? &open(*location) : nullptr;
  const size_t present = file != nullptr ? file->bytes : given->second.size();
  require(offset <= present && bytes <= present - offset, ErrorCode::kInvalidGraph,
          "its external data should be ", counted(bytes, "byte"), " at offset ", offset, " of \"", *location,
          "\", but that file has ", counted(present, "byte"));
  constexpr size_t kLarge = size_t{1} << 16;
  if (map_ && file != nullptr && bytes >= kLarge && offset % kAlignment == 0 && dtype != DType::kBool) {
    if (!file->mapping) file->mapping = mapping_of(file->file, folder_ / *location, file->bytes);
    // Nothing writes to the elements of an initializer.
    return Tensor(dtype, shape, const_cast<std::byte*>(file->mapping.get()) + offset,
                  std::const_pointer_cast<std::byte>(file->mapping));
  }
  Tensor tensor(dtype, shape);
  if (file == nullptr) {
    if (bytes > 0) std::memcpy(tensor.raw(), given->second.data() + offset, bytes);
    return tensor;
  }
  std::byte* at = tensor.raw();
  while (bytes > 0) {
    const ptrdiff_t n = file->file.read(at, bytes, offset);
    require(n > 0, ErrorCode::kFail, "cannot read the external data \"", *location,
            "\": ", n == 0 ? "the file was truncated meanwhile" : system::reason());
    at += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return tensor;
}

Tensor read_tensor(const onnx::TensorProto& proto, ExternalFiles& files) {
  const auto dtype = static_cast<DType>(proto.data_type);
  require(bits_of(dtype) > 0,
          dtype == DType::kUndefined ? ErrorCode::kInvalidGraph : ErrorCode::kNotImplemented,
          "tensors of type ", to_string(dtype), " are not supported");
  require(!proto.segment, ErrorCode::kNotImplemented, "tensors stored in segments are not supported");
  const Shape shape(proto.dims.begin(), proto.dims.end());
  // Check the size against the data that is present before allocating memory.
  constexpr size_t kWidest = 16;
  size_t count = 1;
  bool fits = true;
  for (const int64_t dim : shape)
    fits = fits && dim >= 0 && !__builtin_mul_overflow(count, static_cast<size_t>(dim), &count);
  fits = fits && count <= static_cast<size_t>(std::numeric_limits<int64_t>::max()) / kWidest;
  require(fits, ErrorCode::kInvalidGraph, to_string(shape), " is not a valid shape of stored data");
  const size_t bytes = bytes_of(dtype, static_cast<int64_t>(count));

  if (dtype == DType::kString) {
    require(proto.data_location != onnx::TensorProto::EXTERNAL && !proto.raw_data &&
                proto.string_data.size() == count,
            ErrorCode::kInvalidGraph, "a tensor of strings of shape ", to_string(shape), " needs ",
            counted(count, "value"), " in string_data, found ", proto.string_data.size());
    return text_tensor(proto.string_data, shape);
  }
  Tensor tensor;
  if (proto.data_location == onnx::TensorProto::EXTERNAL) {
    tensor = files.read(proto, dtype, shape, bytes);
  } else if (proto.raw_data) {
    require(proto.raw_data->size() == bytes, ErrorCode::kInvalidGraph, "a tensor of type ", to_string(dtype),
            " and shape ", to_string(shape), " needs ", counted(bytes, "byte"), " in raw_data, found ",
            proto.raw_data->size());
    tensor = Tensor(dtype, shape);
    if (bytes > 0) std::memcpy(tensor.raw(), proto.raw_data->data(), bytes);
  } else {
    read_typed(proto, tensor, dtype, shape, count);
  }
  // Bytes other than 0 and 1 are not valid values of a C++ bool.
  if (dtype == DType::kBool)
    for (size_t i = 0; i < bytes; ++i) tensor.raw()[i] = std::byte{tensor.raw()[i] != std::byte{0}};
  return tensor;
}

Tensor read_sparse_tensor(const onnx::SparseTensorProto& proto, ExternalFiles& files) {
  const Tensor values = read_tensor(*proto.values, files), indices = read_tensor(*proto.indices, files);
  const Shape shape(proto.dims.begin(), proto.dims.end());
  const int64_t rank = static_cast<int64_t>(shape.size()), stored = values.size();
  int64_t count = 1;
  bool fits = rank > 0;
  for (const int64_t dim : shape) fits = fits && dim > 0 && !__builtin_mul_overflow(count, dim, &count);
  require(fits, ErrorCode::kInvalidGraph, to_string(shape), " is not a valid shape of a sparse tensor");
  // A small file must not become a large model.
  constexpr int64_t kSmall = int64_t{1} << 16, kMost = 4096;
  require(count <= kSmall || count / kMost <= stored, ErrorCode::kNotImplemented, "a sparse tensor of shape ",
          to_string(shape), " with ", counted(stored, "value"), " has more than ", counted(kMost, "element"),
          " for each of them");
  require(bits_of(values.dtype()) >= 8, ErrorCode::kNotImplemented, "sparse tensors of type ",
          to_string(values.dtype()), " are not supported");
  const bool flat = indices.shape().size() == 1;
  require(values.shape().size() == 1 && is_index(indices.dtype()) &&
              indices.shape() == (flat ? Shape{stored} : Shape{stored, rank}),
          ErrorCode::kInvalidGraph, "a sparse tensor of ", counted(stored, "value"),
          " needs indices of type int64", to_string(Shape{stored}), " or int64",
          to_string(Shape{stored, rank}), ", found ", to_string(indices.dtype()), to_string(indices.shape()));
  Tensor dense = values.dtype() == DType::kString ? text_tensor(shape) : Tensor(values.dtype(), shape);
  const size_t size = size_of(values.dtype());
  if (values.dtype() != DType::kString) std::memset(dense.raw(), 0, dense.bytes());
  for (int64_t i = 0, before = -1; i < stored; ++i) {
    int64_t at = flat ? index_at(indices, i) : 0;
    bool inside = !flat || (at >= 0 && at < count);
    for (int64_t d = 0; !flat && d < rank; ++d) {
      const int64_t one = index_at(indices, i * rank + d);
      inside = inside && one >= 0 && one < shape[static_cast<size_t>(d)];
      if (inside) at = at * shape[static_cast<size_t>(d)] + one;
    }
    require(inside && at > before, ErrorCode::kInvalidGraph, "index ", i, " of the sparse tensor ",
            inside ? "is not above the previous index" : "is out of range");
    before = at;
    if (values.dtype() == DType::kString)
      own_text(dense, static_cast<size_t>(at)) = text(text_places(values)[i]);
    else
      std::memcpy(dense.raw() + static_cast<size_t>(at) * size, values.raw() + static_cast<size_t>(i) * size,
                  size);
  }
  return dense;
}

void write_tensor(const Tensor& tensor, const std::string& name, onnx::TensorProto& proto) {
  proto.name = name;
  proto.data_type = static_cast<int32_t>(tensor.dtype());
  proto.dims = tensor.shape();
  if (tensor.dtype() == DType::kString) {
    for (int64_t i = 0; i < tensor.size(); ++i) proto.string_data.emplace_back(text(text_places(tensor)[i]));
    return;
  }
  proto.raw_data.emplace(reinterpret_cast<const char*>(tensor.raw()), tensor.bytes());
}

}  // namespace ortrain
