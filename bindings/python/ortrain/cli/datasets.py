"""Reading data from files: arrays by the names of a model's inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._files.reading import check_file, explained, open_file, read_npy, read_npz
from ortrain._support.counts import agreeing, counted
from ortrain._support.places import lines_of, place_of_cell
from ortrain.cli import preparing
from ortrain.cli.tables import Table, check_values, package, read_table
from ortrain.cli.wanted import Wanted
from ortrain.errors import InvalidArgumentError
from ortrain.preprocessing.pictures import Pictures
from ortrain.trainer.columns import Columns
from ortrain.trainer.weighting import WEIGHTS, weights_of

Array = npt.NDArray[Any]
IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"}

KINDS = "NPZ, NPY, CSV, Parquet, JSON lines, a folder of images by class, or a Hugging Face dataset on disk"
ENDINGS = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".npz", ".npy")


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
    if wanted.must_have_weights and (path.is_dir() or path.suffix.lower() == ".npy"):
        raise ValueError(f"--sample-weight: expected a table or NPZ, found {path}")
    if path.is_dir():
        if _is_hugging_face(path):
            return _hugging_face(path, wanted, target)
        return _folder_of_images(path, wanted)
    check_file(path, "--data")
    kind = path.suffix.lower()
    if kind == ".npz":
        arrays, weights = _without_weights(read_npz(path, "--data"), wanted, path)
        named = preparing.columns_of(arrays, wanted)
        if named is not None:
            return _of_table(replace(named, weights=weights), wanted, target, path)
        preparing.refuse_arrays(wanted, path)
        return _weighted(_by_name(arrays, wanted, target, path), weights, wanted, path)
    if kind == ".npy":
        array = read_npy(path, "--data")
        preparing.refuse_arrays(wanted, path)
        if array.ndim != 2:
            return {wanted.names[0]: array}
        columns = {f"column {number}": values for number, values in enumerate(array.T)}
        return _columns_of_numbers(Table(columns, has_names=False), wanted, target, path)
    known = () if wanted.columns is None else wanted.columns.features
    table = read_table(path, wanted.header, known)
    if table is not None:
        columns, weights = _without_weights(table.columns, wanted, path)
        return _of_table(replace(table, columns=columns, weights=weights), wanted, target, path)
    raise ValueError(f"--data: expected {KINDS}, found {path}")


def _without_weights(columns: dict[str, Any], wanted: Wanted, path: Path) -> tuple[dict[str, Any], Any]:
    """Return the columns without the row weights, and the row weights; None instead of the weights if there are none."""
    if wanted.weight is None:
        return columns, None
    if wanted.weight not in columns:
        if wanted.must_have_weights:
            raise ValueError(
                f"--sample-weight: {path} has no {wanted.weight}, it has {', '.join(list(columns)[:20])}"
            )
        return columns, None
    return {name: values for name, values in columns.items() if name != wanted.weight}, columns[wanted.weight]


def _weighted(found: dict[str, Array], weights: Any, wanted: Wanted, path: Path) -> dict[str, Array]:
    """Return arrays with the weights of the rows, if there are weights and steps take them."""
    if weights is None or not wanted.takes_weights:
        return found
    values = numbers_of(weights, str(wanted.weight), path)
    return {**found, WEIGHTS: weights_of(next(iter(found.values())), values, None)}


def _is_hugging_face(folder: Path) -> bool:
    return (folder / "dataset_info.json").exists() or (folder / "state.json").exists()


def _by_name(columns: dict[str, Any], wanted: Wanted, target: str | None, path: Path) -> dict[str, Array]:
    """Return arrays by the names of inputs, from columns with these names or named x and y."""
    found = {name: name for name in wanted.features if name in columns}
    lower = {name.lower(): name for name in columns}
    if not found and len(wanted.features) == 1 and "x" in lower:
        found = {wanted.features[0]: lower["x"]}
    if len(found) < len(wanted.features):
        missing = [name for name in wanted.features if name not in found]
        either = ", or x and y," if len(wanted.features) == 1 else ""
        raise ValueError(
            f"--data: expected arrays named {', '.join(wanted.names)}{either} in {path}, found {', '.join(columns)}: "
            f"{', '.join(missing)} {agreeing(len(missing), 'is', 'are')} missing"
        )
    others = [name for name in columns if name not in found.values()]
    column = None if wanted.target is None else _target_of(others, wanted, target, path)
    arrays = {
        name: columns[chosen]
        if isinstance(columns[chosen], np.ndarray)
        else numbers_of(columns[chosen], chosen, path)
        for name, chosen in found.items()
    }
    if column is not None:
        assert wanted.target is not None
        arrays[wanted.target] = _targets(columns[column], column, wanted, path)
    return arrays


def _target_of(names: list[str], wanted: Wanted, target: str | None, path: Path) -> str | None:
    """Return the name of the target among columns that are not features; None if none of them is the target."""
    if target is not None:
        if target not in names:
            raise ValueError(f"--target: {path} has no {target}, it has {', '.join(names)}")
        return target
    if wanted.target in names:
        return wanted.target
    return next((name for name in names if name.lower() == "y" or len(names) == 1), None)


def _targets(values: Any, name: str, wanted: Wanted, path: Path) -> Array:
    """Return the values of a target in the shape that the model takes, and names of classes as numbers."""
    check_values(values, name, path)
    array = np.asarray(values)
    if wanted.has_classes and array.dtype.kind in "US" and not _is_numeric(array):
        array = np.array(wanted.numbers_of([str(value) for value in array.ravel()], path)).reshape(
            array.shape
        )
        if wanted.choice is not None and len(np.unique(array)) == 1:  # only for data to train on
            wanted.remarks.append(
                f"all rows of {path} have the class {values[0]}: expected at least two classes to learn from"
            )
    else:
        array = numbers_of(values, name, path)
    assert wanted.target is not None
    shape = wanted.row_shape(wanted.target)
    if shape is not None and array.ndim and array.size == len(array) * int(np.prod(shape)):
        array = array.reshape(-1, *shape)
    return array


def _is_numeric(array: Array) -> bool:
    try:
        array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def numbers_of(values: list[Any], name: str, path: Path) -> Array:
    """Return the values of a column, which may be lists, as an array of numbers.

    Raises
    ------
    ValueError
        When a value is not a number, or lists differ in shape.
    """
    check_values(values, name, path)
    try:
        array = np.array(values)
    except (ValueError, OverflowError, RecursionError) as error:
        where = f"--data: {path}, column {name}: expected rows of one shape"
        lengths = [len(value) if isinstance(value, list) else 0 for value in values]
        other = next((row for row, length in enumerate(lengths) if length != lengths[0]), None)
        if other is None:
            raise ValueError(f"{where}: {error}") from error
        raise ValueError(
            f"{where}, found {counted(lengths[0], 'value')} in {place_of_cell(values, 0)} and {lengths[other]} in "
            f"{place_of_cell(values, other)}"
        ) from error
    if array.dtype.kind in "US" and _is_numeric(array):
        array = array.astype(np.float64)
    if array.dtype.kind not in "biuf":
        row = next((number for number, value in enumerate(values) if not _is_numeric(np.array(value))), 0)
        raise ValueError(
            f"--data: {path}, column {name}: expected numbers, found {values[row]!r:.60} in {place_of_cell(values, row)}"
        )
    if array.dtype.kind == "f" and np.isfinite(array).all() and (array == np.round(array)).all():
        return array.astype(np.int64)  # class indices; features are converted to the model's type
    return array


def _of_table(table: Table, wanted: Wanted, target: str | None, path: Path) -> dict[str, Array]:
    """Return the arrays of a table whose columns have the names of inputs, or are the elements of the first input's rows."""
    columns = table.columns
    _remark_on_header(table, wanted, path)
    if table.remark:
        wanted.remarks.append(table.remark)
    if not columns or not next(iter(columns.values())):
        raise ValueError(f"--data: expected rows in {path}, found {'none' if columns else 'an empty file'}")
    if target is not None and target not in columns:
        raise ValueError(f"--target: {path} has no column {target}, it has {', '.join(columns)}")
    prepared = preparing.encoded(table, wanted, target, path)
    if prepared is not None:
        found, column, table = prepared
        wanted.lines = lines_of(next(iter(table.columns.values())))
        if column is not None and column in table.columns and wanted.target is not None:
            found[wanted.target] = _targets(table.columns[column], column, wanted, path)
        return _weighted(found, table.weights, wanted, path)
    wanted.lines = lines_of(next(iter(columns.values())))
    has_rows = any(name.lower() == "x" and isinstance(values[0], list) for name, values in columns.items())
    if has_rows or all(name in columns for name in wanted.features):
        return _weighted(_by_name(columns, wanted, target, path), table.weights, wanted, path)
    return _weighted(_columns_of_numbers(table, wanted, target, path), table.weights, wanted, path)


def _columns_of_numbers(table: Table, wanted: Wanted, target: str | None, path: Path) -> dict[str, Array]:
    """Return an array whose rows consist of the numbers in all columns. If there is one column too many, it is the target."""
    names = list(table.columns)
    if len(wanted.features) != 1:
        raise ValueError(
            f"--data: expected columns named {', '.join(wanted.names)} in {path}, found {', '.join(names)}"
        )
    feature = wanted.features[0]
    shape = wanted.row_shape(feature)
    size = None if shape is None else int(np.prod(shape))
    if target is not None and target not in names:
        raise ValueError(f"--target: {path} has no column {target}, it has {', '.join(names)}")
    if table.has_names and wanted.columns is not None:
        used, column = _by_known_names(names, wanted.columns, wanted, target, path)
    else:
        used, column = _by_position(names, size, wanted, target)
    values = [numbers_of(table.columns[name], name, path).astype(np.float64) for name in used]
    if size is not None and len(used) != size:
        raise ValueError(
            f"--data: input {feature} takes {counted(size, 'number')} per row; {path} has {counted(len(names), 'column')}, "
            "with the target"
        )
    if column is None and wanted.target is not None:
        raise ValueError(
            f"--data: {path} has {counted(len(names), 'column')} ({', '.join(names[:12])}{', ...' if len(names) > 12 else ''}), "
            f"all of which input {feature} takes: expected another column, the target"
        )
    matrix = np.stack(values, axis=1)
    found = {feature: matrix.reshape(-1, *shape) if shape is not None else matrix}
    if column is not None and wanted.target is not None:
        found[wanted.target] = _targets(table.columns[column], column, wanted, path)
    if table.has_names and wanted.columns is None:
        wanted.columns = Columns(tuple(used), column)
    return found


def _remark_on_header(table: Table, wanted: Wanted, path: Path) -> None:
    """Report that a CSV file has no header, unless the user said so."""
    if table.has_names or wanted.header is not None:
        return
    order = (
        "the last one is the target"
        if wanted.columns is None
        else f"in the order {', '.join(wanted.columns.features[:12])}"
    )
    wanted.remarks.append(
        f"{path} has no header: its columns are taken by position, {order} (--header, --no-header)"
    )


def _by_position(
    names: list[str], size: int | None, wanted: Wanted, target: str | None
) -> tuple[list[str], str | None]:
    """Return the features, and the target: the named column, the column with the name of the input, or the last one."""
    column = None
    if target is not None:
        column = target
    elif wanted.target in names:
        column = wanted.target
    elif size == len(names) - 1 or (size is None and wanted.target is not None):
        column = names[-1]
    return [name for name in names if name != column], column


def _by_known_names(
    names: list[str], known: Columns, wanted: Wanted, target: str | None, path: Path
) -> tuple[list[str], str | None]:
    """Return the columns on which a model was trained, in the order of that training, and the target."""
    known.check(names, f"--data: {path}", target or wanted.target)
    column = target or next((name for name in (known.target, wanted.target) if name in names), None)
    if column is None and wanted.target is not None:
        raise ValueError(
            f"--data: {path} has no column {known.target or wanted.target}, which is the target; --target names another one"
        )
    return list(known.features), column


def files_of_rows(path: Path, wanted: Wanted) -> list[str] | None:
    """Return the file of each row of a folder of images, relative to the folder; None for data of another kind."""
    if not path.is_dir() or _is_hugging_face(path):
        return None
    return [file.relative_to(path).as_posix() for file, _ in _images_of(path, wanted)]


def class_folders(path: Path) -> list[Path]:
    """Return the folders of the classes, those with images, in a folder of images."""
    folders = [
        folder for folder in sorted(path.iterdir()) if folder.is_dir() and not folder.name.startswith(".")
    ]
    return [folder for folder in folders if images_in(folder)]


def images_in(folder: Path) -> list[Path]:
    """Return the images in a folder, by name."""
    return [file for file in sorted(folder.iterdir()) if file.suffix.lower() in IMAGES]


def _images_of(path: Path, wanted: Wanted) -> list[tuple[Path, str]]:
    """Return the images in a folder with their classes, in the order of the rows."""
    files = [(file, folder.name) for folder in class_folders(path) for file in images_in(folder)]
    if not files and wanted.target is None:
        files = [(file, "") for file in images_in(path)]
    if not files:
        raise ValueError(f"--data: expected a folder per class with images in {path}, found none")
    return files


def _folder_of_images(path: Path, wanted: Wanted) -> Pictures:
    opener = package("PIL.Image", "reading images needs Pillow: pip install 'ortrain[data]'")
    files = _images_of(path, wanted)

    def opened(row: int) -> Any:
        file = files[row][0]
        with (
            open_file(file, "--data") as source,
            explained(file, "--data", "an image"),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("error", opener.DecompressionBombWarning)  # for more than 90 million pixels
            try:
                image = opener.open(source)
            except opener.UnidentifiedImageError:
                # Pillow's message has the address of an object instead of the file
                raise InvalidArgumentError(
                    f"--data: expected an image, found {file}, whose format Pillow does not recognize; replace or remove the file"
                ) from None
            image.load()
        return image

    target = None
    if wanted.target is not None:
        target = (wanted.target, np.array(wanted.numbers_of([name for _, name in files], path)))
    return _pictures(opened, len(files), wanted, target)


def _pictures(
    open_row: Callable[[int], Any],
    count: int,
    wanted: Wanted,
    target: tuple[str, Array] | None,
    threads: int | None = None,
) -> Pictures:
    """Return images, opened by Pillow, in the shape that the model takes."""
    feature = wanted.features[0]
    shape = preparing.picture_shape(wanted, feature)
    if len(shape) != 2 and not (len(shape) == 3 and (shape[0] in (1, 3) or shape[-1] in (1, 3))):
        raise ValueError(
            "--data: expected a model that takes images of known size, [height, width] with 1 or 3 channels before or "
            f"after them, found {wanted.shapes[wanted.names.index(feature)]} for {feature}; `ortrain train --size HEIGHTxWIDTH` "
            "sets a free height and width"
        )
    pictures = Pictures(open_row, count, feature, shape, target, threads)
    preparing.normalize(pictures, wanted)
    return pictures


def _hugging_face(path: Path, wanted: Wanted, target: str | None) -> Any:
    datasets = package("datasets", "reading a Hugging Face dataset needs datasets: pip install datasets")
    found = datasets.load_from_disk(str(path))
    if hasattr(found, "keys"):
        raise ValueError(
            f"--data: expected one split, found {', '.join(found)} in {path}; name the folder of one"
        )
    images = [name for name, kind in found.features.items() if isinstance(kind, datasets.Image)]
    named = [name for name in wanted.features if name in found.column_names]
    if not named and len(wanted.features) == 1 and images:
        found = found.rename_column(images[0], wanted.features[0])
        images, named = [wanted.features[0]], wanted.features
    if wanted.target is not None:
        others = [name for name in found.column_names if name not in named]
        column = _target_of(others, wanted, target, path)
        if column is not None:
            found = _numbered(found, column, wanted, path, datasets)
            if column != wanted.target:
                found = found.rename_column(column, wanted.target)
    if not images or named != wanted.features:
        preparing.refuse_arrays(wanted, path)
        return found
    feature = wanted.features[0]
    labels = None
    if wanted.target is not None and wanted.target in found.column_names:
        labels = (wanted.target, np.array(found[wanted.target]))

    def opened(row: int) -> Any:
        with explained(path, "--data", "images"):
            return found[row][feature]

    return _pictures(opened, len(found), wanted, labels, threads=1)


def _numbered(found: Any, column: str, wanted: Wanted, path: Path, datasets: Any) -> Any:
    """Return a Hugging Face dataset in which the names of classes are replaced by the model's numbers of these classes."""
    kind = found.features[column]
    named = isinstance(kind, datasets.ClassLabel)
    if not wanted.has_classes or not (named or getattr(kind, "dtype", "") in ("string", "large_string")):
        return found
    if named and wanted.classes is None:
        wanted.classes = list(kind.names)
    labels = found[column]
    numbers = wanted.numbers_of(kind.int2str(list(labels)) if named else list(labels), path)
    return found.remove_columns(column).add_column(column, numbers)
