"""The search for a learning rate: short steps at rising rates, until the loss grows."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortrain.trainer.plotting import picture, save

SMOOTHING = 0.9
"""The share of the running mean of the losses that each step keeps."""
DIVERGED = 4.0
"""The search ends when the running mean exceeds this multiple of its lowest value."""

_SETTLED = 10  # steps after which the running mean averages enough batches to be compared


@dataclass(frozen=True)
class LearningRates:
    """The losses of a search for a learning rate.

    Attributes
    ----------
    rates : list of float
        The learning rate of each step, rising by a constant factor.
    losses : list of float
        The running mean of the losses before each step.
    suggestion : float
        The rate at which the loss falls fastest, a good value for training with a constant rate or as the highest rate of a
        schedule.
    """

    rates: list[float]
    losses: list[float]

    @property
    def suggestion(self) -> float:
        """The rate at which the mean loss falls fastest before its minimum."""
        first = min(_SETTLED, len(self.losses) // 3)
        end = max(first + 2, first + int(np.argmin(self.losses[first:])) + 1)
        slopes = np.gradient(self.losses[first:end])
        return self.rates[first + int(np.argmin(slopes))]

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the loss over the rate, and the suggestion. Needs matplotlib.

        Parameters
        ----------
        path : str or os.PathLike, optional
            Where the picture is saved; the ending is its format, PNG without one.

        Returns
        -------
        matplotlib.figure.Figure
            The picture.
        """
        figure = picture(5, 3.5)
        axes = figure.subplots()
        axes.plot(self.rates, self.losses)
        axes.axvline(self.suggestion, linestyle="--", color="gray", label=f"suggestion {self.suggestion:.2g}")
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
        axes.grid(alpha=0.3)
        axes.legend()
        save(figure, path)
        return figure


class Search:
    """The rates of a search, and its end.

    Parameters
    ----------
    lowest, highest : float
        The first and the last rate.
    steps : int
        How many there are.
    """

    def __init__(self, lowest: float, highest: float, steps: int) -> None:
        if not 0 < lowest < highest or not math.isfinite(highest):
            raise ValueError(f"lowest, highest: expected 0 < lowest < highest, found {lowest} and {highest}")
        if steps < 10:
            raise ValueError(f"steps: expected 10 or more, found {steps}")
        self._rates = np.geomspace(lowest, highest, steps).tolist()
        self._mean = 0.0
        self.rates: list[float] = []
        self.losses: list[float] = []

    @property
    def next_rate(self) -> float | None:
        """The rate of the next step; None after the last one."""
        return self._rates[len(self.rates)] if len(self.rates) < len(self._rates) else None

    def take(self, rate: float, loss: float) -> bool:
        """Remember the loss before a step; return whether the search continues."""
        if not math.isfinite(loss):
            return False
        self._mean = SMOOTHING * self._mean + (1 - SMOOTHING) * loss
        mean = self._mean / (1 - SMOOTHING ** (len(self.rates) + 1))
        self.rates.append(rate)
        self.losses.append(mean)
        lowest = min(self.losses)
        return not (len(self.losses) > 5 and lowest > 0 and mean > DIVERGED * lowest)
