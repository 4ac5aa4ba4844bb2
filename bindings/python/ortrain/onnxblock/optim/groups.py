"""Groups of parameters that an optimizer updates with other settings."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx

#: The name of the group of parameters that are in no other group.
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
        Names of trainable parameters, patterns such as ``"*.bias"``, or paths of modules such as ``"encoder.layer.1"``; or a
        function that takes the name and the shape of a parameter and returns whether it belongs to the group. A parameter
        belongs to the first group that matches it.
    lr_factor : float, default 1.0
        Factor of the learning rate, also while a schedule changes the rate.
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
    return name == pattern or name.startswith(f"{pattern}.") or fnmatch.fnmatchcase(name, pattern)


def no_decay(name: str = "no_decay") -> ParamGroup:
    """Return the group of parameters that usually do not decay: biases and the gains of normalizations.

    These are the parameters with fewer than two dimensions. If there are none, the model gets no such group.

    Parameters
    ----------
    name : str, default "no_decay"
        The name of the group.
    """
    return ParamGroup(name, lambda _, shape: len(shape) < 2, weight_decay=0.0)


def _does_not_decay(shape: Sequence[int]) -> bool:
    """Return whether a parameter is a bias or a gain of a normalization, by its shape."""
    return len(shape) < 2


class ParamGroups:
    """The groups of a recipe: by pattern or module, without decay for biases and gains, with lower rates for lower layers.

    The rules are applied to each parameter together, so that a bias of the third layer has the rate of that layer and does not
    decay. Parameters that end up with the same settings are one group of the optimizer.

    Parameters
    ----------
    groups : mapping of str to mapping, or sequence of ParamGroup, optional
        Settings by the name, pattern or module path of their parameters, such as ``{"encoder": {"lr_factor": 0.1}}``: the
        arguments of :class:`ParamGroup`. A parameter belongs to the first one that matches it.
    no_decay : {"norm_and_bias"}, optional
        Whether biases and the gains of normalizations, which are the parameters with fewer than two dimensions, do not decay.
    layer_decay : float, optional
        Factor that multiplies the learning rate of a layer once for each layer above it, such as 0.75. Layers are
        modules with a number in their path, such as ``encoder.layer.3``, the parameters before the first of them, and
        those after the last: the head, whose rate is that of the optimizer. K. Clark et al., "ELECTRA", 2020.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    def __init__(
        self,
        groups: Mapping[str, Mapping[str, Any]] | Sequence[ParamGroup] = (),
        *,
        no_decay: str | None = None,
        layer_decay: float | None = None,
    ) -> None:
        if no_decay not in (None, "norm_and_bias"):
            raise ValueError(f"no_decay must be 'norm_and_bias', found {no_decay!r}")
        if layer_decay is not None and not 0 < layer_decay <= 1:
            raise ValueError(f"layer_decay must be above 0 and at most 1, found {layer_decay}")
        self.groups = (
            [ParamGroup(name, [name], **settings) for name, settings in groups.items()]
            if isinstance(groups, Mapping)
            else list(groups)
        )
        self.no_decay, self.layer_decay = no_decay, layer_decay

    def stated(self) -> list[ParamGroup]:
        """Return the groups whose settings an optimizer can check before it knows the parameters."""
        spared = [ParamGroup("no_decay", (), weight_decay=0.0)] if self.no_decay else []
        return [*self.groups, *spared]

    def of(self, params: Sequence[onnx.TensorProto]) -> list[ParamGroup]:
        """Return a group for each combination of settings that parameters have.

        Raises
        ------
        ValueError
            When a name or a pattern matches none of them, or there are no layers.
        """
        own: dict[str, ParamGroup] = {}
        for group in reversed(self.groups):
            own |= dict.fromkeys(group.choose(params), group)
        heights = self._heights([tensor.name for tensor in params])
        made: dict[str, ParamGroup] = {}
        members: dict[str, list[str]] = {}
        for tensor in params:
            stated = own.get(tensor.name)
            below = heights.get(tensor.name, 0)
            spared = self.no_decay is not None and _does_not_decay(tensor.dims)
            parts = [stated.name] if stated else []
            parts += [f"below{below}"] * (below > 0) + ["no_decay"] * spared
            if not parts:
                continue
            name = "/".join(parts)
            if name not in made:
                made[name] = stated or ParamGroup(name, [])
                rate = made[name].lr_factor * (self.layer_decay or 1.0) ** below
                made[name] = replace(made[name], name=name, lr_factor=rate)
                if spared:
                    made[name] = replace(made[name], weight_decay=0.0)
            members.setdefault(name, []).append(tensor.name)
        return [replace(group, params=members[name]) for name, group in made.items()]

    def _heights(self, names: Sequence[str]) -> dict[str, int]:
        """Return how many layers are above each parameter; an empty mapping without a decay of the rate by layer."""
        if self.layer_decay is None:
            return {}
        numbered = {name: found.group(1) for name in names if (found := re.match(r"(.*?\.\d+)\.", name))}
        layers = list(dict.fromkeys(numbered.values()))
        if not layers:
            raise ValueError(
                "layer_decay: expected parameters of numbered modules, such as encoder.layer.3.weight, found "
                f"{', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
            )
        first = min(index for index, name in enumerate(names) if name in numbered)
        heights = {}
        for index, name in enumerate(names):
            if name in numbered:
                heights[name] = len(layers) - layers.index(numbered[name])
            elif index < first:
                heights[name] = len(layers) + 1
        return heights
