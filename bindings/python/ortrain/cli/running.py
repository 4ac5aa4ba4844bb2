"""What the commands that run a model share: their options, the trainer and its data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ortrain.cli.datasets import KINDS, Wanted, load
from ortrain.trainer import Trainer

COUNT = click.IntRange(min=1)


def data_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what data there are."""
    for option in (
        click.option("--batch", type=COUNT, default=32, show_default=True, help="rows of a batch"),
        click.option(
            "--target", metavar="NAME", help="array or column that is the target (default the last)"
        ),
        click.option("--data", type=click.Path(path_type=Path), required=True, metavar="PATH", help=KINDS),
    ):
        function = option(function)
    return function


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which model runs."""
    for option in (
        click.option("--threads", type=int, default=0, help="threads of a step (default one per processor)"),
        click.option(
            "--checkpoint",
            type=click.Path(path_type=Path),
            help="checkpoint with the parameters (default DIR/trained.ckpt if it exists, else DIR/checkpoint)",
        ),
    ):
        function = option(function)
    return function


def chosen_checkpoint(folder: Path, checkpoint: Path | None) -> Path:
    """Return the checkpoint that a command reads."""
    if checkpoint is not None:
        return checkpoint
    trained = folder / "trained.ckpt"
    return trained if trained.exists() else folder / "checkpoint"


def wanted_of(trainer: Trainer) -> Wanted:
    """Return what is to be read for the steps of a trainer."""
    inputs = trainer.module.get_inputs()
    target = trainer.inputs.dtypes[-1]
    return Wanted(
        [argument.name for argument in inputs],
        [argument.shape for argument in inputs],
        has_classes=target is not None and target.kind in "iu",
        classes=trainer.classes,
    )


def load_all(path: Path, trainer: Trainer, target: str | None) -> Any:
    """Read data for train or eval steps. The trainer learns the names of the classes if it does not know them yet."""
    wanted = wanted_of(trainer)
    rows = load(path, wanted, target)
    trainer.classes = wanted.classes
    return rows
