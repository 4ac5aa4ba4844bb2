"""The data and artifacts of the example, which `run.py` has put into the folder that ORTRAIN_FEDERATED names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import ortrain
from ortrain import artifacts
from ortrain.trainer import Trainer

CLIENTS = 4
ROUNDS = int(os.environ.get("ORTRAIN_FEDERATED_ROUNDS", "8"))
LEARNING_RATE = 0.1
LOCAL_EPOCHS = 5

Rows = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def folder() -> Path:
    """Return where everything is."""
    return Path(os.environ["ORTRAIN_FEDERATED"])


def digits() -> tuple[Rows, Rows]:
    """Return the digits to train on and a held-out quarter."""
    with np.load(Path(ortrain.__file__).parent / "demo_data/digits.npz") as file:
        images, labels = file["pixels"][:, None].astype(np.float32) / 16, file["labels"].astype(np.int64)
    held_out, kept = np.split(np.random.default_rng(1797).permutation(len(labels)), [len(labels) // 4])
    return (images[kept], labels[kept]), (images[held_out], labels[held_out])


def shard(number: int) -> Rows:
    """Return the rows of a client: half of them of two or three digits only, the others of all."""
    images, labels = digits()[0]
    mixed, rest = np.array_split(np.arange(len(labels)), 2)
    few = rest[np.argsort(labels[rest], kind="stable")]
    rows = np.concatenate([np.array_split(part, CLIENTS)[number] for part in (mixed, few)])
    return images[rows], labels[rows]


def write_rows(path: Path, rows: Rows) -> None:
    """Write rows as the clients in C and C# read them."""
    images, labels = rows
    count, size = len(images), images[0].size
    with path.open("wb") as file:
        file.write(np.array([count, size], "<u8").tobytes())
        file.write(images.astype("<f4").tobytes())
        file.write(labels.astype("<i8").tobytes())


def prepare(where: Path) -> None:
    """Write the artifacts: the network of the demo with its first weights, and SGD."""
    where.mkdir(parents=True, exist_ok=True)
    start = Trainer(Path(ortrain.__file__).parent / "demo_data/artifacts", threads=1)
    start.export(where / "model.onnx")
    artifacts.generate_artifacts(
        str(where / "model.onnx"),
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=where / "artifacts",
        additional_output_names=["scores"],
    )


def central() -> float:
    """Return the held-out accuracy of training on all rows in one place, for as many passes."""
    train, test = digits()
    trainer = Trainer(folder() / "artifacts", learning_rate=LEARNING_RATE, metrics=["accuracy"], threads=1)
    trainer.fit(train, ROUNDS * LOCAL_EPOCHS, verbose=False)
    return float(trainer.evaluate(test)["accuracy"])
