"""Networks of frameworks that a caller passes instead of a model."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from dataclasses import dataclass
from typing import Any

import onnx


@dataclass(frozen=True)
class _Framework:
    package: str
    kind: str
    """The class of networks: its name in the package."""
    module: str
    """The module of ortrain that exports them."""
    function: str = "exported"
    """The function of that module that takes a network and ``args``, and returns a model and a report."""
    args: str = ""
    """The ``args`` that an export needs, for messages; empty if it needs none."""


_FRAMEWORKS = (
    # First Keras: with PyTorch as its backend, a model of Keras is a module of PyTorch too.
    _Framework("keras", "Model", "ortrain.keras._export"),
    _Framework("torch", "nn.Module", "ortrain.torch._export", args="args=(inputs[:2],)"),
    _Framework("flax", "nnx.Module", "ortrain.jax._export", "exported_call", "args=(inputs[:2],)"),
    _Framework(
        "flax", "linen.Module", "ortrain.jax._export", "exported_call", "args=(variables, inputs[:2])"
    ),
)
_FUNCTION = _Framework("jax", "function", "ortrain.jax._export", "exported_call", "args=(params, inputs[:2])")


def _framework_of(model: object) -> _Framework | None:
    for framework in _FRAMEWORKS:
        # A network exists only if its framework was imported.
        kind: Any = sys.modules.get(framework.package)
        for name in framework.kind.split("."):
            kind = getattr(kind, name, None)
        if isinstance(kind, type) and isinstance(model, kind):
            return framework
    return _FUNCTION if "jax" in sys.modules and _is_function(model) else None


def _is_function(model: object) -> bool:
    """Return whether a model is a function, also one that ``jax.jit`` wraps."""
    return inspect.isroutine(model) or isinstance(model, functools.partial) or hasattr(model, "__wrapped__")


def is_network(model: object) -> bool:
    """Return whether a model is a network of a framework that ortrain can export."""
    return _framework_of(model) is not None


def export_network(model: object, args: Any) -> onnx.ModelProto:
    """Export a network, see :func:`ortrain.torch.export`, :func:`ortrain.keras.export` and :func:`ortrain.jax.export`.

    Raises
    ------
    TypeError
        When ``args`` are left out, or are not what the network is called with.
    ImportError
        When a package is missing that exporting needs.
    ValueError
        When the network cannot be exported.
    """
    framework = _framework_of(model)
    if framework is None:
        raise TypeError(f"model: expected a network, found {type(model).__name__}")
    if args is None and framework.args:
        raise TypeError(
            f"a {framework.package}.{framework.kind} needs args, example arguments such as {framework.args}"
        )
    export = getattr(importlib.import_module(framework.module), framework.function)
    exported: onnx.ModelProto = export(model, args)[0]
    return exported
