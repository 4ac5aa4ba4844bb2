"""Code shared by the generated classes: values of a step, devices, keys and human-readable representations."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain.errors import InvalidArgumentError, OrtErrorCode

if TYPE_CHECKING:
    from ortrain.api.generated.parameter import Parameter
    from ortrain.api.generated.parameter_group import ParameterGroup
    from ortrain.api.generated.parameter_groups import ParameterGroups
    from ortrain.api.generated.parameters import Parameters
    from ortrain.api.generated.properties import Properties

StrPath = Union[str, "os.PathLike[str]"]

_PLAIN = (bool, int, float, list, tuple)


def _invalid(message: str) -> InvalidArgumentError:
    return InvalidArgumentError(message, OrtErrorCode.ORT_INVALID_ARGUMENT)


def check_device(device: str) -> None:
    """Reject a device that a session cannot run on, listing those that it can."""
    names = [_ortrain.device_name(i) for i in range(_ortrain.device_count())]
    if device not in names:
        raise _invalid(f"there is no device {device!r}, available: {', '.join(names)}")


_PROVIDER = "CPUExecutionProvider"


def check_providers(
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
) -> None:
    """Reject options that do not match the providers, and warn about unavailable providers."""
    for provider in providers or ():
        if not isinstance(provider, str) and not (isinstance(provider, tuple) and len(provider) == 2):
            raise _invalid(f"expected a provider's name, or a pair of name and options, found {provider!r}")
    names = [p if isinstance(p, str) else p[0] for p in providers or ()]
    if provider_options is not None and len(provider_options) != len(names):
        raise _invalid(
            f"expected a dictionary of options for each of {len(names)} providers, found {len(provider_options)}"
        )
    absent = [name for name in names if name != _PROVIDER]
    if absent:
        # Attribute the warning to the caller of the constructor, two levels up.
        message = f"not available: {', '.join(absent)}; the model runs on {_PROVIDER}"
        warnings.warn(message, UserWarning, stacklevel=3)


def check_key(name: str, mapping: Parameters | ParameterGroups | Properties) -> None:
    """Raise KeyError if a mapping has no entry with this name."""
    if name not in mapping:
        raise KeyError(name)


def check_values(name: str, parameters: Parameters) -> None:
    """Reject a parameter of a nominal state, which has no values yet."""
    if _ortrain.checkpoint_is_nominal(parameters._handle):
        raise _invalid(
            f'getting the parameter "{name}": the checkpoint is nominal, its parameters have no values yet. '
            "Please load the parameter states first"
        )


def describe_entry(parameter: Parameter) -> str:
    """One parameter in a line."""
    element_type, shape, _ = _ortrain.get_parameter_type_and_shape(parameter._handle, parameter.name)
    dtype = _ortrain.numpy_type(element_type)
    return f"Parameter({parameter.name!r}, {dtype}, shape={shape}, requires_grad={parameter.requires_grad})"


def describe_settings(group: ParameterGroup) -> str:
    """Return a parameter group and its settings in a line."""
    settings = []
    for name in ("learning_rate", "weight_decay", "alpha", "beta", "epsilon"):
        with contextlib.suppress(InvalidArgumentError):  # SGD has only the first
            settings.append(f"{name}={getattr(group, name):.6g}")
    return f"ParameterGroup({group.name!r}, {len(group.parameters)} parameters, {', '.join(settings)})"


def describe_mapping(mapping: Parameters | ParameterGroups | Properties) -> str:
    """Return a mapping in the notation of a dictionary."""
    return f"{type(mapping).__name__}({{{', '.join(f'{k!r}: {v!r}' for k, v in mapping)}}})"


def to_array(value: Any) -> np.ndarray[Any, Any]:
    """Return an array over the memory of anything that has ``__dlpack__`` or ``numpy()``."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (*_PLAIN, np.generic)):
        return np.asarray(value)
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
        raise _invalid("expected a contiguous array that can be written to and has native byte order")
    return OrtValue.ortvalue_from_numpy(array)


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array that cannot be written to, because it is a copy of what it shows."""
    array.flags.writeable = False
    return array


def _convert_plain(value: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
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
        if not outputs:  # there is no eval model, and the library says so
            _ortrain.get_model_input_type_info(session, training, 0)
        types = [_ortrain.get_model_input_type_info(session, training, i)[0] for i in range(len(inputs))]
        return cls(inputs, types, len(outputs))

    def take(self, values: Sequence[Any]) -> list[OrtValue]:
        """Return the inputs of a step as tensors, over the caller's memory if possible."""
        if len(values) != len(self.names):
            raise _invalid(
                f"expected {len(self.names)} inputs ({', '.join(self.names)}), found {len(values)}"
            )
        return [self.take_one(i, value) for i, value in enumerate(values)]

    def take_one(self, i: int, value: Any) -> OrtValue:
        """Return input number ``i`` as a tensor, over the caller's memory if possible."""
        if isinstance(value, Mapping):
            return map_value(value)
        if i in self.sequences and not isinstance(value, OrtValue):
            if not isinstance(value, (list, tuple)):
                raise _invalid(
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
        elif isinstance(value, _PLAIN) and expected:
            array = _convert_plain(value, _ortrain.numpy_type(expected))
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
        return _invalid(f"input {self.names[i]!r} (number {i}): expected {expected}, found {found}")


_SEQUENCE, _MAP, _SPARSE, _OPTIONAL = 2, 3, 5, 6  # of ONNXType


def declared(info: tuple[list[int], int, list[int], list[str]]) -> tuple[str, list[int | str | None]]:
    """Return type and shape of an input or output in user notation; a sequence has no shape."""
    kinds, element_type, extents, symbols = info
    text, shape = declared_tensor((element_type, extents, symbols))
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
    element_type, extents, symbols = info
    shape = [e if e >= 0 else s or None for e, s in zip(extents, symbols, strict=True)]
    return f"tensor({_ortrain.onnx_type(element_type)})", shape


@dataclass(frozen=True)
class ModelSignature:
    """What a model takes and gives: the same for every run of a session."""

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
        """Return the names of the outputs of a run; none named means all."""
        return list(output_names) if output_names else self.outputs

    def take(self, feed: Mapping[str, Any]) -> dict[str, OrtValue]:
        """Return the inputs of a run by name, over the caller's memory if possible."""
        for name in feed:
            if name not in self.index:
                known = ", ".join(self.inputs.names) or "none"
                raise _invalid(f"the model has no input {name!r}; its inputs: {known}")
        return {
            name: self.inputs.take_one(self.index[name], value)
            for name, value in feed.items()
            if value is not None or name not in self.optional
        }


def session_states(session: _ortrain.SessionHandle) -> list[tuple[str, str, str]]:
    """Return name, role and weight of each state of a session with a training graph, sorted by name."""
    return [
        (
            _ortrain.session_get_state_name(session, i),
            _ortrain.session_get_state_role(session, i),
            _ortrain.session_get_state_weight(session, i),
        )
        for i in range(_ortrain.session_get_state_count(session))
    ]


def as_arrays(output: OrtValue) -> Any:
    """Return an output of a run.

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
    if isinstance(example, (np.ndarray, *_PLAIN, np.generic)):
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

    Arrays if there is an array among them, as in onnxruntime; otherwise the kind of the first.
    """
    plain = (np.ndarray, *_PLAIN, np.generic)
    example = next((value for value in inputs if isinstance(value, plain)), inputs[0] if inputs else None)
    given = tuple(_as_kind_of(example, output) for output in outputs)
    return given[0] if len(given) == 1 else given
