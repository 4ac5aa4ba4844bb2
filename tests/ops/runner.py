"""Runs models through the C interface by slot, like a C program, for the operator tests."""

from __future__ import annotations

import atexit
import contextlib
import csv
import ctypes
import functools
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import ortrain
import pytest
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]

_DATA = pathlib.Path(__file__).parents[1] / "data"
_LIBRARY = ctypes.CDLL(str(pathlib.Path(ortrain.__file__).parent / "lib" / "libortrain.so"))
_API_VERSION = 19
_BUILD_GRADIENT_MODEL = 16  # its slot in OrtrainApi

# Types whose elements are smaller than a byte: NumPy uses one byte for each.
_PACKED = frozenset({
    TensorProto.UINT4, TensorProto.INT4, TensorProto.FLOAT4E2M1, TensorProto.UINT2, TensorProto.INT2,
    TensorProto.FLOAT6E2M3, TensorProto.FLOAT6E3M2,
})  # fmt: skip

# Types whose numbers in C are not those of ONNX.
_IN_C = {TensorProto.FLOAT8E8M0: 26, TensorProto.UINT2: 24, TensorProto.INT2: 25}
_IN_ONNX = {number: kind for kind, number in _IN_C.items()}

with (_DATA / "OrtApi.csv").open(newline="") as _table:
    _SLOTS = {row["name"]: int(row["slot"]) for row in csv.DictReader(_table)}


class _ApiBase(ctypes.Structure):
    _fields_ = (
        ("GetApi", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)),
        ("GetVersionString", ctypes.c_void_p),
    )


_LIBRARY.OrtGetApiBase.restype = ctypes.POINTER(_ApiBase)
_LIBRARY.OrtrainGetApi.restype = ctypes.c_void_p
_ORT = _LIBRARY.OrtGetApiBase().contents.GetApi(_API_VERSION)
_ORTRAIN = _LIBRARY.OrtrainGetApi(2)


@functools.cache
def _function(table: int, slot: int, result: Any, kinds: tuple[Any, ...]) -> Any:
    address = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[slot]
    return ctypes.CFUNCTYPE(result, *kinds)(address)


def _slot(table: int, slot: int, result: Any, *arguments: Any) -> Any:
    kinds = tuple([type(a) if isinstance(a, ctypes._SimpleCData) else ctypes.c_void_p for a in arguments])
    return _function(table, slot, result, kinds)(*arguments)


def _plain(name: str, result: Any, *arguments: Any) -> Any:
    return _slot(_ORT, _SLOTS[name], result, *arguments)


def _check(status: int | None) -> None:
    if not status:
        return
    message = _plain("GetErrorMessage", ctypes.c_char_p, status).decode()
    _plain("ReleaseStatus", None, status)
    raise RuntimeError(message)


def _call(name: str, *arguments: Any) -> None:
    _check(_plain(name, ctypes.c_void_p, *arguments))


def _size(value: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(value)


def _made(name: str, *arguments: Any) -> int:
    """Call a function that returns a handle in its last argument."""
    out = ctypes.c_void_p()
    _call(name, *arguments, ctypes.byref(out))
    assert out.value is not None
    return out.value


_ENV = _made("CreateEnv", ctypes.c_int(3), ctypes.create_string_buffer(b"tests"))
_OPTIONS = _made("CreateSessionOptions")
_DISABLE_ALL, _ENABLE_ALL = 0, 99  # of GraphOptimizationLevel
_MEMORY = _made("CreateCpuMemoryInfo", ctypes.c_int(1), ctypes.c_int(0))
_ALLOCATOR = _made("GetAllocatorWithDefaultOptions")
for _kind, _handle in (("MemoryInfo", _MEMORY), ("SessionOptions", _OPTIONS), ("Env", _ENV)):
    atexit.register(_plain, f"Release{_kind}", None, ctypes.c_void_p(_handle))


class _Passes:
    """Whether sessions run their passes, and whether that made a difference."""

    def __init__(self) -> None:
        self.watched = False
        self.changed = False
        memory = (
            "/dev/shm" if os.path.isdir("/dev/shm") else None
        )  # files are written to the disk before they have a name
        folder = tempfile.TemporaryDirectory(prefix="ortrain-ops-", dir=memory)
        atexit.register(folder.cleanup)
        self._rewritten = pathlib.Path(folder.name, "rewritten.onnx")
        self._writing = _made("CreateSessionOptions")
        atexit.register(_plain, "ReleaseSessionOptions", None, ctypes.c_void_p(self._writing))
        _call("SetOptimizedModelFilePath", self._writing, str(self._rewritten).encode())

    def switch(self, on: bool) -> None:
        """Make later sessions run their passes, as they do by default, or none."""
        _set_level(_OPTIONS, on)

    def watch(self, on: bool) -> None:
        """Set `changed` once a pass changes the graph of a session, if on."""
        self.watched, self.changed = on, False

    def note(self, model: bytes) -> None:
        if self.watched and not self.changed:
            self.changed = self._differ(model)

    @functools.lru_cache(maxsize=64)  # noqa: B019 - there is one of this class
    def _differ(self, model: bytes) -> bool:
        """Whether the graph that a session runs is another one with passes; true if that cannot be known."""
        return self._graph(model, True) != self._graph(model, False)

    def _graph(self, model: bytes, on: bool) -> bytes | object:
        _set_level(self._writing, on)
        try:
            _plain("ReleaseSession", None, _load(model, self._writing))
            return self._rewritten.read_bytes()
        except RuntimeError:  # an invalid model, or one that cannot be written
            return object()


def _set_level(options: int, on: bool) -> None:
    _call("SetSessionGraphOptimizationLevel", options, ctypes.c_int(_ENABLE_ALL if on else _DISABLE_ALL))


def _taken(address: int) -> str:
    text = ctypes.string_at(address).decode()
    _call("AllocatorFree", _ALLOCATOR, address)
    return text


def _load(model: bytes, options: int) -> int:
    return _made("CreateSessionFromArray", _ENV, model, _size(len(model)), options)


passes = _Passes()


def _output_names(session: int) -> list[str]:
    count = ctypes.c_size_t()
    _call("SessionGetOutputCount", session, ctypes.byref(count))
    return [_taken(_made("SessionGetOutputName", session, _size(i), _ALLOCATOR)) for i in range(count.value)]


def _packed(array: Array) -> tuple[int, Array]:
    """The array's element type as a number, and the elements as they are stored in a tensor."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    if kind in _PACKED:
        return kind, np.frombuffer(numpy_helper.from_array(array).raw_data, np.uint8)
    return kind, array


def _value_of(kind: int, memory: Array, dims: tuple[int, ...]) -> int:
    shape = (ctypes.c_int64 * max(len(dims), 1))(*dims)
    return _made(
        "CreateTensorWithDataAsOrtValue", _MEMORY, memory.ctypes.data, _size(memory.nbytes), shape, _size(len(dims)),
        ctypes.c_int(_IN_C.get(kind, kind)),
    )  # fmt: skip


def _array_of(value: int) -> Array:
    info = _made("GetTensorTypeAndShape", value)
    number, rank = ctypes.c_int(), ctypes.c_size_t()
    _call("GetTensorElementType", info, ctypes.byref(number))
    kind = _IN_ONNX.get(number.value, number.value)
    _call("GetDimensionsCount", info, ctypes.byref(rank))
    shape = (ctypes.c_int64 * max(rank.value, 1))()
    _call("GetDimensions", info, shape, rank)
    _plain("ReleaseTensorTypeAndShapeInfo", None, info)
    size = ctypes.c_size_t()
    _call("GetTensorSizeInBytes", value, ctypes.byref(size))
    data = ctypes.string_at(_made("GetTensorMutableData", value), size.value) if size.value else b""
    dims = tuple(shape)[: rank.value]
    if kind in _PACKED:
        return np.asarray(numpy_helper.to_array(TensorProto(data_type=kind, dims=dims, raw_data=data)))
    return np.frombuffer(data, helper.tensor_dtype_to_np_dtype(kind)).reshape(dims).copy()


def run_model(model: bytes, inputs: Mapping[str, Array], repeat: int = 1) -> dict[str, Array]:
    """Run a model and return all its outputs by name.

    Parameters
    ----------
    model
        A serialized ONNX model.
    inputs
        A value for each input. Types that NumPy does not have are those of ml_dtypes.
    repeat
        How many times to run; the last result is returned.

    Raises
    ------
    RuntimeError
        With the library's message.
    """
    return run_in_turn(model, [inputs] * repeat)[-1]


def run_in_turn(model: bytes, feeds: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """Run a model once for each set of inputs, all in one session. See `run_model`."""
    with Session(model) as session:
        return [session.run(inputs) for inputs in feeds]


#: Whether a run includes all files of tests/ops.
WHOLE = pytest.StashKey[bool]()
#: The operators, by domain and type, of the models that were loaded.
LOADED: set[tuple[str, str]] = set()


def _note_operators(graph: GraphProto) -> None:
    for node in graph.node:
        LOADED.add((node.domain, node.op_type))
        for attribute in node.attribute:
            _note_operators(attribute.g)


class Session:
    """A model that is loaded once and runs any number of times; used in a with statement.

    Parameters
    ----------
    model
        A serialized ONNX model.
    """

    def __init__(self, model: bytes) -> None:
        passes.note(model)
        self._handle = _load(model, _OPTIONS)
        _note_operators(ModelProto.FromString(model).graph)
        self._outputs: list[str] | None = None
        self._texts: dict[str, ctypes.Array[ctypes.c_char]] = {}
        self._kept: list[int] = []

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        for value in self._kept:
            _plain("ReleaseValue", None, value)
        _plain("ReleaseSession", None, self._handle)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return all outputs by name."""
        if self._outputs is None:
            self._outputs = _output_names(self._handle)
        arrays = {name: np.require(array, requirements=["C", "ALIGNED"]) for name, array in inputs.items()}
        memories = [_packed(array) for array in arrays.values()]
        values = [
            _value_of(kind, memory, array.shape)
            for (kind, memory), array in zip(memories, arrays.values(), strict=True)
        ]
        try:
            outputs = (ctypes.c_void_p * len(self._outputs))()
            _call(
                "Run", self._handle, None, self._pointers(arrays), (ctypes.c_void_p * max(len(values), 1))(*values),
                _size(len(values)), self._pointers(self._outputs), _size(len(outputs)), outputs,
            )  # fmt: skip
            results = {name: _array_of(value) for name, value in zip(self._outputs, outputs, strict=True)}
            for value in outputs:
                _plain("ReleaseValue", None, value)
            return results
        finally:
            for value in values:
                _plain("ReleaseValue", None, value)

    def number_of(self, inputs: Mapping[str, Array], moved: str, output: str) -> Callable[[Array], float]:
        """A function that returns an output of one element for other elements of one input.

        It makes all values once and runs with them in place, which takes a fraction of the time of `run`.
        """
        result = self.run(inputs)[output]
        assert result.size == 1, f"{output} has shape {result.shape}"
        arrays = {name: np.require(array, requirements=["C", "ALIGNED"]) for name, array in inputs.items()}
        arrays[moved] = arrays[moved].copy()
        memories = [(*_packed(array), array.shape) for array in [*arrays.values(), result]]
        values = [_value_of(*memory) for memory in memories]
        self._kept += values
        given, found = (ctypes.c_void_p * len(arrays))(*values[:-1]), (ctypes.c_void_p * 1)(values[-1])
        arguments = (
            self._handle, None, self._pointers(arrays), given, _size(len(arrays)), self._pointers([output]), _size(1), found,
        )  # fmt: skip

        def number(elements: Array) -> float:
            np.copyto(arrays[moved], elements)
            result.fill(np.nan)
            _call("Run", *arguments)
            assert memories  # the values refer to it
            return float(result.reshape(()))

        return number

    def _pointers(self, names: Iterable[str]) -> ctypes.Array[ctypes.c_void_p]:
        texts = [self._texts.setdefault(n, ctypes.create_string_buffer(n.encode())) for n in names]
        return (ctypes.c_void_p * max(len(texts), 1))(*map(ctypes.addressof, texts))


_DRAWING = (b"Dropout", b"Random", b"Bernoulli", b"Multinomial")


@contextlib.contextmanager
def repeatable(model: bytes) -> Iterator[Callable[[Mapping[str, Array]], dict[str, Array]]]:
    """A function that runs the model, and returns the same for the same inputs.

    The runs of a session draw different random numbers; sessions draw the same ones. So a model that draws some is loaded
    for each run.
    """
    if any(name in model for name in _DRAWING):
        yield functools.partial(run_model, model)
        return
    with Session(model) as session:
        yield session.run


@contextlib.contextmanager
def numbers(model: bytes) -> Iterator[Callable[[Mapping[str, Array], str, str], Callable[[Array], float]]]:
    """`Session.number_of`, with the same random numbers in each run; see `repeatable`."""
    if any(name in model for name in _DRAWING):
        yield (
            lambda inputs, moved, output: (
                lambda elements: float(run_model(model, {**inputs, moved: elements})[output])
            )
        )
        return
    with Session(model) as session:
        yield session.number_of


def gradient_model(model: bytes, values: Sequence[str], loss: str) -> bytes:
    """Add ``<value>_grad`` outputs to a model that ends in a scalar loss.

    Parameters
    ----------
    model
        A serialized ONNX model.
    values
        Inputs or initializers whose gradients are requested.
    loss
        The output that is differentiated.
    """
    texts = [ctypes.create_string_buffer(v.encode()) for v in values]
    pointers = (ctypes.c_void_p * max(len(texts), 1))(*[ctypes.cast(t, ctypes.c_void_p).value for t in texts])
    out, length = ctypes.c_void_p(), ctypes.c_size_t()
    _check(
        _slot(
            _ORTRAIN, _BUILD_GRADIENT_MODEL, ctypes.c_void_p, ctypes.create_string_buffer(model, len(model)), _size(len(model)),
            pointers, _size(len(texts)), ctypes.create_string_buffer(loss.encode()), _ALLOCATOR, ctypes.byref(out),
            ctypes.byref(length),
        )
    )  # fmt: skip
    result = ctypes.string_at(out.value or 0, length.value)
    _call("AllocatorFree", _ALLOCATOR, out.value)
    return result
