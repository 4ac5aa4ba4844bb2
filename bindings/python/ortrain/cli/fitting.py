"""A network that fits data: the contents of a file, and the network for them. Making a network needs onnx."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._files.reading import check_file, explained, open_file, read_npy, read_npz
from ortrain._support.counts import counted
from ortrain.cli import preparing
from ortrain.cli.datasets import class_folders, images_in, numbers_of
from ortrain.cli.tables import Table, package, read_table
from ortrain.preprocessing import tables, text
from ortrain.preprocessing.cells import is_missing, text_of

Array = npt.NDArray[Any]

NETWORKS = {
    "mlp": "rows of numbers",
    "cnn": "images",
    "resnet": "images",
    "gru": "sequences of rows of numbers",
    "transformer": "rows of token numbers",
}
_LARGEST_CLASS, _MOST_CLASSES = (
    50,
    20,
)  # whole numbers up to 50 of which there are at most 20 are classes by default
_LARGEST = 64  # pixels of the longer side of images unless the user says otherwise


@dataclass(frozen=True)
class Found:
    """The contents of data.

    Parameters
    ----------
    input : str
        The name of the network's input. The data are read by this name.
    row : tuple of int
        The shape of a row.
    tokens : int or None
        One more than the largest value, if the rows are whole numbers of 0 or more.
    outputs : int
        The number of values that a network returns for a row: scores of classes, or targets.
    classes : bool
        Whether the target is a class.
    """

    input: str
    row: tuple[int, ...]
    tokens: int | None
    outputs: int
    classes: bool
    center: float = 0.0
    """The mean of the numbers to predict."""
    scale: float = 1.0
    """The standard deviation of the numbers to predict."""
    note: str = ""
    """Why the whole numbers of the target count as classes, or as numbers to predict."""
    rows: int = 0
    """The number of rows with a target; 0 for a folder of images."""

    @property
    def loss(self) -> str:
        """The loss that fits the target."""
        return "cross_entropy" if self.classes else "mse"

    def shown(self) -> str:
        """Return what the data have, as in ``4 numbers a row, 3 classes``."""
        row = (
            f"{counted(self.row[0], 'number')} a row"
            if len(self.row) == 1
            else f"rows of shape {list(self.row)}"
        )
        wanted = counted(self.outputs, "class" if self.classes else "number")
        return f"{row}, {wanted}" if self.classes else f"{row}, {wanted} to predict"


def look_at(
    path: Path,
    target: str | None,
    header: bool | None,
    task: str | None,
    size: int | None,
    tokenizer: Path | None = None,
    weight: str | None = None,
) -> Found:
    """Return what a file or folder has.

    Parameters
    ----------
    path : Path
        A folder of images by class, a table, or an NPZ or NPY file.
    target : str, optional
        The column or array that is the target.
    header : bool, optional
        Whether the first line of a CSV file has names.
    task : {"classes", "numbers"}, optional
        What the target is. By default, text is classes, and so are at most 20 different whole numbers from 0 to 50.
    size : int, optional
        Height and width of images.
    tokenizer : Path, optional
        The tokenizer of text.
    weight : str, optional
        The column or array with the weights of the rows, which the network does not get.

    Raises
    ------
    ValueError
        When the data are of no such kind.
    FileNotFoundError
        When there is nothing at the path.
    """
    if not path.exists():
        raise FileNotFoundError(f"--data: there is no file or folder {path}")
    if path.is_dir():
        return _folder(path, size)
    check_file(path, "--data")
    if path.suffix.lower() == ".npz":
        arrays = read_npz(path, "--data")
        arrays = {name: array for name, array in arrays.items() if name != weight}
        return _arrays(arrays, target, task, path)
    if path.suffix.lower() == ".npy":
        array = read_npy(path, "--data")
        if array.ndim != 2 or array.shape[1] < 2:
            raise ValueError(
                f"--data: expected rows with the target in the last column in {path}, found {array.shape}"
            )
        return _of(array[:, :-1], array[:, -1], "features", task)
    table = read_table(path, header)
    if table is None:
        raise ValueError(
            f"--data: expected NPZ, NPY, CSV, Parquet, JSON lines or a folder of images, found {path}"
        )
    if not table.columns or not next(iter(table.columns.values())):
        raise ValueError(
            f"--data: expected rows in {path}, found {'names of columns only' if table.columns else 'an empty file'}"
        )
    table = replace(table, columns={name: cells for name, cells in table.columns.items() if name != weight})
    names = list(table.columns)
    if target is not None and target not in names:
        raise ValueError(f"--target: {path} has no column {target}, it has {', '.join(names)}")
    column = preparing.target_column(names, target, None)
    table = preparing.with_target(table, column, [], path)
    arrays = arrays_in(table, path)
    if arrays:
        return _arrays(arrays, column, task, path)
    features = {name: cells for name, cells in table.columns.items() if name != column}
    if not features:
        raise ValueError(f"--data: expected features beside the target {column} in {path}, found none")
    targets = np.asarray([cell for cell in table.columns[column] if not is_missing(cell)])
    if len(targets) > 1 and len(np.unique(targets)) == 1:
        raise ValueError(
            f"--data: expected different values in the column {column} of {path}, which is the target, found "
            f"{str(targets[0])!r:.60} in all {counted(len(targets), 'row')}; --target names another column"
        )
    if tokenizer is not None:
        return _of_text(features, targets, task, tokenizer, path)
    plan = tables.look_at(features, f"--data: {path}")
    return _of(np.zeros((1, plan.width)), targets, "features", task)


def arrays_in(table: Table, path: Path) -> dict[str, Array]:
    """Return the columns of a table as arrays, if some of them are lists, as JSON lines may have them; otherwise none.

    Raises
    ------
    ValueError
        When the lists of a column differ in shape, or have values other than numbers.
    """
    is_list = {name: bool(cells) and isinstance(cells[0], list) for name, cells in table.columns.items()}
    if not any(is_list.values()):
        return {}
    return {
        name: numbers_of(cells, name, path) if is_list[name] else np.asarray(cells)
        for name, cells in table.columns.items()
    }


def _of_text(
    features: dict[str, list[Any]], targets: Array, task: str | None, tokenizer: Path, path: Path
) -> Found:
    """Return the description of data that are rows of tokens."""
    made = text.Tokenizer(tokenizer)
    texts = [text_of(cell) for cell in features[preparing.text_column(features, path)]]
    found = _of(np.zeros((1, made.length_of(texts))), targets, "input_ids", task)
    return replace(found, tokens=made.size)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _arrays(arrays: dict[str, Array], target: str | None, task: str | None, path: Path) -> Found:
    if target is not None and target not in arrays:
        raise ValueError(f"--target: {path} has no {target}, it has {', '.join(arrays)}")
    column = target or next((name for name in arrays if name.lower() in preparing.TARGETS), list(arrays)[-1])
    features = [name for name in arrays if name != column]
    if len(features) != 1 or arrays[features[0]].ndim < 2:
        shown = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"--data: expected an array of rows and one of targets in {path}, found {shown}")
    return _of(arrays[features[0]], arrays[column], features[0], task)


def _of(rows: Array, target: Array, name: str, task: str | None) -> Found:
    whole = rows.dtype.kind in "iu" and rows.size > 0 and int(rows.min()) >= 0
    tokens = int(rows.max()) + 1 if whole else None
    text = target.dtype.kind not in "biuf" and not all(_is_number(value) for value in target.ravel().tolist())
    numbers = np.zeros(0) if text else target.astype(np.float64)
    few = not text and numbers.ndim == 1 and numbers.size > 0
    few = few and bool(
        (numbers == np.round(numbers)).all() and numbers.min() >= 0 and numbers.max() <= _LARGEST_CLASS
    )
    distinct = len(np.unique(target))
    note = ""
    if task is None and few:
        few = distinct <= _MOST_CLASSES
        note = (
            f"the targets are {distinct} different whole numbers and count as {'classes' if few else 'numbers'}; `ortrain new "
            f"--task {'numbers' if few else 'classes'}` reads them as {'numbers' if few else 'classes'}"
        )
    if task == "classes" or (task is None and (text or few)):
        count = distinct if text else int(numbers.max()) + 1
        return Found(name, rows.shape[1:], tokens, max(2, count), True, note=note, rows=len(target))
    if text:
        raise ValueError(f"--task numbers: expected numbers as targets, found {target.ravel()[0]!r:.60}")
    center, scale = (float(numbers.mean()), float(numbers.std())) if numbers.size else (0.0, 1.0)
    outputs = int(np.prod(numbers.shape[1:]))
    return Found(name, rows.shape[1:], tokens, outputs, False, center, scale or 1.0, note, len(target))


def _folder(path: Path, size: int | None) -> Found:
    opener = package("PIL.Image", "reading images needs Pillow: pip install pillow")
    classes = class_folders(path)
    if len(classes) == 1:
        raise ValueError(
            f"--data: expected two folders of images or more in {path}, one for each class, found only {classes[0].name}"
        )
    first = next((file for folder in classes for file in images_in(folder)), None)
    if first is None:
        raise ValueError(f"--data: expected a folder per class with images in {path}, found none")
    with (
        open_file(first, "--data") as file,
        explained(first, "--data", "an image"),
        opener.open(file) as image,
    ):
        width, height = image.size
        channels = 1 if image.mode in ("1", "L", "LA", "I", "I;16") else 3
    scale = min(1.0, _LARGEST / max(width, height))
    sides = (size, size) if size else (max(1, round(height * scale)), max(1, round(width * scale)))
    return Found("image", (channels, *sides), None, max(2, len(classes)), True)


def network_for(found: Found) -> str:
    """Return the default network for data."""
    if len(found.row) == 1 and found.tokens is not None and found.input == "input_ids":
        return "transformer"
    return {1: "mlp", 2: "gru", 3: "cnn"}.get(len(found.row), "mlp")


def make_network(kind: str, found: Found, seed: int) -> Any:
    """Return a network for data, as an ONNX model, whose metadata ask for preprocessed rows.

    Raises
    ------
    ValueError
        When the network does not take rows of this kind.
    """
    model = _network(kind, found, seed)
    if not found.classes:
        _scale(model, found)
    model.metadata_props.add(key=preparing.MARK, value="standard")
    return model


def _scale(model: Any, found: Found) -> None:
    """Give a network's outputs the mean and deviation of the targets, because training alone would reach them slowly."""
    from onnx import helper

    graph = model.graph
    name = graph.output[0].name
    for node in graph.node:
        node.output[:] = [f"{name}.standard" if output == name else output for output in node.output]
    constants = {"deviation": found.scale, "mean": found.center}
    for key, value in constants.items():
        graph.node.append(helper.make_node("Constant", [], [f"{name}.{key}"], value_float=value))
    graph.node.append(helper.make_node("Mul", [f"{name}.standard", f"{name}.deviation"], [f"{name}.scaled"]))
    graph.node.append(helper.make_node("Add", [f"{name}.scaled", f"{name}.mean"], [name]))


def _network(kind: str, found: Found, seed: int) -> Any:
    """Return a network for data.

    Raises
    ------
    ValueError
        When the network does not take rows of this kind.
    """
    from ortrain import models

    names: dict[str, Any] = {
        "seed": seed,
        "input": found.input,
        "output": "scores" if found.classes else "values",
    }
    row = found.row
    if kind == "mlp" and len(row) == 1:
        return models.mlp(row[0], found.outputs, **names)
    if kind in ("cnn", "resnet") and len(row) in (2, 3):
        shape = (1, *row) if len(row) == 2 else row
        if shape[0] not in (1, 3, 4):
            raise ValueError(
                f"{kind}: expected images with 1, 3 or 4 channels in front, found rows of shape {list(row)}"
                + ("; x.transpose(0, 3, 1, 2) moves them there" if shape[-1] in (1, 3, 4) else "")
            )
        return (models.cnn if kind == "cnn" else models.resnet)(shape, found.outputs, **names)
    if kind == "gru" and len(row) == 2:
        return models.gru(row[1], found.outputs, **names)
    if kind == "transformer" and len(row) == 1 and found.tokens is not None:
        return models.transformer(found.tokens, found.outputs, row[0], **names)
    numbers = "" if kind != "transformer" or len(row) != 1 else " of numbers that are not tokens"
    raise ValueError(
        f"{kind}: expected {NETWORKS[kind]}, found rows of shape {list(row)}{numbers}; {network_for(found)} takes these"
    )
