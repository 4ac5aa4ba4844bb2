// Reading a model, and writing it again.
#include "../support.h"
#include "graph/onnx_io.h"
#include "graph/onnx_proto.h"

using namespace ortrain;
using namespace ortrain::fuzz;

namespace {

// Our reader accepts what protobuf's accepts. Both read the same: written by protobuf in its usual form, the
// message is the same for our reader as in the form that it was given.
void compare_readers(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ::onnx::ModelProto theirs;
  ortrain::onnx::ModelProto ours, usual;
  const bool accepted = theirs.ParseFromArray(data, static_cast<int>(size));
  if (protobuf::read(bytes, ours.kType, &ours) != accepted)
    wrong(accepted ? "our reader rejects what protobuf's accepts"
                   : "our reader accepts what protobuf's rejects");
  if (!accepted) return;
  const std::string written = theirs.SerializeAsString();
  if (!protobuf::read(written, usual.kType, &usual) ||
      protobuf::write(ours.kType, &ours) != protobuf::write(usual.kType, &usual))
    wrong("our reader reads another message than protobuf's");
}

}  // namespace

int LLVMFuzzerInitialize(int*, char***) {
  limit_memory();
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  compare_readers(data, size);
  std::string written;
  try {
    written = write_model(read_model(data, size, "model in memory", scratch()));
  } catch (const Error&) {
    return 0;
  }
  std::string again;
  try {
    again = write_model(read_model(written.data(), written.size()));
  } catch (const Error& error) {
    wrong("a model that was read and written cannot be read again: " + error.message());
  }
  if (again != written) wrong("a model that was written and read again is another");
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_message<::onnx::ModelProto>(
      data, size, max_size, seed,
      [](::onnx::ModelProto& model, Random& random) { mutate_model(model, random); });
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* a, size_t a_size, const uint8_t* b, size_t b_size,
                                            uint8_t* out, size_t max_size, unsigned seed) {
  ::onnx::ModelProto model, from;
  if (!model.ParseFromArray(a, static_cast<int>(a_size)) || !from.ParseFromArray(b, static_cast<int>(b_size)))
    return 0;
  Random random(seed + 1);
  cross_models(model, from, random);
  return store(model, out, max_size);
}
