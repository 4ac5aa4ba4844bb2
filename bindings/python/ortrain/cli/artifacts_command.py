"""``ortrain artifacts``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ortrain.cli import app

_VALUES_STAY = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze")
LOSSES = ["cross_entropy", "mse", "bce_with_logits", "l1", "none"]


@app.command(
    "artifacts",
    """
    ortrain artifacts model.onnx --loss cross_entropy
    ortrain artifacts model.onnx --loss cross_entropy --weight-decay 0.01
    ortrain artifacts model.onnx --loss cross_entropy --output logits
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
    help="the loss; none if the first output of the model is it",
)
@click.option(
    "--output",
    metavar="NAME",
    help="value of the model that the loss is computed from (default its first output); for cross_entropy the scores before "
    "a Softmax",
)
@click.option("--optimizer", type=click.Choice(["adamw", "sgd"]), default="adamw", show_default=True)
@click.option(
    "--weight-decay",
    type=click.FloatRange(min=0),
    help="weight decay of AdamW; biases and normalizations, the group no_decay, do not decay",
)
@click.option(
    "--train", "trained", multiple=True, metavar="NAME", help="train this initializer; may be repeated"
)
@click.option("--freeze", "frozen", multiple=True, metavar="NAME", help="do not train it; may be repeated")
@app.as_json
def command(
    model: Path,
    out: Path,
    loss: str,
    output: str | None,
    optimizer: str,
    weight_decay: float | None,
    trained: tuple[str, ...],
    frozen: tuple[str, ...],
    json_output: bool,
) -> None:
    """Create training artifacts from the inference model MODEL, and print what is trained and why."""
    from ortrain.trainer.core import make_artifacts

    if output is not None and loss == "none":
        raise click.UsageError("--output is what a loss is computed from; with --loss none the model has one")
    chosen: Any = optimizer
    if weight_decay is not None:
        from ortrain.onnxblock import optim

        if optimizer != "adamw":
            raise click.UsageError(f"--weight-decay is a setting of adamw, not of {optimizer}")
        chosen = optim.AdamW(weight_decay=weight_decay, param_groups=[optim.no_decay()])
    report = make_artifacts(
        str(model),
        None if loss == "none" else loss,
        chosen,
        out,
        list(trained) or None,
        list(frozen) or None,
        output,
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
                "files": [str(path) for path in report.files],
            }
        )
    else:
        click.echo(str(report))
    if loss == "cross_entropy":
        _warn_of_softmax(model, output)


def _warn_of_softmax(model: Path, output: str | None) -> None:
    """Say so if cross entropy, which has a Softmax in it, is computed from the result of another."""
    from ortrain._model_files import load_model

    graph = load_model(model, load_external_data=False).graph
    producers = {value: node for node in graph.node for value in node.output}
    name = output or graph.output[0].name
    while name in producers and producers[name].op_type in _VALUES_STAY:
        name = producers[name].input[0]
    if name in producers and producers[name].op_type == "Softmax":
        click.echo(
            "ortrain: the loss is computed from probabilities, the result of a Softmax, and takes another Softmax of them\n"
            f"hint: --output {producers[name].input[0]} computes it from the scores before",
            err=True,
        )
