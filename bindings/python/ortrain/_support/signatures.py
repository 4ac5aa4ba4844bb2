"""The inputs and outputs of a model: names, types and shapes, and the conversion of a caller's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain._support.checks import invalid
from ortrain._support.counts import counted
from ortrain._support.values import PLAIN, map_value, to_array
from ortrain.errors import InvalidArgumentError

_SEQUENCE, _MAP, _SPARSE, _OPTIONAL = 2, 3, 5, 6  # of ONNXType


def converted_plain(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """Convert Python numbers and lists to an array of ``dtype``; None if that would lose information."""
    array = np.asarray(value)
    kinds = {"b": "b", "i": "bi", "u": "bi", "f": "bif", "V": "bif", "O": "UO"}  # V: the floats of ml_dtypes
    if array.dtype.kind not in kinds.get(dtype.kind, "") and array.size > 0:
        return None
    converted = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(converted, array):
        return None
    return converted


@dataclass(frozen=True)
class StepSignature:
    """The inputs and outputs of a step: the same for every call of a module in one mode."""

    names: list[str]
    element_types: list[int]
    output_count: int
    sequences: frozenset[int] = frozenset()
    """The indices of the inputs that are sequences of tensors."""

    @classmethod
    def of(
        cls, session: _ortrain.TrainingSessionHandle, training: bool, inputs: list[str], outputs: list[str]
    ) -> StepSignature:
        """Return the signature of a session's train step or eval step."""
        if not outputs:  # there is no eval model: the library raises an error that says so
            _ortrain.get_model_input_type_info(session, training, 0)
        types = [_ortrain.get_model_input_type_info(session, training, i)[0] for i in range(len(inputs))]
        return cls(inputs, types, len(outputs))

    def take(self, values: Sequence[Any]) -> list[OrtValue]:
        """Return the inputs of a step as tensors, over the caller's memory if possible."""
        if len(values) != len(self.names):
            raise invalid(
                f"expected {counted(len(self.names), 'input')} ({', '.join(self.names)}), found {len(values)}"
            )
        return [self.take_one(i, value) for i, value in enumerate(values)]

    def take_one(self, i: int, value: Any) -> OrtValue:
        """Return input number ``i`` as a tensor, over the caller's memory if possible."""
        if isinstance(value, Mapping):
            return map_value(value)
        if i in self.sequences and not isinstance(value, OrtValue):
            if not isinstance(value, (list, tuple)):
                raise invalid(
                    f"input {self.names[i]!r} (number {i}): expected a list of arrays, found {type(value).__name__}"
                )
            return OrtValue.ortvalue_from_sequence([self._take_tensor(i, element) for element in value])
        return self._take_tensor(i, value)

    def _take_tensor(self, i: int, value: Any) -> OrtValue:
        expected = self.element_types[i]
        if isinstance(value, OrtValue):
            tensor = value
            if not tensor.is_tensor():
                return tensor
        elif isinstance(value, PLAIN) and expected:
            array = converted_plain(value, _ortrain.numpy_type(expected))
            if array is None:
                raise self._wrong_type(i, np.asarray(value).dtype)
            return OrtValue.ortvalue_from_numpy(array)
        else:
            array = to_array(value)
            try:
                tensor = OrtValue.ortvalue_from_numpy(array)
            except TypeError:
                raise self._wrong_type(i, array.dtype) from None
        if expected and tensor.element_type() != expected:
            raise self._wrong_type(i, tensor.dtype)
        return tensor

    def _wrong_type(self, i: int, found: np.dtype[Any]) -> InvalidArgumentError:
        expected = _ortrain.numpy_type(self.element_types[i]) if self.element_types[i] else "another type"
        return invalid(f"input {self.names[i]!r} (number {i}): expected {expected}, found {found}")


def declared(info: tuple[list[int], int, list[int], list[str]]) -> tuple[str, list[int | str | None]]:
    """Return type and shape of an input or output in user notation; a sequence has no shape."""
    kinds, element_type, dims, symbols = info
    text, shape = declared_tensor((element_type, dims, symbols))
    if kinds[-1] == _SPARSE:
        text = f"sparse_{text}"
    key = ""
    for kind in reversed(kinds[:-1]):
        if kind < 0:
            key = _ortrain.onnx_type(-kind)
        elif kind == _MAP:
            text = f"map({key},{text})"
        else:
            text = f"{'seq' if kind == _SEQUENCE else 'optional'}({text})"
    return text, [] if _SEQUENCE in kinds or _MAP in kinds else shape


def declared_tensor(info: tuple[int, list[int], list[str]]) -> tuple[str, list[int | str | None]]:
    """Return type and shape of a tensor that is an input or output of a model."""
    element_type, dims, symbols = info
    shape = [e if e >= 0 else s or None for e, s in zip(dims, symbols, strict=True)]
    return f"tensor({_ortrain.onnx_type(element_type)})", shape


@dataclass(frozen=True)
class ModelSignature:
    """The inputs and outputs of a model: the same for every run of a session."""

    inputs: StepSignature
    index: dict[str, int]
    """The number of each input by its name."""
    outputs: list[str]
    optional: frozenset[str]
    """The names of the inputs that may be None."""

    @classmethod
    def of(cls, session: _ortrain.SessionHandle) -> ModelSignature:
        """Return the signature of a session's model."""
        inputs = range(_ortrain.session_get_input_count(session))
        names = [_ortrain.session_get_input_name(session, i) for i in inputs]
        infos = [_ortrain.session_get_input_type_info(session, i) for i in inputs]
        defaults = range(_ortrain.session_get_overridable_initializer_count(session))
        names += [_ortrain.session_get_overridable_initializer_name(session, i) for i in defaults]
        infos += [_ortrain.session_get_overridable_initializer_type_info(session, i) for i in defaults]
        types = [info[1] for info in infos]
        sequences = frozenset(i for i, info in enumerate(infos) if _SEQUENCE in info[0])
        optional = frozenset(name for name, info in zip(names, infos, strict=True) if _OPTIONAL in info[0])
        count = _ortrain.session_get_output_count(session)
        outputs = [_ortrain.session_get_output_name(session, i) for i in range(count)]
        index = {name: i for i, name in enumerate(names)}
        return cls(StepSignature(names, types, count, sequences), index, outputs, optional)

    def wanted(self, output_names: Sequence[str] | None) -> list[str]:
        """Return the names of the outputs of a run: all outputs if the caller names none."""
        return list(output_names) if output_names else self.outputs

    def take(self, feed: Mapping[str, Any]) -> dict[str, OrtValue]:
        """Return the inputs of a run by name, over the caller's memory if possible."""
        for name in feed:
            if name not in self.index:
                known = ", ".join(self.inputs.names) or "none"
                raise invalid(f"the model has no input {name!r}; its inputs: {known}")
        return {
            name: self.inputs.take_one(self.index[name], value)
            for name, value in feed.items()
            if value is not None or name not in self.optional
        }
