"""Gradients with operators of ONNX alone: the cases of the gradient tests once more, in ortrain and in stock onnxruntime.

The oracle for the values is the gradient with ortrain's own operators, which the tests of the operators compare with finite
differences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import gradient_coverage as coverage
import numpy as np
import onnx
import onnxruntime
import pytest
import standard_forms
from helpers import _feeds, _with_loss, gradient_model, run, run_model
from onnx.reference import ReferenceEvaluator
from ortrain import _ortrain
from standard_forms import Form

Array = np.ndarray[Any, Any]
STANDARD = {"", "ai.onnx", "ai.onnx.ml"}


def standard(model: bytes) -> onnx.ModelProto:
    """The model with operators of ONNX alone, checked."""
    made = onnx.load_from_string(_ortrain.use_standard_operators(model))
    assert {entry.domain for entry in made.opset_import} <= STANDARD
    assert {node.domain for node in made.graph.node} <= STANDARD
    return made


#: Those that models have beside them: the fused and quantized operators of onnxruntime's optimizers.
OF_ONNXRUNTIME = "com.microsoft"
#: Operators whose values in onnxruntime differ from those that ONNX defines in some cases, so that gradients differ too.
OTHER_VALUES = {"LinearClassifier", "Resize"}
#: Operators that draw random numbers, which onnxruntime draws differently; whether a run has such a case depends on its tests.
DRAWS = {"Dropout"}
#: Operators whose form needs a later opset than their cases have.
SINCE = {"com.microsoft.RotaryEmbedding": 23, "com.microsoft.GroupQueryAttention": 25}
#: Operators whose forms onnx's reference evaluator computes too.
EVALUATED = {"Conv", "Gather", "LayerNormalization", "MatMul", "Relu", "Slice", "Softmax"}
#: The most operators of which not one case may have a standard form.
MOST_WITHOUT = 10


def cases() -> list[tuple[coverage.Key, coverage.Case]]:
    """The smallest case of each kind of each operator, in the opsets that have standard forms."""
    return [
        (key, case)
        for key, known in list(coverage.COVERED.items())
        for case in map(in_opset_17, known.kinds.values())
        if (key[0] in STANDARD or is_fused(key)) and case.op.opset >= 17
    ]


def in_opset_17(case: coverage.Case) -> coverage.Case:
    """The case in opset 17 if its operator has not changed since the case's opset, else the case."""
    kind, opset = case.op.type, case.op.opset
    if case.op.domain or opset >= 17 or coverage.effective(kind, opset) != coverage.effective(kind, 17):
        return case
    deprecated = coverage.effective(kind, 17) > 0 and onnx.defs.get_schema(kind, 17, "").deprecated
    return case if deprecated else replace(case, op=replace(case.op, opset=17))


def is_fused(key: coverage.Key) -> bool:
    """Whether inference models have an operator of onnxruntime; gradients, and what training graphs have, are no such ones."""
    of_training = re.search(r"(Grad|Internal|Training)(_\w+|2)?$|^Megatron", key[1])
    return key[0] == OF_ONNXRUNTIME and not of_training


def name_of(key: coverage.Key) -> str:
    """The name of an operator in the record."""
    return f"{key[0]}.{key[1]}" if key[0] == OF_ONNXRUNTIME else key[1]


def reason_of(error: RuntimeError) -> str:
    """The first reason why a model has no standard form, without the node's name."""
    line = str(error).split("\n")[1]
    return line.split(": ", 1)[-1]


def ops_of(graph: onnx.GraphProto, whole: bool = False) -> set[str]:
    """The operators of the nodes that replace the gradient of the node under test."""
    found = set()
    for node in graph.node:
        mine = whole or (node.name.startswith("under_test") and node.name != "under_test")
        if mine:
            found.add(node.op_type)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= ops_of(attribute.g, mine)
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
    found: Mapping[str, Array],
    expected: Mapping[str, Array],
    names: Sequence[str],
    rtol: float,
    what: str,
    atol: float = 0,
) -> None:
    for name in names:
        e = np.asarray(expected[f"{name}_grad"])
        f = np.asarray(found[f"{name}_grad"])
        assert f.shape == e.shape, f"{what}: the gradient of {name} has shape {f.shape}, expected {e.shape}"
        largest = float(np.abs(e).max(initial=0.0))
        np.testing.assert_allclose(
            f, e, rtol, max(atol, rtol * max(largest, 1e-3)), err_msg=f"{what}: gradient of {name}"
        )


def test_gradients_with_operators_of_onnx_alone(request: pytest.FixtureRequest) -> None:
    tried, problems = 0, []
    forms: dict[str, Form] = {}
    for key, case in cases():
        what, form = f"{case.op}", forms.setdefault(name_of(key), Form())
        _, model, feeds, names = models(case, np.float64)
        try:
            made = standard(model)
        except RuntimeError as error:
            form.refused.add(reason_of(error))
            continue
        try:
            expected = run_model(model, feeds)
            near(run_model(made.SerializeToString(), feeds), expected, names, 1e-9, what)
            form.ops |= ops_of(made.graph)
            tried += 1
        except (AssertionError, RuntimeError) as error:
            problems.append(f"{what}: {error}")
    assert not problems, f"{len(problems)} of {tried + len(problems)}\n" + "\n".join(problems)
    assert tried > 0 or not coverage.COVERED
    if request.config.getoption("record_standard_forms"):
        standard_forms.write(forms)
    recorded = {name: form.refused for name, form in standard_forms.read().items() if form.refused}
    refused = {name: form.refused for name, form in forms.items() if form.refused}
    for name, reasons in refused.items():
        assert reasons <= recorded.get(name, set()), f"{name} is refused, and not in {standard_forms.RECORD}"
    if request.config.stash[coverage.COMPLETE]:
        assert refused == recorded, f"{standard_forms.RECORD} is not of these operators; record it again"
        of_onnx = standard_forms.split(forms)[0]
        assert sum(form.answer == "no" for form in of_onnx.values()) <= MOST_WITHOUT


def test_the_same_gradients_in_onnxruntime(request: pytest.FixtureRequest) -> None:
    """In float, because onnxruntime has few kernels for double; only operators that it has."""
    tried, problems = 0, []
    others = set()  # operators with cases that are not compared
    for key, case in cases():
        forward, model, feeds, names = models(case, np.float32)
        try:
            made = standard(model)
        except RuntimeError:
            continue  # compared with the record above
        expected = run_model(model, feeds)
        if case.op.opset < SINCE.get(name_of(key), 0):
            with pytest.raises(onnx.checker.ValidationError, match="No Op registered"):
                onnx.checker.check_model(made, full_check=True)
            continue
        if is_valid(onnx.load_from_string(forward)):
            try:
                onnx.checker.check_model(made, full_check=True)
            except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
                problems.append(f"{case.op}: {error}")
                continue
        outputs = [value.name for value in made.graph.output]
        try:
            [loss] = session(onnx.load_from_string(forward)).run(["loss"], feeds)
        except Exception:
            continue
        if key[1] in OTHER_VALUES | DRAWS and not np.allclose(loss, run_model(forward, feeds)["loss"], 1e-3):
            others.update({key[1]} & OTHER_VALUES)
            continue
        try:
            found = dict(zip(outputs, session(made).run(outputs, feeds), strict=True))
            try:
                near(found, expected, names, 2e-4, f"{case.op}")
            except AssertionError:  # terms of about 1 may cancel: that in double decides
                _, double, values, _ = models(case, np.float64)
                rounding = 32 * float(np.finfo(np.float32).eps)
                near(found, run_model(double, values), names, 2e-4, f"{case.op}", rounding)
            tried += 1
        except Exception as error:
            problems.append(f"{case.op}: {error}")
    assert not problems, f"{len(problems)} of {tried + len(problems)}\n" + "\n".join(problems)
    assert others == OTHER_VALUES or not request.config.stash[coverage.COMPLETE]


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
    """Onnx's own evaluator, for the smallest cases of a few operators whose gradients have a standard form."""
    of_operator: dict[str, list[coverage.Case]] = {}
    for key, case in cases():
        # The evaluator's ConvTranspose fails where a group has one channel.
        if name_of(key) in EVALUATED and case.op.attributes.get("group", 1) == 1:
            of_operator.setdefault(key[1], []).append(case)
    for recorded in of_operator.values():
        for case in sorted(recorded, key=lambda case: case.elements)[:6]:
            _, model, feeds, names = models(case, np.float64)
            made = standard(model)
            expected = run_model(model, feeds)
            found = dict(
                zip(
                    [o.name for o in made.graph.output],
                    ReferenceEvaluator(made).run(None, feeds),
                    strict=True,
                )
            )
            near(found, expected, names, 1e-9, f"{case.op}")
    assert of_operator.keys() == EVALUATED or not {key[1] for key in coverage.COVERED} >= EVALUATED
