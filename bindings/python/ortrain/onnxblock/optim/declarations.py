"""The optimizers of the library, as it declares them.

Blocks, names and the table of the documentation follow from this list: a new declaration in the library adds them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ortrain.onnxblock import _core_tools


@dataclass(frozen=True)
class Setting:
    """An attribute of an optimizer's node."""

    name: str
    default: float
    at_least: float
    less_than: float
    flag: bool
    meaning: str

    def check(self, value: float) -> float:
        """Return a value as the node has it.

        Raises
        ------
        ValueError
            When it is out of range.
        """
        value = float(value)
        if self.at_least <= value < self.less_than and math.isfinite(value):
            return value
        least, below = math.isfinite(self.at_least), math.isfinite(self.less_than)
        expected = [f"at least {self.at_least:g}"] * least + [f"less than {self.less_than:g}"] * below
        if self.flag:
            expected = ["True or False"]
        raise ValueError(
            f"{self.name} must be {' and '.join(expected) or 'a finite number'}, found {value:g}"
        )


@dataclass(frozen=True)
class State:
    """A value that an optimizer keeps for each element of the parameters."""

    name: str
    meaning: str
    when: str | None


@dataclass(frozen=True)
class Declaration:
    """An optimizer of the library."""

    name: str
    title: str
    node: str
    formula: str
    source: str
    settings: tuple[Setting, ...]
    states: tuple[State, ...]

    def checked(self, given: Mapping[str, float]) -> dict[str, float]:
        """Return the values of all settings, those that are not given by default.

        Raises
        ------
        TypeError
            When there is no such setting.
        ValueError
            When a value is out of range.
        """
        known = {setting.name: setting for setting in self.settings}
        for name in given:
            if name not in known:
                raise TypeError(f"{self.title} has no {name}; it has {', '.join(known) or 'no settings'}")
        return {name: setting.check(given.get(name, setting.default)) for name, setting in known.items()}


def _from(data: Mapping[str, object]) -> Setting:
    least, below = data["at_least"], data["less_than"]
    bounds = {
        "at_least": -math.inf if least is None else least,
        "less_than": math.inf if below is None else below,
    }
    return Setting(**{**data, **bounds})  # type: ignore[arg-type]


@cache
def declared() -> dict[str, Declaration]:
    """Return the optimizers by name."""
    made = (
        Declaration(
            **{
                **data,
                "settings": tuple(_from(setting) for setting in data["settings"]),
                "states": tuple(State(**state) for state in data["states"]),
            }
        )
        for data in json.loads(_core_tools.list_optimizers())
    )
    return {declaration.name: declaration for declaration in made}
