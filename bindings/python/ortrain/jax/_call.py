"""The arguments of a network of JAX."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import flax.linen
import flax.nnx
import jax

from ortrain._frameworks import weights_as_inputs

_NOT_INPUTS = ("rngs",)
"""Names of arguments of Flax's ``apply`` whose arrays do not become inputs."""


@dataclass(frozen=True)
class Call:
    """The arguments of a network: arrays, which are inputs, and everything else, which is constant.

    Attributes
    ----------
    names : list of str
        The names of the inputs.
    specs : list of jax.ShapeDtypeStruct
        Their types, with a free dimension named ``"batch"``.
    examples : list of jax.ShapeDtypeStruct
        The types of the given arrays.
    """

    names: list[str]
    specs: list[Any]
    examples: list[Any]
    _leaves: list[Any]
    _tree: Any
    _positions: list[int]

    @classmethod
    def of(cls, network: Any, args: Any, kwargs: Mapping[str, Any], dynamic: bool) -> Call:
        """Return the call of a network, without its parameters.

        Raises
        ------
        TypeError
            When there is no array among the arguments.
        """
        positional = args if isinstance(args, tuple) else (args,)
        found, tree = jax.tree_util.tree_flatten_with_path((positional, dict(kwargs)))
        positions = [n for n, (path, leaf) in enumerate(found) if _is_input(path, leaf)]
        if not positions:
            wrong = ", ".join(dict.fromkeys(type(leaf).__name__ for _, leaf in found))
            raise TypeError(f"args: expected arrays, found {wrong or 'none'}")
        arguments = _argument_names(network, len(positional))
        given = [_name(found[n][0], arguments) for n in positions]
        leaves = [leaf for _, leaf in found]
        examples = [
            jax.ShapeDtypeStruct(tuple(leaves[n].shape), jax.dtypes.canonicalize_dtype(leaves[n].dtype))
            for n in positions
        ]
        batch = next((example.shape[0] for example in examples if example.shape), None)

        def spec(example: Any) -> Any:
            free = dynamic and example.shape and example.shape[0] == batch
            return jax.ShapeDtypeStruct(("batch", *example.shape[1:]), example.dtype) if free else example

        names = weights_as_inputs.names_in_order("input", given)
        return cls(names, [spec(example) for example in examples], examples, leaves, tree, positions)

    def arguments(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and named arguments, with the inputs replaced by other arrays."""
        leaves = list(self._leaves)
        for position, value in zip(self._positions, inputs, strict=True):
            leaves[position] = value
        args, kwargs = jax.tree_util.tree_unflatten(self._tree, leaves)
        return args, kwargs


def _is_input(path: tuple[Any, ...], leaf: Any) -> bool:
    if not hasattr(leaf, "dtype") or jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return False
    return getattr(path[1], "key", None) not in _NOT_INPUTS


def _argument_names(network: Any, count: int) -> list[str]:
    """Return the names of the positional arguments in the code of the network; empty text where the code has no name."""
    parameters = list(inspect.signature(network).parameters.values())  # without self
    if not isinstance(network, (flax.linen.Module, flax.nnx.Module)):
        del parameters[:1]  # the first argument is the tree of parameters
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in named]
    return [*names[:count], *[""] * (count - len(names))]


def _name(path: tuple[Any, ...], arguments: list[str]) -> str:
    """Return the name of an array: that of its argument, and its keys if the argument holds several."""
    keys = [getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))) for key in path[1:]]
    if isinstance(keys[0], int):
        keys[0] = arguments[keys[0]]
    return "_".join(map(str, keys)) if keys[0] else ""
