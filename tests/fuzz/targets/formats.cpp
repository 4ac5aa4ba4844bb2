// Reading a model in ORT format or an adapter, and writing it again.
#include "../support.h"
#include "graph/onnx_io.h"
#include "graph/onnx_reader.h"
#include "graph/ort_reader.h"
#include "infer/typed_model.h"
#include "op/operator.h"
#include "op/signature.h"
#include "state/adapter_io.h"

using namespace ortrain;
using namespace ortrain::fuzz;

namespace {

template <typename F>
void for_each_subgraph(Graph& graph, F&& f) {
  for (Node& node : graph.nodes)
    for (auto& [name, attribute] : node.attributes)
      if (auto* sub = std::get_if<std::shared_ptr<Graph>>(&attribute)) f(**sub);
}

bool knows_all_operators(Graph& graph) {
  bool known = true;
  for (const Node& node : graph.nodes) known &= find_operator(node.domain, node.op_type) != nullptr;
  for_each_subgraph(graph, [&](Graph& sub) { known &= knows_all_operators(sub); });
  return known;
}

void forget_types(Graph& graph) {
  graph.value_info.clear();
  for (std::vector<ValueInfo>* side : {&graph.inputs, &graph.outputs})
    for (ValueInfo& value : *side) value = {value.name, DType::kUndefined, std::nullopt};
  for_each_subgraph(graph, forget_types);
}

// Whether two files that were written hold the same model. What operators that nobody knows make of their
// inputs is what a model states, and it may contradict itself. Only then may the types differ.
bool hold_the_same(const std::string& one, const std::string& other) {
  if (one == other) return true;
  Model a = load_model(one.data(), one.size()), b = load_model(other.data(), other.size());
  if (knows_all_operators(a.graph)) return false;
  forget_types(a.graph), forget_types(b.graph);
  return write_model(a) == write_model(b);
}

void run_model(const uint8_t* data, size_t size) {
  std::string written;
  try {
    written = write_ort_model(load_model(data, size));
  } catch (const Error&) {
    return;
  }
  std::string again;
  try {
    const Model read = load_model(written.data(), written.size());
    try {
      again = write_ort_model(read);
    } catch (const Error& error) {
      // The types that the file states may show that a node is invalid; nothing else may be in the way.
      if (error.code() == ErrorCode::kInvalidGraph) return;
      throw;
    }
  } catch (const Error& error) {
    wrong("a model that was read and written in ORT format cannot be read again: " + error.message());
  }
  if (!hold_the_same(again, written))
    wrong("a model that was written in ORT format and read again is another");
}

void run_adapter(const uint8_t* data, size_t size) {
  std::string written;
  try {
    const Adapter adapter = read_adapter(data, size);
    for (const auto& [name, tensor] : adapter.parameters) read_all(tensor);
    written = write_adapter(adapter);
  } catch (const Error&) {
    return;
  }
  try {
    if (write_adapter(read_adapter(written.data(), written.size())) != written)
      wrong("an adapter that was written and read again is another");
  } catch (const Error& error) {
    wrong("an adapter that was read and written cannot be read again: " + error.message());
  }
}

}  // namespace

int LLVMFuzzerInitialize(int*, char***) {
  limit_memory();
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (is_ort_model(data, size))
    run_model(data, size);
  else
    run_adapter(data, size);
  return 0;
}

// Mutates the model, or else the bytes. Most changed bytes are found by the verifier of FlatBuffers; what is
// behind it is reached by models that are written after they were changed.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  Random random(seed + 1);
  if (below(random, 2) != 0 && is_ort_model(data, size)) try {
      const ortrain::onnx::ModelProto read = parse_ort_model(data, size);
      ::onnx::ModelProto model;
      model.ParseFromString(protobuf::write(read.kType, &read));
      mutate_model(model, random);
      const std::string bytes = model.SerializeAsString();
      const Model changed = read_model(bytes.data(), bytes.size());
      check_signatures(changed);
      const std::string written = write_ort_model(changed);
      if (written.size() <= max_size) {
        std::copy(written.begin(), written.end(), data);
        return written.size();
      }
    } catch (const Error&) {
    }
  return LLVMFuzzerMutate(data, size, max_size);
}
