"""Values of a step: conversion of arrays and similar objects to tensors, and back."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np

from ortrain._ortrain import OrtValue
from ortrain._support.checks import invalid

StrPath = Union[str, "os.PathLike[str]"]

PLAIN = (bool, int, float, list, tuple)


def to_array(value: Any) -> np.ndarray[Any, Any]:
    """Return an array over the memory of anything that has ``__dlpack__`` or ``numpy()``, without its gradient."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (*PLAIN, np.generic)):
        return np.asarray(value)
    if getattr(value, "requires_grad", False) and hasattr(value, "detach"):
        value = value.detach()
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    if hasattr(value, "numpy"):
        return np.asarray(value.numpy())
    raise TypeError(
        "expected a NumPy array, an OrtValue, or something with __dlpack__ or numpy(), "
        f"found {type(value).__name__}"
    )


def to_value(value: Any) -> OrtValue:
    """Return a tensor over the memory of ``value``."""
    return value if isinstance(value, OrtValue) else OrtValue.ortvalue_from_numpy(to_array(value))


def to_writable(value: Any) -> OrtValue:
    """Return a tensor over the memory of ``value``, into which a call writes.

    Raises
    ------
    InvalidArgumentError
        If the call would write into a copy.
    """
    if isinstance(value, OrtValue):
        return value
    array = to_array(value)
    if not (
        array.flags.c_contiguous and array.flags.aligned and array.flags.writeable and array.dtype.isnative
    ):
        raise invalid("expected a contiguous array that can be written to and has native byte order")
    return OrtValue.ortvalue_from_numpy(array)


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array that programs cannot write to: it is a copy, so a write would not reach the original."""
    array.flags.writeable = False
    return array


def as_arrays(output: OrtValue) -> Any:
    """Return an output of a run in the form that callers get.

    An array, a dictionary, a list of either, a sparse tensor, or None for an empty optional output.
    """
    if output.is_tensor():
        return output.numpy()
    if output.is_sparse_tensor():
        return output.as_sparse_tensor()
    if output.is_map():
        keys, values = output.elements()
        return dict(zip(keys.numpy().tolist(), values.numpy().tolist(), strict=True))
    return [as_arrays(element) for element in output.elements()] if output.has_value() else None


def map_value(entries: Mapping[Any, Any]) -> OrtValue:
    """Return a map of a dictionary, whose keys are strings or integers."""
    keys, values = list(entries), list(entries.values())
    real = any(isinstance(value, float) for value in values)
    return OrtValue.ortvalue_from_map(
        to_value(np.asarray(keys, np.int64 if keys and isinstance(keys[0], int) else object)),
        to_value(np.asarray(values, np.float32) if real else np.asarray(values)),
    )


def _as_kind_of(example: Any, output: OrtValue) -> Any:
    """Return an output as the same kind of object as the first input."""
    if isinstance(example, OrtValue):
        return output
    if isinstance(example, (np.ndarray, *PLAIN, np.generic)):
        return output.numpy()
    kind = type(example)
    if hasattr(kind, "ortvalue_from_numpy"):
        return kind.ortvalue_from_numpy(output.numpy())
    package = sys.modules.get(kind.__module__.partition(".")[0])
    if hasattr(package, "from_dlpack"):
        return package.from_dlpack(output)  # type: ignore[union-attr]
    return output


def give_back(outputs: list[OrtValue], inputs: Sequence[Any]) -> Any:
    """Return the outputs of a step as the same kind of objects as its inputs, one value or a tuple.

    If an input is an array, the outputs are arrays, as in onnxruntime; otherwise they have the kind of the first input.
    """
    plain = (np.ndarray, *PLAIN, np.generic)
    example = next((value for value in inputs if isinstance(value, plain)), inputs[0] if inputs else None)
    given = tuple(_as_kind_of(example, output) for output in outputs)
    return given[0] if len(given) == 1 else given
