"""The privacy that steps cost: accounting for Rényi differential privacy, by the package dp-accounting."""

from __future__ import annotations

import importlib
import json
import logging
import math
from dataclasses import dataclass, field
from typing import Any

from ortrain._support.counts import counted

_LEAST, _MOST = 0.05, 1e6  # bounds of the search for a noise multiplier
_PRECISION = 1e-3  # relative precision of this search
_SPENT = 0.99  # share of an epsilon above which no further step is possible, whatever the noise


@dataclass
class Accountant:
    """Counts the private steps that parameters come from, over all runs.

    Attributes
    ----------
    history : list of (float, float, int)
        The steps: their noise multiplier, the probability with which they draw a row, and their number. A noise
        multiplier of 0 is that of steps without privacy.
    """

    history: list[tuple[float, float, int]] = field(default_factory=list)

    @property
    def is_void(self) -> bool:
        """Whether steps without noise are among them, so that nothing is private."""
        return any(noise == 0 for noise, _, _ in self.history)

    def add(self, noise_multiplier: float, share: float, steps: int = 1) -> None:
        """Count steps."""
        if self.history and self.history[-1][:2] == (noise_multiplier, share):
            steps += self.history.pop()[2]
        self.history.append((noise_multiplier, share, steps))

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of all steps together.

        Parameters
        ----------
        delta : float
            The probability with which the bound may fail.

        Returns
        -------
        float
            0 before the first step, infinite if a step had no noise.

        Raises
        ------
        ImportError
            When dp-accounting is not installed: ``pip install 'ortrain[privacy]'``.
        """
        return _epsilon(self.history, delta)

    def epsilon_after(self, noise_multiplier: float, share: float, steps: int, delta: float) -> float:
        """Return what the epsilon will be after more steps."""
        return _epsilon([*self.history, (noise_multiplier, share, steps)], delta)

    def noise_for(self, epsilon: float, share: float, steps: int, delta: float) -> float:
        """Return the smallest noise multiplier with which further steps keep the total epsilon at or below a bound.

        Raises
        ------
        ValueError
            When the steps so far have used up the bound.
        """
        if self.is_void:
            raise ValueError(
                f"privacy: expected parameters from steps with noise to reach epsilon {epsilon:g}, found some from steps "
                "without it, such as those of privacy=False; begin with the parameters before these"
            )
        spent = self.epsilon(delta)
        low, high, is_spent = _LEAST, _LEAST, spent >= _SPENT * epsilon
        while is_spent or self.epsilon_after(high, share, steps, delta) > epsilon:
            low, high = high, high * 2
            if is_spent or high > _MOST:
                raise ValueError(
                    f"privacy: expected an epsilon with room for {counted(steps, 'more step')} beyond the {spent:.5g} at "
                    f"delta {delta:g} "
                    f"that the steps so far have spent, found {epsilon:g}"
                )
        while high / low > 1 + _PRECISION:
            middle = math.sqrt(low * high)
            if self.epsilon_after(middle, share, steps, delta) > epsilon:
                low = middle
            else:
                high = middle
        return high

    def to_json(self) -> str:
        """Return the steps as a checkpoint keeps them."""
        return json.dumps(self.history)

    @classmethod
    def of_json(cls, text: str) -> Accountant:
        """Read the steps of a checkpoint.

        Raises
        ------
        ValueError
            When they are not what `to_json` returns.
        """
        try:
            history = [(float(noise), float(share), int(steps)) for noise, share, steps in json.loads(text)]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"privacy: the accounting in the checkpoint cannot be read, found {text!r:.80}"
            ) from error
        for noise, share, steps in history:
            if not (math.isfinite(noise) and noise >= 0 and 0 < share <= 1 and steps > 0):
                raise ValueError(
                    "privacy: expected noise multipliers of 0 or more, probabilities up to 1 and numbers of steps in the "
                    f"accounting of the checkpoint, found {noise}, {share} and {steps}"
                )
        return cls(history)


def _epsilon(history: list[tuple[float, float, int]], delta: float) -> float:
    """Return the epsilon of steps, each of which draws every row with a probability."""
    if not history:
        return 0.0
    if any(noise == 0 for noise, _, _ in history):
        return math.inf
    try:
        events: Any = importlib.import_module("dp_accounting")
        rdp: Any = importlib.import_module("dp_accounting.rdp")
    except ImportError as error:
        raise ImportError(
            "privacy: computing epsilon needs dp-accounting: pip install 'ortrain[privacy]'"
        ) from error
    accountant = rdp.RdpAccountant()
    log = logging.getLogger("absl")
    level = log.level
    # The accountant warns about Rényi orders that it leaves out. The bound also holds without them.
    log.setLevel(logging.ERROR)
    try:
        for noise, share, steps in history:
            step = events.PoissonSampledDpEvent(share, events.GaussianDpEvent(noise))
            accountant.compose(events.SelfComposedDpEvent(step, steps))
        return float(accountant.get_epsilon(delta))
    finally:
        log.setLevel(level)
