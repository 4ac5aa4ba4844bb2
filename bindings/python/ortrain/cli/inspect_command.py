"""``ortrain inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ortrain._support.counts import counted
from ortrain.cli import app, checkpoints, data_description


@app.command(
    "inspect",
    """
    ortrain inspect model.onnx
    ortrain inspect model.ort
    ortrain inspect artifacts
    ortrain inspect artifacts/best.ckpt --json
    ortrain inspect flowers.csv --target kind
    """,
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--target", metavar="NAME", help="column of data that is the target (default y, or the last)")
@app.as_json
def command(file: Path, target: str | None, json_output: bool) -> None:
    """Describe a model, a folder of artifacts, a checkpoint, or data to train on.

    For a checkpoint: each parameter with its norm, and whether it is trained. For a model: inputs, outputs and operators. For
    artifacts: both, and the memory that training keeps from step to step. For data: how the columns are understood, and the
    network and loss that fit.
    """
    if data_description.is_data(file) and file.exists():
        described = data_description.describe_data(file, target)
        if json_output:
            app.print_json(described)
        else:
            click.echo("\n".join(data_description.lines_of(described)))
        return
    found: dict[str, Any] = {}
    if file.suffix in (".onnx", ".ort"):
        found["model"] = checkpoints.describe_model(file)
    else:
        if file.is_dir():
            found["model"] = checkpoints.describe_model(file / "training_model.onnx")
        found["checkpoint"] = checkpoints.describe_checkpoint(file)
        if file.is_dir():
            found["memory"] = checkpoints.describe_memory(file, found["checkpoint"])
    if json_output:
        app.print_json(found)
        return
    if "model" in found:
        _print_model(found["model"])
    if "checkpoint" in found:
        _print_checkpoint(found["checkpoint"])
    if "memory" in found:
        parts = ", ".join(f"{name.replace('_', ' ')} {size:,}" for name, size in found["memory"].items())
        total = sum(found["memory"].values())
        click.echo(f"memory between steps {counted(total, 'byte', ',')}: {parts}; a step adds activations")


def _print_model(model: dict[str, Any]) -> None:
    click.echo("opset " + ", ".join(f"{domain} {version}" for domain, version in model["opset"].items()))
    rows = [("", "name", "dtype", "shape")]
    for kind in ("input", "output"):
        rows += [
            (kind, value["name"], value["dtype"], f"[{', '.join(map(str, value['shape']))}]")
            for value in model[f"{kind}s"]
        ]
    click.echo(app.table(rows))
    click.echo("operators " + ", ".join(f"{name} {count}" for name, count in model["operators"].items()))
    click.echo(
        f"initializers {model['initializers']}, {counted(model['elements'], 'element', ',')}, "
        f"{counted(model['bytes'], 'byte', ',')}"
    )


def _print_checkpoint(checkpoint: dict[str, Any]) -> None:
    rows = [("parameter", "dtype", "shape", "", "norm")]
    rows += [
        (
            row["name"],
            row["dtype"],
            f"[{', '.join(map(str, row['shape']))}]",
            "trained" if row["trained"] else "frozen",
            f"{row['norm']:.6g}",
        )
        for row in checkpoint["parameters"]
    ]
    click.echo(app.table(rows))
    click.echo(
        f"{counted(checkpoint['elements'], 'element', ',')}, {checkpoint['trained_elements']:,} trained, "
        f"{counted(checkpoint['bytes'], 'byte', ',')}, "
        f"{counted(checkpoint['optimizer_steps'], 'optimizer step', ',')}"
    )
    for name, value in checkpoint["properties"].items():
        click.echo(f"property {name} = {value}")
