"""The code that Objective-C and Swift share: classes over the C tables whose methods have labels for their arguments."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

from codegen import lower
from codegen.languages import Base
from codegen.lower import Operand, Step
from codegen.spec.model import Call, Class, Given, Method, Parameter
from codegen.spec.names import camel, pascal
from codegen.spec.source import Problem, SpecError


class Labelled(Base):
    """A language whose methods are named by a base name and a label for each argument: ``Method.labels``."""

    taken_names: ClassVar[frozenset[str]] = frozenset()
    """Parameter names that the language or a method itself uses."""

    # ---- names ----

    @abstractmethod
    def parsed(self, name: str) -> tuple[str, ...]:
        """Return base name and labels of a method's name in the file of the language."""

    @abstractmethod
    def default_labels(self, cls: Class, m: Method) -> tuple[str, ...]:
        """Return the default base name and labels of a method."""

    @abstractmethod
    def options_label(self, m: Method) -> str:
        """Return the label of the run options that a form of a method takes last."""

    @abstractmethod
    def spelled(self, cls: Class, m: Method) -> str:
        """Return the name of a method in texts."""

    def class_name(self, cls: Class) -> str:
        """Return the name of a class."""
        return f"ORT{pascal(cls.name, self.words)}"

    def default_enum_name(self, enum: str) -> str:
        """Return the name of an enumeration."""
        return f"ORT{pascal(enum, self.words)}"

    def parameter_name(self, name: str) -> str:
        """Return the name of a parameter."""
        own = camel(name, self.words)
        return f"{own}Value" if own in self.taken_names else own

    def setting(self, m: Method) -> Given:
        """Return the parameter of a setting, named after that of the call."""
        value = super().setting(m)
        kind = "bool" if m.pattern == "switch" else value.type
        return replace(value, own=self.parameter_name(value.name), type=kind)

    def method_name(self, cls: Class, m: Method) -> str:
        """Return the default name of a method."""
        return " ".join(self.default_labels(cls, m))

    def _method(self, cls: Class, m: Method, over: str | dict[str, Any] | None) -> Method:
        made = super()._method(cls, m, over)
        named = over if isinstance(over, str) else (over or {}).get("name")
        made.labels = self.parsed(named) if named else self.default_labels(cls, made)
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
        form.labels = (*m.labels, self.options_label(m))
        return [form]

    def reached(self, call: Call) -> list[str]:
        """Return the names of the methods that make a call."""
        found = self.methods_on(call)
        found += [(cls, form) for cls, m in found if m.call.name == call.name for form in self._forms(m)]
        return [self.spelled(cls, m) for cls, m in found]

    def mention(self, name: str) -> str:
        """Return the name of a call in a text: the name of the method that makes the call."""
        for cls in self.classes:
            for m in cls.methods:
                if name in self.spec.calls and m.calls and m.call.name == name:
                    return self.spelled(cls, m)
        return super().mention(name)

    # ---- commands of the scenarios ----

    tokens: ClassVar[dict[str, str]] = {
        "counted_tensors": "counted(arguments, {i})",
        "outputs": "rest(arguments, {i})",
        "written": "rest(arguments, {i})",
        "path": "{t}",
        "path_or_none": "optional({t})",
        "text": "{t}",
    }

    # ---- operands ----

    operands: ClassVar[dict[str, str]] = {
        "output_count": "results.count",
        "room": "room",
        "room_size": "&size",
    }

    def operand(self, o: Operand) -> str:
        """Return one operand of a call."""
        match o:
            case lower.Passed(p):
                return self.passed(p)
            case lower.Length(p):
                return self.length(p)
            case lower.Names(p):
                return self.names_in_c(p)
            case lower.Values(p):
                return self.values_in_c(p)
            case lower.Out(p):
                return self.out(p)
            case lower.AddressOf(p):
                return self.address(p)
        return self.fixed_operand(o)

    @abstractmethod
    def passed(self, p: Given) -> str:
        """Return the expression of an argument for C."""

    @abstractmethod
    def length(self, p: Given) -> str:
        """Return the number of elements of an argument."""

    @abstractmethod
    def names_in_c(self, p: Given) -> str:
        """Return the names of values that are given by name."""

    @abstractmethod
    def values_in_c(self, p: Given) -> str:
        """Return the handles of values that are given by name."""

    @abstractmethod
    def out(self, p: Parameter) -> str:
        """Return the address of the variable that receives a result."""

    @abstractmethod
    def address(self, p: Given) -> str:
        """Return the address of an argument."""

    # ---- documentation ----

    def doc_lines(self, m: Method) -> list[str]:
        """Return the lines of documentation about the effect of a method, and an empty line."""
        lines = self.c.wrap(self.said(m.summary))
        if m.details:
            lines += ["", *self.c.wrap(self.said(m.details))]
        return [*lines, ""]

    # ---- methods ----

    def release(self, cls: Class) -> str:
        """Return the expression of the function that releases a class's handle."""
        return self.call(self.spec.calls[self.spec.handles[cls.handle]["release"]])

    @abstractmethod
    def call(self, call: Call) -> str:
        """Return the expression of a call's function."""

    def is_nullable(self, p: Given) -> bool:
        """Whether nil may be given for an argument."""
        pointer = p.passed is not None and self.c.is_pointer_type(p.passed.type)
        return p.nullable or (pointer and bool(p.passed and p.passed.nullable))

    @staticmethod
    def arguments(m: Method) -> list[Given]:
        """Return the description of a method's parameters."""
        return m.parameters if m.pattern in lower.SETTINGS else lower.arguments(m)

    def lowered(self, cls: Class, m: Method) -> list[Step]:
        """Return the steps of a method; the value of a setting is not kept, because nothing returns it."""
        return [s for s in self.lower(cls, m) if not isinstance(s, lower.Remember)]

    def arguments_of(self, m: Method) -> list[Given]:
        """Return the arguments that a command passes to a method."""
        return self.arguments(m)

    def no_form(self, name: str, expected: str) -> SpecError:
        """Return the error for a type that the language lacks."""
        message = f"{expected}, found none, so it has no form in {self.own['title']}"
        return SpecError([Problem("spec", 1, name, message)])

    # ---- errors ----

    @abstractmethod
    def code(self, name: str) -> str:
        """Return the name of an error code."""

    def errors(self, m: Method) -> list[tuple[str, str]]:
        """Return the error codes of a method, and when it fails with each."""
        found: dict[str, list[str]] = {}
        for error in lower.errors(m):
            found.setdefault(self.code(error["code"]), []).append(self.said(error["when"]))
        if m.pattern == "property_get":
            found.setdefault(self.code("invalid_argument"), []).append("the property has another type")
        return [(code, ", or ".join(dict.fromkeys(whens))) for code, whens in found.items()]
