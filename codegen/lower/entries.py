"""Patterns of mappings and of their entries."""

from __future__ import annotations

from codegen.lower.arguments import bound
from codegen.lower.entry_steps import (
    CountEntries,
    Describe,
    GetEntry,
    HasEntry,
    IterateEntries,
    ReadAttribute,
    ReadEntry,
    ReturnKey,
    ReturnView,
    SetEntry,
)
from codegen.lower.pattern import pattern
from codegen.lower.steps import Step
from codegen.spec.model import Class, Method


@pattern()
def key(cls: Class, m: Method) -> list[Step]:
    """Lower the name of an entry."""
    return [ReturnKey()]


@pattern("call", optional=("when", "set"), fails=("when", "call"))
def keyed_value(cls: Class, m: Method) -> list[Step]:
    """Lower the result of a call for an entry; no value if the call ``when`` returns false for the entry.

    With a call that sets the entry, programs can assign to the property. The value that they read is read-only.
    """
    kind = m.returns.type if m.returns else ""
    return [ReadEntry(m.call, kind, m.calls.get("when"), m.calls.get("set"))]


@pattern("get", "set")
def keyed_attribute(cls: Class, m: Method) -> list[Step]:
    """Lower an attribute of an entry that calls get and set by its name, the name of the method."""
    return [ReadAttribute(m.calls["get"], m.calls["set"], m.returns.type if m.returns else "")]


@pattern()
def view(cls: Class, m: Method) -> list[Step]:
    """Lower a view into the object."""
    return [ReturnView(m.returns.type if m.returns else "")]


@pattern()
def describe(cls: Class, m: Method) -> list[Step]:
    """Lower a human-readable representation."""
    return [Describe()]


@pattern("call", parameters=("parameter_name", "property_name", "group_name"))
def map_get(cls: Class, m: Method) -> list[Step]:
    """Lower an entry by its name."""
    return [GetEntry(m.call, m.parameters[0])]


@pattern("call", open=True)
def map_set(cls: Class, m: Method) -> list[Step]:
    """Lower setting an entry by its name."""
    return [SetEntry(m.call, *bound(m, m.call))]


@pattern(parameters=("name",))
def map_contains(cls: Class, m: Method) -> list[Step]:
    """Lower a check for an entry with a name."""
    return [HasEntry(m.parameters[0])]


@pattern()
def map_iterate(cls: Class, m: Method) -> list[Step]:
    """Lower all entries with their names."""
    return [IterateEntries()]


@pattern()
def map_length(cls: Class, m: Method) -> list[Step]:
    """Lower the number of entries."""
    return [CountEntries()]
