"""``ortrain train``."""

from __future__ import annotations

import signal
import time
import types
from pathlib import Path
from typing import Any

import click

from ortrain._files.reading import open_file, parse_json
from ortrain.cli import app, running
from ortrain.trainer import (
    Callback,
    CSVLogger,
    EarlyStopping,
    FeatureCache,
    JSONLogger,
    ModelCheckpoint,
    ProgbarLogger,
    TensorBoard,
    Trainer,
)


@app.command(
    "train",
    """
    ortrain train artifacts --data digits.npz --epochs 10 --metric accuracy --validation 0.2
    ortrain train artifacts --data images/ --epochs 20 --patience 3 --lr 1e-3 --schedule cosine
    ortrain train artifacts --data digits.npz --epochs 20 --resume artifacts/runs/interrupted.ckpt
    """,
)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@running.data_options
@click.option("--epochs", type=running.COUNT, default=1, show_default=True, help="passes over the data")
@click.option(
    "--validation", metavar="SHARE|PATH", help="share of the rows to hold out, or other data, for validation"
)
@click.option(
    "--lr",
    type=click.FloatRange(min=0, min_open=True),
    help="learning rate (default: the rate in the optimizer model)",
)
@click.option(
    "--schedule", type=click.Choice(["constant", "linear", "cosine"]), default="constant", show_default=True
)
@click.option(
    "--warmup", type=click.IntRange(min=0), default=0, help="optimizer steps in which the rate rises from 0"
)
@click.option("--accumulate", type=running.COUNT, default=1, help="batches per optimizer step (default 1)")
@click.option(
    "--shuffle/--no-shuffle", default=True, show_default=True, help="a new order of the rows in each epoch"
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="seed of order and dropout"
)
@click.option(
    "--metric", "metrics", multiple=True, help="accuracy, top<k>, f1, mae, perplexity; may be repeated"
)
@click.option("--patience", type=running.COUNT, help="stop after this many epochs without an improvement")
@click.option(
    "--keep",
    type=running.COUNT,
    default=3,
    show_default=True,
    help="number of checkpoints to keep, the best ones",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="folder of checkpoints and logs (default DIR/runs)",
)
@click.option(
    "--samples",
    type=click.IntRange(min=0),
    default=12,
    show_default=True,
    help="misread rows of each validation to keep in the log, with their inputs",
)
@click.option("--tensorboard", is_flag=True, help="also write event files of TensorBoard into that folder")
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="CHECKPOINT",
    help="continue the run that saved this checkpoint",
)
@click.option(
    "--features",
    metavar="memory|off|DIR",
    default="memory",
    show_default=True,
    help="where to keep what a frozen body computes for each row, so that later epochs run only what is trained: in memory, "
    "nowhere, or in a folder for later runs too",
)
@click.option("--threads", type=int, default=0, help="threads of a step (default one per processor)")
@app.as_json
def command(
    folder: Path,
    data: Path,
    target: str | None,
    batch: int,
    epochs: int,
    validation: str | None,
    lr: float | None,
    schedule: str,
    warmup: int,
    accumulate: int,
    shuffle: bool,
    seed: int,
    metrics: tuple[str, ...],
    patience: int | None,
    keep: int,
    out: Path | None,
    samples: int,
    tensorboard: bool,
    resume: Path | None,
    features: str,
    threads: int,
    json_output: bool,
) -> int:
    """Train the artifacts in DIR.

    The result is DIR/trained.ckpt, which evaluate, predict and export read. After each epoch a checkpoint is saved in
    the folder of the run, beside log.csv and log.jsonl, which `ortrain dashboard DIR` shows. The log.jsonl of an earlier
    run is renamed after the time at which that run began. Ctrl-C ends the run after the current step, saves it and says
    how to resume it.
    """
    out = out or folder / "runs"
    trainer = Trainer(
        running.artifacts_folder(folder),
        learning_rate=lr,
        schedule=schedule,
        warmup=warmup,
        accumulate=accumulate,
        metrics=metrics,
        seed=seed,
        checkpoint=resume,
        threads=threads,
        feature_cache=features == "memory" if features in ("memory", "off") else FeatureCache(features),
    )
    rows = running.load_all(data, trainer, target)
    held_out: Any = None if validation is None else _share(validation)
    if validation is not None and held_out is None:
        held_out = running.load_all(Path(validation), trainer, target)
    monitor = "loss" if held_out is None else "val_loss"
    callbacks = _callbacks(out, monitor, keep, samples, patience, tensorboard)
    if resume is None:
        _keep_log(out / "log.jsonl")
    interrupted = False

    def stop(number: int, frame: types.FrameType | None) -> None:
        nonlocal interrupted
        interrupted = trainer.stop_training = True
        signal.signal(signal.SIGINT, before)  # a second Ctrl-C ends the program at once

    before = signal.signal(signal.SIGINT, stop)
    try:
        history = trainer.fit(
            rows,
            epochs,
            validation=held_out,
            batch_size=batch,
            shuffle=shuffle,
            callbacks=callbacks,
            resume=resume,
            verbose=False,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        path = out / "interrupted.ckpt"
        trainer.save(path)
        click.echo(
            f"ortrain: interrupted in epoch {trainer.epoch + 1}, saved {path}\n"
            f"hint: continue with the same command and --resume {path}",
            err=True,
        )
        return app.INTERRUPTED
    result = folder / "trained.ckpt"
    trainer.save(result)
    if json_output:
        app.print_json(
            {"checkpoint": result, "epochs": trainer.epoch, "steps": trainer.step, "history": history}
        )
    else:
        click.echo(f"wrote {result} after {trainer.epoch} epochs, {trainer.step} steps")
    return app.OK


def _callbacks(
    out: Path, monitor: str, keep: int, samples: int, patience: int | None, tensorboard: bool
) -> list[Callback]:
    """Return what logs the run, saves its checkpoints and may end it early."""
    callbacks: list[Callback] = [
        CSVLogger(out / "log.csv"),
        JSONLogger(out / "log.jsonl", samples=samples),
        ModelCheckpoint(out / "epoch-{epoch}.ckpt", monitor=monitor, keep=keep),
        ProgbarLogger(),
    ]
    if patience is not None:
        callbacks.append(EarlyStopping(monitor, patience=patience))
    if tensorboard:
        callbacks.append(TensorBoard(out / "tensorboard"))
    return callbacks


def _keep_log(path: Path) -> None:
    """Rename the log of an earlier run after the time at which it began, so that the dashboard shows both."""
    try:
        with open_file(path, "log") as file:
            began = time.localtime(parse_json(file.readline())["time"])
    except (OSError, ValueError, TypeError, LookupError, OverflowError):
        return  # there is none, or it is not a log
    name = f"{path.stem}-{time.strftime('%Y%m%d-%H%M%S', began)}"
    kept, number = path.with_name(f"{name}{path.suffix}"), 1
    while kept.exists():
        number += 1
        kept = path.with_name(f"{name}-{number}{path.suffix}")
    path.rename(kept)


def _share(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
