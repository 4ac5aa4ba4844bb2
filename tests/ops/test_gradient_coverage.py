"""Every operator with a gradient has it compared with finite differences, in every opset where it differs.

The cases are those that other tests passed to `helpers.check_gradient`; this module runs after them. A new operator is
covered once its own test calls `check_gradient`.
"""

from __future__ import annotations

import gradient_coverage as coverage
import numpy as np
import onnx
import pytest
from helpers import MICROSOFT, check_gradient, make_model, run

# Versions that do not accept tensors in double precision.
WITHOUT_DOUBLE = {
    ("MeanVarianceNormalization", 9),  # a function of float only
    ("OptionalGetElement", 15),  # optional values only
}


@pytest.fixture(autouse=True)
def after_all_gradient_tests(request: pytest.FixtureRequest) -> None:
    if not request.config.stash[coverage.COMPLETE]:
        pytest.skip("only a run of all of tests/ops shows what is covered")


def test_every_differentiable_operator_is_covered() -> None:
    missing = [
        coverage.name_of(key)
        for key, gradient in coverage.registered().items()
        if gradient == "yes" and not coverage.is_covered(key)
    ]
    assert not missing, (
        f"no test checks the gradient of {', '.join(missing)}; call helpers.check_gradient in the operator's own test"
    )


def test_a_second_derivative_lacks_at_most_that_of_the_operator_that_computes_the_first() -> None:
    problems = [
        f"{coverage.name_of((domain, type))} needs {', '.join(sorted(extra))}"
        for (domain, type), found in coverage.COVERED.items()
        if (extra := found.second_misses - {f"{MICROSOFT}.{type.removesuffix('Training')}Grad"})
    ]
    assert not problems, f"these operators need a gradient, or the rules can do without them: {problems}"


def test_gradients_in_every_opset_that_changes_an_operator() -> None:
    """What the operators' own tests do not cover: their smallest cases again, in the form of the other opsets."""
    problems = []
    for (domain, type), found in list(coverage.COVERED.items()):
        if domain or coverage.registered().get((domain, type)) != "yes":
            continue
        done = {coverage.effective(type, opset) for opset in found.opsets}
        for version, opset in coverage.versions(type).items():
            if version in done or (type, version) in WITHOUT_DOUBLE:
                continue
            cases = sorted(found.smallest.values(), key=lambda case: case.elements)
            fitting = [
                case for case in (coverage.moved(case, opset) for case in cases) if case and valid(case)
            ]
            if not fitting:
                problems.append(f"{type}: no case fits opset {opset}")
            for case in fitting[:2]:
                try:
                    check_gradient(case.op, case.inputs, **case.arguments)
                except (AssertionError, RuntimeError) as error:
                    problems.append(f"{case.op}: {error}")
    assert not problems, "\n".join(problems)


def test_gradients_of_few_elements_and_along_axes_from_both_ends() -> None:
    """The smallest cases of the operators' own tests again; if an operator rejects such shapes, nothing is compared."""
    problems, tried = [], 0
    for key, found in list(coverage.COVERED.items()):
        if coverage.registered().get(key) != "yes":
            continue
        smallest = list(found.smallest.values())[:3]
        for case in [variant for held in smallest for variant in coverage.variants(held)]:
            if not valid(case) or not is_finite(case):
                continue
            tried += 1
            try:
                check_gradient(case.op, case.inputs, **case.arguments)
            except (AssertionError, RuntimeError) as error:
                shapes = [None if x is None else x.shape for x in case.inputs]
                problems.append(f"{case.op} of {shapes}: {error}")
    assert not problems, "\n".join(problems)
    assert tried > 200


def is_finite(case: coverage.Case) -> bool:
    """Whether the operator accepts the case and returns values."""
    try:
        results = run(case.op, case.inputs, case.arguments["constants"])
    except RuntimeError:
        return False
    return all(np.isfinite(y).all() for y in results if np.issubdtype(y.dtype, np.floating))


def valid(case: coverage.Case) -> bool:
    """Whether ONNX allows the case, which is in double precision; it has no schemas of other domains."""
    if case.op.domain:
        return True
    model = make_model(case.op, case.inputs, constants=case.arguments["constants"])
    try:
        onnx.checker.check_model(onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True))
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True
