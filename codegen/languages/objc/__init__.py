"""Objective-C: selectors, types, and the conversion of arguments and results.

In ``spec/languages/objc.yaml`` a selector is written in parts: the base name, the label of the first argument, then the other
labels, as in ``saveCheckpoint ToPath: withOptimizerState:``. Without the blanks it is the selector.

The generated classes are plain Objective-C over the C tables; one private header lets the same sources compile with and
without automatic reference counting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from codegen import lower
from codegen.languages import Action, File
from codegen.languages.labels import Labelled
from codegen.lower import Operand
from codegen.spec.model import Call, Class, Command, Given, Method, Parameter, Returned, argument_kind
from codegen.spec.names import camel, pascal, snake

BINDING = "bindings/objc"

TABLES = {
    "general": "ORTGeneralTable()",
    "training": "ORTTrainingTable()",
    "extension": "ORTExtensionTable()",
}

ENCODED = {"bool": "bool", "flag": "int", "int": "int", "int64": "int64_t", "uint32": "uint32_t",
           "size": "size_t", "float": "float"}  # fmt: skip
"""The C element types of arrays of numbers."""

COLLECTIONS = {
    "string": "NSString *",
    "path": "NSString *",
    "bytes": "NSData *",
    "values": "NSArray<ORTValue *> *",
    "strings": "NSArray<NSString *> *",
    "name_set": "NSSet<NSString *> *",
    "named_values": "NSDictionary<NSString *, ORTValue *> *",
}
"""Types of objects that are not handles."""

TAKERS = {
    "string": ("const char *", "ORTTakeText"),
    "path": ("const char *", "ORTTakeText"),
    "strings": ("const char **", "ORTTakeTexts"),
    "name_set": ("const char **", "ORTTakeTextSet"),
    "named_values": ("ORTNamedValues ", "ORTTakeNamedValues"),
    "values": ("const OrtValue **", "ORTTakeValues"),
    "bytes": ("const void *", "ORTTakeData"),
}
"""The C type of arguments, and the function that converts to it."""

WIDTH = 110

ERROR = "error:(NSError *_Nullable *_Nullable)error"


@dataclass
class Group:
    """A header and its source: the classes in them, and the headers that they need."""

    name: str
    title: str
    classes: tuple[str, ...]
    imports: tuple[str, ...] = ()


GROUPS = (
    Group(
        "ort_env",
        "The environment, which determines which log messages are written.",
        ("env",),
        ("ort_version.h",),
    ),
    Group(
        "ort_session",
        "Forward sessions, and the settings of sessions and of single steps.",
        ("session_options", "run_options", "inference_session"),
        ("ort_value.h",),
    ),
    Group(
        "ort_checkpoint",
        "The state of a training run, in memory and in a file.",
        ("checkpoint_state",),
        ("ort_value.h",),
    ),
    Group(
        "ort_training_session",
        "The training loop.",
        ("training_session",),
        ("ort_checkpoint.h", "ort_env.h", "ort_session.h", "ort_training_utils.h", "ort_value.h"),
    ),
    Group("ort_gradient_graph_builder", "Gradients without a training session.", ("gradient_graph_builder",)),
    Group("ort_metric", "What a model is worth, counted batch by batch.", ("metric",), ("ort_value.h",)),
)
"""The generated files with classes. Their names are those that programs import."""


class Language(Labelled):
    """The filters of the Objective-C templates."""

    key = "objc"
    released = "`dealloc`"
    taken_names = frozenset(
        ["error", "self", "id", "in", "out", "inout", "super", "default", "register", "class"]
    )
    folders = (f"{BINDING}/include/generated", f"{BINDING}/src/generated", "tests/scenarios/generated/objc")
    truth = {"true": "YES", "false": "NO", "none": "nil"}  # noqa: RUF012

    def files(self) -> Iterable[File]:
        """Return the enumerations, and a header and a source for each group of classes."""
        yield File("objc/ort_enums.h.j2", f"{BINDING}/include/generated/ort_enums.h")
        for group in GROUPS:
            context = {"file": group, "classes": [self.class_named(name) for name in group.classes]}
            yield File("objc/class.h.j2", f"{BINDING}/include/generated/{group.name}.h", context)
            yield File("objc/class.m.j2", f"{BINDING}/src/generated/{group.name}.m", context)
        yield File("objc/commands.h.j2", "tests/scenarios/generated/objc/commands.h")

    # ---- names ----

    def parsed(self, name: str) -> tuple[str, ...]:
        """Return base name and labels of a name such as ``saveCheckpoint ToPath: withOptimizerState:``."""
        base, *labels = name.split(" ")
        if not labels and base.endswith(":"):
            return base[:-1], ""
        return (base, *(label.rstrip(":") for label in labels))

    def default_labels(self, cls: Class, m: Method) -> tuple[str, ...]:
        """Return the default base name and labels of a method."""
        if m.pattern in lower.SETTINGS:
            return f"set{pascal(m.name, self.words)}", ""
        base = "init" if m.pattern == "create" else camel(m.name, self.words)
        labels = [camel(p.role, self.words) if m.implied else p.own for p in m.parameters]
        labels += [camel(p.name, self.words) for p in self.stored(m)]
        if labels:
            labels[0] = f"With{labels[0][:1].upper()}{labels[0][1:]}"
        return (base, *labels)

    def options_label(self, m: Method) -> str:
        """Return the label of the run options that a form of a method takes last."""
        return "runOptions" if m.labels[1:] else "WithRunOptions"

    def spelled(self, cls: Class, m: Method) -> str:
        """Return the selector of a method with its class."""
        return f"-[{cls.own} {self.selector(m)}]"

    def default_value_name(self, enum: str, value: str) -> str:
        """Return the name of a value."""
        return self.enum_name(enum) + pascal(value, self.words)

    def mentioned(self, classes: list[Class]) -> list[str]:
        """Return the names of the other classes in the methods of these classes."""
        kinds = {p.type for cls in classes for m in self.methods(cls) for p in m.parameters}
        kinds |= {
            m.returns.type for cls in classes for m in cls.methods if m.returns and m.pattern != "create"
        }
        kinds |= {p.type for cls in classes for m in cls.methods for p in self.stored(m)}
        kinds |= {"value"} if kinds & {"values", "named_values"} else set()
        found = {self.class_of_kind(kind) for kind in kinds if self._handle_of(kind)}
        return sorted(found - {cls.own for cls in classes})

    def class_of_kind(self, kind: str) -> str:
        """Return the name of the class for a class of the spec, or for a handle.

        Raises
        ------
        SpecError
            When Objective-C has no class for it.
        """
        cls = self.class_of(kind)
        found = cls.own if cls else self.types.get(kind)
        if found is None:
            raise self.no_form(kind, "expected a class of Objective-C that has this handle")
        return found

    def code(self, name: str) -> str:
        """Return the name of an error code."""
        return self.value_name("error_code", name)

    @staticmethod
    def pieces(m: Method) -> list[str]:
        """Return the parts of a method's selector, without that of the error."""
        base, *labels = m.labels
        return [f"{base}{labels[0]}", *labels[1:]] if labels else [base]

    # ---- types ----

    def argument_type(self, p: Given) -> str:
        """Return the type of a parameter."""
        return ("nullable " if self.is_nullable(p) else "") + self.object_type(p.type)

    def object_type(self, kind: str) -> str:
        """Return the type of the object or number for a kind of value.

        Raises
        ------
        SpecError
            When Objective-C has no type for the kind of value.
        """
        if kind in COLLECTIONS:
            return COLLECTIONS[kind]
        if kind.endswith("[]"):
            return "NSArray<NSNumber *> *"
        if self._handle_of(kind):
            return f"{self.class_of_kind(kind)} *"
        if kind in self.types:
            return self.types[kind]
        if kind in self.spec.enums and self.enum_name(kind):
            return self.enum_name(kind)
        raise self.no_form(kind, "expected a type, an enumeration or a class of Objective-C")

    def _handle_of(self, kind: str) -> str:
        cls = self.class_of(kind)
        if cls and cls.handle:
            return cls.handle
        return kind if kind in self.spec.handles else ""

    def returned(self, m: Method) -> str:
        """Return the type that a method returns."""
        if m.pattern == "create":
            return "nullable instancetype"
        if m.returns is None or m.pattern in lower.SETTINGS or m.returns.type == "results":
            return "BOOL"
        kind = self.object_type(m.returns.type)
        return f"nullable {kind}" if self.is_object(m.returns.type) else kind

    def is_object(self, kind: str) -> bool:
        """Whether a kind of value is an object, not a number."""
        return kind in COLLECTIONS or kind.endswith("[]") or bool(self._handle_of(kind))

    def returns_object(self, m: Method) -> bool:
        """Whether a method returns an object, so that nil shows a failure."""
        if m.pattern == "create":
            return True
        returns = m.returns is not None and m.pattern not in lower.SETTINGS
        return returns and self.is_object(m.returns.type if m.returns else "")

    def is_number(self, m: Method) -> bool:
        """Whether a method returns a number, so that only the error shows a failure."""
        if self.returned(m) == "BOOL":
            setter = m.pattern in lower.SETTINGS
            return m.returns is not None and not setter and m.returns.type in ("bool", "flag")
        return not self.returns_object(m)

    def fails_by_error(self, m: Method) -> bool:
        """Whether the declaration tells Swift that only the error pointer shows a failure.

        This includes the getter of string properties, because the original header declares all getters of properties alike.
        """
        return self.is_number(m) or m.pattern == "property_get"

    def failed(self, m: Method) -> str:
        """Return the value that a method returns when it fails."""
        if self.returns_object(m):
            return "nil"
        return "NO" if self.returned(m) == "BOOL" else "0"

    # ---- arguments and results ----

    @staticmethod
    def stored(m: Method) -> list[Parameter]:
        """Return the results that a method with several results stores through pointers."""
        return m.call.results if m.returns and m.returns.type == "results" else []

    def stored_name(self, p: Parameter) -> str:
        """Return the name of the pointer that receives one of several results."""
        return f"{camel(p.name, self.words)}Result"

    def out_type(self, p: Parameter) -> str:
        """Return the type of the pointer that receives a result."""
        kind = self.object_type(argument_kind(p))
        return f"{kind}_Nullable *_Nullable" if self.is_object(argument_kind(p)) else f"{kind} *_Nullable"

    # ---- declarations ----

    def declaration(self, m: Method) -> str:
        """Return a method's declaration without its end, broken at the colons if it is long."""
        taken = [(self.argument_type(p), p.own) for p in self.arguments(m)]
        taken += [(self.out_type(p), self.stored_name(p)) for p in self.stored(m)]
        pieces = self.pieces(m)
        if taken:
            parts = [f"{piece}:({kind}){name}" for piece, (kind, name) in zip(pieces, taken, strict=True)]
            parts.append(ERROR)
        else:
            parts = [f"{pieces[0]}With{ERROR[0].upper()}{ERROR[1:]}"]
        head = f"- ({self.returned(m)})"
        line = head + " ".join(parts)
        if len(line) < WIDTH:
            return line
        column = len(head) + parts[0].index(":")
        aligned = [" " * max(4, column - part.index(":")) + part for part in parts[1:]]
        return "\n".join([head + parts[0], *aligned])

    def selector(self, m: Method) -> str:
        """Return a method's whole selector."""
        pieces = self.pieces(m)
        return ":".join([*pieces, "error:"]) if m.labels[1:] else f"{pieces[0]}WithError:"

    def attributes(self, m: Method) -> str:
        """Return the attributes after a declaration."""
        if m.pattern == "create":
            return " NS_DESIGNATED_INITIALIZER" if m.parameters else " ORT_SWIFT_NAME(init())"
        return " ORT_FAILS_BY_ERROR" if self.fails_by_error(m) else ""

    # ---- documentation ----

    def doc(self, text: str, indent: int = 0) -> str:
        """Return a text as a documentation comment."""
        return self.c.block(self.c.wrap(self.said(text)), indent)

    def comment(self, m: Method) -> str:
        """Return the documentation of a method."""
        lines = self.doc_lines(m)
        for p in self.arguments(m):
            lines += self.c.wrap(f"@param {p.own} {self.said(p.doc)}", hanging=4)
        for r in self.stored(m):
            lines += self.c.wrap(
                f"@param {self.stored_name(r)} Where to store: {self.said(r.doc)} May be NULL.", hanging=4
            )
        lines.append("@param error Set when it fails. May be NULL.")
        lines += self.c.wrap(f"@return {self.return_doc(m)}", hanging=4)
        errors = self.errors(m)
        if errors:
            lines += ["", *self.c.wrap("Errors: " + "; ".join(f"{c} when {w}" for c, w in errors) + ".")]
        return self.c.block(lines)

    def return_doc(self, m: Method) -> str:
        """Return the description of a method's result, including the result of a failure."""
        if m.pattern == "create":
            return "The object, or nil on failure."
        if self.returned(m) == "BOOL" and not self.is_number(m):
            return "YES, or NO on failure."
        doc = self.said((m.returns or Returned("", "")).doc)
        return f"{doc} On failure, {self.failed(m)}."

    # ---- commands of the scenarios ----

    token = "[arguments objectAtIndex:{i}]"
    tokens = {  # noqa: RUF012
        **Labelled.tokens,
        "state": "state_of({t})",
        "session": "session_of({t})",
        "tensor": "tensor_of({t})",
        "tensors": "tensors_of(from(arguments, {i}))",
        "model": "model_of({t})",
        "counted_pairs": "values_of(pairs_counted(arguments, {i}))",
        "rest_pairs": "values_of(behind_pairs(arguments, {i}))",
        "values_of_rest_pairs": "values_of(behind_pairs(arguments, {i}))",
        "names_of_rest_pairs": "names_of(behind_pairs(arguments, {i}))",
        "rest_texts": "[NSSet setWithArray:behind_pairs(arguments, {i})]",
        "names_of_rest_texts": "behind_pairs(arguments, {i})",
        "integer": "read_integer({t})",
        "number": "read_number({t})",
        "texts": "from(arguments, {i})",
        "content": "read_file({t})",
        "choice": 'flag({t}, @"{yes}", @"{no}")',
    }
    ambient = {"env": "env", "session_options": "make_options()", "run_options": "nil"}  # noqa: RUF012

    def command_call(self, action: Action, error: str = "error") -> str:
        """Return the expression of the call that a command makes; ``error`` receives what fails."""
        receiver = action.receiver or f"[{action.cls.own} alloc]"
        pieces = self.pieces(action.m)
        if not action.arguments:
            return f"[{receiver} {pieces[0]}WithError:{error}]"
        parts = [f"{piece}:{value}" for piece, value in zip(pieces, action.arguments, strict=True)]
        return f"[{receiver} {' '.join(parts)} error:{error}]"

    def logs_number(self, action: Action) -> bool:
        """Whether the logged value is a number, so that only the error shows that the call failed."""
        return bool(action.result) and action.result in ENCODED

    def log_text(self, command: Command) -> str:
        """Return the expression of the text that the log has in front of a result."""
        tokens = [self.token.format(i=part) for part in command.log_parts if isinstance(part, int)]
        text = "".join(part if isinstance(part, str) else "%@" for part in command.log_parts)
        format = ", ".join([f'@"{text}"', *tokens])
        return f"[NSString stringWithFormat:{format}]" if tokens else format

    # ---- steps ----

    kind_of = staticmethod(argument_kind)

    def call(self, call: Call) -> str:
        """Return the expression of a call's function."""
        return f"{TABLES[call.table]}->{self.c.function(call)}"

    def passes_itself(self, p: Given) -> bool:
        """Whether an argument needs no other form for C."""
        return p.type in ENCODED or p.type in self.spec.enums

    @staticmethod
    def variable(p: Given) -> str:
        """Return the variable that holds the C form of an argument."""
        return f"c_{p.passed.name if p.passed else snake(p.name)}"

    def element(self, kind: str) -> str:
        """Return the C type of the elements of an array of numbers."""
        base = kind.removesuffix("[]")
        if base not in ENCODED and base not in self.spec.enums:
            raise self.no_form(kind, "expected an array of numbers or of values")
        return ENCODED.get(base, "int32_t")

    def conversion(self, p: Given) -> tuple[str, str]:
        """Return the declaration and the condition that give an argument its C form."""
        optional = "YES" if self.is_nullable(p) else "NO"
        given = f'&call, @"{p.own}", {p.own}'
        variable = self.variable(p)
        if p.type in TAKERS:
            kind, taker = TAKERS[p.type]
            freed = " ORT_FREED" if p.type in ("strings", "name_set", "values") else ""
            start = "NULL"
            if p.type == "named_values":
                freed, start = " ORT_NAMED_VALUES_FREED", "{0}"
            return f"{kind}{variable}{freed} = {start};", f"{taker}({given}, {optional}, &{variable})"
        if p.type.endswith("[]"):
            element = self.element(p.type)
            return (
                f"{element} *{variable} ORT_FREED = NULL;",
                f"ORTTakeNumbers({given}, {optional}, @encode({element}), &{variable})",
            )
        handle = self.c.base(self._handle_of(p.type))
        return (
            f"{handle} *{variable} = NULL;",
            f"ORTTakeHandle({given}, [{self.class_of_kind(p.type)} class], {optional}, &{variable})",
        )

    def invocation(self, call: Call, operands: list[Operand]) -> str:
        """Return the expression of a call."""
        return f"{self.call(call)}({', '.join(self.operand(o) for o in operands)})"

    operands = {  # noqa: RUF012
        **Labelled.operands,
        "receiver": "_handle",
        "allocator": "ORTAllocator()",
        "absent": "NULL",
        "made": "&_handle",
        "outputs": "results.values",
        "count_differs": "found != c_out",
    }

    def length(self, p: Given) -> str:
        """Return the number of elements of an argument."""
        if p.type == "named_values":
            return f"c_{p.role}.count"
        return f"[{p.own} {'length' if p.type == 'bytes' else 'count'}]"

    def names_in_c(self, p: Given) -> str:
        """Return the names of values that are given by name."""
        return f"c_{p.role}.names"

    def values_in_c(self, p: Given) -> str:
        """Return the handles of values that are given by name."""
        return f"{'(OrtValue **)' if p.role == 'outputs' else ''}c_{p.role}.values"

    def out(self, p: Parameter) -> str:
        """Return the address of the variable that receives a result."""
        if p.length and p.type != "bytes":
            return f"c_{p.name}.values" if p.type == "value" else f"c_{p.name}"
        return f"&c_{p.name}"

    def address(self, p: Given) -> str:
        """Return the address of an argument."""
        return f"(void *){self.variable(p)}" if p.type == "string" else f"&{p.own}"

    def passed(self, p: Given) -> str:
        """Return the expression of an argument for C."""
        if p.type in self.spec.enums:
            return f"({self.c.base(p.type)}){p.own}"
        if self.passes_itself(p):
            return p.own
        cast = "(OrtValue **)" if p.type == "values" and p.role == "outputs" else ""
        return f"{cast}{self.variable(p)}"

    def place(self, p: Parameter) -> str:
        """Return the declaration of the variable that receives a result."""
        if p.length and p.type != "bytes":
            count = camel(p.length, self.words)
            if p.type == "value":
                return f"ORTOutputs c_{p.name} ORT_OUTPUTS_FREED = ORTMakeOutputs({count});"
            element = self.element(p.type)
            return f"{element} *c_{p.name} ORT_FREED = calloc({count} + 1, sizeof({element}));"
        pointer = "*" if self.c.is_pointer_type(p.type) else ""
        const = "const " if p.owner == "callee" and pointer else ""
        return f"{const}{self.c.base(p.type)} {pointer}c_{p.name} = {'NULL' if pointer else '0'};"

    def taken(self, p: Parameter) -> str:
        """Return the expression of a result as an object or a number."""
        kind = argument_kind(p)
        if p.length and p.type != "bytes":
            if kind == "values":
                return f"ORTValuesTaking(&c_{p.name})"
            return (
                f"ORTNumbersCopying(c_{p.name}, {camel(p.length, self.words)}, @encode({self.element(kind)}))"
            )
        if p.type in ("string", "path"):
            return f"ORTText{'Copying' if p.owner == 'callee' else 'Taking'}(c_{p.name})"
        if p.type == "bytes":
            return f"ORTDataTaking(c_{p.name}, c_{p.length})"
        if p.type in self.spec.handles:
            return f"ORTObjectTaking([{self.class_of_kind(p.type)} class], c_{p.name})"
        if p.type == "flag":
            return f"c_{p.name} != 0"
        return f"({self.enum_name(p.type)})c_{p.name}" if p.type in self.spec.enums else f"c_{p.name}"
