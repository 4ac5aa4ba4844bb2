"""GradientExchange: the gradients of several train steps and ranks, averaged by samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain import _ortrain
from ortrain._support.values import to_writable
from ortrain.api.generated.run_options import RunOptions
from ortrain.distributed.communicator import Communicator
from ortrain.distributed.wire import DOING, Chunks, Reduction
from ortrain.errors import OrtrainError

Array = npt.NDArray[Any]


@dataclass
class Traffic:
    """The cost of the exchange of gradients for a process."""

    steps: int = 0
    """Optimizer steps."""
    bytes: int = 0
    """Bytes of gradients that this process has passed to all-reduce calls."""
    seconds: float = 0.0
    """Seconds for which optimizer steps waited for other ranks."""


@dataclass(frozen=True)
class GradientSource:
    """Where gradients are added up, all in one buffer."""

    read: Callable[[Array], None]
    """Copies the gradients into an array."""
    reset: Callable[[], None]
    """Makes the next train step start from zero."""


class GradientExchange:
    """Averages gradients over train steps and ranks, in proportion to the numbers of samples.

    The result is the sum over the train steps of the gradient of the mean loss, as one process with joined batches has
    it. The session adds up gradients of equal weight; where weights differ, sums are set aside with their weight.
    """

    def __init__(
        self,
        ranks: Communicator,
        source: GradientSource,
        counts: Sequence[int],
        dtype: npt.DTypeLike,
        wire: str,
        chunk_bytes: int,
        room: int = 0,
    ) -> None:
        """Create an exchange for a buffer of gradients, given the number of elements of each, with room for `room` elements."""
        self.ranks = ranks
        self.traffic = Traffic()
        self.storage = np.zeros(max(room, sum(counts)), dtype)
        """The buffer, followed by zeros."""
        self.buffer = self.storage[: sum(counts)]
        self.options = RunOptions()
        """Options of a run that sends gradients while others are computed."""
        self._source = source
        self.reduction = Reduction(ranks, wire)
        self._chunks = Chunks(counts, chunk_bytes // self.buffer.itemsize)
        self._value = to_writable(self.buffer)
        self._watch = _ortrain.GradientWatch(self.options._handle, self._value, self._take)
        self._forget()

    def _forget(self) -> None:
        self._added: Array | None = None  # sums of gradients that had earlier weights, each times its weight
        self._weight = 0.0  # the weight of the train steps whose gradients the session has added up
        self._samples = 0.0
        self.runs = 0
        self.sent = False
        """Whether the last part of the gradients has been sent."""

    def discard(self) -> None:
        """Forget the gradients of earlier train steps."""
        if self.sent:
            raise OrtrainError(
                "the gradients are already being sent to other ranks; take the optimizer step first"
            )
        self._forget()

    def run(
        self, work: Callable[[RunOptions | None], Any], weight: float, sends: bool, parts: int = 1
    ) -> Any:
        """Run a train step.

        Parameters
        ----------
        work : callable
            The step, with the options for the run if it sends gradients.
        weight : float
            The number of samples of which the loss is the mean.
        sends : bool
            Whether it is the last one before the exchange.
        parts : int, default 1
            The number of losses whose gradients the step adds up, each with that weight.
        """
        if not (weight >= 0 and np.isfinite(weight)):
            raise ValueError(f"weight: expected a number of samples, 0 or more, found {weight}")
        if self.sent:
            raise OrtrainError(
                "train step: the gradients of earlier train steps are already being sent; take the optimizer step first"
            )
        if self.runs and weight != self._weight:
            self._set_aside()
        self._weight = weight
        if sends:
            self.sent = True
            self._chunks.restart()
            result = work(self.options)
            self._watch.check()
        else:
            result = work(None)
        self._samples += weight * parts
        self.runs += 1
        return result

    def _set_aside(self) -> None:
        if self._weight:
            self._source.read(self.buffer)
            gradients = self.buffer * self.buffer.dtype.type(self._weight)
            self._added = gradients if self._added is None else self._added + gradients
        self._source.reset()

    def _take(self, first: int, count: int) -> None:
        """Send the part that is complete now that the buffer has one more gradient."""
        for part in self._chunks.completed(first, count):
            self.reduction.start(self._weighted(part))
        self.reduction.poll()

    def _weighted(self, part: slice) -> Array:
        gradients: Array = self.buffer[part]
        if self._weight == 0:
            gradients[:] = 0
        else:
            gradients *= gradients.dtype.type(self._weight)
        if self._added is not None:
            gradients += self._added[part]
        return gradients

    def read(self) -> Array:
        """Return this rank's gradients, times the numbers of samples, in the buffer."""
        self._source.read(self.buffer)
        return self._weighted(slice(None))

    def average(self) -> Array:
        """Return the average over the ranks, in the buffer."""
        started = time.perf_counter()
        if not self.sent:
            self._source.read(self.buffer)
            for part in self._chunks.parts:
                self.reduction.start(self._weighted(part))
        factor = self.factor()
        self.reduction.finish()
        self.buffer *= self.buffer.dtype.type(factor)
        self.account(self.reduction.bytes_of(self.buffer), started)
        return self.buffer

    def factor(self) -> float:
        """Return the factor for sums over the ranks, and start over."""
        totals = self.ranks.sum(np.array([self._samples, self.runs], np.float64), DOING)
        samples, runs = totals[0], totals[1] / self.ranks.size
        self._forget()
        if samples == 0:
            raise OrtrainError("optimizer step: no rank has samples; all weights are 0")
        return float(runs / samples)

    def own_weight(self) -> tuple[float, int]:
        """Return the number of samples and of train steps of this rank, and start over."""
        result = self._samples, self.runs
        self._forget()
        return result

    def account(self, count: int, started: float) -> None:
        """Record an exchange: its bytes and the time at which it began."""
        self.traffic.steps += 1
        self.traffic.bytes += count
        self.traffic.seconds += time.perf_counter() - started


def samples_of(first_input: Any) -> float:
    """Return the number of samples in a batch: the first dimension of its first array."""
    shape = first_input.shape() if callable(getattr(first_input, "shape", None)) else np.shape(first_input)
    return float(shape[0]) if shape else 1.0
