"""Progress of a run in a notebook: a table that grows."""

from __future__ import annotations

import importlib
import sys
import time
from html import escape
from typing import Any

from ortrain._support.counts import agreeing, counted
from ortrain.trainer.callbacks import Callback, Logs
from ortrain.trainer.progress import ProgbarLogger, describe

_SHOWN = 20  # last epochs in the table
_SECONDS = 0.5  # between two updates of the table


def in_notebook() -> bool:
    """Whether the program runs in a notebook, whose kernel shows objects."""
    package = sys.modules.get("IPython")
    return package is not None and hasattr(package.get_ipython(), "kernel")


def progress() -> Callback:
    """Return what shows progress where the program runs."""
    return NotebookTable() if in_notebook() else ProgbarLogger()


class NotebookTable(ProgbarLogger):
    """Shows a table in a notebook, with a row for each epoch, and below it where the run is. Needs IPython."""

    def on_train_begin(self, logs: Logs) -> None:
        """Show the table."""
        super().on_train_begin(logs)
        self._names: list[str] = []
        self._rows: list[tuple[str, list[str]]] = []
        self._now = "the first epoch begins"
        display = importlib.import_module("IPython.display").display
        self._handle: Any = display(Table(self._names, [], self._now), display_id=True)

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """Start the clock."""
        self._began, self._next = time.monotonic(), 0.0

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """Say where the run is, twice a second at most."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _SECONDS
        total = self.trainer.steps_per_epoch
        place = f"step {batch + 1}{f' of {total}' if total else ''}"
        self._update(f"{self._title(self.trainer.epoch)}, {place}: {describe(logs)}{self._left()}")

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Add the row of the epoch."""
        values = {name: f"{value:.4g}" for name, value in logs.items() if isinstance(value, float)}
        self._names = list(values)
        seconds = time.monotonic() - self._began
        self._rows.append((str(epoch + 1), [*values.values(), f"{seconds:.1f} s"]))
        self._update(f"{self._title(epoch)}{self._left()}")

    def on_train_end(self, logs: Logs) -> None:
        """Say how the run ended."""
        trainer = self.trainer
        done = f"{counted(trainer.epoch, 'epoch')}, {time.monotonic() - self._started:.1f} s"
        self._update(f"{done}{f'; stopped: {trainer.stop_reason}' if trainer.stop_reason else ''}")

    def _update(self, now: str) -> None:
        self._now = now
        self._handle.update(Table([*self._names, "time"], self._rows, now))


class Table:
    """A table that a notebook shows as HTML, and other programs as text.

    Parameters
    ----------
    names : list of str
        The headings after that of the epoch.
    rows : list of (str, list of str)
        The epochs with their values.
    below : str
        The line below the table.
    """

    def __init__(self, names: list[str], rows: list[tuple[str, list[str]]], below: str) -> None:
        self._names, self._rows, self._below = names, rows[-_SHOWN:], below
        self._left_out = len(rows) - len(self._rows)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in ["epoch", *self._names])
        body = "".join(
            f"<tr><th>{escape(epoch)}</th>{''.join(f'<td>{escape(value)}</td>' for value in values)}</tr>"
            for epoch, values in self._rows
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if self._rows else ""
        return f"{self._above()}{table}<p>{escape(self._below)}</p>"

    def __repr__(self) -> str:
        rows = [["epoch", *self._names], *([epoch, *values] for epoch, values in self._rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if self._rows else []
        lines = ["  ".join(map(str.rjust, row, widths)) for row in rows] if self._rows else []
        return "\n".join([*([self._above()] if self._left_out else []), *lines, self._below])

    def _above(self) -> str:
        left = self._left_out
        return f"{counted(left, 'earlier epoch')} {agreeing(left, 'is', 'are')} not shown" if left else ""
