"""OptionalGetElement and OptionalHasElement of plain tensors."""

from __future__ import annotations

import numpy as np
from helpers import Op, check_forward, check_gradient, uniform

SPECIAL_POINTS = {"not in PyTorch": ["Optional", "OptionalGetElement"]}


def test_a_plain_tensor_is_an_optional_that_is_there() -> None:
    x = uniform(2, 3)
    check_forward(Op("OptionalGetElement", opset=18), [x], [x])
    check_gradient(Op("OptionalGetElement", opset=18), [x])
    check_forward(Op("OptionalHasElement", opset=18), [x], [np.array(True)])
    check_forward(Op("OptionalHasElement", opset=18), [None], [np.array(False)])
