"""``ortrain predict``."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from ortrain.cli import app, running
from ortrain.cli.datasets import Wanted, load
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
    checkpoint: Path | None,
    threads: int,
    outputs: tuple[str, ...],
    out: Path | None,
    json_output: bool,
) -> None:
    """Compute the outputs of the trained model in DIR for data, with or without the target."""
    trainer = Trainer(
        folder,
        outputs=list(outputs) or None,
        checkpoint=running.chosen_checkpoint(folder, checkpoint),
        threads=threads,
    )
    known = trainer.prediction_inputs()
    every = running.wanted_of(trainer)
    shapes = [every.shapes[every.names.index(name)] for name in known]
    without_target = Wanted(known, shapes, has_target=False)
    rows = load(data, without_target) if target is None else running.load_all(data, trainer, target)
    found = trainer.predict(rows, batch_size=batch)
    several = found if isinstance(found, tuple) else (found,)
    if out is None or json_output:
        values = dict(zip(trainer.outputs, several, strict=True))
        if json_output:
            app.print_json(values)
        else:
            for row in several[0]:
                click.echo(" ".join(f"{value:.6g}" for value in np.ravel(row)))
    if out is None:
        return
    if out.suffix == ".npz":
        np.savez(out, **dict(zip(trainer.outputs, several, strict=True)))
    elif len(several) > 1:
        raise ValueError(f"--out: expected an NPZ file for {len(several)} outputs, found {out}")
    elif out.suffix == ".csv":
        np.savetxt(out, found.reshape(len(found), -1), delimiter=",", fmt="%.9g")
    elif out.suffix == ".npy":
        np.save(out, found)
    else:
        raise ValueError(f"--out: expected an NPY, NPZ or CSV file, found {out}")
    click.echo(f"wrote {out}", err=True)
