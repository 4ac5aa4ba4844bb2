"""Descriptions of objects in one line, for people."""

from __future__ import annotations

import contextlib
from typing import Protocol

from ortrain import _ortrain
from ortrain._support.counts import counted
from ortrain.errors import InvalidArgumentError


class _Parameter(Protocol):
    """A parameter of a checkpoint state."""

    @property
    def _handle(self) -> _ortrain.CheckpointStateHandle: ...
    @property
    def name(self) -> str: ...
    @property
    def requires_grad(self) -> bool: ...


class _Group(Protocol):
    """A group of parameters with settings of the optimizer."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> list[str]: ...


def describe_entry(parameter: _Parameter) -> str:
    """Return a description of a parameter in a line."""
    element_type, shape, _ = _ortrain.get_parameter_type_and_shape(parameter._handle, parameter.name)
    dtype = _ortrain.numpy_type(element_type)
    return f"Parameter({parameter.name!r}, {dtype}, shape={shape}, requires_grad={parameter.requires_grad})"


def describe_settings(group: _Group) -> str:
    """Return a parameter group and its settings in a line."""
    settings = []
    for name in ("learning_rate", "weight_decay", "alpha", "beta", "epsilon"):
        with contextlib.suppress(InvalidArgumentError):  # SGD has only the first
            settings.append(f"{name}={getattr(group, name):.6g}")
    return f"ParameterGroup({group.name!r}, {counted(len(group.parameters), 'parameter')}, {', '.join(settings)})"
