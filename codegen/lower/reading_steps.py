"""Steps that return or store several values, or a value whose type is known only at run time."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.lower.operands import Operand
from codegen.lower.steps import Step
from codegen.spec.model import Call, Given


@dataclass
class ReadNames(Step):
    """Returns names, of which one call returns the count and another one each name by index."""

    count: Call
    name: Call


@dataclass
class ReadNumbers(Step):
    """Returns numbers, of which one call returns the count and another one fills an array."""

    count: Call
    fill: Call


@dataclass
class ReadInfos(Step):
    """Returns name, type and shape of inputs or outputs: one call returns the count, two describe each by index."""

    count: Call
    name: Call
    type: Call


@dataclass
class ReadInfosOfMode(Step):
    """Returns name, type and shape of the inputs in the mode of the object."""

    type: Call


@dataclass
class ReadByType(Step):
    """Makes a call that returns a value and its type; with ``wanted``, rejects any other type."""

    call: Call
    operands: list[Operand]
    wanted: str


@dataclass
class StoreByType(Step):
    """Makes a call with the address of a value whose type is known only at run time."""

    call: Call
    operands: list[Operand]
    argument: Given
