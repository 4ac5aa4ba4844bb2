"""The languages: one package for each, found by its folder.

A package has a class ``Language`` derived from :class:`Base` and a folder ``templates``. Nothing else lists languages.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from codegen.lower import SETTINGS, Fixed, Operand, Step, ValueOf, lower, value_of_setting
from codegen.spec.model import Call, Class, Command, Given, Method, Returned, Spec, implied_methods
from codegen.spec.names import Words, by_rule, pascal, resolved
from codegen.spec.source import SpecError

if TYPE_CHECKING:
    from codegen.languages.c import Language as C

FOLDER = Path(__file__).resolve().parent


@dataclass
class File:
    """A file that a language renders: its template, its path from the root of the checkout, and the values for the template."""

    template: str
    path: str
    context: dict[str, Any] = field(default_factory=dict)


@dataclass
class Action:
    """A command of the scenarios in a language: the method that it calls, and the types of its tokens."""

    command: Command
    cls: Class
    m: Method
    receiver: str
    arguments: list[str]
    label: str
    """The token that names the result, which later commands use."""
    left: str
    """The token that is not an argument of the method."""
    names: Action | None
    """The source of the names of several results."""
    written: str
    """The tensors that the call writes into, if it does not return new ones."""
    ordered: str
    """The names of the outputs of a run, in the order of the script."""

    @property
    def result(self) -> str:
        """The type of the logged value."""
        if self.written:
            return "values"
        return self.m.returns.type if self.m.returns and self.command.log else ""


class Base(ABC):
    """A language. Its templates get an instance as a variable with the name of the language.

    ``classes`` are the classes of the spec that the language has, with its own names. A language with other casing rules
    overrides the methods that end in ``_name``.
    """

    key: ClassVar[str]
    """Name of the package, and of the language's file in ``spec/languages``."""

    folders: ClassVar[tuple[str, ...]] = ()
    """Folders with only generated files of this language. Other files in them are stale, and are deleted."""

    constructors: ClassVar[bool] = False
    """Whether methods that create an object are constructors, which have the name of their class."""

    overloads: ClassVar[bool] = False
    """Whether methods of a class may share a name if their parameters differ."""

    truth: ClassVar[dict[str, str]] = {"true": "true", "false": "false", "none": "null"}
    """The words for ``@true``, ``@false`` and ``@none`` in texts."""

    released: ClassVar[str] = ""
    """The expression that releases an object, for the reference pages."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.own = spec.language(self.key)
        self.words: Words = {**spec.words, **self.own.get("words", {})}
        self.types: dict[str, str] = self.own.get("types", {})
        self.classes = [
            self._class(spec.class_named(name), own) for name, own in self.own.get("classes", {}).items()
        ]
        self.classes.sort(key=lambda cls: [c.name for c in spec.classes].index(cls.name))

    @cached_property
    def c(self) -> C:
        """The C language, whose names and types all languages use."""
        made: C = language_class("c")(self.spec)  # type: ignore[assignment]
        return made

    @property
    def page(self) -> File | None:
        """The page of the API in this language; none if there is no template ``reference.md.j2``."""
        if not (FOLDER / self.key / "templates/reference.md.j2").exists():
            return None
        return File(f"{self.key}/reference.md.j2", f"{self.key}.md")

    @abstractmethod
    def files(self) -> Iterable[File]:
        """Return everything that the language renders."""

    # ---- names ----

    def class_name(self, cls: Class) -> str:
        """Return the default name of a class."""
        return pascal(cls.name, self.words)

    def method_name(self, cls: Class, m: Method) -> str:
        """Return the default name of a method; for a constructor, the name of its class."""
        makes = self.constructors and m.pattern == "create" and m.name.startswith("create")
        return cls.own if makes else pascal(m.name, self.words)

    @staticmethod
    def is_constructor(cls: Class, m: Method) -> bool:
        """Whether a method is a constructor, which has the name of its class."""
        return m.own == cls.own

    def is_result(self, cls: Class) -> bool:
        """Whether a method returns objects of a class, created from the handle that its call stores."""
        made = [m for other in self.classes for m in other.methods if m.pattern in ("direct", "static")]
        return any(p.type == cls.handle for m in made for p in m.call.results)

    def parameter_name(self, name: str) -> str:
        """Return the default name of a parameter."""
        return name

    def enum_name(self, enum: str) -> str:
        """Return the name of an enumeration; empty if the language does not have it."""
        if enum not in self.own.get("enums", {}):
            return ""
        own = self.own["enums"][enum] or {}
        return str(own.get("name") or self.default_enum_name(enum))

    def default_enum_name(self, enum: str) -> str:
        """Return the default name of an enumeration."""
        return pascal(enum, self.words)

    def value_name(self, enum: str, value: str) -> str:
        """Return the name of a value of an enumeration."""
        own = self.own["enums"][enum] or {}
        if value in own.get("names", {}):
            return str(own["names"][value])
        rule = own.get("values")
        if rule == "c":
            return self.c.value_name(enum, value)
        return by_rule(rule, value, self.words) if rule else self.default_value_name(enum, value)

    def default_value_name(self, enum: str, value: str) -> str:
        """Return the default name of a value."""
        return pascal(value, self.words)

    @property
    def enums(self) -> list[dict[str, Any]]:
        """The enumerations that the language has."""
        return [e for e in self.spec.enums.values() if e["name"] in self.own.get("enums", {})]

    # ---- classes ----

    def class_named(self, name: str) -> Class:
        """Return the language's class of that name in the spec."""
        return next(c for c in self.classes if c.name == name)

    def class_of(self, kind: str) -> Class | None:
        """Return the class of that name, or the first that owns such a handle."""
        found = [c for c in self.classes if c.name == kind] or [c for c in self.classes if c.handle == kind]
        return found[0] if found else None

    def methods_on(self, call: Call) -> list[tuple[Class, Method]]:
        """Return the methods that make a call, with their classes."""
        return [
            (cls, m)
            for cls in self.classes
            for m in cls.methods
            if any(used.name == call.name for used in m.calls.values())
        ]

    def reached(self, call: Call) -> list[str]:
        """Return the names of the methods that make a call."""
        return [f"{cls.own}.{m.own}" for cls, m in self.methods_on(call)]

    def _class(self, cls: Class, own: dict[str, Any]) -> Class:
        """Return a class with its names, methods and types in the language."""
        chosen = own["methods"]
        made = replace(cls, methods=[], details=own.get("details", cls.details))
        made.own = own.get("name") or self.class_name(cls)
        made.summary = own.get("summary", cls.summary)
        for m in cls.methods:
            if m.name in chosen:
                made.methods.append(self._method(made, m, chosen[m.name]))
        if cls.handle in self.spec.handles:
            calls = [c for table in self.spec.tables for c in self.spec.calls_of(table["name"])]
            release = self.spec.handles[cls.handle].get("release", "")
            wanted = set(chosen) - {m.name for m in cls.methods}
            for m in implied_methods(made, calls, release):
                if m.name in wanted or own.get("complete"):
                    made.methods.append(self._method(made, m, chosen.get(m.name)))
        self._reject_clashes(made)
        return made

    def _method(self, cls: Class, m: Method, over: str | dict[str, Any] | None) -> Method:
        """Return a method with its names and types in the language."""
        own: dict[str, Any] = {"name": over} if isinstance(over, str) else over or {}
        parameters = [self._parameter(p, own.get("parameters", {}).get(p.name)) for p in m.parameters]
        made = replace(m, parameters=parameters, exceptions=own.get("errors", {}))
        made.overloads = own.get("overloads", [])
        made.is_property = own.get("property", False)
        made.summary = own.get("summary", m.summary)
        made.details = own.get("details", m.details)
        if made.returns and "returns" in own:
            made.returns = Returned(made.returns.type, own["returns"])
        if m.pattern in SETTINGS:
            made.parameters = [self.setting(made)]
        made.own = own.get("name") or self.method_name(cls, made)
        return made

    def setting(self, m: Method) -> Given:
        """Return the parameter of a setting."""
        return replace(value_of_setting(m), own="value")

    def _parameter(self, p: Given, over: str | dict[str, Any] | None) -> Given:
        own: dict[str, Any] = {"name": over} if isinstance(over, str) else over or {}
        made = replace(p, type=own.get("type", p.type), doc=own.get("doc", p.doc), own=own.get("name", ""))
        if "default" in own:
            made.default = own["default"]
        made.nullable = own.get("nullable", p.nullable)
        made.own = made.own or self.parameter_name(p.name)
        return made

    def _reject_clashes(self, cls: Class) -> None:
        """Reject two methods with the same name and the same parameters."""
        document = self.spec.languages[self.key]
        taken: dict[tuple[str, ...], str] = {}
        problems = []
        for m in cls.methods:
            name = (m.own, *(p.type for p in m.parameters)) if self.overloads else (m.own,)
            if name in taken:
                message = f"the name {m.own} is taken by {taken[name]}, expected another"
                problems.append(
                    document.problem(("language", "classes", cls.name, "methods", m.name), message)
                )
            taken.setdefault(name, m.name)
        if problems:
            raise SpecError(problems)

    # ---- commands of the scenarios ----

    tokens: ClassVar[dict[str, str]] = {}
    """The expression by which a runner reads a token, for each kind: ``{t}`` is the expression of the token, ``{i}`` its index.
    ``outputs`` reads tensors that a call writes into, and ``written`` is the expression that logs them."""

    ambient: ClassVar[dict[str, str]] = {}
    """Arguments that do not come from a token, by their type; an empty string for an argument that the language never passes."""

    token: ClassVar[str] = "a[{i}]"
    """Return the expression of a token."""

    def action(self, command: Command) -> Action | None:
        """Return a command with the method that it calls; None if the language has none of its methods."""
        for path in command.methods:
            found = self.method_at(path)
            if found:
                return self._action(command, *found)
        return None

    def method_at(self, path: str) -> tuple[Class, Method] | None:
        """Return the method that a command names by its class and its own name; None if the language does not have it."""
        name, _, method = path.partition(".")
        found = (
            (c, m) for c in self.scenario_classes() for m in c.methods if (c.name, m.name) == (name, method)
        )
        return next(found, None)

    def scenario_classes(self) -> list[Class]:
        """Return the classes whose methods commands call."""
        return self.classes

    def _action(self, command: Command, cls: Class, m: Method) -> Action:
        rest = [(i, kind) for i, kind in enumerate(command.tokens) if kind != "label"]
        receiver = ""
        if m.pattern not in ("static", "create", "load", "attach"):
            receiver = self.receiver_of(command, cls, *rest.pop(0))
        arguments = []
        for p in self.arguments_of(m):
            if p.name in command.fixed:
                arguments.append(self.truth["true" if command.fixed[p.name] else "false"])
            elif p.type in self.ambient:
                arguments += [self.ambient[p.type].format(own=p.own)] if self.ambient[p.type] else []
            elif fitting := [token for token in rest if self.fits(token[1], p)]:
                i, kind = fitting[0]
                rest.remove(fitting[0])
                arguments.append(
                    self.read(command, i, "outputs" if p.role == "outputs" and kind == "tensors" else kind, p)
                )
        names = self.action(self.spec.command(command.names)) if command.names else None
        label = "" if command.label is None else self.token.format(i=command.label)
        left = self.token.format(i=rest[0][0]) if rest else ""
        written = ""
        if names and m.returns is None:
            written = self.read(command, command.tokens.index("tensors"), "written")
        ordered = ""
        if m.pattern in ("run", "run_into", "run_named"):
            i, kind = len(command.tokens) - 1, command.tokens[-1]
            ordered = self.read(command, i, f"names_of_{kind}")
            written = self.read(command, i, f"values_of_{kind}") if m.pattern == "run_into" else ""
        return Action(command, cls, m, receiver, arguments, label, left, names, written, ordered)

    def receiver_of(self, command: Command, cls: Class, i: int, kind: str) -> str:
        """Return the object on which a command calls a method of a class."""
        return self.read(command, i, kind)

    @staticmethod
    def fits(kind: str, p: Given) -> bool:
        """Whether a token of a kind can be the argument for a parameter: objects and paths only for parameters of their type."""
        if kind == "state" or p.type == "checkpoint_state":
            return kind == "state" and p.type == "checkpoint_state"
        return not kind.startswith("path") or p.type != "string"

    def arguments_of(self, m: Method) -> list[Given]:
        """Return the arguments that a command passes to a method."""
        return m.parameters

    def read(self, command: Command, i: int, kind: str, p: Given | None = None) -> str:
        """Return the kind as which a token is read for a parameter of a method."""
        token = self.token.format(i=i)
        if "|" in kind:
            yes, no = kind.split("|")
            return self.tokens["choice"].format(t=token, i=i, yes=yes, no=no)
        return self.tokens[kind].format(t=token, i=i)

    # ---- texts ----

    def said(self, text: str) -> str:
        """Return a text of the spec with the names of the language."""
        said = resolved(text, self.mention)
        return said[:1].upper() + said[1:] if text.startswith("@") else said

    def mention(self, name: str) -> str:
        """Return the name in the language for a call, a type or a value that a text of the spec mentions."""
        return self.truth.get(name) or self.c.mention(name)

    # ---- steps ----

    operands: ClassVar[dict[str, str]] = {}
    """The expressions of operands that never vary, by their kind, such as ``allocator``."""

    def fixed_operand(self, o: Operand) -> str:
        """Return an operand that does not depend on the method: one of ``operands``, or a value of the spec."""
        match o:
            case Fixed(_, value):
                return f'"{value}"'
            case ValueOf(enum, value):
                return value if enum == "bool" else self.c.value_name(enum, value)
        if o.kind not in self.operands:
            raise NotImplementedError(f"{self.own['title']} has no form of {o}")
        return self.operands[o.kind]

    def lower(self, cls: Class, m: Method) -> list[Step]:
        """Return the steps of a method.

        Raises
        ------
        SpecError
            If the pattern of the method cannot be lowered; the error names the method.
        """
        try:
            return lower(cls, m)
        except SpecError as error:
            entry = f"class {cls.name}, method {m.name}"
            raise SpecError([replace(p, entry=p.entry or entry) for p in error.problems]) from error


def broken(head: str, parts: list[str], tail: str, width: int) -> str:
    """Return ``head(parts)tail``, broken between parts and aligned if it is longer than ``width``."""
    line = f"{head}({', '.join(parts)}){tail}"
    if len(line) <= width:
        return line
    margin = " " * (len(head) + 1)
    lines = [f"{head}("]
    for i, part in enumerate(parts):
        more = part + ("," if i + 1 < len(parts) else f"){tail}")
        if lines[-1].strip() != f"{head}(".strip() and len(lines[-1]) + 1 + len(more) > width:
            lines.append(margin + more)
        else:
            lines[-1] += more if lines[-1].endswith("(") else f" {more}"
    return "\n".join(lines)


def names() -> list[str]:
    """Return the names of all languages, in alphabetical order."""
    return sorted(found.name for found in pkgutil.iter_modules([str(FOLDER)]) if found.ispkg)


def language_class(name: str) -> type[Base]:
    """Return the class of a language."""
    found: type[Base] = importlib.import_module(f"codegen.languages.{name}").Language
    return found
