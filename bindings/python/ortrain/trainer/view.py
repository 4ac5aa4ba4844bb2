"""The interface of the trainer for callbacks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.trainer.data import Inputs

Array = npt.NDArray[Any]


class TrainerView(Protocol):
    """What callbacks use of a trainer. :class:`Trainer`, which knows callbacks, has it and describes it."""

    module: Module
    optimizer: Optimizer
    state: CheckpointState
    inputs: Inputs
    folder: Path
    classes: list[str] | None
    history: dict[str, list[Any]]
    epoch: int
    step: int
    epochs: int
    steps_per_epoch: int | None
    accumulate: int
    resumed: bool
    stop_training: bool
    stop_reason: str | None
    last_batch: Sequence[Array]
    last_outputs: Sequence[Array]

    @property
    def learning_rate(self) -> float:
        """The learning rate, before the factor of the schedule."""

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None: ...

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run, as values that JSON can represent."""

    @property
    def value_names(self) -> list[str]:
        """The names of the values of an epoch of this run."""

    def has_foreign_callbacks(self) -> bool:
        """Whether a callback of the run is the user's."""

    def parameters_changed(self) -> None:
        """Tell the trainer that parameters were changed outside of `fit`."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint from which the run can be resumed."""

    def validate(self) -> dict[str, Any]:
        """Return loss and metrics on the validation data of the run."""

    def evaluate(
        self, data: Any, target: Any = None, *, batch_size: int = 32, prefetch: int | None = None
    ) -> dict[str, Any]:
        """Return loss and metrics on data."""

    def predict(self, data: Any, *, batch_size: int = 32) -> Any:
        """Return what the model computes for data."""

    def export(self, path: str | os.PathLike[str], outputs: Sequence[str] | None = None) -> None:
        """Write the model with its current parameters for inference."""
