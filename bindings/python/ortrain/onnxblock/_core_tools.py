"""Calls of the core for creating artifacts. No other module for artifacts calls the extension."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain import _ortrain


def find_untrainable(
    model: bytes, trainable: Sequence[str], inputs: Sequence[str], loss: str, outputs: Sequence[str]
) -> str:
    """Return every reason why the model cannot be trained, one reason per line; an empty text if it can be trained."""
    return _ortrain.find_untrainable(model, list(trainable), list(inputs), loss, list(outputs))


def find_unreached(model: bytes, trainable: Sequence[str], loss: str, outputs: Sequence[str]) -> list[str]:
    """Return the parameters that no gradient of the loss reaches."""
    lines = _ortrain.find_unreached(model, list(trainable), loss, list(outputs))
    return [name for name in lines.split("\n") if name]


def build_training_model(
    model: bytes,
    trainable: Sequence[str],
    frozen: Sequence[str],
    inputs: Sequence[str],
    loss: str,
    outputs: Sequence[str],
    disabled_passes: Sequence[str],
) -> bytes:
    """Return the training model of a forward model; the gradients of ``inputs`` are among its outputs."""
    return _ortrain.build_training_model(
        model, list(trainable), list(frozen), list(inputs), loss, list(outputs), list(disabled_passes)
    )


def save_checkpoint(
    names: Sequence[str],
    values: Iterable[npt.NDArray[Any]],
    trainable: Sequence[bool],
    path: str,
    nominal: bool,
) -> None:
    """Write a checkpoint with the given parameters. Only one value has to be in memory at a time."""
    state = _ortrain.create_checkpoint([], [], [], nominal)
    for name, value, trained in zip(names, values, trainable, strict=True):
        # np.ascontiguousarray would make one element of shape (1,) of a rank-0 array.
        tensor = _ortrain.OrtValue.ortvalue_from_numpy(np.asarray(value, order="C"))
        _ortrain.checkpoint_add_parameter(state, name, tensor, trained)
    _ortrain.save_checkpoint(state, path, False)


def load_checkpoint(path: str) -> dict[str, npt.NDArray[Any]]:
    """Return the parameters of a checkpoint, by name."""
    state = _ortrain.load_checkpoint(path)
    names = [
        _ortrain.checkpoint_get_parameter_name(state, index)
        for index in range(_ortrain.checkpoint_get_parameter_count(state))
    ]
    return {name: _ortrain.get_parameter(state, name).numpy() for name in names}


def list_optimizers() -> str:
    """Return the JSON text that describes the optimizers of the library."""
    return _ortrain.list_optimizers()
