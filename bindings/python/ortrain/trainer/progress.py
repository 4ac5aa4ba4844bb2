"""Progress of a run: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from ortrain.trainer.callbacks import Callback, Logs

WIDTH = 24


def describe(logs: Logs) -> str:
    """Return the numbers of an epoch in a line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in logs.items() if isinstance(value, float))


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
        self._next = self._began = 0.0

    @property
    def stream(self) -> TextIO:
        """Where progress is shown."""
        return self._stream or sys.stderr

    def on_train_begin(self, logs: Logs) -> None:
        """Say where a resumed run continues."""
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
        self.stream.write(f"\r\x1b[K{self._title(self.trainer.epoch)} {bar} {describe(logs)}")
        self.stream.flush()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Write the line of the epoch."""
        seconds = time.monotonic() - self._began
        clear = "\r\x1b[K" if self.stream.isatty() else ""
        self.stream.write(f"{clear}{self._title(epoch)} {seconds:.1f} s: {describe(logs)}\n")
        self.stream.flush()

    def on_train_end(self, logs: Logs) -> None:
        """Leave the line of a bar whose epoch did not end."""
        if self.stream.isatty():
            self.stream.write("\r\x1b[K")
            self.stream.flush()

    def _title(self, epoch: int) -> str:
        return f"epoch {epoch + 1}/{self.trainer.epochs}"
