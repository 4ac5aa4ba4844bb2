"""``ortrain demo``."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from ortrain._files.writing import make_folder, replaced_file, write_file
from ortrain._support.counts import counted
from ortrain.cli import app, results
from ortrain.cli.numbers import Integer
from ortrain.trainer import JSONLogger, ModelCheckpoint, ProgbarLogger, Trainer, plot

Array = npt.NDArray[Any]

_DATA = Path(__file__).resolve().parents[1] / "demo_data"
_SHADES = " .:-=+*#%@"
_SHOWN = 6


@app.command(
    "demo",
    """
    ortrain demo
    ortrain demo --out digits --epochs 20
    """,
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("ortrain-demo"),
    show_default=True,
    help="folder for all results",
)
@click.option("--epochs", type=Integer(min=1), default=8, show_default=True)
@click.option("--seed", type=Integer(min=0), default=0, show_default=True, help="seed of the order")
@app.as_json
def command(out: Path, epochs: int, seed: int, json_output: bool) -> None:
    """Train a small network to read 1,797 handwritten digits, which come with the package, in a few seconds.

    The folder then has the digits, the artifacts and the trained model, for trying the other commands.
    """
    (train, test) = _digits()
    make_folder(out, "demo")
    for name, (images, labels) in (("train", train), ("test", test)):
        with replaced_file(out / f"{name}.npz", "digits") as file:
            np.savez_compressed(file, image=images, labels=labels)
    folder = out / "artifacts"
    make_folder(folder, "artifacts")
    results.set_aside(folder)
    for artifact in (_DATA / "artifacts").iterdir():
        write_file(folder / artifact.name, "artifact", artifact.read_bytes())
    if not json_output:
        click.echo(
            f"{counted(len(train[0]), 'digit')} to train on, {len(test[0])} held out; images of 8x8 pixels"
        )
    # One thread: the steps of such a small network are too short to divide among threads.
    trainer = Trainer(
        folder, learning_rate=3e-3, schedule="linear", metrics=["accuracy"], seed=seed, threads=1
    )
    before = trainer.evaluate(test)["accuracy"]
    began = time.perf_counter()
    checkpoint, model, curves = folder / results.BEST, out / "digits.onnx", out / "curves.png"
    checkpoints = ModelCheckpoint(folder / results.LAST, best_path=checkpoint)
    callbacks = [JSONLogger(out / "log.jsonl"), ProgbarLogger(), checkpoints]
    history = trainer.fit(train, epochs, validation=test, callbacks=callbacks, verbose=False)
    seconds = time.perf_counter() - began
    trainer = Trainer(folder, checkpoint=checkpoint, threads=1)
    trainer.export(model)
    has_plot = importlib.util.find_spec("matplotlib") is not None
    if has_plot:
        plot({name: history[name] for name in history if name != "learning_rate"}, curves)
    read = trainer.predict(test[0]).argmax(axis=1)
    accuracy = float((read == test[1]).mean())
    if json_output:
        app.print_json(
            {
                "model": model,
                "checkpoint": checkpoint,
                "artifacts": folder,
                "accuracy_before": before,
                "accuracy": accuracy,
                "seconds": seconds,
                "history": history,
            }
        )
        return
    wrong = np.flatnonzero(read != test[1])
    right = np.flatnonzero(read == test[1])
    shown = np.concatenate([right[: _SHOWN - min(2, len(wrong))], wrong[:2]])
    click.echo()
    click.echo(draw(test[0][shown], [f"{test[1][i]} read as {read[i]}" for i in shown]))
    click.echo()
    rows = [
        (
            "held-out accuracy",
            f"{accuracy:.1%} in epoch {checkpoints.best_epoch}, the best of {epochs}, {seconds:.1f} s; {before:.1%} before",
        ),
        ("trained model", f"{model}, for any ONNX runtime"),
        ("checkpoint", str(checkpoint)),
        ("curves", str(curves) if has_plot else "none: pip install 'ortrain[plot]'"),
        ("look at the run", f"ortrain dashboard {out}"),
        (
            "train it further",
            f"ortrain train {folder} --data {out / 'train.npz'} --validation {out / 'test.npz'} --epochs 5",
        ),
        ("try it", f"ortrain evaluate {folder} --data {out / 'test.npz'} --metric accuracy"),
    ]
    click.echo(app.table(rows))


def _digits() -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the digits to train on and those held out: images from 0 (paper) to 1 (ink), and labels."""
    with np.load(_DATA / "digits.npz") as file:
        images = file["pixels"].astype(np.float32)[:, None] / 16
        labels = file["labels"].astype(np.int64)
    # a fixed split, so that accuracies can be compared
    order = np.random.default_rng(1797).permutation(len(labels))
    held_out, kept = np.split(order, [len(labels) // 4])
    return (images[kept], labels[kept]), (images[held_out], labels[held_out])


def draw(images: Array, titles: list[str]) -> str:
    """Return images side by side as text, each under its title; a pixel is two characters."""
    levels = (images[:, 0] * (len(_SHADES) - 1)).round().astype(int)
    width = max(2 * images.shape[3], *map(len, titles)) + 2
    lines = ["".join(title.ljust(width) for title in titles)]
    for row in range(images.shape[2]):
        lines.append(
            "".join("".join(_SHADES[level] * 2 for level in image[row]).ljust(width) for image in levels)
        )
    return "\n".join(line.rstrip() for line in lines)
