"""The two libraries that the cases are run in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, TensorProto, helper

from .cases import Array, Value

Run = Callable[[dict[str, Value]], list[Any]]
"""A loaded model: maps inputs by name to the outputs in order."""


def prepare_ours(model: ModelProto) -> Run:
    """Return a model in our session."""
    import ortrain

    ortrain.set_seed(1)
    session = ortrain.InferenceSession(model.SerializeToString())
    return lambda feeds: session.run(None, feeds)


def prepare_stock(model: ModelProto) -> Run:
    """Return a model in a session of stock onnxruntime on the CPU."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    onnxruntime.set_seed(1)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def run(feeds: dict[str, Value]) -> list[Any]:
        declared = [*session.get_inputs(), *session.get_outputs()]
        if any(not value.type.startswith("tensor") for value in declared):
            return list(session.run(None, feeds))
        values = {name: _stock_value(np.asarray(array)) for name, array in feeds.items()}
        return [_stock_array(value) for value in session.run_with_ort_values(None, values)]

    return run


PREPARE = {"ortrain": prepare_ours, "onnxruntime": prepare_stock}

_BITS = {
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.FLOAT4E2M1: 4,
    TensorProto.INT2: 2,
    TensorProto.UINT2: 2,
}
"""Types with several elements per byte, the first one in the lowest bits."""


def _stock_value(array: Array) -> Any:
    """Return an array as a value of onnxruntime, which accepts types that NumPy lacks as their bits."""
    from onnxruntime import OrtValue

    if array.dtype.kind != "V" and array.dtype.type.__module__ != ml_dtypes.bfloat16.__module__:
        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    bits = np.ascontiguousarray(array).view(np.uint16 if array.itemsize == 2 else np.uint8)
    if kind in _BITS:
        width = _BITS[kind]
        each = 8 // width
        elements = np.pad(bits.ravel() & (2**width - 1), (0, -bits.size % each)).reshape(-1, each)
        packed = (elements << np.arange(0, 8, width)).sum(axis=1).astype(np.uint8)
        bits = np.pad(packed, (0, bits.size - packed.size)).reshape(array.shape)
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(bits.reshape(array.shape), kind)
    value._bits = bits  # the value refers to this memory
    return value


def _stock_array(value: Any) -> Array:
    kind = getattr(TensorProto, value.data_type().removeprefix("tensor(").removesuffix(")").upper(), 0)
    if kind not in _FOREIGN:
        return value.numpy()
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    shape = tuple(value.shape())
    count = int(np.prod(shape))
    width = _BITS.get(kind, dtype.itemsize * 8)
    size = (count * width + 7) // 8
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), size) if size else b"", np.uint8)
    if kind in _BITS:
        raw = ((raw[:, None] >> np.arange(0, 8, width)) & (2**width - 1)).astype(np.uint8).ravel()[:count]
        if kind in (TensorProto.INT4, TensorProto.INT2):
            raw = ((raw.astype(np.int8) << (8 - width)) >> (8 - width)).astype(np.int8)
    return raw.view(dtype).reshape(shape).copy()


_FOREIGN = {
    TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ, TensorProto.FLOAT8E8M0, *_BITS,
}  # fmt: skip
