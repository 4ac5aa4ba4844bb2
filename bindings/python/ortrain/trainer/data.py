"""The data of a run: arrays, tables of rows, iterables of batches and generators, all as batches of arrays.

Every source gives the batches of an epoch from a position on, so that a resumed run continues where it stopped.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ortrain._support import to_array

Array = npt.NDArray[Any]
Batch = tuple[Array, ...]


class Source(Protocol):
    """Where the batches of a run come from."""

    steps: int | None
    """Batches of an epoch; None if that is not known."""

    prefetch: int
    """How many batches a thread prepares ahead unless the caller says otherwise."""

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, from number ``first`` on."""
        ...


class Inputs:
    """The inputs of a model: their order and types.

    Parameters
    ----------
    names : sequence of str
        In the order of a step.
    dtypes : sequence of numpy.dtype or None
        Their types; None if any type is accepted.
    """

    def __init__(self, names: Sequence[str], dtypes: Sequence[np.dtype[Any] | None]) -> None:
        self.names = list(names)
        self.dtypes = list(dtypes)

    def take(self, batch: Any) -> Batch:
        """Return one batch as arrays in the order of the model's inputs.

        Raises
        ------
        ValueError
            When an input is missing, there are too many, or a type cannot be converted.
        """
        return tuple(self.convert(i, value) for i, value in enumerate(self.in_order(batch)))

    def in_order(self, batch: Any) -> list[Any]:
        """Return the values of a tuple or a dictionary in the order of the inputs."""
        if isinstance(batch, Mapping):
            missing = [name for name in self.names if name not in batch]
            if missing:
                raise ValueError(
                    f"data: expected the inputs {', '.join(self.names)}, found no {', '.join(missing)} "
                    f"among {', '.join(map(str, batch))}"
                )
            return [batch[name] for name in self.names]
        values = list(batch) if isinstance(batch, (tuple, list)) else [batch]
        if len(values) != len(self.names):
            raise ValueError(
                f"data: expected {len(self.names)} values ({', '.join(self.names)}), found {len(values)}"
            )
        return values

    def convert(self, i: int, value: Any) -> Array:
        """Return the value of input number ``i`` as an array of its type, without a copy where possible."""
        array = np.asarray(value) if isinstance(value, (list, tuple)) else to_array(value)
        wanted = self.dtypes[i]
        if wanted is None or array.dtype == wanted:
            return np.ascontiguousarray(array) if array.ndim else array
        if wanted.kind in "biuf" and not np.can_cast(array.dtype, wanted, "same_kind"):
            raise ValueError(f"data: input {self.names[i]!r}: expected {wanted}, found {array.dtype}")
        converted = array.astype(wanted, order="C")
        if wanted.kind in "iu" and array.dtype.itemsize > wanted.itemsize and (converted != array).any():
            raise ValueError(
                f"data: input {self.names[i]!r}: expected values that {wanted} can represent, found {array.dtype} "
                f"from {array.min()} to {array.max()}"
            )
        return converted


class Rows:
    """Rows that can be chosen by number: arrays in memory, or a table such as a Hugging Face dataset.

    Parameters
    ----------
    count : int
        The number of rows.
    take : callable
        Returns the batch of an array of row numbers.
    batch_size : int
        Rows of a batch; the last batch of an epoch may have fewer.
    shuffle : bool
        Whether each epoch has its own order.
    seed : int
        Seed of that order, which depends on nothing but the seed and the epoch.
    drop_last : bool
        Whether a last batch with fewer rows is left out.
    """

    prefetch = 0  # choosing rows takes less time than handing a batch from one thread to another

    def __init__(
        self,
        count: int,
        take: Callable[[Array], Batch],
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool = False,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size: expected 1 or more, found {batch_size}")
        if count == 0:
            raise ValueError("data: expected at least one row, found none")
        self.count, self.batch_size, self.shuffle, self.seed = count, batch_size, shuffle, seed
        self._take = take
        self.steps: int | None = count // batch_size if drop_last else -(-count // batch_size)
        if self.steps == 0:
            raise ValueError(f"data: expected at least one batch of {batch_size} rows, found {count} rows")

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, from number ``first`` on."""
        order = np.arange(self.count)
        if self.shuffle:
            np.random.default_rng([self.seed, epoch]).shuffle(order)
        assert self.steps is not None
        for step in range(first, self.steps):
            yield self._take(order[step * self.batch_size : (step + 1) * self.batch_size])


class Stream:
    """An iterable of batches that is iterated over once per epoch, or a function that returns one.

    A resumed run skips the batches that were used, so it equals the uninterrupted one if the iterable yields the
    same batches in the same epoch. An iterable with ``set_epoch`` is told the epoch, and a function gets it as
    its argument.
    """

    prefetch = 2

    def __init__(self, data: Any, inputs: Inputs, steps: int | None) -> None:
        self._data, self._inputs, self._limit = data, inputs, steps
        self.steps = steps
        if steps is None and hasattr(data, "__len__"):
            self.steps = len(data)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, from number ``first`` on."""
        data = self._data
        if hasattr(data, "set_epoch"):
            data.set_epoch(epoch)
        batches: Iterable[Any] = data(epoch) if callable(data) and not hasattr(data, "__iter__") else data
        for batch in islice(iter(batches), first, self._limit):
            yield self._inputs.take(batch)


class Once:
    """An iterator that cannot start again, such as a generator: each epoch takes the next batches of it."""

    prefetch = 2

    def __init__(self, data: Iterator[Any], inputs: Inputs, steps: int | None) -> None:
        self._data, self._inputs = data, inputs
        self.steps = steps
        self._used = 0

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, from number ``first`` on."""
        if epoch and self.steps is None:
            raise ValueError(
                "data: expected data that can be iterated over again, or steps_per_epoch, found an iterator for "
                f"epoch {epoch + 1}; give a function that returns one"
            )
        start = epoch * (self.steps or 0) + first
        for _ in islice(self._data, max(0, start - self._used)):  # of a run that this one resumes
            pass
        self._used = max(self._used, start)
        for batch in islice(self._data, None if self.steps is None else self.steps - first):
            self._used += 1
            yield self._inputs.take(batch)


def is_table(data: Any) -> bool:
    """Whether rows can be taken by number, as columns by name: a Hugging Face dataset."""
    return hasattr(data, "with_format") and hasattr(data, "__getitem__") and hasattr(data, "__len__")


def columns_of(data: Any, inputs: Inputs) -> list[Array]:
    """Return arrays that were given as a tuple or by name, one for each input, with the same number of rows."""
    columns = [inputs.convert(i, value) for i, value in enumerate(inputs.in_order(data))]
    counts = [len(column) if column.ndim else -1 for column in columns]
    if len(set(counts)) > 1 or -1 in counts:
        found = ", ".join(
            f"{name} {column.shape}" for name, column in zip(inputs.names, columns, strict=True)
        )
        raise ValueError(f"data: expected arrays with the same number of rows, found {found}")
    return columns


def source_of(
    data: Any,
    inputs: Inputs,
    batch_size: int,
    shuffle: bool,
    seed: int,
    steps: int | None = None,
    drop_last: bool = False,
    rows: Array | None = None,
) -> Source:
    """Return the source for what a caller gave as data.

    Parameters
    ----------
    data : object
        A tuple of arrays or a dictionary of arrays by input name; a Hugging Face dataset; any other iterable of
        batches; an iterator; or a function of the epoch that returns an iterable of batches.
    inputs : Inputs
        The inputs of the model.
    batch_size, shuffle, seed, drop_last
        As in `Rows`; other sources make their own batches.
    steps : int, optional
        Batches of an epoch.
    rows : array of int, optional
        The rows to use, of data that has rows. All by default.

    Raises
    ------
    ValueError
        When the data do not match the inputs.
    TypeError
        When the data are of no such kind.
    """
    if isinstance(data, (tuple, Mapping)):
        columns = columns_of(data, inputs)

        def take(chosen: Array) -> Batch:
            chosen = chosen if rows is None else rows[chosen]
            return tuple(column[chosen] for column in columns)

        count = (len(columns[0]) if columns else 0) if rows is None else len(rows)
        return _limited(Rows(count, take, batch_size, shuffle, seed, drop_last), steps)
    if is_table(data):
        table = data.with_format("numpy")

        def read(chosen: Array) -> Batch:
            return inputs.take(table[(chosen if rows is None else rows[chosen]).tolist()])

        source = Rows(len(data) if rows is None else len(rows), read, batch_size, shuffle, seed, drop_last)
        source.prefetch = 2
        return _limited(source, steps)
    if rows is not None:
        raise ValueError("validation: expected data with rows to take a share of, found batches")
    if isinstance(data, Iterator):
        return Once(data, inputs, steps)
    if isinstance(data, np.ndarray) or not (isinstance(data, Iterable) or callable(data)):
        raise TypeError(
            "data: expected a tuple of arrays, a dictionary of arrays, an iterable of batches or a function that "
            f"returns one, found {type(data).__name__}"
        )
    return Stream(data, inputs, steps)


def _limited(source: Rows, steps: int | None) -> Rows:
    if steps is not None and source.steps is not None:
        source.steps = min(steps, source.steps)
    return source


def split(data: Any, share: float, inputs: Inputs, seed: int) -> tuple[Array, Array]:
    """Choose which rows are trained on and which are held out.

    Parameters
    ----------
    data : object
        Data that has rows.
    share : float
        The share of the rows that is held out, above 0 and below 1.
    inputs : Inputs
        The inputs of the model.
    seed : int
        Seed of the choice.

    Returns
    -------
    train, held_out : array of int
        Row numbers.
    """
    if not 0 < share < 1:
        raise ValueError(f"validation: expected a share above 0 and below 1, found {share}")
    if isinstance(data, (tuple, Mapping)):
        count = len(columns_of(data, inputs)[0])
    elif is_table(data):
        count = len(data)
    else:
        raise ValueError("validation: expected data with rows to take a share of, found batches")
    held_out = round(count * share)
    if not 0 < held_out < count:
        raise ValueError(f"validation: a share of {share} of {count} rows leaves no row on one side")
    order = np.random.default_rng([seed, 0x5B117]).permutation(count)
    return np.sort(order[held_out:]), np.sort(order[:held_out])


_END = object()


def prefetched(batches: Iterator[Batch], count: int) -> Generator[Batch, None, None]:
    """Yield the batches of an iterator that a thread runs ahead of the caller by up to ``count``.

    The thread ends when the iterator does or this generator is closed. What the iterator raises is raised here.
    """
    if count < 1:
        yield from batches
        return
    ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
    room = threading.Semaphore(count)
    closed = threading.Event()

    def run() -> None:
        try:
            for batch in batches:
                ready.put((batch, None))
                room.acquire()
                if closed.is_set():
                    return
            ready.put((_END, None))
        except BaseException as error:  # it belongs to the caller, whatever it is
            ready.put((_END, error))

    thread = threading.Thread(target=run, name="ortrain-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            batch, error = ready.get()
            if error is not None:
                raise error
            if batch is _END:
                return
            yield batch
            room.release()
    finally:
        closed.set()
        room.release()
        thread.join()
