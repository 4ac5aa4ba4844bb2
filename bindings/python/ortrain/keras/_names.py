"""The names of a model's variables."""

from __future__ import annotations

import itertools
from typing import Any

import keras


def variables_of(model: Any) -> dict[str, Any]:
    """Return the variables of a model by their paths, such as ``sequential/dense/kernel``.

    Layers may have equal names. Then several variables have one path, and all but the first get a number. The paths of a
    sequential model begin with its name, unless the model was read from a file: then this function adds the name, so that the
    names do not depend on the file.

    Raises
    ------
    ValueError
        When layers have not created their variables yet, which they do in the first call.
    """
    if not model.built:
        raise ValueError(
            f"the model {model.name!r} has no variables yet; call it once, so that its layers create them"
        )
    named: dict[str, Any] = {}
    scope = f"{model.name}/" if isinstance(model, keras.Sequential) else ""
    if any(variable.path.startswith(scope) for variable in model.variables):
        scope = ""
    for variable in model.variables:
        path = scope + variable.path
        names = itertools.chain([path], (f"{path}_{n}" for n in itertools.count(1)))
        named[next(name for name in names if name not in named)] = variable
    return named
