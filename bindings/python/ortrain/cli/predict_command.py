"""``ortrain predict``."""

from __future__ import annotations

from pathlib import Path

import click

from ortrain.cli import app, language_models, results, running
from ortrain.cli.datasets import files_of_rows, load
from ortrain.cli.predictions import KINDS, Predictions
from ortrain.cli.wanted import Wanted


@app.command(
    "predict",
    """
    ortrain predict artifacts --data new.npz --out scores.npy
    ortrain predict artifacts --data new.csv --out scores.csv
    ortrain predict artifacts --data pictures --out sorted
    """,
)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@running.data_options
@running.model_options
@click.option("--output", "outputs", multiple=True, metavar="NAME", help="value to compute; may be repeated")
@click.option("--out", type=click.Path(path_type=Path), help=f"{KINDS} (default: print rows as text)")
@app.as_json
def command(
    folder: Path,
    data: Path,
    target: str | None,
    batch: int,
    header: bool | None,
    checkpoint: Path | None,
    threads: int,
    outputs: tuple[str, ...],
    out: Path | None,
    json_output: bool,
) -> None:
    """Compute the outputs of the trained model in DIR for data, with or without the target.

    Each row is printed as the numbers of the first output. The class with the highest score follows if the classes have names.
    For a folder of images, the name of the file comes first. A language model writes text with `ortrain generate`.
    """
    read_from = results.chosen_checkpoint(running.artifacts_folder(folder), checkpoint)
    trainer = running.trainer_to_read(folder, read_from, outputs=list(outputs) or None, threads=threads)
    if language_models.takes_text(trainer, data, None):
        raise ValueError(
            f"predict computes outputs for rows of numbers, but {folder} has a language model and {data} has text: "
            f"`ortrain generate {folder} --prompt TEXT` lets the model write, `ortrain evaluate {folder} --data {data}` computes "
            "its loss on the text"
        )
    known = trainer.prediction_inputs()
    every = running.wanted_of(trainer, header)
    shapes = [every.shapes[every.names.index(name)] for name in known]
    without_target = Wanted(
        known,
        shapes,
        has_target=False,
        classes=every.classes,
        columns=every.columns,
        header=header,
        preprocessing=trainer.preprocessing,
        folder=trainer.folder,
    )
    rows = (
        running.scaled(load(data, without_target), trainer)
        if target is None
        else running.load_all(data, trainer, target, header)
    )
    running.say_remarks(without_target)
    results.say_which(read_from, trainer)
    found = trainer.predict(rows, batch_size=batch)
    several = found if isinstance(found, tuple) else (found,)
    files = files_of_rows(data, without_target if target is None else every)
    made = Predictions(dict(zip(trainer.outputs, several, strict=True)), trainer.classes, files, data)
    if json_output:
        app.print_json({**made.as_json(), "checkpoint": read_from})
    elif out is None:
        click.echo("\n".join(made.text()))
    if out is not None:
        made.write(out)
        click.echo(f"wrote {out}", err=True)
