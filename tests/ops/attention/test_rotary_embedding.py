"""RotaryEmbedding against the reference implementation, its gradient against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"linear": ["RotaryEmbedding"]}


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotated", [0, 4])
@pytest.mark.parametrize("shape", [(2, 3, 5, 6), (2, 5, 18), (1, 0, 6)], ids=str)
def test_rotary_embedding(shape: tuple[int, ...], rotated: int, interleaved: int, indexed: bool) -> None:
    heads = 3 if shape[-1] == 18 else 1
    attributes: dict[str, Any] = {"interleaved": interleaved, "rotary_embedding_dim": rotated}
    if len(shape) == 3:
        attributes["num_heads"] = heads
    half = (rotated or 6) // 2
    positions = shape[-2]
    angles = uniform(7, half, low=0, high=6) if indexed else uniform(shape[0], positions, half, low=0, high=6)
    inputs = [uniform(*shape), np.cos(angles), np.sin(angles)]
    if indexed:
        inputs.append(np.random.default_rng(0).integers(0, 7, (shape[0], positions)))
    op = Op("RotaryEmbedding", attributes, opset=23)
    check_forward(op, inputs)
    check_forward(op, [x.astype(np.float32) if x.dtype == np.float64 else x for x in inputs])
    check_gradient(op, inputs, wrt=(0,))


def test_rotary_embedding_rejects_what_does_not_fit() -> None:
    x, cache = uniform(1, 2, 3, 4), uniform(1, 3, 2)
    op = Op("RotaryEmbedding", opset=23)
    check_rejected(op, [x, uniform(1, 3, 3), cache], r"cos_cache must have shape \[1, 3, 2\]")
    check_rejected(op, [x, cache, cache.astype(np.float32)], "type of X")
    check_rejected(op, [uniform(1, 3, 8), cache, cache], "num_heads must divide")
    odd = Op("RotaryEmbedding", {"rotary_embedding_dim": 3}, opset=23)
    check_rejected(odd, [x, cache, cache], "even number")
    ids = np.array([[0, 1, 5]])
    check_rejected(op, [x, cache[0], cache[0], ids], "5")
    check_rejected(op, [x, cache[0], cache[0], ids[:, :2]], "position_ids must be")
