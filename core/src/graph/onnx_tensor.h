// Tensors as ONNX files store them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "graph/onnx_proto.h"
#include "runtime/system.h"
#include "runtime/tensor.h"

namespace ortrain {

// Files with tensor data that are next to a model. Each is opened once.
class ExternalFiles {
 public:
  using Given = std::map<std::string, std::span<const std::byte>>;
  // `folder` is where the model is stored; empty: a model from memory, which has no files next to it. `given`
  // are contents that are used instead of files. With `map`, large tensors are parts of a mapping of their
  // file, which all models of the process share, and the system with other processes.
  explicit ExternalFiles(std::filesystem::path folder, const Given& given = {}, bool map = false)
      : folder_(std::move(folder)), given_(given), map_(map) {}
  ExternalFiles(const ExternalFiles&) = delete;
  ExternalFiles& operator=(const ExternalFiles&) = delete;

  // The `bytes` bytes that the tensor's external_data entries refer to. Throws kInvalidGraph if the location
  // is outside the folder or the range is outside the file, kNoSuchFile if the file is missing.
  Tensor read(const onnx::TensorProto& proto, DType dtype, const Shape& shape, size_t bytes);

 private:
  struct File {
    system::File file;
    size_t bytes = 0;
    std::shared_ptr<const std::byte> mapping = nullptr;  // of all of it, once a tensor needs it
  };
  File& open(const std::string& location);

  std::filesystem::path folder_;
  Given given_;
  bool map_;
  std::unordered_map<std::string, File> files_;
};

// Reads a tensor in any of ONNX's storage forms. Throws kInvalidGraph if sizes do not match.
Tensor read_tensor(const onnx::TensorProto& proto, ExternalFiles& files);

// Reads a sparse tensor as a dense one. Throws kInvalidGraph for indices that are out of range or not in
// ascending order.
Tensor read_sparse_tensor(const onnx::SparseTensorProto& proto, ExternalFiles& files);

// The tensor as raw data, which stay in the tensor; strings as such.
void write_tensor(const Tensor& tensor, const std::string& name, onnx::TensorProto& proto);

}  // namespace ortrain
