"""Training with differential privacy: DP-SGD (Abadi et al., Deep Learning with Differential Privacy, 2016)."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._support.counts import counted
from ortrain.api import CheckpointState, Module
from ortrain.options import SessionOptions
from ortrain.trainer.accountant import Accountant
from ortrain.trainer.callbacks import Callback, EarlyStopping, ModelCheckpoint, ReduceLROnPlateau
from ortrain.trainer.data import Batch, Rows, Source
from ortrain.trainer.gradients import Gradients, first_output

Array = npt.NDArray[Any]

_SUMMED = 4  # drawn normal numbers whose sum is one number of noise
_PART = 1 << 18  # numbers of noise that are drawn at a time
_MOST_ROWS = 64  # rows that a step takes at once
_GRADIENTS_OF_ROWS = 1 << 25  # the most elements of the gradients by row of one parameter
_STATISTICS = 1 << 20  # the most elements of a vector that may be a running statistic


@dataclass(frozen=True)
class Privacy:
    """Differential privacy of a run: ``Trainer(..., privacy=Privacy(epsilon=3))``. Steps are those of DP-SGD.

    Each step draws every row with the probability ``batch_size / rows``. The gradient of each drawn row is scaled down
    to the norm ``clip`` if it is longer, and normal noise with the deviation ``noise_multiplier * clip`` is added to
    each element of their sum, which is divided by ``batch_size``. The optimizer takes the step with that. The random
    bits of rows and noise come from the operating system's cryptographic generator. A noise number is the sum of four
    normal numbers, which hides the low bits of each (Holohan and Braghin, Secure Random Sampling in Differential
    Privacy, 2021).

    Parameters
    ----------
    noise_multiplier : float, optional
        The deviation of the noise, as a multiple of the clip; 1 if there is no ``epsilon`` either. With 0 nothing is private.
    epsilon : float, optional
        The epsilon that the steps of all runs must not exceed. Each run chooses its noise multiplier so that its last epoch
        reaches it.
    clip : float, default 1.0
        The largest norm of the gradient of a row.
    delta : float, default 1e-5
        The probability with which the bound epsilon may fail; it should be well below 1 / rows.
    random_bytes : callable, optional
        Returns a number of random bytes. A function other than the default is for tests: its bytes must be unpredictable.

    Raises
    ------
    ValueError
        When a setting is out of range, or both a noise multiplier and an epsilon are given.
    """

    noise_multiplier: float | None = None
    epsilon: float | None = None
    clip: float = 1.0
    delta: float = 1e-5
    random_bytes: Callable[[int], bytes] = field(default=os.urandom, repr=False)

    def __post_init__(self) -> None:
        if self.noise_multiplier is not None and self.epsilon is not None:
            raise ValueError(
                f"privacy: expected a noise_multiplier or an epsilon, found both, {self.noise_multiplier} and {self.epsilon}"
            )
        noise = self.noise_multiplier
        if noise is not None and not (math.isfinite(noise) and noise >= 0):
            raise ValueError(f"privacy: expected a noise_multiplier of 0 or more, found {noise}")
        if self.epsilon is not None and not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(f"privacy: expected an epsilon above 0, found {self.epsilon}")
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise ValueError(f"privacy: expected a norm above 0 as clip, found {self.clip}")
        if not 0 < self.delta < 1:
            raise ValueError(
                f"privacy: expected a probability above 0 and below 1 as delta, found {self.delta}"
            )

    def __str__(self) -> str:
        noise = (
            f"epsilon {self.epsilon:g}"
            if self.epsilon is not None
            else f"noise multiplier {1.0 if self.noise_multiplier is None else self.noise_multiplier:g}"
        )
        return f"{noise}, clip {self.clip:g}, delta {self.delta:g}"


_UNSUITABLE = {
    "accumulate": "expected accumulate=1 with it, because a step divides its batch into parts itself, so that a larger "
    "batch_size needs no more memory",
    "augment": "expected no mixup or cutmix in augment with it, because a mixed row consists of two rows of the data",
    "loss": "expected a loss that is a mean of losses of single rows with it, found a loss that compares the rows of a batch",
    "optimizer": "expected an optimizer with gradients with it, found mezo",
    "qat": "expected no qat with it, because the ranges of activations come from the rows without noise",
    "rehearsal": "expected no rehearsal with it, because its checkpoints contain rows of the data without protection",
    "sample_weight": "expected no sample_weight with it, because the weighted mean of a single row does not depend on its weight",
}
_OF_BATCHES = ("info_nce", "InfoNCELoss", "supcon", "SupConLoss")


def privacy_of(given: Privacy | bool | None) -> Privacy | None:
    """Return the settings of privacy that a caller means."""
    return Privacy() if given is True else given or None


def check_settings(**settings: bool) -> None:
    """Reject settings that rule out privacy for a private trainer; each is given with whether it is in use.

    Raises
    ------
    ValueError
        When one is so.
    """
    for name, is_unsuitable in settings.items():
        if is_unsuitable:
            raise ValueError(f"privacy: {_UNSUITABLE[name]}")


def compares_rows(loss: Any) -> bool:
    """Whether a loss, given by its name, as a member of LossType or as a block, compares the rows of a batch with each other."""
    named = loss.name if isinstance(loss, Enum) else type(loss).__name__
    return (loss if isinstance(loss, str) else named) in _OF_BATCHES


def check_monitors(callbacks: Sequence[Callback], schedule: Any, is_validated: bool) -> None:
    """Warn about decisions of a run that follow values of its rows without noise, so that they are not private.

    Parameters
    ----------
    callbacks : sequence of Callback
        Those of the run.
    schedule : Schedule or callable
        The schedule of the learning rate.
    is_validated : bool
        Whether epochs have values of a validation.
    """
    followed = [(type(callback).__name__, _followed(callback)) for callback in callbacks]
    if getattr(schedule, "reads_value", False):
        monitor = schedule.monitor or ("val_loss" if is_validated else "loss")
        followed.append((f"the schedule {schedule.name}", monitor))
    for name, monitor in followed:
        if monitor and not monitor.startswith("val_") and monitor not in ("epsilon", "learning_rate"):
            warnings.warn(
                f"privacy: {name} follows {monitor!r}, a value of the training rows without noise, so its decisions "
                "are not private; a value of a validation, such as 'val_loss', comes from other rows",
                stacklevel=4,
            )


def _followed(callback: Callback) -> str | None:
    """Return the name of the value by which a callback chooses parameters or rates; None if it does not."""
    if isinstance(callback, ModelCheckpoint):
        chooses = callback.save_best_only or callback.best_path is not None or callback.keep is not None
        return callback.monitor if chooses else None
    return callback.monitor if isinstance(callback, (EarlyStopping, ReduceLROnPlateau)) else None


class Drawn(Rows):
    """Rows of which each step draws every one with the same probability, so that batches differ in size and may be empty.

    Parameters
    ----------
    rows : Rows
        The rows; their batch size is the expected number of rows of a step.
    uniform : callable
        Returns so many numbers from 0 to below 1.
    """

    def __init__(self, rows: Rows, uniform: Callable[[int], Array]) -> None:
        super().__init__(rows.count, rows._take, rows.batch_size, False, rows.seed)
        self.columns, self.prefetch, self._uniform = rows.columns, rows.prefetch, uniform
        self.share = rows.batch_size / rows.count
        whole = max(1, round(rows.count / rows.batch_size))
        limited = rows.steps is not None and rows.steps < -(-rows.count // rows.batch_size)
        self.steps = min(whole, rows.steps or 1) if limited else whole

    @property
    def last_rows(self) -> int:
        """The rows of a train step."""
        return 1

    def example(self, epoch: int, first: int) -> Batch:
        """Return a batch as train steps get it: one row."""
        return self._take(np.arange(1))

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, from number ``first`` on."""
        assert self.steps is not None
        for _ in range(first, self.steps):
            chosen = np.flatnonzero(self._uniform(self.count) < self.share)
            # A table may not know the shapes of its columns without any row.
            yield self._take(chosen) if len(chosen) else tuple(column[:0] for column in self.example(0, 0))


class PrivateGradients(Gradients):
    """The sum of clipped gradients of single rows, with noise.

    Parameters
    ----------
    privacy : Privacy
        The settings.
    accountant : Accountant
        Where steps are counted.
    state : CheckpointState
        The parameters.
    folder : path
        The folder of the training model.
    options : SessionOptions
        The options of sessions.
    """

    value_names = ("epsilon", "clipped")

    def __init__(
        self,
        privacy: Privacy,
        accountant: Accountant,
        state: CheckpointState,
        folder: Path,
        options: SessionOptions,
    ) -> None:
        self._folder, self._options = folder, options
        self._many: Any = None
        self._takes_single_rows = False
        self.settings = {"privacy": str(privacy)}
        self._privacy, self._accountant, self._state = privacy, accountant, state
        self._random = _Random(privacy.random_bytes)
        self._noise = 1.0 if privacy.noise_multiplier is None else privacy.noise_multiplier
        self._share, self._batch_size = 0.0, 1
        self._clipped = self._count = 0
        self._total: Array = np.zeros(0)
        self._is_checked = False

    def draw(self, source: Source, shuffle: bool, drop_last: bool) -> Source:
        """Return a source that draws rows at random.

        Raises
        ------
        ValueError
            When the data have no rows that can be drawn, or are to be taken in an order.
        """
        if not isinstance(source, Rows):
            raise ValueError(
                "privacy: expected data with rows, of which each step draws some: arrays, a data frame or a Hugging Face "
                "dataset; found batches"
            )
        for name, found, expected in (("shuffle", shuffle, True), ("drop_last", drop_last, False)):
            if found != expected:
                raise ValueError(
                    f"privacy: expected {name}={expected} with it, because each step draws its rows at random, found {found}"
                )
        if source.count < source.batch_size:
            raise ValueError(
                f"batch_size (--batch): expected at most the {counted(source.count, 'row')} of the data, found "
                f"{source.batch_size}"
            )
        if self._privacy.delta * source.count >= 1:
            warnings.warn(
                f"privacy: expected a delta well below 1 / {source.count}, the number of rows, found {self._privacy.delta:g}; "
                "with a larger one a run that publishes a row counts as private",
                stacklevel=4,
            )
        drawn = Drawn(source, self._random.uniform)
        self._share, self._batch_size = drawn.share, drawn.batch_size
        return drawn

    def begin(self, steps: int | None, kept: Mapping[str, Any]) -> None:
        """Choose the noise multiplier of the run."""
        assert steps is not None  # the number of steps is known for data with rows
        delta, bound = self._privacy.delta, self._privacy.epsilon
        self._clipped = self._count = 0
        self._total, self._is_checked = np.zeros(0), False
        if steps < 1:
            return
        if bound is not None:
            known = kept.get("noise_multiplier")
            self._noise = (
                self._accountant.noise_for(bound, self._share, steps, delta)
                if known is None
                else float(known)
            )
        # Epsilon is computed before the first step, because the package for it may be missing.
        self._accountant.epsilon_after(self._noise, self._share, steps, delta)

    def compute(self, module: Module, batch: Batch, read: Sequence[int]) -> Any:
        """Add the clipped gradients of the rows of a batch."""
        if not len(batch[0]):
            return None
        is_first = not self._is_checked
        norms, losses, outputs = self._add(module, batch, [number for number in read if number])
        self._clipped += sum(norm > self._privacy.clip for norm in norms)
        self._count += len(norms)
        if is_first and not any(norms):
            warnings.warn(
                f"privacy: the gradients of all {counted(len(losses), 'row')} of the first step are 0, so nothing is "
                "learned from them; a "
                "loss that compares the rows of a batch with each other has nothing to compare in a single row",
                stacklevel=5,
            )
        mean = np.float32(np.mean(losses))
        return [mean, *(_joined(outputs.get(number)) for number in range(1, max(read, default=0) + 1))]

    def _add(
        self, module: Module, batch: Batch, read: Sequence[int]
    ) -> tuple[list[float], list[float], dict[int, list[Array]]]:
        """Add the clipped gradients of rows to the sum; return the norms before clipping, the losses, and outputs by index."""
        total, clip = self._sum(module), self._privacy.clip
        many = self._many_rows(module, batch)
        if many is not None:
            norms, losses, found = many.add_and_read(batch, clip, read)
            return norms.tolist(), losses.tolist(), found
        gradient = np.zeros(len(total), np.float32)
        norms, losses = list[float](), list[float]()
        found = {number: list[Array]() for number in read}
        for row in range(len(batch[0])):
            before = {} if self._is_checked else self._statistics()
            module.lazy_reset_grad()
            outputs = module(*(column[row : row + 1] for column in batch))
            self._check_statistics(before)
            module.copy_gradients_to_buffer(gradient)
            norms.append(float(np.sqrt(np.dot(gradient, gradient.astype(np.float64)))))
            losses.append(float(np.asarray(first_output(outputs)).item()))
            if not math.isfinite(norms[-1]):
                total[:] = math.nan  # the optimizer rejects this value
            elif norms[-1] > 0:
                total += gradient * min(1.0, clip / norms[-1])
            for number, values in found.items():
                values.append(np.asarray(outputs[number]))
        return norms, losses, found

    def _many_rows(self, module: Module, batch: Batch) -> Any:
        """Return the object that clips many rows in one step; None if steps must take the rows one by one."""
        if self._many is not None or self._takes_single_rows:
            return self._many
        largest = max((p.data.size for _, p in self._state.parameters if p.requires_grad), default=1)
        rows = max(2, min(_MOST_ROWS, _GRADIENTS_OF_ROWS // max(largest, 1), self._batch_size))
        try:
            from ortrain.trainer.clipped_rows import ClippedRows  # needs onnx

            many = ClippedRows(module, self._state, self._folder, rows, self._options)
        except (ImportError, RuntimeError, ValueError) as error:
            reason: str | None = str(error)
        else:
            reason = many.mixing(batch)
        self._takes_single_rows = reason is not None
        if reason is None:
            self._many = many
        else:
            warnings.warn(
                f"privacy: each step takes its rows one by one, which is slower: {reason}", stacklevel=7
            )
        return self._many

    def _sum(self, module: Module) -> Array:
        """Return the sum of the clipped gradients of the step."""
        if not len(self._total):
            self._total = np.zeros(module.get_parameters_size(True))
        return self._total

    def complete(self, module: Module) -> None:
        """Add the noise, and count the step."""
        total = self._sum(module)
        if self._many is not None:
            total += self._many.take()
        for begin in range(0, len(total) if self._noise else 0, _PART):
            part = total[begin : begin + _PART]
            part += self._noise * self._privacy.clip * self._random.normal(len(part))
        module.copy_buffer_to_gradients((total / self._batch_size).astype(np.float32))
        total[:] = 0
        self._accountant.add(self._noise, self._share)

    def values(self) -> dict[str, float]:
        """Return the epsilon of all steps so far, and the share of the epoch's gradients that were longer than the clip."""
        clipped = self._clipped / self._count if self._count else math.nan
        self._clipped = self._count = 0
        return {"epsilon": self._accountant.epsilon(self._privacy.delta), "clipped": clipped}

    def state(self) -> dict[str, Any]:
        """Return the counts of the epoch, and the noise multiplier."""
        return {"clipped": self._clipped, "count": self._count, "noise_multiplier": self._noise}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on with the counts of the epoch."""
        self._clipped, self._count = int(state.get("clipped", 0)), int(state.get("count", 0))

    def _statistics(self) -> dict[str, Array]:
        """Return copies of vectors and numbers that a step may change without an optimizer, such as running statistics."""
        return {
            name: np.array(parameter.data)
            for name, parameter in self._state.parameters
            if not parameter.requires_grad and parameter.data.ndim < 2 and parameter.data.size <= _STATISTICS
        }

    def _check_statistics(self, before: dict[str, Array]) -> None:
        """After the first train step, reject a model whose train steps change other values than gradients.

        Raises
        ------
        ValueError
            When a value has changed. The old value is restored first.
        """
        if self._is_checked:
            return
        self._is_checked = True
        parameters = self._state.parameters
        changed = [
            name for name, value in before.items() if parameters[name].data.tobytes() != value.tobytes()
        ]
        for name in changed:
            parameters[name] = before[name]
        if changed:
            raise ValueError(
                "privacy: expected a training model whose steps change nothing but gradients, found statistics that each row "
                f"changes, without noise: {', '.join(changed[:4])}{', ...' if len(changed) > 4 else ''}. "
                "BatchNormalization in training mode and quantization-aware training keep such statistics; normalizations by "
                "row, such as GroupNormalization and LayerNormalization, do not"
            )


def _joined(rows: list[Array] | None) -> Array | None:
    """Join the outputs of rows to the output of a batch; None if no output is read, or outputs have no dimension."""
    return np.concatenate(rows) if rows and rows[0].ndim else None


class _Random:
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
