"""Steps of objects that are entries of a mapping, or the mapping."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.lower.steps import Step
from codegen.spec.model import Call, Given


@dataclass
class ReturnKey(Step):
    """Returns the name of the entry that the object represents."""


@dataclass
class ReadEntry(Step):
    """Returns the result of a call for the entry that the object represents; no value if the call ``when`` returns false."""

    call: Call
    type: str
    when: Call | None = None
    set: Call | None = None


@dataclass
class ReadNamesOfEntry(Step):
    """Returns names that belong to the entry that the object represents."""

    count: Call
    name: Call


@dataclass
class ReadAttribute(Step):
    """Returns an attribute, by the name of the method, of the entry that the object represents; programs can assign to it."""

    get: Call
    set: Call
    type: str


@dataclass
class ReturnView(Step):
    """Returns a view into the object."""

    type: str


@dataclass
class Describe(Step):
    """Returns a human-readable representation."""


@dataclass
class GetEntry(Step):
    """Returns an entry by its name."""

    call: Call
    name: Given


@dataclass
class SetEntry(Step):
    """Sets an entry by its name."""

    call: Call
    name: Given
    value: Given


@dataclass
class HasEntry(Step):
    """Returns whether there is an entry with a name."""

    name: Given


@dataclass
class IterateEntries(Step):
    """Iterates over (name, entry) pairs."""


@dataclass
class CountEntries(Step):
    """Returns the number of entries."""
