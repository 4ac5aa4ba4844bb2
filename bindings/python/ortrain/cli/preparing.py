"""Preprocessing of data that a command reads: stored in the checkpoint or, in a first run, fitted to the training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._files.writing import copy_file
from ortrain._support.counts import agreeing, counted
from ortrain._support.places import Cells, lines_of, place_of_cell
from ortrain.cli.tables import Table, check_values
from ortrain.cli.wanted import Wanted
from ortrain.preprocessing import tables, text
from ortrain.preprocessing.cells import is_missing, text_of
from ortrain.preprocessing.pictures import ImagePreprocessing, Pictures, normalization_of, shape_of_size
from ortrain.trainer.columns import Columns

Array = npt.NDArray[Any]

MARK = "ortrain.preprocessing"
"""The metadata key of a model whose rows are preprocessed even if it could take raw rows."""

TARGETS = ("y", "labels", "label", "target", "targets")
_SCALES = 1000.0  # ratio of two columns' scales above which a network trains badly


def target_column(names: Sequence[str], target: str | None, wanted: str | None) -> str:
    """Return the column of a table that is the target: the named one, that of a usual name, or the last."""
    if target is not None:
        return target
    if wanted in names:
        return str(wanted)
    return next((name for name in names if name.lower() in TARGETS), names[-1])


def with_target(table: Table, column: str | None, remarks: list[str], path: Path) -> Table:
    """Return the rows of a table that have a target."""
    if column is None or column not in table.columns:
        return table
    cells = table.columns[column]
    known = [row for row, cell in enumerate(cells) if not is_missing(cell)]
    if len(known) == len(cells) or not known:
        return table
    left = len(cells) - len(known)
    remarks.append(
        f"{path}: {counted(left, 'row')} without a value in {column}, which is the target, "
        f"{'are' if left > 1 else 'is'} left out"
    )
    return replace(
        table,
        columns={name: _chosen(values, known) for name, values in table.columns.items()},
        weights=None if table.weights is None else [table.weights[row] for row in known],
    )


def _chosen(cells: list[Any], rows: list[int]) -> list[Any]:
    """Return the cells of some rows, with their lines."""
    lines = lines_of(cells)
    chosen = [cells[row] for row in rows]
    return chosen if lines is None else Cells(chosen, [lines[row] for row in rows])


def encoded(
    table: Table, wanted: Wanted, target: str | None, path: Path
) -> tuple[dict[str, Array], str | None, Table] | None:
    """Return the features of a table as arrays, the target column, and the rows that have one.

    None if the table is read without preprocessing.
    """
    stored, choice = wanted.preprocessing, wanted.choice
    if stored is not None:
        if stored["kind"] not in ("table", "text"):
            refuse_arrays(wanted, path)
            return None
        table, column = _as_trained(table, wanted, target, path)
        table = with_target(table, column, wanted.remarks, path)
        if stored["kind"] == "text":
            return _text(table, wanted, column, path), column, table
        plan = tables.TablePreprocessing.of_json(stored)
        wanted.remarks += _new_missing_cells(table, plan, path)
        return _rows(table, plan, wanted, path), column, table
    if choice is None or wanted.columns is not None or len(table.columns) < 2:
        return None
    column = target_column(list(table.columns), target, wanted.target)
    table = with_target(table, column, wanted.remarks, path)
    if choice.tokenizer is not None:
        return _text(table, wanted, column, path), column, table
    fitted = _fitted(table, wanted, column, path)
    if fitted is None:
        return None
    found = _rows(table, fitted, wanted, path)
    wanted.preprocessing = fitted.as_json()
    wanted.columns = Columns(tuple(each.name for each in fitted.columns), column)
    wanted.remarks.append(f"the columns are preprocessed: {fitted.shown()}")
    wanted.remarks += [f"the column {name} is left out: {why}" for name, why in fitted.left_out.items()]
    return found, column, table


def _new_missing_cells(table: Table, plan: tables.TablePreprocessing, path: Path) -> list[str]:
    """Return remarks on columns that have missing cells although those of the training had none."""
    remarks = []
    for column in plan.columns:
        if isinstance(column, tables.Category) or column.has_missing:
            continue
        missing = sum(map(is_missing, table.columns[column.name]))
        if missing:
            become = "the mean" if isinstance(column, tables.Number) else "no date"
            remarks.append(
                f"{path}: {counted(missing, 'cell')} of the column {column.name} {agreeing(missing, 'is', 'are')} missing, none "
                f"was in training; {agreeing(missing, 'it counts', 'they count')} as {become}"
            )
    return remarks


def columns_of(arrays: dict[str, Array], wanted: Wanted) -> Table | None:
    """Return arrays as a table if their names are those of the model's training columns, otherwise None."""
    stored, columns = wanted.preprocessing, wanted.columns
    if stored is None or columns is None or stored["kind"] not in ("table", "text"):
        return None
    if any(name not in arrays or arrays[name].ndim != 1 for name in columns.features):
        return None
    return Table({name: array.tolist() for name, array in arrays.items()})


def refuse_arrays(wanted: Wanted, path: Path) -> None:
    """Refuse rows that would reach the model without the preprocessing it was trained with.

    Raises
    ------
    ValueError
        When the model was trained on an encoded table, or on normalized pictures.
    """
    stored = wanted.preprocessing
    if stored is None:
        return
    if stored["kind"] == "table":
        names = [] if wanted.columns is None else wanted.columns.features
        raise ValueError(
            f"--data: the model was trained on the encoded columns of a table, and {path} does not show whether its rows are "
            f"encoded; expected CSV, Parquet, JSON lines, or NPZ with an array for each column: {', '.join(names[:12])}"
            f"{', ...' if len(names) > 12 else ''}"
        )
    if stored["kind"] == "image":
        normalization = ImagePreprocessing.of_json(stored)
        if set(normalization.mean) != {0.0} or set(normalization.deviation) != {1.0}:
            raise ValueError(
                f"--data: the model was trained on normalized pictures ({normalization.shown()}), and {path} does not show "
                f"whether its rows are normalized; expected a folder of images"
            )


def _rows(table: Table, plan: tables.TablePreprocessing, wanted: Wanted, path: Path) -> dict[str, Array]:
    """Return the encoded rows of a table in the shape that the model takes."""
    feature = wanted.features[0]
    shape = wanted.row_shape(feature)
    if shape is not None and int(np.prod(shape)) != plan.width:
        raise ValueError(
            f"--data: input {feature} takes {counted(int(np.prod(shape)), 'number')} per row; the columns of {path} become "
            f"{plan.width}: {plan.shown()}{_first_missing(table, plan)}; `ortrain new` makes a network for them, and "
            "--no-preprocess takes numbers as they are"
        )
    matrix = plan.encoded(table.columns, f"--data: {path}")
    return {feature: matrix if shape is None else matrix.reshape(-1, *shape)}


def _first_missing(table: Table, plan: tables.TablePreprocessing) -> str:
    """Return where a column of numbers or dates has a missing cell, for which there is another number; empty if none has."""
    for column in plan.columns:
        cells = table.columns[column.name]
        if not isinstance(column, tables.Category) and column.has_missing:
            row = next((row for row, cell in enumerate(cells) if is_missing(cell)), None)
            if row is not None:
                return f"; {column.name} has no value in {place_of_cell(cells, row)}"
    return ""


def _fitted(table: Table, wanted: Wanted, column: str | None, path: Path) -> tables.TablePreprocessing | None:
    """Return the preprocessing that the training rows need; None if they need none."""
    choice = wanted.choice
    assert choice is not None
    if choice.preprocess is False or len(wanted.features) != 1:
        return None
    features = {name: cells for name, cells in table.columns.items() if name != column}
    if any(cells and isinstance(cells[0], (list, dict)) for cells in features.values()):
        return None
    plan = tables.look_at(features, f"--data: {path}")
    for each in plan.columns:
        check_values(features[each.name], each.name, path)
    count = len(next(iter(features.values())))
    plan = plan.fitted(table.columns, choice.training_rows(count))
    if choice.preprocess or choice.standard or plan.is_needed:
        return plan
    scales = [each.deviation for each in plan.columns if isinstance(each, tables.Number)]
    if max(scales) > _SCALES * min(scales):
        wanted.remarks.append(
            f"the columns of {path} differ in scale, from {min(scales):.2g} to {max(scales):.2g}; --preprocess standardizes them"
        )
    return None


def _as_trained(table: Table, wanted: Wanted, target: str | None, path: Path) -> tuple[Table, str | None]:
    """Return a table with the columns of the training, and the name of the target.

    Raises
    ------
    ValueError
        When a column is missing or unknown.
    """
    stored, columns = wanted.preprocessing, wanted.columns
    assert stored is not None
    assert columns is not None
    left_out = stored.get("left_out", {})
    if not table.has_names and not set(columns.features) <= set(table.columns):
        names = [*columns.features, columns.target or "target"]
        extra = len(table.columns) - len(columns.features)
        if left_out or extra not in (0, 1):
            raise ValueError(
                f"--data: expected a first line with the names of the columns in {path}, because the model was trained on "
                f"the columns {', '.join(columns.features[:12])}"
            )
        return Table(dict(zip(names, table.columns.values(), strict=False))), names[-1] if extra else None
    kept = {name: cells for name, cells in table.columns.items() if name not in left_out}
    if stored["kind"] == "table":
        columns.check(list(kept), f"--data: {path}", target or wanted.target)
        _remark_on_categories(kept, stored, wanted)
    column = target or next((name for name in (columns.target, wanted.target) if name in kept), None)
    if wanted.target is not None and column is None:
        raise ValueError(
            f"--data: {path} has no column {columns.target or wanted.target}, which is the target; --target names another one"
        )
    return replace(table, columns=kept), column


def _remark_on_categories(table: dict[str, list[Any]], stored: dict[str, Any], wanted: Wanted) -> None:
    """Report categories that the training rows do not have."""
    unknown = [
        f"{each.name} {new[0]!r:.40}{f' and {len(new) - 1} more' if len(new) > 1 else ''}"
        for each in tables.TablePreprocessing.of_json(stored).columns
        if isinstance(each, tables.Category)
        and (new := sorted({text_of(cell) for cell in table[each.name]} - {*each.categories, ""}))
    ]
    if unknown:
        wanted.remarks.append(
            f"categories that the training rows do not have count as none: {', '.join(unknown)}"
        )


def _text(table: Table, wanted: Wanted, column: str | None, path: Path) -> dict[str, Array]:
    """Return the tokens of the column of text."""
    stored, choice = wanted.preprocessing, wanted.choice
    features = {name: cells for name, cells in table.columns.items() if name != column}
    if stored is None:
        assert choice is not None
        assert choice.tokenizer is not None
        tokenizer = text.Tokenizer(choice.tokenizer)
        name = text_column(features, path)
        texts = [text_of(cell) for cell in features[name]]
        shape = wanted.row_shape(wanted.features[0])
        length = (
            shape[0]
            if shape
            else tokenizer.length_of([texts[row] for row in choice.training_rows(len(texts))])
        )
        plan = text.TextPreprocessing(name, length, tokenizer.digest)
        if choice.tokenizer.resolve() != (choice.folder / text.FILE).resolve():
            copy_file(choice.tokenizer, choice.folder / text.FILE, "tokenizer")
        wanted.preprocessing = plan.as_json()
        wanted.columns = Columns((name,), column)
        wanted.remarks.append(f"the text is the column {name}, {counted(length, 'token')} per row")
    else:
        plan = text.TextPreprocessing.of_json(stored)
        assert wanted.folder is not None
        tokenizer = text.Tokenizer(wanted.folder / text.FILE)
        if tokenizer.digest != plan.digest:
            raise ValueError(
                f"expected the tokenizer that the model was trained with in {wanted.folder / text.FILE}, found another one"
            )
        if plan.column not in features:
            raise ValueError(
                f"--data: expected the column {plan.column} in {path}, found {', '.join(table.columns)}"
            )
        texts = [text_of(cell) for cell in features[plan.column]]
    return tokenizer.tokens_of(texts, plan.length, wanted.features)


def text_column(features: dict[str, list[Any]], path: Path) -> str:
    """Return the column with the longest texts."""
    lengths = {
        name: sum(len(cell) for cell in cells if isinstance(cell, str)) for name, cells in features.items()
    }
    longest = max(lengths, key=lambda name: lengths[name], default=None)
    if longest is None or not lengths[longest]:
        raise ValueError(f"--data: expected a column of text beside the target in {path}, found none")
    return longest


def picture_shape(wanted: Wanted, feature: str) -> list[int]:
    """Return the shape of a picture in an input of the model; empty if the model leaves it free and no size is given.

    Raises
    ------
    ValueError
        When the given size is not that of the model, or that of the training.
    """
    stored, choice = wanted.preprocessing, wanted.choice
    size = None if choice is None else choice.size
    if stored is not None and stored["kind"] == "image":
        trained = ImagePreprocessing.of_json(stored).size
        if size is not None and trained is not None and size != trained:
            raise ValueError(
                f"--size: expected {trained[0]}x{trained[1]}, the size that the model was trained with, found {size[0]}x{size[1]}"
            )
        size = trained if trained is not None else size
    dims = [dim if isinstance(dim, int) else None for dim in wanted.shapes[wanted.names.index(feature)][1:]]
    shape = dims if size is None else shape_of_size(dims, size)
    known = [dim for dim in shape if dim is not None]
    if len(known) < len(shape):
        return []
    if size is not None and list(size) not in (known[:2], known[1:]):
        raise ValueError(f"--size: the model takes pictures of shape {known}, found {size[0]}x{size[1]}")
    return known


def normalize(pictures: Pictures, wanted: Wanted) -> None:
    """Set the normalization of pictures: that of the checkpoint, or the one that the user wants."""
    stored, choice = wanted.preprocessing, wanted.choice
    if stored is not None:
        if stored["kind"] == "image":
            pictures.normalization = ImagePreprocessing.of_json(stored)
        return
    if choice is None:
        return
    kind = choice.normalize or ("measured" if choice.standard else "none")
    if kind == "measured":
        pictures.normalization = pictures.measured(choice.training_rows(len(pictures)))
    else:
        pictures.normalization = normalization_of(kind, pictures.channels)
    if choice.size is not None:
        pictures.normalization = replace(pictures.normalization, size=choice.size)
    if kind != "none":
        wanted.remarks.append(f"the pictures are normalized ({kind}): {pictures.normalization.shown()}")
    wanted.preprocessing = pictures.normalization.as_json()
