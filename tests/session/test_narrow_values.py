"""OrtValue and NumPy: types that NumPy does not have are converted through ml_dtypes."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from ortrain import OrtValue

BYTES = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
PACKED = ["int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"]


@pytest.mark.parametrize("name", BYTES)
def test_an_array_shares_memory_with_its_tensor(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    array = np.arange(1, 13).reshape(3, 4).astype(dtype)
    value = OrtValue.ortvalue_from_numpy(array)
    assert value.dtype == dtype
    assert value.data_ptr() == array.ctypes.data
    found = value.numpy()
    assert found.dtype == dtype
    assert found.tobytes() == array.tobytes()
    found[0, 0] = 4
    assert float(array[0, 0]) == 4


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (3, 5)])
@pytest.mark.parametrize("name", PACKED)
def test_packed_elements_take_a_byte_each_in_an_array(name: str, shape: tuple[int, ...]) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    array = np.resize(np.array([0, 1, -1, 2, -2, 1, 0]), shape)
    array = (np.abs(array) if name.startswith("uint") else array).astype(dtype)
    value = OrtValue.ortvalue_from_numpy(array)
    assert value.shape() == list(shape)
    found = value.numpy()
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.astype(np.float32), array.astype(np.float32))
    with pytest.raises(TypeError, match="DLPack"):
        value.__dlpack__()


def test_complex_numbers_share_memory() -> None:
    array = np.array([1 + 2j, 3 - 4j], np.complex64)
    value = OrtValue.ortvalue_from_numpy(array)
    assert value.data_type() == "tensor(complex64)"
    np.testing.assert_array_equal(np.from_dlpack(value), array)


def test_without_ml_dtypes_an_array_holds_the_bits() -> None:
    script = """
import sys
sys.modules["ml_dtypes"] = None
import numpy as np
from ortrain import OrtValue, _ortrain
for number, width in ((16, 2), (17, 1), (22, 1)):
    assert _ortrain.numpy_type(number) == np.dtype(f"u{width}"), number
"""
    subprocess.run([sys.executable, "-c", script], check=True)
