"""QLinearConv of com.microsoft, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import MICROSOFT, Op
from quantized_cases import check_quantized, codes, f32, scale


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_conv(last: int, per_channel: bool, biased: bool) -> None:
    x = codes(2, 7, 6, 4) if last else codes(2, 4, 7, 6)
    w = codes(6, 2, 3, 3, dtype=np.int8, seed=1)
    w_scale = f32(6, low=0.001, high=0.003) if per_channel else scale(0.002)
    w_zero = np.zeros(6, np.int8) if per_channel else np.array(0, np.int8)
    bias = [codes(6, dtype=np.int16, seed=2).astype(np.int32)] if biased else []
    inputs = [
        x,
        scale(0.1),
        np.array(30, np.uint8),
        w,
        w_scale,
        w_zero,
        scale(0.3),
        np.array(128, np.uint8),
        *bias,
    ]
    attributes = {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 1], "channels_last": last}
    check_quantized(Op("QLinearConv", attributes, MICROSOFT), inputs)
