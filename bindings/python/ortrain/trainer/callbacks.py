"""Callbacks: functions that the trainer calls at certain moments of a run, with the names and moments of Keras."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import os
import re
import string
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ortrain._files.checkpoints import link_checkpoint, remove_checkpoint
from ortrain._files.writing import remove_abandoned
from ortrain._support.counts import counted
from ortrain._support.suggestions import did_you_mean
from ortrain.trainer.view import TrainerView

Logs = dict[str, Any]
_NUMBER = r"(?:[-+]?[0-9]+(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?|nan|-?inf)"  # a value in the name of a checkpoint


def checked(callbacks: Iterable[Callback]) -> list[Callback]:
    """Return callbacks as a list.

    Raises
    ------
    TypeError
        When one is no `Callback`, such as one of Keras.
    """
    found = list(callbacks)
    for callback in found:
        if not hasattr(callback, "set_trainer"):
            kind = type(callback)
            raise TypeError(
                "callbacks: expected instances of ortrain.trainer.Callback, found "
                f"{kind.__module__}.{kind.__name__}; ortrain.trainer has callbacks with the same names as Keras"
            )
    return found


class Callback:
    """Base class of callbacks: override the methods of the moments at which the callback acts.

    Methods of batches that are not overridden cost nothing.

    Attributes
    ----------
    trainer : Trainer
        The trainer, from the beginning of a run on. Setting its ``stop_training`` ends the run; ``stop_reason`` says why.
    """

    trainer: TrainerView

    def set_trainer(self, trainer: TrainerView) -> None:
        """Remember the trainer of the run."""
        self.trainer = trainer

    def on_train_begin(self, logs: Logs) -> None:
        """Before the first epoch."""

    def on_train_end(self, logs: Logs) -> None:
        """After the last epoch; ``logs`` are those of the last epoch."""

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """Before an epoch; the first one is number 0."""

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """After an epoch; ``logs`` has loss, metrics and learning rate, and the same for validation as ``val_...``."""

    def on_train_batch_begin(self, batch: int, logs: Logs) -> None:
        """Before a train step; the first one of an epoch is number 0."""

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """After a train step; ``logs`` has its loss and learning rate."""

    def on_test_begin(self, logs: Logs) -> None:
        """Before an evaluation."""

    def on_test_end(self, logs: Logs) -> None:
        """After an evaluation; ``logs`` has loss and metrics."""

    def on_test_batch_end(self, batch: int, logs: Logs) -> None:
        """After an eval step; ``logs`` has its loss."""

    def state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs to continue, as values that JSON can represent."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state`."""


class _Monitor(Callback):
    """Compares one value of an epoch with the best so far."""

    def __init__(self, monitor: str, mode: str, min_delta: float = 0.0) -> None:
        if mode not in ("auto", "min", "max"):
            raise ValueError(f"mode: expected auto, min or max, found {mode!r}")
        if mode == "auto":
            larger = ("accuracy", "f1", "top")
            mode = "max" if monitor.removeprefix("val_").startswith(larger) else "min"
        self.monitor, self.mode, self.min_delta = monitor, mode, abs(min_delta)
        self.best = self.worst

    @property
    def worst(self) -> float:
        return -math.inf if self.mode == "max" else math.inf

    def improves(self, value: float) -> bool:
        """Whether a value is better than the best by more than ``min_delta``."""
        if self.mode == "max":
            return value > self.best + self.min_delta
        return value < self.best - self.min_delta

    def check(self) -> None:
        """Before the first epoch, reject the name of a value that the run will not have.

        The user's callbacks may add values, so with such a callback this check accepts any name.
        """
        if self.trainer.has_foreign_callbacks():
            return
        known = self.trainer.value_names
        near = did_you_mean(self.monitor, known)
        lacks_validation = self.monitor.startswith("val_") and not any(
            name.startswith("val_") for name in known
        )
        if self.monitor in known:
            return
        hint = "; give fit a validation" if lacks_validation else ""
        raise ValueError(
            f"{type(self).__name__}: expected one of the values {', '.join(known)} as monitor, found {self.monitor!r}"
            f"{hint or near}"
        )

    def value(self, logs: Logs) -> float:
        """Return the monitored value of an epoch."""
        if self.monitor not in logs:
            hint = "; give fit a validation" if self.monitor.startswith("val_") else ""
            raise ValueError(
                f"{type(self).__name__}: expected a value {self.monitor!r}, found {', '.join(logs)}{hint}"
            )
        return float(logs[self.monitor])


class EarlyStopping(_Monitor):
    """Ends a run when a value has stopped improving.

    Parameters
    ----------
    monitor : str, default "val_loss"
        The value.
    min_delta : float, default 0
        An improvement must be larger than this.
    patience : int, default 0
        Epochs without an improvement after which the run ends.
    mode : {"auto", "min", "max"}, default "auto"
        Whether smaller or larger values are better; "auto" decides from the name.
    restore_best_weights : bool, default False
        Whether the parameters of the best epoch are restored at the end. Checkpoints do not contain these parameters,
        so a resumed run can restore only those of epochs after it was resumed.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        patience: int = 0,
        mode: str = "auto",
        restore_best_weights: bool = False,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        self.patience = patience
        self.restore_best_weights = restore_best_weights
        self.wait = 0
        self.stopped_epoch: int | None = None
        self._best_weights: Any = None

    def on_train_begin(self, logs: Logs) -> None:
        """Start counting, unless the run is resumed."""
        self.check()
        self.stopped_epoch = None
        if not self.trainer.resumed:
            self.wait, self.best, self._best_weights = 0, self.worst, None

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Compare and perhaps end the run."""
        value = self.value(logs)
        if self.improves(value):
            self.best, self.wait = value, 0
            if self.restore_best_weights:
                self._best_weights = self.trainer.module.get_contiguous_parameters(False)
            return
        self.wait += 1
        if self.wait >= max(1, self.patience):
            self.stopped_epoch = epoch
            self.trainer.stop_training = True
            self.trainer.stop_reason = f"{self.monitor} has not improved for {counted(self.wait, 'epoch')}"

    def on_train_end(self, logs: Logs) -> None:
        """Restore the best parameters if asked to."""
        if self._best_weights is not None:
            self.trainer.module.copy_buffer_to_parameters(self._best_weights.numpy(), False)
            self.trainer.parameters_changed()

    def state(self) -> dict[str, Any]:
        """Return best value and count."""
        return {"best": self.best, "wait": self.wait}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from them."""
        self.best, self.wait = state["best"], state["wait"]


class ReduceLROnPlateau(_Monitor):
    """Lowers the learning rate when a value has stopped improving.

    Parameters
    ----------
    monitor : str, default "val_loss"
        The value.
    factor : float, default 0.1
        Factor of the rate.
    patience : int, default 10
        Epochs without an improvement after which the rate is lowered.
    mode, min_delta
        As in `EarlyStopping`.
    min_lr : float, default 0
        The lowest rate.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        mode: str = "auto",
        min_delta: float = 1e-4,
        min_lr: float = 0.0,
    ) -> None:
        if not 0 < factor < 1:
            raise ValueError(f"factor: expected a number above 0 and below 1, found {factor}")
        super().__init__(monitor, mode, min_delta)
        self.factor, self.patience, self.min_lr = factor, patience, min_lr
        self.wait = 0

    def on_train_begin(self, logs: Logs) -> None:
        """Start counting, unless the run is resumed."""
        self.check()
        if not self.trainer.resumed:
            self.wait, self.best = 0, self.worst

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Compare and perhaps lower the rate."""
        value = self.value(logs)
        if self.improves(value):
            self.best, self.wait = value, 0
            return
        self.wait += 1
        if self.wait >= max(1, self.patience):
            self.wait = 0
            self.trainer.learning_rate = max(self.min_lr, self.trainer.learning_rate * self.factor)

    def state(self) -> dict[str, Any]:
        """Return best value and count."""
        return {"best": self.best, "wait": self.wait}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from them."""
        self.best, self.wait = state["best"], state["wait"]


class TerminateOnNaN(Callback):
    """Ends a run when a loss is NaN or infinite, before the optimizer step that would use its gradients.

    Without it, that optimizer step fails with an error, see the configuration entry ``ortrain.nonfinite_gradients``.
    """


class ModelCheckpoint(_Monitor):
    """Saves checkpoints from which ``fit(resume=...)`` continues.

    It comes after the other callbacks, so that their state is in the checkpoint.
    If the folder has checkpoints of another run, by their names, a warning says so when the run begins.

    Parameters
    ----------
    filepath : str or os.PathLike
        The file, in which ``{epoch}`` (from 1), ``{step}`` and values of the epoch such as ``{val_loss:.3f}`` are
        replaced.
    monitor : str, default "val_loss"
        What is compared, if only the best are kept.
    save_best_only : bool, default False
        Whether a checkpoint is saved only if the value has improved.
    mode : {"auto", "min", "max"}, default "auto"
        Whether smaller or larger values are better; "auto" decides from the name.
    save_freq : "epoch" or int, default "epoch"
        When: after each epoch, or after so many optimizer steps.
    keep : int, optional
        Number of checkpoints to keep: the best ones if epochs have the monitored value, otherwise the latest. By
        default all.
    best_path : str or os.PathLike, optional
        A second name of the checkpoint with the best value, which stays when the first one is deleted.
    last_path : str or os.PathLike, optional
        A second name of the newest checkpoint.

    Attributes
    ----------
    best : float
        The best value so far.
    best_epoch : int or None
        The epoch that had it, from 1. None before the first one.
    """

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        save_best_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        keep: int | None = None,
        best_path: str | os.PathLike[str] | None = None,
        last_path: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(monitor, mode)
        if save_freq != "epoch" and (not isinstance(save_freq, int) or save_freq < 1):
            raise ValueError(f"save_freq: expected 'epoch' or 1 or more, found {save_freq!r}")
        if keep is not None and keep < 1:
            raise ValueError(f"keep: expected 1 or more, found {keep}")
        if best_path is not None and save_freq != "epoch":
            raise ValueError(
                f"best_path: expected save_freq='epoch' with it, because epochs are compared, found {save_freq}"
            )
        self.filepath = os.fspath(filepath)
        self.save_best_only, self.save_freq, self.keep = save_best_only, save_freq, keep
        self.best_path, self.last_path = best_path, last_path
        self.best_epoch: int | None = None
        self.saved: list[tuple[float | None, str]] = []
        self._last_step = -1

    def on_train_begin(self, logs: Logs) -> None:
        """Check the pattern and start a new list, unless the run is resumed."""
        if self.save_freq == "epoch" and (self.save_best_only or self.best_path is not None):
            self.check()
        self._last_step = self.trainer.step
        if not self.trainer.resumed:
            self.best, self.best_epoch, self.saved = self.worst, None, []
        for folder in self._folders():
            self._remove_abandoned(folder, self._names())
        found = self._unknown()
        if found:
            self.separate(found)

    def separate(self, found: list[Path]) -> None:
        """Deal with checkpoints that are named like those of this run but are not part of it: warn, and leave them.

        They come from an earlier run, or from later epochs of a run that is resumed from an earlier one.
        """
        folder = self._parts()[0]
        names = ", ".join(str(path.relative_to(folder)) for path in found[:3])
        names += ", ..." if len(found) > 3 else ""
        warnings.warn(
            f"ModelCheckpoint: {folder} has {counted(len(found), 'checkpoint')} of another run ({names}); this run "
            "replaces checkpoints of the same name and keeps the others",
            stacklevel=2,
        )

    def _remove_abandoned(self, folder: Path, names: str) -> None:
        """Remove the temporary files of checkpoints that processes were saving in a folder when they were killed."""
        with contextlib.suppress(OSError):  # the run can save its checkpoints beside them
            remove_abandoned(folder, rf"(?:{names})(?:\.data)?")  # large checkpoints have a second file

    def _parts(self) -> tuple[Path, list[str]]:
        """Return the folder that all checkpoints are in, and the names of folders and files below it that have fields."""
        *folders, name = Path(self.filepath).parts
        fixed = list(itertools.takewhile(lambda part: not _has_fields(part), folders))
        return Path(*map(str.format, fixed)), [*folders[len(fixed) :], name]

    def _folders(self) -> list[Path]:
        """Return the folders that have checkpoints of this run or of another one, if they exist."""
        folder, (*below, _) = self._parts()
        found = [folder] * folder.is_dir()
        for part in below:
            entries = [entry for folder in found for entry in folder.iterdir() if entry.is_dir()]
            found = [entry for entry in entries if re.fullmatch(_expression(part), entry.name)]
        return found

    def _names(self) -> str:
        """Return a regular expression for the names of the checkpoints."""
        return _expression(Path(self.filepath).name)

    def _unknown(self) -> list[Path]:
        """Return the files whose names fit the pattern of this run, and that the run has not saved."""
        _, below = self._parts()
        if not any(map(_has_fields, below)):
            return []  # the run has one file, which each save replaces
        own = {Path(path).parts[-len(below) :] for _, path in self.saved}  # the folder may have been moved
        files = [path for folder in self._folders() for path in folder.iterdir()]
        found = [
            path
            for path in files
            if re.fullmatch(self._names(), path.name) and path.parts[-len(below) :] not in own
        ]
        return sorted(found, key=lambda path: (len(str(path)), path))  # epoch 9 comes before epoch 10

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """Save if enough steps have been taken."""
        trainer = self.trainer
        if self.save_freq == "epoch" or trainer.step == self._last_step:
            return  # there is nothing to log, or the step only accumulated gradients
        self._last_step = trainer.step
        if trainer.step % int(self.save_freq) == 0:
            self._save(None, trainer.epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Save, unless only the best are saved and this is not the best."""
        if self.save_freq != "epoch":
            return
        if not self.save_best_only and self.best_path is None:
            self._save(logs.get(self.monitor), epoch, logs)
            return
        value = self.value(logs)
        is_best = self.improves(value)
        if is_best:
            self.best, self.best_epoch = value, epoch + 1
        if is_best or not self.save_best_only:
            path = self._save(value, epoch, logs)
            if is_best and self.best_path is not None:
                self.give_name(path, self.best_path)

    def give_name(self, path: str | os.PathLike[str], name: str | os.PathLike[str]) -> None:
        """Give a checkpoint a second name, ``best_path`` or ``last_path``."""
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        link_checkpoint(path, name)

    def _save(self, value: float | None, epoch: int, logs: Logs) -> str:
        try:
            path = self.filepath.format(**{**logs, "epoch": epoch + 1, "step": self.trainer.step})
        except KeyError as error:
            raise ValueError(
                f"ModelCheckpoint: {self.filepath!r} names {error}; known are epoch, step, {', '.join(logs)}"
            ) from None
        self.saved = [entry for entry in self.saved if entry[1] != path] + [(value, path)]
        old = self._surplus()
        # the saved state contains the new list; old files are deleted only afterwards
        self.trainer.save(path)
        if self.last_path is not None:
            self.give_name(path, self.last_path)
        for name in old:
            remove_checkpoint(name)
        return path

    def _surplus(self) -> list[str]:
        """Remove files from the list that are not to be kept, and return them.

        The newest is kept, because a run resumes from it.
        """
        old: list[str] = []
        while self.keep is not None and len(self.saved) > self.keep:
            earlier = self.saved[:-1] if len(self.saved) > 1 else self.saved
            if all(value is not None for value, _ in earlier):
                sign = operator.pos if self.mode == "max" else operator.neg
                worst = min(earlier, key=lambda entry: sign(entry[0] if entry[0] is not None else 0.0))
            else:
                worst = earlier[0]
            self.saved.remove(worst)
            old.append(worst[1])
        return old

    def state(self) -> dict[str, Any]:
        """Return best value and files."""
        saved = [list(entry) for entry in self.saved]
        return {"best": self.best, "best_epoch": self.best_epoch, "saved": saved}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from them."""
        self.best, self.best_epoch = state["best"], state.get("best_epoch")
        self.saved = [(value, path) for value, path in state["saved"]]


def _has_fields(part: str) -> bool:
    """Whether a part of a path has fields such as ``{epoch}``; ``{{`` is a brace."""
    return any(field is not None for _, field, _, _ in string.Formatter().parse(part))


def _expression(part: str) -> str:
    """Return a regular expression for a part of a path, in which each field is a number."""
    parts = string.Formatter().parse(part)
    return "".join(re.escape(text) + ("" if field is None else _NUMBER) for text, field, _, _ in parts)


class LearningRateScheduler(Callback):
    """Sets the learning rate of each epoch by a function of the epoch and the rate so far.

    Parameters
    ----------
    schedule : callable
        Called with the number of the epoch, from 0, and the rate; returns the rate of the epoch.
    """

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """Set the rate."""
        self.trainer.learning_rate = float(self.schedule(epoch, self.trainer.learning_rate))


class LambdaCallback(Callback):
    """Calls given functions at moments of a run.

    Parameters
    ----------
    **functions : callable
        By the names of the methods of `Callback`, with their arguments.
    """

    def __init__(self, **functions: Any) -> None:
        for name, function in functions.items():
            if not name.startswith("on_") or not hasattr(Callback, name):
                raise ValueError(f"LambdaCallback: there is no moment {name!r}")
            setattr(self, name, function)
