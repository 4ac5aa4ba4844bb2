// Compiling models in Python. ortrain/compilation.py is the class that callers see.
#include "support.h"

namespace ortrain::python {
namespace {

using Options = Handle<OrtModelCompilationOptions>;

// A Python function that places initializers, and what it raised.
struct Locator {
  py::function function;
  std::optional<py::error_already_set> error;

  static OrtStatus* call(void* state, const char* name, const OrtValue* value,
                         const OrtExternalInitializerInfo* known, OrtExternalInitializerInfo** moved) {
    auto& self = *static_cast<Locator*>(state);
    *moved = nullptr;
    try {
      self.place(name, value, known, moved);
    } catch (py::error_already_set& raised) {
      self.error = raised;
      return api().CreateStatus(ORT_FAIL, "the function raised an exception");
    } catch (const StatusError& failed) {
      return api().CreateStatus(failed.code, failed.what());
    }
    return nullptr;
  }

  void place(const char* name, const OrtValue* value, const OrtExternalInitializerInfo* known,
             OrtExternalInitializerInfo** moved) const {
    ONNXTensorElementDataType type;
    const int64_t* dims = nullptr;
    size_t rank = 0, bytes = 0;
    check(api().GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank));
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) return;  // files have no strings
    check(api().GetTensorSizeInBytes(value, &bytes));
    // A copy, which the function may keep.
    OrtValue* copy = nullptr;
    check(api().CreateTensorAsOrtValue(allocator(), dims, rank, type, &copy));
    Value owned(copy);
    void* data = nullptr;
    check(api().GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    if (bytes > 0) std::memcpy(owned.data(), data, bytes);
    const py::object info_class =
        py::module_::import("ortrain.compilation").attr("OrtExternalInitializerInfo");
    const py::object info = known == nullptr ? py::object(py::none())
                                             : info_class(api().ExternalInitializerInfo_GetFilePath(known),
                                                          api().ExternalInitializerInfo_GetFileOffset(known),
                                                          api().ExternalInitializerInfo_GetByteSize(known));
    const py::object result = function(name, py::cast(std::move(owned)), info);
    if (result.is_none()) return;
    const py::object file = result.attr("filepath");
    c_text(file.cast<std::string>(), "filepath");
    check(api().CreateExternalInitializerInfo(Path(file.cast<std::filesystem::path>()).data(),
                                              result.attr("file_offset").cast<int64_t>(),
                                              result.attr("byte_size").cast<size_t>(), moved));
  }
};

py::object compile_model(const Handle<OrtSessionOptions>& settings, const py::object& model,
                         const std::optional<std::filesystem::path>& output,
                         const std::optional<std::filesystem::path>& weights, size_t threshold,
                         uint32_t flags, int level, const std::optional<py::function>& locate) {
  const OrtCompileApi& compiler = *api().GetCompileApi();
  OrtModelCompilationOptions* made = nullptr;
  check(compiler.CreateModelCompilationOptionsFromSessionOptions(environment(), settings.raw, &made));
  const Options options(made, compiler.ReleaseModelCompilationOptions);
  std::string bytes;
  if (py::isinstance<py::bytes>(model)) {
    bytes = model.cast<std::string>();
    check(compiler.ModelCompilationOptions_SetInputModelFromBuffer(made, bytes.data(), bytes.size()));
  } else {
    check(compiler.ModelCompilationOptions_SetInputModelPath(
        made, Path(model.cast<std::filesystem::path>()).data()));
  }
  void* buffer = nullptr;
  size_t size = 0;
  check(output ? compiler.ModelCompilationOptions_SetOutputModelPath(made, Path(output).data())
               : compiler.ModelCompilationOptions_SetOutputModelBuffer(made, allocator(), &buffer, &size));
  if (weights)
    check(compiler.ModelCompilationOptions_SetOutputModelExternalInitializersFile(made, Path(weights).data(),
                                                                                  threshold));
  check(compiler.ModelCompilationOptions_SetFlags(made, flags));
  check(compiler.ModelCompilationOptions_SetGraphOptimizationLevel(
      made, static_cast<GraphOptimizationLevel>(level)));
  Locator locator{locate.value_or(py::function()), std::nullopt};
  if (locate)
    check(compiler.ModelCompilationOptions_SetOutputModelGetInitializerLocationFunc(made, Locator::call,
                                                                                    &locator));
  OrtStatus* status = compiler.CompileModel(environment(), made);
  if (locator.error) {
    api().ReleaseStatus(status);
    throw *locator.error;
  }
  check(status);
  if (output) return py::none();
  const py::bytes out(static_cast<const char*>(buffer), size);
  allocator()->Free(allocator(), buffer);
  return out;
}

}  // namespace

void bind_compile(py::module_& module) {
  module.def("compile_model", &compile_model, py::arg("options"), py::arg("model"), py::arg("output"),
             py::arg("weights"), py::arg("threshold"), py::arg("flags"), py::arg("level"), py::arg("locate"),
             "Reads a model, a path or bytes, and writes it to a path; without one, returns it as bytes.");
}

}  // namespace ortrain::python
