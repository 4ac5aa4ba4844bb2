"""Python: the functions of the extension, and the classes over them."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from codegen import lower
from codegen.languages import Action, Base, File
from codegen.lower import Operand, Step
from codegen.spec.model import Call, Class, Command, Given, Method, Parameter
from codegen.spec.names import pascal, snake
from codegen.spec.source import Problem, SpecError

PACKAGE = "bindings/python/ortrain"
CLASSES = f"{PACKAGE}/api/generated"
ENUMS = f"{PACKAGE}/_support/generated"
LEGACY = f"{PACKAGE}/legacy/generated"
SUPPORT = {
    "Entries": "entries",
    "ModelSignature": "signatures",
    "StepSignature": "signatures",
    "StrPath": "values",
    "as_arrays": "values",
    "check_device": "checks",
    "check_providers": "checks",
    "check_values": "checks",
    "declared": "signatures",
    "declared_tensor": "signatures",
    "describe_entry": "descriptions",
    "describe_settings": "descriptions",
    "give_back": "values",
    "read_only": "values",
    "to_value": "values",
    "to_writable": "values",
}
"""The modules of ortrain._support by the names that generated classes import from them."""

TABLES = {"general": "api()", "training": "training_api()", "extension": "extension_api()"}


@dataclass
class Argument:
    """An argument of a function of the extension: its C++ type, and its annotation and default in both languages."""

    name: str
    kind: str
    stub: str
    default: str = ""
    stub_default: str = ""

    @property
    def binding(self) -> str:
        """Its name and default for pybind11."""
        return f'py::arg("{self.name}"){" = " + self.default if self.default else ""}'

    @property
    def annotation(self) -> str:
        """Its declaration in the stubs."""
        return f"{self.name}: {self.stub}{' = ' + self.stub_default if self.stub_default else ''}"


@dataclass
class Function:
    """One function of the extension: the signature in Python, and the parts of its C++ code."""

    call: Call
    arguments: list[Argument] = field(default_factory=list)
    prelude: list[str] = field(default_factory=list)
    """Statements that convert arguments and make room for results."""
    passed: list[str] = field(default_factory=list)
    """The arguments of the C call."""
    returned: list[tuple[str, str]] = field(default_factory=list)
    """Expressions of the results, each with its annotation."""

    def take(
        self, p: Given, kind: str, stub: str, prelude: str = "", default: str = "", stub_default: str = ""
    ) -> None:
        """Add an argument, and the statement that converts it if it needs one."""
        self.arguments.append(Argument(p.name, kind, stub, default, stub_default))
        if prelude:
            self.prelude.append(prelude)

    @property
    def stub_return(self) -> str:
        """The type annotation of the result."""
        stubs = [stub for _, stub in self.returned]
        if len(stubs) > 1:
            return f"tuple[{', '.join(stubs)}]"
        return stubs[0] if stubs else "None"


def names_in(annotation: str) -> set[str]:
    """Return the names that a type of the spec mentions, which a file has to import."""
    return {node.id for node in ast.walk(ast.parse(annotation)) if isinstance(node, ast.Name)}


class Language(Base):
    """The filters of the Python templates."""

    key = "python"
    released = "automatic"
    tables = TABLES
    folders = (CLASSES, ENUMS, LEGACY, "bindings/python/src/generated", "tests/scenarios/generated/python")
    truth = {"true": "True", "false": "False", "none": "None"}  # noqa: RUF012

    def files(self) -> Iterable[File]:
        """Return the extension with its stubs, the classes, the enumerations and the keys of configurations."""
        yield File("python/module.cpp.j2", "bindings/python/src/generated/module.cpp")
        yield File("python/module.pyi.j2", f"{PACKAGE}/_ortrain.pyi")
        for folder in (CLASSES, ENUMS, LEGACY):
            yield File("python/init.py.j2", f"{folder}/__init__.py")
        yield File("python/enums.py.j2", f"{ENUMS}/enums.py")
        yield File("python/session_config.py.j2", f"{ENUMS}/session_config.py")
        yield File("python/training_parameters.py.j2", f"{LEGACY}/training_parameters.py")
        for cls in self.classes:
            if cls.has("by_hand"):
                continue
            yield File("python/class.py.j2", f"{CLASSES}/{snake(cls.own)}.py", {"cls": cls})
        yield File("python/commands.py.j2", "tests/scenarios/generated/python/commands.py")

    def session_keys(self, effect: bool) -> list[str]:
        """Return the keys of a session's configuration that have an effect or that have none; no prefixes of keys."""
        keys = {key["key"]: "effect" in key for key in self.spec.config_keys if key["of"] == "session"}
        keys |= {entry["key"]: True for entry in self.spec.session_config if entry["kind"] != "pass"}
        return sorted(key for key, honoured in keys.items() if honoured is effect)

    parameter_types = {  # noqa: RUF012
        "bool": "bool",
        "int": "int",
        "float": "float",
        "string": "str",
        "set": "set[str]",
        "list": "list[str]",
        "int_map": "dict[str, int]",
        "ints_map": "dict[str, list[int]]",
        "float_attributes": "dict[str, dict[str, float]]",
        "int_attributes": "dict[str, dict[str, int]]",
        "constants": "dict[str, list[tuple[int, float]]]",
    }
    """The annotations of the members of TrainingParameters, by the types of the spec."""

    def parameter_default(self, entry: dict[str, Any]) -> str:
        """Return the default of a member of TrainingParameters."""
        if "default" in entry:
            return f'"{entry["default"]}"' if entry["type"] == "string" else repr(entry["default"])
        return {"set": "set()", "list": "[]"}.get(entry["type"], "{}")

    def summary(self, text: str, indent: int) -> str:
        """Return a docstring that has one paragraph."""
        lines = textwrap.wrap(self.said(text), 107 - indent)
        margin = " " * indent
        end = '"""' if len(lines) == 1 else f'\n{margin}"""'
        return f'{margin}"""' + f"\n{margin}".join(lines) + end

    def method_name(self, cls: Class, m: Method) -> str:
        """Return the name of a method."""
        makes = m.pattern in ("attach", "load") or (m.pattern == "create" and m.name.startswith("create"))
        return "__init__" if makes else m.name

    def default_value_name(self, enum: str, value: str) -> str:
        """Return the name of a value, which is that of C."""
        return self.c.value_name(enum, value)

    # ---- the extension ----

    def bound_calls(self) -> list[Call]:
        """Return the calls of the extension: those of the training tables, and others that classes use.

        Calls that take a function are bound by hand.
        """
        used = {call.name for cls in self.classes for m in cls.methods for call in m.calls.values()}
        return [
            call
            for table in self.spec.tables
            for call in self.spec.calls_of(table["name"])
            if call.core != "release"
            and (call.name in used or (call.table in ("training", "extension") and call.group != "graphs"))
            and not any(p.type in self.spec.callbacks for p in call.parameters)
        ]

    def bound_handles(self) -> list[str]:
        """Return the handles in those calls that Python holds as opaque objects."""
        hidden = ("value", "env", "tensor_type_and_shape_info", "type_info")
        used = {p.type for call in self.bound_calls() for p in call.parameters}
        return [name for name in self.spec.handles if name in used and name not in hidden]

    def release_of(self, handle: str) -> str:
        """Return the C++ expression of a handle's release call."""
        return self.function_in_c(self.spec.calls[self.spec.handles[handle]["release"]])

    def function_in_c(self, call: Call) -> str:
        """Return the C++ expression of a call's function."""
        return f"{TABLES[call.table]}.{self.c.function(call)}"

    def function(self, call: Call) -> Function:
        """Return a call as a function of the extension."""
        f = Function(call)
        for step in lower.function_of(call):
            try:
                self._step(f, step)
            except KeyError as error:
                message = f"there is no way to Python: {error}"
                raise SpecError([Problem("spec", 1, f"call {call.name}", message)]) from error
        # Only arguments at the end can be left out.
        required = [i for i, argument in enumerate(f.arguments) if not argument.default]
        for argument in f.arguments[: required[-1] if required else 0]:
            argument.default = argument.stub_default = ""
        return f

    def _step(self, f: Function, step: Step) -> None:
        match step:
            case lower.Convert(p):
                if p.type != "env":
                    self._convert(f, p)
            case lower.SameLength(first, other):
                sizes = f'"{first.name}", {first.name}.size(), "{other.name}", {other.name}.size()'
                f.prelude.append(f"check_same_length({sizes});")
            case lower.Invoke():
                for stored in step.stored:
                    self._store(f, stored)
                f.passed = [self._operand(o) for o in step.operands]
            case lower.FillRoom(call, operands):
                room = next(o.parameter for o in operands if isinstance(o, lower.Room))
                asked = ", ".join(self._operand(o) for o in step.asking)
                f.prelude.append(f"size_t {room.length} = 0;")
                f.prelude.append(f"check({self.function_in_c(call)}({asked}));")
                f.prelude.append(f"std::string {room.name}({room.length}, '\\0');")
                f.passed = [self._operand(o) for o in operands]
                f.returned.append((f"std::string({room.name}.c_str())", "str"))
            case lower.Return(results):
                f.returned += [self._taken(p) for p in results]

    def _convert(self, f: Function, p: Given) -> None:
        """Add an argument, and the statement that converts it if it needs one."""
        passed = p.passed
        assert passed is not None
        handle = self.handle_name(passed.type)
        c_handle = f"Handle<{self.c.base(passed.type)}>"
        default, stub_default = ("py::none()", "None") if p.nullable else ("", "")
        optional = " | None" if p.nullable else ""
        if p.type == "bytes" and passed.typed_by:
            f.take(p, "const py::object&", "int | float | str", f"PropertyValue {p.name}_({p.name});")
        elif p.type == "bytes":
            prelude = f"const Bytes {p.name}_({p.name});"
            f.take(p, "const std::optional<py::bytes>&", f"bytes{optional}", prelude, default, stub_default)
        elif passed.length:
            element, holder, stub = {
                "string": ("std::string", "Texts", "str"),
                "value": ("const Value*", "Values", "OrtValue"),
                "bool": ("bool", "Flags", "bool"),
            }[passed.type]
            kind = f"const std::vector<{element}>&"
            f.take(p, kind, f"Sequence[{stub}]", f"const {holder} {p.name}_({p.name});")
        elif p.type == "path":
            kind = "const std::optional<std::filesystem::path>&"
            prelude = f"const Path {p.name}_({p.name});"
            f.take(p, kind, f"StrPath{optional}", prelude, default, stub_default)
        elif p.type == "value" and p.nullable:
            f.take(p, "const Value*", "OrtValue | None")
        elif p.type == "value":
            f.take(p, "const Value&", "OrtValue")
        elif p.type in self.spec.handles and p.nullable:
            f.take(p, f"const {c_handle}*", f"{handle} | None", "", "py::none()", "None")
        elif p.type in self.spec.handles:
            f.take(p, f"const {c_handle}&", handle)
        elif p.type == "string":
            f.take(p, "const std::string&", "str")
        elif p.type in self.spec.enums:
            f.take(p, "int", "int")
        else:
            f.take(p, self.c.base(p.type), self.types[p.type])

    def _store(self, f: Function, p: Parameter) -> None:
        """Add the variable that receives a result."""
        if p.direction == "inout" and p.length:
            named = next((q for q in f.call.arrays[p.length] if q.direction == "in"), None)
            if named is None:
                f.prelude.append(f"Outputs {p.name}_({p.length});")
                return
            # An input array has as many elements as there are outputs; tensors of the caller may receive them.
            given = Given(p.name, "values", p.doc)
            prelude = f"Outputs {p.name}_({named.name}.size(), {p.name});"
            f.take(given, "const py::sequence&", "Sequence[OrtValue | None]", prelude, "py::tuple()", "()")
            return
        pointer = "*" if self.c.is_pointer_type(p.type) else ""
        start = "0" if f.call.arrays.get(p.name) else "{}"
        f.prelude.append(f"{self.c.base(p.type)}{pointer} {p.name} = {start};")

    operands = {  # noqa: RUF012
        "allocator": "allocator()",
        "absent": "nullptr",
    }

    def _operand(self, o: Operand) -> str:
        match o:
            case lower.Passed(p):
                return self._passed(p)
            case lower.Length(p):
                return f"{p.name}{'_' if p.type == 'bytes' else ''}.size()"
            case lower.TypeOf(p):
                return f"{p.name}_.type()"
            case lower.Out(p) if p.direction == "inout" and p.length:
                return f"{p.name}_.raw.data()"
            case lower.Out(p) | lower.RoomSize(p):
                return f"&{p.name}"
            case lower.Room(p):
                return f"{p.name}.data()"
        return self.fixed_operand(o)

    def _passed(self, p: Given) -> str:
        passed = p.passed
        assert passed is not None
        if p.type == "env":
            return "environment()"
        if p.type in ("bytes", "path") or passed.length:
            return f"{p.name}_.data()"
        if p.type == "value":
            return f"{p.name} ? {p.name}->raw() : nullptr" if p.nullable else f"{p.name}.raw()"
        if p.type in self.spec.handles:
            return f"{p.name} ? {p.name}->raw : nullptr" if p.nullable else f"{p.name}.raw"
        if p.type == "string":
            return f'c_text({p.name}, "{p.name}")'
        return f"static_cast<{self.c.base(p.type)}>({p.name})" if p.type in self.spec.enums else p.name

    def _taken(self, p: Parameter) -> tuple[str, str]:
        """Return the expression of a result and its annotation."""
        if p.direction == "inout" and p.length:
            return f"{p.name}_.take()", "list[OrtValue]"
        if p.typed_by:
            return f"take_property({p.typed_by}, {p.name})", "int | float | str"
        known = {
            "string": (f"take_text({p.name})", "str"),
            "bytes": (f"take_bytes({p.name}, {p.length})", "bytes"),
            "flag": (f"{p.name} != 0", "bool"),
            "value": (f"Value({p.name})", "OrtValue"),
            "tensor_type_and_shape_info": (
                f"take_type_and_shape({p.name})",
                "tuple[int, list[int], list[str]]",
            ),
            "type_info": (f"take_type_info({p.name})", "tuple[list[int], int, list[int], list[str]]"),
        }
        if p.type in known:
            return known[p.type]
        if p.type in self.spec.handles:
            made = f"Handle<{self.c.base(p.type)}>({p.name}, {self.release_of(p.type)})"
            return made, self.handle_name(p.type)
        if p.type in self.spec.enums:
            return f"static_cast<int>({p.name})", "int"
        return p.name, self.types[p.type]

    def handle_name(self, handle: str) -> str:
        """Return the name of a handle's class in the extension."""
        return f"{pascal(handle, self.words)}Handle"

    # ---- commands of the scenarios ----

    token = "tokens[{i}]"
    tokens = {  # noqa: RUF012
        "state": "self.state({t})",
        "session": "self.module({t}, True)",
        "tensor": "self.tensor({t})",
        "tensors": "*self.tensors(tokens[{i}:])",
        "counted_tensors": "*self.tensors(self.counted(tokens, {i}))",
        "model": "self.model({t})",
        "counted_pairs": "self.named(self.counted(tokens, {i}, 2))",
        "rest_pairs": "self.named(self.behind(tokens, 1, 2))",
        "rest_texts": "self.behind(tokens, 1, 2)",
        "names_of_rest_pairs": "self.behind(tokens, 1, 2)[::2]",
        "names_of_rest_texts": "self.behind(tokens, 1, 2)",
        "path": "{t}",
        "path_or_none": "self.optional({t})",
        "text": "{t}",
        "texts": "list(tokens[{i}:])",
        "integer": "int({t})",
        "number": "self.number({t})",
        "content": "Path({t}).read_bytes()",
        "choice": 'self.flag({t}, "{yes}", "{no}")',
    }
    ambient = {"session_options": "{own}=ortrain.SessionOptions()"}  # noqa: RUF012

    receivers = {  # noqa: RUF012
        "module": "self.module({t}, {training})",
        "optimizer": "self.optimizer({t})",
        "linear_lr_scheduler": "self.scheduler({t})",
        "properties": "self.state({t}).properties",
    }
    """The objects to which a label leads, where the class of a method is not that of the label."""

    def action(self, command: Command) -> Action | None:
        """Return a command with its method; without a method, the command calls the function of the extension."""
        found = super().action(command)
        if found is None and command.methods:
            name, _, method = command.methods[0].partition(".")
            cls = self.spec.class_named(name)
            m = next(m for m in cls.methods if m.name == method)
            found = self._action(command, cls, self._method(cls, m, f"_ortrain.{m.call.name}"))
            found.arguments.insert(0, f"{found.receiver}._handle")
            found.receiver = ""
        return found

    def _action(self, command: Command, cls: Class, m: Method) -> Action:
        action = super()._action(command, cls, m)
        if m.pattern == "run_named":
            outputs = [f"output_values={self.read(command, 2, 'rest_pairs')}"] * (
                command.tokens[2] == "rest_pairs"
            )
            action.arguments = [action.ordered, self.read(command, 1, "counted_pairs"), *outputs]
        return action

    def receiver_of(self, command: Command, cls: Class, i: int, kind: str) -> str:
        """Return the object on which a command calls a method; a module is in the mode of the command."""
        if cls.name not in self.receivers:
            return self.read(command, i, kind)
        token, training = self.token.format(i=i), command.fixed.get("training", True)
        return self.receivers[cls.name].format(t=token, training=training)

    def read(self, command: Command, i: int, kind: str, p: Given | None = None) -> str:
        """Return the kind as which a token is read for a parameter of a method."""
        if p and p.type in self.receivers:
            return self.receivers[p.type].format(t=self.token.format(i=i), training=True)
        read = super().read(command, i, kind, p)
        return f"{read}.numpy()" if p and p.type == "array" else read

    @staticmethod
    def command_call(action: Action) -> str:
        """Return the expression of the call that a command makes."""
        own, arguments = action.m.own, ", ".join(action.arguments)
        if own == "__init__":
            return f"{action.cls.own}({arguments})"
        if own == "__call__":
            return f"{action.receiver}({arguments})"
        if own.startswith("_ortrain."):
            return f"{own}({arguments})"
        return f"{action.receiver or action.cls.own}.{own}({arguments})"

    def attached(self, action: Action) -> str:
        """Return the name of the class of an object that belongs to the result of a command; empty if there is no such object."""
        found = self.method_at(action.command.attached)
        return found[0].own if found else ""

    @staticmethod
    def log_text(command: Command) -> str:
        """Return the expression of the text that the log has in front of a result."""
        parts = (part if isinstance(part, str) else f"{{tokens[{part}]}}" for part in command.log_parts)
        return f'f"{"".join(parts)}"' if "{" in command.log else f'"{command.log}"'

    # ---- the classes ----

    def annotation(self, kind: str, nullable: bool = False) -> str:
        """Return a type of a class's method as Python writes it."""
        cls = self.class_of(kind) if kind not in self.types else None
        name = cls.own if cls else self.types.get(kind, kind)
        if kind in self.spec.enums:
            name = f"{self.enum_name(kind)} | int"
        return f"{name} | None" if nullable else name

    def literal(self, value: Any) -> str:
        """Return a default value."""
        if isinstance(value, str):
            return f'"{value}"'
        return str(value)

    def initial(self, m: Method) -> str:
        """Return the default of a setting."""
        kind = m.returns.type if m.returns else ""
        if kind in self.spec.enums:
            return str(next(v["value"] for v in self.spec.enums[kind]["values"] if v["name"] == m.initial))
        return self.literal(m.initial)

    def signature(self, method: Method, receiver: str = "self") -> str:
        """Return the parameter list of a method."""
        return ", ".join(self._signature_parts(method, receiver))

    def _signature_parts(self, method: Method, receiver: str) -> list[str]:
        parts = [receiver]
        for p in method.parameters:
            default = f" = {self.literal(p.default)}" if p.has_default else ""
            star = "*" if p.type == "values" else ""
            parts.append(f"{star}{p.own}: {self.annotation(p.type, p.nullable)}{default}")
        return parts

    def define(self, method: Method, receiver: str, returned: str) -> str:
        """Return the first line of a method, broken where it is too long."""
        name, parts = method.own, self._signature_parts(method, receiver)
        line = f"    def {name}({', '.join(parts)}) -> {returned}:"
        if len(line) <= 110:
            return line
        broken = "".join(f"        {part},\n" for part in parts)
        return f"    def {name}(\n{broken}    ) -> {returned}:"

    def called(self, call: Call, operands: list[Operand]) -> str:
        """Return the expression of a call through the extension, which needs no lengths, allocators and out parameters."""
        given = [self.given(o) for o in operands if isinstance(o, (lower.Receiver, lower.Absent))
                 or (isinstance(o, lower.Passed) and o.argument.type != "env")]  # fmt: skip
        while given and given[-1] == "None":
            given.pop()
        return f"_ortrain.{call.name}({', '.join(given)})"

    def given(self, o: Operand) -> str:
        """Return one argument of a function of the extension."""
        if isinstance(o, lower.Passed):
            return self.converted(o.argument)
        return "self._handle" if isinstance(o, lower.Receiver) else "None"

    def converted(self, p: Given) -> str:
        """Return the expression of an argument for the extension."""
        if self.class_of(p.type) and p.type not in self.types:
            return f"{p.own}._handle if {p.own} is not None else None" if p.nullable else f"{p.own}._handle"
        forms = {
            "array": "to_value({})",
            "writable_array": "to_writable({})",
            "strings": "list({})",
            "names_in_any_order": "sorted({})",
        }
        return forms.get(p.type, "{}").format(p.own)

    settings = lower.SETTINGS

    @staticmethod
    def is_computed(cls: Class, m: Method) -> bool:
        """Whether a method is a property that is read from the library each time."""
        of_entry = m.pattern in ("key", "keyed_value", "keyed_attribute", "view")
        return of_entry or (cls.keyed and m.pattern == "names")

    @staticmethod
    def is_static(m: Method) -> bool:
        """Whether a method is a class method."""
        return m.pattern == "static" or (m.pattern == "create" and m.own != "__init__")

    @staticmethod
    def has_constructor(cls: Class) -> bool:
        """Whether a class has a constructor among its methods."""
        return any(m.own == "__init__" for m in cls.methods)

    def result(self, m: Method) -> str:
        """Return the annotation of a method's result."""
        return self.annotation(m.returns.type, m.returns.nullable) if m.returns else "None"

    def as_array(self, m: Method, expression: str) -> str:
        """Return the expression of a result, as an array if the method returns one."""
        return f"{expression}.numpy()" if m.returns and m.returns.type == "array" else expression

    def docstring(self, item: Class | Method, indent: int) -> str:
        """Return a NumPy-style docstring."""
        margin = " " * indent
        width = 110 - indent
        lines = textwrap.wrap(self.said(item.summary), width - 3)
        if item.details:
            lines += ["", *textwrap.wrap(self.said(item.details), width)]
        if isinstance(item, Method):
            lines += self._sections(item, width)
        if len(lines) == 1:
            return f'{margin}"""{lines[0]}"""'
        body = "\n".join(f"{margin}{line}".rstrip() for line in lines[1:])
        return f'{margin}"""{lines[0]}\n{body}\n{margin}"""'

    def _sections(self, m: Method, width: int) -> list[str]:
        def said(text: str) -> list[str]:
            return textwrap.wrap(text, width - 4, initial_indent="    ", subsequent_indent="    ")

        lines: list[str] = []
        if m.parameters and m.pattern not in lower.SETTINGS:
            lines += ["", "Parameters", "----------"]
            for p in m.parameters:
                star = "*" if p.type == "values" else ""
                default = f", default {self.literal(p.default)}" if p.has_default else ""
                lines.append(f"{star}{p.own} : {self.annotation(p.type, p.nullable)}{default}")
                lines += said(self.said(p.doc))
        if m.returns:
            lines += [
                "",
                "Returns",
                "-------",
                self.result(m),
                *said(self.said(m.returns.doc)),
            ]
        if m.errors:
            lines += ["", "Raises", "------"]
            for error, when in self.raised(m):
                lines += [error, *said(f"When {when}.")]
        return lines

    def raised(self, m: Method) -> list[tuple[str, str]]:
        """Return the exceptions of a method, and when it raises them."""
        exceptions = {**self.own["errors"], **m.exceptions}
        return [(exceptions.get(e["code"], "OrtrainError"), self.said(e["when"])) for e in m.errors]

    def field_doc(self, method: Method) -> str:
        """Return the documentation of a field and of its value."""
        details = method.returns.doc if method.returns else ""
        return self.docstring(replace(method, details=details, returns=None), 4)

    @staticmethod
    def describes(cls: Class) -> str:
        """Return the function that describes objects of a class."""
        if cls.has("keyed_attribute"):
            return "describe_settings"
        return "describe_entry"

    def entry(self, cls: Class) -> str:
        """Return the annotation of the entries of a mapping."""
        getter = next(m for m in cls.methods if m.pattern == "map_get")
        return self.annotation(getter.returns.type) if getter.returns else "object"

    def handle_of(self, cls: Class) -> str:
        """Return the handle that a class works on, its own or its owner's."""
        return cls.handle or self.handle_of(self.class_named(cls.view_of))

    def imports(self, cls: Class) -> list[str]:
        """Return the import lines of a class's file."""
        methods = cls.methods
        patterns = {m.pattern for m in methods}
        if patterns == {"field"}:
            return ["from dataclasses import dataclass"]
        settings = [p for m in methods if m.pattern not in lower.SETTINGS for p in m.parameters]
        kinds = {p.type for p in settings} | {m.returns.type for m in methods if m.returns}
        mentioned = {name for kind in kinds for name in names_in(self.annotation(kind))}
        classes = {c.name: c.own for c in self.classes if c is not cls}
        run_time: set[str] = set()
        typing_only = {classes[cls.view_of]} if cls.view_of else set()
        makes_defaults = any(isinstance(s, lower.Default) for m in methods for s in self.lower(cls, m))
        for kind in kinds & set(classes):
            (run_time if "view" in patterns else typing_only).add(classes[kind])
        if makes_defaults:
            run_time.add("SessionOptions")
        if "node_args" in kinds:
            run_time.add("NodeArg")
        if cls.keys and cls.keys["entry"] in classes:
            run_time.add(classes[cls.keys["entry"]])
        typing_only -= run_time
        steps = {s.kind for m in methods for s in self.lower(cls, m)}
        assigned = any(isinstance(s, lower.ReadEntry) and s.set for m in methods for s in self.lower(cls, m))
        values = {
            "Entries": cls.keys is not None,
            "ModelSignature": "make_from_path_or_bytes" in steps,
            "as_arrays": "arrays" in kinds,
            "check_device": "check_device" in steps,
            "check_providers": "check_providers" in steps,
            "check_values": cls.keys is not None
            and cls.keys["entry"] == "parameter"
            and "get_entry" in steps,
            "declared": "read_infos" in steps,
            "declared_tensor": "read_infos_of_mode" in steps,
            self.describes(cls): "describe" in steps and not cls.keys,
            "give_back": "run_step" in steps,
            "StepSignature": "run_step" in steps,
            "read_only": assigned,
            "to_value": assigned or "array" in {p.type for p in settings},
            "to_writable": "writable_array" in {p.type for p in settings},
            "StrPath": "StrPath" in mentioned,
        }
        enums = sorted(self.enum_name(kind) for kind in kinds & set(self.spec.enums))
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
        for module in sorted({SUPPORT[name] for name in used}):
            names = sorted(
                (name for name in used if SUPPORT[name] == module), key=lambda n: (n[0].islower(), n)
            )
            lines.append(f"from ortrain._support.{module} import {', '.join(names)}")
        if enums:
            lines.append(f"from ortrain._support.generated.enums import {', '.join(enums)}")
        lines += [f"from ortrain.api.generated.{snake(name)} import {name}" for name in sorted(run_time)]
        if typing_only:
            lines += ["", "if TYPE_CHECKING:"]
            lines += [
                f"    from ortrain.api.generated.{snake(name)} import {name}" for name in sorted(typing_only)
            ]
        return lines
