"""Where the gradients of an optimizer step come from: backpropagation, or a way that replaces it.

The loop of a run is the same for all of them. For each batch it asks for gradients, and after ``accumulate`` batches the
optimizer takes a step with their mean, in which each row counts the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from ortrain.api import CheckpointState, Module
from ortrain.trainer.data import Batch, Source, rows_in

Array = npt.NDArray[Any]


class Gradients:
    """A source of gradients, as the loop calls it."""

    settings: Mapping[str, str] = {}
    """Settings in which a run differs from backpropagation, by name. A resumed run must have equal settings."""

    default_rate: float | None = None
    """The default learning rate of a run; None for the rate in the optimizer model."""

    value_names: tuple[str, ...] = ()
    """The names of the values that `values` returns."""

    def draw(self, source: Source, shuffle: bool, drop_last: bool) -> Source:
        """Return what the batches of a run come from, given what its data are."""
        return source

    def begin(self, steps: int | None, kept: Mapping[str, Any]) -> None:
        """Begin or continue a run.

        Parameters
        ----------
        steps : int or None
            The optimizer steps that are left of the run, if that is known.
        kept : mapping of str to object
            The result of `state` if the run is resumed with as many epochs as before; else empty.
        """

    def compute(self, module: Module, batch: Batch, read: Sequence[int]) -> Any:
        """Compute the gradients of a batch, besides those of earlier batches of the same optimizer step.

        Parameters
        ----------
        module : Module
            The module, in training mode.
        batch : tuple of array
            The inputs.
        read : sequence of int
            The outputs that metrics read.

        Returns
        -------
        array or sequence of array or None
            What a train step returns, first the loss; outputs that are not read may be missing. None for a batch without rows.
        """
        raise NotImplementedError

    def complete(self, module: Module) -> None:
        """Complete the gradients before the optimizer takes its step."""

    def values(self) -> dict[str, float]:
        """Return what an epoch reports besides loss and metrics, and begin the next epoch."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return what a run that is resumed within an epoch needs, as values that JSON can represent."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from the result of `state`."""


class Backpropagation(Gradients):
    """A train step computes the gradients of its batch.

    A train step adds the gradient of the mean over its rows to what is there. For the mean over the rows of several batches, of
    ``n_1``, ``n_2``, ... rows, gradients are scaled where the number of rows changes, by ``n_(k-1) / n_k``, and at the end, by
    ``n_k / (n_1 + ... + n_k)``.

    Parameters
    ----------
    state : CheckpointState
        The parameters, which have the gradients.
    """

    def __init__(self, state: CheckpointState) -> None:
        self._state = state
        # number of rows in the last batch, and in all batches of this optimizer step
        self._last = self._rows = 0

    def begin(self, steps: int | None, kept: Mapping[str, Any]) -> None:
        """Forget a step that was not completed."""
        self._last = self._rows = 0

    def compute(self, module: Module, batch: Batch, read: Sequence[int]) -> Any:
        """Add the gradients of a batch, in proportion to its rows."""
        rows = rows_in(batch)
        if self._rows and rows and rows != self._last:
            self._state.scale_gradients(self._last, rows)
        outputs = module(*batch)
        self._last = rows or self._last
        self._rows += rows
        return outputs

    def complete(self, module: Module) -> None:
        """Divide the sum."""
        if self._rows > self._last:
            self._state.scale_gradients(self._last, self._rows)
        self._last = self._rows = 0


def first_output(outputs: Any) -> Any:
    """Return the loss among what a step returned."""
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs
