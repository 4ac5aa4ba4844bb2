"""How C++ says what the spec describes: the classes of the wrapper headers."""

from __future__ import annotations

from collections.abc import Iterable

from codegen.languages import Base, File
from codegen.languages.c import Language as C
from codegen.spec.model import Call, Class, Method, Parameter, Spec

TABLES = {"OrtApi": "GetApi()", "OrtTrainingApi": "GetTrainingApi()", "OrtrainApi": "GetOrtrainApi()"}


class Language(Base):
    """The filters of the C++ wrapper templates."""

    key = "cpp"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.c = C(spec)

    def files(self) -> Iterable[File]:
        """Return the two headers and the page."""
        for header in ("onnxruntime_cxx_api.h", "onnxruntime_float16.h", "onnxruntime_training_cxx_api.h"):
            yield File(f"cpp/{header}.j2", f"core/include/{header}")
        yield File("cpp/reference.md.j2", "docs/reference/cpp.md")

    def call(self, call: Call) -> str:
        """Return the expression of a call's function."""
        return f"{TABLES[call.table]}.{call.name}"

    def argument_type(self, kind: str) -> str:
        """How a method takes an argument of a kind."""
        fixed = {
            "string": "const std::string&",
            "path": "const std::basic_string<ORTCHAR_T>&",
            "path?": "const OptionalPath&",
            "values": "const std::vector<Value>&",
            "strings": "const std::vector<std::string>&",
            "bytes": "const std::vector<uint8_t>&",
            "OrtValue": "const Value&",
            "property": "const Property&",
        }
        if kind in fixed:
            return fixed[kind]
        classes = {c.name: c.names["cpp"] for c in self.spec.classes_in("cpp")}
        if kind in classes:
            return f"const {classes[kind]}&"
        return str(self.spec.types[kind]["names"]["cpp"]) if kind in self.spec.types else kind

    def result_type(self, method: Method, cls: Class) -> str:
        """Return a method's type; settings return their object where there is nothing else to return."""
        if method.returns is None or method.pattern == "option":
            settings = any(m.pattern == "option" for m in cls.methods_in("cpp"))
            return f"{cls.names['cpp']}&" if settings else "void"
        kind = method.returns["type"]
        if kind == "results":
            return f"std::tuple<{', '.join(self._type_of_result(p.type) for p in method.call.results)}>"
        return self._type_of_result(kind)

    def _type_of_result(self, kind: str) -> str:
        fixed = {
            "OrtValue": "Value",
            "OrtTensorTypeAndShapeInfo": "TensorTypeAndShapeInfo",
            "OrtTypeInfo": "TypeInfo",
            "strings": "std::vector<std::string>",
            "bytes": "std::vector<uint8_t>",
            "property": "Property",
        }
        if kind in fixed:
            return fixed[kind]
        classes = {c.name: c.names["cpp"] for c in self.spec.classes_in("cpp")}
        if kind in classes:
            return classes[kind]
        return str(self.spec.types[kind]["names"]["cpp"]) if kind in self.spec.types else kind

    def signature(self, method: Method) -> str:
        """Return the parameter list of a method."""
        defaults = {"False": "false", "True": "true"}
        parts = []
        for p in method.parameters:
            default = f" = {defaults.get(p['default'], p['default'])}" if "default" in p else ""
            parts.append(f"{self.argument_type(p['type'])} {p['name']}{default}")
        return ", ".join(parts)

    def declarations(self, cls: Class, method: Method) -> list[str]:
        """Return the declarations of a method whose pattern has its own: overloads of a fixed form."""
        name = method.name_in("cpp")
        if method.pattern == "load_model":
            return [
                f"{name}(const Env& env, const ORTCHAR_T* model_path, const SessionOptions& options)",
                f"{name}(const Env& env, const void* model_data, size_t model_data_length, "
                "const SessionOptions& options)",
            ]
        if method.pattern == "allocated_name":
            return [f"AllocatedStringPtr {name}(size_t index, OrtAllocator* allocator) const"]
        if method.pattern == "run":
            into = method.value == "into"
            inputs = "const char* const* input_names, const Value* input_values, size_t input_count"
            outputs = "Value* output_values, " if into else ""
            return [
                f"{'void' if into else 'std::vector<Value>'} {name}(const RunOptions& run_options, {inputs}, "
                f"const char* const* output_names, {outputs}size_t output_count)"
            ]
        return []

    def value_of_option(self, method: Method) -> str:
        """Return the type of the value that an option takes."""
        value = method.call.arguments[1]
        return "const char*" if value.type == "string" else self.c.base(value.type)

    def is_const(self, method: Method) -> bool:
        """Whether a method leaves its object as it is."""
        return not method.call.parameters[0].mutable

    def pass_on(self, method: Method, receiver: str = "p_") -> str:
        """Return the arguments of the call: the object, the method's, and what the method does not have."""
        given = {p["name"]: p for p in method.parameters}
        order = iter(method.parameters)
        taken: dict[str, str] = {}
        out = []
        for i, p in enumerate(method.call.parameters):
            arrays = method.call.arrays.get(p.name, [])
            if i == 0 and receiver:
                out.append(receiver)
            elif p.direction == "out":
                out.append(f"&{p.name}")
            elif p.type == "OrtAllocator":
                out.append("AllocatorWithDefaultOptions()")
            elif p.type == "OrtRunOptions" and p.name not in given:
                out.append("nullptr")
            elif arrays:
                # The array that this is the length of may come before or after it.
                source = taken.get(arrays[0].name) or next(
                    q["name"] for q in method.parameters if q["type"] in ("strings", "bytes", "values")
                )
                out.append(f"{source}.size()")
            else:
                argument = next(order)
                taken[p.name] = argument["name"]
                out.append(self._passed(p, argument))
        return ", ".join(out)

    def _passed(self, p: Parameter, argument: dict[str, str]) -> str:
        name = argument["name"]
        if argument["type"] in ("string", "path"):
            return f"{name}.c_str()"
        if argument["type"] == "path?":
            return f"{name} ? {name}->c_str() : nullptr"
        if argument["type"] == "values":
            return f"detail::Handles({name})"
        if argument["type"] == "strings":
            return f"detail::Pointers({name}).data()"
        if argument["type"] == "bytes":
            return f"{name}.data()"
        if p.type in self.spec.handles:
            # The object is not changed, though the older call takes it so.
            return f"const_cast<{p.type}*>(static_cast<const {p.type}*>({name}))" if p.mutable else name
        return name

    def result(self, method: Method) -> Parameter:
        """Return the first result of a method's call."""
        return method.call.results[0]

    def returned(self, method: Method) -> str:
        """Return the expression of a method's result or results."""
        values = [self._taken(p) for p in method.call.results]
        return values[0] if len(values) == 1 else f"{{{', '.join(values)}}}"

    def _taken(self, p: Parameter) -> str:
        if p.type in ("OrtValue", "OrtTensorTypeAndShapeInfo", "OrtTypeInfo"):
            return f"{self._type_of_result(p.type)}{{{p.name}}}"
        if p.type == "string":
            return f"detail::TakeString({p.name})"
        return f"{p.name} != 0" if p.type == "flag" else p.name
