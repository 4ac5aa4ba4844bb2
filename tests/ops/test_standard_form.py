"""Gradients with operators of ONNX alone: the cases of the gradient tests once more, in ortrain and in stock onnxruntime.

The oracle for the values is the gradient with ortrain's own operators, which the tests of the operators compare with finite
differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gradient_coverage as coverage
import numpy as np
import onnx
import onnxruntime
import pytest
from helpers import _feeds, _with_loss, gradient_model, run, run_model
from onnx.reference import ReferenceEvaluator
from ortrain import _ortrain

Array = np.ndarray[Any, Any]
STANDARD = {"", "ai.onnx", "ai.onnx.ml"}

#: Operators whose gradient has no standard form.
WITHOUT = {
    "CumProd", "DFT", "DeformConv", "Det", "GridSample", "LinearAttention", "MaxRoiPool", "RoiAlign", "STFT",
}  # fmt: skip
#: Operators whose gradient has one only for some attributes and inputs, which the guide names.
PARTLY = {
    "AveragePool",
    "DequantizeLinear",
    "GRU",
    "LSTM",
    "LpPool",
    "MaxUnpool",
    "QuantizeLinear",
    "RNN",
    "Resize",
}


def standard(model: bytes) -> onnx.ModelProto:
    """The model with operators of ONNX alone, checked."""
    made = onnx.load_from_string(_ortrain.use_standard_operators(model))
    assert {entry.domain for entry in made.opset_import} <= STANDARD
    assert {node.domain for node in made.graph.node} <= STANDARD
    return made


def cases() -> list[tuple[coverage.Key, coverage.Case]]:
    """The smallest case of each operator for each set of its attributes, in an opset that has standard forms."""
    found = []
    for key, known in list(coverage.COVERED.items()):
        held = sorted(known.smallest.values(), key=lambda case: case.elements)
        found += [(key, case) for case in held if case.op.opset >= 17][:6]
    return found


def models(case: coverage.Case, dtype: Any) -> tuple[bytes, bytes, dict[str, Array], list[str]]:
    """The model of a case in a floating type, its gradient, its inputs, and the inputs with a gradient."""
    wanted, constants = case.arguments["wrt"], case.arguments["constants"]
    inputs = [x.astype(dtype) if x is not None and x.dtype == np.float64 else x for x in case.inputs]
    values = dict(zip([n for n in case.op.output_names if n], run(case.op, inputs, constants), strict=True))
    chosen = case.arguments["outputs"]
    entering = [
        name
        for name, value in values.items()
        if np.issubdtype(value.dtype, np.floating) and (chosen is None or int(name[1:]) in chosen)
    ]
    shapes = {name: values[name].shape for name in entering}
    model = _with_loss(
        case.op, inputs, constants, shapes, [n for n in entering if values[n].dtype != np.float64]
    )
    names = [f"x{i}" for i in wanted]
    forward = model.SerializeToString()
    return forward, gradient_model(forward, names, "loss"), _feeds(model, inputs), names


def near(
    found: Mapping[str, Array], expected: Mapping[str, Array], names: Sequence[str], rtol: float, what: str
) -> None:
    for name in names:
        e = np.asarray(expected[f"{name}_grad"])
        f = np.asarray(found[f"{name}_grad"])
        assert f.shape == e.shape, f"{what}: the gradient of {name} has shape {f.shape}, expected {e.shape}"
        largest = float(np.abs(e).max(initial=0.0))
        np.testing.assert_allclose(
            f, e, rtol, rtol * max(largest, 1e-3), err_msg=f"{what}: gradient of {name}"
        )


def test_gradients_with_operators_of_onnx_alone(request: pytest.FixtureRequest) -> None:
    tried, problems = 0, []
    refused: set[str] = set()
    written: set[str] = set()
    for key, case in cases():
        what = f"{case.op}"
        if case.op.domain not in STANDARD:
            continue
        _, model, feeds, names = models(case, np.float64)
        try:
            made = standard(model)
        except RuntimeError as error:
            refused.add(key[1])
            if key[1] not in WITHOUT | PARTLY:
                problems.append(f"{what}: {error}")
            continue
        try:
            expected = run_model(model, feeds)
            near(run_model(made.SerializeToString(), feeds), expected, names, 1e-9, what)
            written.add(key[1])
            tried += 1
        except (AssertionError, RuntimeError) as error:
            problems.append(f"{what}: {error}")
    assert not problems, f"{len(problems)} of {tried + len(problems)}\n" + "\n".join(problems)
    assert tried > 0 or not coverage.COVERED
    if request.config.stash[coverage.COMPLETE]:
        assert tried >= 174
        assert refused - written == WITHOUT, "the list of operators without a standard form is wrong"


def test_the_same_gradients_in_onnxruntime() -> None:
    """In float, because onnxruntime has few kernels for double; only operators that it has."""
    tried, problems = 0, []
    for _, case in cases():
        if case.op.domain not in STANDARD:
            continue
        try:
            forward, model, feeds, names = models(case, np.float32)
            made = standard(model)
        except RuntimeError as error:
            if case.op.type not in WITHOUT | PARTLY:
                problems.append(f"{case.op}: {error}")
            continue
        expected = run_model(model, feeds)
        if is_valid(onnx.load_from_string(forward)):
            onnx.checker.check_model(made, full_check=True)
        outputs = [value.name for value in made.graph.output]
        try:
            session(onnx.load_from_string(forward)).run(["loss"], feeds)
        except Exception:
            continue
        try:
            found = dict(zip(outputs, session(made).run(outputs, feeds), strict=True))
            near(found, expected, names, 2e-4, f"{case.op}")
            tried += 1
        except Exception as error:
            problems.append(f"{case.op}: {error}")
    assert not problems, f"{len(problems)} of {tried + len(problems)}\n" + "\n".join(problems)


def is_valid(model: onnx.ModelProto) -> bool:
    """Whether onnx infers the shapes of a forward model as ortrain does; it does not for some windows of pooling."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def test_the_reference_evaluator_computes_the_same() -> None:
    """Onnx's own evaluator, for the smallest case of a few operators that have a form of their own."""
    tried = 0
    for key, case in cases():
        if key[1] not in (
            "Relu",
            "Softmax",
            "LayerNormalization",
            "Gather",
            "MatMul",
            "Slice",
            "Conv",
        ):
            continue
        _, model, feeds, names = models(case, np.float64)
        made = standard(model)
        expected = run_model(model, feeds)
        found = dict(
            zip([o.name for o in made.graph.output], ReferenceEvaluator(made).run(None, feeds), strict=True)
        )
        near(found, expected, names, 1e-9, f"{case.op}")
        tried += 1
    assert tried or not coverage.COVERED
