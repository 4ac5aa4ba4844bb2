"""Progress of a run: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from ortrain._support.counts import counted
from ortrain.trainer.callbacks import Callback, Logs

WIDTH = 24
_SHORT = 10.0  # seconds; a shorter remaining time is not shown


def rough(seconds: float) -> str:
    """Return an estimated time, rounded to a unit, such as 2 minutes."""
    count, unit = (
        (seconds, "second")
        if seconds < 90
        else (seconds / 60, "minute")
        if seconds < 5400
        else (seconds / 3600, "hour")
    )
    whole = max(1, round(count))
    return counted(whole, unit)


def describe(logs: Logs) -> str:
    """Return the numbers of an epoch in a line."""
    return ", ".join(
        f"{name} {value:.4g}" if abs(value) < 1e4 else f"{name} {value:,.0f}"
        for name, value in logs.items()
        if isinstance(value, float)
    )


class ProgbarLogger(Callback):
    """Shows the progress of a run.

    In a terminal a bar shows the current epoch and stays as a line when the epoch ends. Elsewhere there is one line
    per epoch.

    Parameters
    ----------
    stream : text file, optional
        Where it is shown; standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._next = self._began = self._started = 0.0
        self._first = 0  # batches of the run before it was resumed

    @property
    def stream(self) -> TextIO:
        """Where progress is shown."""
        return self._stream or sys.stderr

    def on_train_begin(self, logs: Logs) -> None:
        """Say where a resumed run continues."""
        self._started, self._first = time.monotonic(), self.trainer.step * self.trainer.accumulate
        self.on_epoch_begin(
            self.trainer.epoch, logs
        )  # a run that is resumed within an epoch does not call on_epoch_begin
        if self.trainer.resumed:
            print(f"resumed at epoch {self.trainer.epoch + 1}, step {self.trainer.step}", file=self.stream)

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """Start the clock."""
        self._began = time.monotonic()
        self._next = 0.0 if self.stream.isatty() else float("inf")

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """Draw the bar, ten times a second at most."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 0.1
        total = self.trainer.steps_per_epoch
        if total:
            filled = WIDTH * (batch + 1) // total
            bar = f"[{'=' * filled}{' ' * (WIDTH - filled)}] {batch + 1}/{total}"
        else:
            bar = f"step {batch + 1}"
        self.stream.write(f"\r\x1b[K{self._title(self.trainer.epoch)} {bar} {describe(logs)}{self._left()}")
        self.stream.flush()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Write the line of the epoch."""
        seconds = time.monotonic() - self._began
        clear = "\r\x1b[K" if self.stream.isatty() else ""
        self.stream.write(f"{clear}{self._title(epoch)} {seconds:.1f} s: {describe(logs)}{self._left()}\n")
        self.stream.flush()

    def on_train_end(self, logs: Logs) -> None:
        """Leave the line of a bar whose epoch did not end."""
        if self.stream.isatty():
            self.stream.write("\r\x1b[K")
            self.stream.flush()

    def _left(self) -> str:
        """Return the remaining time at the present speed; an empty text if it is short or not known."""
        trainer, now = self.trainer, time.monotonic()
        if not trainer.steps_per_epoch:
            return ""
        done = trainer.step * trainer.accumulate - self._first
        total = trainer.epochs * trainer.steps_per_epoch - self._first
        seconds = (now - self._started) * (total - done) / done if done > 0 else 0.0
        return f", {rough(seconds)} left" if seconds >= _SHORT else ""

    def _title(self, epoch: int) -> str:
        return f"epoch {epoch + 1}/{self.trainer.epochs}"
