"""The names of a model's variables."""

from __future__ import annotations

import itertools
from typing import Any


def variables_of(model: Any) -> dict[str, Any]:
    """Return the variables of a model by their paths, such as ``sequential/dense/kernel``.

    Layers may have equal names; then all but the first of the variables with one path get a number.

    Raises
    ------
    ValueError
        When layers have not created them yet, which they do in the first call.
    """
    if not model.built:
        raise ValueError(
            f"the model {model.name!r} has no variables yet; call it once, so that its layers create them"
        )
    named: dict[str, Any] = {}
    for variable in model.variables:
        names = itertools.chain([variable.path], (f"{variable.path}_{n}" for n in itertools.count(1)))
        named[next(name for name in names if name not in named)] = variable
    return named
