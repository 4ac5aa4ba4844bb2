"""Corrections of the parts of Flax that jax2onnx replaces while it traces a network."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import flax.core.axes_scan
import flax.linen
import flax.nnx
import jax

#: An attribute of modules of ``flax.nnx`` while they are traced.
PATH = "_ortrain_path"


@contextlib.contextmanager
def corrected(updated: set[str], dropouts: set[bool]) -> Iterator[None]:
    """Correct the replacements of jax2onnx, and note the running statistics that batch normalization updates.

    Parameters
    ----------
    updated : set of str
        Receives the paths of the running statistics. A layer of ``flax.nnx`` has its own path as the attribute
        :data:`PATH`.
    dropouts : set of bool
        For each layer of dropout, whether it drops values.
    """
    with contextlib.ExitStack() as stack:

        def replace(owner: Any, name: str, value: Any) -> None:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)

        for package in (flax.linen, flax.nnx):
            for name in ("max_pool", "avg_pool", "min_pool"):
                if hasattr(package, name):
                    replace(package, name, _with_positions(getattr(package, name)))
        replace(
            flax.linen.BatchNorm, "__call__", _noting(flax.linen.BatchNorm.__call__, updated, _path_of_linen)
        )
        replace(flax.nnx.BatchNorm, "__call__", _noting(flax.nnx.BatchNorm.__call__, updated, _path_of_nnx))
        for package in (flax.linen, flax.nnx):
            replace(package.Dropout, "__call__", _noting_dropout(package.Dropout.__call__, dropouts))
        replace(flax.core.axes_scan, "build_shaped_array", _aval)
        # Layers derive random keys that they do not use, for example for initial states of zeros.
        replace(jax.random, "split", _same_keys)
        replace(jax.random, "fold_in", lambda key, data: key)
        logger = logging.getLogger()
        stack.callback(logger.removeFilter, _is_no_inference_warning)
        logger.addFilter(_is_no_inference_warning)
        yield


def _same_keys(key: Any, num: Any = 2) -> Any:
    count = num if isinstance(num, int) else num[0]
    return [key] * count


def _is_no_inference_warning(record: logging.LogRecord) -> bool:
    """Suppress jax2onnx's warning about batch normalization, because ortrain sets the node to training mode afterwards."""
    return "use_running_average=False; converting" not in record.getMessage()


def _with_positions(pool: Any) -> Any:
    """Accept the arguments of a pooling function by position; jax2onnx's replacement only takes them by name."""

    def call(
        inputs: Any, window_shape: Any, strides: Any = None, padding: Any = "VALID", **others: Any
    ) -> Any:
        return pool(inputs, window_shape=window_shape, strides=strides, padding=padding, **others)

    return call


def _noting(original: Any, updated: set[str], path_of: Any) -> Any:
    def call(layer: Any, x: Any, use_running_average: bool | None = None, **others: Any) -> Any:
        fixed = layer.use_running_average if use_running_average is None else use_running_average
        if not fixed:
            updated.update(path_of(layer))
        return original(layer, x, use_running_average=use_running_average, **others)

    return call


def _noting_dropout(original: Any, dropouts: set[bool]) -> Any:
    """Return a function that calls jax2onnx's Dropout without the arguments for random numbers, which it does not take."""

    def call(layer: Any, inputs: Any, deterministic: bool | None = None, *_: Any, **__: Any) -> Any:
        fixed = layer.deterministic if deterministic is None else deterministic
        if layer.rate > 0:
            dropouts.add(not fixed)
        return original(layer, inputs, deterministic=deterministic)

    return call


def _path_of_linen(layer: Any) -> list[str]:
    return ["/".join([*layer.path, name]) for name in ("mean", "var")]


def _path_of_nnx(layer: Any) -> list[str]:
    path = vars(layer).get(PATH)
    return [] if path is None else ["/".join([*path, name]) for name in ("mean", "var")]


def _aval(x: Any, batch_dim: bool = False) -> Any:
    """Return the type of a value. Flax's original calls a function for the shape that jax2onnx would trace."""
    found = jax.typeof(x)
    return found.update(shape=found.shape[1:]) if batch_dim else found
