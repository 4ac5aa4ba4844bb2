"""Code that patterns share: the operands that a call gets from the arguments of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from codegen.lower.operands import (
    Absent,
    Allocator,
    Environment,
    Fixed,
    Length,
    Made,
    Operand,
    Out,
    Passed,
    Receiver,
    Room,
    RoomSize,
    TypeOf,
)
from codegen.lower.steps import Convert, FillRoom, Invoke, Return, SameLength, Step
from codegen.spec.model import Call, Given, Method
from codegen.spec.source import Problem, SpecError


def operands_of(
    call: Call,
    given: Sequence[Given],
    receiver: bool,
    made: bool = False,
    fixed: Mapping[str, Any] | None = None,
) -> list[Operand]:
    """Return the operands of a call: the object, the arguments in their roles, and operands that a caller does not pass.

    Raises
    ------
    SpecError
        If there is no operand for a parameter of the call.
    """
    roles = {g.role: g for g in given}
    out: list[Operand] = []
    for i, p in enumerate(call.parameters):
        arrays = call.arrays.get(p.name, [])
        if i == 0 and receiver:
            out.append(Receiver())
        elif p.name in roles:
            out.append(Passed(roles[p.name]))
        elif fixed and p.name in fixed:
            out.append(Fixed(p, str(fixed[p.name])))
        elif p.room:
            out.append(Room(p))
        elif arrays and arrays[0].room:
            out.append(RoomSize(p))
        elif p.is_result:
            out.append(Made(p) if made and p in call.results else Out(p))
        elif p.type == "allocator":
            out.append(Allocator())
        elif p.type == "env":
            out.append(Environment())
        elif arrays and arrays[0].name in roles:
            out.append(Length(roles[arrays[0].name]))
        elif (typed := call.typed_by(p)) and typed.name in roles:
            out.append(TypeOf(roles[typed.name]))
        elif p.nullable:
            out.append(Absent(p))
        else:
            message = f"expected a parameter of the method in the role {p.name}, which the call {call.name} needs, found none"
            raise SpecError([Problem("spec", 1, "", message)])
    return out


def bound(method: Method, call: Call) -> list[Given]:
    """Return the parameters of a method with the parameters of the call that they become."""
    names = {p.name: p for p in call.parameters}
    return [replace(g, passed=names.get(g.role)) for g in method.parameters]


def arguments(method: Method) -> list[Given]:
    """Return the arguments of a method, each with the parameter of the call that it becomes."""
    return bound(method, method.call) if method.calls else list(method.parameters)


def with_run_options(m: Method) -> Method | None:
    """Return a method with run options as its last parameter; None if its call takes none, or the method has them."""
    known = {g.role for g in m.parameters}
    taken = [p for p in m.call.parameters if p.type == "run_options" and p.nullable and p.name not in known]
    if not taken:
        return None
    options = Given(taken[0].name, "run_options", taken[0].doc, nullable=True)
    return replace(m, parameters=[*m.parameters, options])


def conversions(call: Call, given: Sequence[Given]) -> list[Step]:
    """Return the steps that convert arguments, and check that arrays with one length agree."""
    steps: list[Step] = [Convert(g) for g in given]
    roles = {g.role: g for g in given}
    for arrays in call.arrays.values():
        counted = [roles[a.name] for a in arrays if a.name in roles]
        steps += [SameLength(counted[0], other) for other in counted[1:]]
    return steps


def call_steps(
    call: Call,
    given: Sequence[Given],
    receiver: bool,
    returns: bool,
    fixed: Mapping[str, Any] | None = None,
) -> list[Step]:
    """Return the steps that convert the arguments of a call, make the call, and return its results."""
    operands = operands_of(call, given, receiver, fixed=fixed)
    steps = conversions(call, given)
    if any(isinstance(o, Room) for o in operands):
        return [*steps, FillRoom(call, operands)]
    steps.append(Invoke(call, operands))
    return [*steps, Return(call.results)] if returns else steps
