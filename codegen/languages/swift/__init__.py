"""Swift: names, types, and the conversion of arguments and results.

A method's name is written as Swift does, with the labels of its arguments: ``saveCheckpoint(toPath:withOptimizerState:)``. By
default it is the name under which Swift imports the method of Objective-C.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from codegen import lower
from codegen.languages import Base, File
from codegen.lower import Operand, Step
from codegen.spec.model import Call, Class, Command, Given, Method, Parameter, argument_kind
from codegen.spec.names import camel, pascal
from codegen.spec.source import Problem, SpecError

SOURCES = "bindings/swift/Sources/onnxruntime_training_objc/generated"

TAKEN_NAMES = {"self", "in", "inout", "default", "init", "func", "var", "let", "call"}
"""Parameter names that Swift or a method itself uses."""

TAKERS = {
    "string": ("text", "free({})"),
    "path": ("text", "free({})"),
    "strings": ("texts", "{}.free()"),
    "name_set": ("texts", "{}.free()"),
    "named_values": ("namedValues", "{}.free()"),
    "values": ("values", "{}.deallocate()"),
}
"""The function that gives an argument its C form, and how that is freed."""

PASSED = {"bool", "flag", "int", "int64", "uint32", "uint64", "float", "size"}
"""Arguments that are passed on as numbers."""

SAME_IN_C = ("bool", "int", "int64", "uint32", "uint64", "float")
"""Elements that are stored in an array of Swift as C reads them: the call gets the array's own memory."""
ARRAYS = {f"{element}[]": element for element in SAME_IN_C}


def _no_form(name: str, expected: str) -> SpecError:
    return SpecError([Problem("spec", 1, name, f"{expected}, found none, so it has no form in Swift")])


class Language(Base):
    """The filters of the Swift templates."""

    key = "swift"
    released = "`deinit`"
    folders = (SOURCES, "tests/scenarios/generated/swift")
    truth = {"true": "true", "false": "false", "none": "nil"}  # noqa: RUF012

    def files(self) -> Iterable[File]:
        """Return the enumerations, a file for each class, and the page."""
        yield File("swift/enums.swift.j2", f"{SOURCES}/Enumerations.swift")
        for cls in self.classes:
            yield File("swift/class.swift.j2", f"{SOURCES}/{cls.own}.swift", {"cls": cls})
        yield File("swift/reference.md.j2", "docs/reference/swift.md")
        yield File("swift/commands.swift.j2", "tests/scenarios/generated/swift/Commands.swift")

    # ---- names ----

    def class_name(self, cls: Class) -> str:
        """Return the name of a class."""
        return f"ORT{pascal(cls.name, self.words)}"

    def default_enum_name(self, enum: str) -> str:
        """Return the name of an enumeration."""
        return f"ORT{pascal(enum, self.words)}"

    def default_value_name(self, enum: str, value: str) -> str:
        """Return the name of a value: that of Objective-C without the type, with its first word in lower case."""
        name = pascal(value, self.words)
        capitals = re.match(r"[A-Z]+(?=[A-Z][a-z]|$)|[A-Z]", name)
        return name[: capitals.end()].lower() + name[capitals.end() :] if capitals else name

    def parameter_name(self, name: str) -> str:
        """Return the name of a parameter."""
        own = camel(name, self.words)
        return f"{own}Value" if own in TAKEN_NAMES else own

    def setting(self, m: Method) -> Given:
        """Return the parameter of a setting, named after that of the call."""
        value = super().setting(m)
        kind = "bool" if m.pattern == "switch" else value.type
        return replace(value, own=self.parameter_name(value.name), type=kind)

    def method_name(self, cls: Class, m: Method) -> str:
        """Return the name of a method, with its labels."""
        if m.pattern in lower.SETTINGS:
            return f"set{pascal(m.name, self.words)}(_:)"
        labels = [camel(p.role, self.words) if m.implied else p.own for p in m.parameters]
        if m.pattern == "create":
            return f"init({''.join(f'{label}:' for label in labels)})"
        if labels:
            labels[0] = f"with{labels[0][:1].upper()}{labels[0][1:]}"
        return f"{camel(m.name, self.words)}({''.join(f'{label}:' for label in labels)})"

    def _method(self, cls: Class, m: Method, over: object) -> Method:
        made = super()._method(cls, m, over)  # type: ignore[arg-type]
        if m.pattern == "static" and m.parameters and m.parameters[0].type == cls.name:
            return replace(made, pattern="direct", parameters=made.parameters[1:])
        return made

    def methods(self, cls: Class) -> list[Method]:
        """Return the methods of a class, each followed by its form with run options, if its call takes them."""
        return [form for m in cls.methods for form in (m, *self._forms(m))]

    def _forms(self, m: Method) -> list[Method]:
        form = None if m.implied or m.pattern not in ("direct", "static") else lower.with_run_options(m)
        if form is None:
            return []
        form.parameters[-1].own = "runOptions"
        label = "runOptions:" if m.parameters else "with:"
        return [replace(form, own=f"{m.own[:-1]}{label})")]

    def reached(self, call: Call) -> list[str]:
        """Return the names of the methods that use a call."""
        found = self.methods_on(call)
        found += [(cls, form) for cls, m in found if m.call.name == call.name for form in self._forms(m)]
        return [f"{cls.own}.{m.own}" for cls, m in found]

    def release(self, cls: Class) -> str:
        """Return the expression of the function that releases a class's handle."""
        return self.call(self.spec.calls[self.spec.handles[cls.handle]["release"]])

    # ---- types ----

    def is_nullable(self, p: Given) -> bool:
        """Whether nil may be given for an argument."""
        pointer = p.passed is not None and self.c.is_pointer_type(p.passed.type)
        return p.nullable or (pointer and bool(p.passed and p.passed.nullable))

    def type_name(self, kind: str) -> str:
        """Return the type that stands for a kind of value.

        Raises
        ------
        SpecError
            When Swift has none for it.
        """
        if kind in ARRAYS:
            return f"[{self.type_name(ARRAYS[kind])}]"
        cls = self.class_of(kind)
        found = cls.own if cls else self.types.get(kind)
        if found is None and kind in self.spec.enums:
            found = self.enum_name(kind)
        if not found:
            raise _no_form(kind, "expected a type, an enumeration or a class of Swift")
        return found

    @staticmethod
    def arguments(m: Method) -> list[Given]:
        """Return what a method takes."""
        return m.parameters if m.pattern in lower.SETTINGS else lower.arguments(m)

    def returned(self, m: Method) -> str:
        """Return the type that a method returns; empty for none."""
        if m.pattern == "create" or m.returns is None or m.pattern in lower.SETTINGS:
            return ""
        if m.returns.type == "results":
            parts = [
                f"{camel(p.name, self.words)}: {self.type_name(argument_kind(p))}" for p in m.call.results
            ]
            return f"({', '.join(parts)})"
        # Objective-C declares the getters of properties all alike, so Swift imports the text as optional.
        optional = "?" if m.pattern == "property_get" and m.returns.type == "string" else ""
        return self.type_name(m.returns.type) + optional

    def declaration(self, m: Method) -> str:
        """Return the declaration of a method."""
        base, labels = m.own.rstrip(")").split("(")
        parts = []
        for label, p in zip(labels.split(":")[:-1], self.arguments(m), strict=True):
            kind = self.type_name(p.type) + ("?" if self.is_nullable(p) else "")
            parts.append(f"{p.own}: {kind}" if label == p.own else f"{label} {p.own}: {kind}")
        keyword = "" if base == "init" else "func "
        result = f" -> {self.returned(m)}" if self.returned(m) else ""
        return f"{keyword}{base}({', '.join(parts)}) throws{result}"

    @staticmethod
    def may_be_ignored(m: Method) -> bool:
        """Whether a program may ignore what a method returns, as it may with methods of Objective-C."""
        return m.pattern in ("step", "run")

    # ---- documentation ----

    def mention(self, name: str) -> str:
        """Return the name of a call in a text: that of the method that makes it."""
        calls = self.spec.calls
        for cls in self.classes:
            for m in cls.methods:
                if name in calls and m.calls and m.call.name == name:
                    return f"{cls.own}.{m.own}"
        return super().mention(name)

    def doc(self, text: str, indent: int = 0) -> str:
        """Return a text as a documentation comment."""
        return self._comment(self.c.wrap(self.said(text)), indent)

    @staticmethod
    def _comment(lines: list[str], indent: int) -> str:
        return "\n".join(f"{' ' * indent}/// {line}".rstrip() for line in lines)

    def comment(self, m: Method) -> str:
        """Return the documentation of a method."""
        lines = self.c.wrap(self.said(m.summary))
        if m.details:
            lines += ["", *self.c.wrap(self.said(m.details))]
        lines.append("")
        taken = self.arguments(m)
        if taken:
            lines.append("- Parameters:")
        for p in taken:
            lines += self.c.wrap(f"  - {p.own}: {self.said(p.doc)}", hanging=4)
        if self.returned(m) and m.returns:
            lines += self.c.wrap(f"- Returns: {self.said(m.returns.doc)}", hanging=2)
        met = "; ".join(f"`{code}` when {when}" for code, when in self.errors(m))
        lines += self.c.wrap(
            f"- Throws: `NSError` of the domain `onnxruntime`{f': {met}' if met else ''}.", hanging=2
        )
        return self._comment(lines, 2)

    def errors(self, m: Method) -> list[tuple[str, str]]:
        """Return the codes that a method fails with, and when."""
        found: dict[str, list[str]] = {}
        for error in lower.errors(m):
            code = f"{self.enum_name('error_code')}.{self.value_name('error_code', error['code'])}"
            found.setdefault(code, []).append(self.said(error["when"]))
        if m.pattern == "property_get":
            found.setdefault("ORTErrorCode.invalidArgument", []).append("the property has another type")
        return [(code, ", or ".join(dict.fromkeys(whens))) for code, whens in found.items()]

    # ---- commands of the scenarios ----

    tokens = {  # noqa: RUF012
        "state": "state({})",
        "session": "session({})",
        "tensor": "tensor({})",
        "integer": "integer({})",
        "number": "number({})",
        "path": "{}",
        "text": "{}",
        "texts": "{}",
        "choice": 'flag({}, "{}", "{}")',
    }

    def command_call(self, command: Command) -> str:
        """Return the call that a command makes; empty if its body is written by hand."""
        found = self.called_by(command)
        if found is None:
            return ""
        base, labels = found[1].own.rstrip(")").split("(")

        def token(i: int) -> str:
            return f"Array(arguments[{i}...])" if command.tokens[i] == "texts" else f"arguments[{i}]"

        receiver, *read = self.read(command, token)
        named = [
            value if label == "_" else f"{label}: {value}"
            for label, value in zip(labels.split(":")[:-1], read, strict=True)
        ]
        return f"{receiver}.{base}({', '.join(named)})"

    # ---- steps ----

    def lowered(self, cls: Class, m: Method) -> list[Step]:
        """Return the steps of a method; the value of a setting is not kept, because nothing returns it."""
        return [s for s in self.lower(cls, m) if not isinstance(s, lower.Remember)]

    def kept(self, m: Method) -> list[str]:
        """Return what lives until the end of a method, because C gets its memory."""
        held = [] if m.pattern == "create" else ["self"]
        return held + [p.own for p in self.arguments(m) if not self._is_copied(p)]

    def _is_copied(self, p: Given) -> bool:
        return self.passes_itself(p) or p.type in ("string", "path", "strings", "name_set")

    def passes_itself(self, p: Given) -> bool:
        """Whether an argument needs no other form for C, or has it only during the call."""
        return p.type in PASSED or p.type in ARRAYS or p.type in self.spec.enums or p.type == "bytes"

    def call(self, call: Call) -> str:
        """Return the expression of a call's function."""
        return f"Tables.{call.table}.pointee.{self.c.function(call)}"

    def variable(self, p: Given | Parameter) -> str:
        """Return the variable that holds the C form of an argument or a result."""
        return f"c{pascal(p.name, self.words)}"

    def conversion(self, p: Given) -> tuple[str, str]:
        """Return the expression that gives an argument its C form, and the statement that frees it."""
        taker, freed = TAKERS.get(p.type, ("handle", ""))
        return f'try call.{taker}({p.own}, "{p.own}")', freed.format(self.variable(p))

    def invocation(self, call: Call, operands: list[Operand]) -> str:
        """Return the expression of a call, within the functions that lend it the bytes of data."""
        made = f"{self.call(call)}({', '.join(self.operand(o) for o in operands)})"
        for o in reversed(operands):
            if isinstance(o, lower.Passed) and o.argument.type == "bytes":
                made = f"withBytes({o.argument.own}) {{ {self.variable(o.argument)} in {made} }}"
        return made

    def operand(self, o: Operand) -> str:
        """Return one operand of a call."""
        match o:
            case lower.Receiver():
                return "handle"
            case lower.Passed(p):
                return self.passed(p)
            case lower.Length(p):
                if p.type == "named_values":
                    return f"{self.variable(p)}.count"
                return f"{p.own}{'?' if self.is_nullable(p) else ''}.count{' ?? 0' if self.is_nullable(p) else ''}"
            case lower.Names(p):
                return f"{self.variable(p)}.names.pointers"
            case lower.Values(p):
                return f"{self.variable(p)}.values"
            case lower.Fixed(_, value):
                return f'"{value}"'
            case lower.Allocator():
                return "Tables.allocator"
            case lower.Absent():
                return "nil"
            case lower.Made():
                return "&made"
            case lower.Out(p):
                return (
                    f"{self.variable(p)}.handles" if self._is_array_of_values(p) else f"&{self.variable(p)}"
                )
            case lower.Room():
                return "room"
            case lower.RoomSize():
                return "&size"
            case lower.OutputCount():
                return "results.count"
            case lower.Outputs():
                return "results.handles"
            case lower.ValueOf(enum, value):
                return value if enum == "bool" else self.c.value_name(enum, value)
            case lower.AddressOf(p):
                return self.variable(p) if p.type == "string" else f"&{self.variable(p)}"
            case lower.CountDiffers():
                return "found != cOut"
        raise NotImplementedError(f"Swift has no form of {o}")

    def passed(self, p: Given) -> str:
        """Return an argument as it is given to C."""
        if p.type in self.spec.enums:
            return f"cValue({p.own})"
        if p.type == "size":
            return f"Int(bitPattern: {p.own})"
        if p.type == "flag":
            return f"{p.own} ? 1 : 0"
        if p.type == "bytes":
            return self.variable(p)
        if self.passes_itself(p):
            return p.own
        if p.type in ("strings", "name_set"):
            return f"{self.variable(p)}.pointers"
        return self.variable(p)

    @staticmethod
    def _is_array_of_values(p: Parameter) -> bool:
        return bool(p.length) and p.type == "value"

    def place(self, p: Parameter) -> str:
        """Return the declaration of the variable that receives a result."""
        variable = self.variable(p)
        if p.length and p.type != "bytes":
            count = f"Int(bitPattern: {camel(p.length, self.words)})"
            if self._is_array_of_values(p):
                return f"let {variable} = Outputs(count: {count})\n    defer {{ {variable}.free() }}"
            if p.type not in SAME_IN_C:
                raise _no_form(p.name, "expected an array of values or of numbers")
            zero = "false" if p.type == "bool" else "0"
            return f"var {variable} = [{self.type_name(p.type)}](repeating: {zero}, count: {count})"
        if p.type in ("string", "path"):
            kind = "UnsafePointer" if p.owner == "callee" else "UnsafeMutablePointer"
            return f"var {variable}: {kind}<CChar>?"
        if p.type == "bytes":
            return f"var {variable}: UnsafeMutableRawPointer?"
        if p.type in self.spec.handles:
            return f"var {variable}: OpaquePointer?"
        if p.type in self.spec.enums:
            return f"var {variable} = {self.c.base(p.type)}(rawValue: 0)"
        kind = {"size": "Int", "flag": "Int32"}.get(p.type) or self.type_name(p.type)
        return f"var {variable} = false" if p.type == "bool" else f"var {variable}: {kind} = 0"

    def taken(self, p: Parameter) -> str:
        """Return the expression of a result as an object or a number."""
        variable = self.variable(p)
        if p.length and p.type != "bytes":
            return f"{variable}.taken()" if self._is_array_of_values(p) else variable
        if p.type in ("string", "path"):
            return f"{'textCopying' if p.owner == 'callee' else 'textTaking'}({variable})"
        if p.type == "bytes":
            return f"dataTaking({variable}, {camel('c_' + p.length, self.words)})"
        if p.type in self.spec.handles:
            return f"{self.type_name(p.type)}(taking: {variable}!)"
        if p.type in self.spec.enums:
            return f"try call.value({variable}.rawValue)"
        if p.type == "size":
            return f"UInt(bitPattern: {variable})"
        return f"{variable} != 0" if p.type == "flag" else variable
