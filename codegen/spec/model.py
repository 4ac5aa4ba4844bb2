"""The checked spec as objects. This module does not depend on a language."""

from __future__ import annotations

from dataclasses import dataclass, field
from string import Formatter
from typing import Any

from codegen.spec.source import Document

MISSING: Any = object()
"""No default."""


@dataclass
class Parameter:
    """A parameter of a call; see ``parameter`` in ``spec/schema.json`` for the meaning of the fields."""

    name: str
    type: str
    doc: str = ""
    direction: str = "in"
    nullable: bool = False
    mutable: bool | None = None
    room: bool = False
    length: str = ""
    unit: str = ""
    owner: str = ""
    valid: str = ""
    typed_by: str = ""
    taken: bool = False
    outlives: str = ""

    @property
    def is_result(self) -> bool:
        """Whether the call stores a result through the parameter."""
        return self.direction != "in"


@dataclass
class Call:
    """A call of a table."""

    name: str
    table: str
    slot: int
    group: str = ""
    summary: str = ""
    core: str = ""
    """The function of the core that the call runs; empty for a call without an implementation."""
    part: str = ""
    """The name of the part that contains the call, if builds can leave that part out."""
    since: int = 1
    details: str = ""
    parameters: list[Parameter] = field(default_factory=list)
    returns: dict[str, str] | None = None
    errors: list[dict[str, str]] = field(default_factory=list)
    blocking: bool = False

    @property
    def is_implemented(self) -> bool:
        """Whether there is an implementation."""
        return bool(self.core)

    @property
    def can_fail(self) -> bool:
        """Whether it returns a status."""
        return self.returns is None and self.core != "release"

    def parameter(self, name: str) -> Parameter:
        """Return the parameter of that name."""
        return next(p for p in self.parameters if p.name == name)

    @property
    def arrays(self) -> dict[str, list[Parameter]]:
        """The arrays, and strings of bytes, that each length belongs to, by the name of the length."""
        out: dict[str, list[Parameter]] = {}
        for parameter in self.parameters:
            if parameter.length:
                out.setdefault(parameter.length, []).append(parameter)
        return out

    @property
    def arguments(self) -> list[Parameter]:
        """The arguments of a caller in a language with arrays: no lengths of inputs, no allocator, no results.

        The length of an array of results stays, because only this length shows how many results the caller wants.
        """
        out = []
        for p in self.parameters:
            arrays = self.arrays.get(p.name, [])
            if p.direction == "out" or (p.direction == "inout" and p.length):
                continue
            if p.type == "allocator" or (arrays and not all(a.is_result and not a.room for a in arrays)):
                continue
            if self.types_another(p):
                continue
            out.append(p)
        return out

    @property
    def results(self) -> list[Parameter]:
        """The results for a caller in a language with arrays: no lengths, no type of an untyped value."""
        return [
            p
            for p in self.parameters
            if p.is_result and p.name not in self.arrays and not self.types_another(p)
        ]

    def types_another(self, p: Parameter) -> bool:
        """Whether a parameter contains the type of another parameter."""
        return self.typed_by(p) is not None

    def typed_by(self, p: Parameter) -> Parameter | None:
        """Return the parameter whose type another parameter contains."""
        return next((q for q in self.parameters if q.typed_by == p.name), None)


@dataclass
class Given:
    """A parameter of a method."""

    name: str
    type: str
    doc: str
    role: str = ""
    nullable: bool = False
    default: Any = MISSING
    own: str = ""
    """The name in the language for which the method was resolved."""
    passed: Parameter | None = None
    """The parameter of the call to which the argument is passed, if any."""

    def __post_init__(self) -> None:
        self.role = self.role or self.name

    @property
    def has_default(self) -> bool:
        """Whether a caller may leave the argument out."""
        return self.default is not MISSING


@dataclass
class Returned:
    """The result of a method."""

    type: str
    doc: str
    nullable: bool = False


@dataclass
class Method:
    """A method of a class: the calls it uses, each in its role, and the pattern in which it uses them."""

    name: str
    pattern: str
    summary: str
    details: str = ""
    calls: dict[str, Call] = field(default_factory=dict)
    parameters: list[Given] = field(default_factory=list)
    returns: Returned | None = None
    errors: list[dict[str, str]] = field(default_factory=list)
    fixed: dict[str, Any] = field(default_factory=dict)
    initial: Any = None
    mode: bool | None = None
    constant: bool = False
    property_type: str = ""
    implied: bool = False
    is_property: bool = False
    """Whether the method is a property in the language, although each access makes a call."""
    own: str = ""
    """Its name in the language that it was resolved for."""
    labels: tuple[str, ...] = ()
    """Its base name and the labels of its arguments, in languages with labels."""
    exceptions: dict[str, str] = field(default_factory=dict)
    """Its exceptions by error code, if they differ from the exceptions of the language."""
    overloads: list[list[str]] = field(default_factory=list)
    """The parameters of each overload, by their names in the spec, if the language has several."""

    @property
    def call(self) -> Call:
        """The only call, or the first."""
        return next(iter(self.calls.values()))

    def parameter(self, role: str) -> Given:
        """Return the parameter in a role."""
        return next(p for p in self.parameters if p.role == role)

    def has(self, role: str) -> bool:
        """Whether there is a parameter in a role."""
        return any(p.role == role for p in self.parameters)


@dataclass
class Class:
    """A class: its objects own a handle, or are views of an object that does."""

    name: str
    summary: str
    methods: list[Method]
    details: str = ""
    handle: str = ""
    view_of: str = ""
    keyed: bool = False
    keys: dict[str, str] | None = None
    prefix: str = ""
    own: str = ""
    """Its name in the language that it was resolved for."""

    def has(self, pattern: str) -> bool:
        """Whether any method has a pattern."""
        return any(m.pattern == pattern for m in self.methods)


@dataclass
class Command:
    """A command of the scenarios; see ``command`` in ``spec/schema.json`` for the meaning of the fields."""

    name: str
    tokens: list[str]
    call: str = ""
    methods: list[str] = field(default_factory=list)
    fixed: dict[str, bool] = field(default_factory=dict)
    attached: str = ""
    names: str = ""
    log: str = ""

    @property
    def fewest(self) -> int:
        """The minimum number of tokens."""
        return len(
            [token for token in self.tokens if token.startswith("counted_") or not token.endswith("s")]
        )

    @property
    def label(self) -> int | None:
        """The index of the token that is the label for the result."""
        return self.tokens.index("label") if "label" in self.tokens else None

    @property
    def log_parts(self) -> list[str | int]:
        """The parts of ``log``: texts, and indices of tokens."""
        out: list[str | int] = []
        for text, index, _, _ in Formatter().parse(self.log):
            out += [part for part in (text, int(index) if index else "") if part != ""]
        return out

    @property
    def is_open(self) -> bool:
        """Whether there is no maximum."""
        return any(token.endswith("s") for token in self.tokens)


def argument_kind(p: Parameter) -> str:
    """Return the type of a method's parameter that is passed to a call; arrays have other types."""
    if p.length and p.type != "bytes" and not p.room:
        return {"string": "strings", "value": "values"}.get(p.type, f"{p.type}[]")
    return p.type


def implied_methods(cls: Class, calls: list[Call], release: str) -> list[Method]:
    """Return a method for each call on the handle of a class that no method uses.

    A method with several results has ``results`` as its type.
    """
    used = {call.name for m in cls.methods for call in m.calls.values()}
    out = []
    for call in calls:
        first = call.parameters[0] if call.parameters else None
        if first is None or first.type != cls.handle or first.is_result or call.name in (release, *used):
            continue
        returns = None
        if len(call.results) == 1:
            result = call.results[0]
            returns = Returned(argument_kind(result), "The text." if result.room else result.doc)
        elif call.results:
            returns = Returned("results", " ".join(f"{p.name}: {p.doc}" for p in call.results))
        parameters = [
            Given(p.name, argument_kind(p), p.doc, nullable=p.nullable and p.type == "path")
            for p in call.arguments[1:]
        ]
        out.append(
            Method(
                name=call.name.removeprefix(f"{cls.prefix}_") if cls.prefix else call.name,
                pattern="direct",
                summary=call.summary,
                details=call.details,
                calls={"call": call},
                parameters=parameters,
                returns=returns,
                implied=True,
            )
        )
    return out


@dataclass
class Spec:
    """The whole spec."""

    library: dict[str, Any]
    tables: list[dict[str, Any]]
    groups: list[dict[str, str]]
    parts: dict[str, dict[str, str]]
    """The parts that builds can leave out, by name."""
    types: dict[str, dict[str, Any]]
    handles: dict[str, dict[str, str]]
    opaque: list[str]
    enums: dict[str, dict[str, Any]]
    callbacks: dict[str, dict[str, Any]]
    structs: dict[str, dict[str, Any]]
    calls: dict[str, Call]
    unimplemented: list[Call]
    classes: list[Class]
    config_keys: list[dict[str, str]]
    session_config: list[dict[str, Any]]
    training_parameters: list[dict[str, Any]]
    words: dict[str, str]
    commands: list[Command]
    languages: dict[str, Document]
    """The files of the languages, by the names of the languages."""

    def language(self, name: str) -> dict[str, Any]:
        """Return the spec's description of a language."""
        found: dict[str, Any] = self.languages[name].data["language"]
        return found

    def command(self, name: str) -> Command:
        """Return the command of that name."""
        return next(c for c in self.commands if c.name == name)

    def slots(self, table: str) -> list[Call]:
        """Return the calls and other entries of a table, by slot."""
        rows = [c for c in (*self.calls.values(), *self.unimplemented) if c.table == table]
        return sorted(rows, key=lambda row: row.slot)

    def calls_of(self, table: str) -> list[Call]:
        """Return the implemented calls of a table, by slot."""
        return sorted((c for c in self.calls.values() if c.table == table), key=lambda call: call.slot)

    def class_named(self, name: str) -> Class:
        """Return the class of that name."""
        return next(c for c in self.classes if c.name == name)

    def grouped(self, table: str) -> list[tuple[dict[str, str], list[Call]]]:
        """Return the implemented calls of a table by group, in the order of the groups."""
        pairs = [(g, [c for c in self.calls_of(table) if c.group == g["name"]]) for g in self.groups]
        return [(g, calls) for g, calls in pairs if calls]
