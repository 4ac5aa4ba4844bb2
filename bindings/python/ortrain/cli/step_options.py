"""Options of `ortrain artifacts` for the training step as one ONNX model with standard operators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortrain.cli.numbers import Integer

if TYPE_CHECKING:
    from ortrain.artifacts import ArtifactReport

_OPTIONS = [
    click.option(
        "--step",
        is_flag=False,
        flag_value="step",
        type=click.Choice(["step", "gradients", "evaluation"]),
        help="also write step.onnx, one model with standard operators of ONNX that any runtime runs: the training "
        "step, only its gradients, or an evaluation",
    ),
    click.option(
        "--accumulate",
        type=Integer(min=1),
        default=1,
        show_default=True,
        help="with --step, the number of batches whose mean gradient one step takes",
    ),
    click.option(
        "--rows",
        type=Integer(min=1),
        help="with --step, the fixed number of rows of each batch (default: any number)",
    ),
    click.option(
        "--opset",
        type=Integer(min=17),
        help="with --step, the opset of the models (default: that of MODEL, or 17 if that is older)",
    ),
    click.option(
        "--loss-scaling",
        is_flag=True,
        help="with --step, add an input loss_scale; for parameters in float16",
    ),
    click.option(
        "--no-initializers",
        is_flag=True,
        help="with --step, leave the values of the parameters out of step.onnx",
    ),
]


@dataclass(frozen=True)
class StepOptions:
    """Which step model is written beside artifacts, and how."""

    kind: Any
    """``"step"``, ``"gradients"`` or ``"evaluation"``; None for no model."""
    accumulate: int
    rows: int | None
    opset: int | None
    loss_scaling: bool
    initializers: bool

    def __post_init__(self) -> None:
        given = {
            "--accumulate": self.accumulate > 1,
            "--rows": self.rows is not None,
            "--opset": self.opset is not None,
            "--loss-scaling": self.loss_scaling,
            "--no-initializers": not self.initializers,
        }
        alone = [name for name, is_given in given.items() if is_given]
        if self.kind is None and alone:
            raise click.UsageError(f"{alone[0]} is an option of the step model: expected --step")

    def source(self, model: Path) -> Any:
        """Return the model to make artifacts of, in an opset that the step model can have."""
        if self.kind is None:
            return str(model)
        from ortrain.artifacts.step import in_standard_opset

        return in_standard_opset(str(model), opset=self.opset)

    def write(self, report: ArtifactReport, folder: Path) -> list[Path]:
        """Write the step model of artifacts, if it is wanted, and return the paths of what was written."""
        if self.kind is None:
            return []
        from ortrain.artifacts.step import write_step

        path = folder / "step.onnx"
        try:
            write_step(
                report,
                path,
                kind=self.kind,
                accumulate=self.accumulate,
                rows=self.rows,
                initializers=self.initializers,
                loss_scaling=self.loss_scaling,
            )
        except ValueError as error:
            raise ValueError(
                f"{error}; the artifacts in {folder} are complete, but there is no {path.name}"
            ) from error
        return [path]


def step_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options, and as its argument ``step`` their values."""

    @functools.wraps(command)
    def with_step(
        *arguments: Any,
        step: str | None,
        accumulate: int,
        rows: int | None,
        opset: int | None,
        loss_scaling: bool,
        no_initializers: bool,
        **others: Any,
    ) -> None:
        chosen = StepOptions(step, accumulate, rows, opset, loss_scaling, not no_initializers)
        command(*arguments, step=chosen, **others)

    for option in reversed(_OPTIONS):
        with_step = option(with_step)
    return with_step
