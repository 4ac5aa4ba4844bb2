"""``ortrain predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from ortrain._files.writing import replaced_file
from ortrain.cli import app, results, running
from ortrain.cli.datasets import Wanted, files_of_rows, load
from ortrain.trainer import Trainer


@app.command(
    "predict",
    """
    ortrain predict artifacts --data new.npz --out scores.npy
    ortrain predict artifacts --data new.csv --out scores.csv
    """,
)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@running.data_options
@running.model_options
@click.option("--output", "outputs", multiple=True, metavar="NAME", help="value to compute; may be repeated")
@click.option(
    "--out", type=click.Path(path_type=Path), help="NPY, NPZ or CSV file (default: print rows as text)"
)
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
    For a folder of images, the name of the file comes first.
    """
    read_from = results.chosen_checkpoint(running.artifacts_folder(folder), checkpoint)
    trainer = Trainer(folder, outputs=list(outputs) or None, checkpoint=read_from, threads=threads)
    known = trainer.prediction_inputs()
    every = running.wanted_of(trainer, header)
    shapes = [every.shapes[every.names.index(name)] for name in known]
    without_target = Wanted(
        known, shapes, has_target=False, classes=every.classes, columns=every.columns, header=header
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
    read = _classes_of(several[0], trainer.classes)
    files = files_of_rows(data, without_target if target is None else every)
    if json_output:
        values: dict[str, Any] = dict(zip(trainer.outputs, several, strict=True))
        if files is not None:
            values["files"] = files
        values["checkpoint"] = read_from
        app.print_json(values if read is None else {**values, "classes": trainer.classes, "predicted": read})
    elif out is None:
        for number, row in enumerate(several[0]):
            printed = [f"{value:.6g}" for value in np.ravel(row)]
            before = [] if files is None else [files[number]]
            click.echo(" ".join([*before, *printed, *([] if read is None else [read[number]])]))
    if out is None:
        return
    if out.suffix == ".npz":
        with replaced_file(out, "arrays") as file:
            np.savez(file, **dict(zip(trainer.outputs, several, strict=True)))
    elif len(several) > 1:
        raise ValueError(f"--out: expected an NPZ file for {len(several)} outputs, found {out}")
    elif out.suffix == ".csv":
        with replaced_file(out, "table") as file:
            np.savetxt(file, found.reshape(len(found), -1), delimiter=",", fmt="%.9g")
    elif out.suffix == ".npy":
        with replaced_file(out, "array") as file:
            np.save(file, found)
    else:
        raise ValueError(f"--out: expected an NPY, NPZ or CSV file, found {out}")
    click.echo(f"wrote {out}", err=True)


def _classes_of(scores: Any, classes: list[str] | None) -> list[str] | None:
    """Return the name of the class with the highest score in each row, None if there are no names for the scores."""
    if classes is None or scores.ndim != 2 or scores.shape[1] < len(classes):
        return None
    names = [*classes, *(str(number) for number in range(len(classes), scores.shape[1]))]
    return [names[number] for number in scores.argmax(axis=1)]
