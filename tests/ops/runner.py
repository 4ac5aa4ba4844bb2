"""Runs models through the C interface by slot, like a C program, for the operator tests."""

from __future__ import annotations

import atexit
import csv
import ctypes
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ortrain
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

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
_ORTRAIN = _LIBRARY.OrtrainGetApi(1)


def _slot(table: int, slot: int, result: Any, *arguments: Any) -> Any:
    address = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[slot]
    kinds = [type(a) if isinstance(a, ctypes._SimpleCData) else ctypes.c_void_p for a in arguments]
    return ctypes.CFUNCTYPE(result, *kinds)(address)(*arguments)


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


def switch_passes(on: bool) -> None:
    """Make later sessions run their passes, as they do by default, or none."""
    level = _ENABLE_ALL if on else _DISABLE_ALL
    _call("SetSessionGraphOptimizationLevel", _OPTIONS, ctypes.c_int(level))


def _taken(address: int) -> str:
    text = ctypes.string_at(address).decode()
    _call("AllocatorFree", _ALLOCATOR, address)
    return text


def _names(session: int, kind: str) -> list[str]:
    count = ctypes.c_size_t()
    _call(f"SessionGet{kind}Count", session, ctypes.byref(count))
    return [_taken(_made(f"SessionGet{kind}Name", session, _size(i), _ALLOCATOR)) for i in range(count.value)]


def _packed(array: Array) -> tuple[int, Array]:
    """The array's element type as a number, and the elements as they are stored in a tensor."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    if kind in _PACKED:
        return kind, np.frombuffer(numpy_helper.from_array(array).raw_data, np.uint8)
    return kind, array


def _value_of(kind: int, memory: Array, extents: tuple[int, ...]) -> int:
    shape = (ctypes.c_int64 * max(len(extents), 1))(*extents)
    return _made(
        "CreateTensorWithDataAsOrtValue", _MEMORY, memory.ctypes.data, _size(memory.nbytes), shape, _size(len(extents)),
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
    extents = tuple(shape)[: rank.value]
    if kind in _PACKED:
        return np.asarray(numpy_helper.to_array(TensorProto(data_type=kind, dims=extents, raw_data=data)))
    return np.frombuffer(data, helper.tensor_dtype_to_np_dtype(kind)).reshape(extents).copy()


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
    session = _made(
        "CreateSessionFromArray",
        _ENV,
        ctypes.create_string_buffer(model, len(model)),
        _size(len(model)),
        _OPTIONS,
    )
    try:
        return [_run(session, inputs) for inputs in feeds]
    finally:
        _plain("ReleaseSession", None, session)


def _run(session: int, inputs: Mapping[str, Array]) -> dict[str, Array]:
    arrays = {name: np.require(array, requirements=["C", "ALIGNED"]) for name, array in inputs.items()}
    memories = [_packed(array) for array in arrays.values()]
    values = [
        _value_of(kind, memory, array.shape)
        for (kind, memory), array in zip(memories, arrays.values(), strict=True)
    ]
    try:
        wanted = _names(session, "Output")
        texts = [ctypes.create_string_buffer(n.encode()) for n in [*arrays, *wanted]]
        pointers = [ctypes.cast(t, ctypes.c_void_p).value for t in texts]
        outputs = (ctypes.c_void_p * len(wanted))()
        _call(
            "Run", session, None, (ctypes.c_void_p * max(len(values), 1))(*pointers[: len(values)]),
            (ctypes.c_void_p * max(len(values), 1))(*values), _size(len(values)),
            (ctypes.c_void_p * len(wanted))(*pointers[len(values) :]), _size(len(wanted)), outputs,
        )  # fmt: skip
        results = {name: _array_of(value) for name, value in zip(wanted, outputs, strict=True)}
        for value in outputs:
            _plain("ReleaseValue", None, value)
        return results
    finally:
        for value in values:
            _plain("ReleaseValue", None, value)


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
