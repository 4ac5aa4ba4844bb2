"""``ortrain evaluate``."""

from __future__ import annotations

from pathlib import Path

import click

from ortrain.cli import app, results, running


@app.command(
    "evaluate",
    """
    ortrain evaluate artifacts --data test.npz --metrics accuracy,f1,auc
    ortrain evaluate artifacts --data test.csv --checkpoint artifacts/runs/1/epoch-3.ckpt --json
    """,
)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@running.data_options
@running.model_options
@running.metrics_option
@app.as_json
def command(
    folder: Path,
    data: Path,
    target: str | None,
    batch: int,
    header: bool | None,
    checkpoint: Path | None,
    threads: int,
    metrics: tuple[str, ...],
    json_output: bool,
) -> None:
    """Compute loss and metrics of the artifacts in DIR on data."""
    read = results.chosen_checkpoint(running.artifacts_folder(folder), checkpoint)
    trainer = running.trainer_to_read(folder, read, metrics=metrics, threads=threads)
    rows = running.load_all(data, trainer, target, header)
    results.say_which(read, trainer)
    found = trainer.evaluate(rows, batch_size=batch)
    if json_output:
        found = {**found, "checkpoint": read}
        app.print_json(found if trainer.classes is None else {**found, "classes": trainer.classes})
        return
    for name, value in found.items():
        if isinstance(value, list):
            click.echo(f"{name}: a row per true class, a column per predicted class")
            click.echo(app.table(_matrix(value, trainer.classes)))
        else:
            click.echo(f"{name} {value:.6g}")


def _matrix(counts: list[list[int]], classes: list[str] | None) -> list[tuple[str, ...]]:
    names = [str(number) for number in range(len(counts))]
    if classes is not None:
        names = [*classes, *names[len(classes) :]][: len(counts)]
    width = max(len(str(count)) for row in counts for count in row)
    rows = [(name, *(f"{count:>{width}}" for count in row)) for name, row in zip(names, counts, strict=True)]
    return [("", *names), *rows]
