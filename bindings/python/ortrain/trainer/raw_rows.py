"""Preprocessing of raw rows in memory, with the settings that a model's checkpoint stores.

The command line fits the preprocessing and stores it. Here data frames, columns by name, texts and the bytes of
pictures are preprocessed in the same way. Other arrays may be preprocessed already. An array does not show that, so the trainer
warns.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain.preprocessing import text
from ortrain.preprocessing.pictures import ImagePreprocessing
from ortrain.preprocessing.tables import TablePreprocessing
from ortrain.trainer.checks import is_frame
from ortrain.trainer.columns import Columns
from ortrain.trainer.data import Inputs
from ortrain.trainer.weighting import WEIGHTS

Array = npt.NDArray[Any]


class RawRows:
    """Applies the preprocessing of a checkpoint to data in memory.

    Parameters
    ----------
    stored : dict
        The preprocessing, as a checkpoint has it.
    columns : Columns or None
        The columns of the table that the model was trained on.
    inputs : Inputs
        The inputs of the training model.
    folder : Path
        The folder of artifacts, which has the tokenizer of text.
    """

    def __init__(self, stored: dict[str, Any], columns: Columns | None, inputs: Inputs, folder: Path) -> None:
        self._stored, self._columns, self._inputs, self._folder = stored, columns, inputs, folder
        features = [name for name in inputs.names if name != WEIGHTS]
        self._features = features[:-1] if len(features) > 1 else features
        self._target = features[-1] if len(features) > 1 else None

    def prepared(self, data: Any) -> Any:
        """Return data with preprocessed rows.

        Parameters
        ----------
        data : object
            What a trainer takes.

        Returns
        -------
        object
            The data by the names of the inputs; the given data if they are, or may be, preprocessed already.

        Raises
        ------
        ValueError
            When a column is missing or unknown, or a cell has another kind of value than in training.
        """
        if isinstance(data, tuple) and data and self._is_raw(data[0]):
            rest = dict(zip(self._inputs.names[len(self._features) :], data[1:], strict=False))
            return {**self._rows_of(data[0]), **rest}
        if self._is_raw(data):
            return self._rows_of(data)
        if isinstance(data, Mapping) and isinstance(self._bytes_of(data), Mapping):
            return self._bytes_of(data)
        if not isinstance(data, Mapping):
            return self._arrays(data)
        return data

    def _is_raw(self, data: Any) -> bool:
        """Whether data are columns by name, or texts."""
        kind = self._stored["kind"]
        if kind == "text" and self._texts_of(data) is not None:
            return True
        if kind not in ("table", "text") or not (is_frame(data) or isinstance(data, Mapping)):
            return False
        if isinstance(data, Mapping) and any(name in data for name in self._features):
            # An input may have the name of a column, but its values are rows instead of single numbers.
            return bool(self._known) and all(
                name in data and np.ndim(data[name]) == 1 for name in self._known
            )
        return True

    @property
    def _known(self) -> tuple[str, ...]:
        return () if self._columns is None else self._columns.features

    @staticmethod
    def _texts_of(data: Any) -> list[str] | None:
        """Return a list, an array or a column of texts as a list; None for other data."""
        if is_frame(data) or isinstance(data, (Mapping, tuple)):
            return None
        values = data.tolist() if hasattr(data, "tolist") else data
        return values if isinstance(values, list) and values and isinstance(values[0], str) else None

    def _rows_of(self, data: Any) -> dict[str, Any]:
        """Return the inputs made from columns by name, with the target and the weights if the columns include these."""
        if self._stored["kind"] == "text":
            return self._tokens(data)
        plan = TablePreprocessing.of_json(self._stored)
        table = {
            str(name): np.asarray(data[name]).tolist()
            for name in (data.columns if is_frame(data) else data)
            if str(name) not in plan.left_out
        }
        known = (
            Columns(tuple(column.name for column in plan.columns)) if self._columns is None else self._columns
        )
        target = next((name for name in (known.target, self._target) if name in table), None)
        known.check([name for name in table if name != WEIGHTS], "data", target)
        matrix = plan.encoded(table, "data")
        shape = self._inputs.forms[self._inputs.names.index(self._features[0])].shape
        fixed = None if shape is None else shape[1:]
        if fixed is not None and all(isinstance(dim, int) for dim in fixed):
            matrix = matrix.reshape(len(matrix), *fixed)
        return {self._features[0]: matrix, **self._others(table, target, known.weight)}

    def _tokens(self, data: Any) -> dict[str, Any]:
        plan = text.TextPreprocessing.of_json(self._stored)
        texts = self._texts_of(data)
        others: dict[str, Any] = {}
        if texts is None:
            names = list(data.columns) if is_frame(data) else list(data)
            if plan.column not in names:
                raise ValueError(
                    f"data: expected the column {plan.column}, which has the text, found {', '.join(map(str, names[:12]))}"
                )
            texts = list(data[plan.column])
            table = {str(name): data[name] for name in names}
            target = None if self._columns is None else self._columns.target
            others = self._others(
                table, next((name for name in (target, self._target) if name in table), None), None
            )
        tokenizer = text.Tokenizer(self._folder / text.FILE)
        if tokenizer.digest != plan.digest:
            raise ValueError(
                f"data: expected the tokenizer that the model was trained with in {self._folder / text.FILE}, found another one"
            )
        return {**tokenizer.tokens_of(texts, plan.length, self._features), **others}

    def _others(self, table: dict[str, Any], target: str | None, weight: str | None) -> dict[str, Any]:
        """Return the target and the weights of a table by the names of the inputs."""
        found = {} if target is None or self._target is None else {self._target: np.asarray(table[target])}
        weight = next((name for name in (weight, WEIGHTS) if name is not None and name in table), None)
        if weight is not None and WEIGHTS in self._inputs.names:
            found[WEIGHTS] = np.asarray(table[weight])
        return found

    def _arrays(self, data: Any) -> Any:
        """Return arrays: bytes of pictures normalized, others unchanged, with a warning if they may need preprocessing."""
        kind = self._stored["kind"]
        if kind == "image":
            found = self._bytes_of(data)
            normalization = ImagePreprocessing.of_json(self._stored)
            is_plain = set(normalization.mean) == {0.0} and set(normalization.deviation) == {1.0}
            array = data[0] if isinstance(data, tuple) and data else data
            if found is data and hasattr(array, "dtype") and not is_plain:
                self._warn(
                    f"pictures that are normalized ({normalization.shown()})",
                    "Bytes (uint8) are normalized",
                )
            return found
        if kind == "table":
            shown = ", ".join(self._known[:12]) + (", ..." if len(self._known) > 12 else "")
            self._warn("the encoded columns of a table", f"A data frame with the columns {shown} is encoded")
        return data

    def _warn(self, trained_on: str, instead: str) -> None:
        warnings.warn(
            f"the model was trained on {trained_on}, and an array does not show whether its rows are like that; they are used "
            f"unchanged. {instead} as by `ortrain predict`; {{{self._features[0]!r}: rows}} says that rows need no preprocessing",
            UserWarning,
            stacklevel=6,  # the warning names the line that called the trainer
        )

    def _bytes_of(self, data: Any) -> Any:
        """Return data with the bytes of pictures scaled and normalized; the same object if there are none."""
        if self._stored["kind"] != "image":
            return data
        if isinstance(data, Mapping):
            name = self._features[0]
            found = self._normalized(data.get(name))
            return data if found is None else {**data, name: found}
        if isinstance(data, tuple):
            found = self._normalized(data[0]) if data else None
            return data if found is None else (found, *data[1:])
        found = self._normalized(data)
        return data if found is None else found

    def _normalized(self, pixels: Any) -> Array | None:
        """Return normalized numbers for bytes of pictures in the shape that the model takes; None for other values."""
        form = self._inputs.forms[self._inputs.names.index(self._features[0])]
        row = list(form.shape[1:]) if form.shape is not None else []
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or list(pixels.shape[1:]) != row:
            return None
        plan = ImagePreprocessing.of_json(self._stored)
        channels = len(plan.mean)
        axis = next((axis for axis in (0, -1) if len(row) == 3 and row[axis] == channels), None)
        shape = [1] * len(row)
        if axis is not None:
            shape[axis] = channels
        mean, deviation = (
            np.reshape(np.array(each, np.float32), shape) for each in (plan.mean, plan.deviation)
        )
        found: Array = (pixels.astype(np.float32) / np.float32(255) - mean) / deviation
        return found
