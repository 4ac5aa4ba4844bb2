// Bindings of a session in Python, which keep alive the objects whose memory they use, and what else Python
// takes from the library in forms that no generated function has.
#include <map>

#include "support.h"

namespace ortrain::python {
namespace {

const Value& writable(const Value& value) {
  if (!value.is_writable())
    throw py::value_error("the OrtValue shares the memory of an array that cannot be written to");
  return value;
}

class Binding {
 public:
  explicit Binding(const py::object& session) : session_(session) {
    check(api().CreateIoBinding(session.cast<const Handle<OrtSession>&>().raw, &raw_));
  }
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;
  ~Binding() { api().ReleaseIoBinding(raw_); }

  void bind_input(const std::string& name, const py::object& value) {
    check(api().BindInput(raw_, name.c_str(), value.cast<const Value&>().raw()));
    inputs_.insert_or_assign(name, value);
  }

  // None: an output that the run allocates.
  void bind_output(const std::string& name, const py::object& value) {
    if (value.is_none())
      check(api().BindOutputToDevice(raw_, name.c_str(), cpu_memory()));
    else
      check(api().BindOutput(raw_, name.c_str(), writable(value.cast<const Value&>()).raw()));
    outputs_.insert_or_assign(name, value);
  }

  void clear_inputs() {
    api().ClearBoundInputs(raw_);
    inputs_.clear();
  }

  void clear_outputs() {
    api().ClearBoundOutputs(raw_);
    outputs_.clear();
  }

  // By name, in the order in which they were bound. A bound tensor is the object that was given.
  std::vector<std::pair<std::string, py::object>> outputs() const {
    char* text = nullptr;
    size_t* lengths = nullptr;
    size_t count = 0;
    check(api().GetBoundOutputNames(raw_, allocator(), &text, &lengths, &count));
    std::vector<std::string> names;
    for (size_t i = 0, at = 0; i < count; at += lengths[i++]) names.emplace_back(text + at, lengths[i]);
    allocator()->Free(allocator(), text);
    allocator()->Free(allocator(), lengths);
    OrtValue** values = nullptr;
    check(api().GetBoundOutputValues(raw_, allocator(), &values, &count));
    std::vector<std::pair<std::string, py::object>> out;
    for (size_t i = 0; i < count; ++i) {
      py::object made = py::cast(Value(values[i]));
      const py::object& given = outputs_.at(names[i]);
      out.emplace_back(names[i], given.is_none() ? made : given);
    }
    allocator()->Free(allocator(), values);
    return out;
  }

  void run(const Handle<OrtSession>& session, const Handle<OrtRunOptions>* options) {
    const py::gil_scoped_release released;
    check(api().RunWithBinding(session.raw, options != nullptr ? options->raw : nullptr, raw_));
  }

 private:
  py::object session_;
  OrtIoBinding* raw_ = nullptr;
  std::map<std::string, py::object> inputs_, outputs_;
};

// Calls a Python function with the place of every gradient that a run has completed.
class GradientWatch {
 public:
  GradientWatch(const py::object& options, const py::object& buffer, const py::function& function)
      : options_(options), buffer_(buffer), function_(function) {
    check(extension_api().RunOptionsSetGradientBuffer(
        raw_options(), writable(buffer.cast<const Value&>()).raw(), &GradientWatch::call, this));
  }
  GradientWatch(const GradientWatch&) = delete;
  GradientWatch& operator=(const GradientWatch&) = delete;
  ~GradientWatch() {
    extension_api().RunOptionsSetGradientBuffer(raw_options(), nullptr, &GradientWatch::call, nullptr);
  }

  // Raises the exception of the function, which could not pass through the run.
  void check_function() {
    if (!error_) return;
    const py::error_already_set error = *std::exchange(error_, std::nullopt);
    throw error;
  }

 private:
  OrtRunOptions* raw_options() const { return options_.cast<const Handle<OrtRunOptions>&>().raw; }

  static void call(void* self, size_t first, size_t count) {
    auto& watch = *static_cast<GradientWatch*>(self);
    const py::gil_scoped_acquire acquired;
    if (watch.error_) return;
    try {
      watch.function_(first, count);
    } catch (py::error_already_set& error) {
      watch.error_ = error;
    }
  }

  py::object options_, buffer_;
  py::function function_;
  std::optional<py::error_already_set> error_;
};

// Has a Python function overwrite arrays with their sums over processes during runs with these options.
class RankSum {
 public:
  RankSum(const py::object& options, const py::function& function) : options_(options), function_(function) {
    extension_api().RunOptionsSetRankSum(raw_options(), &RankSum::call, this);
  }
  RankSum(const RankSum&) = delete;
  RankSum& operator=(const RankSum&) = delete;
  ~RankSum() {
    extension_api().RunOptionsSetRankSum(raw_options(), nullptr, nullptr);
    if (terminated_) check(api().RunOptionsUnsetTerminate(raw_options()));
  }

  // Raises the exception of the function, which ended the run.
  void check_function() {
    if (!error_) return;
    const py::error_already_set error = *std::exchange(error_, std::nullopt);
    throw error;
  }

 private:
  OrtRunOptions* raw_options() const { return options_.cast<const Handle<OrtRunOptions>&>().raw; }

  static void call(void* self, void* data, size_t count, ONNXTensorElementDataType type, const char* name) {
    auto& sum = *static_cast<RankSum*>(self);
    const py::gil_scoped_acquire acquired;
    try {
      const py::dtype dtype(type == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE ? "f8" : "f4");
      const py::capsule owner(data, [](void*) {});  // the memory is that of the run
      sum.function_(py::array(dtype, {count}, {}, data, owner), py::str(name));
    } catch (py::error_already_set& error) {
      sum.error_ = error;
      sum.terminated_ = true;
      check(api().RunOptionsSetTerminate(sum.raw_options()));
    }
  }

  py::object options_;
  py::function function_;
  std::optional<py::error_already_set> error_;
  bool terminated_ = false;
};

struct MetadataHandle {
  OrtModelMetadata* raw = nullptr;
  ~MetadataHandle() { api().ReleaseModelMetadata(raw); }
};

py::dict model_metadata(const Handle<OrtSession>& session) {
  MetadataHandle handle;
  check(api().SessionGetModelMetadata(session.raw, &handle.raw));
  py::dict out;
  const auto text = [&](const char* name, auto call) {
    char* value = nullptr;
    check(call(handle.raw, allocator(), &value));
    out[name] = take_text(value);
  };
  text("producer_name", api().ModelMetadataGetProducerName);
  text("graph_name", api().ModelMetadataGetGraphName);
  text("graph_description", api().ModelMetadataGetGraphDescription);
  text("domain", api().ModelMetadataGetDomain);
  text("description", api().ModelMetadataGetDescription);
  int64_t version = 0;
  check(api().ModelMetadataGetVersion(handle.raw, &version));
  out["version"] = version;
  char** keys = nullptr;
  int64_t count = 0;
  check(api().ModelMetadataGetCustomMetadataMapKeys(handle.raw, allocator(), &keys, &count));
  py::dict custom;
  for (int64_t i = 0; i < count; ++i) {
    char* value = nullptr;
    check(api().ModelMetadataLookupCustomMetadataMap(handle.raw, allocator(), keys[i], &value));
    custom[py::str(take_text(keys[i]))] = take_text(value);
  }
  allocator()->Free(allocator(), keys);
  out["custom_metadata_map"] = custom;
  return out;
}

using NodeTexts = std::tuple<std::string, std::string, std::string>;
std::vector<std::pair<std::string, std::vector<NodeTexts>>> graph_assignment(
    const Handle<OrtSession>& session) {
  const OrtEpAssignedSubgraph* const* parts = nullptr;
  size_t count = 0;
  check(api().Session_GetEpGraphAssignmentInfo(session.raw, &parts, &count));
  std::vector<std::pair<std::string, std::vector<NodeTexts>>> out;
  for (size_t i = 0; i < count; ++i) {
    const char *provider = nullptr, *name = nullptr, *domain = nullptr, *type = nullptr;
    const OrtEpAssignedNode* const* nodes = nullptr;
    size_t node_count = 0;
    check(api().EpAssignedSubgraph_GetEpName(parts[i], &provider));
    check(api().EpAssignedSubgraph_GetNodes(parts[i], &nodes, &node_count));
    std::vector<NodeTexts>& texts = out.emplace_back(provider, std::vector<NodeTexts>()).second;
    for (size_t j = 0; j < node_count; ++j) {
      check(api().EpAssignedNode_GetName(nodes[j], &name));
      check(api().EpAssignedNode_GetDomain(nodes[j], &domain));
      check(api().EpAssignedNode_GetOperatorType(nodes[j], &type));
      texts.emplace_back(name, domain, type);
    }
  }
  return out;
}

std::vector<std::string> available_providers() {
  char** names = nullptr;
  int count = 0;
  check(api().GetAvailableProviders(&names, &count));
  const std::vector<std::string> out(names, names + count);
  check(api().ReleaseAvailableProviders(names, count));
  return out;
}

// Classes that runs use.
void bind_runs(py::module_& module) {
  py::class_<Binding>(module, "Binding", "The values that are bound to the inputs and outputs of a session.")
      .def(py::init<const py::object&>(), py::arg("session"))
      .def("bind_input", &Binding::bind_input, py::arg("name"), py::arg("value"),
           "Binds an OrtValue to an input.")
      .def("bind_output", &Binding::bind_output, py::arg("name"), py::arg("value") = py::none(),
           "Binds an OrtValue to an output; None for one that the run allocates.")
      .def("clear_inputs", &Binding::clear_inputs, "Removes all inputs.")
      .def("clear_outputs", &Binding::clear_outputs, "Removes all outputs.")
      .def("outputs", &Binding::outputs, "Names and values of the outputs, in the order of binding.")
      .def("run", &Binding::run, py::arg("session"), py::arg("run_options") = py::none(),
           "Runs the session, which must be that of the binding.");
  py::class_<GradientWatch>(
      module, "GradientWatch",
      "Makes runs with these options copy gradients to a buffer while others are computed.")
      .def(py::init<const py::object&, const py::object&, const py::function&>(), py::arg("options"),
           py::arg("buffer"), py::arg("function"))
      .def("check", &GradientWatch::check_function, "Raises what the function has raised during a run.");
  py::class_<RankSum>(
      module, "RankSum",
      "Makes runs with these options call a function with arrays to add up over processes, and their "
      "names.")
      .def(py::init<const py::object&, const py::function&>(), py::arg("options"), py::arg("function"))
      .def("check", &RankSum::check_function, "Raises what the function has raised during a run.");
}

// Information about the library and about sessions.
void bind_information(py::module_& module) {
  module.def("model_metadata", &model_metadata, py::arg("session"),
             "The metadata of a model, by the names of ModelMetadata's fields.");
  module.def("available_providers", &available_providers, "Names of the available execution providers.");
  module.def(
      "build_info", [] { return std::string(api().GetBuildInfoString()); },
      "Version, compiler and kernels of the library.");
  module.def(
      "version_string", [] { return std::string(OrtGetApiBase()->GetVersionString()); },
      "The onnxruntime version whose interface is provided, and that of the library.");
  module.def("graph_assignment", &graph_assignment, py::arg("session"),
             "The parts of the graph: the provider of each, and name, domain and operator of its nodes.");
}

void bind_options(py::module_& module) {
  module.def(
      "set_profiling",
      [](const Handle<OrtSessionOptions>& options, const std::optional<std::filesystem::path>& prefix) {
        const Path path(prefix);
        check(prefix ? api().EnableProfiling(options.raw, path.data()) : api().DisableProfiling(options.raw));
      },
      py::arg("options"), py::arg("prefix"),
      "Makes sessions record a profile into a file whose path begins with the prefix; None: record nothing.");
  module.def(
      "add_external_files",
      [](const Handle<OrtSessionOptions>& options, const std::vector<std::filesystem::path>& names,
         const std::vector<py::buffer>& contents, const std::vector<size_t>& lengths) {
        check_same_length("names", names.size(), "buffers", contents.size());
        check_same_length("names", names.size(), "lengths", lengths.size());
        std::vector<std::basic_string<ORTCHAR_T>> texts;
        std::vector<const ORTCHAR_T*> pointers;
        std::vector<char*> data;
        for (size_t i = 0; i < names.size(); ++i) {
          const py::buffer_info view = contents[i].request();
          const auto size = static_cast<size_t>(view.size * view.itemsize);
          if (lengths[i] > size)
            throw StatusError(ORT_INVALID_ARGUMENT, "lengths[" + std::to_string(i) + "] is " +
                                                        std::to_string(lengths[i]) + ", but the buffer has " +
                                                        std::to_string(size) + " bytes");
          texts.push_back(names[i].native());
          data.push_back(static_cast<char*>(view.ptr));
        }
        for (const auto& text : texts) pointers.push_back(text.c_str());
        check(api().AddExternalInitializersFromFilesInMemory(options.raw, pointers.data(), data.data(),
                                                             lengths.data(), names.size()));
      },
      py::arg("options"), py::arg("names"), py::arg("buffers"), py::arg("lengths"),
      "Makes sessions read the contents of files of initializers from memory, which must outlive their "
      "creation.");
  module.def(
      "set_load_cancellation_flag",
      [](const Handle<OrtSessionOptions>& options, bool cancel) {
        check(api().SessionOptionsSetLoadCancellationFlag(options.raw, cancel));
      },
      py::arg("options"), py::arg("cancel"), "Cancels the creation of sessions with these options.");
  module.def(
      "run_config_entry",
      [](const Handle<OrtRunOptions>& options, const std::string& key) -> std::optional<std::string> {
        const char* value = api().GetRunConfigEntry(options.raw, key.c_str());
        return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
      },
      py::arg("options"), py::arg("key"),
      "The value of an entry of the run configuration, None without one.");
  module.def(
      "create_lora_adapter",
      [](const std::filesystem::path& path) {
        OrtLoraAdapter* adapter = nullptr;
        check(api().CreateLoraAdapter(Path(path).data(), nullptr, &adapter));
        return Handle<OrtLoraAdapter>(adapter, api().ReleaseLoraAdapter);
      },
      py::arg("path"), "Reads an adapter from a file.");
  module.def(
      "run_options_add_active_lora_adapter",
      [](const Handle<OrtRunOptions>& options, const Handle<OrtLoraAdapter>& adapter) {
        check(api().RunOptionsAddActiveLoraAdapter(options.raw, adapter.raw));
      },
      py::arg("options"), py::arg("adapter"), "Makes runs take the tensors of an adapter as inputs.");
}

}  // namespace

void bind_forward(py::module_& module) {
  bind_runs(module);
  bind_information(module);
  bind_options(module);
}

}  // namespace ortrain::python
