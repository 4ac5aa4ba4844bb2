"""Patterns of settings."""

from __future__ import annotations

from codegen.lower.arguments import operands_of
from codegen.lower.operands import Receiver
from codegen.lower.pattern import pattern
from codegen.lower.steps import Choose, Convert, Invoke, Remember, Step
from codegen.spec.model import Class, Given, Method

SETTINGS = ("option", "switch", "kept")
"""The patterns of settings: properties in some languages, setters in others."""


def value_of_setting(m: Method) -> Given:
    """Return the value of a setting, its only parameter."""
    p = m.call.arguments[1] if m.pattern == "option" else None
    kind = m.returns.type if m.returns else (p.type if p else "bool")
    doc = m.returns.doc if m.returns else (p.doc if p else "")
    name = p.name if p else m.name
    return Given(name, kind, doc, passed=p)


@pattern("call")
def option(cls: Class, m: Method) -> list[Step]:
    """Lower a setting with one call."""
    (value,) = m.parameters
    operands = operands_of(m.call, [value], receiver=True)
    return [Convert(value), Invoke(m.call, operands), Remember(value)]


@pattern()
def kept(cls: Class, m: Method) -> list[Step]:
    """Lower a setting without an effect, for programs that set it."""
    (value,) = m.parameters
    return [Remember(value)]


@pattern("enable", "disable")
def switch(cls: Class, m: Method) -> list[Step]:
    """Lower a setting with a call that enables it and a call that disables it."""
    on, off = (Invoke(m.calls[role], [Receiver()]) for role in ("enable", "disable"))
    (value,) = m.parameters
    return [Choose(value, [on], [off]), Remember(value)]
