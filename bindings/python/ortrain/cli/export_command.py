"""``ortrain export``."""

from __future__ import annotations

from pathlib import Path

import click

from ortrain.cli import app, results, running
from ortrain.trainer import Trainer


@app.command(
    "export",
    """
    ortrain export artifacts trained.onnx
    ortrain export artifacts trained.onnx --checkpoint artifacts/runs/1/epoch-3.ckpt --output logits
    """,
)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@running.model_options
@click.option(
    "--output", "outputs", multiple=True, metavar="NAME", help="output of the model; may be repeated"
)
@app.as_json
def command(
    folder: Path,
    model: Path,
    checkpoint: Path | None,
    threads: int,
    outputs: tuple[str, ...],
    json_output: bool,
) -> None:
    """Write the trained model of DIR for inference to MODEL."""
    read = results.chosen_checkpoint(running.artifacts_folder(folder), checkpoint)
    trainer = Trainer(folder, outputs=list(outputs) or None, checkpoint=read, threads=threads)
    trainer.export(model)
    if json_output:
        app.print_json({"model": model, "checkpoint": read, "outputs": trainer.outputs})
    else:
        click.echo(
            f"wrote {model} with the parameters of {read} ({results.origin_of(read, trainer)}), outputs "
            f"{', '.join(trainer.outputs)}"
        )
