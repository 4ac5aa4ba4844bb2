"""Preprocessing as ONNX nodes in front of a model. The model then takes raw columns, or the bytes of pictures of any size."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ortrain.preprocessing.pictures import ImagePreprocessing, shape_of_size
from ortrain.preprocessing.tables import Category, Date, Number, TablePreprocessing

try:
    import onnx
    from onnx import TensorProto, helper
except ImportError as error:
    raise ImportError(
        "writing preprocessing as nodes needs onnx: pip install 'ortrain[artifacts]'"
    ) from error

OPSET = 20
"""The first version of ONNX with all the operators: text is compared since 19 and split since 20."""

_PREFIX = "preprocessing"


class _Nodes:
    """The nodes and constants in front of a model."""

    def __init__(self, taken: set[str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self._taken = taken

    def input(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        """Add an input. If a value of the model already has the name, the name gets an underscore."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def add(self, operator: str, *inputs: str, result: str = "", count: int = 1, **attributes: Any) -> str:
        """Append a node, and return the name of its first output."""
        result = result or f"{_PREFIX}.{len(self.nodes)}"
        outputs = [result, *(f"{result}.{number}" for number in range(1, count))]
        self.nodes.append(helper.make_node(operator, inputs, outputs, **attributes))
        return result

    def constant(self, values: Any, kind: Any) -> str:
        """Add a constant, and return its name."""
        name = f"{_PREFIX}.constant.{len(self.constants)}"
        if kind is str:
            array = np.array(values, dtype=object)
            encoded: Any = [str(value).encode() for value in array.ravel()]
            self.constants.append(helper.make_tensor(name, TensorProto.STRING, array.shape, encoded))
        else:
            self.constants.append(onnx.numpy_helper.from_array(np.array(values, kind), name))
        return name

    def column(self, name: str, kind: int) -> str:
        """Add an input for a column; return the name of the column with shape [rows, 1]."""
        cells = self.input(name, kind, ["batch"])
        return self.add("Reshape", cells, self.constant([-1, 1], np.int64))

    def real(self, value: str) -> str:
        """Return a value as doubles."""
        return self.add("Cast", value, to=TensorProto.DOUBLE)

    def double(self, value: float) -> str:
        """Add a double as a constant, and return its name."""
        return self.constant(value, np.float64)

    def standard(self, value: str, mean: float, deviation: float) -> str:
        """Return a value less a mean, divided by a deviation."""
        return self.add("Div", self.add("Sub", value, self.double(mean)), self.double(deviation))


def _number(nodes: _Nodes, column: Number) -> list[str]:
    cells = nodes.column(column.name, TensorProto.DOUBLE)
    missing = nodes.add("IsNaN", cells)
    known = nodes.add("Where", missing, nodes.double(column.mean), cells)
    standard = nodes.standard(known, column.mean, column.deviation)
    return [standard, nodes.real(missing)] if column.has_missing else [standard]


def _category(nodes: _Nodes, column: Category) -> list[str]:
    cells = nodes.column(column.name, TensorProto.STRING)
    same = nodes.real(nodes.add("Equal", cells, nodes.constant([list(column.categories)], str)))
    return [nodes.add("Mul", same, nodes.constant([list(column.seen)], np.float64))]


def _piece(nodes: _Nodes, texts: str, number: int) -> str:
    """Return the piece with an index from each split text, [rows, 1]."""
    begin, end, axis = (nodes.constant([value], np.int64) for value in (number, number + 1, 1))
    return nodes.add("Slice", texts, begin, end, axis)


def _split(nodes: _Nodes, texts: str, delimiter: str) -> str:
    """Split texts of shape [rows, 1]; return the pieces, [rows, pieces]."""
    pieces = nodes.add("StringSplit", texts, count=2, delimiter=delimiter)
    return nodes.add("Squeeze", pieces, nodes.constant([1], np.int64))


def _days(nodes: _Nodes, year: str, month: str, day: str) -> str:
    """Return the days since 1970 of dates in the Gregorian calendar, counted in years that begin in March."""

    def whole(value: int) -> str:
        return nodes.constant(value, np.int64)

    early = nodes.add("Cast", nodes.add("Less", month, whole(3)), to=TensorProto.INT64)
    year = nodes.add("Sub", year, early)
    moved = nodes.add("Add", nodes.add("Sub", month, whole(3)), nodes.add("Mul", early, whole(12)))
    in_year = nodes.add("Div", nodes.add("Add", nodes.add("Mul", moved, whole(153)), whole(2)), whole(5))
    in_year = nodes.add("Add", in_year, nodes.add("Sub", day, whole(1)))
    leap = nodes.add("Sub", nodes.add("Div", year, whole(4)), nodes.add("Div", year, whole(100)))
    leap = nodes.add("Add", leap, nodes.add("Div", year, whole(400)))
    days = nodes.add("Add", nodes.add("Add", nodes.add("Mul", year, whole(365)), leap), in_year)
    return nodes.add("Sub", days, whole(719468))


def _date(nodes: _Nodes, column: Date) -> list[str]:
    cells = nodes.column(column.name, TensorProto.STRING)
    missing = nodes.add("Equal", cells, nodes.constant("", str))
    texts = nodes.add("Where", missing, nodes.constant("1970-01-01", str), cells)
    minutes = ""
    if column.separator is not None:
        # A date without a time is the beginning of the day.
        texts = nodes.add("StringConcat", texts, nodes.constant(f"{column.separator}00:00", str))
        halves = _split(nodes, texts, column.separator)
        texts, times = _piece(nodes, halves, 0), _split(nodes, _piece(nodes, halves, 1), ":")
        hour, minute = (nodes.real(_piece(nodes, times, number)) for number in (0, 1))
        minutes = nodes.add("Add", nodes.add("Mul", hour, nodes.double(60)), minute)
    pieces = _split(nodes, texts, "-")
    year, month, day = (
        nodes.add("Cast", _piece(nodes, pieces, number), to=TensorProto.INT64) for number in range(3)
    )
    count = _days(nodes, year, month, day)
    weekday = nodes.add(
        "Mod", nodes.add("Add", count, nodes.constant(3, np.int64)), nodes.constant(7, np.int64)
    )
    month, day = (nodes.add("Sub", nodes.real(value), nodes.double(1)) for value in (month, day))
    in_year = nodes.add("Add", month, nodes.add("Div", day, nodes.double(31)))
    turns = [
        nodes.add("Div", in_year, nodes.double(12)),
        nodes.add("Div", nodes.real(weekday), nodes.double(7)),
    ]
    days = nodes.real(count)
    if minutes:
        turns.append(nodes.add("Div", minutes, nodes.double(1440)))
        days = nodes.add("Add", days, turns[-1])
    parts = [nodes.standard(days, column.mean, column.deviation)]
    for turn in turns:
        # onnxruntime has Sin and Cos only for floats.
        angle = nodes.add("Cast", nodes.add("Mul", turn, nodes.double(2 * math.pi)), to=TensorProto.FLOAT)
        parts += [nodes.real(nodes.add("Sin", angle)), nodes.real(nodes.add("Cos", angle))]
    parts = [nodes.add("Where", missing, nodes.double(0), part) for part in parts]
    return [*parts, nodes.real(missing)] if column.has_missing else parts


def _table(nodes: _Nodes, preprocessing: TablePreprocessing, result: str) -> None:
    parts: list[str] = []
    for column in preprocessing.columns:
        if isinstance(column, Number):
            parts += _number(nodes, column)
        elif isinstance(column, Category):
            parts += _category(nodes, column)
        else:
            parts += _date(nodes, column)
    joined = nodes.add("Concat", *parts, axis=1)
    nodes.add("Cast", joined, to=TensorProto.FLOAT, result=result)


def _image(nodes: _Nodes, preprocessing: ImagePreprocessing, shape: Sequence[int], result: str) -> None:
    channels = len(preprocessing.mean)
    first = len(shape) == 3 and shape[0] in (1, 3)
    height, width = (shape[1:] if first else shape[:2]) if len(shape) == 3 else shape
    pixels = nodes.input("pixels", TensorProto.UINT8, ["batch", "height", "width", channels])
    planes = nodes.add("Transpose", pixels, perm=[0, 3, 1, 2])
    count = nodes.add("Shape", planes, start=0, end=1)
    # Sizes for all axes: onnxruntime moves a Transpose behind Resize, and then misreads sizes for only two axes.
    size = nodes.add("Concat", count, nodes.constant([channels, height, width], np.int64), axis=0)
    planes = nodes.add(
        "Resize",
        planes,
        "",
        "",
        size,
        mode="linear",
        antialias=1,
        coordinate_transformation_mode="half_pixel",
    )
    values = nodes.add("Cast", planes, to=TensorProto.FLOAT)
    values = nodes.add("Div", values, nodes.constant(255, np.float32))
    mean, deviation = (
        nodes.constant(np.reshape(each, (1, channels, 1, 1)), np.float32)
        for each in (preprocessing.mean, preprocessing.deviation)
    )
    values = nodes.add("Div", nodes.add("Sub", values, mean), deviation)
    if not first:
        values = nodes.add("Transpose", values, perm=[0, 2, 3, 1])
    nodes.add("Reshape", values, nodes.constant([-1, *shape], np.int64), result=result)


def with_preprocessing(
    model: onnx.ModelProto,
    preprocessing: TablePreprocessing | ImagePreprocessing,
    classes: Sequence[str] | None = None,
) -> onnx.ModelProto:
    """Return a model with its preprocessing in front.

    Parameters
    ----------
    model : onnx.ModelProto
        A model with one input.
    preprocessing : TablePreprocessing or ImagePreprocessing
        The preprocessing of its rows.
    classes : list of str, optional
        The names of the classes, which the metadata of the model get as ``classes``, JSON.

    Returns
    -------
    onnx.ModelProto
        For a table, a model with an input for each column, of shape [batch]: numbers as doubles, NaN where they are missing,
        and categories and dates as text, empty where they are missing. For pictures, a model with the input ``pixels``:
        bytes of shape [batch, height, width, channels], of any height and width.

    Raises
    ------
    ValueError
        When the model has several inputs.
    """
    initial = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initial]
    if len(inputs) != 1:
        raise ValueError(
            f"--with-preprocessing: expected a model with one input, found {', '.join(value.name for value in inputs)}"
        )
    version = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if version < OPSET:
        model = onnx.version_converter.convert_version(model, OPSET)
    result = inputs[0].name
    taken = {name for node in model.graph.node for name in (*node.input, *node.output)}
    nodes = _Nodes(taken | initial | {result})
    if isinstance(preprocessing, TablePreprocessing):
        _table(nodes, preprocessing, result)
    else:
        dims = [dim.dim_value or None for dim in inputs[0].type.tensor_type.shape.dim][1:]
        size = preprocessing.size
        shape = [dim or 0 for dim in (dims if size is None else shape_of_size(dims, size))]
        _image(nodes, preprocessing, shape, result)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.ir_version = max(model.ir_version, 9)
    del made.graph.input[:], made.graph.node[:]
    made.graph.input.extend(nodes.inputs)
    made.graph.initializer.extend(nodes.constants)
    made.graph.node.extend([*nodes.nodes, *model.graph.node])
    if classes is not None:
        made.metadata_props.add(key="classes", value=json.dumps(list(classes)))
    return made
