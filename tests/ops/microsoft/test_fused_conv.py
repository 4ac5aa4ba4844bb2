"""FusedConv, against onnxruntime."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import MICROSOFT, Array, Op
from microsoft_cases import check, f32

SPECIAL_POINTS = {"linear": ["com.microsoft.FusedConv"]}

CONV_ACTIVATIONS: list[tuple[str, list[float]]] = [
    ("", []),
    ("Relu", []),
    ("LeakyRelu", [0.2]),
    ("Clip", [-0.3, 0.4]),
    ("Sigmoid", []),
    ("Tanh", []),
    ("HardSigmoid", [0.3, 0.4]),
]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(
    ("activation", "settings"), CONV_ACTIVATIONS, ids=[a or "none" for a, _ in CONV_ACTIVATIONS]
)
def test_fused_conv(activation: str, settings: list[float], biased: bool, added: bool) -> None:
    attributes: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 1]}
    attributes |= {"activation": activation} if activation else {}
    attributes |= {"activation_params": settings} if settings else {}
    inputs: list[Array | None] = [
        f32(1, 2, 5, 4),
        f32(3, 2, 3, 3, seed=1),
        f32(3, seed=2) if biased else None,
    ]
    if added:
        inputs.append(f32(1, 3, 3, 4, seed=3))
    check(Op("FusedConv", attributes, MICROSOFT), inputs)
