"""How Objective-C says what the spec describes: selectors, types, arguments on their way to C and back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from codegen.languages import Base, File
from codegen.languages.c import Language as C
from codegen.languages.c import snake
from codegen.spec.model import Call, Class, Method, Parameter, Spec, argument_kind
from codegen.spec.source import Problem, SpecError

BINDING = "bindings/objc"

TABLES = {
    "OrtApi": "ORTGeneralTable()",
    "OrtTrainingApi": "ORTTrainingTable()",
    "OrtrainApi": "ORTExtensionTable()",
}

WRAPPED_HANDLES = {
    "OrtEnv": "ORTEnv",
    "OrtValue": "ORTValue",
    "OrtTypeInfo": "ORTValueTypeInfo",
    "OrtTensorTypeAndShapeInfo": "ORTTensorTypeAndShapeInfo",
}
"""Handles whose classes are written by hand."""

ENCODED = {"bool": "bool", "flag": "int", "int": "int", "int64": "int64_t", "uint32": "uint32_t",
           "size": "size_t", "float": "float"}  # fmt: skip
"""The C element types of arrays of numbers."""

TAKEN_NAMES = {"error", "self", "id", "in", "out", "inout", "super", "default", "register", "class"}
"""Parameter names that Objective-C or a method itself uses."""

STEP = {"input_values": "inputs", "output_values": "outputs", "run_options": "run_options"}
"""What the parameters of a step become in its call."""

INTO = "into"
"""The value of a step that writes into tensors of the caller."""

SWIFT_COLLECTIONS = {
    "values": "[ORTValue]",
    "strings": "[String]",
    "name_set": "Set<String>",
    "named_values": "[String: ORTValue]",
}
"""Collections as Swift imports them."""

WIDTH = 110

ERROR = "error:(NSError *_Nullable *_Nullable)error"


def camel(name: str) -> str:
    """``initial_lr`` or ``InitialLr`` as ``initialLr``."""
    first, *rest = re.split(r"_+", name)
    return first[:1].lower() + first[1:] + "".join(word[:1].upper() + word[1:] for word in rest)


@dataclass
class Group:
    """A header and its source: the classes that they hold, and the headers that they need."""

    name: str
    title: str
    classes: tuple[str, ...]
    imports: tuple[str, ...] = ()


OBJC_FILES = (
    Group(
        "ort_session",
        "Forward sessions, and the settings of sessions and of single steps.",
        ("SessionOptions", "RunOptions", "InferenceSession"),
        ("ort_value.h",),
    ),
    Group(
        "ort_checkpoint",
        "The state of a training run, in memory and in a file.",
        ("CheckpointState",),
        ("ort_value.h",),
    ),
    Group(
        "ort_training_session",
        "The training loop.",
        ("TrainingSession",),
        ("ort_checkpoint.h", "ort_env.h", "ort_session.h", "ort_training_utils.h", "ort_value.h"),
    ),
    Group("ort_gradient_graph_builder", "Gradients without a training session.", ("GradientGraphBuilder",)),
)
"""The generated files with classes. Their names are those that programs import."""


@dataclass
class Argument:
    """A parameter of a method, and the parameter of the call that it becomes."""

    name: str
    kind: str
    doc: str
    nullable: bool = False
    passed: Parameter | None = None

    @property
    def c(self) -> str:
        """The variable that holds its C form."""
        return f"c_{self.passed.name if self.passed else snake(self.name)}"


@dataclass
class Result:
    """A result of a method, and the parameter of the call that stores it."""

    name: str
    kind: str
    doc: str
    passed: Parameter


def _no_form(name: str, expected: str) -> SpecError:
    return SpecError([Problem("spec", 1, name, f"{expected}, found none, so it has no form in Objective-C")])


class Language(Base):
    """The filters of the Objective-C templates."""

    key = "objc"
    folders = (f"{BINDING}/include/generated", f"{BINDING}/src/generated")

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.c = C(spec)
        self.classes = {c.handle: c.names["objc"] for c in spec.classes_in("objc")}

    def files(self) -> Iterable[File]:
        """Return the enumerations, a header and a source for each group of classes, and the page."""
        yield File("objc/ort_enums.h.j2", f"{BINDING}/include/generated/ort_enums.h")
        for group in OBJC_FILES:
            context = {"file": group, "classes": [self.spec.class_named(name) for name in group.classes]}
            yield File("objc/class.h.j2", f"{BINDING}/include/generated/{group.name}.h", context)
            yield File("objc/class.m.j2", f"{BINDING}/src/generated/{group.name}.m", context)
        yield File("objc/reference.md.j2", "docs/reference/objc.md")

    # ---- methods ----

    def methods(self, cls: Class) -> list[Method]:
        """Return the methods of a class, each followed by its other forms."""
        return [form for m in cls.methods_in("objc") for form in (m, *self._forms(m))]

    def other_forms(self, methods: list[tuple[Class, Method]], call: Call) -> list[tuple[Class, Method]]:
        """Return the other forms of methods that stand on the call itself."""
        return [(cls, form) for cls, m in methods for form in self._forms(m) if form.call.name == call.name]

    def _forms(self, m: Method) -> list[Method]:
        selector = m.name_in("objc")
        if m.pattern in ("create_session", "load_model"):
            given = [self._as_data(p) for p in m.parameters]
            details = f"{m.details} The data is not needed afterwards. Models with external data cannot be read from it.".strip()
            return [
                replace(
                    m,
                    names={"objc": selector.replace("Path:", "Data:")},
                    details=details,
                    parameters=given,
                    calls=m.calls[::-1],
                )
            ]
        if (
            m.implied
            or m.pattern == "run"
            or not any(p.type == "OrtRunOptions" and p.nullable for p in m.call.parameters)
        ):
            return []
        options = {"name": "run_options", "type": "OrtRunOptions", "doc": "Settings of this step, or nil."}
        if m.pattern == "step":
            return [
                replace(
                    m,
                    names={"objc": f"{selector}outputValues:runOptions:"},
                    parameters=[*m.parameters, options],
                    returns=None,
                    value=INTO,
                )
            ]
        names = {"objc": f"{selector}runOptions:" if selector.endswith(":") else f"{selector}WithRunOptions:"}
        return [replace(m, names=names, parameters=[*m.parameters, options])]

    @staticmethod
    def _as_data(p: dict[str, Any]) -> dict[str, Any]:
        """Return the parameter for the data of a model in the place of that for its path."""
        if "path" not in p["type"]:
            return p
        doc = p["doc"].replace("Path of the", "The").replace("Path of an ONNX", "The content of an ONNX")
        doc = doc.replace(" External data is found beside it.", "")
        return {
            **p,
            "type": p["type"].replace("path", "bytes"),
            "name": p["name"].replace("path", "data"),
            "doc": doc,
        }

    # ---- names ----

    into = INTO

    def mentioned(self, classes: list[Class]) -> list[str]:
        """Return the names of the other classes that the methods of some mention."""
        text = " ".join(self.declaration(cls, m) for cls in classes for m in self.methods(cls))
        known = {*WRAPPED_HANDLES.values(), *self.classes.values()} - {c.names["objc"] for c in classes}
        return sorted(name for name in known if f"{name} *" in text)

    def release(self, cls: Class) -> str:
        """Return the expression of the function that releases a class's handle."""
        return self.call(self.spec.calls[self.spec.handles[cls.handle]["release"]])

    def is_result(self, cls: Class) -> bool:
        """Whether a method gives objects of a class that it makes of the handle that its call gives."""
        methods = [m for other in self.spec.classes_in("objc") for m in self.methods(other)]
        return any(
            p.type == cls.handle for m in methods if m.pattern in ("direct", "static") for p in m.call.results
        )

    def class_of(self, handle: str) -> str:
        """Return the class of a handle's objects.

        Raises
        ------
        SpecError
            When Objective-C has no class for the handle.
        """
        found = WRAPPED_HANDLES.get(handle) or self.classes.get(handle)
        if found is None:
            raise _no_form(handle, "expected a class with a name in objc that has this handle")
        return found

    def enum(self, name: str) -> str:
        """Return the name of an enumeration."""
        return str(self.spec.enums[name].get("names", {}).get("objc", ""))

    @property
    def enums(self) -> list[dict[str, object]]:
        """The enumerations that Objective-C has."""
        return [e for e in self.spec.enums.values() if "objc" in e.get("names", {})]

    def code(self, name: str) -> str:
        """Return the name of an error code."""
        values = self.spec.enums["OrtErrorCode"]["values"]
        return next(str(v["names"]["objc"]) for v in values if v["name"] == name)

    def pieces(self, cls: Class, m: Method) -> list[str]:
        """Return the pieces of a method's selector, without that of the error."""
        if not m.implied:
            return [p for p in m.name_in("objc").split(":") if p]
        arguments: list[Argument | Result] = [*self.arguments(cls, m), *self.out_results(m)]
        base = camel(m.name)
        if not arguments:
            return [base]
        first, *rest = (self._label(a) for a in arguments)
        return [f"{base}With{first[:1].upper()}{first[1:]}", *rest]

    @staticmethod
    def _label(argument: Argument | Result) -> str:
        return camel(argument.passed.name if argument.passed else argument.name)

    # ---- types ----

    def argument_type(self, argument: Argument) -> str:
        """Return how a method takes an argument."""
        return ("nullable " if argument.nullable else "") + self.object_type(argument.kind.removesuffix("?"))

    def object_type(self, kind: str) -> str:
        """Return the type of the object or number that stands for a kind of value."""
        fixed = {
            "string": "NSString *",
            "path": "NSString *",
            "bytes": "NSData *",
            "values": "NSArray<ORTValue *> *",
            "strings": "NSArray<NSString *> *",
            "name_set": "NSSet<NSString *> *",
            "named_values": "NSDictionary<NSString *, ORTValue *> *",
        }
        if kind in fixed:
            return fixed[kind]
        if kind.endswith("[]"):
            return "NSArray<NSNumber *> *"
        handle = self._handle_of(kind)
        return f"{self.class_of(handle)} *" if handle else self.number_type(kind)

    def number_type(self, kind: str) -> str:
        """Return the type of a number, a truth value or an enumeration.

        Raises
        ------
        SpecError
            When Objective-C has none for it.
        """
        if kind in self.spec.types:
            return str(self.spec.types[kind]["names"]["objc"])
        if kind in self.spec.enums and self.enum(kind):
            return self.enum(kind)
        raise _no_form(kind, "expected a type, an enumeration or a class with a name in objc")

    def _handle_of(self, kind: str) -> str:
        if kind in self.spec.handles:
            return kind
        return next((c.handle for c in self.spec.classes if c.name == kind and c.handle), "")

    def returned(self, m: Method) -> str:
        """Return the type that a method returns."""
        if m.pattern in ("factory", "create", "create_session", "load_model"):
            return "nullable instancetype"
        if m.returns is None or m.pattern in ("option", "switch") or m.returns["type"] == "results":
            return "BOOL"
        kind = self.object_type(m.returns["type"])
        return f"nullable {kind}" if kind.endswith("*") else kind

    def is_number(self, m: Method) -> bool:
        """Whether a method returns a number, so that the error alone says that it failed."""
        if self.returned(m) == "BOOL":
            setter = m.pattern in ("option", "switch")
            return m.returns is not None and not setter and m.returns["type"] in ("bool", "flag")
        return not self.returned(m).startswith("nullable")

    def fails_by_error(self, m: Method) -> bool:
        """Whether Swift is told that the error alone says that a method failed.

        The getter of texts is among those of properties, which the original header declares all alike.
        """
        return self.is_number(m) or m.pattern == "property_get"

    def failed(self, m: Method) -> str:
        """Return what a method returns when it fails."""
        if self.returned(m).startswith("nullable"):
            return "nil"
        return "NO" if self.returned(m) == "BOOL" else "0"

    # ---- arguments and results ----

    def arguments(self, cls: Class, m: Method) -> list[Argument]:
        """Return what a method takes, without the error."""
        call = m.call
        if m.pattern == "option":
            value = call.arguments[1]
            kind = m.returns["type"] if m.returns else value.type
            doc = m.returns["doc"] if m.returns else value.doc
            return [Argument(self._name(camel(value.name)), kind, doc, passed=value)]
        if m.pattern == "switch":
            return [Argument(self._name(camel(m.name)), "bool", m.returns["doc"] if m.returns else "")]
        if m.pattern in ("direct", "static", "factory") or m.pattern.startswith("property"):
            receives = m.pattern in ("direct", "static") or m.pattern.startswith("property")
            given = [p for p in m.parameters if not (m.pattern == "static" and p["type"] == cls.name)]
            wanted = [p for p in call.arguments[1 if receives else 0 :] if not p.is_result]
            if m.pattern.startswith("property"):
                wanted = wanted[:1] if m.pattern == "property_get" else wanted
            elif len(given) < len(wanted):
                wanted = [p for p in wanted if not (p.type == "OrtRunOptions" and p.nullable)]
            return [self._argument(p, c) for p, c in zip(given, wanted, strict=True)]
        if m.pattern == "step":
            given = m.parameters if m.value == INTO else m.parameters[:1]
            return [self._argument(p, call.parameter(STEP[p["name"]])) for p in given]
        return [self._argument(p, None) for p in m.parameters]

    def _argument(self, given: dict[str, object], passed: Parameter | None) -> Argument:
        names = given.get("names")
        name = names.get("objc") if isinstance(names, dict) else None
        kind = str(given["type"])
        nullable = kind.endswith("?")
        if passed is not None and self.c.is_pointer_type(passed.type):
            nullable = nullable or passed.nullable
        return Argument(
            self._name(str(name or camel(str(given["name"])))), kind, str(given["doc"]), nullable, passed
        )

    @staticmethod
    def _name(name: str) -> str:
        return f"{name}Value" if name in TAKEN_NAMES else name

    def out_results(self, m: Method) -> list[Result]:
        """Return the results that a method stores through pointers, for it has several."""
        if m.returns is None or m.returns["type"] != "results":
            return []
        return [Result(f"{camel(p.name)}Result", argument_kind(p), p.doc, p) for p in m.call.results]

    def result(self, m: Method) -> Result:
        """Return the only result of a method's call."""
        p = m.call.results[0]
        return Result(camel(p.name), argument_kind(p), p.doc, p)

    def out_type(self, result: Result) -> str:
        """Return how a method takes the place of a result."""
        kind = self.object_type(result.kind)
        return f"{kind}_Nullable *_Nullable" if kind.endswith("*") else f"{kind} *_Nullable"

    # ---- declarations ----

    def declaration(self, cls: Class, m: Method) -> str:
        """Return a method's declaration without what ends it."""
        taken = [(self.argument_type(a), a.name) for a in self.arguments(cls, m)]
        taken += [(self.out_type(r), r.name) for r in self.out_results(m)]
        return self.declared(self.returned(m), self.pieces(cls, m), taken)

    @staticmethod
    def declared(returned: str, pieces: list[str], taken: list[tuple[str, str]]) -> str:
        """Return a declaration from its parts, broken at the colons where it is long."""
        if taken:
            parts = [f"{piece}:({kind}){name}" for piece, (kind, name) in zip(pieces, taken, strict=True)] + [
                ERROR
            ]
        else:
            parts = [f"{pieces[0]}With{ERROR[0].upper()}{ERROR[1:]}"]
        head = f"- ({returned})"
        line = head + " ".join(parts)
        if len(line) < WIDTH:
            return line
        column = len(head) + parts[0].index(":")
        aligned = [" " * max(4, column - part.index(":")) + part for part in parts[1:]]
        return "\n".join([head + parts[0], *aligned])

    def selector(self, cls: Class, m: Method) -> str:
        """Return a method's whole selector."""
        taken = len(self.arguments(cls, m)) + len(self.out_results(m))
        if taken:
            return ":".join([*self.pieces(cls, m), "error:"])
        return f"{self.pieces(cls, m)[0]}WithError:"

    def attributes(self, m: Method) -> str:
        """Return what stands behind a declaration."""
        if m.pattern == "create":
            return " ORT_SWIFT_NAME(init())"
        if self.returned(m) == "nullable instancetype":
            return " NS_DESIGNATED_INITIALIZER"
        return " ORT_FAILS_BY_ERROR" if self.fails_by_error(m) else ""

    # ---- documentation ----

    def comment(self, cls: Class, m: Method, more: list[str] | None = None) -> str:
        """Return the documentation of a method; ``more`` are parameters that the template adds."""
        lines = self.c.wrap(self.said(m.summary))
        if m.details:
            lines += ["", *self.c.wrap(self.said(m.details))]
        lines.append("")
        for name, doc in [(a.name, a.doc) for a in self.arguments(cls, m)]:
            lines += self.c.wrap(f"@param {name} {doc}", hanging=4)
        for result in self.out_results(m):
            lines += self.c.wrap(f"@param {result.name} Where to store: {result.doc} May be NULL.", hanging=4)
        for line in more or []:
            lines += self.c.wrap(line, hanging=4)
        lines.append("@param error Set when it fails. May be NULL.")
        lines += self.c.wrap(f"@return {self.return_doc(m)}", hanging=4)
        errors = self.errors(m)
        if errors:
            lines += ["", *self.c.wrap("Errors: " + "; ".join(f"{c} when {w}" for c, w in errors) + ".")]
        return self.c.block(lines)

    def said(self, text: str) -> str:
        """Return a text of the spec with the selectors of methods in the place of the calls that they stand on."""
        selectors = {
            m.call.name: f"-[{cls.names['objc']} {self.selector(cls, m)}]"
            for cls in self.spec.classes_in("objc")
            for m in reversed(self.methods(cls))
        }
        return re.sub(r"\b[A-Z]\w+\b", lambda word: selectors.get(word[0], word[0]), text)

    def return_doc(self, m: Method) -> str:
        """Return what a method returns, also when it fails, in words."""
        if self.returned(m) == "nullable instancetype":
            return "The object, or nil on failure."
        if self.returned(m) == "BOOL" and not self.is_number(m):
            return "YES, or NO on failure."
        doc = (m.returns or {"doc": ""})["doc"].rstrip(".")
        if self.returned(m) == "BOOL":
            doc = re.sub(r"\b1\b", "YES", re.sub(r"\b0\b", "NO", doc))
        return f"{doc}; {self.failed(m)} on failure."

    def errors(self, m: Method) -> list[tuple[str, str]]:
        """Return the codes that a method fails with, and when."""
        found: dict[str, list[str]] = {}
        # What only a wrong number or type could cause does not happen: the method passes the right ones.
        calls = {
            "property_set": [],
            "names": m.calls[:1],
            "create_session": m.calls[:1],
            "load_model": m.calls[:1],
        }.get(m.pattern, m.calls)
        for call in calls:
            for error in call.errors:
                whens = found.setdefault(self.code(error["code"]), [])
                if error["when"] not in whens:
                    whens.append(error["when"])
        if m.pattern == "property_get":
            found[self.code("ORT_INVALID_ARGUMENT")].append("the property has another type")
        return [(code, ", or ".join(whens)) for code, whens in found.items()]

    # ---- Swift ----

    def swift_name(self, cls: Class, m: Method) -> str:
        """Return the declaration under which Swift imports a method."""
        taken = [(a.name, self.swift_type(a.kind, a.nullable)) for a in self.arguments(cls, m)]
        taken += [(r.name, f"UnsafeMutablePointer<{self.swift_type(r.kind)}>?") for r in self.out_results(m)]
        result = ""
        if self.returned(m) != "BOOL" or self.is_number(m):
            kind = m.returns["type"] if m.returns else ""
            optional = self.fails_by_error(m) and not self.is_number(m)
            made = self.returned(m) == "nullable instancetype"
            result = "" if made else f" -> {self.swift_type(kind, optional)}"
        return self.swift_declaration(self.pieces(cls, m), taken, result)

    def swift_declaration(self, pieces: list[str], taken: list[tuple[str, str]], result: str) -> str:
        """Return a throwing declaration in Swift, with the labels that its importer makes of a selector."""
        if not taken:
            return f"init() throws{result}" if pieces == ["init"] else f"func {pieces[0]}() throws{result}"
        first = pieces[0]
        if first.startswith("init"):
            label = camel(re.sub(r"^init(With)?", "", first))
            base = "init"
        else:
            base, label = _split_at_preposition(first, taken[0][1])
        labels = [label, *pieces[1:]]
        parts = []
        for name, (own, kind) in zip(labels, taken, strict=True):
            parts.append(f"{own}: {kind}" if name == own else f"{name or '_'} {own}: {kind}")
        keyword = "" if base == "init" else "func "
        return f"{keyword}{base}({', '.join(parts)}) throws{result}"

    def swift_type(self, kind: str, nullable: bool = False) -> str:
        """Return a type as Swift imports it."""
        plain = kind.removesuffix("?")
        if plain.endswith("[]"):
            name = "[NSNumber]"
        elif plain in SWIFT_COLLECTIONS:
            name = SWIFT_COLLECTIONS[plain]
        elif self._handle_of(plain):
            name = self.class_of(self._handle_of(plain))
        elif plain in self.spec.types:
            name = str(self.spec.types[plain]["names"]["swift"])
        else:
            name = self.enum(plain)
        return f"{name}?" if nullable else name

    # ---- bodies ----

    def call(self, call: Call) -> str:
        """Return the expression of a call's function."""
        return f"{TABLES[call.table]}->{call.name}"

    def passes_itself(self, argument: Argument) -> bool:
        """Whether an argument needs no other form for C."""
        kind = argument.kind.removesuffix("?")
        return kind in ENCODED or kind in self.spec.enums

    def c_type(self, p: Parameter) -> str:
        """Return the type of a result's variable."""
        pointer = "*" if self.c.is_pointer_type(p.type) else ""
        const = "const " if p.owner == "callee" and pointer else ""
        return f"{const}{self.c.base(p.type)} {pointer}"

    def element(self, kind: str) -> str:
        """Return the C type of the elements of an array of numbers."""
        base = kind.removesuffix("[]")
        if base not in ENCODED and base not in self.spec.enums:
            raise _no_form(kind, "expected an array of numbers or of values")
        return ENCODED.get(base, "int32_t")

    def prepare(self, argument: Argument) -> list[str]:
        """Return the declaration and the condition that give an argument its C form."""
        kind = argument.kind.removesuffix("?")
        optional = "YES" if argument.nullable else "NO"
        given = f'&call, @"{argument.name}", {argument.name}'
        if kind in ("string", "path"):
            return [
                f"const char *{argument.c} = NULL;",
                f"ORTTakeText({given}, {optional}, &{argument.c})",
            ]
        if kind == "strings":
            return [
                f"const char **{argument.c} ORT_FREED = NULL;",
                f"ORTTakeTexts({given}, {optional}, &{argument.c})",
            ]
        if kind == "name_set":
            return [
                f"const char **{argument.c} ORT_FREED = NULL;",
                f"ORTTakeTextSet({given}, {optional}, &{argument.c})",
            ]
        if kind == "named_values":
            return [
                f"ORTNamedValues {argument.c} ORT_NAMED_VALUES_FREED = {{0}};",
                f"ORTTakeNamedValues({given}, {optional}, &{argument.c})",
            ]
        if kind == "values":
            return [
                f"const OrtValue **{argument.c} ORT_FREED = NULL;",
                f"ORTTakeValues({given}, {optional}, &{argument.c})",
            ]
        if kind == "bytes":
            return [
                f"const void *{argument.c} = NULL;",
                f"ORTTakeData({given}, {optional}, &{argument.c})",
            ]
        if kind.endswith("[]"):
            element = self.element(kind)
            return [
                f"{element} *{argument.c} ORT_FREED = NULL;",
                f"ORTTakeNumbers({given}, {optional}, @encode({element}), &{argument.c})",
            ]
        handle = self._handle_of(kind)
        return [
            f"{handle} *{argument.c} = NULL;",
            f"ORTTakeHandle({given}, [{self.class_of(handle)} class], {optional}, &{argument.c})",
        ]

    def passed(self, argument: Argument) -> str:
        """Return an argument as it is given to C."""
        kind = argument.kind.removesuffix("?")
        if kind in self.spec.enums:
            return f"({kind}){argument.name}"
        return argument.name if self.passes_itself(argument) else argument.c

    def pass_on(
        self, cls: Class, m: Method, receiver: str = "_handle", made: str = "", room: str = ""
    ) -> str:
        """Return the arguments of a direct call.

        ``made`` stands for the result of a call that makes an object, ``room`` for memory of the caller and its size.
        """
        if room:
            return ", ".join([receiver, *(self.passed(a) for a in self.arguments(cls, m)), room])
        arguments = {a.passed.name: a for a in self.arguments(cls, m) if a.passed}
        out = []
        for i, p in enumerate(m.call.parameters):
            arrays = m.call.arrays.get(p.name, [])
            if i == 0 and receiver:
                out.append(receiver)
            elif p.name in arguments:
                out.append(self.passed(arguments[p.name]))
            elif p.is_result and p.length and p.type != "bytes":
                out.append(f"c_{p.name}.values" if p.type == "OrtValue" else f"c_{p.name}")
            elif p.is_result:
                out.append(made or f"&c_{p.name}")
            elif p.type == "OrtAllocator":
                out.append("ORTAllocator()")
            elif p.type == "OrtRunOptions":
                out.append("NULL")
            elif arrays:
                given = arguments[arrays[0].name]
                out.append(f"[{given.name} {'length' if given.kind.startswith('bytes') else 'count'}]")
            else:
                raise _no_form(f"{p.name} of {m.call.name}", "expected a parameter of the method")
        return ", ".join(out)

    def session_arguments(self, cls: Class, m: Method) -> list[str]:
        """Return what makes a session: handles, paths, and data with its length."""
        out = []
        for a in self.arguments(cls, m):
            out.append(self.passed(a))
            if a.kind.startswith("bytes"):
                out.append(f"[{a.name} length]")
        return out

    def takes_room(self, m: Method) -> bool:
        """Whether the caller of a call gives the memory for the text that is its result."""
        return (
            bool(m.call.results)
            and m.call.results[0].type == "string"
            and bool(m.call.results[0].length)
            and m.call.results[0].nullable
        )

    def declare_result(self, m: Method, p: Parameter) -> str:
        """Return the declaration of the variable that receives a result."""
        if p.length and p.type != "bytes":
            count = camel(p.length)
            if p.type == "OrtValue":
                return f"ORTOutputs c_{p.name} ORT_OUTPUTS_FREED = ORTMakeOutputs({count});"
            element = self.element(p.type)
            return f"{element} *c_{p.name} ORT_FREED = calloc({count} + 1, sizeof({element}));"
        return f"{self.c_type(p)}c_{p.name} = {'NULL' if self.c.is_pointer_type(p.type) else '0'};"

    def c_results(self, m: Method) -> list[Parameter]:
        """Return the parameters of a call that it stores something through."""
        return [p for p in m.call.parameters if p.is_result]

    def taken(self, p: Parameter) -> str:
        """Return the expression of a result as an object or a number."""
        kind = argument_kind(p)
        if p.length and p.type != "bytes":
            if kind == "values":
                return f"ORTValuesTaking(&c_{p.name})"
            return f"ORTNumbersCopying(c_{p.name}, {camel(p.length)}, @encode({self.element(kind)}))"
        if p.type in ("string", "path"):
            return f"ORTText{'Copying' if p.owner == 'callee' else 'Taking'}(c_{p.name})"
        if p.type == "bytes":
            return f"ORTDataTaking(c_{p.name}, c_{p.length})"
        if p.type in self.spec.handles:
            return f"ORTObjectTaking([{self.class_of(p.type)} class], c_{p.name})"
        if p.type == "flag":
            return f"c_{p.name} != 0"
        return f"({self.enum(p.type)})c_{p.name}" if p.type in self.spec.enums else f"c_{p.name}"


PREPOSITIONS = ("With", "To", "For", "From", "In", "Into", "Of", "On", "Over", "By", "At", "Using")


def _split_at_preposition(piece: str, kind: str) -> tuple[str, str]:
    """Split the first piece of a selector as Swift does, into base name and label.

    The label is what follows the last preposition, and that; words that only repeat the type are dropped.
    """
    words = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+", piece)
    place = max((i for i, word in enumerate(words) if i > 0 and word in PREPOSITIONS), default=0)
    if place == 0:
        return piece, ""
    rest = words[place + 1 :]
    if rest and kind.rstrip("?").endswith("".join(rest)):
        rest = []
    if rest == ["Index"] and kind in ("Int", "UInt"):
        rest = []
    return "".join(words[:place]), "".join([words[place].lower(), *rest])
