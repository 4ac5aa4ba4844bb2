"""A call of a network as a function from tensors to tensors, each with a name."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree


@dataclass
class Call:
    """The arguments of a network: tensors with names, and everything else, which is constant.

    Attributes
    ----------
    names : list of str
        The names of the tensors: the name of the argument, with a key or an index if the argument holds several tensors.
    tensors : list of torch.Tensor
        Copies of the tensors.
    """

    signature: inspect.Signature
    names: list[str]
    tensors: list[Any]
    _structure: list[tuple[str, Any, list[Any]]] = field(repr=False)

    @classmethod
    def of(cls, network: Any, args: Any, kwargs: Mapping[str, Any] | None, taken: Container[str]) -> Call:
        """Return the call of a network with arguments.

        Parameters
        ----------
        network : torch.nn.Module
            The network.
        args : tensor, tuple, list or mapping
            One argument, the positional arguments, or the arguments by name. Arrays become tensors.
        kwargs : Mapping[str, Any], optional
            Further arguments by name.
        taken : container of str
            Names that the tensors must not have.

        Raises
        ------
        TypeError
            When the network cannot be called with the arguments, or no argument is a tensor.
        """
        given = dict(kwargs or {})
        positional: Sequence[Any] = ()
        if isinstance(args, Mapping):
            given = {**args, **given}
        elif isinstance(args, (tuple, list)):
            positional = args
        else:
            positional = (args,)
        signature = inspect.signature(network.forward)
        try:
            bound = signature.bind(*positional, **given)
        except TypeError as error:
            hint = ""
            if isinstance(args, Mapping):
                hint = "; a dictionary has the arguments by name, and args=({...},) is one argument that is a dictionary"
            raise TypeError(
                f"args: {type(network).__name__}.forward{signature} cannot be called with them: {error}{hint}"
            ) from None
        call = cls(signature, [], [], [])
        for argument, value in bound.arguments.items():
            call._add(argument, value, taken)
        if not call.tensors:
            raise TypeError("args: expected at least one tensor, found none")
        return call

    def _add(self, argument: str, value: Any, taken: Container[str]) -> None:
        paths, structure = pytree.tree_flatten_with_path(value)
        leaves: list[Any] = []
        for path, leaf in paths:
            if isinstance(leaf, (np.ndarray, np.generic)):
                leaf = torch.as_tensor(np.array(leaf))
            if not isinstance(leaf, torch.Tensor):
                leaves.append(leaf)
                continue
            keys = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
            variadic = self.signature.parameters[argument].kind is inspect.Parameter.VAR_KEYWORD
            name = "_".join(keys if variadic else [argument, *keys])
            while name in taken or name in self.names:
                name += "_"
            leaves.append(_Slot(len(self.tensors)))
            self.names.append(name)
            self.tensors.append(leaf.detach().clone())
        self._structure.append((argument, structure, leaves))

    def apply(self, network: Any, tensors: Sequence[Any]) -> Any:
        """Call the network with other tensors."""
        values = OrderedDict(
            (
                argument,
                structure.unflatten([tensors[x.number] if isinstance(x, _Slot) else x for x in leaves]),
            )
            for argument, structure, leaves in self._structure
        )
        bound = inspect.BoundArguments(self.signature, values)
        return network(*bound.args, **bound.kwargs)


@dataclass(frozen=True)
class _Slot:
    """The place of a tensor among the arguments."""

    number: int


def tensors_in(result: Any) -> dict[str, Any]:
    """Return the tensors of a network's result by name.

    A single tensor is named ``output``. Tensors in a mapping or a data class are named by its keys, such as ``logits``; other
    tensors are numbered. Objects other than tensors and collections of tensors, such as a cache, are left out.
    """
    found: dict[str, Any] = {}
    _collect("", result, found)
    return found


def _collect(name: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, torch.Tensor):
        found[name or "output"] = value
        return
    if isinstance(value, Mapping):
        entries = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        entries = list(value._asdict().items())
    elif isinstance(value, (tuple, list)):
        entries = [(f"{'' if name else 'output_'}{number}", item) for number, item in enumerate(value)]
    else:
        return
    for key, item in entries:
        _collect(f"{name}_{key}" if name else key, item, found)


class Flat(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """A module with the given network as its attribute ``network``, which takes and returns only tensors."""

    def __init__(self, network: Any, call: Call) -> None:
        super().__init__()
        self.training = network.training
        self.network = network
        self._call = call

    def forward(self, *tensors: Any) -> Any:
        """Return the tensors of the network's result."""
        return tuple(tensors_in(self._call.apply(self.network, tensors)).values())


PREFIX = "network."
"""The prefix of the names of weights in :class:`Flat`."""
