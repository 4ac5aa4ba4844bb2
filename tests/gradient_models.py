"""Models that contain gradients, and the expected values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from differences import central_differences
from onnx import TensorProto, helper, numpy_helper
from ortrain import InferenceSession

PREVIEW = "ai.onnx.preview.training"
DOUBLE = TensorProto.DOUBLE
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)


def tensor(name: str, shape: list, kind: int = DOUBLE) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: list, inputs: list, outputs: list, constants: Mapping[str, Array] | None = None, opset: int = 17
) -> bytes:
    given = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, given)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(PREVIEW, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def gradient(
    inputs: list[str], outputs: list[str], xs: list[str], y: str, zs: list[str] | None = None
) -> Any:
    attributes: dict[str, Any] = {"xs": xs, "y": y}
    if zs:
        attributes["zs"] = zs
    return helper.make_node("Gradient", inputs, outputs, domain=PREVIEW, **attributes)


def run(model: bytes, **feeds: Array) -> dict[str, Array]:
    session = InferenceSession(model)
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def differences(model: bytes, output: str, feeds: dict[str, Array], name: str, step: float = 1e-5) -> Array:
    """Return the gradient of the sum of an output by central differences."""
    session = InferenceSession(model)
    return central_differences(
        lambda moved: float(session.run([output], {**feeds, name: moved})[0].sum()), feeds[name], step
    )
