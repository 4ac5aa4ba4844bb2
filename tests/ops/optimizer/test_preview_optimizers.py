"""Adagrad, Adam and Momentum of ai.onnx.preview.training, against onnx.reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_rejected, make_model, uniform
from onnx.reference import ReferenceEvaluator

DOMAIN = "ai.onnx.preview.training"
RULES: list[tuple[str, int, dict[str, Any]]] = [
    ("Adagrad", 1, {"norm_coefficient": 0.01, "epsilon": 1e-5, "decay_factor": 0.1}),
    ("Adagrad", 1, {}),
    ("Adam", 2, {"norm_coefficient": 0.01, "alpha": 0.8, "beta": 0.9, "epsilon": 1e-4}),
    ("Adam", 2, {"norm_coefficient_post": 0.1}),
    ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.5, "mode": "standard"}),
    ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.5, "mode": "nesterov"}),
]


@pytest.mark.parametrize(("rule", "states", "attributes"), RULES)
@pytest.mark.parametrize("step", [0, 1, 7])
@pytest.mark.parametrize("shapes", [[(3, 2)], [(5,), (), (0, 2)]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_optimizers(
    rule: str, states: int, attributes: dict[str, Any], step: int, shapes: list[tuple[int, ...]], dtype: Any
) -> None:
    inputs: list[Array | None] = [np.array(0.1, dtype), np.array(step)]
    for part in range(2 + states):
        inputs += [uniform(*s, low=0.01 if part > 1 else -1, dtype=dtype, seed=part) for s in shapes]
    n = len(shapes)
    expected = []
    for i in range(n):
        # One tensor at a time, and in double: the reference may return another type than that of its inputs.
        one = [inputs[0], inputs[1], *(np.asarray(x, np.float64) for x in inputs[2 + i :: n])]
        model = make_model(Op(rule, attributes, DOMAIN, outputs=1 + states), one)
        results = ReferenceEvaluator(model).run(None, {f"x{k}": x for k, x in enumerate(one)})
        expected.append([np.asarray(y, dtype) for y in results])
    op = Op(rule, attributes, DOMAIN, outputs=(1 + states) * n)
    wanted = [expected[i][part] for part in range(1 + states) for i in range(n)]
    check_forward(op, inputs, wanted, rtol=2e-6 if dtype == np.float32 else 1e-7)


def test_optimizers_reject_what_does_not_fit() -> None:
    rate, step = np.array(0.1), np.array(1)
    x = uniform(3)
    check_rejected(Op("Adagrad", domain=DOMAIN, outputs=2), [rate, step, x, x], "3 inputs for each tensor")
    check_rejected(
        Op("Adagrad", domain=DOMAIN, outputs=2), [rate, step, x, uniform(2), x], "must match input 2"
    )
    momentum = {"alpha": 0.1, "beta": 0.1, "norm_coefficient": 0.0, "mode": "other"}
    check_rejected(Op("Momentum", momentum, DOMAIN, outputs=2), [rate, step, x, x, x], "standard or nesterov")
