"""The node cases of the onnx package, which it makes anew, in ten seconds, in each program that asks for them."""

from __future__ import annotations

import functools
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx

_KEPT = (
    Path(__file__).resolve().parent.parent
    / "build"
    / f"node-cases-{onnx.__version__}-{np.__version__}-{ml_dtypes.__version__}.pickle"
)


@functools.cache
def node_cases() -> list[Any]:
    """All node cases; made once, and read from build/ from then on."""
    if _KEPT.exists():
        return list(pickle.loads(_KEPT.read_bytes()))
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases are computed with NumPy and may overflow
        cases = load_model_tests(kind="node")
    _KEPT.parent.mkdir(exist_ok=True)
    partial = _KEPT.with_suffix(f".{os.getpid()}")
    partial.write_bytes(pickle.dumps(cases))
    partial.replace(_KEPT)  # another process may do the same
    return cases
