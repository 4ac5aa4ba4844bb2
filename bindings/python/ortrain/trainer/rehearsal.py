"""A rehearsal buffer: rows of earlier runs on which later runs train too, so that the model does not forget them."""

from __future__ import annotations

import base64
import io
import zipfile
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._support.counts import counted
from ortrain.trainer.data import Batch, Inputs

Array = npt.NDArray[Any]

_DRAWS, _CHOICES = (
    0x7EA,
    0x7EB,
)  # parts of seeds, so that the random numbers for draws, for choices and for other purposes differ


class Rehearsal:
    """Rows of earlier runs. A later run adds some of these rows to each batch.

    The rows are a uniform sample of all rows that runs trained on, by reservoir sampling (Vitter, Random Sampling with a
    Reservoir, 1985, algorithm R). A run offers its rows in its first epoch, and rehearses only rows of
    earlier runs, so the first run is the same without a buffer. Checkpoints contain the rows, and a resumed
    run continues with the same bits.

    Parameters
    ----------
    size : int, default 500
        The maximum number of rows in the buffer.
    share : float, default 0.5
        Number of rows that are added to a batch for each of its rows.

    Raises
    ------
    ValueError
        When a setting is out of range.

    Notes
    -----
    A checkpoint with a buffer contains unprotected rows of the data. `clear` removes them; an exported model never has
    them.
    """

    def __init__(self, size: int = 500, share: float = 0.5) -> None:
        if size < 1:
            raise ValueError(f"rehearsal: expected a size of 1 row or more, found {size}")
        if not (np.isfinite(share) and share > 0):
            raise ValueError(f"rehearsal: expected a share above 0, found {share}")
        self.size, self.share = size, share
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._columns: list[Array] = []
        self._run_of = np.zeros(0, np.int64)
        self._run = self.seen = 0

    def __len__(self) -> int:
        return len(self._run_of)

    def __str__(self) -> str:
        return f"size {self.size}, share {self.share:g}"

    def begin(self) -> None:
        """Begin a run: the rows that are kept are those of earlier ones."""
        self._run += 1

    def mixed(self, batch: Batch, seed: int, epoch: int, number: int) -> Batch:
        """Return a batch with rows of earlier runs behind its own."""
        earlier = np.flatnonzero(self._run_of < self._run)
        if not len(earlier):
            return batch
        self._check(batch)
        count = max(1, round(self.share * len(batch[0])))
        rng = np.random.default_rng([seed, _DRAWS, self._run, epoch, number])
        rows = rng.choice(earlier, count, replace=count > len(earlier))
        return tuple(
            np.concatenate([own, kept[rows]]) for own, kept in zip(batch, self._columns, strict=True)
        )

    def offer(self, batch: Batch, seed: int) -> None:
        """Offer the rows of a batch, of which some are kept."""
        self._check(batch)
        count = len(batch[0])
        # Reservoir sampling: row i draws a place among the first i, and is kept if the buffer has that place.
        rng = np.random.default_rng([seed, _CHOICES, self.seen])
        places = rng.integers(0, np.arange(self.seen, self.seen + count) + 1)
        places = np.where(
            np.arange(self.seen, self.seen + count) < self.size, np.arange(count) + self.seen, places
        )
        self.seen += count
        filled = max(len(self), min(self.size, self.seen))
        if filled > len(self):
            more = filled - len(self)
            columns = self._columns or [column[:0] for column in batch]
            self._columns = [
                np.concatenate([kept, np.zeros((more, *kept.shape[1:]), kept.dtype)]) for kept in columns
            ]
            self._run_of = np.concatenate([self._run_of, np.zeros(more, np.int64)])
        for row, place in enumerate(places):
            if place < self.size:
                for kept, own in zip(self._columns, batch, strict=True):
                    kept[place] = own[row]
                self._run_of[place] = self._run

    def _check(self, batch: Batch) -> None:
        """Reject a batch whose arrays have different numbers of rows, or whose rows have another form than the kept ones."""
        shapes = [column.shape for column in batch]
        if any(not shape or shape[0] != shapes[0][0] for shape in shapes):
            raise ValueError(
                "rehearsal: expected the rows of a batch in the first dimension of each input, found the shapes "
                + ", ".join(str(list(shape)) for shape in shapes)
            )
        for place, (own, kept) in enumerate(zip(batch, self._columns, strict=False)):
            if own.shape[1:] != kept.shape[1:]:
                raise ValueError(
                    f"rehearsal: expected rows of shape {list(kept.shape[1:])} in input {place + 1}, like the kept rows, found "
                    f"{list(own.shape[1:])}"
                )

    def state(self) -> str:
        """Return what a checkpoint keeps: an NPZ file in base 64."""
        file = io.BytesIO()
        columns = {f"column_{number}": column for number, column in enumerate(self._columns)}
        about = np.array([self.size, self.seen, self._run], np.int64)
        np.savez_compressed(file, about=about, run_of=self._run_of, **columns)  # type: ignore[arg-type]
        return base64.b64encode(file.getvalue()).decode("ascii")

    def load_state(self, state: str) -> None:
        """Take over what a checkpoint has.

        Raises
        ------
        ValueError
            When the state is not that of a buffer, or the buffer has another size.
        """
        try:
            with np.load(io.BytesIO(base64.b64decode(state, validate=True)), allow_pickle=False) as found:
                size, seen, run = (int(number) for number in found["about"])
                run_of = found["run_of"]
                columns = [found[f"column_{number}"] for number in range(len(found.files) - 2)]
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"rehearsal: the buffer in the checkpoint cannot be read: {error}") from error
        if size != self.size:
            raise ValueError(
                f"rehearsal: expected a size of {counted(size, 'row')}, as the buffer in the checkpoint has, found {self.size}"
            )
        if any(len(column) != len(run_of) for column in columns) or len(run_of) != min(size, seen):
            raise ValueError(
                "rehearsal: the buffer in the checkpoint cannot be read: its columns have different lengths"
            )
        self._columns, self._run_of, self.seen, self._run = columns, run_of, seen, run


def rehearsal_of(given: Rehearsal | int | None) -> Rehearsal | None:
    """Return the buffer that a caller means by a number of rows."""
    if isinstance(given, Rehearsal) or given is None:
        return given
    return Rehearsal(given)


def check_rehearsal(rehearsal: Rehearsal, inputs: Inputs) -> None:
    """Reject a buffer for a model that takes batches of one size alone."""
    first = inputs.forms[0]
    if first.shape and isinstance(first.shape[0], int):
        raise ValueError(
            f"rehearsal: expected a model that takes batches of any size, because a batch gets more rows, found {first.name} "
            f'{first.shown()}; Trainer(model, batch="dynamic") may make the batch size free'
        )
