// Reading model files, and writing ONNX files.
//
// A file is converted to the types of graph/: functions are inlined, external data is read only from the
// model's folder, nodes are sorted, and cycles and missing or duplicate values are rejected. Every node is
// then compared with the signature of its operator (op/signature.h), and attributes are checked by shape
// rules, which check them before they ask for a shape; so an invalid attribute is found before any pass
// uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

// Supported versions of the ONNX operators and of the file format.
inline constexpr int64_t kOldestOpset = 1, kNewestOpset = 28;
inline constexpr int64_t kOldestIrVersion = 3, kNewestIrVersion = 14;

// Values that replace initializers of a model when it is read. They share their memory.
struct GivenInitializers {
  std::map<std::string, Tensor> any;  // names that the model lacks are ignored
  std::map<std::string, Tensor>
      external;  // of initializers whose data the model stores in files, which are not read
  std::map<std::string, std::span<const std::byte>>
      files;  // contents of files by the names by which the model refers to them, which are not opened
};

// Where the data of an initializer are, if not in the model.
struct ExternalPlace {
  std::string file;  // relative to the folder of the model
  int64_t offset;
  size_t bytes;
};

// The type of a map, or of a sequence of maps. Graphs have neither: a session makes tensors of maps that it
// is given, and maps of tensors that it computed (capi/maps.h).
struct MapType {
  DType key = DType::kUndefined, value = DType::kUndefined;
  bool in_sequence = false;
};

// The metadata of a model file, which no graph needs, for sessions that run a model forward.
struct ModelNotes {
  std::map<std::string, ExternalPlace> external;  // initializers that were read from other files
  std::set<std::string> sparse;         // inputs and outputs that are sparse, which a session makes dense
  std::map<std::string, MapType> maps;  // values that are maps; elsewhere, they have the type of their values
  std::string graph_description;
  std::vector<ValueInfo> overridable;  // initializers that are inputs as well: default values of inputs
  std::map<std::string, std::vector<std::string>> denotations;  // of the dimensions of inputs that have any
};

// How large a model may be.
struct ModelLimits {
  size_t nodes = 1'000'000;  // those of subgraphs and of inlined functions included
  size_t nesting = 64;       // of subgraphs in subgraphs
};

// The form of a model file: a protobuf message, or FlatBuffers in ORT format.
enum class ModelFormat {
  kAny,  // what the file, or its name, says
  kOnnx,
  kOrt,
};

// How a model is read.
struct ReadOptions {
  ModelFormat format = ModelFormat::kAny;
  bool map_external = false;  // large external data are mapped, and must not change while they are in use
  ModelLimits limits = {};
  GivenInitializers given = {};
  std::filesystem::path directory = {};   // of the external data of a model in memory
  ModelNotes* notes = nullptr;            // filled in unless it is null
  void (*check)(const Model&) = nullptr;  // throws kInvalidGraph for what else the model must not be
};

// Reads a model. External data is looked up next to the file; functions of the model are inlined; the nodes
// are sorted. Throws kNoSuchFile, kInvalidProtobuf (not an ONNX model), kFail (a damaged file in ORT format),
// kInvalidGraph (cycle, missing or doubled values, wrong sizes, more than the limits allow), kNotImplemented
// (string tensors and such, all named), kInvalidArgument (a given value that differs from the model's in type
// or shape). `path` appears in messages.
Model read_model(const std::filesystem::path& path, const ReadOptions& options = {});

// The same from memory. External data is looked up in `directory` and rejected if that is empty.
Model read_model(const void* data, size_t bytes, const std::string& origin = "model in memory",
                 const std::filesystem::path& directory = {}, const ReadOptions& options = {});

// Stores the data of an initializer outside the model and returns the place. Returns nothing if the data
// belong in the model.
using PlaceOf = std::function<std::optional<ExternalPlace>(const std::string& name, const Tensor& value)>;

// The error of a build that leaves out the writing of models (kWritersPart).
[[noreturn]] void fail_without_writers();

// The serialized model. Throws if it would be larger than protobuf's limit of 2 GB.
std::string write_model(const Model& model, const PlaceOf& place_of = nullptr);

// Where a model file has its initializers.
enum class WeightPlace {
  kAuto,   // in the file, or next to it if the file would be larger than protobuf's limit of 2 GB
  kApart,  // next to it, except for small ones
};

// Writes the model to a file: temporary file, sync, rename. Initializers that are stored next to it go to a
// file with the name of the model and the ending ".data", which is in place before the model is.
void write_model(const Model& model, const std::filesystem::path& path,
                 WeightPlace weights = WeightPlace::kAuto);

}  // namespace ortrain
