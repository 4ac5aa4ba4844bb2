// Maps. Programs have none: only the first nodes of a model may read maps, only its last nodes may produce
// them, and the session does the work of these nodes. It converts an input that is a map to a tensor before
// the run, and an output to maps after the run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/onnx_io.h"
#include "onnxruntime_c_api.h"
#include "runtime/tensor.h"

// Keys, in ascending order, and their values.
struct OrtMap {
  ortrain::Tensor keys, values;
};

// A map, or a sequence of maps.
struct OrtMaps {
  ortrain::MapType type;
  std::vector<OrtMap> maps;
};

namespace ortrain::capi {

// The conversion of an input or output that is a map.
struct MapPort {
  MapType type;
  Node node;                  // ZipMap, DictVectorizer or CastMap
  Tensor keys;                // of ZipMap, in ascending order
  std::vector<size_t> order;  // of the columns, by those keys
};

struct MapPorts {
  std::map<std::string, MapPort> inputs, outputs;
};

// Replaces the nodes with maps. Throws kNotImplemented for maps that are used in another way.
MapPorts take_maps(Model& model, const ModelNotes& notes);

// What the node of an input makes of a map.
Tensor tensor_of_map(const MapPort& port, const OrtMaps& given);
// What ZipMap makes of the rows of a tensor.
OrtMaps maps_of_tensor(const MapPort& port, const Tensor& rows);

// A map of keys and values, sorted by key. Throws kInvalidArgument if they are not as many, or of types that
// no map has.
OrtMap make_map(const Tensor& keys, const Tensor& values);

}  // namespace ortrain::capi
