// Sparse tensors. Graphs have none: an input of a model that is sparse becomes dense tensors (values,
// coordinates, and an empty tensor that carries its shape), and the nodes that multiply it are rewritten to
// read these.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/onnx_io.h"
#include "onnxruntime_c_api.h"
#include "runtime/tensor.h"
#include "runtime/value.h"

struct OrtSparseTensor {
  OrtAllocator* allocator;  // of its values and indices; null: they are in memory of the caller
  ortrain::DType dtype;
  ortrain::Shape shape;  // of the tensor with all elements
  OrtSparseFormat format = ORT_SPARSE_UNDEFINED;
  ortrain::Tensor values;
  ortrain::Tensor indices;  // coordinates, columns, or places of blocks
  ortrain::Tensor starts;   // of the rows in the values (CSR)
};

namespace ortrain::capi {

// The conversion of an input that is sparse.
struct SparsePort {
  ValueInfo info;              // of the input
  std::string indices, shape;  // the inputs of the graph beside the one for the values
};

struct SparsePorts {
  std::map<std::string, SparsePort> inputs;
  // The names of all outputs, if some are inputs that are passed through.
  std::vector<std::string> outputs;
};

// Rewrites the nodes that read sparse inputs. Throws kInvalidGraph for operators that take none.
SparsePorts take_sparse(Model& model, const ModelNotes& notes);

// A sparse tensor of the elements of another one that are not zero, by their places among all elements.
OrtSparseTensor sparse_of_tensor(const Tensor& tensor);

// The tensors that a graph reads for a sparse one, by the names of its inputs. Throws if it does not fit.
std::vector<std::pair<std::string, Value>> tensors_of_sparse(const std::string& name, const SparsePort& port,
                                                             const OrtSparseTensor& given);

}  // namespace ortrain::capi
