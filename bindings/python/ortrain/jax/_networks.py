"""Networks of JAX: their weights by name, and a common way to call them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen
import flax.nnx
import jax
import numpy as np

from ortrain.jax._tracing import PATH

Array = Any


@dataclass(frozen=True)
class Weights:
    """The weights of a network.

    Attributes
    ----------
    values : dict of str to array
        All weights by their paths.
    trained : frozenset of str
        The names of the parameters. The other values are statistics or other state.
    """

    values: dict[str, Array]
    trained: frozenset[str]


@dataclass(frozen=True)
class Network:
    """A network.

    Attributes
    ----------
    name : str
        Its name in messages.
    weights : Weights
        Its weights.
    call : callable
        Takes the weights, in the order of ``weights``, and the positional and named arguments of the network.
    """

    name: str
    weights: Weights
    call: Callable[[list[Any], tuple[Any, ...], dict[str, Any]], Any]


def network_of(network: Any, params: Any) -> Network:
    """Return a network from a module of Flax, or from a function of parameters and arguments."""
    if isinstance(network, flax.nnx.Module):
        if params is not None:
            raise TypeError("params: a flax.nnx.Module has its own parameters; expected None")
        return _of_nnx(network)
    if isinstance(network, flax.linen.Module):
        return _of_linen(network, params)
    if not callable(network):
        raise TypeError(
            "network: expected a flax.linen.Module, a flax.nnx.Module or a function of parameters and arguments, "
            f"found {type(network).__name__}"
        )
    weights, tree = tree_weights(params)

    def call(values: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return network(jax.tree_util.tree_unflatten(tree, values), *args, **kwargs)

    return Network(getattr(network, "__name__", "network"), weights, call)


def tree_weights(params: Any) -> tuple[Weights, Any]:
    """Return the weights of a tree of parameters, and its structure.

    All leaves are parameters. If the tree consists of Flax's collections, only the leaves of ``params`` are.
    """
    paths, leaves, tree = _flat(params)
    names = _unique(paths)
    values = dict(zip(names, leaves, strict=True))
    collections = isinstance(params, Mapping) and "params" in params
    trained = [n for n, path in zip(names, paths, strict=True) if not collections or path[0] == "params"]
    return Weights(values, floating(values, trained)), tree


def _flat(tree: Any) -> tuple[list[tuple[str, ...]], list[Any], Any]:
    """Return the paths and the leaves of a tree, and its structure."""
    if tree is None:
        raise TypeError("params: expected the parameters of the network, found None")
    found, structure = jax.tree_util.tree_flatten_with_path(tree)
    paths = [tuple(_text(key) for key in path) for path, _ in found]
    return paths, [leaf for _, leaf in found], structure


def _text(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _unique(paths: list[tuple[str, ...]]) -> list[str]:
    """Return names for paths, without Flax's collection (``params``, ``batch_stats``) where the rest of the path is unique."""
    full = ["/".join(path) or "weights" for path in paths]
    if all(len(path) > 1 for path in paths) and any(path[0] == "params" for path in paths):
        short = ["/".join(path[1:]) for path in paths]
        counts = {name: short.count(name) for name in short}
        full = [
            name if counts[name] == 1 or path[0] == "params" else "/".join(path)
            for name, path in zip(short, paths, strict=True)
        ]
    unique: list[str] = []
    for name in full:
        numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
        unique.append(next(n for n in numbered if n not in unique))
    return unique


def floating(values: Mapping[str, Any], names: Iterable[str]) -> frozenset[str]:
    """Return the names whose values are floating-point numbers."""
    return frozenset(name for name in names if jax.numpy.issubdtype(values[name].dtype, np.floating))


def _of_linen(module: Any, params: Any) -> Network:
    if not isinstance(params, Mapping):
        raise TypeError(
            f"params: expected what init returns, a dict of variables, found {type(params).__name__}"
        )
    variables = params if "params" in params else {"params": params}
    weights, tree = tree_weights(variables)
    others = [collection for collection in variables if collection != "params"]

    def call(values: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = jax.tree_util.tree_unflatten(tree, values)
        settings = {"rngs": {"dropout": jax.random.key(0)}, **kwargs, "mutable": others or False}
        result = module.apply(given, *args, **settings)
        return result[0] if others else result

    return Network(type(module).__name__, weights, call)


def nnx_weights(module: Any) -> Weights:
    """Return the weights of a ``flax.nnx`` module, without the states of random generators."""
    found = flax.nnx.to_flat_state(flax.nnx.state(module))
    variables = {
        "/".join(map(str, path)): variable
        for path, variable in found
        if not issubclass(variable.type, flax.nnx.RngState)
    }
    values = {name: variable.get_value() for name, variable in variables.items()}
    trained = [name for name, variable in variables.items() if issubclass(variable.type, flax.nnx.Param)]
    return Weights(values, floating(values, trained))


def _of_nnx(module: Any) -> Network:
    weights = nnx_weights(module)
    graph, state = flax.nnx.split(module)

    def call(values: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(weights.values, values, strict=True))

        def value_of(path: Any, variable: Any) -> Any:
            if issubclass(variable.type, flax.nnx.RngKey):
                return jax.random.key(0)  # jax2onnx cannot export a constant random key
            return given.get("/".join(map(str, path)), variable.get_value())

        replaced = [
            (path, variable.replace(value_of(path, variable)))
            for path, variable in flax.nnx.to_flat_state(state)
        ]
        merged = flax.nnx.merge(graph, flax.nnx.from_flat_state(replaced))
        for path, layer in flax.nnx.iter_graph(merged):
            if isinstance(layer, flax.nnx.BatchNorm):
                vars(layer)[PATH] = tuple(map(str, path))
        return merged(*args, **kwargs)

    return Network(type(module).__name__, weights, call)
