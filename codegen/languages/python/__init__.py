"""How Python says what the spec describes: the functions of the extension, and the classes over them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from codegen.languages import Base, File
from codegen.languages.c import Language as C
from codegen.languages.c import snake
from codegen.spec.model import Call, Class, Method, Parameter, Spec
from codegen.spec.source import Problem, SpecError

CLASSES = "bindings/python/ortrain/api/generated"

TABLES = {"OrtApi": "api()", "OrtTrainingApi": "training_api()", "OrtrainApi": "extension_api()"}


@dataclass
class Function:
    """One function of the extension: a call as Python sees it, in the pieces that its C++ text is made of."""

    call: Call
    name: str
    arguments: list[str] = field(default_factory=list)
    """Parameters of the C++ function."""
    bindings: list[str] = field(default_factory=list)
    """Their names and defaults for pybind11."""
    prelude: list[str] = field(default_factory=list)
    """Statements that convert them and make room for results."""
    passed: list[str] = field(default_factory=list)
    """What is passed to the C call."""
    returned: list[str] = field(default_factory=list)
    """Expressions of the results."""
    stub_arguments: list[str] = field(default_factory=list)
    stub_returned: list[str] = field(default_factory=list)

    @property
    def stub_return(self) -> str:
        """The type annotation of what it returns."""
        if not self.stub_returned:
            return "None"
        return (
            self.stub_returned[0]
            if len(self.stub_returned) == 1
            else f"tuple[{', '.join(self.stub_returned)}]"
        )


class Language(Base):
    """The filters of the Python templates."""

    key = "python"
    tables = TABLES
    folders = (CLASSES, "bindings/python/src/generated")

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.c = C(spec)

    def files(self) -> Iterable[File]:
        """Return the extension with its stubs, the classes, the enumerations and the page."""
        yield File("python/module.cpp.j2", "bindings/python/src/generated/module.cpp")
        yield File("python/module.pyi.j2", "bindings/python/ortrain/_ortrain.pyi")
        yield File("python/init.py.j2", f"{CLASSES}/__init__.py")
        yield File("python/enums.py.j2", f"{CLASSES}/enums.py")
        for cls in self.spec.classes_in("python"):
            yield File("python/class.py.j2", f"{CLASSES}/{snake(cls.names['python'])}.py", {"cls": cls})
        yield File("python/reference.md.j2", "docs/reference/python.md")

    # ---- the extension ----

    def bound_calls(self) -> list[Call]:
        """Return the calls of the extension: both training tables, and what classes name of the other."""
        used = {
            call.name
            for cls in self.spec.classes_in("python")
            for m in cls.methods_in("python")
            for call in m.calls
        }
        return [
            call
            for table in self.spec.tables
            for call in self.spec.calls_of(table["name"])
            if call.core != "release" and (call.table != "OrtApi" or call.name in used)
        ]

    def bound_handles(self) -> list[str]:
        """Return the handles that those calls speak of and that Python holds as opaque objects."""
        hidden = ("OrtValue", "OrtEnv", "OrtTensorTypeAndShapeInfo", "OrtTypeInfo")
        used = {p.type for call in self.bound_calls() for p in call.parameters}
        return [name for name in self.spec.handles if name in used and name not in hidden]

    def release_of(self, handle: str) -> str:
        """Return the C++ expression of a handle's release call."""
        call = self.spec.calls[self.spec.handles[handle]["release"]]
        return f"{TABLES[call.table]}.{call.name}"

    def function(self, call: Call, snake: str) -> Function:
        """Return a call as a function of the extension."""
        f = Function(call, snake)
        for p in call.parameters:
            try:
                self._parameter(f, p)
            except KeyError as error:
                message = f"parameter {p.name} of type {p.type} has no way to Python: {error}"
                raise SpecError([Problem("spec", 1, f"call {call.name}", message)]) from error
        # Only arguments at the end can be left out.
        required = [i for i, argument in enumerate(f.stub_arguments) if " = " not in argument]
        for i in range(required[-1] if required else 0):
            f.bindings[i] = f.bindings[i].partition(" = ")[0]
            f.stub_arguments[i] = f.stub_arguments[i].partition(" = ")[0]
        return f

    def _take(
        self, f: Function, p: Parameter, cpp: str, stub: str, default: str = "", stub_default: str = ""
    ) -> None:
        f.arguments.append(f"{cpp} {p.name}")
        f.bindings.append(f'py::arg("{p.name}"){" = " + default if default else ""}')
        f.stub_arguments.append(f"{p.name}: {stub}{' = ' + stub_default if stub_default else ''}")

    def _parameter(self, f: Function, p: Parameter) -> None:
        call = f.call
        arrays = call.arrays.get(p.name, [])
        if arrays and p.type in ("size", "int"):
            self._length(f, p, arrays)
        elif p.type == "OrtAllocator":
            f.passed.append("allocator()")
        elif p.type == "OrtEnv":
            f.passed.append("environment()")
        elif p.direction == "out":
            self._result(f, p)
        elif p.direction == "inout":
            named = next((q for q in call.arrays[p.length] if q.direction == "in"), None)
            if named is None:
                f.prelude.append(f"Outputs {p.name}_({p.length});")
            else:
                # An array that comes in says how many are wanted; tensors of the caller may receive them.
                self._take(f, p, "const py::sequence&", "Sequence[OrtValue | None]", "py::tuple()", "()")
                f.prelude.append(f"Outputs {p.name}_({named.name}.size(), {p.name});")
            f.passed.append(f"{p.name}_.raw.data()")
            f.returned.append(f"{p.name}_.take()")
            f.stub_returned.append("list[OrtValue]")
        elif p.length:
            self._array(f, p)
        else:
            self._single(f, p)

    def _length(self, f: Function, p: Parameter, arrays: list[Parameter]) -> None:
        if p.direction == "out":
            f.prelude.append(f"size_t {p.name} = 0;")
            f.passed.append(f"&{p.name}")
        elif p.direction == "inout":
            f.passed.append(f"&{p.name}")
        elif arrays[0].direction == "inout":
            self._take(f, p, "size_t", "int")
            f.passed.append(p.name)
        else:
            converted = arrays[0].type == "bytes"
            for other in (a for a in arrays[1:] if a.direction == "in"):
                first = arrays[0].name
                sizes = f'"{first}", {first}.size(), "{other.name}", {other.name}.size()'
                f.prelude.append(f"check_same_length({sizes});")
            f.passed.append(f"{arrays[0].name}{'_' if converted else ''}.size()")

    def _result(self, f: Function, p: Parameter) -> None:
        c_type = self.c.base(p.type)
        if p.type == "string" and p.length and f.call.parameter(p.length).direction == "inout":
            # The caller gives the room: one call asks how much, the next fills it.
            asked = ", ".join([*f.passed, "nullptr", f"&{p.length}"])
            f.prelude.append(f"size_t {p.length} = 0;")
            f.prelude.append(f"check({TABLES[f.call.table]}.{f.call.name}({asked}));")
            f.prelude.append(f"std::string {p.name}({p.length}, '\\0');")
            f.passed.append(f"{p.name}.data()")
            f.returned.append(f"std::string({p.name}.c_str())")
            f.stub_returned.append("str")
            return
        if any(q.typed_by == p.name for q in f.call.parameters):
            f.prelude.append(f"{c_type} {p.name} = {{}};")
            f.passed.append(f"&{p.name}")
            return
        value, stub = {
            "string": (f"take_text({p.name})", "str"),
            "bytes": (f"take_bytes({p.name}, {p.length})", "bytes"),
            "flag": (f"{p.name} != 0", "bool"),
            "OrtValue": (f"Value({p.name})", "OrtValue"),
            "OrtTensorTypeAndShapeInfo": (
                f"take_type_and_shape({p.name})",
                "tuple[int, list[int], list[str]]",
            ),
            "OrtTypeInfo": (f"take_type_info({p.name})", "tuple[list[int], int, list[int], list[str]]"),
        }.get(p.type, ("", ""))
        if p.typed_by:
            value, stub = f"take_property({p.typed_by}, {p.name})", "int | float | str"
        elif not value and p.type in self.spec.handles:
            value, stub = f"Handle<{p.type}>({p.name}, {self.release_of(p.type)})", self.handle_name(p.type)
        elif not value and p.type in self.spec.enums:
            value, stub = f"static_cast<int>({p.name})", "int"
        elif not value:
            value, stub = p.name, str(self.spec.types[p.type]["names"]["python"])
        pointer = "*" if self.c.is_pointer_type(p.type) else ""
        f.prelude.append(f"{c_type}{pointer} {p.name} = {{}};")
        f.passed.append(f"&{p.name}")
        f.returned.append(value)
        f.stub_returned.append(stub)

    def _array(self, f: Function, p: Parameter) -> None:
        if p.type == "bytes":
            optional = p.nullable
            default, stub = ("py::none()", "bytes | None") if optional else ("", "bytes")
            self._take(f, p, "const std::optional<py::bytes>&", stub, default, "None" if optional else "")
            f.prelude.append(f"const Bytes {p.name}_({p.name});")
        else:
            element, holder, stub = {
                "string": ("std::string", "Texts", "str"),
                "OrtValue": ("const Value*", "Values", "OrtValue"),
                "bool": ("bool", "Flags", "bool"),
            }[p.type]
            self._take(f, p, f"const std::vector<{element}>&", f"Sequence[{stub}]")
            f.prelude.append(f"const {holder} {p.name}_({p.name});")
        f.passed.append(f"{p.name}_.data()")

    def _single(self, f: Function, p: Parameter) -> None:
        if any(q.typed_by == p.name for q in f.call.parameters):
            f.passed.append(f"{next(q.name for q in f.call.parameters if q.typed_by == p.name)}_.type()")
        elif p.typed_by:
            self._take(f, p, "const py::object&", "int | float | str")
            f.prelude.append(f"PropertyValue {p.name}_({p.name});")
            f.passed.append(f"{p.name}_.data()")
        elif p.type == "OrtValue":
            self._take(f, p, "const Value&", "OrtValue")
            f.passed.append(f"{p.name}.raw()")
        elif p.type in self.spec.handles and p.nullable:
            self._take(
                f, p, f"const Handle<{p.type}>*", f"{self.handle_name(p.type)} | None", "py::none()", "None"
            )
            f.passed.append(f"{p.name} ? {p.name}->raw : nullptr")
        elif p.type in self.spec.handles:
            self._take(f, p, f"const Handle<{p.type}>&", self.handle_name(p.type))
            f.passed.append(f"{p.name}.raw")
        elif p.type == "path":
            default, stub_default = ("py::none()", "None") if p.nullable else ("", "")
            stub = "StrPath | None" if p.nullable else "StrPath"
            self._take(f, p, "const std::optional<std::filesystem::path>&", stub, default, stub_default)
            f.prelude.append(f"const Path {p.name}_({p.name});")
            f.passed.append(f"{p.name}_.data()")
        elif p.type == "string":
            self._take(f, p, "const std::string&", "str")
            f.passed.append(f"{p.name}.c_str()")
        elif p.type in self.spec.enums:
            self._take(f, p, "int", "int")
            f.passed.append(f"static_cast<{p.type}>({p.name})")
        else:
            self._take(f, p, self.c.base(p.type), str(self.spec.types[p.type]["names"]["python"]))
            f.passed.append(p.name)

    @staticmethod
    def handle_name(handle: str) -> str:
        """Return the name of a handle's class in the extension."""
        return handle.removeprefix("Ort") + "Handle"

    # ---- the classes ----

    def annotation(self, kind: str) -> str:
        """Return a type of a class's method as Python writes it."""
        known = {
            "array": "npt.NDArray[Any]",
            "property": "int | float | str",
            "path": "StrPath",
            "strings": "list[str]",
            "values": "Any",
            "none": "None",
            "pairs_of_parameters": "Iterator[tuple[str, Parameter]]",
            "pairs_of_properties": "Iterator[tuple[str, int | float | str]]",
            "model": "StrPath | bytes",
            "extents": "list[int | str | None]",
            "node_args": "list[NodeArg]",
            "names": "Sequence[str]",
            "names_in_any_order": "Collection[str]",
            "feed": "Mapping[str, Any]",
            "arrays": "list[Any]",
            "ort_values": "Mapping[str, OrtValue]",
            "list_of_values": "list[OrtValue]",
            "providers": "Sequence[str | tuple[str, Mapping[str, Any]]]",
            "provider_options": "Sequence[Mapping[str, Any]]",
        }
        optional = kind.endswith("?")
        kind = kind.removesuffix("?")
        name = known.get(kind)
        if name is None and kind in self.spec.types:
            name = str(self.spec.types[kind]["names"]["python"])
        if name is None and kind in self.spec.enums:
            name = f"{kind} | int"
        name = name or kind
        return f"{name} | None" if optional else name

    def signature(self, method: Method, receiver: str = "self") -> str:
        """Return the parameter list of a method."""
        return ", ".join(self._signature_parts(method, receiver))

    def _signature_parts(self, method: Method, receiver: str) -> list[str]:
        parts = [receiver]
        for p in method.parameters:
            default = f" = {p['default']}" if "default" in p else ""
            star = "*" if p["type"] == "values" else ""
            parts.append(f"{star}{p['name']}: {self.annotation(p['type'])}{default}")
        return parts

    def define(self, method: Method, receiver: str, returned: str) -> str:
        """Return the first line of a method, broken where it is too long."""
        name, parts = method.name_in("python"), self._signature_parts(method, receiver)
        line = f"    def {name}({', '.join(parts)}) -> {returned}:"
        if len(line) <= 110:
            return line
        broken = "".join(f"        {part},\n" for part in parts)
        return f"    def {name}(\n{broken}    ) -> {returned}:"

    def pass_on(self, method: Method, skip: str = "") -> str:
        """Return the arguments of a method as the extension takes them, each after a comma."""
        out = ""
        for p in method.parameters:
            if p["name"] == skip:
                continue
            kind = p["type"]
            if kind in {c.names.get("python") for c in self.spec.classes_in("python")}:
                out += f", {p['name']}._handle"
            elif kind == "array":
                out += f", to_value({p['name']})"
            elif kind == "strings":
                out += f", list({p['name']})"
            elif kind == "names_in_any_order":
                out += f", sorted({p['name']})"
            else:
                out += f", {p['name']}"
        return out

    def docstring(self, item: Class | Method, indent: int) -> str:
        """Return a NumPy-style docstring."""
        margin = " " * indent
        width = 110 - indent
        lines = textwrap.wrap(item.summary, width - 3)
        if item.details:
            lines += ["", *textwrap.wrap(item.details, width)]
        if isinstance(item, Method):
            if item.parameters:
                lines += ["", "Parameters", "----------"]
                for p in item.parameters:
                    star = "*" if p["type"] == "values" else ""
                    default = f", default {p['default']}" if "default" in p else ""
                    annotation = self.annotation(p["type"])
                    lines.append(f"{star}{p['name']} : {annotation}{default}")
                    lines += textwrap.wrap(
                        p["doc"], width - 4, initial_indent="    ", subsequent_indent="    "
                    )
            if item.returns:
                lines += ["", "Returns", "-------", self.annotation(item.returns["type"])]
                lines += textwrap.wrap(
                    item.returns["doc"], width - 4, initial_indent="    ", subsequent_indent="    "
                )
            if item.raises:
                lines += ["", "Raises", "------"]
                for raised in item.raises:
                    lines.append(raised["error"])
                    when = f"When {raised['when']}."
                    lines += textwrap.wrap(when, width - 4, initial_indent="    ", subsequent_indent="    ")
        if len(lines) == 1:
            return f'{margin}"""{lines[0]}"""'
        body = "\n".join(f"{margin}{line}".rstrip() for line in lines[1:])
        return f'{margin}"""{lines[0]}\n{body}\n{margin}"""'

    def field_doc(self, method: Method) -> str:
        """Return the documentation of a field: what it is, and what its value says."""
        details = method.returns["doc"] if method.returns else ""
        return self.docstring(replace(method, details=details, returns=None), 4)

    def handle_of(self, cls: Class) -> str:
        """Return the handle that a class works on, its own or its owner's."""
        return cls.handle or self.handle_of(self.spec.class_named(cls.view_of))

    def imports(self, cls: Class) -> list[str]:
        """Return the import lines of a class's file."""
        methods = cls.methods_in("python")
        patterns = {m.pattern for m in methods}
        if patterns == {"field"}:
            return ["from dataclasses import dataclass"]
        kinds = {p["type"].removesuffix("?") for m in methods for p in m.parameters}
        kinds |= {m.returns["type"] for m in methods if m.returns}
        mentioned = set(re.findall(r"\w+", " ".join(self.annotation(kind) for kind in kinds)))
        classes = {c.names["python"] for c in self.spec.classes_in("python")} - {cls.names["python"]}
        run_time: set[str] = set()
        typing_only = {cls.view_of} if cls.view_of else set()
        for kind in kinds & classes:
            (run_time if patterns & {"view", "create_session"} else typing_only).add(kind)
        if "load_model" in patterns:
            run_time.add("SessionOptions")
        if "node_args" in kinds:
            run_time.add("NodeArg")
        if cls.keys and cls.keys["entry"] in classes:
            run_time.add(cls.keys["entry"])
        typing_only -= run_time
        values = {
            "ModelSignature": "load_model" in patterns,
            "as_arrays": "arrays" in kinds,
            "check_device": "create_session" in patterns,
            "check_key": "map_get" in patterns,
            "check_providers": "load_model" in patterns,
            "declared": "value_infos" in patterns,
            "declared_tensor": "value_infos_by_mode" in patterns,
            "describe_entry": "describe" in patterns and cls.keyed,
            "describe_mapping": "describe" in patterns and not cls.keyed,
            "give_back": "step_by_mode" in patterns,
            "StepSignature": "step_by_mode" in patterns,
            "to_value": "array" in {p["type"] for m in methods for p in m.parameters},
            "StrPath": "StrPath" in mentioned,
        }
        enums = sorted(kinds & set(self.spec.enums))
        standard = []
        abstract = sorted(mentioned & {"Collection", "Iterator", "Mapping", "Sequence"})
        if abstract:
            standard.append(f"from collections.abc import {', '.join(abstract)}")
        names = ["TYPE_CHECKING"] if typing_only else []
        names += ["Any"] if "Any" in mentioned else []
        if names:
            standard.append(f"from typing import {', '.join(names)}")
        if "npt" in mentioned:
            standard += ["", "import numpy.typing as npt"]
        lines = [*standard, ""] if standard else []
        lines.append("from ortrain import _ortrain")
        if "OrtValue" in mentioned:
            lines.append("from ortrain._ortrain import OrtValue")
        used = [name for name, wanted in values.items() if wanted]
        if used:
            lines.append(
                f"from ortrain._support import {', '.join(sorted(used, key=lambda n: (n[0].islower(), n)))}"
            )
        if enums:
            lines.append(f"from ortrain.api.generated.enums import {', '.join(enums)}")
        lines += [f"from ortrain.api.generated.{snake(name)} import {name}" for name in sorted(run_time)]
        if typing_only:
            lines += ["", "if TYPE_CHECKING:"]
            lines += [
                f"    from ortrain.api.generated.{snake(name)} import {name}" for name in sorted(typing_only)
            ]
        return lines

    def python_enums(self) -> list[dict[str, object]]:
        """Return the enums that Python has as classes."""
        return [e for e in self.spec.enums.values() if "python" in e.get("names", {})]
