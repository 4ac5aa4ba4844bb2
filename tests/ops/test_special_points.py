"""Gradients at zeros, ties, infinities, bounds and empty axes are those of PyTorch.

Finite differences say nothing about such points, so the oracle is a recording: ``tests/data/special_points`` has inputs,
incoming gradients, outputs and gradients of PyTorch 2.13 in double precision. Each case runs in double, and in float with
the elements that float can hold. What deviates on purpose is listed in `DEVIATIONS` with the reason, and has to deviate
in that very way; what has no case is listed in `WITHOUT_CASE`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gradient_coverage as coverage
import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, make_model
from onnx import TensorProto, helper
from runner import gradient_model, run_model

RECORDED = pathlib.Path(__file__).parents[1] / "data" / "special_points" / "torch_2.13.json"


@dataclass(frozen=True)
class Case:
    """A recorded case; `inputs` are those that have a gradient."""

    name: str
    op: str
    attributes: dict[str, Any]
    inputs: list[Array]
    dy: Array
    output: Array
    gradients: list[Array | None]

    @property
    def arrays(self) -> list[Array]:
        return [*self.inputs, self.dy, self.output, *(g for g in self.gradients if g is not None)]


def array_of(recorded: Mapping[str, Any]) -> Array:
    return np.array([float(value) for value in recorded["values"]]).reshape(recorded["shape"])


def load_cases() -> list[Case]:
    cases: list[Case] = []
    for recorded in json.loads(RECORDED.read_text())["cases"]:
        parts = [recorded["op"], *(f"{k}={v}" for k, v in recorded["attributes"].items()), recorded.get("note", "")]
        name = " ".join(filter(None, parts))
        count = sum(case.name.split("#")[0] == name for case in cases)
        cases.append(
            Case(
                name=f"{name}#{count + 1}" if count else name,
                op=recorded["op"],
                attributes=recorded["attributes"],
                inputs=[array_of(x) for x in recorded["inputs"]],
                dy=array_of(recorded["dy"]),
                output=array_of(recorded["output"]),
                gradients=[None if g is None else array_of(g) for g in recorded["gradients"]],
            )
        )
    return cases


CASES = load_cases()


def in_float(case: Case) -> Case | None:
    """The case with the elements whose numbers float holds without overflow or underflow; None where none are left."""
    limits = np.finfo(np.float32)

    def fits(x: Array) -> Array:
        size = np.abs(x)
        return ~np.isfinite(x) | (size == 0) | ((size >= limits.tiny) & (size <= limits.max))

    if all(fits(x).all() for x in case.arrays):
        return case
    shape = case.dy.shape
    kept = np.ones(shape, bool)
    for x in case.arrays:
        if x.shape == shape:
            kept &= fits(x)
        elif not fits(x).all():
            return None

    def cut(x: Array) -> Array:
        return x[kept] if x.shape == shape else x

    return Case(
        case.name, case.op, case.attributes, [cut(x) for x in case.inputs], cut(case.dy), cut(case.output),
        [None if g is None else cut(g) for g in case.gradients],
    )  # fmt: skip


def integers(*values: int) -> Array:
    return np.array(values, np.int64)


def arguments(case: Case, dtype: Any) -> tuple[Op, list[Array], list[int]]:
    """The node of a case, its inputs, and which of them the recorded gradients belong to.

    PyTorch's arguments are attributes in the recording; where they are inputs in ONNX, or integers that the note alone
    names, they are put in their places here.
    """
    attributes = dict(case.attributes)
    inputs = [x.astype(dtype) for x in case.inputs]
    wrt = list(range(len(inputs)))
    opset = {"Gelu": 20, "Mish": 18, "HardSwish": 14, "CumProd": 26, "Swish": 24}.get(case.op, 17)
    match case.op:
        case "ReduceSum" if "axes" in attributes:
            inputs.append(integers(*attributes.pop("axes")))
        case "Clip":
            inputs += [np.array(attributes.pop(bound), dtype) for bound in ("min", "max")]
        case "Where":
            inputs.insert(0, np.array([True, False, True]))
            wrt = [1, 2]
        case "SoftmaxCrossEntropyLoss":
            inputs.append(integers(1, 0) if attributes["reduction"] == "none" else integers(-100, -100))
        case "TopK":
            inputs.append(integers(attributes.pop("k")))
        case "CumProd":
            inputs.append(np.array(attributes.pop("axis"), np.int64))
        case "Expand":
            inputs.append(integers(*case.output.shape))
    return Op(case.op, attributes, opset=opset, outputs=2 if case.op == "TopK" else 1), inputs, wrt


def run_case(case: Case, dtype: Any) -> tuple[Array, list[Array]]:
    """The output, and its gradients from the recorded incoming one, by the models that the core builds."""
    op, inputs, wrt = arguments(case, dtype)
    tail = [
        helper.make_node("Mul", ["y0", "dy"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted"], ["loss"], keepdims=0),
    ]
    constants = [i for i in range(len(inputs)) if i not in wrt]
    model = make_model(
        op, inputs, constants=constants, extra_nodes=tail, extra_constants={"dy": case.dy.astype(dtype)},
        outputs=["loss", "y0"],
    )  # fmt: skip
    kind = TensorProto.DOUBLE if dtype == np.float64 else TensorProto.FLOAT
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("loss", kind, []))
    model.graph.output[1].CopyFrom(helper.make_tensor_value_info("y0", kind, case.output.shape))
    feeds = {f"x{i}": inputs[i] for i in wrt}
    forward = model.SerializeToString()
    results = run_model(gradient_model(forward, [f"x{i}" for i in wrt], "loss"), feeds)
    return run_model(forward, feeds)["y0"], [results[f"x{i}_grad"] for i in wrt]


def exact(attributes: Mapping[str, Any]) -> bool:
    """Whether ONNX, whose attributes are float32, can say what PyTorch was given."""
    return all(float(np.float32(v)) == v for v in attributes.values() if isinstance(v, float))


DEVIATIONS: dict[str, Any] = {}


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["double", "float"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_special_points(case: Case, dtype: Any) -> None:
    fitting = case if dtype == np.float64 else in_float(case)
    assert fitting is not None
    output, gradients = run_case(fitting, dtype)
    rtol = 1e-6 if dtype == np.float32 else 1e-12 if exact(case.attributes) and case.op != "Selu" else 1e-7
    np.testing.assert_allclose(output, fitting.output, rtol, rtol * 0.1, err_msg=f"{case.name}: output")
    for i, (found, expected) in enumerate(zip(gradients, fitting.gradients, strict=True)):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol, rtol * 0.1, err_msg=f"{case.name}: gradient of input {i}")
