"""How C# says what the spec describes: delegates of the tables, enumerations, and the public classes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from xml.sax.saxutils import escape

from codegen.languages import Base, File
from codegen.spec.model import Call, Class, Method, Parameter

SOURCES = "bindings/csharp/src/generated"

NAMESPACE = "Microsoft.ML.OnnxRuntime"

NAMESPACES = {"ONNXTensorElementDataType": f"{NAMESPACE}.Tensors"}
"""The enumerations that do not lie in the main namespace."""

HANDLE_CLASSES = {"OrtEnv": "OrtEnv", "OrtMemoryInfo": "OrtMemoryInfo", "OrtValue": "OrtValueHandle"}
"""The safe handles that are written by hand. Those of the spec's own classes follow from the spec."""

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


def camel(name: str) -> str:
    """``learning_rate`` as ``learningRate``; a keyword of C# with its escape."""
    first, *others = name.split("_")
    word = first + "".join(other[:1].upper() + other[1:] for other in others)
    return f"@{word}" if word in KEYWORDS else word


def pascal(name: str) -> str:
    """``learning_rate`` as ``LearningRate``."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


class Language(Base):
    """The filters of the C# templates."""

    key = "csharp"
    folders = (SOURCES,)

    def files(self) -> Iterable[File]:
        """Return the tables, the enumerations, the classes, the versions and the page."""
        for table in filter(lambda table: self.spec.calls_of(table["name"]), self.spec.tables):
            yield File("csharp/table.cs.j2", f"{SOURCES}/{table['name']}.cs", {"table": table})
        yield File("csharp/version.cs.j2", f"{SOURCES}/ApiVersion.cs")
        yield File("csharp/version.props.j2", f"{SOURCES}/Version.props")
        for enum in self.enums():
            yield File("csharp/enum.cs.j2", f"{SOURCES}/{enum['names']['csharp']}.cs", {"enum": enum})
        for cls in self.spec.classes_in("csharp"):
            yield File("csharp/class.cs.j2", f"{SOURCES}/{cls.names['csharp']}.cs", {"cls": cls})
        yield File("csharp/reference.md.j2", "docs/reference/csharp.md")

    # ---- names ----

    def enum_type(self, name: str) -> str:
        """Return an enumeration's name; those that C# does not show are plain integers."""
        return str(self.spec.enums[name].get("names", {}).get("csharp", "int"))

    def enums(self) -> list[dict[str, Any]]:
        """Return the enumerations that C# shows."""
        return [e for e in self.spec.enums.values() if "csharp" in e.get("names", {})]

    @staticmethod
    def namespace(enum: dict[str, Any]) -> str:
        """Return the namespace of an enumeration."""
        return NAMESPACES.get(enum["name"], NAMESPACE)

    def class_of(self, handle: str) -> str:
        """Return the class that owns a handle, by its name in C#; empty where none does."""
        for cls in self.spec.classes_in("csharp"):
            if cls.handle == handle:
                return cls.names["csharp"]
        return ""

    @staticmethod
    def holds_handle(cls: Class) -> bool:
        """Whether a class has its safe handle in a field, instead of being one.

        A session is a plain object with a virtual ``Dispose(bool)`` and a finalizer, as its users know it.
        """
        return any(m.pattern in ("create_session", "load_model") for m in cls.methods_in("csharp"))

    def handle_class(self, handle: str) -> str:
        """Return the type that calls of C# pass a handle as; a bare pointer where C# keeps no such object."""
        for cls in self.spec.classes_in("csharp"):
            if cls.handle == handle:
                return f"{cls.handle}Handle" if self.holds_handle(cls) else cls.names["csharp"]
        return HANDLE_CLASSES.get(handle, "IntPtr")

    @staticmethod
    def name_of(p: dict[str, Any]) -> str:
        """Return the name of a method's parameter."""
        return str(p.get("names", {}).get("csharp") or camel(p["name"]))

    # ---- the tables ----

    def native_type(self, call: Call, p: Parameter) -> str:
        """Return the type of a parameter in the delegate of its call."""
        if p.c:
            return self._native_type_as_declared(p)
        if p.is_result:
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
            # A handle that is being released is closed already, and cannot be passed as an object.
            return "IntPtr" if call.core == "release" else self.handle_class(p.type)
        if p.type in self.spec.structs or p.type in self.spec.callbacks:
            return "IntPtr"
        return f"{self._scalar(p.type)}[]" if p.length else self._scalar(p.type)

    def _native_type_as_declared(self, p: Parameter) -> str:
        depth = p.c.count("*") + p.c.count("[")
        if p.c.startswith("size_t*"):
            return "ref UIntPtr"
        if p.is_result and p.c.startswith("char*") and depth == 1:
            return "byte*"
        if p.length and depth == 2:
            return "IntPtr*"
        return "out IntPtr" if p.is_result and depth > 1 else "IntPtr"

    def _is_pointer(self, kind: str) -> bool:
        return kind in self.spec.handles or kind in self.spec.structs or kind in ("string", "path", "bytes")

    def _scalar(self, kind: str) -> str:
        if kind in self.spec.enums:
            return self.enum_type(kind)
        return str(self.spec.types[kind]["names"]["csharp"])

    def native_parameters(self, call: Call) -> str:
        """Return the parameter list of a call's delegate."""
        return ", ".join(f"{self.native_type(call, p)} {camel(p.name)}" for p in call.parameters)

    def native_result(self, call: Call) -> str:
        """Return the type that a call's delegate returns."""
        kind = call.return_type
        if kind == "void":
            return "void"
        if kind in self.spec.enums or (kind in self.spec.types and not self._is_pointer(kind)):
            return self._scalar(kind)
        return "IntPtr"

    # ---- documentation ----

    def doc(self, method: Method, cls: Class, overload: Iterable[dict[str, Any]] | None = None) -> str:
        """Return the documentation comment of a method.

        Parameters
        ----------
        overload : iterable of dict, optional
            The parameters of the overload that it stands before, where they are not those of the method.
        """
        parameters = list(method.parameters if overload is None else overload)
        parts = self._element("summary", method.summary)
        if method.details:
            parts += self._element("remarks", method.details)
        for p in parameters:
            parts += self._element("param", p["doc"], f' name="{self.name_of(p).lstrip("@")}"')
        if method.returns and method.pattern not in ("option", "switch"):
            parts += self._element("returns", self.returned_doc(method))
        if method.pattern in ("option", "switch"):
            parts += self._element("value", method.returns["doc"] if method.returns else method.summary)
        parts += self.exceptions(method, cls, parameters)
        return self._comment(parts, 8)

    @staticmethod
    def returned_doc(method: Method) -> str:
        """Return what a method returns, in words; a flag of the call is a truth value of the method."""
        doc = method.returns["doc"] if method.returns else ""
        if method.returns and method.returns["type"] == "results":
            return " ".join(f"{pascal(p.name)}: {p.doc}" for p in method.call.results)
        if method.returns and method.returns["type"] == "flag":
            doc = re.sub(r"\b0\b", "false", re.sub(r"\b1\b", "true", doc))
        return doc[:1].upper() + doc[1:]

    def step_doc(self, method: Method, cls: Class, parameters: list[dict[str, Any]], returns: bool) -> str:
        """Return the documentation comment of one of the overloads of a step.

        Parameters
        ----------
        returns : bool
            Whether the overload returns the outputs, instead of writing into the caller's.
        """
        parts = self._element("summary", method.summary)
        if method.details:
            parts += self._element("remarks", method.details)
        for p in parameters:
            parts += self._element("param", p["doc"], f' name="{self.name_of(p)}"')
        if returns and method.returns:
            parts += self._element("returns", f"{method.returns['doc']} The caller disposes of them.")
        parts += self.exceptions(method, cls, parameters)
        return self._comment(parts, 8)

    @staticmethod
    def _comment(lines: list[str], indent: int) -> str:
        return "\n".join(f"{' ' * indent}/// {line}" for line in lines)

    def exceptions(self, method: Method, cls: Class, parameters: list[dict[str, Any]]) -> list[str]:
        """Return the elements that say what a method throws."""
        out = []
        references = [p for p in parameters if self._is_required(p)]
        if references:
            names = _listed([f'<paramref name="{self.name_of(p).lstrip("@")}"/>' for p in references])
            out += self._element(
                "exception", f"When {names} is null.", ' cref="System.ArgumentNullException"', escaped=True
            )
        sizes = [p for p in parameters if p["type"] == "size"]
        if sizes:
            names = _listed([f'<paramref name="{self.name_of(p)}"/>' for p in sizes])
            when = f"When {names} is negative."
            out += self._element(
                "exception", when, ' cref="System.ArgumentOutOfRangeException"', escaped=True
            )
        errors = self._errors(method)
        if errors:
            reasons = "; ".join(f"{self._code(e['code'])} when {escape(e['when'])}" for e in errors)
            out += self._element("exception", reasons + ".", ' cref="OnnxRuntimeException"', escaped=True)
        if method.pattern not in ("create", "create_session", "load_model", "factory", "static"):
            out += self._element(
                "exception", "When the object was disposed of.", ' cref="System.ObjectDisposedException"'
            )
        return out

    def errors(self, method: Method) -> list[str]:
        """Return the errors of a method, for the reference page."""
        return [f"`{self._code(e['code'])}` when {e['when']}" for e in self._errors(method)]

    @staticmethod
    def _errors(method: Method) -> list[dict[str, str]]:
        """Return the errors that a caller of a method can meet: numbers of names and types of values are right."""
        calls = {
            "step": method.calls[:1],
            "names": method.calls[:1],
            "value_infos": method.calls[:1],
            "names_by_flag": method.calls[::2],
            "property_set": [],
        }.get(method.pattern, method.calls)
        return list({(e["code"], e["when"]): e for call in calls for e in call.errors}.values())

    def _code(self, code: str) -> str:
        value = next(v for v in self.spec.enums["OrtErrorCode"]["values"] if v["name"] == code)
        return str(value["names"]["csharp"])

    def _is_required(self, p: dict[str, Any]) -> bool:
        kind = str(p["type"])
        is_value = kind in self.spec.enums or (kind in self.spec.types and not self._is_pointer(kind))
        return not (is_value or kind in ("path?", "RunOptions", "OrtEnv") or p.get("nullable"))

    @staticmethod
    def _element(tag: str, text: str, attributes: str = "", escaped: bool = False) -> list[str]:
        content = text if escaped else escape(text)
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
        fixed = {
            "bool": "bool",
            "flag": "bool",
            "size": "long",
            "path": "string",
            "path?": "string",
            "bytes": "byte[]",
            "property": "object",
            "strings": "List<string>" if result else "IReadOnlyCollection<string>",
            "node_args": "IReadOnlyDictionary<string, NodeMetadata>",
            "values": "IDisposableReadOnlyCollection<OrtValue>"
            if result
            else "IReadOnlyCollection<OrtValue>",
        }
        if kind in fixed:
            return fixed[kind]
        if kind.endswith("[]"):
            return f"{self.public_type(kind[:-2])}[]"
        if kind in self.spec.enums:
            return self.enum_type(kind)
        for cls in self.spec.classes_in("csharp"):
            if kind in (cls.name, cls.handle):
                return cls.names["csharp"]
        return str(self.spec.types[kind]["names"]["csharp"]) if kind in self.spec.types else kind

    def result_type(self, method: Method) -> str:
        """Return a method's type; several results are a tuple."""
        if method.returns is None:
            return "void"
        if method.returns["type"] == "results":
            fields = (
                f"{self.public_type(self._kind(p), result=True)} {pascal(p.name)}"
                for p in method.call.results
            )
            return f"({', '.join(fields)})"
        return self.public_type(method.returns["type"], result=True)

    @staticmethod
    def _kind(p: Parameter) -> str:
        if p.length and p.type != "bytes":
            return {"string": "strings", "OrtValue": "values"}.get(p.type, f"{p.type}[]")
        return p.type

    def signature(self, parameters: Iterable[dict[str, Any]]) -> str:
        """Return a parameter list."""
        defaults = {"False": "false", "True": "true", "None": "null"}
        parts = []
        for p in parameters:
            default = f" = {defaults.get(p['default'], p['default'])}" if "default" in p else ""
            parts.append(f"{self.public_type(p['type'])} {self.name_of(p)}{default}")
        return ", ".join(parts)

    def overloads(self, method: Method) -> list[list[dict[str, Any]]]:
        """Return the parameter lists of a method: where its call has run options that it does not list, one more."""
        lists = [list(method.parameters)]
        options = next((p for p in method.call.parameters if p.type == "OrtRunOptions" and p.nullable), None)
        if options is not None and not any(p["type"] == "RunOptions" for p in method.parameters):
            run_options = {"name": "options", "type": "RunOptions", "doc": options.doc}
            lists.append([run_options, *method.parameters])
        return lists

    def using(self, parameters: Iterable[dict[str, Any]]) -> list[str]:
        """Return the variables that hold an argument's memory during a call."""
        holders = {"strings": "NativeTexts", "values": "NativeValues"}
        return [
            f"var {self._holder(p)} = new {holders[p['type']]}({self.name_of(p)}, nameof({self.name_of(p)}))"
            for p in parameters
            if p["type"] in holders
        ]

    def _holder(self, p: dict[str, Any]) -> str:
        return f"native{self.name_of(p).lstrip('@')[:1].upper()}{self.name_of(p).lstrip('@')[1:]}"

    def same_counts(self, method: Method) -> list[str]:
        """Return the checks that arrays with one length in common are of that one length."""
        out = []
        given = self._given(method, method.parameters)
        for arrays in method.call.arrays.values():
            counted = [given[a.name] for a in arrays if a.name in given]
            for other in counted[1:]:
                first = counted[0]
                out.append(
                    f"Arguments.SameCount({self._count(first)}, nameof({self.name_of(first)}), "
                    f"{self._count(other)}, nameof({self.name_of(other)}));"
                )
        return out

    def _count(self, p: dict[str, Any]) -> str:
        if p["type"] in ("strings", "values"):
            return f"{self._holder(p)}.Count"
        return f"Arguments.Length({self.name_of(p)})"

    def _given(self, method: Method, parameters: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the method's parameters by the name of the call's parameter that each becomes."""
        rest = [p for p in parameters if p["type"] != "RunOptions"]
        receiver = method.pattern not in ("static", "factory")
        wanted = [
            p for p in method.call.arguments[1 if receiver else 0 :] if not self._comes_from_elsewhere(p)
        ]
        return {p.name: given for p, given in zip(wanted, rest, strict=True)}

    @staticmethod
    def _comes_from_elsewhere(p: Parameter) -> bool:
        return p.type == "OrtRunOptions" and p.nullable

    def pass_on(self, method: Method, parameters: list[dict[str, Any]]) -> str:
        """Return the arguments of the call: the object, the method's, and what the method does not have."""
        call = method.call
        receiver = method.pattern not in ("static", "factory")
        given = self._given(method, parameters)
        options = next((self.name_of(p) for p in parameters if p["type"] == "RunOptions"), "")
        out = []
        for i, p in enumerate(call.parameters):
            arrays = call.arrays.get(p.name, [])
            if i == 0 and receiver:
                out.append("Live")
            elif p.is_result:
                out.append(f"out {self._native_local(p)} {self.result_name(method, p)}")
            elif p.type == "OrtAllocator":
                out.append("OrtAllocator.Default")
            elif self._comes_from_elsewhere(p):
                out.append(f"({options} ?? RunOptions.None).Live" if options else "RunOptions.None")
            elif arrays:
                out.append(f"(UIntPtr){self._count(given[arrays[0].name])}")
            else:
                out.append(self._passed(given[p.name]))
        return ", ".join(out)

    def _native_local(self, p: Parameter) -> str:
        return "IntPtr" if self._is_pointer(p.type) else self._scalar(p.type)

    def result_name(self, method: Method, p: Parameter) -> str:
        """Return the variable that receives a result of the call."""
        if [p] == method.call.results:
            return "result"
        return f"{camel(p.name).lstrip('@')}Result"

    def _passed(self, p: dict[str, Any]) -> str:
        name, kind = self.name_of(p), p["type"]
        by_kind = {
            "string": f"NativeText.Utf8({name}, nameof({name}))",
            "path": f"NativeText.Path({name}, nameof({name}))",
            "path?": f"NativeText.PathOrNull({name}, nameof({name}))",
            "strings": f"{self._holder(p)}.Pointers",
            "values": f"{self._holder(p)}.Pointers",
            "bool": f"Arguments.Byte({name})",
            "flag": f"{name} ? 1 : 0",
            "bool[]": f"Arguments.Bytes({name}, nameof({name}))",
            "size": f"Arguments.Size({name}, nameof({name}))",
        }
        if kind in by_kind:
            return by_kind[kind]
        if kind == "bytes" or kind.endswith("[]"):
            return f"Arguments.NotNull({name}, nameof({name}))"
        if kind == "SessionOptions" and p.get("nullable"):
            return f"({name} ?? SessionOptions.Default).Live"
        if kind == "OrtValue" or any(kind in (c.name, c.handle) for c in self.spec.classes_in("csharp")):
            return f"Arguments.NotNull({name}, nameof({name})).Live"
        return name

    def returned(self, method: Method) -> str:
        """Return the expression of a method's result or results."""
        values = [self._taken(method, p) for p in method.call.results]
        return values[0] if len(values) == 1 else f"({', '.join(values)})"

    def _taken(self, method: Method, p: Parameter) -> str:
        name = self.result_name(method, p)
        if p.type == "OrtValue":
            return f"new OrtValue({name})"
        if p.type == "OrtTensorTypeAndShapeInfo":
            return f"OrtTensorTypeAndShapeInfo.{'Read' if p.owner == 'callee' else 'Take'}({name})"
        if p.type == "string":
            return f"NativeText.{'Read' if p.owner == 'callee' else 'Take'}({name})"
        if p.type == "bytes" and p.length:
            return f"NativeMemory.Take({name}, {camel(p.length)}Result)"
        if p.type in ("bool", "flag"):
            return f"{name} != 0"
        if p.type == "size":
            return f"(long){name}"
        owner = self.class_of(p.type)
        return f"new {owner}({name})" if owner else name

    def fills_room(self, method: Method) -> bool:
        """Whether the caller of a method's call gives the room for a text: one call asks how much, the next fills it."""
        return any(p.is_result and p.type == "string" and p.length for p in method.call.results)

    @staticmethod
    def invoke(call: Call, arguments: str, indent: int) -> str:
        """Return the statement of a call, broken between arguments where it is long."""
        line = f"NativeStatus.ThrowOnError({call.table}.{call.name}({arguments}));"
        if indent + len(line) <= 110:
            return line
        lines = [f"NativeStatus.ThrowOnError({call.table}.{call.name}("]
        margin = " " * (indent + 4)
        for argument in _split(arguments):
            if len(lines) > 1 and len(lines[-1]) + len(argument) < 105:
                lines[-1] += f" {argument},"
            else:
                lines.append(f"{margin}{argument},")
        return "\n".join(lines).removesuffix(",") + "));"

    # ---- the reference page ----

    def declarations(self, cls: Class, method: Method) -> list[str]:
        """Return the declarations that a method becomes."""
        name = method.name_in("csharp")
        if method.pattern in ("option", "switch"):
            return [f"{self.result_type(method)} {name} {{ get; set; }}"]
        if method.pattern == "create":
            return [f"{name}()"]
        if method.pattern == "create_session":
            return [f"{name}({self.signature(c['parameters'])})" for c in self.session_constructors(method)]
        if method.pattern == "load_model":
            return [f"{name}({self.signature(c['parameters'])})" for c in self.model_constructors(method)]
        if method.pattern == "value_infos":
            return [f"{self.result_type(method)} {name} {{ get; }}"]
        if method.pattern == "names" and method.value == "property":
            return [f"IReadOnlyList<string> {name} {{ get; }}"]
        if method.pattern == "run":
            return [run["declaration"] for run in self.runs(method)]
        if method.pattern == "property_set":
            key, value = method.parameters
            kinds = ("int64", "float", "string")
            return [f"void {name}({self.signature([key, {**value, 'type': kind}])})" for kind in kinds]
        if method.pattern == "step":
            return self._step_declarations(name, *map(self.name_of, method.parameters))
        static = "static " if method.pattern in ("static", "factory") else ""
        result = self.result_type(method)
        return [f"{static}{result} {name}({self.signature(ps)})" for ps in self.overloads(method)]

    @staticmethod
    def _step_declarations(name: str, inputs: str, outputs: str) -> list[str]:
        fixed = "IReadOnlyCollection<FixedBufferOnnxValue>"
        out = []
        for options in ("RunOptions options, ", ""):
            returned = "IDisposableReadOnlyCollection<DisposableNamedOnnxValue>"
            out.append(f"{returned} {name}({options}{fixed} {inputs})")
            out.append(f"void {name}({options}{fixed} {inputs}, {fixed} {outputs})")
        out.append(f"IDisposableReadOnlyCollection<OrtValue> {name}(IReadOnlyCollection<OrtValue> {inputs})")
        return out

    def documented_parameters(self, method: Method) -> list[dict[str, Any]]:
        """Return the parameters of all declarations of a method, each once."""
        lists = [method.parameters]
        if method.pattern == "create_session":
            lists = [c["parameters"] for c in self.session_constructors(method)[2:]]
        elif method.pattern == "load_model":
            lists = [c["parameters"] for c in self.model_constructors(method)]
        elif method.pattern == "run":
            lists = [run["parameters"] for run in self.runs(method)]
        elif method.pattern == "step":
            options = {
                "name": "options",
                "type": "RunOptions",
                "doc": method.call.parameter("run_options").doc,
            }
            lists = [[*method.parameters, options]]
        elif method.pattern == "direct":
            lists = self.overloads(method)
        return list({p["name"]: p for parameters in lists for p in parameters}.values())

    # ---- options ----

    def default_of(self, method: Method) -> str:
        """Return the value of an option before it is set."""
        kind = method.returns["type"] if method.returns else ""
        if kind in self.spec.enums:
            values = self.spec.enums[kind]["values"]
            value = next(v for v in values if method.value in (str(v["value"]), v["name"]))
            return f"{self.enum_type(kind)}.{value['names']['csharp']}"
        return {"False": "false", "True": "true"}.get(method.value, method.value)

    def option_argument(self, method: Method) -> str:
        """Return what the setter of an option passes to its call."""
        kind = method.returns["type"] if method.returns else ""
        wanted = method.call.arguments[1].type
        if kind == "string":
            return "NativeText.Utf8(value, nameof(value))"
        if kind == "bool":
            return "Arguments.Byte(value)"
        return "(int)value" if kind in self.spec.enums and wanted not in self.spec.enums else "value"

    def field(self, method: Method) -> str:
        """Return the field behind a property."""
        name = method.name_in("csharp")
        word = name[:1].lower() + name[1:]
        return f"@{word}" if word in KEYWORDS else word

    # ---- construction of sessions ----

    def session_constructors(self, method: Method) -> list[dict[str, Any]]:
        """Return the constructors of a session, each with its parameters and what it gives the call.

        The environment is that of the process. There is one with every parameter, one without options, one
        without options and eval model, and one from models in memory.
        """
        files, buffers = method.calls
        every = [
            {**p, "type": "SessionOptions", "nullable": True} if p["type"] == "SessionOptions?" else p
            for p in method.parameters
            if p["type"] != "OrtEnv"
        ]
        required = [p for p in every if p["type"] != "SessionOptions"]
        first_optional = next(p for p in required if p["type"] == "path?")
        without_eval = [p for p in required if p is not first_optional]
        in_memory: list[dict[str, Any]] = [p for p in every if "path" not in p["type"]]
        in_memory += [
            {"name": p.name, "type": "bytes", "doc": p.doc, "nullable": p.nullable}
            for p in buffers.arguments
            if p.type == "bytes"
        ]
        wanted = [(files, ps) for ps in (without_eval, required, every)] + [(buffers, in_memory)]
        return [{"call": c, "parameters": ps, "method": replace(method, calls=[c])} for c, ps in wanted]

    def session_arguments(self, method: Method, constructor: dict[str, Any]) -> str:
        """Return the arguments of the call that makes a session."""
        given = {p["name"]: p for p in constructor["parameters"]}
        options = next((p for p in constructor["parameters"] if p["type"] == "SessionOptions"), None)
        state = next(p for p in constructor["parameters"] if p["type"] == "CheckpointState")
        out = []
        for p in constructor["call"].parameters:
            if p.is_result:
                out.append("out IntPtr session")
            elif p.type == "OrtEnv":
                out.append("OrtEnv.Instance()")
            elif p.type == "OrtSessionOptions":
                out.append(self._passed(options) if options else "SessionOptions.Default")
            elif p.type == "OrtCheckpointState":
                out.append(self._passed(state))
            elif p.type == "size":
                array = constructor["call"].arrays[p.name][0]
                out.append(f"(UIntPtr)Arguments.Length({self.name_of(given[array.name])})")
            elif p.name not in given:
                out.append("null")
            elif p.type == "bytes" and p.nullable:
                out.append(self.name_of(given[p.name]))
            else:
                out.append(self._passed(given[p.name]))
        return ", ".join(out)

    # ---- forward sessions ----

    def model_constructors(self, method: Method) -> list[dict[str, Any]]:
        """Return the constructors of a forward session: from a file and from memory, with options and without."""
        path = next(p for p in method.parameters if p["type"] == "path")
        options = next(p for p in method.parameters if p["type"] == "SessionOptions?")
        options = {**options, "type": "SessionOptions"}
        data = method.calls[1].parameter("model_data")
        model = {"name": "model", "type": "bytes", "doc": data.doc}
        out = []
        for call, given in zip(method.calls, (path, model), strict=True):
            name = self.name_of(given)
            passed = self._passed(given)
            if given["type"] == "bytes":
                passed += f", (UIntPtr)Arguments.Length({name})"
            for some in ([given], [given, options]):
                chosen = self._passed(options) if options in some else "SessionOptions.Default"
                out.append(
                    {
                        "method": replace(method, calls=[call]),
                        "call": call,
                        "parameters": some,
                        "arguments": f"OrtEnv.Instance(), {passed}, {chosen}, out IntPtr session",
                    }
                )
        return out

    def runs(self, method: Method) -> list[dict[str, Any]]:
        """Return the forms of a run: named tensors of C#, values or buffers in; new ones or the caller's out.

        Each has its parameters, the documentation that stands before it, its declaration, and the method of
        ``ForwardRun`` that does the work.
        """
        docs = {p["name"]: p["doc"] for p in method.parameters}
        options = {"name": "options", "type": "RunOptions", "doc": docs["run_options"]}
        run_options = {**options, "name": "run_options"}
        texts = "IReadOnlyCollection<string>"
        input_names = {"name": "input_names", "kind": texts, "doc": "Names of the inputs."}
        output_names = {"name": "output_names", "kind": texts, "doc": "Names of the wanted outputs."}
        values, named = "IReadOnlyCollection<OrtValue>", "IReadOnlyCollection<NamedOnnxValue>"
        buffers = "IReadOnlyCollection<FixedBufferOnnxValue>"
        inputs = {"name": "input_values", "doc": "The inputs, in the order of their names."}
        given = {"name": "inputs", "doc": docs["inputs"]}
        if method.value == "into":
            outputs = {
                "name": "output_values",
                "doc": "Tensors that receive the outputs, in the order of their names.",
            }
            lists = [
                (
                    [input_names, {**inputs, "kind": kind}, output_names, {**outputs, "kind": kind}],
                    kind == values,
                )
                for kind in (values, buffers)
            ]
            forms = [
                ("void", "RunInto", [run_options, *ps] if with_options else ps) for ps, with_options in lists
            ]
            forms.append(("void", "RunInto", [*lists[1][0], options]))
        else:
            tensors, disposable = (
                f"IDisposableReadOnlyCollection<{kind}>" for kind in ("OrtValue", "DisposableNamedOnnxValue")
            )
            dictionary = {**given, "kind": "IReadOnlyDictionary<string, OrtValue>"}
            listed = {**given, "kind": named}
            fixed = [input_names, {**inputs, "kind": buffers}]
            forms = [
                (disposable, "RunNamed", [listed]),
                (disposable, "RunNamed", [listed, output_names]),
                (disposable, "RunNamed", [listed, output_names, options]),
                (disposable, "RunNamed", fixed),
                (disposable, "RunNamed", [*fixed, output_names]),
                (disposable, "RunNamed", [*fixed, output_names, options]),
                (tensors, "Run", [run_options, input_names, {**inputs, "kind": values}, output_names]),
                (tensors, "Run", [run_options, dictionary, output_names]),
            ]
        return [self._run_form(method, *form) for form in forms]

    def _run_form(
        self, method: Method, returned: str, work: str, parameters: list[dict[str, Any]]
    ) -> dict[str, Any]:
        name = method.name_in("csharp")
        kinds = {self.name_of(p): p.get("kind", "RunOptions") for p in parameters}
        signature = ", ".join(f"{kind} {own}" for own, kind in kinds.items())
        options = next((own for own, kind in kinds.items() if kind == "RunOptions"), "null")
        passed = [own for own in kinds if own != options]
        if "outputNames" not in kinds:
            passed.append("OutputNames")
        return {
            "parameters": parameters,
            "returned": returned,
            "declaration": f"{returned} {name}({signature})",
            "head": f"public {returned} {name}({signature})",
            "work": f"ForwardRun.{work}(Live, {options}, {', '.join(passed)})",
        }

    def run_doc(self, method: Method, cls: Class, run: dict[str, Any]) -> str:
        """Return the documentation comment of one form of a run."""
        parts = self._element("summary", method.summary)
        if method.details:
            parts += self._element("remarks", method.details)
        for p in run["parameters"]:
            parts += self._element("param", p["doc"], f' name="{self.name_of(p)}"')
        if run["returned"] != "void":
            doc = "The outputs, in the order of their names. The caller disposes of them."
            parts += self._element("returns", doc)
        references = [
            {"name": p["name"], "type": p.get("kind", "RunOptions"), "doc": ""} for p in run["parameters"]
        ]
        parts += self.exceptions(method, cls, references)
        return self._comment(parts, 8)


def _split(arguments: str) -> list[str]:
    """Arguments as a list: broken at the commas that stand in no bracket."""
    out = [""]
    depth = 0
    for letter in arguments:
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            out.append("")
        else:
            out[-1] += letter
    return [argument.strip() for argument in out]


def _listed(words: list[str]) -> str:
    """Words as ``a, b or c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
