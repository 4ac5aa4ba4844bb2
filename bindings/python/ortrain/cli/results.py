"""The results of runs in a folder of artifacts: the checkpoint that a command reads, and how a run keeps earlier checkpoints.

A run writes its best and its last checkpoint beside the artifacts, and everything else into a numbered folder. Files of an
earlier run with the same names get a number first.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import click

from ortrain import _ortrain
from ortrain._files.checkpoints import copy_checkpoint, link_checkpoint, move_checkpoint
from ortrain._files.writing import copy_file, make_folder
from ortrain._support.counts import agreeing, counted
from ortrain.trainer import ModelCheckpoint, Trainer
from ortrain.trainer.callbacks import Callback, Logs
from ortrain.trainer.json_log import SET_ASIDE, has_epochs_after, is_set_aside

BEST, LAST, OLDER, INITIAL = "best.ckpt", "last.ckpt", "trained.ckpt", "checkpoint"
"""Checkpoints: the best and the last epoch of a run; the result of earlier versions and of programs; the parameters before
training."""
INTERRUPTED = "interrupted.ckpt"
"""In the folder of a run: the checkpoint of a run that a signal ended."""
LOGS = ("log.csv", "log.jsonl")
"""In the folder of a run: a row per epoch, and a line per event."""
EPSILON = "epsilon"
"""The value that a private run without a validation monitors. No other value of its epochs is private, so the last epoch counts
as the best."""


def chosen_checkpoint(folder: Path, checkpoint: Path | None = None) -> Path:
    """Return the checkpoint that a command reads: the given one, otherwise the best one in the folder."""
    if checkpoint is not None:
        return named(folder, checkpoint)
    return next((folder / name for name in (BEST, LAST, OLDER) if (folder / name).exists()), folder / INITIAL)


def named(folder: Path, checkpoint: Path) -> Path:
    """Return the checkpoint of a folder that ``best`` or ``last`` names, unless that is a file; other paths unchanged."""
    found = {"best": folder / BEST, "last": folder / LAST}.get(str(checkpoint))
    return checkpoint if found is None or checkpoint.exists() else found


def say_which(path: Path, trainer: Trainer) -> None:
    """Print on standard error which checkpoint a command reads, and what is known of it."""
    click.echo(f"ortrain: the parameters are those of {path} ({origin_of(path, trainer)})", err=True)


def origin_of(path: Path, trainer: Trainer) -> str:
    """Return what is known of the checkpoint of a trainer, such as "epoch 4, val_loss 0.09"."""
    saved = trainer.saved_run
    if saved is None:
        steps = _ortrain.checkpoint_get_optimizer_step_count(trainer.state._handle)
        if steps:
            return counted(steps, "optimizer step")
        return "not trained" if path.name == INITIAL else "it has no record of its training"
    history = saved["history"]
    shown = [f"epoch {saved['epoch']}"]
    for name in ("val_loss", "val_accuracy") if "val_loss" in history else ("loss", "accuracy"):
        values = history.get(name)
        if values and isinstance(values[-1], (int, float)):
            shown.append(f"{name} {values[-1]:.4g}")
    if history.get(EPSILON):
        shown.append(f"{EPSILON} {history[EPSILON][-1]:.4g}")
    return ", ".join(shown)


def next_number(folder: Path) -> int:
    """Return the number of the next run in a folder of runs, from 1."""
    numbers = (
        [int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()] if folder.is_dir() else []
    )
    return max(numbers, default=0) + 1


def new_run(folder: Path) -> Path:
    """Create and return the folder of a new run in a folder of runs."""
    while True:
        path = folder / str(next_number(folder))
        try:
            make_folder(path, "run", exist_ok=False)
        except FileExistsError:  # another run has created this folder at the same time
            continue
        return path


def remove_unused(run: Path) -> None:
    """Remove the folder of a run that wrote nothing, and the folder of runs if it is empty then."""
    for path in (run, run.parent):
        try:
            path.rmdir()
        except OSError:  # the folder is not empty
            return


def set_aside(folder: Path) -> list[Path]:
    """Rename the results of earlier runs because the artifacts are replaced, and return their new names."""
    number = _free_number(folder)
    renamed = []
    for name in (BEST, LAST, OLDER):
        if (folder / name).exists():
            renamed.append(_numbered(folder / name, number))
            move_checkpoint(folder / name, renamed[-1])
    return renamed


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def _free_number(folder: Path) -> int:
    number = 1
    while any(_numbered(folder / name, number).exists() for name in (BEST, LAST, OLDER)):
        number += 1
    return number


class RunCheckpoints(ModelCheckpoint):
    """Saves the checkpoints of a run, and numbers those of earlier runs before it replaces them.

    A run that continues with trained parameters begins with a validation. If no epoch is better, they stay the best.

    Parameters
    ----------
    artifacts : Path
        The folder of the artifacts, for the best and the last checkpoint.
    run : Path
        The folder of the run, for the checkpoints of its epochs.
    monitor : str
        The value that is compared.
    keep : int
        How many epochs are kept.
    start : Path, optional
        The trained checkpoint that the run continues from.
    resume : Path, optional
        The checkpoint from which the run is resumed.
    """

    def __init__(
        self,
        artifacts: Path,
        run: Path,
        monitor: str,
        keep: int,
        start: Path | None = None,
        resume: Path | None = None,
    ) -> None:
        pattern = os.fspath(run).replace("{", "{{").replace("}", "}}")
        super().__init__(
            os.path.join(pattern, "epoch-{epoch}.ckpt"),
            monitor,
            mode="max" if monitor == EPSILON else "auto",
            keep=keep,
            best_path=artifacts / BEST,
            last_path=artifacts / LAST,
        )
        self.run, self.start, self.resume = run, start, resume
        self.kept: list[Path] = []
        self._number = _free_number(artifacts)
        self._aside: Path | None = None
        self._replaced: set[Path] = set()

    def on_train_begin(self, logs: Logs) -> None:
        """Validate the parameters that a run continues with."""
        super().on_train_begin(logs)
        for folder in self.run.parent.iterdir():  # also of earlier runs
            self._remove_abandoned(folder, f"{self._names()}|{re.escape(INTERRUPTED)}")
        if self.trainer.resumed or self.start is None or not self.monitor.startswith("val_"):
            return
        found = self.trainer.validate()
        shown = ", ".join(
            f"val_{name} {value:.4g}" for name, value in found.items() if isinstance(value, float)
        )
        click.echo(f"before training: {shown}", err=True)
        self.best, self.best_epoch = self.value({f"val_{name}": value for name, value in found.items()}), 0
        best = Path(str(self.best_path))
        if not (best.exists() and best.samefile(self.start)):
            self._keep(best)
            copy_checkpoint(self.start, best)  # a copy, because the user may change the original
            self._replaced.add(best)

    def aside(self) -> Path:
        """Return a new folder inside that of the run, for the files of epochs that the resumed run does not have."""
        if self._aside is None:
            names = (self.run / f"{SET_ASIDE}-{number}" for number in itertools.count(1))
            self._aside = next(path for path in names if not path.exists())
            make_folder(self._aside, "run", exist_ok=False)
        return self._aside

    def separate(self, found: list[Path]) -> None:
        """Move checkpoints that a resumed run does not have into a folder inside that of the run.

        They come from later epochs, if the run is resumed from an earlier one, or from a process that was killed before it
        could delete them.
        """
        folder = self.aside()
        for path in found:
            move_checkpoint(path, folder / path.name)
        names = ", ".join(path.name for path in found)
        click.echo(
            f"ortrain: the run is resumed after {counted(self.trainer.epoch, 'epoch')}; moved {names}, which "
            f"{agreeing(len(found), 'is', 'are')} not part of it, to {folder}",
            err=True,
        )

    def _unknown(self) -> list[Path]:
        """Return also the checkpoint of an interruption, unless the run is resumed from it."""
        interrupted = self.run / INTERRUPTED
        is_old = self.trainer.resumed and interrupted.exists() and not self._is_resumed_from(interrupted)
        found = [path for path in super()._unknown() if not self._is_resumed_from(path)]
        return found + [interrupted] * is_old

    def _is_resumed_from(self, path: Path) -> bool:
        return self.resume is not None and self.resume.exists() and path.samefile(self.resume)

    def improves(self, value: float) -> bool:
        """Whether a value is better than the best so far. If epochs are not compared, the last epoch is the best."""
        return self.monitor == EPSILON or super().improves(value)

    def give_name(self, path: str | os.PathLike[str], name: str | os.PathLike[str]) -> None:
        """Replace the best or the last checkpoint; one of an earlier run gets a number."""
        target = Path(name)
        if target not in self._replaced and not self._is_of_this_run(target):
            self._keep(target)
        super().give_name(path, target)
        self._replaced.add(target)

    def _keep(self, target: Path) -> None:
        """Give the result of an earlier run a number."""
        if target.exists():
            kept = _numbered(target, self._number)
            link_checkpoint(target, kept)
            self.kept.append(kept)

    def _is_of_this_run(self, path: Path) -> bool:
        """Whether a resumed run wrote this checkpoint, which is then the checkpoint of one of its epochs under a second name."""
        if not self.trainer.resumed or not path.exists():
            return False
        return any(Path(name).exists() and path.samefile(name) for _, name in self.saved)

    def state(self) -> dict[str, Any]:
        """Return what `ModelCheckpoint` does, and the folder of the run."""
        return {**super().state(), "run": self.run.name}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a saved state, even if the folder has been moved."""
        super().load_state(state)
        self.saved = [(value, os.fspath(self.run / Path(path).name)) for value, path in self.saved]


class EarlierLogs(Callback):
    """Keeps the logs of a run that is resumed from an earlier checkpoint. Its loggers, which come later, drop the later epochs.

    Parameters
    ----------
    checkpoints : RunCheckpoints
        The checkpoints of the run, which are set aside in the same folder.
    """

    def __init__(self, checkpoints: RunCheckpoints) -> None:
        self.checkpoints = checkpoints
        self.copied: list[str] = []

    def on_train_begin(self, logs: Logs) -> None:
        """Copy the logs if they have epochs that the resumed run does not have."""
        run = self.checkpoints.run
        if not self.trainer.resumed or not has_epochs_after(run / "log.jsonl", self.trainer.step):
            return
        found = [run / name for name in LOGS if (run / name).exists()]
        for path in found:
            copy_file(path, self.checkpoints.aside() / path.name, "log")
        self.copied = [path.name for path in found]

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """Say that logs were copied, once all callbacks have accepted the files of the run."""
        if self.copied:
            click.echo(
                f"ortrain: copied {' and '.join(self.copied)}, with the later epochs, to {self.checkpoints.aside()}",
                err=True,
            )
            self.copied = []


def run_of(trainer: Trainer, checkpoint: Path, runs: Path) -> Path:
    """Return the folder of the run that a checkpoint resumes: where the checkpoint is, or the one that it names.

    Runs of earlier versions have no number: their files are in the folder of runs itself.
    """
    if (checkpoint.parent / "log.jsonl").exists() and not is_set_aside(checkpoint.parent.name):
        return checkpoint.parent
    saved = (trainer.saved_run or {}).get("callbacks", {}).get("RunCheckpoints 1", {}).get("run", "")
    return runs / saved if (runs / saved).is_dir() else runs
