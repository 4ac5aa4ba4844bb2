#include "capi/compile.h"

#include <cstring>
#include <optional>
#include <utility>

#include "capi/generated/bodies.h"
#include "capi/graph_handles.h"
#include "capi/guard.h"
#include "op/signature.h"
#include "passes/pass.h"
#include "runtime/file.h"
#include "runtime/memory.h"
#include "runtime/path.h"

namespace ortrain::capi {
namespace {

constexpr uint32_t kMustCompileNodes = 1, kMustNotReplace = 2;  // the flags

// Releases a status of the program, and throws its error.
void check(OrtStatus* status, const char* what) {
  if (status == nullptr) return;
  const auto code = static_cast<ErrorCode>(GetErrorCode(status));
  const std::string message = GetErrorMessage(status);
  release(status);
  fail(code, what, ": ", message);
}

std::filesystem::path checked_path(const ORTCHAR_T* path, const char* what) {
  require(*path != 0, ErrorCode::kInvalidArgument, "the path of ", what, " is empty");
  return path;
}

BuiltModel read(const OrtModelCompilationOptions& options) {
  if (const auto* model = std::get_if<const OrtModel*>(&options.input))
    return built(**model, Initializers::kShared);
  BuiltModel out;
  ReadOptions how = read_options(options.settings);
  how.notes = &out.notes;
  if (const auto* bytes = std::get_if<OrtModelCompilationOptions::Bytes>(&options.input)) {
    out.model = load_model(bytes->data, bytes->size, "model in memory", how);
  } else {
    const auto* path = std::get_if<std::filesystem::path>(&options.input);
    require(path != nullptr, ErrorCode::kInvalidArgument,
            "there is no model to compile, expected a path, the contents of a file, or a model");
    require(std::filesystem::exists(*path), ErrorCode::kInvalidArgument, "there is no file ", to_utf8(*path));
    out.model = load_model(*path, how);
  }
  return out;
}

// The path to which the model is written if the options state none.
std::filesystem::path default_output(const OrtModelCompilationOptions& options) {
  const auto* input = std::get_if<std::filesystem::path>(&options.input);
  require(input != nullptr, ErrorCode::kInvalidArgument,
          "there is no output, expected a path, a buffer or a function");
  std::filesystem::path name = input->stem();
  name += "_ctx.onnx";
  return input->parent_path() / name;
}

// A copy of a text in memory of the caller's allocator. It is freed unless the caller gets it.
class Copy {
 public:
  Copy(const OrtModelCompilationOptions::Buffer& buffer, const std::string& text)
      : buffer_(buffer), size_(text.size()) {
    if (text.empty()) return;
    memory_ = allocate(buffer.allocator, size_);
    std::memcpy(memory_, text.data(), size_);
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  ~Copy() {
    if (memory_) buffer_.allocator->Free(buffer_.allocator, memory_);
  }
  void give() {
    *buffer_.data = std::exchange(memory_, nullptr);
    *buffer_.size = size_;
  }

 private:
  OrtModelCompilationOptions::Buffer buffer_;
  size_t size_;
  void* memory_ = nullptr;
};

PlaceOf places(const OrtModelCompilationOptions& options, const ModelNotes& notes, std::string& weights) {
  if (options.locate)
    return [&](const std::string& name, const Tensor& tensor) -> std::optional<ExternalPlace> {
      const OrtValue value{tensor};
      std::optional<OrtExternalInitializerInfo> known;
      if (const auto at = notes.external.find(name); at != notes.external.end())
        known = {at->second.file, at->second.offset, at->second.bytes};
      OrtExternalInitializerInfo* moved = nullptr;
      check(options.locate(options.locate_state, name.c_str(), &value, known ? &*known : nullptr, &moved),
            "the function that places initializers");
      const std::unique_ptr<OrtExternalInitializerInfo> owner(moved);
      if (!moved) return std::nullopt;
      return ExternalPlace{to_utf8(moved->file), moved->offset, moved->bytes};
    };
  if (options.weights.empty()) return nullptr;
  return [&](const std::string&, const Tensor& tensor) -> std::optional<ExternalPlace> {
    if (tensor.dtype() == DType::kString || tensor.bytes() <= options.largest_inside) return std::nullopt;
    const bool aligned = options.weights_alignment > kAlignment && tensor.bytes() >= options.smallest_aligned;
    const size_t least = aligned ? options.weights_alignment : kAlignment;
    weights.resize((weights.size() + least - 1) & ~(least - 1));
    const ExternalPlace place{to_utf8(options.weights), static_cast<int64_t>(weights.size()), tensor.bytes()};
    weights.append(reinterpret_cast<const char*>(tensor.raw()), tensor.bytes());
    return place;
  };
}

}  // namespace

void CreateModelCompilationOptionsFromSessionOptions(const OrtEnv* env,
                                                     const OrtSessionOptions* session_options,
                                                     OrtModelCompilationOptions** out) {
  auto made = std::make_unique<OrtModelCompilationOptions>();
  made->settings = options_of(*env, session_options);
  *out = made.release();
}

void ModelCompilationOptions_SetInputModelPath(OrtModelCompilationOptions* options, const ORTCHAR_T* path) {
  options->input = checked_path(path, "the model");
}
void ModelCompilationOptions_SetInputModelFromBuffer(OrtModelCompilationOptions* options, const void* data,
                                                     size_t size) {
  require(size > 0, ErrorCode::kInvalidArgument, "the size of the model is 0");
  options->input = OrtModelCompilationOptions::Bytes{data, size};
}
void ModelCompilationOptions_SetInputModel(OrtModelCompilationOptions* options, const OrtModel* model) {
  options->input = model;
}
void ModelCompilationOptions_SetOutputModelPath(OrtModelCompilationOptions* options, const ORTCHAR_T* path) {
  options->output = checked_path(path, "the compiled model");
}
void ModelCompilationOptions_SetOutputModelBuffer(OrtModelCompilationOptions* options,
                                                  OrtAllocator* allocator, void** data, size_t* size) {
  options->output = OrtModelCompilationOptions::Buffer{allocator, data, size};
}
void ModelCompilationOptions_SetOutputModelWriteFunc(OrtModelCompilationOptions* options,
                                                     OrtWriteBufferFunc function, void* state) {
  options->output = OrtModelCompilationOptions::Writer{function, state};
}
void ModelCompilationOptions_SetOutputModelExternalInitializersFile(OrtModelCompilationOptions* options,
                                                                    const ORTCHAR_T* path, size_t threshold) {
  options->weights = checked_path(path, "the file for initializers");
  options->weights_memory.reset();
  options->largest_inside = threshold;
}
void ModelCompilationOptions_SetOutputModelExternalInitializersBuffer(OrtModelCompilationOptions* options,
                                                                      const ORTCHAR_T* name, size_t threshold,
                                                                      OrtAllocator* allocator, void** data,
                                                                      size_t* size) {
  std::filesystem::path given = checked_path(name, "the file for initializers");
  require(given.is_relative(), ErrorCode::kInvalidArgument, "the path of the file for initializers is ",
          to_utf8(given), ", expected a relative one");
  options->weights = std::move(given);
  options->weights_memory = {allocator, data, size};
  options->largest_inside = threshold;
}
void ModelCompilationOptions_SetOutputModelExternalInitializersAlignment(OrtModelCompilationOptions* options,
                                                                         size_t alignment,
                                                                         size_t minimum_size) {
  require((alignment & (alignment - 1)) == 0 && std::in_range<int64_t>(alignment),
          ErrorCode::kInvalidArgument, "the alignment of initializers is ", alignment,
          ", expected 0 or a power of two below 2^63");
  options->weights_alignment = alignment;
  options->smallest_aligned = minimum_size;
}
void ModelCompilationOptions_SetOutputModelGetInitializerLocationFunc(OrtModelCompilationOptions* options,
                                                                      OrtGetInitializerLocationFunc function,
                                                                      void* state) {
  options->locate = function;
  options->locate_state = state;
}
void ModelCompilationOptions_SetFlags(OrtModelCompilationOptions* options, uint32_t flags) {
  options->flags = flags;
}
void ModelCompilationOptions_SetGraphOptimizationLevel(OrtModelCompilationOptions* options,
                                                       GraphOptimizationLevel level) {
  options->level = level;
}
void ModelCompilationOptions_SetEpContextEmbedMode(OrtModelCompilationOptions*, bool) {}
void ModelCompilationOptions_SetEpContextBinaryInformation(OrtModelCompilationOptions*,
                                                           const ORTCHAR_T* output_directory,
                                                           const ORTCHAR_T* model_name) {
  checked_path(output_directory, "the folder");
  checked_path(model_name, "the files");
}
void ModelCompilationOptions_SetWeightlessEnabled(OrtModelCompilationOptions*, bool) {}
void ModelCompilationOptions_SetWeightlessMode(OrtModelCompilationOptions*, OrtWeightlessSupport mode) {
  const int number = mode;
  require(number >= OrtWeightlessSupport_NONE && number <= OrtWeightlessSupport_ALL,
          ErrorCode::kInvalidArgument, "the mode for weights is ", number, ", expected a number from 0 to 2");
}

void CompileModel(const OrtEnv*, const OrtModelCompilationOptions* model_options) {
  const OrtModelCompilationOptions& options = *model_options;
  auto [model, notes] = read(options);
  require((options.flags & kMustCompileNodes) == 0, ErrorCode::kFail,
          "the flags require compiled nodes, and CPUExecutionProvider compiles none");
  require(notes.maps.empty() && notes.sparse.empty(), ErrorCode::kNotImplemented,
          "models with inputs or outputs that are maps or sparse tensors cannot be written");
  const auto* buffer = std::get_if<OrtModelCompilationOptions::Buffer>(&options.output);
  const auto* writer = std::get_if<OrtModelCompilationOptions::Writer>(&options.output);
  std::filesystem::path path;
  if (const auto* given = std::get_if<std::filesystem::path>(&options.output))
    path = *given;
  else if (!buffer && !writer)
    path = default_output(options);
  require(path.empty() || (options.flags & kMustNotReplace) == 0 || !std::filesystem::exists(path),
          ErrorCode::kFail, "the file ", to_utf8(path), " exists, and the flags forbid replacing a file");

  // Nodes that passes of higher levels make can be run only by this version of the library.
  if (options.level >= static_cast<int>(PassLevel::kBasic))
    run_passes(model, PassPhase::kSession, options.settings.config, static_cast<int>(PassLevel::kBasic),
               "compiled");
  constexpr int64_t kInitializersAreInputs =
      3;  // up to this IR version, every initializer of a model is an input too
  if (model.ir_version > kInitializersAreInputs)
    model.graph.inputs.insert(model.graph.inputs.end(), notes.overridable.begin(), notes.overridable.end());
  std::string weights;
  const std::string content = write_model(model, places(options, notes, weights));
  std::optional<Copy> weights_copy;
  if (options.weights_memory)
    weights_copy.emplace(*options.weights_memory, weights);
  else if (!options.weights.empty() && !options.locate)
    write_file(path.parent_path() / options.weights, "initializers", weights.data(), weights.size());
  if (writer)
    check(writer->function(writer->state, content.data(), content.size()), "the function that writes");
  else if (buffer)
    Copy(*buffer, content).give();
  else
    write_file(path, "compiled model", content.data(), content.size());
  if (weights_copy) weights_copy->give();
}

// ---- places of initializers ----

void CreateExternalInitializerInfo(const ORTCHAR_T* filepath, int64_t file_offset, size_t byte_size,
                                   OrtExternalInitializerInfo** out) {
  *out = new OrtExternalInitializerInfo{filepath, file_offset, byte_size};
}
const ORTCHAR_T* ExternalInitializerInfo_GetFilePath(const OrtExternalInitializerInfo* info) {
  return info ? info->file.c_str() : nullptr;
}
int64_t ExternalInitializerInfo_GetFileOffset(const OrtExternalInitializerInfo* info) {
  return info ? info->offset : 0;
}
size_t ExternalInitializerInfo_GetByteSize(const OrtExternalInitializerInfo* info) {
  return info ? info->bytes : 0;
}

// ---- metadata of a compiled model ----

namespace {

void give_info(const Model& model, const char* ep_type, OrtAllocator* allocator, char** out) {
  const auto found = model.metadata.find(concat("ep_compatibility_info.", ep_type));
  *out = found == model.metadata.end() ? nullptr : copy_text(allocator, found->second);
}

}  // namespace

void GetCompatibilityInfoFromModel(const ORTCHAR_T* model_path, const char* ep_type, OrtAllocator* allocator,
                                   char** compatibility_info) {
  give_info(read_model(std::filesystem::path(model_path)), ep_type, allocator, compatibility_info);
}
void GetCompatibilityInfoFromModelBytes(const void* model_data, size_t model_data_length, const char* ep_type,
                                        OrtAllocator* allocator, char** compatibility_info) {
  try {
    give_info(read_model(model_data, model_data_length), ep_type, allocator, compatibility_info);
  } catch (const Error& error) {
    fail(error.code() == ErrorCode::kInvalidProtobuf ? ErrorCode::kInvalidGraph : error.code(),
         error.message());
  }
}

}  // namespace ortrain::capi
