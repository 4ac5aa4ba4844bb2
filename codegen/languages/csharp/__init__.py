"""C#: delegates of the tables, enumerations, and the public classes.

Tensors, values over the caller's memory, the process-wide environment and exceptions are written by hand, some as partial
classes. Steps and runs have many overloads, because users of onnxruntime know these signatures.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from xml.sax.saxutils import escape

from codegen import lower
from codegen.languages import Action, Base, File
from codegen.lower import Operand, Step
from codegen.spec.model import Call, Class, Command, Given, Method, Parameter, argument_kind
from codegen.spec.names import Words, camel, pascal

SOURCES = "bindings/csharp/src/generated"

NAMESPACE = "Microsoft.ML.OnnxRuntime"

NAMESPACES = {"tensor_element_type": f"{NAMESPACE}.Tensors"}
"""The enumerations outside the main namespace."""

OWN_HANDLES = {"value": "OrtValueHandle"}
"""Safe handles that are written by hand, because they own more than the handle. The code that releases objects of their classes
is written by hand, too."""

HOLDERS = {"strings": "NativeTexts", "values": "NativeValues"}
"""The class that owns the memory of an argument during a call."""

KEYWORDS = frozenset([
    "abstract", "as", "base", "bool", "break", "byte", "case", "catch", "char", "checked", "class",
    "const", "continue", "decimal", "default", "delegate", "do", "double", "else", "enum", "event",
    "explicit", "extern", "false", "finally", "fixed", "float", "for", "foreach", "goto", "if",
    "implicit", "in", "int", "interface", "internal", "is", "lock", "long", "namespace", "new", "null",
    "object", "operator", "out", "override", "params", "private", "protected", "public", "readonly",
    "ref", "return", "sbyte", "sealed", "short", "sizeof", "stackalloc", "static", "string", "struct",
    "switch", "this", "throw", "true", "try", "typeof", "uint", "ulong", "unchecked", "unsafe",
    "ushort", "using", "virtual", "void", "volatile", "while"
])  # fmt: skip


PLAIN: Words = {}
"""Words without special casing, for parameters and fields of tuples: ``initialLr``."""


def escaped(name: str) -> str:
    """Return a name, escaped if it is a keyword of C#."""
    return f"@{name}" if name in KEYWORDS else name


@dataclass
class Form:
    """One declaration of a run: its parameters, its result, and the method of ``ForwardRun`` that it calls."""

    returned: str
    work: str
    parameters: list[tuple[str, str, str]]
    """Name, type and documentation of each."""


class Language(Base):
    """The filters of the C# templates."""

    key = "csharp"
    released = "`Dispose`"
    folders = (SOURCES, "tests/scenarios/generated/csharp")
    constructors = True
    overloads = True

    def files(self) -> Iterable[File]:
        """Return the tables, the enumerations, the classes and the versions."""
        used = {call.table for cls in self.classes for m in cls.methods for call in m.calls.values()}
        for table in filter(lambda table: table["name"] in used, self.spec.tables):
            yield File("csharp/table.cs.j2", f"{SOURCES}/{self.c.table(table['name'])}.cs", {"table": table})
        yield File("csharp/version.cs.j2", f"{SOURCES}/ApiVersion.cs")
        yield File("csharp/version.props.j2", f"{SOURCES}/Version.props")
        for enum in self.enums:
            yield File("csharp/enum.cs.j2", f"{SOURCES}/{self.enum_name(enum['name'])}.cs", {"enum": enum})
        for cls in self.classes:
            yield File("csharp/class.cs.j2", f"{SOURCES}/{cls.own}.cs", {"cls": cls})
        yield File("csharp/commands.cs.j2", "tests/scenarios/generated/csharp/Commands.cs")

    # ---- names ----

    def parameter_name(self, name: str) -> str:
        """Return the name of a parameter."""
        return escaped(camel(name, PLAIN))

    def enum_type(self, name: str) -> str:
        """Return an enumeration's name; enumerations that C# does not have are plain integers."""
        return self.enum_name(name) or "int"

    @staticmethod
    def namespace(enum: dict[str, Any]) -> str:
        """Return the namespace of an enumeration."""
        return NAMESPACES.get(enum["name"], NAMESPACE)

    @staticmethod
    def holds_handle(cls: Class) -> bool:
        """Whether a class has its safe handle in a field, instead of being one.

        A session is a plain object with a virtual ``Dispose(bool)`` and a finalizer, as in onnxruntime.
        """
        return cls.handle in ("training_session", "session")

    def handle_class(self, handle: str) -> str:
        """Return the type of a handle in a delegate; a bare pointer if C# has no class for it."""
        cls = self.class_of(handle)
        if handle in OWN_HANDLES or cls is None:
            return OWN_HANDLES.get(handle, "IntPtr")
        return f"{self.c.base(handle)}Handle" if self.holds_handle(cls) else cls.own

    @staticmethod
    def has_lifetime(cls: Class) -> bool:
        """Whether the code that releases the object is generated instead of written by hand."""
        return cls.handle not in OWN_HANDLES

    def function(self, call: Call) -> str:
        """Return the expression of a call's function."""
        return f"{self.c.table(call.table)}.{self.c.function(call)}"

    # ---- the tables ----

    def native_type(self, call: Call, p: Parameter) -> str:
        """Return the type of a parameter in the delegate of its call."""
        if p.room:
            return "byte*"
        if p.is_result:
            if p.length and p.type == "string" and p.owner == "caller":
                return "out IntPtr"
            if p.length and p.type != "bytes":
                return "IntPtr*" if self._is_pointer(p.type) else f"{self._scalar(p.type)}*"
            by = "ref" if p.direction == "inout" else "out"
            return f"{by} {'IntPtr' if self._is_pointer(p.type) else self._scalar(p.type)}"
        if p.type == "bytes":
            return "byte[]" if p.length and not p.mutable else "IntPtr"
        if p.type in ("string", "path"):
            return "IntPtr*" if p.length else "byte[]"
        if p.type in self.spec.handles:
            if p.length:
                return "IntPtr*"
            # A handle that is being released is already closed, so a delegate cannot take it as an object.
            return "IntPtr" if call.core == "release" else self.handle_class(p.type)
        if p.type in (*self.spec.structs, *self.spec.callbacks, *self.spec.opaque):
            return "IntPtr"
        return f"{self._scalar(p.type)}[]" if p.length else self._scalar(p.type)

    def _is_pointer(self, kind: str) -> bool:
        return self.c.is_pointer_type(kind)

    def _scalar(self, kind: str) -> str:
        return self.enum_type(kind) if kind in self.spec.enums else self.types[kind]

    def native_parameters(self, call: Call) -> str:
        """Return the parameter list of a call's delegate."""
        return ", ".join(
            f"{self.native_type(call, p)} {self.parameter_name(p.name)}" for p in call.parameters
        )

    def native_result(self, call: Call) -> str:
        """Return the type that a call's delegate returns."""
        kind = call.returns["type"] if call.returns else "status"
        if kind == "void":
            return "void"
        if kind in self.spec.enums or (kind in self.spec.types and not self._is_pointer(kind)):
            return self._scalar(kind)
        return "IntPtr"

    # ---- documentation ----

    def doc(self, cls: Class, m: Method, parameters: Sequence[Given] | None = None) -> str:
        """Return the documentation comment of a method, or of one of its declarations, whose parameters are given."""
        given = [p for p in (m.parameters if parameters is None else parameters) if p.type != "env"]
        parts = self._opening(m)
        if m.pattern in lower.SETTINGS or m.is_property:
            parts += self._element("value", m.returns.doc if m.returns else m.summary)
            given = []
        for p in given:
            parts += self._element("param", p.doc, f' name="{p.own.lstrip("@")}"')
        if m.returns and not (m.pattern in lower.SETTINGS or m.is_property or self.is_constructor(cls, m)):
            parts += self._element("returns", self.returned_doc(m))
        return self._comment([*parts, *self.exceptions(m, given)], 8)

    def _opening(self, m: Method) -> list[str]:
        parts = self._element("summary", m.summary)
        return parts + self._element("remarks", m.details) if m.details else parts

    def returned_doc(self, m: Method) -> str:
        """Return the description of a method's result."""
        if m.returns and m.returns.type == "results":
            return " ".join(f"{pascal(p.name, PLAIN)}: {self.said(p.doc)}" for p in m.call.results)
        doc = self.said(m.returns.doc) if m.returns else ""
        gives = m.pattern == "step"
        return doc + (" The caller disposes of them." if gives else "")

    @staticmethod
    def _comment(lines: list[str], indent: int) -> str:
        return "\n".join(f"{' ' * indent}/// {line}" for line in lines)

    def exceptions(self, m: Method, parameters: Sequence[Given]) -> list[str]:
        """Return the ``<exception>`` elements of a method."""
        required = [p.own for p in parameters if self._is_required(p)]
        return self._exceptions(m, required, [p.own for p in parameters if p.type == "size"])

    def _exceptions(self, m: Method, required: list[str], sizes: list[str]) -> list[str]:
        out = []
        if required:
            names = _listed([f'<paramref name="{name.lstrip("@")}"/>' for name in required])
            out += self._element(
                "exception", f"When {names} is null.", ' cref="System.ArgumentNullException"', is_xml=True
            )
        if sizes:
            names = _listed([f'<paramref name="{name}"/>' for name in sizes])
            when = f"When {names} is negative."
            out += self._element("exception", when, ' cref="System.ArgumentOutOfRangeException"', is_xml=True)
        errors = lower.errors(m)
        if errors:
            reasons = "; ".join(
                f"{self.value_name('error_code', e['code'])} when {escape(self.said(e['when']))}"
                for e in errors
            )
            out += self._element("exception", reasons + ".", ' cref="OnnxRuntimeException"', is_xml=True)
        if m.pattern not in ("create", "static"):
            out += self._element(
                "exception", "When the object was disposed of.", ' cref="System.ObjectDisposedException"'
            )
        return out

    def errors(self, m: Method) -> list[str]:
        """Return the errors of a method, for the reference page."""
        found = lower.errors(m)
        return [f"`{self.value_name('error_code', e['code'])}` when {self.said(e['when'])}" for e in found]

    def _is_required(self, p: Given) -> bool:
        is_value = p.type in self.spec.enums or (p.type in self.spec.types and not self._is_pointer(p.type))
        return not (is_value or p.nullable)

    def _element(self, tag: str, text: str, attributes: str = "", is_xml: bool = False) -> list[str]:
        content = text if is_xml else escape(self.said(text))
        line = f"<{tag}{attributes}>{content}</{tag}>"
        return textwrap.wrap(line, 102, break_long_words=False, break_on_hyphens=False)

    def comment(self, text: str, indent: int = 0) -> str:
        """Return a text as a summary."""
        return self._comment(self._element("summary", text), indent)

    def class_comment(self, cls: Class) -> str:
        """Return the documentation comment of a class."""
        lines = self._element("summary", cls.summary)
        if cls.details:
            lines += self._element("remarks", cls.details)
        return self._comment(lines, 4)

    # ---- methods ----

    def public_type(self, kind: str, result: bool = False) -> str:
        """Return the type of an argument or a result of a method."""
        values = "OrtValue>"
        fixed = {
            "bool": "bool",
            "flag": "bool",
            "size": "long",
            "strings": "List<string>" if result else "IReadOnlyCollection<string>",
            "node_args": "IReadOnlyDictionary<string, NodeMetadata>",
            "values": f"IDisposableReadOnlyCollection<{values}"
            if result
            else f"IReadOnlyCollection<{values}",
        }
        if kind in fixed:
            return fixed[kind]
        if kind.endswith("[]"):
            return f"{self.public_type(kind[:-2])}[]"
        if kind in self.spec.enums:
            return self.enum_type(kind)
        cls = self.class_of(kind)
        return cls.own if cls else self.types.get(kind, kind)

    def result_type(self, m: Method) -> str:
        """Return a method's type; several results are a tuple."""
        if m.returns is None:
            return "void"
        if m.returns.type == "results":
            fields = (
                f"{self.public_type(argument_kind(p), result=True)} {pascal(p.name, PLAIN)}"
                for p in m.call.results
            )
            return f"({', '.join(fields)})"
        return self.public_type(m.returns.type, result=True)

    def signature(self, parameters: Iterable[Given]) -> str:
        """Return a parameter list. The environment is never a parameter, because the process has only one."""
        parts = []
        for p in parameters:
            if p.type == "env":
                continue
            default = f" = {self.literal(p.default)}" if p.has_default else ""
            parts.append(f"{self.public_type(p.type)} {p.own}{default}")
        return ", ".join(parts)

    @staticmethod
    def literal(value: Any) -> str:
        """Return a default."""
        if value is None:
            return "null"
        if isinstance(value, str):
            return f'"{value}"'
        return str(value).lower() if isinstance(value, bool) else str(value)

    def overloads_of(self, m: Method) -> list[Method]:
        """Return the overloads of a method: those listed in the language's file, or one more with run options."""
        if m.overloads:
            every = {p.name: p for p in m.parameters}
            return [replace(m, parameters=[every[name] for name in names]) for names in m.overloads]
        form = lower.with_run_options(m) if m.pattern in ("direct", "static", "step", "step_into") else None
        if form is None:
            return [m]
        options = replace(form.parameters[-1], own="options")
        forms = [m, replace(form, parameters=[options, *m.parameters])]
        return forms[::-1] if m.pattern.startswith("step") else forms

    # ---- steps ----

    def lowered(self, cls: Class, m: Method, form: Method) -> list[Step]:
        """Return the steps of one overload. Parameters that the overload lacks are not converted."""
        known = {p.name for p in form.parameters}
        every = replace(m, parameters=[*m.parameters, *(p for p in form.parameters if not m.has(p.role))])
        return [
            s for s in self.lower(cls, every) if not isinstance(s, lower.Convert) or s.argument.name in known
        ]

    def holders(self, steps: list[Step]) -> list[str]:
        """Return the variables that own the memory of arguments during a call."""
        return [
            f"var {self._holder(s.argument)} = new {HOLDERS[s.argument.type]}"
            f"({s.argument.own}, nameof({s.argument.own}))"
            for s in steps
            if isinstance(s, lower.Convert) and s.argument.type in HOLDERS
        ]

    @staticmethod
    def _holder(p: Given) -> str:
        name = p.own.lstrip("@")
        return f"native{name[:1].upper()}{name[1:]}"

    def same_length(self, s: lower.SameLength) -> str:
        """Return the check that two arrays have the same length."""
        first, other = s.first, s.other
        return (
            f"Arguments.SameCount({self._count(first)}, nameof({first.own}), "
            f"{self._count(other)}, nameof({other.own}));"
        )

    def _count(self, p: Given) -> str:
        return f"{self._holder(p)}.Count" if p.type in HOLDERS else f"Arguments.Length({p.own})"

    def invoke(self, s: Any, form: Method, indent: int, operands: list[Operand] | None = None) -> str:
        """Return the statement of a call, broken between arguments if it is long."""
        return self.checked(s.call, [self.operand(o, s.call, form) for o in operands or s.operands], indent)

    def checked(self, call: Call, arguments: list[str], indent: int) -> str:
        """Return the statement of a call with these arguments."""
        line = f"NativeStatus.ThrowOnError({self.function(call)}({', '.join(arguments)}));"
        if indent + len(line) <= 110:
            return line
        lines = [f"NativeStatus.ThrowOnError({self.function(call)}("]
        margin = " " * (indent + 4)
        for i, argument in enumerate(arguments):
            part = argument + ("," if i + 1 < len(arguments) else "));")
            if len(lines) > 1 and len(lines[-1]) + len(argument) < 105:
                lines[-1] += f" {part}"
            else:
                lines.append(f"{margin}{part}")
        return "\n".join(lines)

    operands = {  # noqa: RUF012
        "receiver": "Live",
        "allocator": "OrtAllocator.Default",
        "room": "start",
        "room_size": "ref size",
    }

    def operand(self, o: Operand, call: Call, form: Method) -> str:
        """Return one operand of a call."""
        match o:
            case lower.Passed(p):
                return self._passed(p, form)
            case lower.Length(p):
                return f"(UIntPtr){self._count(p)}"
            case lower.Absent(p):
                return "RunOptions.None" if p.type == "run_options" else "null"
            case lower.Out(p):
                return f"out {self._native_local(p)} {self.result_name(call, p)}"
            case lower.Made():
                return f"out IntPtr {self.made_name(form)}"
        return self.fixed_operand(o)

    def made_name(self, form: Method) -> str:
        """Return the variable that receives the handle of a new object."""
        handle = form.call.results[0].type
        return "session" if handle in ("training_session", "session") else "result"

    def _native_local(self, p: Parameter) -> str:
        return "IntPtr" if self._is_pointer(p.type) else self._scalar(p.type)

    def result_name(self, call: Call, p: Parameter) -> str:
        """Return the variable that receives a result of a call."""
        return "result" if [p] == call.results else f"{camel(p.name, PLAIN)}Result"

    def _passed(self, p: Given, form: Method) -> str:
        name = p.own
        given = any(q.name == p.name for q in form.parameters)
        if p.type == "env":
            return "OrtEnv.Instance()"
        if p.type == "session_options" and not given:
            return "SessionOptions.Default"
        if not given:
            return "null"
        if p.type in ("session_options", "run_options") and p.nullable:
            other = "SessionOptions.Default" if p.type == "session_options" else "RunOptions.None"
            return f"({name} ?? {other}).Live"
        if p.type == "value" and p.nullable:
            return f"({name} ?? OrtValue.None).Live"
        or_null = "OrNull" if p.nullable else ""
        by_kind = {
            "string": f"NativeText.Utf8({name}, nameof({name}))",
            "path": f"NativeText.Path{or_null}({name}, nameof({name}))",
            "bool": f"Arguments.Byte({name})",
            "flag": f"{name} ? 1 : 0",
            "bool[]": f"Arguments.Bytes({name}, nameof({name}))",
            "size": f"Arguments.Size({name}, nameof({name}))",
        }
        if p.type in HOLDERS:
            return f"{self._holder(p)}.Pointers"
        if p.type in by_kind:
            return by_kind[p.type]
        if p.type == "bytes" or p.type.endswith("[]"):
            return name if p.nullable else f"Arguments.NotNull({name}, nameof({name}))"
        if self.class_of(p.type):
            return f"Arguments.NotNull({name}, nameof({name})).Live"
        return name

    @staticmethod
    def reads_from_object(results: list[Parameter]) -> bool:
        """Whether a result is read from memory of the object. The object must then stay alive until the read ends."""
        return any(p.owner == "callee" for p in results)

    def taken(self, call: Call, results: list[Parameter]) -> str:
        """Return the expression of a method's result or results."""
        values = [self._taken(call, p) for p in results]
        return values[0] if len(values) == 1 else f"({', '.join(values)})"

    def _taken(self, call: Call, p: Parameter) -> str:
        name = self.result_name(call, p)
        if p.type == "tensor_type_and_shape_info":
            return f"OrtTensorTypeAndShapeInfo.{'Read' if p.owner == 'callee' else 'Take'}({name})"
        if p.type == "string":
            return f"NativeText.{'Read' if p.owner == 'callee' else 'Take'}({name})"
        if p.type == "bytes" and p.length:
            return f"NativeMemory.Take({name}, {camel(p.length, PLAIN)}Result)"
        if p.type in ("bool", "flag"):
            return f"{name} != 0"
        if p.type == "size":
            return f"(long){name}"
        owner = self.class_of(p.type)
        return f"new {owner.own}({name})" if owner else name

    # ---- settings ----

    def default_of(self, m: Method) -> str:
        """Return the default of a setting."""
        kind = m.returns.type if m.returns else ""
        if kind in self.spec.enums:
            return f"{self.enum_type(kind)}.{self.value_name(kind, str(m.initial))}"
        return self.literal(m.initial)

    def setting_argument(self, m: Method) -> str:
        """Return the arguments that the setter passes to its call."""
        kind = m.returns.type if m.returns else ""
        wanted = m.call.arguments[1].type
        if kind == "string":
            return "NativeText.Utf8(value, nameof(value))"
        if kind == "path":
            return "NativeText.Path(value, nameof(value))"
        if kind == "bool":
            return "Arguments.Byte(value)"
        return "(int)value" if kind in self.spec.enums and wanted not in self.spec.enums else "value"

    def method_of(self, command: Command) -> str:
        """Return the name of the runner's method for a command."""
        return pascal(command.name, PLAIN)

    @staticmethod
    def field(m: Method) -> str:
        """Return the backing field of a property."""
        return escaped(m.own[:1].lower() + m.own[1:])

    # ---- commands of the scenarios ----

    tokens = {  # noqa: RUF012
        "state": "State({t})",
        "session": "Training({t})",
        "tensor": "Tensor({t}).Value",
        "tensors": "Values(a, {i})",
        "counted_tensors": "Counted(a, {i})",
        "outputs": "Rest(a, {i})",
        "written": "Written(a, {i})",
        "model": "Model({t})",
        "counted_pairs": "Names(Pairs(a, {i})), Values(Pairs(a, {i}))",
        "rest_pairs": "Names(BehindPairs(a, {i})), Values(BehindPairs(a, {i}))",
        "values_of_rest_pairs": "Values(BehindPairs(a, {i}))",
        "names_of_rest_pairs": "Names(BehindPairs(a, {i}))",
        "rest_texts": "BehindPairs(a, {i})",
        "names_of_rest_texts": "BehindPairs(a, {i})",
        "integer": "Text.Integer({t})",
        "number": "Text.Number({t})",
        "path": "{t}",
        "path_or_none": "Optional({t})",
        "text": "{t}",
        "texts": "From(a, {i})",
        "content": "File.ReadAllBytes({t})",
        "choice": 'Flag({t}, "{yes}", "{no}")',
    }
    ambient = {"env": "", "session_options": "options", "run_options": "null"}  # noqa: RUF012

    def arguments_of(self, m: Method) -> list[Given]:
        """Return the arguments that a command passes to a method; run options come first."""
        return sorted(m.parameters, key=lambda p: p.type != "run_options")

    def command_call(self, action: Action) -> str:
        """Return the expression of the call that a command makes."""
        arguments = f"({', '.join(action.arguments)})"
        if action.receiver:
            return f"{action.receiver}.{action.m.own}{arguments}"
        if self.is_constructor(action.cls, action.m):
            return f"new {action.cls.own}{arguments}"
        return f"{action.cls.own}.{action.m.own}{arguments}"

    @staticmethod
    def log_text(command: Command) -> str:
        """Return the expression of the text that the log has in front of a result."""
        return " + ".join(
            f'"{part}"' if isinstance(part, str) else f"a[{part}]" for part in command.log_parts
        )

    # ---- the reference page ----

    def declarations(self, cls: Class, m: Method) -> list[str]:
        """Return the declarations of a method."""
        if m.pattern in lower.SETTINGS:
            return [f"{self.result_type(m)} {m.own} {{ get; set; }}"]
        if m.pattern == "value_infos" or m.is_property:
            return [f"{self.result_type(m)} {m.own} {{ get; }}"]
        if m.pattern == "names" and m.constant:
            return [f"IReadOnlyList<string> {m.own} {{ get; }}"]
        if m.pattern in ("run", "run_into"):
            return [self.run_declaration(m, form) for form in self.runs(m)]
        if m.pattern == "property_set":
            return [f"void {m.own}({self.signature(form.parameters)})" for form in self.typed(m)]
        if m.pattern in ("step", "step_into"):
            return [f"{kind} {m.own}({signature})" for kind, signature, _ in self.steps_of(m)]
        if self.is_constructor(cls, m):
            return [f"{m.own}({self.signature(form.parameters)})" for form in self.overloads_of(m)]
        static = "static " if m.pattern in ("static", "create") else ""
        result = self.result_type(m)
        return [
            f"{static}{result} {m.own}({self.signature(form.parameters)})" for form in self.overloads_of(m)
        ]

    def documented_parameters(self, m: Method) -> list[tuple[str, str]]:
        """Return name and documentation of the parameters of all overloads of a method, each once."""
        if m.pattern in lower.SETTINGS:
            return []
        if m.pattern in ("run", "run_into"):
            return list(
                {name: (name, doc) for form in self.runs(m) for name, _, doc in form.parameters}.values()
            )
        # The form with run options takes them first, and is described last.
        forms = sorted(self.overloads_of(m), key=lambda form: len(form.parameters))
        listed = [*m.parameters] if m.overloads else [p for form in forms for p in form.parameters]
        return list({p.own: (p.own, p.doc) for p in listed if p.type != "env"}.values())

    # ---- properties of a checkpoint, whose values have one of three types ----

    @staticmethod
    def typed(m: Method) -> list[Method]:
        """Return the forms of a method that takes a value of any type of property, one for each type."""
        name, value = m.parameters
        kinds = (("int64", "int"), ("float", "float"), ("string", "string"))
        return [
            replace(m, parameters=[name, replace(value, type=kind)], property_type=own) for kind, own in kinds
        ]

    # ---- steps of a training session, in forms that C# users know ----

    def steps_of(self, m: Method) -> list[tuple[str, str, list[Given]]]:
        """Return, for each declaration of a step, its return type, its parameter list and its parameters."""
        fixed = "IReadOnlyCollection<FixedBufferOnnxValue>"
        named = "IDisposableReadOnlyCollection<DisposableNamedOnnxValue>"
        into = m.pattern == "step_into"
        own = {p.type: p for form in self.overloads_of(m) for p in form.parameters}
        given = [p for p in m.parameters if p.type != "run_options"]
        out = []
        for parameters in ([own["run_options"], *given], given):
            kinds = (f"{'RunOptions' if p.type == 'run_options' else fixed} {p.own}" for p in parameters)
            out.append(("void" if into else named, ", ".join(kinds), parameters))
        if not into:
            values = f"IReadOnlyCollection<OrtValue> {given[0].own}"
            out.append(("IDisposableReadOnlyCollection<OrtValue>", values, given))
        return out

    # ---- runs of a model, in forms that C# users know ----

    def runs(self, m: Method) -> list[Form]:
        """Return the forms of a run: the inputs are named C# tensors, values or buffers; the outputs are new or the caller's."""
        run_options = m.parameter("run_options")
        options = ("options", "RunOptions", run_options.doc)
        first = (run_options.own, "RunOptions", run_options.doc)
        texts = "IReadOnlyCollection<string>"
        input_names = ("inputNames", texts, "Names of the inputs.")
        output_names = ("outputNames", texts, "Names of the wanted outputs.")
        values, named = "IReadOnlyCollection<OrtValue>", "IReadOnlyCollection<NamedOnnxValue>"
        buffers = "IReadOnlyCollection<FixedBufferOnnxValue>"
        ordered = "The inputs, in the order of their names."
        if m.pattern == "run_into":
            received = "Tensors that receive the outputs, in the order of their names."
            by_values, by_buffers = (
                [input_names, ("inputValues", kind, ordered), output_names, ("outputValues", kind, received)]
                for kind in (values, buffers)
            )
            return [
                Form("void", "RunInto", [first, *by_values]),
                Form("void", "RunInto", by_buffers),
                Form("void", "RunInto", [*by_buffers, options]),
            ]
        tensors, disposable = (
            f"IDisposableReadOnlyCollection<{kind}>" for kind in ("OrtValue", "DisposableNamedOnnxValue")
        )
        inputs = m.parameter("inputs").doc
        dictionary = ("inputs", "IReadOnlyDictionary<string, OrtValue>", inputs)
        listed = ("inputs", named, inputs)
        fixed = [input_names, ("inputValues", buffers, ordered)]
        return [
            Form(disposable, "RunNamed", [listed]),
            Form(disposable, "RunNamed", [listed, output_names]),
            Form(disposable, "RunNamed", [listed, output_names, options]),
            Form(disposable, "RunNamed", fixed),
            Form(disposable, "RunNamed", [*fixed, output_names]),
            Form(disposable, "RunNamed", [*fixed, output_names, options]),
            Form(tensors, "Run", [first, input_names, ("inputValues", values, ordered), output_names]),
            Form(tensors, "Run", [first, dictionary, output_names]),
        ]

    @staticmethod
    def run_declaration(m: Method, form: Form) -> str:
        """Return the declaration of one form of a run."""
        return f"{form.returned} {m.own}({', '.join(f'{kind} {name}' for name, kind, _ in form.parameters)})"

    @staticmethod
    def run_work(form: Form) -> str:
        """Return the call of ``ForwardRun`` in one form of a run."""
        options = next((name for name, kind, _ in form.parameters if kind == "RunOptions"), "null")
        passed = [name for name, _, _ in form.parameters if name != options]
        if "outputNames" not in passed:
            passed.append("OutputNames")
        return f"ForwardRun.{form.work}(Live, {options}, {', '.join(passed)})"

    def run_doc(self, m: Method, form: Form) -> str:
        """Return the documentation comment of one form of a run."""
        parts = self._opening(m)
        for name, _, doc in form.parameters:
            parts += self._element("param", doc, f' name="{name}"')
        if form.returned != "void":
            doc = "The outputs, in the order of their names. The caller disposes of them."
            parts += self._element("returns", doc)
        required = [name for name, kind, _ in form.parameters if kind != "RunOptions"]
        return self._comment([*parts, *self._exceptions(m, required, [])], 8)


def _listed(words: list[str]) -> str:
    """Words as ``a, b or c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
