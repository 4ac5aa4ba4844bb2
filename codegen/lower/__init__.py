"""Lowering: a method becomes a list of steps, which every language prints.

A pattern is a function in one of the files here, one file per kind of pattern. It declares the roles of its calls and
parameters, and returns the steps of a method. A language has one macro per kind of step, and none for patterns. Lengths,
allocators, and null for arguments that a caller leaves out are operands, so no language computes the arguments of a call.
"""

from __future__ import annotations

from codegen.lower import calls, entries, lists, properties, runs, settings
from codegen.lower.arguments import arguments, with_run_options
from codegen.lower.calls import function_of
from codegen.lower.entry_steps import ReadEntry
from codegen.lower.operands import (
    Absent,
    AddressOf,
    Fixed,
    Length,
    Made,
    Names,
    Operand,
    Out,
    Passed,
    Receiver,
    Room,
    RoomSize,
    TypeOf,
    ValueOf,
    Values,
)
from codegen.lower.pattern import PATTERNS
from codegen.lower.settings import SETTINGS, value_of_setting
from codegen.lower.steps import Convert, Default, FillRoom, Invoke, Make, Remember, Return, SameLength, Step
from codegen.spec.model import Class, Method

__all__ = [
    "PATTERNS",
    "SETTINGS",
    "Absent",
    "AddressOf",
    "Convert",
    "Default",
    "FillRoom",
    "Fixed",
    "Invoke",
    "Length",
    "Made",
    "Make",
    "Names",
    "Operand",
    "Out",
    "Passed",
    "ReadEntry",
    "Receiver",
    "Remember",
    "Return",
    "Room",
    "RoomSize",
    "SameLength",
    "Step",
    "TypeOf",
    "ValueOf",
    "Values",
    "arguments",
    "calls",
    "entries",
    "errors",
    "function_of",
    "lists",
    "lower",
    "properties",
    "runs",
    "settings",
    "value_of_setting",
    "with_run_options",
]


def lower(cls: Class, method: Method) -> list[Step]:
    """Return the steps of a method."""
    return PATTERNS[method.pattern].lower(cls, method)


def errors(m: Method) -> list[dict[str, str]]:
    """Return the errors of its calls that the caller of a method can get, each once."""
    met = [m.calls[role] for role in PATTERNS[m.pattern].fails if role in m.calls]
    return list({(e["code"], e["when"]): e for call in met for e in call.errors}.values())
