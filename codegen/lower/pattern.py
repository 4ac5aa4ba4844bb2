"""Patterns: ways in which methods use calls, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from codegen.lower.steps import Step
from codegen.spec.model import Class, Method

Lowering = Callable[[Class, Method], list[Step]]


@dataclass
class Pattern:
    """A way to use calls: the roles of its calls and parameters, and the steps of its methods."""

    calls: tuple[str, ...]
    optional: tuple[str, ...]
    parameters: tuple[str, ...]
    open: bool
    fails: tuple[str, ...]
    lower: Lowering


PATTERNS: dict[str, Pattern] = {}
"""Every pattern by its name."""


def pattern(
    *calls: str,
    optional: Sequence[str] = (),
    parameters: Sequence[str] = (),
    open: bool = False,
    fails: Sequence[str] | None = None,
) -> Callable[[Lowering], Lowering]:
    """Register a pattern under the name of its function.

    Parameters
    ----------
    calls, optional : str
        Roles of the calls that the pattern needs, and of calls that it may have.
    parameters : sequence of str
        Roles of the parameters that a method may have; ``*`` for any.
    open : bool
        Whether the parameters of its methods are the parameters of the call, by name, instead of fixed roles.
    fails : sequence of str, optional
        Roles of the calls whose errors a caller can get; by default all. For example, an index below a count that another call
        returned is always valid, so the call with the index cannot fail.
    """

    def register(function: Lowering) -> Lowering:
        met = calls if fails is None else tuple(fails)
        PATTERNS[function.__name__] = Pattern(calls, tuple(optional), tuple(parameters), open, met, function)
        return function

    return register
