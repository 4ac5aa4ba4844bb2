"""The base of the generated class TrainingParameters: the types of its members, and their conversion for the core."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain.errors import InvalidArgumentError

T = TypeVar("T")


class _WrongTypeError(Exception):
    """A value does not have the type of its member."""


def _int(value: Any) -> int:
    if not isinstance(value, (int, np.integer, np.bool_)):
        raise _WrongTypeError
    if not -(2**31) <= int(value) < 2**31:
        raise _WrongTypeError
    return int(value)


def _bool(value: Any) -> bool:
    if not isinstance(value, (bool, int, np.bool_)):
        raise _WrongTypeError
    return bool(value)


def _float(value: Any) -> float:
    if isinstance(value, (str, bytes)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise _WrongTypeError
    return float(np.float32(value))


def _string(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise _WrongTypeError
    return value


def _set(value: Any) -> set[str]:
    if not isinstance(value, (set, frozenset)):
        raise _WrongTypeError
    return {_string(item) for item in value}


def _list_of(convert: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def checked(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise _WrongTypeError
        return [convert(item) for item in value]

    return checked


def _dict_of(convert: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    def checked(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _WrongTypeError
        return {_string(key): convert(item) for key, item in value.items()}

    return checked


def _constant(value: Any) -> tuple[int, float]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise _WrongTypeError
    return _int(value[0]), _float(value[1])


_TYPES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "bool": ("a bool", _bool),
    "int": ("an int", _int),
    "float": ("a float", _float),
    "string": ("a str", _string),
    "set": ("a set of str", _set),
    "list": ("a list of str", _list_of(_string)),
    "int_map": ("a dict of str to int", _dict_of(_int)),
    "ints_map": ("a dict of str to lists of int", _dict_of(_list_of(_int))),
    "float_attributes": ("a dict of str to dicts of str to float", _dict_of(_dict_of(_float))),
    "int_attributes": ("a dict of str to dicts of str to int", _dict_of(_dict_of(_int))),
    "constants": ("a dict of str to lists of (int, float)", _dict_of(_list_of(_constant))),
}
"""For each type of the spec, its name in messages, and the function that checks a value and copies it."""


class Members:
    """The members of TrainingParameters, by name."""

    __slots__ = ("_initial_state", "_values")

    _types: ClassVar[dict[str, str]]

    def __init__(self) -> None:
        """Create parameters with the default of every member."""
        self._values: dict[str, Any] = {}
        self._initial_state: dict[str, dict[str, np.ndarray[Any, Any]]] = {}

    def _get(self, name: str, default: T) -> T:
        return copy.deepcopy(cast("T", self._values.get(name, default)))

    def _set(self, name: str, value: Any) -> None:
        expected, convert = _TYPES[self._types[name]]
        try:
            self._values[name] = convert(value)
        except _WrongTypeError:
            raise TypeError(
                f"TrainingParameters.{name}: expected {expected}, found {value!r} of type {type(value).__name__}"
            ) from None

    def set_optimizer_initial_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Set the values with which the optimizer starts.

        Parameters
        ----------
        state : Mapping[str, Mapping[str, Any]]
            For each weight ``Moment_1`` and ``Moment_2``, arrays of the type and shape of the moments, and
            ``Update_Count``, int64 of shape (1,). For ``shared_optimizer_state`` the ``Step`` of Lamb. The state may
            be partial; unknown weights and names are ignored. It replaces that of an earlier call.

        Raises
        ------
        InvalidArgumentError
            When a value is not an array. Types and shapes are checked when a session is created.
        """
        arrays: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
        for weight, values in state.items():
            for name, value in values.items():
                array = value.numpy() if isinstance(value, OrtValue) else value
                if not isinstance(array, np.ndarray):
                    raise InvalidArgumentError(
                        f"the initial optimizer state of {weight!r}: expected an array for {name!r}, found {value!r}"
                    )
                arrays.setdefault(weight, {})[name] = array.copy()
        self._initial_state = arrays

    def _entries(self) -> Iterator[tuple[str, str, str, str]]:
        """Return the members that were set as lists of texts: member, key, attribute, value."""
        for member, value in self._values.items():
            kind = self._types[member]
            if kind in ("set", "list"):
                yield from ((member, "", "", item) for item in value)
            elif kind in ("float_attributes", "int_attributes"):
                for weight, attributes in value.items():
                    yield member, weight, "", ""
                    yield from ((member, weight, name, repr(number)) for name, number in attributes.items())
            elif kind == "int_map":
                yield from ((member, key, "", repr(number)) for key, number in value.items())
            elif kind == "ints_map":
                yield from ((member, key, "", repr(number)) for key, row in value.items() for number in row)
            elif kind == "constants":
                yield from ((member, key, str(i), repr(x)) for key, pairs in value.items() for i, x in pairs)
            else:
                yield member, "", "", value if isinstance(value, str) else repr(value).lower()

    def _handle(self) -> _ortrain.TrainingParametersHandle:
        """Return the handle of the core's object with these parameters."""
        handle = _ortrain.create_training_parameters()
        for entry in self._entries():
            _ortrain.set_training_parameter(handle, *entry)
        for weight, values in self._initial_state.items():
            for name, array in values.items():
                value = OrtValue.ortvalue_from_numpy(array)
                _ortrain.set_optimizer_initial_state(handle, weight, name, value)
        return handle

    def __repr__(self) -> str:
        """Return the members that were set."""
        return f"TrainingParameters({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"
