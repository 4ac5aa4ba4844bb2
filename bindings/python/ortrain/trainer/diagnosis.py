"""Says why a step failed, in terms of the data: which row, or that the loss grew."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._support.counts import agreeing, counted
from ortrain._support.places import DATA, VALIDATION, place_of_row
from ortrain.errors import OrtrainError

Array = npt.NDArray[Any]

_INDEX = re.compile(
    r"index -?\d+ at position (?P<position>\d+) of the indices(?: '(?P<indices>.*?)')? is outside "
    r"\[-(?P<count>\d+), -?\d+\](?:: '(?P<data>.*?)' has)?"
)
_LABEL = re.compile(r"label (-?\d+) at position (\d+) is not one of the (\d+) class(?:es)?")


def of_step(
    error: OrtrainError,
    names: Sequence[str],
    batch: Sequence[Array],
    columns: Sequence[Array] | None,
    *,
    is_validation: bool = False,
    classes: Sequence[str] | None = None,
) -> str | None:
    """Return what is wrong with the data of a step that failed; None if the error says it already.

    Parameters
    ----------
    error : OrtrainError
        What the step raised.
    names : sequence of str
        The inputs.
    batch : sequence of array
        The data of the step.
    columns : sequence of array, optional
        All data, if they are in memory.
    is_validation : bool, default False
        Whether these are the data for validation.
    classes : sequence of str, optional
        The names of the classes, in the order of their numbers.
    """
    if not batch:
        return None
    label = _LABEL.search(str(error))
    if label is None:
        index = _INDEX.search(str(error))
        return None if index is None else _of_index(index, names, batch, columns, is_validation)
    value, position, count = (int(text) for text in label.groups())
    labels = batch[-1]
    per_row = max(1, labels.size // max(1, len(labels)))
    place = f"row {position // per_row} of the batch"
    if columns is not None:
        rows = np.unique(np.nonzero(columns[-1] == value)[0])
        more = _more(len(rows) - 1, "it")
        place = f"{place_of_row(int(rows[0]), _whose(is_validation))}{more}" if len(rows) else place
    return (
        f"{_part(is_validation)}: input {names[-1]!r}: expected numbers of classes from 0 to {count - 1}, "
        f"found {value} in {place}. Labels start at 0; the model has {counted(count, 'score')} per row"
        + _named(classes, count)
    )


def _of_index(
    found: re.Match[str],
    names: Sequence[str],
    batch: Sequence[Array],
    columns: Sequence[Array] | None,
    is_validation: bool,
) -> str | None:
    """Return which input has an index beyond the rows of a table; None if the index does not come from an input."""
    position, count = int(found["position"]), int(found["count"])
    number = _source(position, count, found["indices"], names, batch)
    if number is None:
        return None
    array = batch[number] if columns is None else columns[number]
    wrong = (array < -count) | (array >= count)
    place = np.unravel_index(int(np.argmax(wrong)), array.shape)
    rows = np.unique(np.nonzero(wrong)[0])
    element = f" (element {[int(index) for index in place[1:]]})" if len(place) > 1 else ""
    row = int(place[0])
    where = f"row {row} of the batch" if columns is None else place_of_row(row, _whose(is_validation))
    table = f"the table {found['data']!r}" if found["data"] else "the table that it indexes"
    return (
        f"{_part(is_validation)}: input {names[number]!r}: expected numbers from 0 to {count - 1}, found {array[place]} in "
        f"{where}{element}{_more(len(rows) - 1, 'such values')}; {table} has {counted(count, 'row')}"
    )


def _source(
    position: int, count: int, indices: str | None, names: Sequence[str], batch: Sequence[Array]
) -> int | None:
    """Return the number of the input from which an index comes: the named one, or the one that is first wrong there."""
    if indices is not None and indices in names:
        return list(names).index(indices)
    fitting = [
        number
        for number, array in enumerate(batch)
        if array.dtype.kind in "iuf" and _first_beyond(array, count) == position
    ]
    return fitting[0] if len(fitting) == 1 else None


def _first_beyond(array: Array, count: int) -> int | None:
    """Return the position of the first value of an array that is not an index of a table with ``count`` rows."""
    wrong = ((array < -count) | (array >= count)).reshape(-1)
    return int(np.argmax(wrong)) if wrong.any() else None


def _whose(is_validation: bool) -> str:
    return VALIDATION if is_validation else DATA


def _part(is_validation: bool) -> str:
    return "validation" if is_validation else "data"


def _named(classes: Sequence[str] | None, count: int) -> str:
    """Return the names of classes if they are more than a model has scores for."""
    if classes is None or len(classes) <= count:
        return ""
    shown = f"{', '.join(classes[:20])}{', ...' if len(classes) > 20 else ''}"
    return f", and the data have {counted(len(classes), 'class')}: {shown}"


def of_gradients(
    losses: Sequence[float],
    rate: float,
    names: Sequence[str],
    batch: Sequence[Array],
    columns: Sequence[Array] | None,
) -> str:
    """Return why gradients are not finite: because of the data, or because the training diverges.

    Parameters
    ----------
    losses : sequence of float
        The losses of the last steps.
    rate : float
        The learning rate.
    names, batch, columns
        As in `of_step`.
    """
    found = not_finite(names, batch, columns)
    if found is not None:
        return f"{found}. Leave such rows out or fill them in"
    shown = ", ".join(f"{loss:.4g}" for loss in losses)
    largest = max(
        (
            (float(np.abs(array).max()), name)
            for name, array in zip(names, batch, strict=True)
            if _is_real(array)
        ),
        default=None,
    )
    inputs = (
        ""
        if largest is None or largest[0] < 100
        else f", inputs of a smaller scale ({largest[1]!r} has {largest[0]:.4g})"
    )
    state = (
        "the loss is not finite"
        if losses and not math.isfinite(losses[-1])
        else "the gradients are not finite"
    )
    return (
        f"{state}, and the data of the batch are: the training diverges. The last losses: {shown}. Try a lower learning "
        f"rate than {rate:.4g}, a warmup, clipped gradients (Trainer(..., clip=1.0), or `ortrain artifacts --clip 1.0`)"
        f"{inputs}"
    )


def not_finite(
    names: Sequence[str],
    batch: Sequence[Array],
    columns: Sequence[Array] | None,
    is_validation: bool = False,
) -> str | None:
    """Return which input has NaN or infinity, in which row; None if there is none."""
    for number, (name, part) in enumerate(zip(names, batch, strict=True)):
        if not _is_real(part) or np.isfinite(part).all():
            continue
        array = part if columns is None else columns[number]
        wrong = ~np.isfinite(array)
        place = np.unravel_index(int(np.argmax(wrong)), array.shape)
        rows = np.unique(np.nonzero(wrong)[0])
        value = "NaN" if np.isnan(array[place]) else "an infinity"
        element = f" (element {[int(index) for index in place[1:]]})" if len(place) > 1 else ""
        more = _more(len(rows) - 1, "such values")
        row = int(place[0])
        where = f"row {row} of the batch" if columns is None else place_of_row(row, _whose(is_validation))
        return f"{_part(is_validation)}: input {name!r} has {value} in {where}{element}{more}"
    return None


def _more(count: int, what: str) -> str:
    if count < 1:
        return ""
    return f", and {counted(count, 'more row')} {agreeing(count, 'has', 'have')} {what}"


def _is_real(array: Array) -> bool:
    return array.dtype.kind == "f" and array.size > 0 and array.ndim > 0
