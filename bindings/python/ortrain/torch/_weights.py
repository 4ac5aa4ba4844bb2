"""Trained weights back into a network, and those of a network into a checkpoint."""

from __future__ import annotations

from typing import Any

import torch

from ortrain._frameworks.weights import UnmatchedNames, arrays_of, copy_weights, update
from ortrain.torch._state import State, array_of, tensor_of, unwrapped


def load_into(module: Any, checkpoint: Any) -> UnmatchedNames:
    """Write the weights of a checkpoint into a network, by their names in ``state_dict``.

    Running statistics of batch normalization are weights too. Integer buffers, which training does not change, keep their
    values and do not count as missing.

    Parameters
    ----------
    module : torch.nn.Module
        The network from which the checkpoint's model was exported, or a network with the same names and shapes. Values are
        converted to the types and devices of its parameters.
    checkpoint : str or os.PathLike or CheckpointState or Trainer or ArtifactReport or mapping
        A checkpoint, a folder of artifacts, or an object that has a checkpoint; or arrays by name, such as those of
        ``numpy.load``.

    Returns
    -------
    UnmatchedNames
        ``missing_keys``, which only the module has, and ``unexpected_keys``, which only the checkpoint has.

    Raises
    ------
    ValueError
        When shapes differ. Nothing has changed then.
    FileNotFoundError
        When there is no checkpoint.
    """
    module = unwrapped(module)
    state = State.of(module)

    def write(name: str, array: Any) -> None:
        with torch.no_grad():
            state.tensors[name].copy_(tensor_of(array))

    weights = {state.aliases.get(name, name): array for name, array in arrays_of(checkpoint).items()}
    return copy_weights(weights, _shapes(state), write, _not_trained(module, state))


def update_checkpoint(checkpoint: Any, module: Any) -> UnmatchedNames:
    """Write the weights of a network into a checkpoint, by name.

    Parameters
    ----------
    checkpoint : str or os.PathLike or CheckpointState or Trainer or ArtifactReport
        The checkpoint. If it is given by its path, or by the path of its folder, the file is written again. The state of the
        optimizer does not change.
    module : torch.nn.Module
        The network.

    Returns
    -------
    UnmatchedNames
        ``missing_keys``, which only the checkpoint has, and ``unexpected_keys``, which only the module has.

    Raises
    ------
    ValueError
        When shapes differ. Nothing has changed then.
    FileNotFoundError
        When there is no checkpoint.
    """
    module = unwrapped(module)
    state = State.of(module)
    arrays = {name: array_of(tensor) for name, tensor in state.tensors.items()}
    return update(checkpoint, arrays, _not_trained(module, state))


def _shapes(state: State) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.tensors.items()}


def _not_trained(module: Any, state: State) -> list[str]:
    """Return the names of tensors that a checkpoint may lack: integers, and buffers that ``state_dict`` leaves out."""
    stored = module.state_dict(keep_vars=True).keys()
    return [
        name
        for name, tensor in state.tensors.items()
        if not tensor.is_floating_point() or (name not in state.parameters and name not in stored)
    ]
