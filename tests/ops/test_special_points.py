"""Gradients at zeros, ties, infinities, bounds and empty axes are those of PyTorch.

Finite differences cannot test such points, so the oracle is a recording: ``tests/data/special_points`` has inputs,
incoming gradients, outputs and gradients of PyTorch 2.13 in double precision. Each case runs in double, and in float with
the elements that float can hold. Intended deviations are listed in `DEVIATIONS` with the reason, and have to be exactly
as listed. The test module of an operator without a case says why in `SPECIAL_POINTS`, by the reasons of `WITHOUT_CASE`.
"""

from __future__ import annotations

import ast
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gradient_coverage as coverage
import numpy as np
import pytest
from helpers import Array, Op, make_model
from onnx import helper
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
    gradients: list[Array]

    @property
    def arrays(self) -> list[Array]:
        return [*self.inputs, self.dy, self.output, *self.gradients]


def array_of(recorded: Mapping[str, Any]) -> Array:
    return np.array([float(value) for value in recorded["values"]]).reshape(recorded["shape"])


def load_cases() -> list[Case]:
    cases: list[Case] = []
    for recorded in json.loads(RECORDED.read_text())["cases"]:
        parts = [
            recorded["op"],
            *(f"{k}={v}" for k, v in recorded["attributes"].items()),
            recorded.get("note", ""),
        ]
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
                gradients=[array_of(g) for g in recorded["gradients"]],
            )
        )
    return cases


CASES = load_cases()


def in_float(case: Case) -> Case:
    """The case with those elements that float represents without overflow or underflow."""
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
        else:
            assert fits(x).all(), f"{case.name}: float does not hold it, and no element can be left out"

    def cut(x: Array) -> Array:
        return x[kept] if x.shape == shape else x

    return replace(
        case,
        inputs=[cut(x) for x in case.inputs],
        dy=cut(case.dy),
        output=cut(case.output),
        gradients=[cut(g) for g in case.gradients],
    )


def integers(*values: int) -> Array:
    return np.array(values, np.int64)


def arguments(case: Case, dtype: Any) -> tuple[Op, list[Array], list[int]]:
    """The node of a case, its inputs, and which of them the recorded gradients belong to.

    PyTorch's arguments are attributes in the recording; if they are inputs in ONNX, or integers that only the note
    names, they are put in place here.
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
        case "LayerNormalization":
            inputs.append(np.ones(case.output.shape[-1], dtype))
        case "Expand":
            inputs.append(integers(*case.output.shape))
    return Op(case.op, attributes, opset=opset, outputs=2 if case.op == "TopK" else 1), inputs, wrt


def run_case(case: Case, dtype: Any) -> tuple[Array, list[Array]]:
    """The output, and its gradients from the recorded incoming one, by the models that the core builds.

    Where gradients stop, which in PyTorch is a gradient of 0, the loss also depends on the inputs directly: each gets 1
    from it, which is subtracted again.
    """
    op, inputs, wrt = arguments(case, dtype)
    stops = coverage.registered()["", case.op] == "stop"
    nodes = [
        helper.make_node("Mul", ["y0", "dy"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted"], ["sum_y"], keepdims=0),
    ]
    terms = ["sum_y"]
    for i in wrt if stops else ():
        nodes.append(helper.make_node("ReduceSum", [f"x{i}"], [f"sum_{i}"], keepdims=0))
        terms.append(f"sum_{i}")
    nodes.append(helper.make_node("Sum", terms, ["loss"]))
    constants = [i for i in range(len(inputs)) if i not in wrt]
    model = make_model(
        op, inputs, constants=constants, extra_nodes=nodes, extra_constants={"dy": case.dy.astype(dtype)},
        outputs=["loss", "y0"],
    )  # fmt: skip
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("loss", kind, []))
    model.graph.output[1].CopyFrom(helper.make_tensor_value_info("y0", kind, case.output.shape))
    feeds = {f"x{i}": inputs[i] for i in wrt}
    forward = model.SerializeToString()
    results = run_model(gradient_model(forward, [f"x{i}" for i in wrt], "loss"), feeds)
    gradients = [results[f"x{i}_grad"] - (1 if stops else 0) for i in wrt]
    return run_model(forward, feeds)["y0"], gradients


@dataclass(frozen=True)
class Deviation:
    """Where a case differs from PyTorch on purpose: values by flat index, of the output and of the first gradient."""

    reason: str
    output: Mapping[int, float] = field(default_factory=dict)
    gradient: Mapping[int, float] = field(default_factory=dict)
    dtypes: tuple[Any, ...] = (np.float64, np.float32)
    everywhere: bool = True  # otherwise only in some builds, while the others agree with PyTorch


DEVIATIONS = {
    "Softsign": Deviation(
        "the derivative 1 / (1 + |x|)^2 has the limit 0; PyTorch differentiates the quotient, and divides infinities",
        gradient={0: 0.0, 10: 0.0},
    ),
    "Gelu approximate=tanh": Deviation(
        "the derivative has the limits 0 and 1; PyTorch multiplies a vanished factor with one that overflowed, which in "
        "float it does from 1e13 on",
        gradient={0: 0.0, 10: 1.0},
    ),
    "LpNormalization axis=1 p=2 ONNX defines the output of a zero vector as 0": Deviation(
        "ONNX defines the output of a zero vector as 0, and a constant has the gradient 0",
        output={2: 0.0, 3: 0.0},
        gradient={2: 0.0, 3: 0.0},
    ),
}  # fmt: skip

#: Relative errors of float inherent in the formula, also in PyTorch, if they exceed 1e-6.
ROUNDED = {
    # dx = e^(x - y) at y = 1000.69 has the error of y, half of 2^-14
    "ReduceLogSumExp axes=[1] keepdims=0": 1e-4,
    # the difference of two values near 2 is a tenth
    "LayerNormalization axis=-1 epsilon=1e-05": 1e-5,
}


def deviated(case: Case, deviation: Deviation) -> Case:
    def put(x: Array, values: Mapping[int, float]) -> Array:
        changed = x.copy()
        for i, value in values.items():
            assert not np.array_equal(x.flat[i], value, equal_nan=True), "PyTorch has this value too"
            changed.flat[i] = value
        return changed

    gradients = [put(case.gradients[0], deviation.gradient), *case.gradients[1:]]
    return replace(case, output=put(case.output, deviation.output), gradients=gradients)


def compare(case: Case, dtype: Any, output: Array, gradients: Sequence[Array]) -> None:
    """Compare values with those of a case, including infinities and NaN."""
    exact = case.op != "Selu" and all(  # attributes of ONNX are float32, and so are the defaults of Selu
        float(np.float32(v)) == v for v in case.attributes.values() if isinstance(v, float)
    )
    rtol = ROUNDED.get(case.name, 1e-6) if dtype == np.float32 else 1e-12 if exact else 1e-7
    np.testing.assert_allclose(output, case.output, rtol, rtol * 0.1, err_msg="output")
    for i, (found, expected) in enumerate(zip(gradients, case.gradients, strict=True)):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol, rtol * 0.1, err_msg=f"gradient of input {i}")


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["double", "float"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients_at_special_points_are_those_of_pytorch(case: Case, dtype: Any) -> None:
    deviation = DEVIATIONS.get(case.name)
    expected = [case]
    if deviation and dtype in deviation.dtypes:
        expected = [deviated(case, deviation), *([] if deviation.everywhere else expected)]
    fitting = [in_float(e) if dtype == np.float32 else e for e in expected]
    output, gradients = run_case(fitting[0], dtype)
    for last, wanted in zip((False,) * (len(fitting) - 1) + (True,), fitting, strict=True):
        try:
            compare(wanted, dtype, output, gradients)
        except AssertionError:
            if last:
                raise
        else:
            return


def test_every_deviation_belongs_to_a_case() -> None:
    assert {*DEVIATIONS, *ROUNDED} <= {case.name for case in CASES}


#: What `SPECIAL_POINTS` of a test module may say of operators without a recorded case, and what that means; or "as" and an
#: operator that has cases.
WITHOUT_CASE = {
    "linear": "adds, moves or is linear in each operand, so that no point is special",
    "not in PyTorch": "PyTorch has no such function",
    "not recorded": "PyTorch has the function, but the recording has no points of it",
}


def declared(folder: pathlib.Path) -> dict[str, str]:
    """What the test modules of a folder say in `SPECIAL_POINTS`, by operator."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SPECIAL_POINTS":
                for reason, names in ast.literal_eval(node.value).items():
                    assert not found.keys() & set(names), f"{path}: {reason}: another module has these too"
                    found |= dict.fromkeys(names, reason)
    return found


def test_every_differentiable_operator_has_a_case_or_a_reason() -> None:
    """A new operator needs a recorded case, or a reason in the `SPECIAL_POINTS` of its test module.

    An operator that computes a gradient needs neither, because the cases of the operator whose gradient it is run it.
    """
    recorded = {case.op for case in CASES}
    reasons = declared(pathlib.Path(__file__).parent)
    assert set(reasons.values()) <= {*WITHOUT_CASE, *(f"as {name}" for name in recorded)}
    differentiable = {
        coverage.name_of(key)
        for key, gradient in coverage.registered().items()
        if gradient == "yes" and not re.search(r"Grad(_\d+)?$", key[1])
    }
    assert sorted(reasons) == sorted(differentiable - recorded)


def test_the_test_module_of_a_new_operator_declares_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "tensor").mkdir()
    module = tmp_path / "tensor/test_peaks.py"
    module.write_text('SPECIAL_POINTS = {"not in PyTorch": ["Peaks"], "linear": ["Valleys"]}\n')
    assert declared(tmp_path) == {"Peaks": "not in PyTorch", "Valleys": "linear"}
    module.with_name("test_other.py").write_text('SPECIAL_POINTS = {"as Relu": ["Peaks"]}\n')
    with pytest.raises(AssertionError, match="another module"):
        declared(tmp_path)
