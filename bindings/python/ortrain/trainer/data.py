"""The data of a run: arrays, tables of rows, iterables of batches and generators, all as batches of arrays.

Every source can yield the batches of an epoch from a position on, so that a resumed run continues where it stopped.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ortrain._support.counts import counted
from ortrain._support.places import place_of_row
from ortrain._support.suggestions import did_you_mean
from ortrain.trainer.checks import Form, Shape, as_array, check_rows, fitted, is_frame
from ortrain.trainer.columns import Columns
from ortrain.trainer.weighting import WEIGHTS

Array = npt.NDArray[Any]
Batch = tuple[Array, ...]


def rows_in(batch: Batch) -> int:
    """Return the number of rows in a batch; 1 if its first input is a scalar."""
    return len(batch[0]) if batch and batch[0].ndim else 1


def _first_target(names: Sequence[str]) -> int:
    """Return the index of the first target. The targets of a sum of losses are the last inputs, each named after an output."""
    first = max(1, len(names) - 1)
    while first > 1 and all(name.endswith("_target") for name in names[first - 1 : first + 1]):
        first -= 1
    return first


class Source(Protocol):
    """Where the batches of a run come from."""

    steps: int | None
    """Batches of an epoch; None if that is not known."""

    prefetch: int
    """The default number of batches that a thread prepares ahead."""

    columns: Sequence[Array] | None
    """All data, one array for each input, if they are in memory."""

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, from number ``first`` on."""
        ...


class Inputs:
    """The inputs of a model: their order, types and shapes.

    Parameters
    ----------
    names : sequence of str
        In the order of a step.
    dtypes : sequence of numpy.dtype or None
        Their types; None if any type is accepted.
    shapes : sequence, optional
        Their declared shapes, an entry None if it is not known. By default none is.
    has_target : bool, default True
        Whether the last one of several is the target. For a sum of losses, all inputs that end in ``_target`` are
        targets.

    Attributes
    ----------
    classes : list of str or None
        The names of the classes, by which targets may be given. Data in memory set them if they are not known.
    columns : Columns or None
        The names of the columns that data frames are read by. Those of a frame in memory if they are not known.
    """

    def __init__(
        self,
        names: Sequence[str],
        dtypes: Sequence[np.dtype[Any] | None],
        shapes: Sequence[Shape | None] | None = None,
        has_target: bool = True,
    ) -> None:
        self.names = list(names)
        self.dtypes = list(dtypes)
        first_target = _first_target(self.names) if has_target else len(self.names)
        self.forms = [
            Form(name, dtype, shape, number >= first_target)
            for number, (name, dtype, shape) in enumerate(
                zip(names, dtypes, shapes or [None] * len(self.names), strict=True)
            )
        ]
        self.classes: list[str] | None = None
        self.columns: Columns | None = None

    def take(self, batch: Any) -> Batch:
        """Return one batch as arrays in the order of the model's inputs.

        Raises
        ------
        ValueError
            When an input is missing, there are too many, or a type or shape cannot be converted.
        """
        return tuple(self.convert(i, value) for i, value in enumerate(self.in_order(batch)))

    def in_order(self, batch: Any) -> list[Any]:
        """Return the values of a tuple or a dictionary in the order of the inputs.

        A pair may be the inputs, themselves a tuple or a dictionary, and the target, as data sets of PyTorch and Keras have them.
        """
        if WEIGHTS in self.names:
            batch = self._with_weights(batch)
        if isinstance(batch, Mapping):
            missing = [name for name in self.names if name not in batch]
            if missing:
                raise ValueError(
                    f"data: expected the inputs {', '.join(self.names)}, found no {', '.join(missing)} "
                    f"among {', '.join(map(str, batch))}"
                )
            return [batch[name] for name in self.names]
        values = list(batch) if isinstance(batch, (tuple, list)) else [batch]
        if len(values) == 2 and isinstance(values[0], Mapping) and self.names[-1] not in values[0]:
            return self.in_order({**values[0], self.names[-1]: values[1]})
        if len(values) == 2 and isinstance(values[0], tuple) and len(self.names) > 2:
            values = [*values[0], values[1]]
        if len(values) != len(self.names):
            raise ValueError(
                f"data: expected {counted(len(self.names), 'value')} ({', '.join(self.names)}), found {len(values)}"
            )
        return values

    def convert(self, i: int, value: Any) -> Array:
        """Return the value of input number ``i`` as an array of its type and shape, without a copy where possible."""
        form = self.forms[i]
        array = as_array(self._in_known_order(i, value), form.name)
        if form.has_classes and array.dtype.kind in "US":
            array = self._numbers_of(array, form)
        return fitted(array, form)

    def _with_weights(self, batch: Any) -> Any:
        """Return a batch with weights; without given weights, each row has the weight 1."""
        if isinstance(batch, Mapping):
            return batch if WEIGHTS in batch else {**batch, WEIGHTS: _ones(next(iter(batch.values())))}
        values = list(batch) if isinstance(batch, (tuple, list)) else [batch]
        if len(values) == 2 and isinstance(values[0], Mapping):
            return {**values[0], self.names[-1]: values[1], WEIGHTS: _ones(values[1])}
        if len(values) == 2 and isinstance(values[0], tuple):
            values = [*values[0], values[1]]
        if len(values) == len(self.names) - 1:
            values.insert(self.names.index(WEIGHTS), _ones(values[0]))
        return tuple(values)

    @property
    def features(self) -> list[str]:
        """The names of the inputs but for the target and the weights of rows."""
        return [form.name for form in self.forms if not form.is_target and form.name != WEIGHTS]

    def _is_only_input(self, i: int) -> bool:
        """Whether an input is the only one besides the target, so that the columns of a data frame are its elements."""
        return self.features == [self.forms[i].name]

    def _in_known_order(self, i: int, value: Any) -> Any:
        """Return a data frame with the columns that the model was trained on, in their order; other values unchanged."""
        if self.columns is None or not is_frame(value) or not self._is_only_input(i):
            return value
        labels = {str(label): label for label in value.columns}
        self.columns.check(list(labels), f"data: input {self.forms[i].name!r}")
        return value[[labels[name] for name in self.columns.features]]

    def learn_columns(self, values: Sequence[Any]) -> None:
        """Take over the names of the columns of a data frame in memory, unless they are known."""
        for i, value in enumerate(values):
            if self.columns is None and is_frame(value) and self._is_only_input(i):
                target = getattr(values[-1], "name", None) if len(values) > 1 else None
                self.columns = Columns(
                    tuple(map(str, value.columns)), None if target is None else str(target)
                )

    def learn_classes(self, value: Any) -> None:
        """Take over the names of the classes, in alphabetical order, from a target in memory, unless they are known."""
        if self.classes is None and self.forms[-1].has_classes:
            array = as_array(value, self.names[-1])
            if array.dtype.kind in "US":
                self.classes = [str(name) for name in np.unique(array)]

    def _numbers_of(self, array: Array, form: Form) -> Array:
        if self.classes is None:
            raise ValueError(
                f"data: input {form.name!r}: expected the numbers of classes, found names such as {str(array.ravel()[0])!r}; "
                "with data in batches, set the names first: trainer.classes = [...]"
            )
        numbers = {name: number for number, name in enumerate(self.classes)}
        names = array.ravel().tolist()
        unknown = next((row for row, name in enumerate(names) if name not in numbers), None)
        if unknown is not None:
            raise ValueError(
                f"data: input {form.name!r}: expected the classes {', '.join(self.classes[:20])}"
                f"{', ...' if len(self.classes) > 20 else ''}, found {names[unknown]!r} in {place_of_row(unknown)}"
                f"{did_you_mean(names[unknown], self.classes)}"
            )
        return np.array([numbers[name] for name in names], np.int64).reshape(array.shape)

    def of_frame(self, frame: Any) -> tuple[Any, Any]:
        """Return features and target of a data frame that has a column named like the target.

        Raises
        ------
        ValueError
            When it has no such column, or the model has several inputs.
        """
        columns = [str(name) for name in frame.columns]
        target = self.names[-1]
        if len(self.features) != 1 or target not in columns:
            raise ValueError(
                f"data: expected the inputs {', '.join(self.names)}, found a data frame with the columns "
                f"{', '.join(columns[:12])}{', ...' if len(columns) > 12 else ''}; "
                "pass features and target separately: fit(frame[features], frame[target])"
            )
        return frame[[name for name in frame.columns if str(name) != target]], frame[target]


def _ones(values: Any) -> Array:
    return np.ones(len(values), np.float32)


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

    columns: Sequence[Array] | None = None
    prefetch = 0  # selecting rows takes less time than passing a batch from one thread to another

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
            raise ValueError(
                f"data: expected at least one batch of {counted(batch_size, 'row')}, found {counted(count, 'row')}"
            )

    @property
    def last_rows(self) -> int:
        """The rows of the last batch of an epoch."""
        assert self.steps is not None
        return min(self.batch_size, self.count - (self.steps - 1) * self.batch_size)

    def example(self, epoch: int, first: int) -> Batch:
        """Return the batch of that number in an epoch, as train steps get it."""
        return next(self.batches(epoch, first))

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
    same batches in the same epoch. The epoch is passed to ``set_epoch`` of an iterable that has it, and to a
    function as its argument.
    """

    columns: Sequence[Array] | None = None
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

    columns: Sequence[Array] | None = None
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
        # batches before the position at which a run is resumed
        for _ in islice(self._data, max(0, start - self._used)):
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
    values = inputs.in_order(data)
    inputs.learn_classes(values[-1])
    inputs.learn_columns(values)
    columns = [inputs.convert(i, value) for i, value in enumerate(values)]
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
        A tuple of arrays or a dictionary of arrays by input name; a data frame; a Hugging Face dataset; any other iterable
        of batches; an iterator; or a function of the epoch that returns an iterable of batches.
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
    if is_frame(data):
        data = inputs.of_frame(data)
    if isinstance(data, (tuple, Mapping)):
        columns = columns_of(data, inputs)

        def take(chosen: Array) -> Batch:
            chosen = chosen if rows is None else rows[chosen]
            return tuple(column[chosen] for column in columns)

        count = (len(columns[0]) if columns else 0) if rows is None else len(rows)
        check_rows(inputs.forms[0], count, batch_size, drop_last)
        in_memory = Rows(count, take, batch_size, shuffle, seed, drop_last)
        in_memory.columns = columns
        return _limited(in_memory, steps)
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
        by_number = (
            hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, np.ndarray)
        )
        remedy = (
            "torch.utils.data.DataLoader(data, batch_size=32, shuffle=True) makes batches of a dataset of PyTorch"
            if by_number
            else "fit(x, y) and evaluate(x, y) take inputs and targets separately"
        )
        raise TypeError(
            "data: expected a tuple of arrays, a dictionary of arrays, an iterable of batches or a function that "
            f"returns one, found {type(data).__name__}; {remedy}"
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
    if is_frame(data):
        data = inputs.of_frame(data)
    if isinstance(data, (tuple, Mapping)):
        count = len(columns_of(data, inputs)[0])
    elif is_table(data):
        count = len(data)
    else:
        raise ValueError("validation: expected data with rows to take a share of, found batches")
    return split_rows(count, share, seed)


def split_rows(count: int, share: float, seed: int) -> tuple[Array, Array]:
    """Choose which of a number of rows are trained on and which are held out, as `split` does."""
    if not 0 < share < 1:
        raise ValueError(f"validation: expected a share above 0 and below 1, found {share}")
    held_out = round(count * share)
    if not 0 < held_out < count:
        raise ValueError(
            f"validation: a share of {share} of {counted(count, 'row')} leaves no row on one side"
        )
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
        except BaseException as error:  # any exception of the caller's iterable is passed on to the caller
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
