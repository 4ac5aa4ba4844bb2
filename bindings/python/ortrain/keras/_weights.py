"""Trained weights back into a Keras model, and those of a model into a checkpoint."""

from __future__ import annotations

from typing import Any

import keras

from ortrain._frameworks.weights import UnmatchedNames, arrays_of, copy_weights, update
from ortrain.keras._names import variables_of


def load_into(model: Any, checkpoint: Any) -> UnmatchedNames:
    """Write the weights of a checkpoint into a model, by their paths.

    Running statistics of batch normalization are weights too. Integer variables, such as the states of random
    generators, are not.

    Parameters
    ----------
    model : keras.Model
        The model that was exported, or one whose variables have the same paths and shapes. Keras numbers the layers of a
        process that have no name, so a model that is built again has other paths (``dense_2``) unless
        ``keras.utils.clear_session()`` was called before, or its layers and itself have names.
    checkpoint
        What has the weights: a checkpoint or its path, the path of a folder of artifacts, a `Trainer`, an
        `ArtifactReport`, or a mapping of arrays by name such as that of ``numpy.load``.

    Returns
    -------
    UnmatchedNames
        The weights that only the model has, and those that only the checkpoint has.

    Raises
    ------
    TypeError
        When ``model`` is not a Keras model.
    ValueError
        When shapes differ. Nothing has changed then. Also when a model has no variables yet.
    FileNotFoundError
        When there is no checkpoint.
    """
    variables = _floating(model)
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    return copy_weights(arrays_of(checkpoint), shapes, lambda name, array: variables[name].assign(array))


def update_checkpoint(checkpoint: Any, model: Any) -> UnmatchedNames:
    """Write the weights of a model into a checkpoint, by their paths: the reverse of :func:`load_into`.

    The state of the optimizer stays as it is. A checkpoint that is given by a path is saved again; a mapping is not possible
    here.

    Returns
    -------
    UnmatchedNames
        The weights that only the checkpoint has, and those that only the model has.
    """
    variables = _floating(model)
    return update(checkpoint, {n: keras.ops.convert_to_numpy(v) for n, v in variables.items()})


def _floating(model: Any) -> dict[str, Any]:
    """Return the variables that are weights."""
    if not isinstance(model, keras.Model):
        raise TypeError(f"model: expected a keras.Model, found {type(model).__name__}")
    variables = variables_of(model)
    return {name: v for name, v in variables.items() if keras.backend.is_float_dtype(v.dtype)}
