"""Conversion of users' values to arrays that a model takes. Values with an ambiguous conversion are rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._support.counts import agreeing, counted
from ortrain._support.places import place_of_row
from ortrain._support.values import to_array

Array = npt.NDArray[Any]
Shape = Sequence[int | str | None]


@dataclass(frozen=True)
class Form:
    """The form that a model requires of one of its inputs.

    Parameters
    ----------
    name : str
        The input.
    dtype : numpy.dtype or None
        Its type; None if any is accepted.
    shape : sequence or None
        Its declared shape, whose free dimensions are a name or None; None if the shape is not known.
    is_target : bool
        Whether it is what the loss compares with.
    """

    name: str
    dtype: np.dtype[Any] | None
    shape: Shape | None = None
    is_target: bool = False

    @property
    def takes_classes(self) -> bool:
        """Whether it takes the numbers of classes."""
        return self.is_target and self.dtype is not None and self.dtype.kind in "iu"

    @property
    def class_count(self) -> int | None:
        """The number of classes, if it takes a floating-point number for each class, as soft cross entropy does."""
        if not self.is_target or self.dtype is None or self.dtype.kind != "f" or self.shape is None:
            return None
        count = self.shape[1] if len(self.shape) == 2 else None
        return count if isinstance(count, int) and count > 1 else None

    @property
    def has_classes(self) -> bool:
        """Whether it takes classes, by their number or as a number for each class."""
        return self.takes_classes or self.class_count is not None

    def shown(self) -> str:
        """Return type and shape as in ``float32 [batch, 3]``."""
        return f"{self.dtype} {self.shown_shape()}" if self.shape is not None else str(self.dtype)

    def shown_shape(self) -> str:
        """Return the shape as in ``[batch, 3]``."""
        return f"[{', '.join('?' if dim is None else str(dim) for dim in self.shape or ())}]"


def is_frame(value: Any) -> bool:
    """Whether a value is a data frame, of pandas or polars."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy")


def is_rows(value: Any, form: Form) -> bool:
    """Whether a list has rows of numbers for an input, rather than batches."""
    if not isinstance(value, list) or not value or isinstance(value[0], (tuple, dict)):
        return False
    try:
        array = np.asarray(value)
    except (ValueError, TypeError):
        return False
    return array.dtype.kind in "biuf" and (form.shape is None or array.ndim <= len(form.shape))


def as_array(value: Any, name: str) -> Array:
    """Return a user's value for an input as an array. The value may be a list, a data frame or a column.

    Raises
    ------
    ValueError
        When a list has rows of several shapes, or a column of a frame has values other than numbers.
    TypeError
        When the value is of no such kind.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (list, tuple)):
        try:
            return np.asarray(value)
        except ValueError as error:
            raise ValueError(
                f"data: input {name!r}: expected rows of one shape, found a list: {error}"
            ) from error
    if is_frame(value):
        return _of_frame(value, name)
    if hasattr(value, "to_numpy"):
        return _numbers_or_text(value.to_numpy(), f"input {name!r}")
    return to_array(value)


def _of_frame(frame: Any, name: str) -> Array:
    columns = []
    for number, label in enumerate(frame.columns):
        column = frame.iloc[:, number] if hasattr(frame, "iloc") else frame[label]
        array = _numbers_or_text(column.to_numpy(), f"column {label!r} of input {name!r}")
        if array.dtype.kind not in "biuf" and len(frame.columns) > 1:
            raise ValueError(
                f"data: input {name!r}: expected numbers in the columns of the data frame, found {array.dtype.type.__name__} "
                f"({array[0]!r:.40}) in column {label!r}; leave it out or encode it as numbers (pandas.get_dummies)"
            )
        columns.append(array)
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def _numbers_or_text(array: Array, what: str) -> Array:
    """Convert an array of objects, such as a column of pandas, to an array of numbers or text."""
    if array.dtype.kind != "O":
        return array
    values = array.ravel().tolist()
    if all(isinstance(value, str) for value in values):
        return np.array(values, dtype=str).reshape(array.shape)
    try:
        return np.array([np.nan if value is None else float(value) for value in values]).reshape(array.shape)
    except (TypeError, ValueError):
        wrong = next(number for number, value in enumerate(values) if not isinstance(value, (int, float)))
        raise ValueError(
            f"data: {what}: expected numbers, found {values[wrong]!r:.40} in row {wrong}"
        ) from None


def fitted(array: Array, form: Form) -> Array:
    """Return an array in the type and shape that an input takes.

    As the input requires, dimensions of 1 are added or removed, rows of numbers become images with one channel, one-hot
    rows become class numbers, and class numbers become one-hot rows.

    Raises
    ------
    ValueError
        When the type or the shape is another.
    """
    if form.takes_classes and (array.dtype.kind == "f" or _has_scores(array, form)):
        array = _classes(array, form)
    if form.class_count is not None and array.ndim and array.size == len(array) and _are_whole(array):
        array = _one_hot(array.reshape(-1), form)
    check_pixels(array, form)
    return _typed(_shaped(array, form), form)


def _typed(array: Array, form: Form) -> Array:
    wanted = form.dtype
    if wanted is None or array.dtype == wanted:
        return np.ascontiguousarray(array) if array.ndim else array
    if wanted.kind in "biuf" and not np.can_cast(array.dtype, wanted, "same_kind"):
        text = array.dtype.kind in "US"
        remedy = "; encode it as numbers" if text else ""
        raise ValueError(
            f"data: input {form.name!r}: expected {wanted}, found {'text' if text else array.dtype}{remedy}"
        )
    converted = array.astype(wanted, order="C")
    if wanted.kind in "iu" and array.dtype.itemsize > wanted.itemsize and (converted != array).any():
        raise ValueError(
            f"data: input {form.name!r}: expected values that {wanted} can represent, found {array.dtype} "
            f"from {array.min()} to {array.max()}"
        )
    return converted


def _are_whole(array: Array) -> bool:
    """Whether all numbers of an array are whole, whatever their type."""
    return array.dtype.kind in "biu" or (
        array.dtype.kind == "f" and bool((np.isfinite(array) & (array == np.round(array))).all())
    )


def _has_scores(array: Array, form: Form) -> bool:
    """Whether labels have one more dimension than the input, as one-hot labels do."""
    return (
        form.shape is not None
        and array.ndim == len(form.shape) + 1
        and array.ndim == 2
        and array.shape[1] > 1
    )


def _classes(array: Array, form: Form) -> Array:
    """Return the indices of classes that are given as floating-point numbers or one-hot."""
    if _has_scores(array, form) and array.dtype.kind in "biuf":
        if not (((array == 0) | (array == 1)).all() and (array.sum(axis=1) == 1).all()):
            raise ValueError(
                f"data: input {form.name!r}: expected the number of the class of each row, shape {form.shown_shape()}, found "
                f"{array.dtype} of shape {array.shape}, which is not one-hot either; y.argmax(axis=1) takes the class with "
                "the largest value"
            )
        return np.asarray(array.argmax(axis=1))
    if array.dtype.kind == "f":
        whole = np.isfinite(array) & (array == np.round(array))
        if not whole.all():
            place = np.unravel_index(int(np.argmin(whole)), array.shape)
            raise ValueError(
                f"data: input {form.name!r}: expected {form.dtype}, the numbers of classes, found {array.dtype} with "
                f"{array[place]} in {place_of_row(int(place[0]) if place else 0)}"
            )
    return array.astype(np.int64)


def _one_hot(classes: Array, form: Form) -> Array:
    """Return a one-hot row for each index of a class."""
    count = form.class_count
    assert count is not None
    wrong = (classes < 0) | (classes >= count)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"data: input {form.name!r}: expected {form.shown()}, or the numbers of classes from 0 to {count - 1}, found "
            f"{classes[row]} in {place_of_row(row)}"
        )
    return np.eye(count, dtype=form.dtype)[classes.astype(np.int64)]


def _shaped(array: Array, form: Form) -> Array:
    """Return an array in the declared shape, if its rows have the same elements in another shape."""
    if form.shape is None or not array.ndim:
        return array
    wanted, found = list(form.shape[1:]), list(array.shape[1:])
    if _agree(wanted, found):
        return array
    if _agree(_without_ones(wanted), _without_ones(found)):
        return _reshaped(array, wanted)
    if len(found) == 1 and len(_without_ones(wanted)) == 2 and _size(wanted) == found[0]:
        # images with one channel, given without the dimension of the channel
        return array.reshape(-1, *wanted)
    if not form.is_target and _agree(wanted, list(array.shape)):
        raise ValueError(
            f"data: input {form.name!r}: expected rows, {form.shown()}, found the shape {array.shape}, which is one row; "
            "x[None] makes a batch of it"
        )
    remedy = _remedy_of_classes(form, array) or _remedy(wanted, array)
    raise ValueError(
        f"data: input {form.name!r}: expected {form.shown()}, found the shape {array.shape}{remedy}"
    )


def _reshaped(array: Array, wanted: list[int | str | None]) -> Array:
    kept = iter(_without_ones(array.shape[1:]))
    return array.reshape(len(array), *(1 if dim == 1 else next(kept) for dim in wanted))


def _agree(wanted: Sequence[int | str | None], found: Sequence[int | str | None]) -> bool:
    """Whether dimensions are equal to the declared ones, where these are numbers."""
    return len(wanted) == len(found) and all(
        not isinstance(dim, int) or dim == actual for dim, actual in zip(wanted, found, strict=True)
    )


def _without_ones(dims: Sequence[int | str | None]) -> list[int | str | None]:
    return [dim for dim in dims if dim != 1]


def _size(dims: Sequence[int | str | None]) -> int | None:
    sizes = [dim for dim in dims if isinstance(dim, int)]
    return int(np.prod(sizes)) if len(sizes) == len(dims) else None


def _remedy_of_classes(form: Form, array: Array) -> str:
    """Return a hint for models with scores for each position, whose classes may be in the last dimension."""
    if form.takes_classes and array.size == len(array) and len(form.shape or ()) > 1:
        return (
            ", one class per row: the model computes scores for each position of a row, and the loss takes a class for each "
            "position. For one class per row, append the mean over the positions (ReduceMean with keepdims=0) to the scores of "
            "the model and create new artifacts, or give a class for each position"
        )
    if not form.takes_classes or array.ndim < 2 or len(form.shape or ()) != array.ndim:
        return ""
    return (
        ": the loss takes the classes from dimension 1 of the scores. If the model has them in the last dimension, as "
        "language models do, use loss=ortrain.onnxblock.loss.CrossEntropyLoss(axis=-1), or `ortrain artifacts --classes-last`"
    )


def _remedy(wanted: list[int | str | None], array: Array) -> str:
    """Return a hint how to convert an array to the wanted shape; empty unless the case is known."""
    found = list(array.shape[1:])
    if len(wanted) == 3 and len(found) == 3:
        for order, name in (((2, 0, 1), "last"), ((1, 2, 0), "first")):
            moved = [found[axis] for axis in order]
            channels = moved[0] if name == "last" else moved[2]
            if channels in (1, 3, 4) and _agree(wanted, moved):
                axes = ", ".join(str(axis + 1) for axis in order)
                return f": its channels come {name}; x.transpose(0, {axes}) moves them"
    if len(found) == 1 and _size(wanted) == found[0]:
        shape = ", ".join(map(str, wanted))
        return f"; x.reshape(-1, {shape}) is right if the values are in this order"
    return ""


def check_pixels(array: Array, form: Form) -> None:
    """Reject bytes for an input of floating-point numbers: their scale is not known.

    Raises
    ------
    ValueError
        When there is a value above 1.
    """
    if (
        array.dtype != np.uint8
        or form.dtype is None
        or form.dtype.kind != "f"
        or not array.size
        or array.max() <= 1
    ):
        return
    raise ValueError(
        f"data: input {form.name!r}: expected {form.dtype}, found uint8 up to {array.max()}, whose scale the model does not "
        "state; x.astype(np.float32) / 255 scales pixels to [0, 1], x.astype(np.float32) does not scale"
    )


def check_rows(form: Form, count: int, batch_size: int, drop_last: bool) -> None:
    """Reject a batch size other than the fixed one of a model.

    Raises
    ------
    ValueError
        When a batch would have another number of rows.
    """
    fixed = form.shape[0] if form.shape else None
    if not isinstance(fixed, int) or (batch_size == fixed and (drop_last or count % fixed == 0)):
        return
    other = 'or artifacts for any batch size: Trainer(model, batch="dynamic") or ortrain artifacts MODEL --batch dynamic'
    exported = (
        f"batch_size: the model was exported for batches of exactly {counted(fixed, 'row')} (input {form.name!r}, "
        f"{form.shown()})"
    )
    if batch_size == fixed:
        left = counted(count % fixed, "row")
        raise ValueError(
            f"{exported}, found {counted(count, 'row')}, which {agreeing(count, 'leaves', 'leave')} a batch of {left}. Use other "
            f"data, fit(drop_last=True), which leaves out the last rows of each epoch, {other}"
        )
    raise ValueError(
        f"{exported}, found batch_size={batch_size}. Use batch_size={fixed} (--batch {fixed} on the command line), {other}"
    )
