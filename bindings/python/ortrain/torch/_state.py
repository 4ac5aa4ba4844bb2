"""The parameters and buffers of a network, and their replacement during an export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class State:
    """The parameters and buffers of a network.

    Attributes
    ----------
    tensors : dict of str to torch.Tensor
        Each tensor once, under its first name.
    aliases : dict of str to str
        The further names of tensors, each with the first one.
    parameters : dict of str to bool
        The names of the parameters, and whether each requires a gradient.
    """

    tensors: dict[str, Any]
    aliases: dict[str, str]
    parameters: dict[str, bool]

    @classmethod
    def of(cls, network: Any) -> State:
        """Return the state of a network."""
        state = cls({}, {}, {})
        first: dict[Any, str] = {}
        for name, parameter in network.named_parameters(remove_duplicate=False):
            if state._add(name, parameter, first):
                state.parameters[name] = bool(parameter.requires_grad)
            elif parameter.requires_grad:
                state.parameters[state.aliases[name]] = True
        for name, buffer in network.named_buffers(remove_duplicate=False):
            state._add(name, buffer, first)
        return state

    def _add(self, name: str, tensor: Any, first: dict[Any, str]) -> bool:
        """Add a tensor under a name; return whether this is the tensor's first name."""
        same = first.setdefault(_identity(tensor), name)
        if same != name:
            self.aliases[name] = same
            return False
        self.tensors[name] = tensor
        return True

    def arrays(self) -> dict[str, Any]:
        """Return the values as arrays."""
        return {name: array_of(tensor) for name, tensor in self.tensors.items()}


def unwrapped(module: Any) -> Any:
    """Return the network inside the module that ``torch.compile``, DataParallel or DistributedDataParallel returned.

    Names of weights in the result do not have the wrapper's prefix.

    Raises
    ------
    TypeError
        When the argument is not a module.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module: expected a torch.nn.Module, found {type(module).__name__}")
    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    inner = module.module if isinstance(module, parallel) else getattr(module, "_orig_mod", None)
    return module if inner is None else unwrapped(inner)


def _identity(tensor: Any) -> Any:
    """Return a key that is equal for two tensors over the same memory."""
    if tensor.numel() == 0:
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def array_of(tensor: Any) -> Any:
    """Return a copy of a tensor's values as an array; bfloat16 with the type of ``ml_dtypes``."""
    values = tensor.detach().cpu()
    if values.dtype == torch.bfloat16:
        import ml_dtypes

        return values.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return np.array(values.numpy())


def tensor_of(array: Any) -> Any:
    """Return an array, such as :func:`array_of` returns, as a tensor that owns its memory."""
    contiguous = np.ascontiguousarray(array)
    if contiguous.dtype.name == "bfloat16":
        return torch.from_numpy(contiguous.view(np.int16).copy()).view(torch.bfloat16).reshape(array.shape)
    return torch.from_numpy(contiguous.copy()).reshape(array.shape)


@contextmanager
def exchanged(network: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Give the parameters and buffers of a network other values; restore the old values at the end, also after an error.

    The tensors stay the same objects, so that all references to them see the values. Changes that the network's code makes in
    the meantime are undone: running statistics, modes, attributes of modules, the state of the random generators.

    Parameters
    ----------
    network : torch.nn.Module
        The network.
    values : Mapping[str, numpy.ndarray]
        Values by name, for each tensor of :class:`State`.
    """
    state = State.of(network)
    every = [
        *network.named_parameters(remove_duplicate=False),
        *network.named_buffers(remove_duplicate=False),
    ]
    before = [(tensor, tensor.data) for _, tensor in every]
    attributes = [(module, _attributes(module)) for module in network.modules()]
    devices = sorted({t.device.index for _, t in every if t.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        try:
            made: dict[str, Any] = {}
            for name, tensor in every:
                own = state.aliases.get(name, name)
                if own not in made:
                    made[own] = tensor_of(values[own]).to(tensor.device)
                tensor.data = made[own]
            yield
        finally:
            for tensor, data in before:
                tensor.data = data
            for module, saved in attributes:
                _restore(module, saved)


def _attributes(module: Any) -> tuple[dict[str, Any], dict[str, dict[Any, Any]]]:
    """Return the attributes of a module, and the contents of those that are dictionaries, such as its hooks."""
    tables = {name: dict(value) for name, value in module.__dict__.items() if isinstance(value, dict)}
    return dict(module.__dict__), tables


def _restore(module: Any, saved: tuple[dict[str, Any], dict[str, dict[Any, Any]]]) -> None:
    attributes, tables = saved
    module.__dict__.clear()
    module.__dict__.update(attributes)
    for name, table in tables.items():
        own = module.__dict__[name]
        own.clear()
        own.update(table)
