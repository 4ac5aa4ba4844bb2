"""Attributes that no input can make valid are found when a model is read, before any pass uses them."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts

FLOAT = TensorProto.FLOAT
NOT_A_PERMUTATION = "attribute perm is not a permutation: expected each of the axes from 0 to 3 once"
NO_PERMUTATIONS = [[1 << 30, 2, 1, 3], [6, 2, 1, 3], [-1, 2, 1, 3], [0, 2, 2, 3], [-(1 << 63), 2, 1, 3]]


def attention(keys: list[int], result: list[int], shapes: bool = True) -> onnx.ModelProto:
    """Return softmax(q kᵀ) v, whose keys and result are transposed."""
    nodes = [
        helper.make_node("Transpose", ["k"], ["across"], "keys", perm=keys),
        helper.make_node("MatMul", ["q", "across"], ["scores"], "scores"),
        helper.make_node("Softmax", ["scores"], ["weights"], "weights", axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["heads"], "heads"),
        helper.make_node("Transpose", ["heads"], ["merged"], "result", perm=result),
        helper.make_node("Mul", ["merged", "scale"], ["scaled"], "scaled"),
        helper.make_node("ReduceMean", ["scaled"], ["y"], "mean", keepdims=0),
    ]
    dims = {"q": [2, 3, 4, 6], "k": [2, 5, 3, 6], "v": [2, 3, 5, 6]}
    inputs = [
        helper.make_tensor_value_info(name, FLOAT, shape if shapes else None) for name, shape in dims.items()
    ]
    scale = numpy_helper.from_array(np.ones(1, np.float32), "scale")
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", FLOAT, [])], [scale])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def one(op_type: str, inputs: int, shapes: bool, opset: int = 17, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one node, whose inputs have four dimensions or an unknown number."""
    names = [f"x{i}" for i in range(inputs)]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], "node", **attributes)],
        "g",
        [helper.make_tensor_value_info(name, FLOAT, [2, 4, 8, 8] if shapes else None) for name in names],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("perm", NO_PERMUTATIONS, ids=str)
@pytest.mark.parametrize("place", ["keys", "result"])
@pytest.mark.parametrize("shapes", [True, False], ids=["shapes", "no shapes"])
def test_attention_with_a_perm_that_is_no_permutation(place: str, perm: list[int], shapes: bool) -> None:
    model = attention(
        perm if place == "keys" else [0, 2, 3, 1], perm if place == "result" else [0, 2, 1, 3], shapes
    )
    expected = rf'node "{place}" \(Transpose\): {NOT_A_PERMUTATION}, found '
    with pytest.raises(ortrain.OrtrainError, match=expected):
        ortrain.InferenceSession(model.SerializeToString())
    with pytest.raises(ortrain.OrtrainError, match=expected):
        artifacts.generate_artifacts(model, requires_grad=["scale"])


@pytest.mark.parametrize("perm", NO_PERMUTATIONS, ids=str)
def test_attention_in_ort_format(perm: list[int], tmp_path: pathlib.Path) -> None:
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    options.graph_optimization_level = ortrain.GraphOptimizationLevel.ORT_DISABLE_ALL
    valid = [0, 2, 1, 3]
    ortrain.InferenceSession(attention([0, 2, 3, 1], valid).SerializeToString(), options)
    data = (tmp_path / "model.ort").read_bytes()
    before, after = (np.array(axes, np.int64).tobytes() for axes in (valid, perm))
    assert data.count(before) == 1
    with pytest.raises(ortrain.OrtrainError, match=NOT_A_PERMUTATION):
        ortrain.InferenceSession(data.replace(before, after))


@pytest.mark.parametrize("shapes", [True, False], ids=["shapes", "no shapes"])
@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "expected"),
    [
        ("Conv", 2, {"strides": [0, 1]}, "every value of attribute strides must be at least 1, found [0, 1]"),
        ("Conv", 2, {"dilations": [1, -1]}, "every value of attribute dilations must be at least 1"),
        ("Conv", 2, {"pads": [1 << 40, 0, 0, 0]}, "every value of attribute pads must be at most"),
        ("Conv", 2, {"pads": [0, 0, 0]}, "attribute pads must have two values for each axis"),
        ("Conv", 2, {"strides": [1, 1], "dilations": [1]}, "attribute dilations must have 2 values"),
        ("Conv", 2, {"group": 0}, "attribute group must be at least 1, found 0"),
        ("Conv", 2, {"auto_pad": "SOME"}, "attribute auto_pad must be NOTSET"),
        ("ConvTranspose", 2, {"strides": [-(1 << 63), 1]}, "every value of attribute strides"),
        ("MaxPool", 1, {"kernel_shape": [2, -2]}, "every value of attribute kernel_shape must be at least 1"),
        ("AveragePool", 1, {"kernel_shape": [2, 2], "pads": [0, 0]}, "attribute pads must have two values"),
        ("LpPool", 1, {"kernel_shape": [2, 2], "strides": [1]}, "attribute strides must have 2 values"),
    ],
)
def test_attributes_of_windows(
    op_type: str, inputs: int, attributes: dict[str, Any], expected: str, shapes: bool
) -> None:
    with pytest.raises(ortrain.OrtrainError) as error:
        ortrain.InferenceSession(one(op_type, inputs, shapes, **attributes).SerializeToString())
    assert f'node "node" ({op_type}): ' in str(error.value)
    assert expected in str(error.value)


def test_all_nodes_with_an_invalid_attribute_are_named() -> None:
    model = attention([0, 1, 1, 2], [3, 3, 3, 3])
    with pytest.raises(ortrain.OrtrainError) as error:
        ortrain.InferenceSession(model.SerializeToString())
    assert '"keys"' in str(error.value)
    assert '"result"' in str(error.value)
