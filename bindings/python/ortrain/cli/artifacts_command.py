"""``ortrain artifacts``."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import click

from ortrain import _ortrain
from ortrain.cli import app

OPTIMIZERS = [declaration["name"] for declaration in json.loads(_ortrain.list_optimizers())]
# Those of onnxblock.loss that take one output of a model. That module loads slowly; a test compares the lists.
LOSSES = [
    "cross_entropy",
    "mse",
    "bce_with_logits",
    "l1",
    "soft_cross_entropy",
    "focal",
    "huber",
    "smooth_l1",
    "log_cosh",
    "quantile",
    "poisson_nll",
    "kl_div",
    "distillation",
    "hinge",
    "dice",
    "jaccard",
    "tversky",
    "none",
]


@app.command(
    "artifacts",
    """
    ortrain artifacts model.onnx --loss cross_entropy
    ortrain artifacts model.onnx --loss cross_entropy --weight-decay 0.01
    ortrain artifacts model.onnx --loss cross_entropy --optimizer lion --setting beta2=0.98
    ortrain artifacts model.onnx --loss cross_entropy --output logits
    ortrain artifacts model.onnx --loss cross_entropy --batch dynamic
    ortrain artifacts model.onnx --loss mse --optimizer sgd --train fc.weight --train fc.bias --out head
    """,
)
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("artifacts"),
    show_default=True,
    help="folder of the files",
)
@click.option(
    "--loss",
    type=click.Choice(LOSSES),
    required=True,
    help="the loss; none if the first output of the model is the loss",
)
@click.option(
    "--output",
    metavar="NAME",
    help="value of the model that the loss is computed from (default its first output); for cross_entropy the scores before "
    "a Softmax",
)
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="adamw", show_default=True)
@click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="a setting of the optimizer, such as momentum=0.9 of sgd; may be repeated",
)
@click.option(
    "--weight-decay",
    type=click.FloatRange(min=0),
    help="weight decay of the optimizer; biases and normalizations, the group no_decay, do not decay",
)
@click.option(
    "--train", "trained", multiple=True, metavar="NAME", help="train this initializer; may be repeated"
)
@click.option(
    "--freeze", "frozen", multiple=True, metavar="NAME", help="do not train this initializer; may be repeated"
)
@click.option(
    "--batch",
    type=click.Choice(["fixed", "dynamic"]),
    default="fixed",
    show_default=True,
    help="dynamic: let a model that was exported with a fixed batch size take batches of any size",
)
@click.option(
    "--untie",
    multiple=True,
    metavar="NAME",
    help="give each module that reads this initializer a separate parameter; a name or pattern, may be repeated; none "
    "separates nothing (default: initializers that the exporter merged because they were equal)",
)
@click.option(
    "--tie",
    multiple=True,
    metavar="NAME",
    help="make one parameter of this matrix and all matrices with the same elements, also transposed; a name or pattern, may "
    "be repeated; none ties nothing (default: initializers that the exporter made of one parameter)",
)
@app.as_json
def command(
    model: Path,
    out: Path,
    loss: str,
    output: str | None,
    optimizer: str,
    settings: tuple[str, ...],
    weight_decay: float | None,
    trained: tuple[str, ...],
    frozen: tuple[str, ...],
    batch: str,
    untie: tuple[str, ...],
    tie: tuple[str, ...],
    json_output: bool,
) -> None:
    """Create training artifacts from the inference model MODEL, and print what is trained and why."""
    from ortrain.trainer.creation import make_artifacts

    if output is not None and loss == "none":
        raise click.UsageError(
            "--output names the value that a loss is computed from, but with --loss none the model computes its own loss"
        )
    chosen: Any = optimizer
    if weight_decay is not None or settings:
        chosen = _optimizer(optimizer, settings, weight_decay)
    report = make_artifacts(
        str(model),
        None if loss == "none" else loss,
        chosen,
        out,
        list(trained) or None,
        list(frozen) or None,
        output,
        batch="dynamic" if batch == "dynamic" else None,
        untie=_named(untie),
        tie=_named(tie),
    )
    if json_output:
        app.print_json(
            {
                "initializers": [
                    {
                        "name": choice.name,
                        "shape": list(choice.shape),
                        "dtype": str(choice.dtype),
                        "fate": choice.fate.value,
                        "reason": choice.reason,
                    }
                    for choice in report.initializers
                ],
                "changes": [
                    {
                        "kind": change.kind.value,
                        "initializer": change.initializer,
                        "parameters": list(change.parameters),
                        "reason": change.reason,
                    }
                    for change in report.changes
                ],
                "shared": {weight.name: list(weight.nodes) for weight in report.shared},
                "folded": {weight.name: weight.reason for weight in report.folded},
                "absent": list(report.absent),
                "files": [str(path) for path in report.files],
                "fixed_batch": None if report.fixed_batch is None else report.fixed_batch[1],
            }
        )
    else:
        click.echo(str(report))


def _optimizer(name: str, settings: tuple[str, ...], weight_decay: float | None) -> Any:
    """Return the block of an optimizer with settings."""
    from ortrain.onnxblock import optim

    block = optim.BLOCKS[name]
    known = [
        key
        for key in inspect.signature(block).parameters
        if key not in ("clip_grad", "param_groups", "betas")
    ]
    if issubclass(block, optim.DeclaredOptimizer):
        known += [setting.name for setting in block.declaration.settings if setting.name not in known]
    given: dict[str, Any] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in known:
            raise click.UsageError(f"--setting {setting}: {name} has no {key}; it has {', '.join(known)}")
        try:
            given[key] = float(value)
        except ValueError:
            raise click.UsageError(
                f"--setting {setting}: expected NAME=NUMBER, such as momentum=0.9"
            ) from None
    if weight_decay is not None:
        given |= {"weight_decay": weight_decay, "param_groups": [optim.no_decay()]}
    try:
        return block(**given)
    except ValueError as error:
        raise click.UsageError(f"--optimizer {name}: {error}") from None


def _named(names: tuple[str, ...]) -> list[str] | None:
    """Return the names that an option was given; none of them for ``none``, None if it was left out."""
    return [name for name in names if name != "none"] if names else None
