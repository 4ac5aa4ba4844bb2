// Reading a model in ORT format or an adapter, and writing it again.
#include "../support.h"
#include "graph/onnx_io.h"
#include "graph/onnx_reader.h"
#include "graph/ort_reader.h"
#include "infer/ort_writer.h"
#include "op/signature.h"
#include "state/adapter_io.h"

using namespace ortrain;
using namespace ortrain::fuzz;

namespace {

void run_model(const uint8_t* data, size_t size) {
  std::string written;
  try {
    written = write_ort_model(load_model(data, size));
  } catch (const Error&) {
    return;
  }
  std::string again;
  try {
    again = write_ort_model(load_model(written.data(), written.size()));
  } catch (const Error& error) {
    wrong("a model that was read and written in ORT format cannot be read again: " + error.message());
  }
  if (again != written) wrong("a model that was written in ORT format and read again is another");
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
      onnx::ModelProto model = parse_ort_model(data, size);
      mutate_model(model, random);
      const Model changed = convert_model(model, {}, {});
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
