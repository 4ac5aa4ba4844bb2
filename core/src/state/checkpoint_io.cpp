#include "state/checkpoint_io.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>

#include "checkpoint_generated.h"
#include "runtime/file.h"
#include "runtime/flatbuffer_list.h"
#include "runtime/memory.h"
#include "runtime/path.h"
#include "runtime/system.h"
#include "runtime/text.h"

namespace ortrain {

static_assert(std::endian::native == std::endian::little, "checkpoints store numbers in little-endian order");

namespace {

constexpr int32_t kVersion = 2;
constexpr const char* kGroup = "group0";
constexpr const char* kMomentum = "momentum";
constexpr std::array<std::string_view, 2> kAdamWStates = {"first_moment", "second_moment"};
constexpr std::string_view kIdentityPrefix =
    "ortrain data id ";  // 16 characters, 16 hexadecimal digits follow
constexpr size_t kIdentityBytes = 32;

namespace fs = std::filesystem;

fs::path data_path(const fs::path& checkpoint) { return with_suffix(checkpoint, ".data"); }
fs::path old_data_path(const fs::path& checkpoint) { return with_suffix(checkpoint, ".data.old"); }

// The identity at the end of a data file; "" if it has none. Nothing if there is no such file.
std::optional<std::string> identity_of_file(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const MappedFile file(path, "data file of the checkpoint");
  if (file.size() < kIdentityBytes) return "";
  std::string tail(kIdentityBytes, '\0');
  file.read(reinterpret_cast<std::byte*>(tail.data()), file.data() + file.size() - tail.size(), tail.size());
  return tail.starts_with(kIdentityPrefix) ? tail : "";
}

// A digest of the contents of a data file. It tells files apart, but does not protect against forgery.
class Digest {
 public:
  void add(const void* data, size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    mix(bytes);
    for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), from += sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, from, sizeof word);
      mix(word);
    }
    uint64_t rest = 0;
    if (bytes > 0) std::memcpy(&rest, from, bytes);
    mix(rest);
  }
  std::string identity() const {
    std::string out(kIdentityPrefix);
    for (int shift = 60; shift >= 0; shift -= 4) out += "0123456789abcdef"[state_ >> shift & 15];
    return out;
  }

 private:
  void mix(uint64_t word) {
    state_ = (state_ ^ word) * 0x9E3779B97F4A7C15u;
    state_ ^= state_ >> 29;
  }
  uint64_t state_ = 0x243F6A8885A308D3u;
};

// ----------------------------------------------------------------------------------------------------
// reading

// The tables of a checkpoint whose structure was verified. Throws if the bytes are not a checkpoint of our
// version.
const fbs::Checkpoint& verified(const std::byte* data, size_t bytes) {
  constexpr size_t kSmallest = 12;  // root offset, identifier, one table
  const auto* begin = reinterpret_cast<const uint8_t*>(data);
  if (bytes < kSmallest || !fbs::CheckpointBufferHasIdentifier(begin))
    fail(ErrorCode::kFail, "expected a checkpoint file (identifier ODTC), found ",
         describe_content(data, bytes));
  require(bytes <= CheckpointIo::kLargestFile, ErrorCode::kFail, "it has ", counted(bytes, "byte"),
          ", more than a checkpoint file can have (", CheckpointIo::kLargestFile, ")");
  flatbuffers::Verifier verifier(begin, bytes, /*max_depth=*/16, /*max_tables=*/50'000'000);
  require(fbs::VerifyCheckpointBuffer(verifier), ErrorCode::kFail,
          "the file is truncated or damaged: it has the identifier of a checkpoint, but its structure is not "
          "valid (",
          counted(bytes, "byte"), ")");
  const fbs::Checkpoint& root = *fbs::GetCheckpoint(begin);
  require(root.version() == kVersion, ErrorCode::kFail, "expected a checkpoint of version ", kVersion,
          ", found version ", root.version());
  return root;
}

// The tensors of a table that may be absent.
template <typename T>
size_t count(const flatbuffers::Vector<T>* items) {
  return items == nullptr ? 0 : items->size();
}

std::string text_of(const flatbuffers::String* text, const char* what) {
  require(text != nullptr, ErrorCode::kFail, "the ", what, " is missing");
  std::string out = text->str();
  require(is_utf8(out), ErrorCode::kFail, "the ", what, " is not valid UTF-8");
  return out;
}

// The identity of the data file, as the external tensors of a checkpoint state it; "" if they state none.
std::string identity_of_checkpoint(const fbs::Checkpoint& root) {
  std::string identity;
  const auto look = [&](const flatbuffers::Vector<flatbuffers::Offset<fbs::Tensor>>* tensors) {
    for (size_t i = 0; i < count(tensors) && identity.empty(); ++i) {
      const fbs::Tensor* tensor = tensors->Get(static_cast<flatbuffers::uoffset_t>(i));
      if (tensor->external_data_offset() < 0 || tensor->doc_string() == nullptr) continue;
      const std::string doc = tensor->doc_string()->str();
      if (doc.size() == kIdentityBytes && doc.compare(0, kIdentityPrefix.size(), kIdentityPrefix) == 0)
        identity = doc;
    }
  };
  look(root.module_state()->requires_grad_params());
  look(root.module_state()->frozen_params());
  return identity;
}

class StateReader {
 public:
  // `path` is empty for a checkpoint in memory.
  StateReader(const std::byte* data, size_t bytes, const fs::path& path)
      : root_(verified(data, bytes)), bytes_left_(bytes) {
    require(root_.module_state() != nullptr, ErrorCode::kFail,
            "it holds no parameters (module_state is missing)");
    nominal_ = root_.module_state()->is_nominal_state();
    if (root_.module_state()->has_external_data()) open_data_file(path);
  }

  // Parameters in the order of the file. Their tensors are views into it.
  std::vector<Parameter> parameters() {
    std::vector<Parameter> out;
    const fbs::ModuleState& module = *root_.module_state();
    for (const auto* tensors : {module.requires_grad_params(), module.frozen_params()})
      for (size_t i = 0; i < count(tensors); ++i) {
        const fbs::Tensor& tensor = *tensors->Get(static_cast<flatbuffers::uoffset_t>(i));
        Parameter parameter;
        parameter.name = text_of(tensor.name(), "name of a parameter");
        parameter.trainable = tensors == module.requires_grad_params();
        parameter.data = view(tensor, concat("parameter \"", parameter.name, "\""), nominal_);
        require(names_.emplace(parameter.name, out.size()).second, ErrorCode::kFail,
                "two parameters are named \"", parameter.name, "\"");
        out.push_back(std::move(parameter));
      }
    return out;
  }

  // The optimizer's step count and moments, which are added to the parameters. Nothing if there is no such
  // state.
  std::optional<OptimizerState> optimizer(std::vector<Parameter>& parameters) {
    const size_t groups = count(root_.optimizer_groups());
    if (groups == 0) return std::nullopt;
    require(groups == 1, ErrorCode::kNotImplemented, "it holds ", counted(groups, "group"),
            " of optimizer state; one is supported");
    const fbs::OptimizerGroup& group = *root_.optimizer_groups()->Get(0);
    const std::string name = text_of(group.group_name(), "name of the optimizer group");
    require(name == kGroup, ErrorCode::kNotImplemented, "its optimizer group should be named \"", kGroup,
            "\", found \"", name, "\"");
    require(group.step() >= 0, ErrorCode::kFail, "the optimizer's step count should not be negative, found ",
            group.step());
    require(std::isfinite(group.initial_learning_rate()), ErrorCode::kFail,
            "the optimizer's initial learning rate should be a finite number, found ",
            group.initial_learning_rate());
    const size_t states = count(group.optimizer_states());
    size_t trainable = 0;
    for (const Parameter& parameter : parameters) trainable += parameter.trainable ? 1 : 0;
    require(states == 0 || states == trainable, ErrorCode::kFail, "it holds optimizer state of ",
            counted(states, "parameter"), ", but ", trainable, agreeing(trainable, " is", " are"),
            " trainable");
    std::unordered_set<std::string> seen;
    size_t expected = 0;  // moments of a parameter
    for (size_t i = 0; i < states; ++i) {
      const auto& state = *group.optimizer_states()->Get(static_cast<flatbuffers::uoffset_t>(i));
      const std::string owner = text_of(state.param_name(), "name of a parameter with optimizer state");
      const auto found = names_.find(owner);
      require(found != names_.end() && parameters[found->second].trainable, ErrorCode::kFail,
              "it holds optimizer state of \"", owner, "\", which is not a trainable parameter");
      require(seen.insert(owner).second, ErrorCode::kFail, "it holds optimizer state of \"", owner,
              "\" twice");
      Parameter& parameter = parameters[found->second];
      parameter.moments = momentums(state, parameter, count(group.state_names()) > 0);
      if (i == 0) expected = parameter.moments.size();
      require(parameter.moments.size() == expected, ErrorCode::kFail, "parameter \"", owner, "\" has ",
              counted(parameter.moments.size(), "moment"), ", others have ", expected);
    }
    OptimizerState state;
    state.step = group.step();
    state.initial_learning_rate = group.initial_learning_rate();
    state.group_settings = group_settings(group);
    state.group_scalars = group_scalars(group);
    state.schedule = schedule(group);
    for (size_t i = 0; i < count(group.state_names()); ++i)
      state.state_names.push_back(text_of(group.state_names()->Get(static_cast<flatbuffers::uoffset_t>(i)),
                                          "name of an optimizer state"));
    require(states == 0 || state.state_names.empty() || state.state_names.size() == expected,
            ErrorCode::kFail, "it names ", counted(state.state_names.size(), "optimizer state"),
            ", but its parameters have ", expected);
    // Files without names are of AdamW or plain SGD, or of onnxruntime.
    if (state.state_names.empty() && expected == kAdamWStates.size())
      state.state_names.assign(kAdamWStates.begin(), kAdamWStates.end());
    return state;
  }

  std::map<std::string, Property> properties() const {
    std::map<std::string, Property> out;
    const fbs::PropertyBag* bag = root_.property_bag();
    if (bag == nullptr) return out;
    const auto add = [&](const auto* items, auto&& value_of) {
      for (size_t i = 0; i < count(items); ++i) {
        const auto& item = *items->Get(static_cast<flatbuffers::uoffset_t>(i));
        const std::string name = text_of(item.name(), "name of a property");
        require(out.emplace(name, value_of(item)).second, ErrorCode::kFail, "two properties are named \"",
                name, "\"");
      }
    };
    add(bag->ints(), [](const auto& item) { return Property(int64_t{item.value()}); });
    add(bag->floats(), [](const auto& item) { return Property(item.value()); });
    add(bag->strings(),
        [](const auto& item) { return Property(text_of(item.value(), "value of a property")); });
    return out;
  }

  bool nominal() const { return nominal_; }
  // The file that holds the tensors' bytes; null if they are stored with the tables.
  const std::shared_ptr<const MappedFile>& data_file() const { return data_file_; }

 private:
  // The names and values are checked by the optimizer that takes them.
  static std::map<std::string, std::map<std::string, float>> group_settings(const fbs::OptimizerGroup& from) {
    std::map<std::string, std::map<std::string, float>> out;
    for (size_t i = 0; i < count(from.parameter_groups()); ++i) {
      const auto& group = *from.parameter_groups()->Get(static_cast<flatbuffers::uoffset_t>(i));
      const std::string name = text_of(group.group_name(), "name of a parameter group");
      const auto [added, is_new] = out.try_emplace(name);
      require(is_new, ErrorCode::kFail, "it holds settings of the parameter group \"", name, "\" twice");
      for (size_t k = 0; k < count(group.settings()); ++k) {
        const auto& setting = *group.settings()->Get(static_cast<flatbuffers::uoffset_t>(k));
        const std::string key = text_of(setting.name(), "name of a setting of a parameter group");
        require(added->second.emplace(key, setting.value()).second, ErrorCode::kFail,
                "it holds the setting \"", key, "\" of the parameter group \"", name, "\" twice");
      }
    }
    return out;
  }

  static std::map<std::string, std::map<std::string, double>> group_scalars(const fbs::OptimizerGroup& from) {
    std::map<std::string, std::map<std::string, double>> out;
    for (size_t i = 0; i < count(from.parameter_groups()); ++i) {
      const auto& group = *from.parameter_groups()->Get(static_cast<flatbuffers::uoffset_t>(i));
      for (size_t k = 0; k < count(group.scalars()); ++k) {
        const auto& scalar = *group.scalars()->Get(static_cast<flatbuffers::uoffset_t>(k));
        const std::string key = text_of(scalar.name(), "name of a number of a parameter group");
        require(std::isfinite(scalar.value()), ErrorCode::kFail, "the number \"", key,
                "\" of a parameter group should be finite, found ", scalar.value());
        require(out[group.group_name()->str()].emplace(key, scalar.value()).second, ErrorCode::kFail,
                "it holds the number \"", key, "\" of the parameter group \"", group.group_name()->str(),
                "\" twice");
      }
    }
    return out;
  }

  // Name and settings are checked by the session.
  static std::optional<ScheduleState> schedule(const fbs::OptimizerGroup& from) {
    if (from.schedule() == nullptr) return std::nullopt;
    const fbs::ScheduleState& found = *from.schedule();
    ScheduleState state{text_of(found.name(), "name of the schedule"),
                        text_of(found.settings(), "settings of the schedule"),
                        {}};
    for (size_t i = 0; i < count(found.values()); ++i) {
      const auto& value = *found.values()->Get(static_cast<flatbuffers::uoffset_t>(i));
      const std::string key = text_of(value.name(), "name of a number of the schedule");
      require(std::isfinite(value.value()), ErrorCode::kFail, "the number \"", key,
              "\" of the schedule should be finite, found ", value.value());
      require(state.values.emplace(key, value.value()).second, ErrorCode::kFail, "it holds the number \"",
              key, "\" of the schedule twice");
    }
    return state;
  }

  // Optimizers that the file names may have states of other types and shapes than the parameter.
  std::vector<Tensor> momentums(const fbs::ParameterOptimizerState& state, const Parameter& parameter,
                                bool is_named) {
    const size_t n = count(state.momentums());
    std::vector<Tensor> out(n);
    for (size_t i = 0; i < n; ++i) {
      const fbs::Tensor& tensor = *state.momentums()->Get(static_cast<flatbuffers::uoffset_t>(i));
      const std::string name = text_of(tensor.name(), "name of a momentum");
      const std::string what = concat("momentum \"", name, "\" of parameter \"", parameter.name, "\"");
      size_t index = 0;
      while (index < n && name != kMomentum + std::to_string(index)) ++index;
      require(index < n && !out[index].defined(), ErrorCode::kFail, what, ": expected one each of ",
              kMomentum, "0 to ", kMomentum, n - 1);
      out[index] = view(tensor, what, /*nominal=*/false);
      const DType wanted = wide_of(parameter.data.dtype());  // moments of 16-bit floats are float
      require(is_named || (out[index].dtype() == wanted && out[index].shape() == parameter.data.shape()),
              ErrorCode::kFail, what, ": expected ", to_string(wanted), to_string(parameter.data.shape()),
              " for a parameter of ", to_string(parameter.data.dtype()), to_string(parameter.data.shape()),
              ", found ", to_string(out[index].dtype()), to_string(out[index].shape()));
    }
    return out;
  }

  // A tensor over the bytes in the file, which may be at any address.
  Tensor view(const fbs::Tensor& tensor, const std::string& what, bool nominal) {
    const auto dtype = static_cast<DType>(tensor.data_type());
    require(bits_of(dtype) > 0 && dtype != DType::kString && count(tensor.string_data()) == 0,
            ErrorCode::kNotImplemented, what, ": tensors of type ", to_string(dtype), " are not supported");
    Shape shape;
    uint64_t elements = 1;
    bool fits = true;
    for_each(tensor.dims(), [&](int64_t dim) {
      shape.push_back(dim);
      fits = fits && dim >= 0 && !__builtin_mul_overflow(elements, static_cast<uint64_t>(dim), &elements);
    });
    constexpr uint64_t kWidest = 16, kMost = std::min<uint64_t>(uint64_t{1} << 62, SIZE_MAX) / kWidest;
    require(fits && elements <= kMost, ErrorCode::kFail, what, ": ", to_string(shape),
            " is not a valid shape");
    const size_t bytes = bytes_of(dtype, static_cast<int64_t>(elements));
    const size_t found = count(tensor.raw_data());
    if (nominal) {
      require(found == 0 && tensor.external_data_offset() < 0, ErrorCode::kFail, what,
              ": a nominal checkpoint has no values, found ", counted(found, "byte"));
      return Tensor(dtype, shape.empty() ? kUnknownShape : shape, nullptr);
    }
    const std::byte* data = nullptr;
    if (tensor.external_data_offset() >= 0) {
      require(data_file_ != nullptr, ErrorCode::kFail, what,
              ": its data is in a second file, but the checkpoint declares none");
      const auto offset = static_cast<size_t>(tensor.external_data_offset());
      require(offset <= data_file_->size() && bytes <= data_file_->size() - offset, ErrorCode::kFail, what,
              ": expected ", counted(bytes, "byte"), " at offset ", offset, " of the data file, which has ",
              counted(data_file_->size(), "byte"));
      data = data_file_->data() + offset;
      // Tensors do not share bytes, so their total size cannot exceed the file's.
      require(bytes <= data_bytes_left_, ErrorCode::kFail, what,
              ": its data overlap the data of another tensor");
      data_bytes_left_ -= bytes;
    } else {
      require(found == bytes, ErrorCode::kFail, what, ": ", to_string(dtype), to_string(shape), " needs ",
              counted(bytes, "byte"), ", found ", found);
      if (bytes > 0) data = reinterpret_cast<const std::byte*>(tensor.raw_data()->data());
      require(bytes <= bytes_left_, ErrorCode::kFail, what, ": its data overlap the data of another tensor");
      bytes_left_ -= bytes;
    }
    return Tensor(dtype, shape, const_cast<std::byte*>(data));
  }

  void open_data_file(const fs::path& path) {
    require(!path.empty(), ErrorCode::kInvalidArgument,
            "its data is stored in a second file, which is not available for a checkpoint in memory");
    const std::string expected = identity_of_checkpoint(root_);
    const auto present = identity_of_file(data_path(path));
    // The old data file exists if a crash occurred after one of the two files was replaced and before the
    // other was.
    const bool old = present != expected && identity_of_file(old_data_path(path)) == expected;
    require(present.has_value() || old, ErrorCode::kNoSuchFile, "its data file '", to_utf8(data_path(path)),
            "' is missing");
    require(present == expected || old, ErrorCode::kFail, "the data file '", to_utf8(data_path(path)),
            "' belongs to another checkpoint: expected the mark \"", expected, "\", found \"",
            present.value_or(""), "\"");
    data_file_ = std::make_shared<const MappedFile>(old ? old_data_path(path) : data_path(path),
                                                    "data file of the checkpoint");
    data_bytes_left_ = data_file_->size();
  }

  const fbs::Checkpoint& root_;
  bool nominal_ = false;
  size_t bytes_left_, data_bytes_left_ = 0;  // not yet taken by a tensor
  std::shared_ptr<const MappedFile> data_file_;
  std::unordered_map<std::string, size_t> names_;
};

// Explains the contents of a folder that was given instead of a checkpoint file.
[[noreturn]] void reject_folder(const fs::path& path) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error))
    if (entry.path().extension() == ".pbseq")
      fail(ErrorCode::kFail, "cannot read the checkpoint '", to_utf8(path),
           "': this is a checkpoint folder as written by onnxruntime-training before 1.16 ('",
           to_utf8(entry.path().filename()), "' is in it); expected a checkpoint file of version ", kVersion,
           ". Regenerate the artifacts from the model");
  fail(ErrorCode::kFail, "cannot read the checkpoint '", to_utf8(path), "': expected a file, found a folder");
}

// ----------------------------------------------------------------------------------------------------
// writing

// The bytes of a tensor, and where they go.
struct Blob {
  const Parameter* parameter = nullptr;
  Tensor stored;  // of the parameter, in its order
  size_t bytes = 0;
  size_t position = 0;  // in the file that holds them

  // Row-major, as written to the file.
  Tensor data() const { return parameter->row_major(stored); }
};

// Builds the tables, without the bytes of tensors.
class TableWriter {
 public:
  // `identity` is given if the data are in a second file, at the blobs' positions.
  TableWriter(const CheckpointState& state, bool include_optimizer_state, const std::string& identity,
              const std::vector<Blob>& blobs)
      : nominal_(state.is_nominal()), external_(!identity.empty()), blobs_(blobs) {
    if (external_) identity_ = builder_.CreateString(identity);
    std::vector<flatbuffers::Offset<fbs::Tensor>> trainable, frozen;
    for (const Parameter& parameter : state.parameters())
      (parameter.trainable ? trainable : frozen).push_back(tensor(parameter.name, parameter.data));
    const auto trainable_vector = builder_.CreateVector(trainable),
               frozen_vector = builder_.CreateVector(frozen);
    const auto module =
        fbs::CreateModuleState(builder_, trainable_vector, frozen_vector, nominal_, external_);
    flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<fbs::OptimizerGroup>>> groups = 0;
    if (include_optimizer_state) {
      std::vector<flatbuffers::Offset<fbs::ParameterOptimizerState>> states;
      for (const Parameter& parameter : state.parameters()) {
        if (parameter.moments.empty()) continue;
        std::vector<flatbuffers::Offset<fbs::Tensor>> momentums;
        for (size_t i = 0; i < parameter.moments.size(); ++i)
          momentums.push_back(tensor(kMomentum + std::to_string(i), parameter.moments[i]));
        const auto owner = builder_.CreateString(parameter.name);
        states.push_back(
            fbs::CreateParameterOptimizerState(builder_, owner, builder_.CreateVector(momentums)));
      }
      const auto name = builder_.CreateString(kGroup);
      groups = builder_.CreateVector(std::vector{fbs::CreateOptimizerGroup(
          builder_, name, state.optimizer().step, state.optimizer().initial_learning_rate,
          builder_.CreateVector(states), group_settings(state.optimizer()), state_names(state.optimizer()),
          schedule(state.optimizer()))});
    }
    const auto bag = property_bag(state.properties());
    fbs::FinishCheckpointBuffer(builder_, fbs::CreateCheckpoint(builder_, kVersion, module, groups, bag));
  }

  size_t size() const { return builder_.GetSize(); }
  const uint8_t* data() const { return builder_.GetBufferPointer(); }

  // Makes the i-th tensor's raw_data point after the tables, to a vector whose elements begin at `position`.
  void point_to(size_t i, size_t position) {
    const auto* table = flatbuffers::GetTemporaryPointer(builder_, tensors_[i]);
    const uint8_t* field =
        reinterpret_cast<const flatbuffers::Table*>(table)->GetAddressOf(fbs::Tensor::VT_RAW_DATA);
    const size_t at = static_cast<size_t>(field - data());
    flatbuffers::WriteScalar(
        builder_.GetBufferPointer() + at,
        static_cast<flatbuffers::uoffset_t>(position - sizeof(flatbuffers::uoffset_t) - at));
  }

 private:
  flatbuffers::Offset<fbs::Tensor> tensor(const std::string& name, const Tensor& value) {
    const auto name_text = builder_.CreateString(name);
    const bool unknown = nominal_ && value.shape() == kUnknownShape;
    const auto dims = builder_.CreateVector(unknown ? Shape{} : value.shape());
    const auto dtype = static_cast<int32_t>(value.dtype());
    const bool outside = external_ && value.bytes() > 0;
    // An empty vector; point_to() replaces it.
    flatbuffers::Offset<flatbuffers::Vector<uint8_t>> raw = 0;
    if (!outside) raw = builder_.CreateVector(static_cast<const uint8_t*>(nullptr), 0);
    const int64_t position = outside ? static_cast<int64_t>(blobs_[tensors_.size()].position) : -1;
    tensors_.push_back(
        fbs::CreateTensor(builder_, name_text, outside ? identity_ : 0, dims, dtype, raw, 0, position));
    return tensors_.back();
  }

  using GroupSettings = flatbuffers::Offset<fbs::ParameterGroupSettings>;
  flatbuffers::Offset<flatbuffers::Vector<GroupSettings>> group_settings(const OptimizerState& optimizer) {
    std::set<std::string> names;
    for (const auto& [group, values] : optimizer.group_settings) names.insert(group);
    for (const auto& [group, values] : optimizer.group_scalars) names.insert(group);
    if (names.empty()) return 0;
    std::vector<GroupSettings> groups;
    for (const std::string& group : names) {
      const auto settings =
          properties_of<fbs::FloatProperty>(optimizer.group_settings, group, fbs::CreateFloatProperty);
      const auto scalars =
          properties_of<fbs::DoubleProperty>(optimizer.group_scalars, group, fbs::CreateDoubleProperty);
      const auto name = builder_.CreateString(group);
      groups.push_back(fbs::CreateParameterGroupSettings(builder_, name, settings, scalars));
    }
    return builder_.CreateVector(groups);
  }

  // The numbers of a group; no vector if it has none.
  template <typename Property, typename Groups, typename Create>
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<Property>>> properties_of(
      const Groups& groups, const std::string& group, Create&& create) {
    const auto found = groups.find(group);
    if (found == groups.end() || found->second.empty()) return 0;
    std::vector<flatbuffers::Offset<Property>> all;
    for (const auto& [key, value] : found->second)
      all.push_back(create(builder_, builder_.CreateString(key), value));
    return builder_.CreateVector(all);
  }

  flatbuffers::Offset<fbs::ScheduleState> schedule(const OptimizerState& optimizer) {
    if (!optimizer.schedule) return 0;
    std::vector<flatbuffers::Offset<fbs::DoubleProperty>> values;
    for (const auto& [key, value] : optimizer.schedule->values)
      values.push_back(fbs::CreateDoubleProperty(builder_, builder_.CreateString(key), value));
    const auto name = builder_.CreateString(optimizer.schedule->name);
    const auto settings = builder_.CreateString(optimizer.schedule->settings);
    return fbs::CreateScheduleState(builder_, name, settings, builder_.CreateVector(values));
  }

  // Files of AdamW and plain SGD are those of onnxruntime.
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>> state_names(
      const OptimizerState& optimizer) {
    const std::vector<std::string>& names = optimizer.state_names;
    if (names.empty() || std::equal(names.begin(), names.end(), kAdamWStates.begin(), kAdamWStates.end()))
      return 0;
    return builder_.CreateVectorOfStrings(names);
  }

  flatbuffers::Offset<fbs::PropertyBag> property_bag(const std::map<std::string, Property>& properties) {
    if (properties.empty()) return 0;
    std::vector<flatbuffers::Offset<fbs::IntProperty>> ints;
    std::vector<flatbuffers::Offset<fbs::FloatProperty>> floats;
    std::vector<flatbuffers::Offset<fbs::StringProperty>> strings;
    for (const auto& [name, value] : properties) {
      const auto key = builder_.CreateString(name);
      if (const auto* i = std::get_if<int64_t>(&value)) {
        ints.push_back(fbs::CreateIntProperty(builder_, key, *i));
      } else if (const auto* f = std::get_if<float>(&value)) {
        floats.push_back(fbs::CreateFloatProperty(builder_, key, *f));
      } else {
        const auto text = builder_.CreateString(std::get<std::string>(value));
        strings.push_back(fbs::CreateStringProperty(builder_, key, text));
      }
    }
    const auto int_vector = builder_.CreateVector(ints);
    const auto float_vector = builder_.CreateVector(floats);
    return fbs::CreatePropertyBag(builder_, int_vector, float_vector, builder_.CreateVector(strings));
  }

  flatbuffers::FlatBufferBuilder builder_;
  bool nominal_, external_;
  const std::vector<Blob>& blobs_;
  flatbuffers::Offset<flatbuffers::String> identity_;
  std::vector<flatbuffers::Offset<fbs::Tensor>> tensors_;
};

// The tensors in the order in which TableWriter meets them, placed one after another from `begin` on.
std::vector<Blob> place_blobs(const CheckpointState& state, bool include_optimizer_state, size_t begin,
                              size_t gap) {
  std::vector<Blob> blobs;
  const auto place = [&](const Parameter& parameter, const Tensor& stored) {
    const size_t bytes = state.is_nominal() ? 0 : stored.bytes();
    if (bytes > 0) begin = align_up(begin + gap);
    blobs.push_back({&parameter, stored, bytes, begin});
    begin += bytes;
  };
  for (const Parameter& parameter : state.parameters()) place(parameter, parameter.data);
  if (include_optimizer_state)
    for (const Parameter& parameter : state.parameters())
      for (const Tensor& momentum : parameter.moments) place(parameter, momentum);
  return blobs;
}

size_t end_of(const std::vector<Blob>& blobs) {
  return blobs.empty() ? 0 : blobs.back().position + blobs.back().bytes;
}

// The identity that the checkpoint at `path` names for its data file. Nothing if it has no second file or is
// not a checkpoint.
std::optional<std::string> identity_of_present(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  const MappedFile file(path, "checkpoint");  // a file that cannot be read may still be a checkpoint
  try {
    const fbs::Checkpoint& root = verified(file.data(), file.size());
    if (root.module_state() == nullptr || !root.module_state()->has_external_data()) return std::nullopt;
    return identity_of_checkpoint(root);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Keeps the data file of the checkpoint at `path` under the name for old ones, unless there already is one.
void keep_old_data(const fs::path& path, const std::string& identity) {
  const fs::path now = data_path(path), old = old_data_path(path);
  if (identity_of_file(now) != identity) return;
  system::remove_file(old);
  if (!system::link(now, old)) {
    // This file system has no links. Until the new file exists, the reader takes the old one.
    std::error_code error;
    fs::rename(now, old, error);
    require(!error, ErrorCode::kFail, "cannot keep the checkpoint's data file '", to_utf8(now),
            "' while it is replaced: ", error.message());
  }
  sync_folder(old);
}

}  // namespace

std::shared_ptr<CheckpointState> CheckpointIo::read(const std::byte* data, size_t bytes, const fs::path& path,
                                                    const std::shared_ptr<const MappedFile>& file,
                                                    Values values) {
  StateReader reader(data, bytes, path);
  auto state = std::make_shared<CheckpointState>();
  state->parameters_ = reader.parameters();
  const auto optimizer = reader.optimizer(state->parameters_);
  state->properties_ = reader.properties();
  state->nominal_ = reader.nominal();
  for (size_t i = 0; i < state->parameters_.size(); ++i) state->index_[state->parameters_[i].name] = i;
  if (optimizer) state->optimizer_ = *optimizer;
  if (values == Values::kMapped) {
    state->has_optimizer_ = optimizer.has_value();
    keep_mapped(*state, {file, reader.data_file()});
    return state;
  }
  if (reader.data_file()) reader.data_file()->prefetch();
  // The tensors are still views of the file; the arenas take copies. Bytes are read from the file directly
  // into their arena: copied out of the mapping, they would be in memory twice.
  const CheckpointState::CopyBytes copy = [&](std::byte* to, const std::byte* from, size_t count) {
    for (const auto& source : {file, reader.data_file()})
      if (source && source->holds(from)) return source->read(to, from, count);
    std::memcpy(to, from, count);
  };
  if (!state->nominal_) state->make_data_arenas(copy);
  if (optimizer) {
    int momentums = 0;
    for (const Parameter& parameter : state->parameters_)
      if (parameter.trainable) momentums = static_cast<int>(parameter.moments.size());
    state->make_moments(momentums, copy);
  }
  return state;
}

void CheckpointIo::keep_mapped(CheckpointState& state, std::vector<std::shared_ptr<const MappedFile>> files) {
  std::erase(files, nullptr);
  const auto keep = [&](Tensor& view) {
    const auto found =
        std::find_if(files.begin(), files.end(), [&](const auto& file) { return file->holds(view.raw()); });
    if (found == files.end()) return;  // it has no values
    const Tensor kept(view.dtype(), view.shape(), view.raw(), std::const_pointer_cast<MappedFile>(*found));
    // Files of other writers may have values where vectors cannot be loaded from.
    view = reinterpret_cast<uintptr_t>(view.raw()) % kAlignment == 0 ? kept : kept.clone();
  };
  for (Parameter& parameter : state.parameters_) {
    keep(parameter.data);
    for (Tensor& moment : parameter.moments) keep(moment);
  }
  state.files_ = std::move(files);
}

std::shared_ptr<CheckpointState> CheckpointIo::read(const fs::path& path) {
  return open(path, Values::kCopied);
}

std::shared_ptr<CheckpointState> CheckpointIo::map(const fs::path& path) {
  return open(path, Values::kMapped);
}

std::shared_ptr<CheckpointState> CheckpointIo::open(const fs::path& path, Values values) {
  std::error_code error;
  if (fs::is_directory(path, error)) reject_folder(path);
  const auto file = std::make_shared<const MappedFile>(path, "checkpoint");
  if (values == Values::kCopied) file->prefetch();
  try {
    return read(file->data(), file->size(), path, file, values);
  } catch (const Error& e) {
    fail(e.code(), "cannot read the checkpoint '", to_utf8(path), "': ", e.message());
  }
}

std::shared_ptr<CheckpointState> CheckpointIo::read(const void* data, size_t bytes) {
  try {
    require(data != nullptr || bytes == 0, ErrorCode::kInvalidArgument, "the pointer to its bytes is null");
    const auto* begin = static_cast<const std::byte*>(data);
    if (reinterpret_cast<uintptr_t>(data) % alignof(int64_t) == 0)
      return read(begin, bytes, fs::path(), nullptr, Values::kCopied);
    // Numbers in the file are aligned relative to its start, so the start itself must be aligned.
    const auto copy = allocate(bytes);
    std::memcpy(copy.get(), begin, bytes);
    return read(copy.get(), bytes, fs::path(), nullptr, Values::kCopied);
  } catch (const Error& e) {
    fail(e.code(), "cannot read the checkpoint in memory: ", e.message());
  }
}

void CheckpointIo::write(const CheckpointState& state, const fs::path& path, bool include_optimizer_state,
                         size_t largest_file) {
  // Writes the state between two calls of a session. Steps continue once the system has the data, and do not
  // wait for the disk.
  TurnLock::Turn turn = state.hold();
  const bool with_optimizer = include_optimizer_state && state.has_optimizer_state() && !state.is_nominal();
  TableWriter tables(state, with_optimizer, "", {});
  std::vector<Blob> blobs = place_blobs(state, with_optimizer, tables.size(), sizeof(flatbuffers::uoffset_t));
  // Once the checkpoint is in place, no allocation may fail.
  const fs::path data_now = data_path(path), data_old = old_data_path(path);
  FileWriter checkpoint(path, "checkpoint");

  const auto present = identity_of_present(path);
  if (end_of(blobs) <= largest_file) {
    for (size_t i = 0; i < blobs.size(); ++i)
      if (blobs[i].bytes > 0) tables.point_to(i, blobs[i].position);
    checkpoint.write(tables.data(), tables.size());
    for (const Blob& blob : blobs) {
      if (blob.bytes == 0) continue;
      const auto length = static_cast<flatbuffers::uoffset_t>(blob.bytes);
      checkpoint.skip_to(blob.position - sizeof length);
      checkpoint.write(&length, sizeof length);
      checkpoint.write(blob.data().raw(), blob.bytes);
    }
    turn.release();
    checkpoint.commit();
    // The data file of the previous checkpoint is no longer needed.
    if (present) {
      system::remove_file(data_now);
      system::remove_file(data_old);
    }
    return;
  }

  blobs = place_blobs(state, with_optimizer, 0, 0);
  FileWriter data(data_now, "checkpoint's data file");
  Digest digest;
  for (const Blob& blob : blobs) {
    if (blob.bytes == 0) continue;
    const Tensor tensor = blob.data();
    data.skip_to(blob.position);
    data.write(tensor.raw(), blob.bytes);
    digest.add(tensor.raw(), blob.bytes);
  }
  data.write(digest.identity().data(), kIdentityBytes);
  const TableWriter outside(state, with_optimizer, digest.identity(), blobs);
  require(outside.size() <= kLargestFile, ErrorCode::kFail, "cannot write the checkpoint '", to_utf8(path),
          "': it has too many ", "parameters for a checkpoint file");
  turn.release();
  data.sync();
  checkpoint.write(outside.data(), outside.size());
  checkpoint.sync();
  if (present) keep_old_data(path, *present);
  data.commit();
  checkpoint.commit();
  system::remove_file(data_old);
}

}  // namespace ortrain
