"""The checked spec as objects. Nothing here knows a language; that is decided when it is rendered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Parameter:
    """A parameter of a call; see ``parameter`` in ``spec/schema.json`` for the meaning of the fields."""

    name: str
    type: str
    doc: str
    direction: str = "in"
    nullable: bool = False
    mutable: bool = False
    length: str = ""
    unit: str = ""
    owner: str = ""
    valid: str = ""
    typed_by: str = ""
    c: str = ""

    @property
    def is_result(self) -> bool:
        """Whether the call stores something through it."""
        return self.direction != "in"


@dataclass
class Call:
    """A call of a table."""

    name: str
    table: str
    slot: int
    group: str
    summary: str
    core: str
    since: int = 1
    names: dict[str, str] = field(default_factory=dict)
    details: str = ""
    parameters: list[Parameter] = field(default_factory=list)
    returns: dict[str, str] | None = None
    errors: list[dict[str, str]] = field(default_factory=list)
    blocking: bool = False

    @property
    def return_type(self) -> str:
        """The type it returns, ``status`` where it returns one."""
        return self.returns["type"] if self.returns else "status"

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
        """What a caller in a language with arrays passes: no lengths of inputs, no allocator, no results.

        The length of an array of results stays, for nothing else says how many are wanted.
        """
        out = []
        for p in self.parameters:
            arrays = self.arrays.get(p.name, [])
            if p.direction == "out" or (p.direction == "inout" and p.length):
                continue
            if p.type == "OrtAllocator" or (arrays and not all(a.is_result for a in arrays)):
                continue
            if p.type == "OrtPropertyType" and any(q.typed_by == p.name for q in self.parameters):
                continue
            out.append(p)
        return out

    @property
    def results(self) -> list[Parameter]:
        """What a caller in such a language gets back: no lengths, no type of an untyped value."""
        return [
            p
            for p in self.parameters
            if p.is_result
            and p.name not in self.arrays
            and not any(q.typed_by == p.name for q in self.parameters)
        ]


@dataclass
class Unimplemented:
    """A slot without an implementation, as declared in C."""

    name: str
    table: str
    slot: int
    returns: str
    parameters: str
    since: int = 1


@dataclass
class Method:
    """A method of a class: the calls it stands on and the pattern in which it uses them."""

    name: str
    pattern: str
    summary: str
    names: dict[str, str] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    details: str = ""
    parameters: list[dict[str, Any]] = field(default_factory=list)
    returns: dict[str, str] | None = None
    raises: list[dict[str, str]] = field(default_factory=list)
    value: str = ""
    implied: bool = False

    def name_in(self, language: str) -> str:
        """How a language spells it."""
        return self.names.get(language, self.name)

    @property
    def call(self) -> Call:
        """The only call, or the first."""
        return self.calls[0]


@dataclass
class Class:
    """A class as the languages named in ``names`` show it."""

    name: str
    names: dict[str, str]
    summary: str
    methods: list[Method]
    details: str = ""
    handle: str = ""
    view_of: str = ""
    keyed: bool = False
    keys: dict[str, Any] | None = None
    complete: dict[str, Any] | None = None

    def methods_in(self, language: str) -> list[Method]:
        """Return the methods that a language has: those it names, and those without names of their own."""
        return [m for m in self.methods if not m.names or language in m.names]


def argument_kind(p: Parameter) -> str:
    """Return the type that a method gives an argument of a call: arrays have types of their own."""
    if p.length and p.type != "bytes":
        return {"string": "strings", "OrtValue": "values"}.get(p.type, f"{p.type}[]")
    return f"{p.type}?" if p.nullable and p.type == "path" else p.type


def implied_methods(cls: Class, calls: list[Call], release: str) -> list[Method]:
    """Return the methods that the calls on the handle of a ``complete`` class are by themselves.

    A call that a method of the class uses, in a language, is no method of its own there. A method with several
    results has ``results`` as its type.
    """
    if cls.complete is None:
        return []
    out = []
    for call in calls:
        first = call.parameters[0] if call.parameters else None
        if first is None or first.type != cls.handle or first.is_result or call.name == release:
            continue
        languages = [
            language
            for language in cls.complete["languages"]
            if language in cls.names
            and not any(call.name == used.name for m in cls.methods_in(language) for used in m.calls)
        ]
        if not languages:
            continue
        name = call.name.removeprefix(cls.complete["prefix"])
        returns = None
        if len(call.results) == 1:
            returns = {"type": argument_kind(call.results[0]), "doc": call.results[0].doc}
        elif call.results:
            returns = {"type": "results", "doc": " ".join(f"{p.name}: {p.doc}" for p in call.results)}
        out.append(
            Method(
                name=name,
                pattern="direct",
                summary=call.summary,
                details=call.details,
                names=dict.fromkeys(languages, name),
                calls=[call],
                parameters=[
                    {"name": p.name, "type": argument_kind(p), "doc": p.doc} for p in call.arguments[1:]
                ],
                returns=returns,
                implied=True,
            )
        )
    return out


@dataclass
class Spec:
    """Everything."""

    library: dict[str, Any]
    tables: list[dict[str, Any]]
    groups: list[dict[str, str]]
    types: dict[str, dict[str, Any]]
    handles: dict[str, dict[str, str]]
    opaque: list[dict[str, str]]
    enums: dict[str, dict[str, Any]]
    callbacks: dict[str, dict[str, Any]]
    structs: dict[str, dict[str, Any]]
    calls: dict[str, Call]
    unimplemented: list[Unimplemented]
    classes: list[Class]
    config_keys: list[dict[str, str]]
    session_config: list[dict[str, Any]]

    def slots(self, table: str) -> list[Call | Unimplemented]:
        """Everything in a table, by slot."""
        rows: list[Call | Unimplemented] = [c for c in self.calls.values() if c.table == table]
        rows += [u for u in self.unimplemented if u.table == table]
        return sorted(rows, key=lambda row: row.slot)

    def calls_of(self, table: str) -> list[Call]:
        """Return the implemented calls of a table, by slot."""
        return sorted((c for c in self.calls.values() if c.table == table), key=lambda call: call.slot)

    def classes_in(self, language: str) -> list[Class]:
        """Return the classes that a language has."""
        return [c for c in self.classes if language in c.names]

    def methods_on(self, call: Call, language: str) -> list[tuple[Class, Method]]:
        """Return the methods of a language that use a call, with their classes."""
        return [
            (cls, m)
            for cls in self.classes_in(language)
            for m in cls.methods_in(language)
            if any(used.name == call.name for used in m.calls)
        ]

    def class_named(self, name: str) -> Class:
        """Return the class of that name."""
        return next(c for c in self.classes if c.name == name)

    def grouped(self, table: str) -> list[tuple[dict[str, str], list[Call]]]:
        """Return the implemented calls of a table by group, in the order of the groups."""
        pairs = [(g, [c for c in self.calls_of(table) if c.group == g["name"]]) for g in self.groups]
        return [(g, calls) for g, calls in pairs if calls]
