"""InvertibleLayerNormalizationGrad, against LayerNormalizationGrad."""

from __future__ import annotations

import numpy as np
from helpers import MICROSOFT, Op, apart, check_forward, run, uniform


def test_layer_normalization_gradient_from_its_output() -> None:
    x, scale, bias = apart(3, 5), uniform(5, low=0.5, high=2, seed=1), uniform(5, seed=2)
    dy = uniform(3, 5, seed=3)
    mean, inv_std = x.mean(-1, keepdims=True), 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    y = (x - mean) * inv_std * scale + bias
    expected = run(Op("LayerNormalizationGrad", {}, MICROSOFT, outputs=3), [dy, x, scale, mean, inv_std])
    op = Op("InvertibleLayerNormalizationGrad", {}, MICROSOFT, outputs=3)
    check_forward(op, [dy, y, scale, bias, inv_std], expected, rtol=1e-9)
