"""Trained weights back into a network of JAX, and those of a network into a checkpoint."""

from __future__ import annotations

from typing import Any

import flax.nnx
import jax
import numpy as np

from ortrain._frameworks.weights import UnmatchedNames, arrays_of, copy_weights, update
from ortrain.jax._networks import Weights, floating, nnx_weights, tree_weights


def load_params(params: Any, checkpoint: Any) -> tuple[Any, UnmatchedNames]:
    """Return a tree of parameters with the weights of a checkpoint, by their paths.

    Parameters
    ----------
    params : tree of arrays
        The tree that was given to :func:`ortrain.jax.export`, or a tree of the same structure. It is not changed.
    checkpoint
        The source of the weights: a checkpoint or its path, the path of a folder of artifacts, a `Trainer`, an
        `ArtifactReport`, or a mapping of arrays by name such as the result of ``numpy.load``.

    Returns
    -------
    params : tree of arrays
        The same structure with the values of the checkpoint.
    unmatched : UnmatchedNames
        The weights that only the tree has, and the weights that only the checkpoint has. Integers, which no checkpoint
        contains, do not count.

    Raises
    ------
    ValueError
        When shapes differ, or no name matches.
    FileNotFoundError
        When there is no checkpoint.
    """
    weights, tree = tree_weights(params)
    loaded, unmatched = _loaded(weights, checkpoint)
    return jax.tree_util.tree_unflatten(tree, list({**weights.values, **loaded}.values())), unmatched


def load_into(module: Any, checkpoint: Any) -> UnmatchedNames:
    """Write the weights of a checkpoint into a ``flax.nnx`` module, by their paths: :func:`load_params` for modules.

    Parameters
    ----------
    module : flax.nnx.Module
        The module that was exported, or one of the same structure.
    checkpoint
        See :func:`load_params`.

    Raises
    ------
    TypeError
        When the argument is not such a module.
    ValueError
        When shapes differ, or no name matches. Then no weight has changed.
    """
    if not isinstance(module, flax.nnx.Module):
        raise TypeError(
            f"module: expected a flax.nnx.Module, found {type(module).__name__}; load_params returns the parameters of "
            "other networks"
        )
    loaded, unmatched = _loaded(nnx_weights(module), checkpoint)
    state = flax.nnx.to_flat_state(flax.nnx.state(module))
    changed = [
        (path, variable.replace(loaded[name]))
        for path, variable in state
        if (name := "/".join(map(str, path))) in loaded
    ]
    flax.nnx.update(module, flax.nnx.from_flat_state(changed))
    return unmatched


def update_checkpoint(checkpoint: Any, params: Any) -> UnmatchedNames:
    """Write the weights of a network into a checkpoint, by their paths: the reverse of :func:`load_params`.

    The state of the optimizer does not change. If the checkpoint is given by a path, the file is written again. A mapping is
    not accepted.

    Parameters
    ----------
    checkpoint
        See :func:`load_params`.
    params : tree of arrays or flax.nnx.Module
        The weights.

    Returns
    -------
    UnmatchedNames
        The weights that only the checkpoint has, and the weights that only the network has.
    """
    weights = nnx_weights(params) if isinstance(params, flax.nnx.Module) else tree_weights(params)[0]
    arrays = {name: np.asarray(value) for name, value in weights.values.items()}
    return update(checkpoint, arrays, arrays.keys() - floating(weights.values, weights.values))


def _loaded(weights: Weights, checkpoint: Any) -> tuple[dict[str, Any], UnmatchedNames]:
    """Return the weights that the checkpoint has, with the values of the checkpoint."""
    values = weights.values
    loaded: dict[str, Any] = {}

    def write(name: str, array: Any) -> None:
        loaded[name] = jax.numpy.asarray(array, values[name].dtype)

    shapes = {name: tuple(np.shape(value)) for name, value in values.items()}
    return loaded, copy_weights(
        arrays_of(checkpoint), shapes, write, values.keys() - floating(values, values)
    )
