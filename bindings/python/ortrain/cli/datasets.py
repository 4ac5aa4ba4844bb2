"""Reading data from files: arrays by the names of a model's inputs."""

from __future__ import annotations

import csv
import importlib
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"}

KINDS = "NPZ, NPY, CSV, Parquet, JSON lines, a folder of images by class, or a Hugging Face dataset on disk"


class Wanted:
    """The inputs of a model that data are read for.

    Parameters
    ----------
    names : list of str
        In the order of a step; the last one is the target.
    shapes : list of list
        Their shapes; an unknown dimension is not an integer.
    has_target : bool, default True
        Whether the last input is the target.
    """

    def __init__(
        self, names: Sequence[str], shapes: Sequence[Sequence[Any]], has_target: bool = True
    ) -> None:
        self.names, self.shapes, self.has_target = list(names), list(shapes), has_target

    @property
    def target(self) -> str | None:
        """The name of the target."""
        return self.names[-1] if self.has_target and len(self.names) > 1 else None

    @property
    def features(self) -> list[str]:
        """The names of the others."""
        return [name for name in self.names if name != self.target]

    def row_shape(self, name: str) -> list[int] | None:
        """Return the shape of one row, None if it is not known."""
        shape = self.shapes[self.names.index(name)][1:]
        return list(shape) if all(isinstance(extent, int) for extent in shape) else None


def load(path: Path, wanted: Wanted, target: str | None = None) -> Any:
    """Read data.

    Parameters
    ----------
    path : Path
        A file or folder.
    wanted : Wanted
        The inputs to read.
    target : str, optional
        The array or column that is the target; by default the one of the input's name, else the last one.

    Returns
    -------
    dict of str to array, or a Hugging Face dataset
        By input name. Without a target if the data have none.

    Raises
    ------
    ValueError
        When the file is of no such kind or does not have the inputs.
    FileNotFoundError
        When there is nothing at the path.
    """
    if not path.exists():
        raise FileNotFoundError(f"--data: there is no file or folder {path}")
    if path.is_dir():
        if (path / "dataset_info.json").exists() or (path / "state.json").exists():
            return _hugging_face(path)
        return _folder_of_images(path, wanted)
    kind = path.suffix.lower()
    if kind == ".npz":
        if not zipfile.is_zipfile(path):
            raise ValueError(f"--data: expected an NPZ file as written by numpy.savez, found {path}")
        with np.load(path, allow_pickle=False) as file:
            return _by_name({name: file[name] for name in file.files}, wanted, target, path)
    if kind == ".npy":
        array = np.load(path, allow_pickle=False)
        return (
            _rows_of_numbers(array, [], wanted, target, path) if array.ndim == 2 else {wanted.names[0]: array}
        )
    if kind in (".csv", ".tsv"):
        return _table(_read_csv(path, "\t" if kind == ".tsv" else ","), wanted, target, path)
    if kind == ".parquet":
        return _table(_read_parquet(path), wanted, target, path)
    if kind in (".jsonl", ".ndjson"):
        return _table(_read_json_lines(path), wanted, target, path)
    raise ValueError(f"--data: expected {KINDS}, found {path}")


def _package(name: str, message: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(message) from error


def _by_name(arrays: dict[str, Array], wanted: Wanted, target: str | None, path: Path) -> dict[str, Array]:
    """Give arrays the names of the inputs: by name, else x and y, else by their order."""
    if target is not None and wanted.target is not None:
        if target not in arrays:
            raise ValueError(f"--target: {path} has no {target}, it has {', '.join(arrays)}")
        arrays = {wanted.target if name == target else name: array for name, array in arrays.items()}
    if all(name in arrays for name in wanted.features):
        return {name: arrays[name] for name in wanted.names if name in arrays}
    lower = {name.lower(): name for name in arrays}
    if len(wanted.features) == 1 and "x" in lower:
        found = {wanted.features[0]: arrays[lower["x"]]}
        if wanted.target in arrays:
            found[wanted.target] = arrays[wanted.target]
        elif wanted.target is not None and "y" in lower:
            found[wanted.target] = arrays[lower["y"]]
        return found
    raise ValueError(
        f"--data: expected arrays named {', '.join(wanted.names)}, or x and y, in {path}, found {', '.join(arrays)}"
    )


def _read_csv(path: Path, separator: str) -> dict[str, list[Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file, delimiter=separator)
        heading = next(reader, [])
        rows = [row for row in reader if row]
    for number, row in enumerate(rows, start=2):
        if len(row) != len(heading):
            raise ValueError(
                f"--data: {path} line {number}: expected {len(heading)} values, found {len(row)}"
            )
    return {name: [row[i] for row in rows] for i, name in enumerate(heading)}


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    parquet = _package("pyarrow.parquet", "reading Parquet needs pyarrow: pip install pyarrow")
    columns: dict[str, list[Any]] = parquet.read_table(path).to_pydict()
    return columns


def _read_json_lines(path: Path) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"--data: {path} line {number}: expected a JSON object: {error}") from error
            if not isinstance(row, dict) or (columns and row.keys() != columns.keys()):
                raise ValueError(
                    f"--data: {path} line {number}: expected an object with {', '.join(columns) or 'names'}, "
                    f"found {line.strip()[:60]}"
                )
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
    return columns


def _numbers(values: list[Any], name: str, path: Path) -> Array:
    try:
        array = np.array(values)
        if array.dtype.kind in "US":
            array = array.astype(np.float64)
    except ValueError as error:
        raise ValueError(f"--data: {path}, column {name}: expected numbers: {error}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"--data: {path}, column {name}: expected numbers, found {values[0]!r}")
    if array.dtype.kind == "f" and np.isfinite(array).all() and (array == np.round(array)).all():
        return array.astype(np.int64)  # class indices; features are converted to the model's type
    return array


def _table(columns: dict[str, list[Any]], wanted: Wanted, target: str | None, path: Path) -> dict[str, Array]:
    """Columns by the inputs' names; or columns of numbers, which are the elements of the first input's rows."""
    if not columns or not next(iter(columns.values())):
        raise ValueError(f"--data: expected rows in {path}, found none")
    arrays = {name: _numbers(values, name, path) for name, values in columns.items()}
    if all(name in arrays for name in wanted.features):
        return _by_name(arrays, wanted, target, path)
    names = list(arrays)
    matrix = np.stack([arrays[name].astype(np.float64) for name in names], axis=1)
    return _rows_of_numbers(matrix, names, wanted, target, path)


def _rows_of_numbers(
    matrix: Array, names: list[str], wanted: Wanted, target: str | None, path: Path
) -> dict[str, Array]:
    if len(wanted.features) != 1:
        raise ValueError(
            f"--data: expected columns named {', '.join(wanted.names)} in {path}, found {', '.join(names)}"
        )
    feature = wanted.features[0]
    shape = wanted.row_shape(feature)
    size = None if shape is None else int(np.prod(shape))
    count = matrix.shape[1]
    column = None
    if target is not None:
        if target not in names:
            raise ValueError(f"--target: {path} has no column {target}, it has {', '.join(names)}")
        column = names.index(target)
    elif wanted.target is not None and wanted.target in names:
        column = names.index(wanted.target)
    elif wanted.target is not None and size != count:
        column = count - 1
    features = matrix if column is None else np.delete(matrix, column, axis=1)
    if size is not None and features.shape[1] != size:
        raise ValueError(
            f"--data: input {feature} takes {size} numbers per row; {path} has {features.shape[1]} besides the target"
        )
    found = {feature: features.reshape(-1, *shape) if shape is not None else features}
    if column is not None and wanted.target is not None:
        values = matrix[:, column]
        whole = bool((values == np.round(values)).all())
        found[wanted.target] = values.astype(np.int64) if whole else values
    return found


def _folder_of_images(path: Path, wanted: Wanted) -> dict[str, Array]:
    opener = _package("PIL.Image", "reading images needs Pillow: pip install pillow")
    classes = sorted(folder.name for folder in path.iterdir() if folder.is_dir())
    files = [
        (file, number)
        for number, name in enumerate(classes)
        for file in sorted((path / name).iterdir())
        if file.suffix.lower() in IMAGES
    ]
    if not files:
        raise ValueError(f"--data: expected a folder per class with images in {path}, found none")
    feature = wanted.features[0]
    shape = wanted.row_shape(feature)
    if shape is None or len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] not in (1, 3)):
        raise ValueError(
            f"--data: expected a model with images of known size [1 or 3, height, width], found {shape} for {feature}"
        )
    channels, height, width = (1, *shape) if len(shape) == 2 else shape
    images = np.empty((len(files), channels, height, width), np.float32)
    for row, (file, _) in enumerate(files):
        try:
            with opener.open(file) as image:
                pixels = np.asarray(
                    image.convert("RGB" if channels == 3 else "L").resize((width, height)), np.float32
                )
        except OSError as error:
            raise ValueError(f"--data: {file} is not an image: {error}") from error
        images[row] = pixels.transpose(2, 0, 1) / 255 if channels == 3 else pixels[None] / 255
    found = {feature: images.reshape(-1, *shape)}
    if wanted.target is not None:
        found[wanted.target] = np.array([number for _, number in files])
    return found


def _hugging_face(path: Path) -> Any:
    datasets = _package("datasets", "reading a Hugging Face dataset needs datasets: pip install datasets")
    found = datasets.load_from_disk(str(path))
    if hasattr(found, "keys"):
        raise ValueError(
            f"--data: expected one split, found {', '.join(found)} in {path}; name the folder of one"
        )
    return found
