"""Checkpoints as data: the contents of the file of onnxruntime 1.17 and newer, and of the folder of 1.14 and 1.15.

The names of the files in the folder end in ``.pbseq``. Each file contains the number of its tensors, and then the ONNX tensors,
each after its length. A conversion between the two forms keeps the bytes of tensors of any type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ortrain import _ortrain
from ortrain._files.reading import explained, open_file
from ortrain._files.writing import write_files
from ortrain._support.counts import counted

_TENSORS, _PROPERTIES = "_tensors.pbseq", "_properties.pbseq"
_VERSION = 2
_STEP, _RATE = "builtin.step", "builtin.initial_learning_rate"


@dataclass
class Tensor:
    """A tensor: its ONNX type, its shape and its bytes."""

    data_type: int
    dims: list[int]
    raw: bytes


@dataclass
class Group:
    """The state of an optimizer.

    Attributes
    ----------
    step, learning_rate
        Steps taken, and the learning rate.
    states : dict
        The moments of each parameter by name: momentum0, momentum1 and so on.
    state_names : list of str
        The optimizer's names for these moments. Empty for the moments of AdamW, and if there are no moments.
    settings, scalars : dict
        For each group of parameters, the settings that a program changed, and the numbers that the optimizer keeps.
    """

    step: int
    learning_rate: float
    states: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    state_names: list[str] = field(default_factory=list)
    settings: dict[str, dict[str, float]] = field(default_factory=dict)
    scalars: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass
class StoredState:
    """The contents of a checkpoint."""

    trained: dict[str, Tensor] = field(default_factory=dict)
    frozen: dict[str, Tensor] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    properties: dict[str, int | float | str] = field(default_factory=dict)


def is_folder_of_tensors(path: Path) -> bool:
    """Whether a path is a checkpoint of 1.14 or 1.15."""
    return path.is_dir() and any(path.glob(f"param*{_TENSORS}"))


# ---- the folder ----


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "checkpoints of 1.14 and 1.15 need onnx: pip install 'ortrain[artifacts]'"
        ) from error
    return onnx


def _varint(data: bytes, at: int, path: Path) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError(f"{path}: expected a number at byte {at}, found the end of the file")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _as_varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _read_tensors(path: Path) -> Iterator[Any]:
    onnx = _onnx()
    with open_file(path, "checkpoint") as file:
        data = file.read()
    count, at = _varint(data, 0, path)
    for number in range(1, count + 1):
        length, at = _varint(data, at, path)
        if length > len(data) - at:
            raise ValueError(
                f"{path}: expected {counted(length, 'byte')} of tensor {number} of {count}, found {len(data) - at}"
            )
        tensor = onnx.TensorProto()
        try:
            tensor.ParseFromString(data[at : at + length])
            if isinstance(tensor.name, bytes):  # some versions of protobuf return bytes for invalid UTF-8
                raise ValueError("its name is not UTF-8")
            if "\0" in tensor.name:
                raise ValueError("its name has a zero")
        except Exception as error:  # an exception of protobuf, whose class depends on its version
            raise ValueError(f"{path}: tensor {number} of {count} is not an ONNX tensor: {error}") from error
        at += length
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ValueError(
                f"{path}: expected tensors in the file itself, found {tensor.name!r} in another file"
            )
        yield tensor
    if at != len(data):
        raise ValueError(
            f"{path}: expected the end of the file after {counted(count, 'tensor')}, found {counted(len(data) - at, 'byte')}"
        )


def _as_sequence(tensors: list[Any]) -> bytes:
    parts = [_as_varint(len(tensors))]
    for tensor in tensors:
        data = tensor.SerializeToString()
        parts += [_as_varint(len(data)), data]
    return b"".join(parts)


def _tensors_of(path: Path) -> dict[str, Tensor]:
    found = {}
    for tensor in _read_tensors(path):
        with explained(
            f"{tensor.name!r} in {path}", "checkpoint", "a tensor with the data that its shape needs"
        ):
            if any(dim < 0 for dim in tensor.dims):
                raise ValueError(f"its shape is {list(tensor.dims)}")
            array = _onnx().numpy_helper.to_array(tensor)
            if not tensor.HasField("raw_data"):
                tensor = _onnx().numpy_helper.from_array(array, tensor.name)
        found[tensor.name] = Tensor(tensor.data_type, list(tensor.dims), tensor.raw_data)
    return found


def _properties_of(path: Path) -> dict[str, int | float | str]:
    found: dict[str, int | float | str] = {}
    for tensor in _read_tensors(path):
        with explained(f"{tensor.name!r} in {path}", "checkpoint", "a property, one number or text"):
            if tensor.string_data:
                found[tensor.name] = tensor.string_data[0].decode()
            else:
                found[tensor.name] = _number(_onnx().numpy_helper.to_array(tensor).item())
    return found


def _number(value: Any) -> int | float:
    """Return a number that a checkpoint can hold."""
    if isinstance(value, float):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return int(value)  # 0 and 1 for a boolean
    raise ValueError(f"expected a number of 64 bits, found {value!r:.40}")


def read_folder(folder: Path) -> StoredState:
    """Read a checkpoint of 1.14 or 1.15.

    Raises
    ------
    ValueError
        When a file is damaged or has an unknown name.
    """
    state = StoredState()
    names = sorted(path.name for path in folder.glob("*.pbseq"))
    prefixes = {}
    for name in names:  # first the groups: the names of moments begin with the name of a group
        if name.startswith("optim_") and name.endswith(_PROPERTIES):
            group = name.removeprefix("optim_").removesuffix(_PROPERTIES)
            values = _properties_of(folder / name)
            missing = [key for key in (_STEP, _RATE) if key not in values]
            if missing:
                raise ValueError(
                    f"{folder / name}: expected {' and '.join(missing)}, found {', '.join(map(repr, values))}"
                )
            with explained(folder / name, "checkpoint", "a number of steps and a learning rate"):
                state.groups[group] = Group(int(values[_STEP]), float(values[_RATE]))
            prefixes[f"optim_{group}_"] = group
    for name in names:
        path = folder / name
        if name == f"paramtrain{_TENSORS}":
            state.trained = _tensors_of(path)
        elif name == f"paramfrozen{_TENSORS}":
            state.frozen = _tensors_of(path)
        elif name == f"custom{_PROPERTIES}":
            state.properties = _properties_of(path)
        elif name.endswith(_TENSORS) and name.startswith(tuple(prefixes)):
            prefix = max((known for known in prefixes if name.startswith(known)), key=len)
            moment = name.removeprefix(prefix).removesuffix(_TENSORS)
            for parameter, tensor in _tensors_of(path).items():
                state.groups[prefixes[prefix]].states.setdefault(parameter, {})[moment] = tensor
        elif not name.endswith(_PROPERTIES):
            raise ValueError(f"{path}: expected a file of parameters, of an optimizer or of properties")
    return state


def write_folder(state: StoredState, folder: Path) -> None:
    """Write a checkpoint as 1.14 and 1.15 read it."""
    onnx = _onnx()

    def tensors(entries: dict[str, Tensor]) -> list[Any]:
        return [
            onnx.TensorProto(name=name, data_type=tensor.data_type, dims=tensor.dims, raw_data=tensor.raw)
            for name, tensor in sorted(entries.items())
        ]

    def properties(entries: dict[str, int | float | str]) -> list[Any]:
        made = []
        for name, value in entries.items():
            tensor = onnx.TensorProto(name=name)
            if isinstance(value, str):
                tensor.data_type = onnx.TensorProto.STRING
                tensor.string_data.append(value.encode())
            elif isinstance(value, int):
                tensor.data_type = onnx.TensorProto.INT64
                tensor.int64_data.append(value)
            else:
                tensor.data_type = onnx.TensorProto.FLOAT
                tensor.float_data.append(value)
            made.append(tensor)
        return made

    files: dict[str, list[Any]] = {}
    for name, entries in (("paramtrain", state.trained), ("paramfrozen", state.frozen)):
        if entries:
            files[f"{name}{_TENSORS}"] = tensors(entries)
    for group_name, group in state.groups.items():
        moments: dict[str, dict[str, Tensor]] = {}
        for parameter, found in group.states.items():
            for moment, tensor in found.items():
                moments.setdefault(moment, {})[parameter] = tensor
        for moment, entries in moments.items():
            files[f"optim_{group_name}_{moment}{_TENSORS}"] = tensors(entries)
        files[f"optim_{group_name}{_PROPERTIES}"] = properties(
            {_STEP: group.step, _RATE: group.learning_rate}
        )
    if state.properties:
        files[f"custom{_PROPERTIES}"] = properties(state.properties)
    folder.mkdir(parents=True, exist_ok=True)
    write_files({folder / name: _as_sequence(made) for name, made in files.items()}, "checkpoint")


# ---- the file (docs/checkpoint-format.md) ----


def _flatbuffers() -> Any:
    try:
        import flatbuffers
        import flatbuffers.table
    except ImportError as error:
        raise ImportError(
            "converting whole checkpoints needs flatbuffers: pip install 'ortrain[convert]'"
        ) from error
    return flatbuffers


class _Table:
    """A FlatBuffers table of the file; its fields are read by id."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def number(self, index: int, kind: str, default: Any = 0) -> Any:
        offset = self._table.Offset(4 + 2 * index)
        if not offset:
            return default
        return self._table.Get(getattr(_flatbuffers().number_types, f"{kind}Flags"), self._table.Pos + offset)

    def text(self, index: int) -> str:
        offset = self._table.Offset(4 + 2 * index)
        found: bytes = self._table.String(self._table.Pos + offset) if offset else b""
        return found.decode()

    def table(self, index: int) -> _Table | None:
        offset = self._table.Offset(4 + 2 * index)
        if not offset:
            return None
        position = self._table.Indirect(self._table.Pos + offset)
        return _Table(_flatbuffers().table.Table(self._table.Bytes, position))

    def tables(self, index: int) -> Iterator[_Table]:
        offset = self._table.Offset(4 + 2 * index)
        if not offset:
            return
        start = self._table.Vector(offset)
        for number in range(self._table.VectorLen(offset)):
            position = self._table.Indirect(start + 4 * number)
            yield _Table(_flatbuffers().table.Table(self._table.Bytes, position))

    def texts(self, index: int) -> list[str]:
        offset = self._table.Offset(4 + 2 * index)
        if not offset:
            return []
        start = self._table.Vector(offset)
        count = self._table.VectorLen(offset)
        return [self._table.String(start + 4 * number).decode() for number in range(count)]

    def vector(self, index: int, size: int) -> bytes:
        offset = self._table.Offset(4 + 2 * index)
        if not offset:
            return b""
        start = self._table.Vector(offset)
        return bytes(self._table.Bytes[start : start + size * self._table.VectorLen(offset)])


def _tensor_of(table: _Table, path: Path) -> tuple[str, Tensor]:
    dims = table.vector(2, 8)
    if table.number(6, "Int64", -1) >= 0:
        raise ValueError(f"{path}: expected tensors in the file itself, found them in {path}.data")
    sizes = [int.from_bytes(dims[i : i + 8], "little", signed=True) for i in range(0, len(dims), 8)]
    return table.text(0), Tensor(table.number(3, "Int32"), sizes, table.vector(4, 1))


def read_file(path: Path) -> StoredState:
    """Read a checkpoint of 1.17 or newer.

    Raises
    ------
    ValueError
        When the file is not a checkpoint, or a second file contains its tensors.
    """
    _ortrain.load_checkpoint(path)  # checks all offsets before the code below follows them
    flatbuffers = _flatbuffers()
    with open_file(path, "checkpoint") as file:
        data = file.read()
    root = _Table(flatbuffers.table.Table(data, int.from_bytes(data[:4], "little")))
    state = StoredState()
    module = root.table(1)
    if module is not None:
        if module.number(2, "Bool", False):
            raise ValueError(f"{path}: expected a checkpoint with values, found a nominal one")
        state.trained = dict(_tensor_of(tensor, path) for tensor in module.tables(0))
        state.frozen = dict(_tensor_of(tensor, path) for tensor in module.tables(1))
    for group in root.tables(2):
        found = Group(group.number(1, "Int64"), group.number(2, "Float32", 0.0))
        for parameter in group.tables(3):
            found.states[parameter.text(0)] = dict(_tensor_of(tensor, path) for tensor in parameter.tables(1))
        found.state_names = group.texts(5)
        for entries in group.tables(4):
            of_group = entries.text(0)
            for index, kind, values in ((1, "Float32", found.settings), (2, "Float64", found.scalars)):
                numbers = {entry.text(0): entry.number(1, kind, 0.0) for entry in entries.tables(index)}
                if numbers:
                    values[of_group] = numbers
        state.groups[group.text(0)] = found
    bag = root.table(3)
    if bag is not None:
        for entry in bag.tables(0):
            state.properties[entry.text(0)] = entry.number(1, "Int64")
        for entry in bag.tables(1):
            state.properties[entry.text(0)] = entry.number(1, "Float32", 0.0)
        for entry in bag.tables(2):
            state.properties[entry.text(0)] = entry.text(1)
    return state


def as_file(state: StoredState) -> bytes:
    """Return the bytes of a checkpoint file of 1.17 and newer. The library has loaded, and so checked, these bytes.

    Raises
    ------
    OrtrainError
        When the library rejects the checkpoint.
    """
    builder = _flatbuffers().Builder(1024)

    def table(size: int, *fields: Callable[[], None]) -> int:
        builder.StartObject(size)
        for add in fields:
            add()
        end: int = builder.EndObject()
        return end

    def offset(slot: int, value: int) -> Callable[[], None]:
        return lambda: builder.PrependUOffsetTRelativeSlot(slot, value, 0)

    def offsets(values: list[int]) -> int:
        builder.StartVector(4, len(values), 4)
        for value in reversed(values):
            builder.PrependUOffsetTRelative(value)
        end: int = builder.EndVector()
        return end

    def tensor(name: str, value: Tensor) -> int:
        title, raw = builder.CreateString(name), builder.CreateByteVector(value.raw)
        builder.StartVector(8, len(value.dims), 8)
        for dim in reversed(value.dims):
            builder.PrependInt64(dim)
        dims = builder.EndVector()
        return table(
            7,
            offset(0, title),
            offset(2, dims),
            lambda: builder.PrependInt32Slot(3, value.data_type, 0),
            offset(4, raw),
        )

    def tensors(entries: dict[str, Tensor]) -> int:
        return offsets([tensor(name, value) for name, value in sorted(entries.items())])

    def entry(name: str, value: int | float | str) -> int:
        title = builder.CreateString(name)
        if isinstance(value, str):
            text = builder.CreateString(value)
            return table(2, offset(0, title), offset(1, text))
        if isinstance(value, int):
            return table(2, offset(0, title), lambda: builder.PrependInt64Slot(1, value, 0))
        return table(2, offset(0, title), lambda: builder.PrependFloat32Slot(1, value, 0.0))

    def numbers(values: dict[str, float], double: bool) -> int:
        made = []
        for name, value in sorted(values.items()):
            title = builder.CreateString(name)
            add = builder.PrependFloat64Slot if double else builder.PrependFloat32Slot
            made.append(table(2, offset(0, title), partial(add, 1, value, 0.0)))
        return offsets(made)

    def optimizer(name: str, group: Group) -> int:
        parameters = []
        for parameter, moments in sorted(group.states.items()):
            title, values = builder.CreateString(parameter), tensors(moments)
            parameters.append(table(2, offset(0, title), offset(1, values)))
        groups = []
        for of_group in sorted({*group.settings, *group.scalars}):
            title = builder.CreateString(of_group)
            settings = numbers(group.settings.get(of_group, {}), double=False)
            scalars = numbers(group.scalars.get(of_group, {}), double=True)
            groups.append(table(3, offset(0, title), offset(1, settings), offset(2, scalars)))
        titles = [builder.CreateString(state) for state in group.state_names]
        title, states = builder.CreateString(name), offsets(parameters)
        fields = [
            offset(0, title),
            lambda: builder.PrependInt64Slot(1, group.step, 0),
            lambda: builder.PrependFloat32Slot(2, group.learning_rate, 0.0),
            offset(3, states),
        ]
        # Absent in files of onnxruntime.
        fields += [offset(4, offsets(groups))] * bool(groups) + [offset(5, offsets(titles))] * bool(titles)
        return table(6, *fields)

    # FlatBuffers cannot begin a table inside another one, so everything that a table refers to is written before it.
    parameters_of = [tensors(entries) for entries in (state.trained, state.frozen)]
    module = table(4, *(offset(i, vector) for i, vector in enumerate(parameters_of)))
    groups = [optimizer(name, group) for name, group in sorted(state.groups.items())]
    kinds = [
        {name: value for name, value in state.properties.items() if type(value) is kind}
        for kind in (int, float, str)
    ]
    vectors = [offsets([entry(name, value) for name, value in sorted(kind.items())]) for kind in kinds]
    bag = table(3, *(offset(i, vector) for i, vector in enumerate(vectors)))
    all_groups = offsets(groups)
    root = table(
        4,
        lambda: builder.PrependInt32Slot(0, _VERSION, 0),
        offset(1, module),
        offset(2, all_groups),
        offset(3, bag),
    )
    builder.Finish(root, b"ODTC")
    content = bytes(builder.Output())
    _ortrain.load_checkpoint_from_buffer(content)
    return content
