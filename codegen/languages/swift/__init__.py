"""Swift: names, types, and the conversion of arguments and results.

A method's name is written as Swift does, with the labels of its arguments: ``saveCheckpoint(toPath:withOptimizerState:)``. By
default it is the name under which Swift imports the method of Objective-C.

Swift calls the C tables and not the Objective-C classes, so that it runs where there is no Objective-C.
"""

from __future__ import annotations

from collections.abc import Iterable

from codegen import lower
from codegen.languages import Action, File
from codegen.languages.labels import Labelled
from codegen.lower import Operand
from codegen.spec.model import Call, Class, Command, Given, Method, Parameter, argument_kind
from codegen.spec.names import camel, pascal

SOURCES = "bindings/swift/Sources/onnxruntime_training_objc/generated"

TAKERS = {
    "string": ("text", "free({})"),
    "path": ("text", "free({})"),
    "strings": ("texts", "{}.free()"),
    "name_set": ("texts", "{}.free()"),
    "named_values": ("namedValues", "{}.free()"),
    "values": ("values", "{}.deallocate()"),
}
"""The function that converts an argument to C, and the statement that frees the result."""

PASSED = {"bool", "flag", "int", "int64", "uint32", "uint64", "float", "size"}
"""Arguments that are passed as numbers."""

SAME_IN_C = ("bool", "int", "int64", "uint32", "uint64", "float")
"""Elements with the same layout in Swift and C, so that a call gets the array's own memory."""
ARRAYS = {f"{element}[]": element for element in SAME_IN_C}


class Language(Labelled):
    """The filters of the Swift templates."""

    key = "swift"
    released = "`deinit`"
    taken_names = frozenset(["self", "in", "inout", "default", "init", "func", "var", "let", "call"])
    folders = (SOURCES, "tests/scenarios/generated/swift")
    truth = {"true": "true", "false": "false", "none": "nil"}  # noqa: RUF012

    def files(self) -> Iterable[File]:
        """Return the enumerations, and a file for each class."""
        yield File("swift/enums.swift.j2", f"{SOURCES}/Enumerations.swift")
        for cls in self.classes:
            yield File("swift/class.swift.j2", f"{SOURCES}/{cls.own}.swift", {"cls": cls})
        yield File("swift/commands.swift.j2", "tests/scenarios/generated/swift/Commands.swift")

    # ---- names ----

    def parsed(self, name: str) -> tuple[str, ...]:
        """Return base name and labels of a name such as ``saveCheckpoint(toPath:withOptimizerState:)``."""
        base, labels = name.rstrip(")").split("(")
        return (base, *labels.split(":")[:-1])

    def default_labels(self, cls: Class, m: Method) -> tuple[str, ...]:
        """Return the default base name and labels of a method."""
        if m.pattern in lower.SETTINGS:
            return f"set{pascal(m.name, self.words)}", "_"
        labels = [camel(p.role, self.words) if m.implied else p.own for p in m.parameters]
        if m.pattern == "create":
            return ("init", *labels)
        if labels:
            labels[0] = f"with{labels[0][:1].upper()}{labels[0][1:]}"
        return (camel(m.name, self.words), *labels)

    def options_label(self, m: Method) -> str:
        """Return the label of the run options that a form of a method takes last."""
        return "runOptions" if m.parameters else "with"

    def spelled(self, cls: Class, m: Method) -> str:
        """Return the name of a method with its class."""
        return f"{cls.own}.{self.full_name(m)}"

    @staticmethod
    def full_name(m: Method) -> str:
        """Return the name of a method with the labels of its arguments."""
        return f"{m.labels[0]}({''.join(f'{label}:' for label in m.labels[1:])})"

    def code(self, name: str) -> str:
        """Return the name of an error code."""
        return f"{self.enum_name('error_code')}.{self.value_name('error_code', name)}"

    def default_value_name(self, enum: str, value: str) -> str:
        """Return the name of a value: that of Objective-C without the type, with its first letter in lower case."""
        name = pascal(value, self.words)
        return name[:1].lower() + name[1:]

    # ---- types ----

    def type_name(self, kind: str) -> str:
        """Return the type of a kind of value.

        Raises
        ------
        SpecError
            When Swift has no type for the kind of value.
        """
        if kind in ARRAYS:
            return f"[{self.type_name(ARRAYS[kind])}]"
        cls = self.class_of(kind)
        found = cls.own if cls else self.types.get(kind)
        if found is None and kind in self.spec.enums:
            found = self.enum_name(kind)
        if not found:
            raise self.no_form(kind, "expected a type, an enumeration or a class of Swift")
        return found

    def returned(self, m: Method) -> str:
        """Return the type that a method returns; empty for none."""
        if m.pattern == "create" or m.returns is None or m.pattern in lower.SETTINGS:
            return ""
        if m.returns.type == "results":
            parts = [
                f"{camel(p.name, self.words)}: {self.type_name(argument_kind(p))}" for p in m.call.results
            ]
            return f"({', '.join(parts)})"
        # Objective-C declares all getters of properties alike, so Swift imports the string as optional.
        optional = "?" if m.pattern == "property_get" and m.returns.type == "string" else ""
        return self.type_name(m.returns.type) + optional

    def declaration(self, m: Method) -> str:
        """Return the declaration of a method."""
        base, *labels = m.labels
        parts = []
        for label, p in zip(labels, self.arguments(m), strict=True):
            kind = self.type_name(p.type) + ("?" if self.is_nullable(p) else "")
            parts.append(f"{p.own}: {kind}" if label == p.own else f"{label} {p.own}: {kind}")
        keyword = "" if base == "init" else "func "
        result = f" -> {self.returned(m)}" if self.returned(m) else ""
        return f"{keyword}{base}({', '.join(parts)}) throws{result}"

    def declarations(self, cls: str) -> list[str]:
        """Return the declarations of a class of the spec."""
        return [self.declaration(m) for m in self.methods(self.class_named(cls))]

    @staticmethod
    def may_be_ignored(m: Method) -> bool:
        """Whether a program may ignore the result of a method, as in Objective-C."""
        return m.pattern in ("step", "run")

    # ---- documentation ----

    def doc(self, text: str, indent: int = 0) -> str:
        """Return a text as a documentation comment."""
        return self._comment(self.c.wrap(self.said(text)), indent)

    @staticmethod
    def _comment(lines: list[str], indent: int) -> str:
        return "\n".join(f"{' ' * indent}/// {line}".rstrip() for line in lines)

    def comment(self, m: Method) -> str:
        """Return the documentation of a method."""
        lines = self.doc_lines(m)
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

    # ---- commands of the scenarios ----

    token = "arguments[{i}]"
    tokens = {  # noqa: RUF012
        **Labelled.tokens,
        "state": "state({t})",
        "session": "session({t})",
        "tensor": "tensor({t})",
        "tensors": "tensors(arguments[{i}...])",
        "model": "model({t})",
        "counted_pairs": "values(pairs(arguments, {i}))",
        "rest_pairs": "values(behindPairs(arguments, {i}))",
        "values_of_rest_pairs": "values(behindPairs(arguments, {i}))",
        "names_of_rest_pairs": "names(behindPairs(arguments, {i}))",
        "rest_texts": "Set(behindPairs(arguments, {i}))",
        "names_of_rest_texts": "behindPairs(arguments, {i})",
        "integer": "integer({t})",
        "number": "number({t})",
        "texts": "Array(arguments[{i}...])",
        "content": "Self.file({t})",
        "choice": 'flag({t}, "{yes}", "{no}")',
    }
    ambient = {"env": "env", "session_options": "ORTSessionOptions()", "run_options": "nil"}  # noqa: RUF012

    def command_call(self, action: Action) -> str:
        """Return the expression of the call that a command makes."""
        base, *labels = action.m.labels
        arguments = ", ".join(
            value if label == "_" else f"{label}: {value}"
            for label, value in zip(labels, action.arguments, strict=True)
        )
        callee = f"{action.receiver}.{base}" if action.receiver else action.cls.own
        return f"{callee}({arguments})"

    @staticmethod
    def log_text(command: Command) -> str:
        """Return the expression of the text that the log has in front of a result."""
        parts = (part if isinstance(part, str) else f"\\(arguments[{part}])" for part in command.log_parts)
        return f'"{"".join(parts)}"'

    # ---- steps ----

    def kept(self, m: Method) -> list[str]:
        """Return the objects that must live until the end of a method, because C gets their memory."""
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

    operands = {  # noqa: RUF012
        **Labelled.operands,
        "receiver": "handle",
        "allocator": "Tables.allocator",
        "absent": "nil",
        "made": "&made",
        "outputs": "results.handles",
        "count_differs": "found != cOut",
    }

    def length(self, p: Given) -> str:
        """Return the number of elements of an argument."""
        if p.type == "named_values":
            return f"{self.variable(p)}.count"
        return f"{p.own}?.count ?? 0" if self.is_nullable(p) else f"{p.own}.count"

    def names_in_c(self, p: Given) -> str:
        """Return the names of values that are given by name."""
        return f"{self.variable(p)}.names.pointers"

    def values_in_c(self, p: Given) -> str:
        """Return the handles of values that are given by name."""
        return f"{self.variable(p)}.values"

    def out(self, p: Parameter) -> str:
        """Return the address of the variable that receives a result."""
        return f"{self.variable(p)}.handles" if self._is_array_of_values(p) else f"&{self.variable(p)}"

    def address(self, p: Given) -> str:
        """Return the address of an argument."""
        return self.variable(p) if p.type == "string" else f"&{self.variable(p)}"

    def passed(self, p: Given) -> str:
        """Return the expression of an argument for C."""
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
                raise self.no_form(p.name, "expected an array of values or of numbers")
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
