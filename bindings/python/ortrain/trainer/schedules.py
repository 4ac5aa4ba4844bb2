"""Learning rate schedules: factors of the rate by optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int, int | None], float]


def _decay(step: int, warmup: int, total: int | None, name: str) -> float:
    if total is None:
        raise ValueError(f"schedule {name}: expected a known number of steps; give fit steps_per_epoch")
    return max(0.0, (total - step) / max(1, total - warmup))


def schedule_of(given: str | Schedule | None, warmup: int = 0) -> Schedule | None:
    """Return the function of step and total that gives the factor of the learning rate.

    Parameters
    ----------
    given : {"constant", "linear", "cosine"} or callable, optional
        A name; or a function of the number of optimizer steps taken and of the total number (None if that is not
        known) that returns the factor. None without warmup means a constant rate.
    warmup : int, default 0
        Steps in which the factor of a named schedule goes up from 0.

    Raises
    ------
    ValueError
        When there is no schedule of this name.
    """
    if warmup < 0:
        raise ValueError(f"warmup: expected 0 or more, found {warmup}")
    if callable(given):
        return given
    if given not in (None, "constant", "linear", "cosine"):
        raise ValueError(f"schedule: expected constant, linear, cosine or a function, found {given!r}")
    if given in (None, "constant") and not warmup:
        return None

    def factor(step: int, total: int | None) -> float:
        if step < warmup:
            return step / warmup
        if given == "linear":
            return _decay(step, warmup, total, "linear")
        if given == "cosine":
            return 0.5 - 0.5 * math.cos(math.pi * _decay(step, warmup, total, "cosine"))
        return 1.0

    return factor
