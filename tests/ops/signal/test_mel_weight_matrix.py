"""MelWeightMatrix, against the reference evaluator."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Op, check_rejected, make_model, run
from onnx.reference import ReferenceEvaluator


@pytest.mark.parametrize(("bins", "length", "rate"), [(8, 16, 8192), (20, 512, 16000), (1, 8, 8000)])
@pytest.mark.parametrize(("low", "high"), [(0.0, 4000.0), (125.0, 3800.0)])
@pytest.mark.parametrize("dtype", [1, 11])
def test_mel_weights(bins: int, length: int, rate: int, low: float, high: float, dtype: int) -> None:
    inputs = [np.array(v) for v in (bins, length, rate)] + [np.float32([low])[0], np.float32([high])[0]]
    op = Op("MelWeightMatrix", {"output_datatype": dtype})
    model = make_model(op, inputs, constants=range(5))
    expected = ReferenceEvaluator(model).run(None, {})
    (found,) = run(op, inputs, constants=range(5))
    assert found.dtype == expected[0].dtype
    np.testing.assert_allclose(found, expected[0], rtol=1e-6)


def test_mel_weights_reject_frequencies_above_the_spectrum() -> None:
    inputs = [np.array(8), np.array(16), np.array(8000), np.float32(0), np.float32(64000)]
    check_rejected(Op("MelWeightMatrix"), inputs, "above the frequencies", constants=range(5))
