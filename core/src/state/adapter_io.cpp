#include "state/adapter_io.h"

#include <cstring>
#include <memory>
#include <unordered_set>

#include "adapter_generated.h"
#include "runtime/error.h"
#include "runtime/file.h"
#include "runtime/flatbuffer_list.h"
#include "runtime/path.h"
#include "runtime/text.h"

namespace ortrain {

namespace {

constexpr int32_t kVersion = 1;
constexpr size_t kSmallest = 12;  // root offset, identifier, one table
constexpr size_t kLargest = (size_t{1} << 31) - (size_t{1} << 20);

// A parameter with its own copy of the data. Several may share the file's data, whose bytes count once.
Tensor read_parameter(const adapter::Parameter& from, size_t& bytes_left) {
  const auto dtype = static_cast<DType>(from.data_type());
  require(bits_of(dtype) > 0 && dtype != DType::kString, ErrorCode::kNotImplemented, "tensors of type ",
          to_string(dtype), " are not supported");
  Shape shape;
  for_each(from.dims(), [&](int64_t dim) { shape.push_back(dim); });
  size_t count = 1;
  bool fits = true;
  for (const int64_t dim : shape)
    fits = fits && dim >= 0 && !__builtin_mul_overflow(count, static_cast<size_t>(dim), &count);
  const size_t found = from.raw_data() == nullptr ? 0 : from.raw_data()->size();
  require(fits && count <= 8 * kLargest && bytes_of(dtype, static_cast<int64_t>(count)) == found,
          ErrorCode::kFail, "its ", counted(found, "byte"), agreeing(found, " does", " do"),
          " not fit its type and shape, ", to_string(dtype), to_string(shape));
  require(found <= bytes_left, ErrorCode::kFail, "its data are shared with other parameters");
  bytes_left -= found;
  Tensor tensor(dtype, shape);
  if (found > 0) std::memcpy(tensor.raw(), from.raw_data()->data(), found);
  if (dtype == DType::kBool)  // bytes other than 0 and 1 are not valid values of a C++ bool
    for (size_t i = 0; i < found; ++i) tensor.raw()[i] = std::byte{tensor.raw()[i] != std::byte{0}};
  return tensor;
}

Adapter parse(const uint8_t* data, size_t bytes) {
  if (bytes < kSmallest || !adapter::AdapterBufferHasIdentifier(data))
    fail(ErrorCode::kFail, "expected an adapter (identifier TORT), found ", describe_content(data, bytes));
  require(bytes <= kLargest, ErrorCode::kFail, "it has ", counted(bytes, "byte"),
          ", more than an adapter can have");
  // Numbers are read in place, so the data must be at an aligned address.
  std::unique_ptr<uint64_t[]> copy;
  if (reinterpret_cast<uintptr_t>(data) % sizeof(uint64_t) != 0) {
    copy = std::make_unique<uint64_t[]>(bytes / sizeof(uint64_t) + 1);
    data = static_cast<const uint8_t*>(std::memcpy(copy.get(), data, bytes));
  }
  // Tables are never shared, so there is room for no more than that.
  flatbuffers::Verifier verifier(data, bytes, /*max_depth=*/8,
                                 static_cast<flatbuffers::uoffset_t>(bytes / 8));
  require(adapter::VerifyAdapterBuffer(verifier), ErrorCode::kFail,
          "the file is truncated or damaged: it has the identifier of an adapter, but its structure is not "
          "valid (",
          counted(bytes, "byte"), ")");
  const adapter::Adapter& root = *adapter::GetAdapter(data);
  require(root.format_version() == kVersion, ErrorCode::kNotImplemented, "expected an adapter of version ",
          kVersion, ", found version ", root.format_version());
  Adapter out{root.adapter_version(), root.model_version(), {}};
  std::unordered_set<std::string> names;
  size_t bytes_left = bytes;
  for (flatbuffers::uoffset_t i = 0; root.parameters() != nullptr && i < root.parameters()->size(); ++i) {
    const adapter::Parameter& parameter = *root.parameters()->Get(i);
    require(parameter.name() != nullptr && parameter.name()->size() > 0, ErrorCode::kFail, "parameter ", i,
            " has no name");
    std::string name = parameter.name()->str();
    require(is_utf8(name), ErrorCode::kFail, "the name of parameter ", i, " is not valid UTF-8");
    require(names.insert(name).second, ErrorCode::kFail, "two parameters are named \"", name, "\"");
    try {
      Tensor value = read_parameter(parameter, bytes_left);
      out.parameters.emplace_back(std::move(name), std::move(value));
    } catch (const Error& error) {
      fail(error.code(), "parameter \"", name, "\": ", error.message());
    }
  }
  return out;
}

}  // namespace

Adapter read_adapter(const std::filesystem::path& path) {
  const MappedFile file(path, "adapter");
  try {
    return parse(reinterpret_cast<const uint8_t*>(file.data()), file.size());
  } catch (const Error& error) {
    fail(error.code(), "cannot read the adapter '", to_utf8(path), "': ", error.message());
  }
}

Adapter read_adapter(const void* data, size_t bytes) {
  try {
    require(data != nullptr || bytes == 0, ErrorCode::kInvalidArgument, "the pointer to its bytes is null");
    return parse(static_cast<const uint8_t*>(data), bytes);
  } catch (const Error& error) {
    fail(error.code(), "cannot read the adapter in memory: ", error.message());
  }
}

void check_adapter(const Adapter& adapter) {
  std::unordered_set<std::string> names;
  for (const auto& [name, tensor] : adapter.parameters) {
    require(!name.empty() && is_utf8(name), ErrorCode::kInvalidArgument,
            "an adapter cannot have a parameter named \"", is_utf8(name) ? name : "(not UTF-8)", "\"");
    require(names.insert(name).second, ErrorCode::kInvalidArgument,
            "an adapter cannot have two parameters named \"", name, "\"");
    require(tensor.dtype() != DType::kString, ErrorCode::kInvalidArgument, "an adapter's parameter \"", name,
            "\" has strings, expected numbers or Booleans");
  }
}

std::string write_adapter(const Adapter& adapter) {
  check_adapter(adapter);
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<adapter::Parameter>> parameters;
  for (const auto& [name, tensor] : adapter.parameters) {
    require(tensor.bytes() < kLargest && builder.GetSize() < kLargest - tensor.bytes(), ErrorCode::kFail,
            "cannot write the adapter: it would take more than the 2 GB that the file can hold");
    const auto title = builder.CreateString(name);
    const auto dims = builder.CreateVector(tensor.shape().data(), tensor.shape().size());
    builder.ForceVectorAlignment(tensor.bytes(), sizeof(uint8_t), 8);
    const auto data = builder.CreateVector(reinterpret_cast<const uint8_t*>(tensor.raw()), tensor.bytes());
    parameters.push_back(
        adapter::CreateParameter(builder, title, dims, static_cast<int32_t>(tensor.dtype()), data));
  }
  const auto all = builder.CreateVector(parameters);
  builder.Finish(adapter::CreateAdapter(builder, kVersion, adapter.version, adapter.model_version, all),
                 adapter::AdapterIdentifier());
  return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
}

void write_adapter(const Adapter& adapter, const std::filesystem::path& path) {
  const std::string content = write_adapter(adapter);
  write_file(path, "adapter", content.data(), content.size());
}

}  // namespace ortrain
