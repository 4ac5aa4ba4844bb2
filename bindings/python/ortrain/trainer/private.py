"""Training with differential privacy: DP-SGD (Abadi et al., Deep Learning with Differential Privacy, 2016)."""

from __future__ import annotations

import importlib
import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain.trainer.core import Trainer

Array = npt.NDArray[Any]

_SUMMED = 4  # normal numbers that are added up for one


@dataclass(frozen=True)
class PrivateRun:
    """What a run with differential privacy did."""

    epsilon: float
    """The run is (epsilon, delta)-private, for data sets that differ by one row added or removed; infinite without noise."""
    delta: float
    steps: int
    """Optimizer steps."""
    rows: int
    """Rows that were drawn for them, all together."""
    losses: list[float] = field(default_factory=list)
    """The mean loss of the rows of each epoch. It is computed from the data without noise: do not publish it."""
    clipped: float = 0.0
    """The share of gradients that were longer than the clip, which is not to be published either."""


def fit_privately(
    trainer: Trainer,
    data: Any,
    target: Any = None,
    *,
    epochs: int = 1,
    batch_size: int = 64,
    clip: float = 1.0,
    noise_multiplier: float = 1.0,
    delta: float = 1e-5,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> PrivateRun:
    """Train so that the parameters hardly depend on any single row.

    Each step draws every row with the probability ``batch_size / rows``. The gradient of each drawn row is scaled down to the
    norm ``clip`` if it is longer, and normal noise with the deviation ``noise_multiplier * clip`` is added to each element of
    their sum, which is divided by ``batch_size``. The optimizer of the trainer takes the step. The random bits of rows and
    noise come from the operating system's cryptographic generator. A noise number is the sum of four normal numbers, from
    which the low bits of each cannot be told (Holohan and Braghin, Secure Random Sampling in Differential Privacy, 2021).

    Parameters
    ----------
    trainer : Trainer
        The trainer. Each row is a train step, so the network must not mix rows, as BatchNormalization does.
    data, target : object
        Arrays in memory, as for `Trainer.fit`.
    epochs : int, default 1
        The run has ``epochs * rows / batch_size`` steps, rounded.
    batch_size : int, default 64
        The expected number of rows of a step.
    clip : float, default 1.0
        The largest norm of the gradient of a row.
    noise_multiplier : float, default 1.0
        The deviation of the noise, as a multiple of the clip. With 0 nothing is private.
    delta : float, default 1e-5
        The probability with which the bound epsilon may fail; it should be well below 1 / rows.
    random_bytes : callable, optional
        Returns a number of random bytes. A function other than the default is for tests: its bytes must be unpredictable.

    Returns
    -------
    PrivateRun
        With epsilon, by the accountant for Rényi differential privacy of the package dp-accounting.

    Raises
    ------
    ImportError
        When dp-accounting is not installed: ``pip install 'ortrain[privacy]'``.
    ValueError
        When a setting is out of range, or the data do not match the model.
    """
    _check(epochs, batch_size, clip, noise_multiplier, delta)
    columns = trainer.inputs.take(trainer._with_target(data, target, 1)[0])
    count = len(columns[0])
    if count < batch_size:
        raise ValueError(f"batch_size: expected at most the {count} rows of the data, found {batch_size}")
    share, steps = batch_size / count, max(1, round(epochs * count / batch_size))
    epsilon = _epsilon(share, noise_multiplier, steps, delta)  # first, because the package may be missing
    source = _Source(random_bytes)
    module, drawn, clipped = trainer.module.train(), 0, 0
    gradient = np.zeros(module.get_parameters_size(True), np.float32)
    losses: list[list[float]] = [[] for _ in range(epochs)]
    for step in range(steps):
        total = np.zeros(len(gradient), np.float64)
        for row in np.flatnonzero(source.uniform(count) < share):
            module.lazy_reset_grad()
            outputs = module(*(column[row : row + 1] for column in columns))
            module.copy_gradients_to_buffer(gradient)
            norm = float(np.sqrt(np.dot(gradient, gradient.astype(np.float64))))
            if not math.isfinite(norm):
                raise ValueError(
                    f"fit_privately: expected a finite gradient of row {row}, found the norm {norm}"
                )
            total += gradient * min(1.0, clip / norm) if norm > 0 else 0.0
            clipped += norm > clip
            drawn += 1
            first = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
            losses[step * epochs // steps].append(float(np.asarray(first).item()))
        if noise_multiplier:
            total += noise_multiplier * clip * source.normal(len(total))
        module.copy_buffer_to_gradients((total / batch_size).astype(np.float32))
        trainer.optimizer.step()
    module.lazy_reset_grad()
    trainer.parameters_changed()
    means = [float(np.mean(values)) if values else math.nan for values in losses]
    return PrivateRun(epsilon, delta, steps, drawn, means, clipped / max(1, drawn))


def _check(epochs: int, batch_size: int, clip: float, noise_multiplier: float, delta: float) -> None:
    for name, value in {"epochs": epochs, "batch_size": batch_size}.items():
        if value < 1:
            raise ValueError(f"{name}: expected 1 or more, found {value}")
    if not (math.isfinite(clip) and clip > 0):
        raise ValueError(f"clip: expected a norm above 0, found {clip}")
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise ValueError(f"noise_multiplier: expected 0 or more, found {noise_multiplier}")
    if not 0 < delta < 1:
        raise ValueError(f"delta: expected a probability above 0 and below 1, found {delta}")


def _epsilon(share: float, noise_multiplier: float, steps: int, delta: float) -> float:
    """Return the epsilon of steps that draw each row with a probability."""
    if noise_multiplier == 0:
        return math.inf
    try:
        events: Any = importlib.import_module("dp_accounting")
        rdp: Any = importlib.import_module("dp_accounting.rdp")
    except ImportError as error:
        raise ImportError(
            "fit_privately: computing epsilon needs dp-accounting: pip install 'ortrain[privacy]'"
        ) from error
    step = events.PoissonSampledDpEvent(share, events.GaussianDpEvent(noise_multiplier))
    accountant = rdp.RdpAccountant()
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(
        logging.ERROR
    )  # it warns about orders that it leaves out, without which the bound holds as well
    try:
        accountant.compose(events.SelfComposedDpEvent(step, steps))
        return float(accountant.get_epsilon(delta))
    finally:
        log.setLevel(level)


class _Source:
    """Random numbers made of random bytes."""

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._bytes = random_bytes

    def uniform(self, count: int) -> Array:
        """Return numbers from 0 to below 1, of 53 random bits each."""
        bits = np.frombuffer(self._bytes(8 * count), np.uint64) >> np.uint64(11)
        found: Array = bits.astype(np.float64) * 2.0**-53
        return found

    def normal(self, count: int) -> Array:
        """Return numbers of a normal distribution with the deviation 1, by the method of Box and Muller."""
        total = np.zeros(count)
        for _ in range(_SUMMED):
            lengths = np.sqrt(-2 * np.log1p(-self.uniform(count)))
            total += lengths * np.cos(2 * np.pi * self.uniform(count))
        found: Array = total / math.sqrt(_SUMMED)
        return found
