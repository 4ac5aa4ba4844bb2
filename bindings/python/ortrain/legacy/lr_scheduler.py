"""Learning rates that rise from zero during a warmup and then follow a curve."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from ortrain.legacy.optimizer_config import _require


class _LRScheduler:
    """A schedule. ``get_lr`` computes the learning rate of a step, and ``get_last_lr`` repeats the last one."""

    def __init__(self) -> None:
        self._last_lr: list[float] = []

    def _step(self, train_step_info: Any) -> list[float]:
        """Compute the learning rate of a step, and keep it."""
        self._last_lr = self.get_lr(train_step_info)
        return self._last_lr

    def get_lr(self, train_step_info: Any) -> list[float]:
        """Return the learning rate of a step.

        Parameters
        ----------
        train_step_info : object
            Has ``optimization_step``, the number of the step, and ``optimizer_config``, whose ``lr`` is the learning
            rate that the schedule scales.

        Returns
        -------
        list of float
            A list with the learning rate as its only element.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement get_lr")

    def get_last_lr(self) -> list[float]:
        """Return the last learning rate, or an empty list before the first step."""
        return self._last_lr


class _WarmupLRScheduler(_LRScheduler, ABC):
    """A learning rate that rises linearly during the warmup and is then multiplied by a function of the progress."""

    def __init__(self, total_steps: int, warmup: float) -> None:
        super().__init__()
        is_count = isinstance(total_steps, int) and total_steps > 0
        _require(is_count, "total_steps must be a positive int", total_steps)
        is_part = isinstance(warmup, float) and 0 <= warmup < 1
        _require(is_part, "warmup must be a float in the interval [0, 1)", warmup)
        self.total_steps = total_steps
        self.warmup = warmup
        self._num_warmup_steps = warmup * total_steps

    @abstractmethod
    def _factor(self, step: int, rate: float) -> float:
        """Return the factor of the learning rate in a step after the warmup."""

    def get_lr(self, train_step_info: Any) -> list[float]:
        """Return a list with the learning rate of a step."""
        step, rate = train_step_info.optimization_step, train_step_info.optimizer_config.lr
        self._check(rate)
        if step < self._num_warmup_steps:
            return [rate * (step / max(1, self._num_warmup_steps))]
        return [rate * self._factor(step, rate)]

    def _check(self, rate: float) -> None:
        """Reject a learning rate that the schedule cannot scale."""

    def _remaining_steps(self) -> float:
        return max(1, self.total_steps - self._num_warmup_steps)


class ConstantWarmupLRScheduler(_WarmupLRScheduler):
    """Stays at the learning rate after the warmup.

    Parameters
    ----------
    total_steps : int
        The number of steps of the training.
    warmup : float, default: 0.002
        The part of them in which the learning rate rises.
    """

    def __init__(self, total_steps: int, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)

    def _factor(self, step: int, rate: float) -> float:
        return 1.0


class CosineWarmupLRScheduler(_WarmupLRScheduler):
    """Follows a cosine after the warmup.

    Parameters
    ----------
    total_steps : int
        The number of steps of the training.
    cycles : float, default: 0.5
        The number of waves; half a wave ends at zero.
    warmup : float, default: 0.002
        The part of the steps in which the learning rate rises.
    """

    def __init__(self, total_steps: int, cycles: float = 0.5, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)
        _require(isinstance(cycles, float) and cycles > 0, "cycles must be a positive float", cycles)
        self.cycles = cycles

    def _factor(self, step: int, rate: float) -> float:
        progress = (step - self._num_warmup_steps) / self._remaining_steps()
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * self.cycles * 2.0 * progress)))


class LinearWarmupLRScheduler(_WarmupLRScheduler):
    """Falls linearly to zero after the warmup.

    Parameters
    ----------
    total_steps : int
        The number of steps of the training, after which the learning rate is zero.
    warmup : float, default: 0.002
        The part of them in which the learning rate rises.
    """

    def __init__(self, total_steps: int, warmup: float = 0.002) -> None:
        super().__init__(total_steps, warmup)

    def _factor(self, step: int, rate: float) -> float:
        return max(0.0, (self.total_steps - step) / self._remaining_steps())


class PolyWarmupLRScheduler(_WarmupLRScheduler):
    """Falls to a final learning rate as a power of the remaining steps after the warmup.

    Parameters
    ----------
    total_steps : int
        The number of steps of the training.
    lr_end : float, default: 1e-7
        The final learning rate.
    power : float, default: 1.0
        The power; 1 falls linearly.
    warmup : float, default: 0.002
        The part of the steps in which the learning rate rises.
    """

    def __init__(
        self, total_steps: int, lr_end: float = 1e-7, power: float = 1.0, warmup: float = 0.002
    ) -> None:
        super().__init__(total_steps, warmup)
        for name, value in (("lr_end", lr_end), ("power", power)):
            is_valid = isinstance(value, float) and value >= 0
            _require(is_valid, f"{name} must be a float that is not negative", value)
        self.lr_end = lr_end
        self.power = power

    def _check(self, rate: float) -> None:
        _require(rate > self.lr_end, f"lr_end {self.lr_end} must be smaller than the learning rate", rate)

    def _factor(self, step: int, rate: float) -> float:
        if step > self.total_steps:
            return self.lr_end / rate
        remaining = 1 - (step - self._num_warmup_steps) / (self.total_steps - self._num_warmup_steps)
        return float(((rate - self.lr_end) * remaining**self.power + self.lr_end) / rate)
