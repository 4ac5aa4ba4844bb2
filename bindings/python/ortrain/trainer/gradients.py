"""Where the gradients of an optimizer step come from: backpropagation, or a way that replaces it.

The loop of a run is the same for all of them. For each batch it asks for gradients, which are added to those of the step, and
after ``accumulate`` batches the optimizer takes a step with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from ortrain.api import Module
from ortrain.trainer.data import Batch, Source

Array = npt.NDArray[Any]


class Gradients:
    """Backpropagation: a train step computes the gradients of its batch. Other ways override the methods."""

    settings: Mapping[str, str] = {}
    """What differs from backpropagation, by name, for the settings of a run. A resumed run must have the same."""

    default_rate: float | None = None
    """The learning rate of a run that states none; None for that of the optimizer model."""

    value_names: tuple[str, ...] = ()
    """The names of `values`."""

    def draw(self, source: Source, shuffle: bool, drop_last: bool) -> Source:
        """Return what the batches of a run come from, given what its data are."""
        return source

    def begin(self, steps: int | None, kept: Mapping[str, Any]) -> None:
        """Begin a run, or go on with one.

        Parameters
        ----------
        steps : int or None
            The optimizer steps that are left of the run, if that is known.
        kept : mapping of str to object
            The result of `state` if the run is resumed with as many epochs as before; else empty.
        """

    def compute(self, module: Module, batch: Batch, read: Sequence[int]) -> Any:
        """Add the gradients of a batch to those of the step.

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
        return module(*batch)

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


def first_output(outputs: Any) -> Any:
    """Return the loss among what a step returned."""
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs
