"""The gradient of a gradient, through operators whose first gradient is a separate operator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from gradient_models import RNG, differences, gradient, model_of, run, tensor
from onnx import helper
from ortrain import InferenceSession


@pytest.mark.parametrize(
    ("operator", "domain", "opset", "attributes"),
    [
        ("Relu", "", 17, {}),
        ("LeakyRelu", "", 17, {"alpha": 0.3}),
        ("Sigmoid", "", 17, {}),
        ("Tanh", "", 17, {}),
        ("Gelu", "", 20, {}),
        ("Gelu", "", 20, {"approximate": "tanh"}),
        ("Gelu", "com.microsoft", 17, {}),
        ("QuickGelu", "com.microsoft", 17, {"alpha": 1.3}),
        ("Swish", "", 24, {"alpha": 0.7}),
    ],
)
def test_second_derivatives_of_activations(operator: str, domain: str, opset: int, attributes: dict) -> None:
    nodes = [
        helper.make_node("MatMul", ["X", "W"], ["P"]),
        helper.make_node(operator, ["P"], ["T"], domain=domain, **attributes),
        gradient(["X", "W"], ["dX"], ["X"], "T", ["W"]),
        helper.make_node("Mul", ["dX", "dX"], ["S"]),
        helper.make_node("ReduceSum", ["S"], ["penalty"], keepdims=0),
        gradient(["W", "X"], ["dW"], ["W"], "penalty", ["X"]),
    ]
    inputs = [tensor("X", [4, 3]), tensor("W", [3, 2])]
    proto = onnx.load_from_string(
        model_of(nodes, inputs, [tensor("penalty", []), tensor("dW", [3, 2])], opset=opset)
    )
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model = proto.SerializeToString()
    feeds = {"X": RNG.standard_normal((4, 3)), "W": RNG.standard_normal((3, 2))}
    expected = differences(model, "penalty", feeds, "W")
    np.testing.assert_allclose(run(model, **feeds)["dW"], expected, rtol=1e-6, atol=1e-8)


def penalty(nodes: list, inputs: list, result: str, opset: int = 17) -> bytes:
    """Return a model with the squared gradient of a sum with respect to X, and its gradient with respect to W."""
    zs = [value.name for value in inputs if value.name not in ("X", "W")]
    nodes = [
        *nodes,
        helper.make_node("Mul", [result, "T"], ["weighted"]),
        gradient(["X", "W", "T", *zs], ["dX", "dW"], ["X", "W"], "weighted", ["T", *zs]),
        helper.make_node("Mul", ["dX", "dX"], ["squares_x"]),
        helper.make_node("Mul", ["dW", "dW"], ["squares_w"]),
        helper.make_node("ReduceSum", ["squares_x"], ["sum_x"], keepdims=0),
        helper.make_node("ReduceSum", ["squares_w"], ["sum_w"], keepdims=0),
        helper.make_node("Add", ["sum_x", "sum_w"], ["penalty"]),
        gradient(["X", "W", "T", *zs], ["ddX", "ddW"], ["X", "W"], "penalty", ["T", *zs]),
    ]
    outputs = [tensor("penalty", [])]
    outputs += [
        tensor(f"dd{v.name}", list(d.dim_value for d in v.type.tensor_type.shape.dim)) for v in inputs[:2]
    ]
    return model_of(nodes, inputs, outputs, opset=opset)


def check_second_derivatives(model: bytes) -> None:
    shapes = {value.name: value.shape for value in InferenceSession(model).get_inputs()}
    feeds = {name: RNG.standard_normal(shape) for name, shape in shapes.items()}
    results = run(model, **feeds)
    for name in ("X", "W"):
        expected = differences(model, "penalty", feeds, name)
        np.testing.assert_allclose(results[f"dd{name}"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 1], "pads": [1, 0, 1, 2]}, {"group": 2}])
def test_second_derivatives_of_a_convolution(attributes: dict) -> None:
    channels = 2 // attributes.get("group", 1)
    inputs = [tensor("X", [2, 2, 5, 4]), tensor("W", [4, channels, 3, 3]), tensor("T", [1]), tensor("B", [4])]
    nodes = [
        helper.make_node("Conv", ["X", "W", "B"], ["C"], **attributes),
        helper.make_node("Sin", ["C"], ["R"]),
    ]
    check_second_derivatives(penalty(nodes, inputs, "R"))


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("opset", "axis"), [(12, 1), (13, 1), (13, -1)])
def test_second_derivatives_of_a_softmax(operator: str, opset: int, axis: int) -> None:
    inputs = [tensor("X", [2, 3, 4]), tensor("W", [4, 5]), tensor("T", [2, 3, 5])]
    nodes = [
        helper.make_node("MatMul", ["X", "W"], ["P"]),
        helper.make_node(operator, ["P"], ["R"], axis=axis),
    ]
    check_second_derivatives(penalty(nodes, inputs, "R", opset))
