"""Trained weights back into a Keras model, and those of a model into a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from ortrain._frameworks.weights import UnmatchedNames, arrays_of, copy_weights, state_of, update
from ortrain.keras._names import variables_of


def load_into(model: Any, checkpoint: Any) -> UnmatchedNames:
    """Write the weights of a checkpoint into a model, by their paths.

    Running statistics of batch normalization are weights too. Integer variables, such as the states of random
    generators, are not.

    Parameters
    ----------
    model : keras.Model
        The model that was exported, or a model whose variables have the same paths and shapes. Keras numbers layers without a
        name, so a model that a process builds again has other paths (``dense_2``), unless the program calls
        ``keras.utils.clear_session()`` first or gives names to the model and its layers.
    checkpoint
        The source of the weights: a checkpoint or its path, the path of a folder of artifacts, a `Trainer`, an
        `ArtifactReport`, or a mapping of arrays by name such as the result of ``numpy.load``.

    Returns
    -------
    UnmatchedNames
        The weights that only the model has, and the weights that only the checkpoint has.

    Raises
    ------
    TypeError
        When ``model`` is not a Keras model.
    ValueError
        When shapes differ; then no weight has changed. Also when the model has no variables yet.
    FileNotFoundError
        When there is no checkpoint.
    """
    weights = arrays_of(checkpoint)
    variables = _named_alike(_floating(model), weights)
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    return copy_weights(weights, shapes, lambda name, array: variables[name].assign(array))


def update_checkpoint(checkpoint: Any, model: Any) -> UnmatchedNames:
    """Write the weights of a model into a checkpoint, by their paths: the reverse of :func:`load_into`.

    The state of the optimizer does not change. If the checkpoint is given by a path, the file is written again. A mapping is
    not accepted.

    Returns
    -------
    UnmatchedNames
        The weights that only the checkpoint has, and the weights that only the model has.
    """
    state = state_of(checkpoint)
    variables = _named_alike(_floating(model), dict(state.parameters))
    return update(checkpoint, {n: keras.ops.convert_to_numpy(v) for n, v in variables.items()})


def _named_alike(variables: dict[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a model by the names in a checkpoint, if the two differ only in the model's name at the start."""
    inner = {name.partition("/")[2]: variable for name, variable in variables.items()}
    scopes = {name.partition("/")[0] for name in known}
    named = [variables, inner] if len(inner) == len(variables) else [variables]
    if len(scopes) == 1:
        (scope,) = scopes
        named += [{f"{scope}/{name}": variable for name, variable in names.items()} for names in named]
    return max(named, key=lambda names: len(names.keys() & known.keys()))


def _floating(model: Any) -> dict[str, Any]:
    """Return the variables that are weights."""
    if not isinstance(model, keras.Model):
        raise TypeError(f"model: expected a keras.Model, found {type(model).__name__}")
    variables = variables_of(model)
    return {name: v for name, v in variables.items() if keras.backend.is_float_dtype(v.dtype)}
