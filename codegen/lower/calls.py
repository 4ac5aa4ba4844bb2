"""Patterns of methods that make one call, or none."""

from __future__ import annotations

from codegen.lower.arguments import bound, call_steps, conversions, operands_of
from codegen.lower.pattern import pattern
from codegen.lower.steps import (
    CheckDevice,
    CheckProviders,
    Default,
    Invoke,
    KeepAlive,
    Make,
    MakeFromPathOrBytes,
    Return,
    Step,
)
from codegen.spec.model import Call, Class, Given, Method, argument_kind


@pattern("call", open=True)
def direct(cls: Class, m: Method) -> list[Step]:
    """Lower a call on the object."""
    return call_steps(m.call, bound(m, m.call), True, m.returns is not None, m.fixed)


@pattern("call", open=True)
def static(cls: Class, m: Method) -> list[Step]:
    """Lower a call that needs no object, or takes it as an argument."""
    return call_steps(m.call, bound(m, m.call), False, m.returns is not None, m.fixed)


@pattern("call", optional=("device_count", "device_name"), parameters=("device", "unused"), open=True)
def create(cls: Class, m: Method) -> list[Step]:
    """Lower a call that creates an object. Programs may pass the unused parameter, which has no effect."""
    given = bound(m, m.call)
    steps: list[Step] = []
    for g in given:
        if g.role == "device":
            steps.append(CheckDevice(g))
        elif g.role == "unused":
            continue
        elif g.nullable and g.passed and not g.passed.nullable:
            steps.append(Default(g))
    given = [g for g in given if g.role not in ("device", "unused")]
    steps += conversions(m.call, given)
    steps.append(Make(m.call, operands_of(m.call, given, False, made=True, fixed=m.fixed)))
    return steps + [KeepAlive(g) for g in given if g.passed and g.passed.mutable]


@pattern("call", open=True)
def attach(cls: Class, m: Method) -> list[Step]:
    """Lower a call that adds something to another object, of which the new object is a view."""
    given = bound(m, m.call)
    owner = next(g for g in given if g.type == cls.view_of)
    operands = operands_of(m.call, given, receiver=False)
    return [*conversions(m.call, given), Invoke(m.call, operands), KeepAlive(owner, owner=True)]


@pattern("file", "buffer", parameters=("model", "options", "providers", "provider_options"))
def load(cls: Class, m: Method) -> list[Step]:
    """Lower the creation of an object from a file or from bytes."""
    model, options, providers, more = (
        m.parameter(r) for r in ("model", "options", "providers", "provider_options")
    )
    made = MakeFromPathOrBytes(model, options, m.calls["file"], m.calls["buffer"])
    return [CheckProviders(providers, more), Default(options), made]


@pattern("call", open=True)
def allocated_name(cls: Class, m: Method) -> list[Step]:
    """Lower a name by index, in memory of an allocator of the caller."""
    return [Invoke(m.call, operands_of(m.call, bound(m, m.call), receiver=True)), Return(m.call.results)]


@pattern(parameters=("*",))
def by_hand(cls: Class, m: Method) -> list[Step]:
    """Lower a method to no steps: the class is written by hand, and the spec only has signatures and documentation."""
    return []


@pattern()
def field(cls: Class, m: Method) -> list[Step]:
    """Lower a field of an object that consists of fields only."""
    return []


def function_of(call: Call) -> list[Step]:
    """Return the steps of a function that makes one call and takes all of its arguments."""
    given = [
        Given(p.name, argument_kind(p), p.doc, nullable=p.nullable, own=p.name, passed=p)
        for p in call.arguments
    ]
    return call_steps(call, given, receiver=False, returns=True)
