"""Patterns of properties, whose type is known only at run time."""

from __future__ import annotations

from codegen.lower.arguments import bound, operands_of
from codegen.lower.operands import AddressOf, Out, Passed, Receiver, ValueOf
from codegen.lower.pattern import pattern
from codegen.lower.reading_steps import ReadByType, StoreByType
from codegen.lower.steps import Convert, Invoke, Step
from codegen.spec.model import Class, Method


@pattern("call", parameters=("property_name", "property_value"), fails=())
def property_set(cls: Class, m: Method) -> list[Step]:
    """Lower setting a property of a checkpoint. A method has a fixed type, or takes the type of the value."""
    name, value = bound(m, m.call)
    kind, _ = m.call.parameters[2:4]
    if m.property_type:
        operands = [Receiver(), Passed(name), ValueOf(kind.type, m.property_type), AddressOf(value)]
        return [Convert(name), Convert(value), Invoke(m.call, operands)]
    operands = [Receiver(), Passed(name), Out(kind), AddressOf(value)]
    return [Convert(name), StoreByType(m.call, operands, value)]


@pattern("call", parameters=("property_name",))
def property_get(cls: Class, m: Method) -> list[Step]:
    """Lower getting a property of a checkpoint. A method has a fixed type, or returns any type."""
    (name,) = bound(m, m.call)
    operands = operands_of(m.call, [name], receiver=True)
    return [Convert(name), ReadByType(m.call, operands, m.property_type)]
