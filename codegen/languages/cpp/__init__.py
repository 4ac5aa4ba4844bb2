"""C++: the classes of the wrapper headers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

from codegen import lower
from codegen.languages import Action, Base, File, broken
from codegen.languages.cpp.plain import Plain
from codegen.lower import Operand
from codegen.spec.model import Call, Class, Command, Given, Method, Parameter
from codegen.spec.names import pascal

TABLES = {
    "general": "GetApi()",
    "compile": "GetCompileApi()",
    "model_editor": "GetModelEditorApi()",
    "training": "GetTrainingApi()",
    "extension": "GetOrtrainApi()",
}

MIXINS = (
    "memory_info",
    "tensor_type_and_shape_info",
    "type_info",
    "value",
    "op_attr",
    "value_info",
    "node",
    "graph",
    "kernel_info",
)
"""Classes rendered into a class template, whose handle belongs to the template argument."""


class Language(Base):
    """The filters of the C++ wrapper templates."""

    key = "cpp"
    released = "the destructor"
    folders = ("tests/scenarios/generated/cpp",)
    constructors = True
    overloads = True
    settings = lower.SETTINGS

    def files(self) -> Iterable[File]:
        """Return the headers."""
        for header in ("onnxruntime_cxx_api.h", "onnxruntime_float16.h", "onnxruntime_training_cxx_api.h"):
            yield File(f"cpp/{header}.j2", f"core/include/{header}")
        yield File("cpp/commands.h.j2", "tests/scenarios/generated/cpp/commands.h")

    # ---- names and types ----

    def call(self, call: Call) -> str:
        """Return the expression of a call's function."""
        return f"{TABLES[call.table]}.{self.c.function(call)}"

    def type_of(self, kind: str) -> str:
        """Return the type of a value of a kind."""
        cls = self.class_of(kind) if kind not in self.types else None
        return cls.own if cls else self.types.get(kind) or self.c.base(kind)

    def argument_type(self, m: Method, p: Given) -> str:
        """Return the type of a parameter."""
        kind = self.type_of(p.type)
        if p.type in ("memory", "path_pointer", "text_pointer", "pointer") or p.type in self.spec.callbacks:
            return kind
        if p.type == "path" and p.nullable:
            return "const OptionalPath&"
        if p.type in self.spec.handles or self.class_of(p.type):
            return f"{kind}&" if self.changes(m, p) else f"const {kind}&"
        by_value = p.type in self.spec.enums or p.type in (
            "bool",
            "flag",
            "int",
            "int64",
            "uint32",
            "uint64",
            "size",
            "float",
        )
        return kind if by_value else f"const {kind}&"

    # ---- methods that take what their call takes in C ----

    @cached_property
    def plain(self) -> dict[str, list[Plain]]:
        """The methods of each class whose parameters are those of their call, by the name of the class."""
        return {cls.name: [*self._plain_of(cls)] for cls in self.classes}

    def _plain_of(self, cls: Class) -> Iterable[Plain]:
        for name, over in self.own["classes"][cls.name].get("plain", {}).items():
            own: dict[str, Any] = {"name": over} if isinstance(over, str) else over or {}
            call = self.spec.calls[name]
            overrides = {
                p: {"name": differs} if isinstance(differs, str) else differs
                for p, differs in own.get("parameters", {}).items()
            }
            default = pascal(name.removeprefix(f"{cls.prefix or cls.handle}_"), self.words)
            yield Plain(self, cls, call, own.get("name") or default, overrides)

    def plain_method(self, p: Plain, handle: str = "p_") -> str:
        """Return the definition of such a method, in each of its forms.

        In a class template, whose ``handle`` is another expression, a later method is only declared.
        """
        texts = []
        for form in p.forms(handle):
            notes = (form.parameters, p.returned_doc, p.call.errors)
            doc = self._documented(p.call.summary, p.call.details, *notes)
            if p.is_later and handle != "p_":
                texts.append(f"{doc}\n{form.declaration};")
            else:
                texts.append("\n".join([doc, f"{form.declaration} {{", *form.statements, "  }"]))
        return "\n\n".join(texts)

    def setting(self, m: Method) -> Given:
        """Return the parameter of a setting, which has the same type as in C."""
        value = super().setting(m)
        kind = value.passed.type if value.passed else "bool"
        return replace(value, type="text_pointer" if kind == "string" else kind)

    def signature(self, m: Method) -> list[str]:
        """Return the parameter list of a method."""
        given = lower.arguments(m) if m.pattern not in lower.SETTINGS else m.parameters
        parts = []
        for i, p in enumerate(given):
            part = f"{self.argument_type(m, p)} {p.own}"
            if p.has_default:
                part += f" = {self.literal(p)}"
            elif p.type in ("path", "bytes") and all(q.nullable for q in given[i:]):
                part += " = OptionalPath()" if p.type == "path" else " = {}"
            parts.append(part)
            if p.type == "memory":
                parts.append(f"size_t {p.own}_length")
        return parts

    def literal(self, p: Given) -> str:
        """Return the default of a parameter."""
        if p.type in self.spec.enums:
            return self.c.value_name(p.type, p.default)
        if isinstance(p.default, str):
            return f'"{p.default}"'
        return str(p.default).lower() if isinstance(p.default, bool) else str(p.default)

    def result_type(self, m: Method, cls: Class) -> str:
        """Return a method's type. Methods of settings without a result return their object."""
        if m.returns is None or m.pattern == "option":
            return f"{cls.own}&" if self.has_settings(cls) else "void"
        if m.returns.type == "results":
            return f"std::tuple<{', '.join(self.type_of(p.type) for p in m.call.results)}>"
        view = m.pattern == "direct" and self._is_view(m.call.results[0])
        return f"{'Const' if view else ''}{self.type_of(m.returns.type)}"

    @staticmethod
    def has_settings(cls: Class) -> bool:
        """Whether methods return their object, so that a program sets several things in one statement."""
        return cls.has("option") or cls.name.endswith("_options")

    def _is_view(self, p: Parameter) -> bool:
        """Whether a result is a handle that another object owns, which has a class."""
        return p.owner == "callee" and p.type in self.spec.handles

    def returns_itself(self, cls: Class, m: Method) -> bool:
        """Whether a method returns its object, because there is nothing else to return."""
        return not self.is_constructor(cls, m) and self.result_type(m, cls) == f"{cls.own}&"

    def is_const(self, cls: Class, m: Method) -> bool:
        """Whether a method does not change its object."""
        if self.returns_itself(cls, m):
            return False
        if m.pattern in ("names", "numbers", "property_get"):
            return True
        return m.pattern == "direct" and not m.call.parameters[0].mutable

    def declaration(self, cls: Class, m: Method, indent: int = 0) -> str:
        """Return the declaration of a method, without body or semicolon."""
        margin = " " * indent
        if m.pattern == "allocated_name":
            const = " const" if not m.call.parameters[0].mutable else ""
            parts = [*self.signature(m), "OrtAllocator* allocator"]
            return f"{margin}AllocatedStringPtr {m.own}({', '.join(parts)}){const}"
        if m.pattern in ("run", "run_into"):
            into = m.pattern == "run_into"
            inputs = "const char* const* input_names, const Value* input_values, size_t input_count"
            outputs = "Value* output_values, " if into else ""
            return (
                f"{margin}{'void' if into else 'std::vector<Value>'} {m.own}(const RunOptions& run_options, {inputs}, "
                f"const char* const* output_names, {outputs}size_t output_count)"
            )
        if self.is_constructor(cls, m):
            required = [p for p in m.parameters if not p.has_default]
            head = f"{'explicit ' if m.parameters and len(required) < 2 else ''}{m.own}"
        else:
            static = "static " if m.pattern in ("create", "static") else ""
            head = f"{static}{self.result_type(m, cls)} {m.own}"
        return broken(margin + head, self.signature(m), " const" if self.is_const(cls, m) else "", 130)

    def definition(self, cls: Class, m: Method, name: str) -> str:
        """Return the head of a method that is defined outside of its class."""
        tail = " const" if self.is_const(cls, m) else ""
        return f"inline {self.result_type(m, cls)} {name}::{m.own}({', '.join(self.signature(m))}){tail}"

    @property
    def releases(self) -> list[tuple[str, Call]]:
        """The types of objects that the general calls create, with the calls that release them."""
        handles = [h for h in self.spec.handles.values() if h["table"] == "general" and "release" in h]
        found = [(h["name"], self.spec.calls[h["release"]]) for h in handles]
        return [*found, ("allocator", self.spec.calls["release_allocator"])]

    def has_factory(self, cls: Class) -> bool:
        """Whether a static method creates objects of a class."""
        return any(m.pattern == "create" and not self.is_constructor(cls, m) for m in cls.methods)

    # ---- documentation ----

    def doc(self, text: str, indent: int = 0) -> str:
        """Return a text as a documentation comment."""
        return self.c.block(self.c.wrap(self.said(text)), indent)

    def method_doc(self, cls: Class, m: Method) -> str:
        """Return the documentation comment of a method: text, parameters, result and errors."""
        has_own_form = m.pattern in ("run", "run_into")
        parameters = [] if has_own_form else [(p.own, p.doc) for p in m.parameters]
        if m.pattern == "allocated_name":
            parameters.append(("allocator", "Allocates the text."))
        gives = m.returns and m.pattern != "option" and not self.is_constructor(cls, m)
        returned = m.returns.doc if m.returns and gives else ""
        return self._documented(m.summary, m.details, parameters, returned, lower.errors(m))

    def _documented(
        self,
        summary: str,
        details: str,
        parameters: Iterable[tuple[str, str]],
        returned: str,
        errors: list[dict[str, str]],
    ) -> str:
        """Return the documentation comment of a member, whose parameters are given with their texts."""
        notes = [f"\\param {name} {self.said(doc)}" for name, doc in parameters]
        notes += [f"\\return {self.said(returned)}"] if returned else []
        for e in errors:
            code = self.c.value_name("error_code", e["code"])
            notes.append(f"\\throws Exception with {code} when {self.said(e['when'])}.")
        lines = self.c.wrap(self.said(summary))
        if details:
            lines += ["", *self.c.wrap(self.said(details))]
        if notes:
            lines += ["", *(line for note in notes for line in self.c.wrap(note, hanging=4))]
        return self.c.block(lines, 2)

    def reached(self, call: Call) -> list[str]:
        """Return the names of the methods that use a call."""
        plain = [f"{p.cls.own}::{p.own}" for made in self.plain.values() for p in made if p.call is call]
        return [*(f"{cls.own}::{m.own}" for cls, m in self.methods_on(call)), *plain]

    # ---- commands of the scenarios ----

    tokens = {  # noqa: RUF012
        "state": "state({t})",
        "session": "session({t})",
        "tensor": "tensor({t})",
        "tensors": "borrowed(a, {i}).values()",
        "counted_tensors": "counted(a, {i}).values()",
        "integer": "read_integer({t})",
        "number": "read_number({t})",
        "path": "path_of({t})",
        "path_or_none": "path_or_none({t})",
        "text": "{t}",
        "texts": "std::vector<std::string>(a.begin() + {i}, a.end())",
        "content": "content",
        "model": "model({t})",
        "counted_pairs": "inputs.names(), inputs.values(), inputs.size()",
        "rest_pairs": "outputs.names(), outputs.values(), outputs.size()",
        "values_of_rest_pairs": "outputs.all()",
        "names_of_rest_pairs": "outputs.texts()",
        "rest_texts": "names.names(), names.size()",
        "names_of_rest_texts": "names.texts()",
        "choice": 'flag({t}, "{yes}", "{no}")',
    }
    ambient = {"env": "env_", "session_options": "Ort::SessionOptions()", "run_options": "Ort::RunOptions()"}  # noqa: RUF012

    def arguments_of(self, m: Method) -> list[Given]:
        """Return the arguments that a command passes to a method; run options come first."""
        return sorted(m.parameters, key=lambda p: p.type != "run_options")

    def read(self, command: Command, i: int, kind: str, p: Given | None = None) -> str:
        """Return the kind as which a token is read for a parameter of a method."""
        form = {"path_pointer": "{}.c_str()", "memory": "{0}.data(), {0}.size()"}.get(
            p.type if p else "", "{}"
        )
        return form.format(super().read(command, i, kind, p))

    def command_call(self, action: Action) -> str:
        """Return the expression of the call that a command makes."""
        arguments = f"({', '.join(action.arguments)})"
        own = "" if self.is_constructor(action.cls, action.m) else action.m.own
        if action.receiver:
            return f"{action.receiver}.{own}{arguments}"
        return f"Ort::{action.cls.own}{'::' if own else ''}{own}{arguments}"

    def log_text(self, command: Command) -> str:
        """Return the expression of the text that the log has in front of a result."""
        return " + ".join(
            f'"{part}"' if isinstance(part, str) else f"a[{part}]" for part in command.log_parts
        )

    # ---- steps ----

    def checked(self, call: Call, operands: list[Operand], m: Method, made: str = "") -> str:
        """Return the statement of a call; ``made`` is the variable for the handle of a new object."""
        passed = [f"&{made}" if isinstance(o, lower.Made) else self.operand(o, m) for o in operands]
        if not call.can_fail:
            return broken(f"    {self.call(call)}", passed, ";", 130)
        return broken(f"    ThrowOnError({self.call(call)}", passed, ");", 130)

    operands = {  # noqa: RUF012
        "allocator": "AllocatorWithDefaultOptions()",
        "absent": "nullptr",
        "room": "&value[0]",
        "room_size": "&size",
        "output_count": "count",
        "outputs": "reinterpret_cast<OrtValue**>(outputs.data())",
        "count_differs": "found != out",
    }

    def allocated_operands(self, m: Method) -> str:
        """Return the operands of a call that allocates a text for the caller."""
        given = {p.role: p.own for p in m.parameters}
        known = {"allocator": "allocator", m.call.results[0].name: "&name", m.call.parameters[0].name: "p_"}
        return ", ".join(given.get(p.name) or known[p.name] for p in m.call.parameters)

    def operand(self, o: Operand, m: Method) -> str:
        """Return one operand of a call."""
        match o:
            case lower.Receiver():
                return self.receiver(m)
            case lower.Passed(argument):
                return self.converted(argument, m)
            case lower.Length(argument):
                return f"{argument.own}_length" if argument.type == "memory" else f"{argument.own}.size()"
            case lower.Out(p):
                return f"&{p.name}"
        return self.fixed_operand(o)

    def receiver(self, m: Method) -> str:
        """Return the handle of the object."""
        return "this->p_" if m.call.parameters[0].type in MIXINS else "p_"

    def converted(self, a: Given, m: Method) -> str:
        """Return an argument in its C form."""
        if a.type in ("string", "path"):
            text = f'detail::Terminated({"*" if a.nullable else ""}{a.own}, "{a.own}")'
            return f"{a.own} ? {text} : nullptr" if a.nullable else text
        if a.type == "values":
            return f"detail::Handles({a.own})"
        if a.type == "strings":
            return f'detail::Pointers({a.own}, "{a.own}").data()'
        if a.type == "bytes":
            return f"{a.own}.data()"
        p = a.passed
        if p and p.type in self.spec.handles and p.mutable and not self.changes(m, a):
            # The call does not change the object, although its parameter is not const.
            handle = self.c.base(p.type)
            return f"const_cast<{handle}*>(static_cast<const {handle}*>({a.own}))"
        return a.own

    @staticmethod
    def changes(m: Method, p: Given) -> bool:
        """Whether an object is taken by non-const reference: the state of a session, and a buffer."""
        return p.passed is not None and bool(p.passed.mutable) and m.pattern in ("create", "copy_in_buffer")

    def taken(self, results: list[Parameter]) -> str:
        """Return the expression of a method's result or results."""
        values = [self._taken(p) for p in results]
        return values[0] if len(values) == 1 else f"{{{', '.join(values)}}}"

    def _taken(self, p: Parameter) -> str:
        if p.type in ("bytes", "value") and p.length:
            return f"detail::Take{'Bytes' if p.type == 'bytes' else 'Values'}({p.name}, {p.length})"
        if p.type in self.spec.handles:
            return f"{'Const' if self._is_view(p) else ''}{self.type_of(p.type)}{{{p.name}}}"
        if p.type == "string" and p.owner == "callee":
            return p.name
        if p.type == "string":
            return f"detail::TakeString({p.name})"
        return f"{p.name} != 0" if p.type == "flag" else p.name

    def variable(self, p: Parameter) -> str:
        """Return the declaration of a variable that a call stores into."""
        pointer = "*" if self.c.is_pointer_type(p.type) else ""
        pointer += "*" if p.length and p.type != "bytes" else ""
        const = "const " if p.owner == "callee" else ""
        return f"{const}{self.c.base(p.type)}{pointer} {p.name}{{}};"
