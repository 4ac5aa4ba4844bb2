"""Constants are only folded into a convolution if they have a value for each of its filters."""

from __future__ import annotations

import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def normalized_convolution(**sizes: int) -> onnx.ModelProto:
    """Return a convolution with 64 filters and a normalization, whose constants have other sizes."""
    rng = np.random.default_rng(0)

    def constant(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.random(shape, np.float32) + 1, name)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", kernel_shape=[1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["y"], "norm"),
        helper.make_node("Add", ["y", "more"], ["z"], "sum"),
    ]
    constants = [constant(name, sizes.get(name, 64)) for name in ("b", "scale", "shift", "mean", "variance")]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["n", 3, None, None])],
        [helper.make_tensor_value_info("z", FLOAT, None)],
        [constant("w", 64, 3, 1, 1), constant("more", 1, 64, 1, 1), *constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("name", ["b", "scale", "shift", "mean", "variance"])
@pytest.mark.parametrize("size", [0, 1, 63, 65])
def test_constants_of_a_wrong_size_are_not_folded_into_a_convolution(name: str, size: int) -> None:
    """The fusions read and write as many elements as there are filters."""
    session = ortrain.InferenceSession(normalized_convolution(**{name: size}).SerializeToString())
    with pytest.raises(ortrain.OrtrainError, match=r'node "(conv|norm)"'):
        session.run(None, {"x": np.ones((1, 3, 2, 2), np.float32)})


@pytest.mark.parametrize("size", [0, 1, 63])
def test_a_bias_of_a_wrong_size_is_not_added_to_another(size: int) -> None:
    model = normalized_convolution(b=size)
    del model.graph.node[1]
    model.graph.node[1].input[0] = "c"
    session = ortrain.InferenceSession(model.SerializeToString())
    with pytest.raises(ortrain.OrtrainError, match='node "conv"'):
        session.run(None, {"x": np.ones((1, 3, 2, 2), np.float32)})
