"""Methods that make one call and have the parameters of that call. Onnxruntime's C++ interface has many such methods.

The file of the language names them under ``plain``. Their signatures and comments come from the call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from codegen.languages import broken
from codegen.languages.c import Language as C
from codegen.spec.model import Call, Class, Parameter

STRUCTURES = {
    "shape": ("{}.shape", "{}.shape_len"),
    "sparse_values": ("{}.values_shape", "{}.values_shape_len", "{}.data.p_data"),
}
"""Arguments of structure types, and the expressions of their members: an array, its length, and the parameter after these."""

CONST_COPIES = ("type_info", "tensor_type_and_shape_info")
"""Classes whose objects a method takes as views, such as ``ConstTypeInfo``."""


class Names(Protocol):
    """The part of the language that these methods use."""

    types: dict[str, str]

    @property
    def c(self) -> C:
        """The C language."""

    def class_of(self, kind: str) -> Class | None:
        """Return the class of a handle."""

    def call(self, call: Call) -> str:
        """Return the expression of a call's function."""

    @staticmethod
    def has_settings(cls: Class) -> bool:
        """Whether methods return their object."""


@dataclass
class Form:
    """One declaration of a method, and its statements."""

    head: str
    statements: list[str]
    parameters: list[tuple[str, str]]
    """Name and documentation of each."""
    is_template: bool = False
    """Whether the form is a template over the element type."""

    @property
    def declaration(self) -> str:
        """The declaration, without body or semicolon."""
        return f"  template <typename T>\n{self.head}" if self.is_template else self.head


@dataclass
class Plain:
    """A method that makes one call."""

    language: Names
    cls: Class
    call: Call
    own: str
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The differences from the spec, by parameter."""

    @property
    def is_static(self) -> bool:
        """Whether the method creates an object, or its call does not take an object as its first argument."""
        first = self.call.parameters[0]
        return self.call.name.startswith("create_") or first.type != self.cls.handle or first.is_result

    @property
    def is_constructor(self) -> bool:
        """Whether the method creates its object."""
        return self.own == self.cls.own

    @property
    def kind(self) -> str:
        """``query``, ``change``, or ``static`` for a method without an object and a constructor."""
        if self.is_static:
            return "static"
        return "change" if self.call.parameters[0].mutable else "query"

    @property
    def returns_itself(self) -> bool:
        """Whether the method returns its object, like the other settings of its class."""
        return self.kind == "change" and self.result is None and self.language.has_settings(self.cls)

    @cached_property
    def kept(self) -> list[Parameter]:
        """The parameters of the call that are also parameters of the method."""
        given = self.call.parameters if self.is_static else self.call.parameters[1:]
        as_in_c = [name for name, over in self.overrides.items() if over.get("type") == "c"]
        return [p for p in given if not p.is_result or p.length or p.room or p.name in as_in_c]

    @property
    def result(self) -> Parameter | None:
        """The parameters through which the call stores results, which the method returns."""
        own = None if self.is_static else self.call.parameters[0]
        return next((p for p in self.call.parameters if p is not own and p not in self.kept), None)

    @property
    def returned_doc(self) -> str:
        """The description of the result."""
        if self.is_constructor:
            return ""
        return self.call.returns["doc"] if self.call.returns else self.result.doc if self.result else ""

    @property
    def result_class(self) -> str:
        """The class of the result, if it is an object."""
        found = self.language.class_of(self.result.type) if self.result else None
        if found is None or self.result is None:
            return ""
        return f"Const{found.own}" if self.result.owner == "callee" else found.own

    @property
    def stored(self) -> str:
        """The type of the stored result."""
        return (
            self.language.c.declaration(self.result).rpartition(" ")[0].removesuffix("*")
            if self.result
            else ""
        )

    @property
    def is_later(self) -> bool:
        """Whether the method is a query that returns an object of its class. The class is complete only after the queries."""
        return self.kind == "query" and self.result_class == self.cls.own

    @property
    def type(self) -> str:
        """What it returns."""
        if self.returns_itself:
            return f"{self.cls.own}&"
        if self.result is None:
            return self.language.c.returned(self.call) if self.call.returns else "void"
        return self.result_class or self.stored

    @cached_property
    def members(self) -> dict[str, str]:
        """The parameters that are members of structures of C++, with their expressions."""
        found = {}
        for name, over in self.overrides.items():
            at = next(i for i, p in enumerate(self.call.parameters) if p.name == name)
            texts = STRUCTURES.get(over.get("type", ""), ())
            named = zip(self.call.parameters[at:], texts, strict=False)
            found.update({p.name: text.format(over.get("name", name)) for p, text in named})
        return found

    # ---- its forms ----

    def forms(self, handle: str) -> list[Form]:
        """Return the declarations of the method; ``handle`` is the first argument of the call.

        For memory whose element type the caller names, there is a form with that type, and a second form if the spec has a name
        for it. A method that creates a tensor of a given type has a form with a type of C++.
        """
        over = self.overrides.get(self.result.name, {}) if self.result else {}
        if over.get("type") != "element":
            own = [Form(self._head(self.own, self.type), self._statements(handle), self._documented())]
            return [*own, self._typed()] if self._is_typed else own
        kind = self.type.replace("void", "T")
        head = self._head(self.own, kind)
        body = self._statements(handle, f"static_cast<{kind}>(result)")
        forms = [Form(head, body, self._documented(), is_template=True)]
        if "name" in over:
            raw = self._head(over["name"], self.type)
            forms.insert(0, Form(raw, self._statements(handle), self._documented()))
        return forms

    @property
    def _is_typed(self) -> bool:
        """Whether the method has a second form for an element type, which is the last argument of the call."""
        return self.is_static and bool(self.kept) and self.kept[-1].type == "tensor_element_type"

    def _typed(self) -> Form:
        lengths = [p.length for p in self.kept if p.type == "bytes" and p.length]
        given = [name for name, _ in self._documented(is_typed=True)]
        passed = [f"{name} * sizeof(T)" if name in lengths else name for name in given]
        head = broken(f"  static {self.type} {self.own}", self._declared(is_typed=True), "", 130)
        body = f"    return {self.own}({', '.join([*passed, 'TypeToTensorType<T>::type'])});"
        return Form(head, [body], self._documented(is_typed=True), is_template=True)

    def _head(self, own: str, kind: str) -> str:
        if self.is_constructor:
            explicit = "explicit " if len(self._declared()) == 1 else ""
            return broken(f"  {explicit}{own}", self._declared(), "", 130)
        tail = " const" if self.kind == "query" else ""
        return broken(f"  {'static ' if self.is_static else ''}{kind} {own}", self._declared(), tail, 130)

    def definition(self, name: str) -> list[str]:
        """Return the lines that define the method outside of a class template with a name."""
        head = broken(f"{self.type} {name}<Holder>::{self.own}", self._declared(), " const {", 130)
        return ["template <typename Holder>", head, *(line[2:] for line in self._statements("this->p_")), "}"]

    def _statements(self, handle: str, returned: str = "") -> list[str]:
        passed = [] if self.is_static else [handle]
        passed += [self.members.get(p.name, p.name) for p in self.kept]
        function = self.language.call(self.call)
        if self.call.returns:
            return [broken(f"    return {function}", passed, ";", 130)]
        passed += ["&p_" if self.is_constructor else "&result"] if self.result else []
        lines = [broken(f"    ThrowOnError({function}", passed, ");", 130)]
        if self.returns_itself:
            lines.append("    return *this;")
        if self.result is None or self.is_constructor:
            return lines
        returned = returned or (f"{self.result_class}{{result}}" if self.result_class else "result")
        return [f"    {self.stored} result{{}};", *lines, f"    return {returned};"]

    # ---- its parameters ----

    def _declared(self, is_typed: bool = False) -> list[str]:
        exact = self.language.c.own["declarations"].get(self.call.name, {})
        out = []
        for p in self._shown(is_typed):
            over = self.overrides.get(p.name, {})
            if over.get("type") == "c":
                out.append(self.language.c.declaration(p))
            elif "type" in over:
                out.append(f"const {self.language.types[over['type']]}& {over.get('name', p.name)}")
            elif is_typed and p.type == "bytes":
                out.append(f"T* {p.name}")
            else:
                out.append(exact.get(p.name) or self._declaration_of(p))
        return out

    def _documented(self, is_typed: bool = False) -> list[tuple[str, str]]:
        lengths = [p.length for p in self.kept if is_typed and p.type == "bytes" and p.length]
        out = []
        for p in self._shown(is_typed):
            unit = " In bytes." if p.unit == "bytes" else ""
            doc = "Number of elements." if p.name in lengths else f"{p.doc}{unit}"
            out.append((self.overrides.get(p.name, {}).get("name", p.name), doc))
        return out

    def _shown(self, is_typed: bool) -> list[Parameter]:
        """Return the parameters of a form, without those that are members of another parameter."""
        kept = self.kept[:-1] if is_typed else self.kept
        return [p for p in kept if p.name in self.overrides or p.name not in self.members]

    def _declaration_of(self, p: Parameter) -> str:
        """Return the declaration of a parameter: the one of C, with an object in place of a pointer to a handle."""
        cls = self.language.class_of(p.type)
        if cls is None or p.is_result or p.length or p.mutable or p.type in ("memory_info", "allocator"):
            return self.language.c.declaration(p)
        return f"Const{cls.own} {p.name}" if cls.name in CONST_COPIES else f"const {cls.own}& {p.name}"
