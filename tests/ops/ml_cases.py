"""What the tests of the operators of ai.onnx.ml share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, make_model, uniform

ML = "ai.onnx.ml"


def ml(kind: str, attributes: dict[str, Any] | None = None, outputs: int = 1, version: int = 3) -> Op:
    return Op(kind, attributes or {}, ML, outputs=outputs, version=version)


def check_against_onnxruntime(op: Op, inputs: Sequence[Array], rtol: float = 1e-5) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(make_model(op, inputs).SerializeToString(), options)
    check_forward(op, inputs, session.run(None, {f"x{i}": x for i, x in enumerate(inputs)}), rtol=rtol)


def check_gradient_in_float(op: Op, inputs: Sequence[Array]) -> None:
    """These operators return float for any input type, so steps and tolerances are large."""
    check_gradient(op, inputs, rtol=1e-3, step=1e-2)


NUMBERS = [np.float32, np.float64, np.int32, np.int64]


def features(dtype: Any, *shape: int) -> Array:
    return (uniform(*(shape or (4, 3)), low=-5, high=5)).astype(dtype)


TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]
