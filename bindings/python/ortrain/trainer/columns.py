"""The names of the columns on which a model was trained. They identify the columns of other data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ortrain._support.suggestions import did_you_mean

_SHOWN = 12


@dataclass(frozen=True)
class Columns:
    """The names of the columns of a table that a model is trained on.

    Parameters
    ----------
    features : tuple of str
        The columns that are the values of a row of the input, in their order.
    target : str, optional
        The column that is the target. None if it has no name.
    weight: str, optional
        The column with the weights of the rows. None if there is none.
    """

    features: tuple[str, ...]
    target: str | None = None
    weight: str | None = None

    def check(self, found: Sequence[str], where: str, target: str | None = None) -> None:
        """Reject a table that lacks a feature, or has a column that is neither a feature nor the target.

        Parameters
        ----------
        found : sequence of str
            The columns of the table.
        where : str
            What the table is, in messages.
        target : str, optional
            Another name of the target.

        Raises
        ------
        ValueError
            When the columns differ.
        """
        known = {*self.features, self.target, self.weight, target}
        missing = [name for name in self.features if name not in found]
        unknown = [name for name in found if name not in known]
        if not missing and not unknown:
            return
        problems = []
        if missing:
            problems.append(f"{_listed(missing)} {'is' if len(missing) == 1 else 'are'} missing")
        if unknown:
            near = did_you_mean(unknown[0], missing) if missing else ""
            problems.append(f"{_listed(unknown)} {'is' if len(unknown) == 1 else 'are'} unknown{near}")
        raise ValueError(
            f"{where}: expected the columns that the model was trained on, {_listed(self.features)}, in any order; "
            f"{' and '.join(problems)}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the names as values that JSON can represent."""
        names = {"features": list(self.features), "target": self.target}
        return names if self.weight is None else {**names, "weight": self.weight}

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Columns:
        """Return what `as_json` returned."""
        return cls(tuple(map(str, value["features"])), value["target"], value.get("weight"))


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
