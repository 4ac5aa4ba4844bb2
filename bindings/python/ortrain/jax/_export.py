"""From a network of JAX to an ONNX model for training."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Literal

import flax.linen
import flax.nnx
import jax
import jax2onnx
import numpy as np
import onnx
import onnx.inliner

from ortrain._frameworks import weights_as_inputs
from ortrain._frameworks.weights_as_inputs import ExportReport
from ortrain.jax._call import Call
from ortrain.jax._networks import Network, network_of
from ortrain.jax._tracing import corrected

_log = logging.getLogger(__name__)
_OPSET = 21


def export(
    network: Any,
    params: Any,
    args: Any,
    path: str | os.PathLike[str],
    dynamic: Literal["batch"] | None = "batch",
    *,
    kwargs: Mapping[str, Any] | None = None,
) -> ExportReport:
    """Write a network as an ONNX model for training.

    Every weight is an initializer under its path in the tree of parameters, such as ``Dense_0/kernel``, with its shape
    and value: none is merged with another or folded. The paths do not begin with ``params`` and ``batch_stats``, the
    collections of Flax. The file records which of them train. ``flax.linen.BatchNorm`` and ``flax.nnx.BatchNorm`` are
    BatchNormalization nodes, whose running statistics follow the batches if the network is called as in training; in
    the same way Dropout is a node.

    Parameters
    ----------
    network : flax.linen.Module or flax.nnx.Module or callable
        The network; or a function of a tree of parameters and of the arguments.
    params : tree of arrays
        For a ``flax.linen.Module``, the result of its ``init`` (``{"params": ..., "batch_stats": ...}``) or only the
        parameters; for a function, its first argument, whose floating-point arrays are trained. None for a ``flax.nnx.Module``,
        of which every ``flax.nnx.Param`` is trained.
    args : array or tuple
        Example arguments of the network: one argument, or positional arguments in a tuple. Only types and shapes of
        arrays matter; everything else, such as True, is a constant.
    path : str or os.PathLike
        The file to write.
    dynamic : {"batch", None}, default: "batch"
        With "batch", the first dimension is free in the first argument and in all arguments with the same first dimension.
    kwargs : Mapping[str, Any], optional
        Further arguments by name, such as ``{"train": True}``. Arrays are inputs too, except ``rngs`` of Flax.

    Returns
    -------
    ExportReport
        The names of inputs, outputs and weights.

    Raises
    ------
    TypeError
        When the network or an argument has the wrong type, or the network cannot be called with the arguments.
    ValueError
        When jax2onnx cannot write the network; the message has its reason.
    OSError
        When the file cannot be written.
    """
    return weights_as_inputs.save(*exported(network, params, args, dynamic, kwargs=kwargs), path)


def exported(
    network: Any,
    params: Any,
    args: Any,
    dynamic: Literal["batch"] | None = "batch",
    *,
    kwargs: Mapping[str, Any] | None = None,
) -> tuple[onnx.ModelProto, ExportReport]:
    """Return the model that :func:`export` would write, and a report without a path."""
    if dynamic not in ("batch", None):
        raise ValueError(f"dynamic: expected 'batch' or None, found {dynamic!r}")
    found = network_of(network, params)
    call = Call.of(network, args, kwargs or {}, dynamic == "batch")
    updated: set[str] = set()
    dropouts: set[bool] = set()
    made = _converted(found, call, updated, dropouts)
    if dropouts == {False} and not updated:
        _log.warning(
            "the network %s is called as in inference: its dropout drops nothing, and running statistics do not change. "
            "Call it as in training, such as with train=True, deterministic=False, or after train() of a flax.nnx.Module",
            found.name,
        )
    weights = weights_as_inputs.Weights(
        values={name: np.asarray(value) for name, value in found.weights.values.items()},
        trained=found.weights.trained,
        updated=frozenset(updated & found.weights.values.keys()),
    )
    given = [value.name for value in made.graph.input]
    names = [*found.weights.values, *call.names]
    outputs = weights_as_inputs.names_in_order("output", [""] * len(made.graph.output))
    exporter = f"jax2onnx {version('jax2onnx')} of JAX {jax.__version__}"
    inputs = dict(zip(given, names, strict=True))
    report = weights_as_inputs.finish(made, inputs, outputs, weights, "jax", exporter)
    made.graph.name = found.name
    return made, report


def exported_call(network: Any, args: Any) -> tuple[onnx.ModelProto, ExportReport]:
    """Return the model that :func:`export` would write for the arguments of a call in JAX, which include the parameters.

    Parameters
    ----------
    network : flax.linen.Module or flax.nnx.Module or callable
        The network.
    args : array, tuple or mapping
        The arguments of a ``flax.nnx.Module``, of the method ``apply`` of a ``flax.linen.Module``, or of the function, in a
        tuple or by name. The first argument of ``apply`` and of a function is the tree of parameters.
    """
    positional = () if isinstance(args, Mapping) else args if isinstance(args, tuple) else (args,)
    named = dict(args) if isinstance(args, Mapping) else {}
    if isinstance(network, flax.nnx.Module):
        return exported(network, None, positional, kwargs=named)
    function = network.apply if isinstance(network, flax.linen.Module) else network
    first = next(iter(inspect.signature(function).parameters), "params")
    if not positional and first not in named:
        raise TypeError(
            f"args: expected {first} among the arguments by name, found {', '.join(named) or 'none'}"
        )
    params, *others = (named.pop(first),) if named else positional
    if not others and not named:
        raise TypeError(
            f"args: expected the parameters and an example of the inputs, such as args=({first}, x[:2]), found one argument"
        )
    return exported(network, params, tuple(others), kwargs=named)


def _converted(network: Network, call: Call, updated: set[str], dropouts: set[bool]) -> onnx.ModelProto:
    values = network.weights.values
    count = len(values)

    def apply(*given: Any) -> list[Any]:
        args, kwargs = call.arguments(given[count:])
        leaves: list[Any] = jax.tree_util.tree_leaves(network.call(list(given[:count]), args, kwargs))
        return leaves

    def traced(*given: Any) -> list[Any]:
        with corrected(updated, dropouts):
            return apply(*given)

    shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values.values()]
    try:
        jax.eval_shape(apply, *shapes, *call.examples)
    except Exception as error:  # Flax and the network may raise any exception
        reason = str(error).strip().split("\n")[0]
        raise TypeError(f"args: the network {network.name!r} cannot be called with them: {reason}") from error
    try:
        made: onnx.ModelProto = jax2onnx.to_onnx(traced, [*shapes, *call.specs], opset=_OPSET)
    except Exception as error:  # jax2onnx raises exceptions of several classes
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"jax2onnx {version('jax2onnx')} cannot write the network {network.name!r} as ONNX: "
            f"{type(error).__name__}: {reason}"
        ) from error
    return onnx.inliner.inline_local_functions(made) if made.functions else made
