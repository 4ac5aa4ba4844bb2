"""A run that the test of killed processes starts: prints nothing, writes its checkpoints, its log and the result."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from ortrain import Trainer
from ortrain.trainer import Callback, EarlyStopping, JSONLogger, LearningRateMonitor, ModelCheckpoint

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import small
from system import KILL


class Kill(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, batch: int, logs: dict) -> None:
        if self.trainer.step == self.step:
            os.kill(os.getpid(), KILL)


def main(folder: Path, kind: str, kill_at: int, resume: str) -> None:
    x, y = small.rows()
    data = (x, y)
    if kind == "stream":

        def data(epoch):
            order = np.random.default_rng(epoch).permutation(len(x))
            return ((x[order[i : i + 16]], y[order[i : i + 16]]) for i in range(0, len(x), 16))

    rates = LearningRateMonitor()
    trainer = Trainer(
        folder.parent / "artifacts",
        learning_rate=3e-3,
        schedule="cosine",
        warmup=4,
        accumulate=2,
        metrics=["accuracy", "f1"],
        seed=11,
        callbacks=[rates, EarlyStopping(patience=9), JSONLogger(folder / "log.jsonl")],
    )
    callbacks = [ModelCheckpoint(folder / "{step}.ckpt", save_freq=4, keep=2)]
    if kill_at:
        callbacks.append(Kill(kill_at))
    history = trainer.fit(
        data,
        epochs=4,
        batch_size=16,
        steps_per_epoch=10,
        validation=small.rows(40),
        callbacks=callbacks,
        resume=resume or None,
        verbose=False,
    )
    parameters = {name: parameter.data for name, parameter in trainer.state.parameters}
    curves = {f"history/{name}": np.array(values) for name, values in history.items()}
    np.savez(folder / "result.npz", **parameters, **curves, rates=rates.rates)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
