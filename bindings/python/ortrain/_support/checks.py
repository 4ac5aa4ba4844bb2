"""Checks of arguments that calls of several classes have in common."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ortrain import _ortrain
from ortrain._support.counts import counted
from ortrain.errors import InvalidArgumentError, OrtErrorCode

_PROVIDER = "CPUExecutionProvider"


class _OfState(Protocol):
    """An object with a checkpoint state."""

    @property
    def _handle(self) -> _ortrain.CheckpointStateHandle: ...


def invalid(message: str) -> InvalidArgumentError:
    """Return the error of an argument that does not fit."""
    return InvalidArgumentError(message, OrtErrorCode.ORT_INVALID_ARGUMENT)


def check_device(device: str) -> None:
    """Reject a device that a session cannot run on; the error lists the possible devices."""
    names = [_ortrain.device_name(i) for i in range(_ortrain.device_count())]
    if device not in names:
        raise invalid(f"there is no device {device!r}, available: {', '.join(names)}")


def check_providers(
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
) -> None:
    """Reject options that do not match the providers, and warn about unavailable providers."""
    for provider in providers or ():
        if not isinstance(provider, str) and not (isinstance(provider, tuple) and len(provider) == 2):
            raise invalid(f"expected a provider's name, or a pair of name and options, found {provider!r}")
    names = [p if isinstance(p, str) else p[0] for p in providers or ()]
    if provider_options is not None and len(provider_options) != len(names):
        raise invalid(
            f"expected {counted(len(names), 'dictionary')} of options, one for each provider, found {len(provider_options)}"
        )
    absent = [name for name in names if name != _PROVIDER]
    if absent:
        # Attribute the warning to the caller of the constructor, two levels up.
        message = f"not available: {', '.join(absent)}; the model runs on {_PROVIDER}"
        warnings.warn(message, UserWarning, stacklevel=3)


def check_values(name: str, parameters: _OfState) -> None:
    """Reject a parameter of a nominal state, which has no values yet."""
    if _ortrain.checkpoint_is_nominal(parameters._handle):
        raise invalid(
            f'getting the parameter "{name}": the checkpoint is nominal, its parameters have no values yet. '
            "Please load the parameter states first"
        )


def names_of(argument: str, value: Iterable[str] | None) -> list[str]:
    """Return the different names that an argument has; None has none."""
    if value is None:
        return []
    names = [] if isinstance(value, str) else list(value)
    if isinstance(value, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{argument} must be a list of names, not {value!r}")
    return list(dict.fromkeys(names))
