"""The contestants: the name, the virtual environment and the training code of each."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.cases import Case

Step = Callable[[Any, Any], float]
"""Trains one step on NumPy input and labels, resets the gradients, returns the loss."""


class Trainer(Protocol):
    """The work of a contestant inside its worker; creating one only imports the framework."""

    version: str

    def make_artifacts(self, case: Case, cache: Path) -> None:
        """Write what training needs; called in a separate process, whose memory is not counted."""

    def prepare(self, case: Case, cache: Path, threads: int) -> Step:
        """Load the model and return the function that trains one step."""


@dataclass(frozen=True)
class Contestant:
    """One competitor.

    Attributes
    ----------
    name : what the user selects and the reports show.
    colour : of its bars in the plot.
    venv : folder below `--peers` with the virtual environment it runs in; None for the running interpreter.
    trainer : module, class and argument of its `Trainer`.
    artifacts : whether `Trainer.make_artifacts` must run first.
    tolerance : largest relative difference of its first losses from those of `OURS`, if it computes in another
    precision; None for the case's tolerance.
    """

    name: str
    colour: str
    venv: str | None
    trainer: tuple[str, str, Any]
    artifacts: bool = False
    tolerance: float | None = None

    def make_trainer(self) -> Trainer:
        module, kind, argument = self.trainer
        trainer: Trainer = getattr(importlib.import_module(module), kind)(argument)
        return trainer


OURS = "ortrain"
OURS_BF16 = "ortrain-bf16"

_ON_DEVICE = ("benchmarks.train_on_device", "OnDeviceTrainer")
_TORCH = ("benchmarks.train_torch", "TorchTrainer")


def ours(
    name: str,
    colour: str,
    config: dict[str, str],
    disabled_passes: list[str],
    tolerance: float | None = None,
) -> Contestant:
    """Return ortrain with these configuration entries of the session, and without these artifact passes."""
    trainer = (*_ON_DEVICE, (name, "ortrain", "ortrain", config, disabled_passes))
    return Contestant(name, colour, None, trainer, artifacts=True, tolerance=tolerance)


CONTESTANTS = (
    ours(OURS, "#d1495b", {}, []),
    ours(OURS_BF16, "#e8929d", {"ortrain.mixed_precision": "bf16"}, [], tolerance=3e-2),
    Contestant(
        "ort",
        "#30638e",
        "ort",
        (*_ON_DEVICE, ("ort", "onnxruntime", "onnxruntime.training", {}, [])),
        artifacts=True,
    ),
    Contestant("step", "#7aa6c2", None, ("benchmarks.train_step", "StepTrainer", "step"), artifacts=True),
    Contestant(
        "step-any", "#aac7d8", None, ("benchmarks.train_step", "StepTrainer", "step-any"), artifacts=True
    ),
    Contestant("torch-eager", "#edae49", "torch", (*_TORCH, "eager")),
    Contestant("torch-channels-last", "#f3d08b", "torch", (*_TORCH, "channels-last")),
    Contestant("torch-compiled", "#8d6b94", "torch", (*_TORCH, "compiled")),
    Contestant("jax", "#5b8c5a", "jax", ("benchmarks.train_jax", "JaxTrainer", None)),
)


def by_name(name: str) -> Contestant:
    """Return the contestant called `name`.

    Raises
    ------
    ValueError
        There is none.
    """
    for contestant in CONTESTANTS:
        if contestant.name == name:
            return contestant
    raise ValueError(f"unknown contestant {name}; known are {', '.join(c.name for c in CONTESTANTS)}")
