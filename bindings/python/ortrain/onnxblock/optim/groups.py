"""Groups of parameters that an optimizer updates with other settings."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

#: The name of the group of the parameters that no other group has.
_REST = "group0"


@dataclass(frozen=True)
class ParamGroup:
    """Parameters that the optimizer updates with other settings.

    Settings that are None are those of the optimizer. The session can change them later:
    :attr:`ortrain.Optimizer.param_groups`.

    Parameters
    ----------
    name : str
        The name of the group. ``group0`` is the group of the parameters that no other group has.
    params : sequence of str or callable
        Names of trainable parameters, or patterns such as ``"*.bias"``; or a function that takes the name and the
        shape of a parameter and returns whether it belongs to the group. A parameter belongs to the first group that
        matches it.
    lr_factor : float, default 1.0
        What the learning rate is multiplied by. It stays a factor when a schedule changes the rate.
    weight_decay, betas, eps : optional
        As in the optimizer, if it has them.
    settings : mapping of str to float, optional
        Other settings of the optimizer, by name.
    """

    name: str
    params: Sequence[str] | Callable[[str, tuple[int, ...]], bool]
    lr_factor: float = 1.0
    weight_decay: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    settings: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values."""
        if not self.name or self.name == _REST:
            raise ValueError(f"a parameter group needs a name other than {_REST!r}, found {self.name!r}")
        if isinstance(self.params, str):
            raise TypeError(f"params must be a list of names or a function, not the string {self.params!r}")
        if not math.isfinite(self.lr_factor):
            raise ValueError(f"lr_factor must be a finite number, found {self.lr_factor}")

    def given(self) -> dict[str, Any]:
        """Return the settings that the group states."""
        own = {"weight_decay": self.weight_decay, "betas": self.betas, "eps": self.eps}
        return {name: value for name, value in own.items() if value is not None} | dict(self.settings)

    def choose(self, params: Sequence[onnx.TensorProto]) -> list[str]:
        """Return the names of the parameters that belong to the group.

        Parameters
        ----------
        params : sequence of onnx.TensorProto
            The parameters to choose from.

        Raises
        ------
        ValueError
            When a name or a pattern matches none of them.
        """
        if callable(self.params):
            return [tensor.name for tensor in params if self.params(tensor.name, tuple(tensor.dims))]
        names = [tensor.name for tensor in params]
        for pattern in self.params:
            if not any(_matches(name, pattern) for name in names):
                raise ValueError(
                    f"parameter group {self.name!r}: no trainable parameter matches {pattern!r}; "
                    f"there are {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
                )
        return [name for name in names if any(_matches(name, pattern) for pattern in self.params)]


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def no_decay(name: str = "no_decay") -> ParamGroup:
    """Return the group of parameters that usually do not decay: biases and the gains of normalizations.

    These are the parameters with fewer than two dimensions. If there are none, the model gets no such group.

    Parameters
    ----------
    name : str, default "no_decay"
        The name of the group.
    """
    return ParamGroup(name, lambda _, shape: len(shape) < 2, weight_decay=0.0)
