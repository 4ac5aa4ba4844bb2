"""Weights between a checkpoint and the network of a framework, by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ortrain.api import CheckpointState
from ortrain.errors import NoSuchFileError

Array = npt.NDArray[Any]


class UnmatchedNames(NamedTuple):
    """The names that did not match when weights were copied by name. Both lists are empty if all names matched."""

    missing_keys: list[str]
    """Weights that only the target has; they keep their values."""
    unexpected_keys: list[str]
    """Weights that only the source has; they are not used."""


def state_of(checkpoint: Any) -> CheckpointState:
    """Return the state of a checkpoint.

    Parameters
    ----------
    checkpoint : CheckpointState, str or os.PathLike, or object
        A state; the path of a checkpoint or of a folder of artifacts; or an object with a state, such as a `Trainer`, or with
        the path of a checkpoint, such as an `ArtifactReport`.

    Raises
    ------
    TypeError
        When the argument is none of these.
    FileNotFoundError
        When there is no such file.
    """
    if isinstance(checkpoint, CheckpointState):
        return checkpoint
    state = getattr(checkpoint, "state", None)
    if isinstance(state, CheckpointState):
        return state
    path = getattr(checkpoint, "checkpoint", checkpoint)
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            "checkpoint: expected a CheckpointState, a Trainer, an ArtifactReport or a path, "
            f"found {type(checkpoint).__name__}"
        )
    return CheckpointState.load_checkpoint(file_of(path))


def file_of(path: str | os.PathLike[str]) -> Path:
    """Return the path of a checkpoint, given that path or the path of its folder."""
    file = Path(path) / "checkpoint" if Path(path).is_dir() else Path(path)
    if not file.exists():
        raise NoSuchFileError(f"there is no checkpoint at {str(file)!r}")
    return file


def arrays_of(checkpoint: Any) -> dict[str, Array]:
    """Return the values of all parameters of a checkpoint by name, running statistics among them.

    Parameters
    ----------
    checkpoint : Mapping[str, array] or object
        Arrays by name, which are returned, or an argument of :func:`state_of`.
    """
    if isinstance(checkpoint, Mapping):
        return {str(name): np.asarray(array) for name, array in checkpoint.items()}
    return {name: parameter.data for name, parameter in state_of(checkpoint).parameters}


def copy_weights(
    source: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    write: Callable[[str, Any], None],
    optional: Iterable[str] = (),
) -> UnmatchedNames:
    """Copy weights by name: all, or none if there is an error.

    Parameters
    ----------
    source : Mapping[str, array]
        The weights.
    shapes : Mapping[str, tuple of int]
        The shapes of the target's weights.
    write : callable
        Called with each name and its array.
    optional : iterable of str
        Weights that count as neither missing nor unexpected.

    Raises
    ------
    ValueError
        When shapes differ, or no name is the name of a weight of the target. Nothing has been written then.
    """
    common = [name for name in source if name in shapes]
    wrong = [
        f"{name} is {list(np.shape(source[name]))}, expected {list(shapes[name])}"
        for name in common
        if tuple(np.shape(source[name])) != tuple(shapes[name])
    ]
    if wrong:
        raise ValueError(f"the shapes of weights differ: {'; '.join(wrong)}")
    ignored = set(optional)
    unmatched = UnmatchedNames(
        [name for name in shapes if name not in source and name not in ignored],
        [name for name in source if name not in shapes and name not in ignored],
    )
    if not common and unmatched.missing_keys and unmatched.unexpected_keys:
        raise ValueError(
            f"no weight has the same name on both sides, such as {unmatched.unexpected_keys[0]!r} and "
            f"{unmatched.missing_keys[0]!r}: is this the checkpoint of another network, or are layers named or numbered in "
            "another way?"
        )
    for name in common:
        write(name, source[name])
    return unmatched


def update(checkpoint: Any, weights: Mapping[str, Array], optional: Iterable[str] = ()) -> UnmatchedNames:
    """Write weights into a checkpoint by name. If the checkpoint is given by its path, the file is written again.

    The state of the optimizer does not change. See :func:`copy_weights` for ``optional`` and errors.
    """
    state = state_of(checkpoint)
    parameters = dict(state.parameters)
    dtypes = {name: parameter.data.dtype for name, parameter in parameters.items()}

    def write(name: str, array: Array) -> None:
        state.parameters[name] = np.ascontiguousarray(array, dtypes[name])

    unmatched = copy_weights(
        weights, {name: parameter.data.shape for name, parameter in parameters.items()}, write, optional
    )
    changed = getattr(checkpoint, "parameters_changed", None)
    if callable(changed):
        changed()
    path = getattr(checkpoint, "checkpoint", checkpoint)
    if isinstance(path, (str, os.PathLike)):
        CheckpointState.save_checkpoint(state, file_of(path), include_optimizer_state=True)
    return unmatched
