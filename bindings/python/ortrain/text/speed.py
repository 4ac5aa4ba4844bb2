"""The number of tokens on which a run trains in a second."""

from __future__ import annotations

import time

from ortrain.text.rows import TextRows
from ortrain.trainer import Callback
from ortrain.trainer.callbacks import Logs


class TokenSpeed(Callback):
    """Adds ``tokens_per_second`` to the values of each epoch. Callbacks that print or log them come after it.

    Tokens that fill rows do not count. The time is that of the train and optimizer steps, without validations.

    Parameters
    ----------
    rows : TextRows
        What the run trains on.
    held_out : float, default 0.0
        The share of the rows that is held out for validation, whose tokens are taken to be as many as those of other rows.
    """

    def __init__(self, rows: TextRows, held_out: float = 0.0) -> None:
        self._tokens = rows.tokens * (1 - held_out)
        self._began = self._seconds = 0.0
        self._steps = 0

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """Start the clock."""
        self._seconds, self._steps = 0.0, 0

    def on_train_batch_begin(self, batch: int, logs: Logs) -> None:
        """Note when the step begins."""
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """Add its time."""
        self._seconds += time.perf_counter() - self._began
        self._steps += 1

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Add the value."""
        total = self.trainer.steps_per_epoch
        if self._steps and total and self._seconds > 0:
            # In a resumed epoch, only some of the steps ran, with about that share of the tokens.
            logs["tokens_per_second"] = self._tokens * self._steps / total / self._seconds
