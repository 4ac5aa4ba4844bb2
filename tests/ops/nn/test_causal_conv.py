"""CausalConvWithState, against the reference evaluator and finite differences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"linear": ["CausalConvWithState"]}


def convolution(activation: str, outputs: int = 2) -> Op:
    return Op("CausalConvWithState", {"activation": activation}, opset=27, outputs=outputs)


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize(
    ("given", "activation"),
    [
        *itertools.product(["weight", "bias", "past", "all"], ["none", "silu"]),
        ("all", "swish"),
    ],  # swish is silu
)
def test_causal_convolution(given: str, activation: str, width: int, length: int) -> None:
    inputs: list[Array | None] = [uniform(2, 3, length), uniform(3, 1, width, seed=1)]
    inputs.append(uniform(3, seed=2) if given in ("bias", "all") else None)
    inputs.append(uniform(2, 3, width - 1, seed=3) if given in ("past", "all") else None)
    while inputs[-1] is None:
        inputs.pop()
    floats = [None if x is None else x.astype(np.float32) for x in inputs]
    check_forward(convolution(activation), floats, rtol=1e-5)
    check_gradient(
        convolution(activation), inputs, wrt=[i for i, x in enumerate(inputs) if x is not None and x.size]
    )


def test_causal_convolution_rejects_what_does_not_fit() -> None:
    x, w = uniform(2, 3, 5), uniform(3, 1, 2)
    check_rejected(convolution("relu"), [x, w], "activation must be")
    check_rejected(convolution("none"), [x, uniform(2, 1, 2)], "weight must have shape")
    check_rejected(convolution("none"), [x, w, uniform(2)], "bias must have shape")
    check_rejected(convolution("none"), [x, w, None, uniform(2, 3, 2)], "past_state must have shape")
