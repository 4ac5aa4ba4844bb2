"""Gradients that a plain forward run computes: GradientGraphBuilder, and the operator Gradient."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import ortrain
import pytest
from gradient_models import RNG, Array, differences, gradient, model_of, run, tensor
from onnx import helper, numpy_helper
from ortrain import GradientGraphBuilder, InferenceSession

# ---- GradientGraphBuilder ----


@pytest.fixture
def perceptron() -> bytes:
    """Return two layers and a mean squared error."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Tanh", ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "w2"], ["out"]),
        helper.make_node("Sub", ["out", "target"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["loss"], keepdims=0),
    ]
    constants = {"w1": RNG.standard_normal((3, 4)), "w2": RNG.standard_normal((4, 2))}
    inputs = [tensor("x", ["n", 3]), tensor("target", ["n", 2])]
    return model_of(nodes, inputs, [tensor("out", ["n", 2]), tensor("loss", [])], constants)


def with_inputs(model: bytes, *names: str) -> tuple[bytes, dict[str, Array]]:
    """Return the model with initializers as inputs, and their values."""
    proto = onnx.load_from_string(model)
    values = {}
    for initializer in list(proto.graph.initializer):
        if initializer.name in names:
            values[initializer.name] = numpy_helper.to_array(initializer)
            proto.graph.input.append(tensor(initializer.name, list(initializer.dims)))
            proto.graph.initializer.remove(initializer)
    return proto.SerializeToString(), values


def test_a_built_model_gives_outputs_and_gradients(perceptron: bytes) -> None:
    builder = GradientGraphBuilder(perceptron, {"loss"}, {"w1", "w2", "x"}, "loss")
    builder.build()
    model = builder.get_model()
    onnx.load_from_string(model)
    feeds = {"x": RNG.standard_normal((5, 3)), "target": RNG.standard_normal((5, 2))}
    results = run(model, **feeds)
    assert list(results) == ["out", "loss", "w1_grad", "w2_grad", "x_grad"]
    np.testing.assert_allclose(results["loss"], run(perceptron, **feeds)["loss"])
    free, weights = with_inputs(perceptron, "w1", "w2")
    for name in ("x", "w1", "w2"):
        expected = differences(free, "loss", {**feeds, **weights}, name)
        np.testing.assert_allclose(results[f"{name}_grad"], expected, rtol=1e-7, atol=1e-9)


def test_a_built_model_is_saved(perceptron: bytes, tmp_path: pathlib.Path) -> None:
    builder = GradientGraphBuilder(perceptron, {"loss"}, {"w1"}, "loss")
    builder.build()
    builder.save(tmp_path / "gradients.onnx")
    assert (tmp_path / "gradients.onnx").read_bytes() == builder.get_model()
    builder.save(str(tmp_path / "gradients.onnx"))


def test_the_gradient_of_a_value_between_is_given(perceptron: bytes) -> None:
    builder = GradientGraphBuilder(perceptron, ["loss"], ["a", "out"], "loss")
    builder.build()
    x, target = RNG.standard_normal((5, 3)), RNG.standard_normal((5, 2))
    results = run(builder.get_model(), x=x, target=target)
    np.testing.assert_allclose(results["out_grad"], 2 * (results["out"] - target) / 10, rtol=1e-12)
    w2 = with_inputs(perceptron, "w2")[1]["w2"]
    np.testing.assert_allclose(results["a_grad"], results["out_grad"] @ w2.T, rtol=1e-12)


def test_gradients_of_other_values_come_in(perceptron: bytes) -> None:
    """Without a loss, or in addition to it, the gradient of an output is an input of the built model."""
    x, target, upstream = (RNG.standard_normal(s) for s in ((5, 3), (5, 2), (5, 2)))
    w2 = with_inputs(perceptron, "w2")[1]["w2"]
    alone = GradientGraphBuilder(perceptron, {"out"}, {"a"}, "")
    alone.build()
    session = InferenceSession(alone.get_model())
    declared = {value.name: value.shape for value in session.get_inputs()}
    assert declared == {"x": ["n", 3], "target": ["n", 2], "out_grad": ["n", 2]}
    results = run(alone.get_model(), x=x, target=target, out_grad=upstream)
    np.testing.assert_allclose(results["a_grad"], upstream @ w2.T, rtol=1e-12)
    unused_loss = GradientGraphBuilder(perceptron, {"out"}, {"a"}, "loss")  # not among those to differentiate
    unused_loss.build()
    results = run(unused_loss.get_model(), x=x, target=target, out_grad=upstream)
    np.testing.assert_allclose(results["a_grad"], upstream @ w2.T, rtol=1e-12)


def test_a_value_before_the_loss_needs_no_gradient_from_outside(perceptron: bytes) -> None:
    """As onnxruntime-training 1.16.3 has it: the loss gives such a value its gradient."""
    x, target = RNG.standard_normal((5, 3)), RNG.standard_normal((5, 2))
    w2 = with_inputs(perceptron, "w2")[1]["w2"]
    builder = GradientGraphBuilder(perceptron, {"out", "loss"}, {"a"}, "loss", None)
    builder.build()
    assert [value.name for value in InferenceSession(builder.get_model()).get_inputs()] == ["x", "target"]
    results = run(builder.get_model(), x=x, target=target)
    np.testing.assert_allclose(results["a_grad"], 2 * (results["out"] - target) / 10 @ w2.T, rtol=1e-12)


def test_a_value_beside_the_loss_has_its_gradient_from_outside(perceptron: bytes) -> None:
    proto = onnx.load_from_string(perceptron)
    proto.graph.node.append(helper.make_node("Neg", ["a"], ["b"]))
    proto.graph.output.append(tensor("b", ["n", 4]))
    x, target, upstream = (RNG.standard_normal(s) for s in ((5, 3), (5, 2), (5, 4)))
    w2 = with_inputs(perceptron, "w2")[1]["w2"]
    builder = GradientGraphBuilder(
        proto.SerializeToString(), {"b", "loss"}, {"a"}, "loss", ortrain.SessionOptions()
    )
    builder.build()
    results = run(builder.get_model(), x=x, target=target, b_grad=upstream)
    expected = 2 * (results["out"] - target) / 10 @ w2.T - upstream
    np.testing.assert_allclose(results["a_grad"], expected, rtol=1e-12)


def test_without_values_to_differentiate_by_the_model_stays_as_it_is(perceptron: bytes) -> None:
    builder = GradientGraphBuilder(perceptron, {"loss"}, set(), "loss")
    builder.build()
    feeds = {"x": RNG.standard_normal((5, 3)), "target": RNG.standard_normal((5, 2))}
    results, expected = run(builder.get_model(), **feeds), run(perceptron, **feeds)
    assert list(results) == ["out", "loss"]
    np.testing.assert_array_equal(results["loss"], expected["loss"])


def test_what_cannot_be_built_is_said(perceptron: bytes) -> None:
    builder = GradientGraphBuilder(perceptron, {"loss"}, {"w1", "w9"}, "loss")
    with pytest.raises(ortrain.OrtrainError, match="have not been built yet"):
        builder.get_model()
    with pytest.raises(ortrain.OrtrainError, match='"w9"'):
        builder.build()
    with pytest.raises(ortrain.OrtrainError, match="have not been built yet"):
        builder.save("nowhere.onnx")
    with pytest.raises(ortrain.OrtrainError, match="must be a scalar"):
        GradientGraphBuilder(perceptron, {"out"}, {"w1"}, "out").build()
    with pytest.raises(ortrain.InvalidArgumentError, match="found none"):
        GradientGraphBuilder(perceptron, set(), {"w1"}, "")
    with pytest.raises(ortrain.OrtrainError, match="ONNX"):
        GradientGraphBuilder(b"no model", {"loss"}, {"w1"}, "loss")


# ---- Gradient ----


def test_gradient_of_a_network_with_respect_to_its_weights() -> None:
    """The first example of the operator's documentation."""
    nodes = [
        helper.make_node("Conv", ["X", "W"], ["H"]),
        helper.make_node("Flatten", ["H"], ["F"]),
        helper.make_node("Gemm", ["F", "Z"], ["G"]),
        helper.make_node("ReduceSum", ["G"], ["Y"], keepdims=0),
        gradient(["W", "Z", "X"], ["dW", "dZ"], ["W", "Z"], "Y", ["X"]),
    ]
    inputs = [tensor("X", [2, 1, 4, 4]), tensor("W", [3, 1, 3, 3]), tensor("Z", [12, 2])]
    model = model_of(nodes, inputs, [tensor("Y", []), tensor("dW", [3, 1, 3, 3]), tensor("dZ", [12, 2])])
    feeds = {v.name: RNG.standard_normal([d.dim_value for d in v.type.tensor_type.shape.dim]) for v in inputs}
    results = run(model, **feeds)
    for name in ("W", "Z"):
        expected = differences(model, "Y", feeds, name)
        np.testing.assert_allclose(results[f"d{name}"], expected, rtol=1e-7, atol=1e-8)


def test_an_output_may_be_left_out_and_y_need_not_be_an_output() -> None:
    nodes = [
        helper.make_node("Mul", ["a", "b"], ["y"]),
        gradient(["a", "b"], ["", "db"], ["a", "b"], "y"),
    ]
    model = model_of(nodes, [tensor("a", [1]), tensor("b", [1])], [tensor("db", [1])])
    assert run(model, a=np.array([3.0]), b=np.array([4.0])) == {"db": [3.0]}


def test_the_gradient_of_several_numbers_is_that_of_their_sum() -> None:
    nodes = [helper.make_node("Mul", ["a", "a"], ["y"]), gradient(["a"], ["da"], ["a"], "y")]
    model = model_of(nodes, [tensor("a", ["n"])], [tensor("da", ["n"])])
    a = RNG.standard_normal(5)
    np.testing.assert_allclose(run(model, a=a)["da"], 2 * a)


def test_a_value_between_is_independent_of_what_it_was_made_from() -> None:
    """H is computed from W, but as one of the xs it is an independent variable."""
    nodes = [
        helper.make_node("Mul", ["w", "w"], ["h"]),
        helper.make_node("Mul", ["h", "w"], ["y"]),
        gradient(["h", "w"], ["dh", "dw"], ["h", "w"], "y"),
        gradient(["w"], ["whole"], ["w"], "y"),
    ]
    model = model_of(nodes, [tensor("w", [1])], [tensor("dh", [1]), tensor("dw", [1]), tensor("whole", [1])])
    results = run(model, w=np.array([3.0]))
    assert {k: v.tolist() for k, v in results.items()} == {"dh": [3.0], "dw": [9.0], "whole": [27.0]}


def test_the_gradient_at_another_point() -> None:
    """The inputs of the node give the point; y itself is still what the graph computes from its own inputs."""
    nodes = [
        helper.make_node("Exp", ["h"], ["e"]),
        helper.make_node("Mul", ["e", "z"], ["y"]),
        gradient(["h1", "z1"], ["dh"], ["h"], "y", ["z"]),
    ]
    inputs = [tensor(name, [1]) for name in ("h", "z", "h1", "z1")]
    model = model_of(nodes, inputs, [tensor("y", [1]), tensor("dh", [1])])
    h, z, h1, z1 = (np.array([v]) for v in (0.5, 2.0, -1.0, 3.0))
    results = run(model, h=h, z=z, h1=h1, z1=z1)
    np.testing.assert_allclose(results["y"], 2 * np.exp(0.5))
    np.testing.assert_allclose(results["dh"], 3 * np.exp(-1.0))


@pytest.mark.parametrize("at", ["x", "x1"])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("shape", [[1, 2, 5, 7], ["n", 3, 9]], ids=str)
def test_the_gradient_of_a_pool_with_a_stride_has_the_size_of_its_input(
    pool: str, shape: list[str | int], at: str
) -> None:
    """Inputs of two sizes have the same number of windows, and the output of the gradient states no shape."""
    axes = len(shape) - 2
    nodes = [
        helper.make_node(pool, ["x"], ["p"], kernel_shape=[2] * axes, strides=[2] * axes),
        helper.make_node("Mul", ["p", "p"], ["q"]),
        helper.make_node("ReduceSum", ["q"], ["y"], keepdims=0),
        gradient([at], ["dx"], ["x"], "y"),
    ]
    no_shape = helper.make_tensor_value_info("dx", onnx.TensorProto.DOUBLE, None)
    model = model_of(nodes, [tensor("x", shape), tensor("x1", shape)], [tensor("y", []), no_shape])
    sizes = [2 if dim == "n" else int(dim) for dim in shape]
    x = RNG.permutation(int(np.prod(sizes))).reshape(sizes) / 10
    dx = run(model, x=x, x1=x)["dx"]
    assert dx.shape == x.shape
    np.testing.assert_allclose(dx, differences(model, "y", {"x": x, "x1": x}, "x"), rtol=1e-6, atol=1e-6)


def test_the_gradient_with_respect_to_what_does_not_matter_is_zero() -> None:
    nodes = [helper.make_node("Neg", ["a"], ["y"]), gradient(["a", "b"], ["da", "db"], ["a", "b"], "y")]
    model = model_of(
        nodes, [tensor("a", [1]), tensor("b", [2, "n"])], [tensor("da", [1]), tensor("db", [2, "n"])]
    )
    results = run(model, a=np.ones(1), b=np.ones((2, 3)))
    np.testing.assert_array_equal(results["da"], [-1])
    np.testing.assert_array_equal(results["db"], np.zeros((2, 3)))


@pytest.mark.parametrize("order", [2, 3, 4])
def test_higher_derivatives(order: int) -> None:
    """y = exp(a) a^3, differentiated repeatedly; the nodes are in the graph in reverse order."""
    nodes = [
        helper.make_node("Exp", ["a"], ["e"]),
        helper.make_node("Mul", ["a", "a"], ["a2"]),
        helper.make_node("Mul", ["a2", "a"], ["a3"]),
        helper.make_node("Mul", ["e", "a3"], ["d0"]),
    ]
    nodes += [gradient(["a"], [f"d{n}"], ["a"], f"d{n - 1}") for n in range(order, 0, -1)]
    model = model_of(nodes, [tensor("a", [3])], [tensor(f"d{n}", [3]) for n in range(order + 1)])
    a = np.array([-0.5, 0.25, 1.0])
    results = run(model, a=a)
    polynomial = np.polynomial.Polynomial([0, 0, 0, 1])
    for n in range(order + 1):
        np.testing.assert_allclose(results[f"d{n}"], np.exp(a) * polynomial(a), rtol=1e-12)
        polynomial = polynomial + polynomial.deriv()


def test_the_norm_of_a_gradient_is_differentiated() -> None:
    """A gradient penalty: the sum of squares of dO/dX, differentiated by W."""
    nodes = [
        helper.make_node("MatMul", ["X", "W"], ["P"]),
        helper.make_node("Sin", ["P"], ["T"]),
        helper.make_node("ReduceSum", ["T"], ["O"], keepdims=0),
        gradient(["X", "W"], ["dX"], ["X"], "O", ["W"]),
        helper.make_node("Mul", ["dX", "dX"], ["S"]),
        helper.make_node("ReduceSum", ["S"], ["penalty"], keepdims=0),
        gradient(["W", "X"], ["dW"], ["W"], "penalty", ["X"]),
    ]
    inputs = [tensor("X", [4, 3]), tensor("W", [3, 2])]
    model = model_of(nodes, inputs, [tensor("penalty", []), tensor("dW", [3, 2])])
    feeds = {"X": RNG.standard_normal((4, 3)), "W": RNG.standard_normal((3, 2))}
    expected = differences(model, "penalty", feeds, "W")
    np.testing.assert_allclose(run(model, **feeds)["dW"], expected, rtol=1e-6, atol=1e-8)


def test_random_numbers_of_the_forward_pass_are_those_of_the_gradient() -> None:
    nodes = [
        helper.make_node("Dropout", ["a", "ratio", "on"], ["y"]),
        gradient(["a"], ["da"], ["a"], "y"),
    ]
    constants = {"ratio": np.array(0.5), "on": np.array(True)}
    model = model_of(nodes, [tensor("a", [1000])], [tensor("y", [1000]), tensor("da", [1000])], constants)
    results = run(model, a=np.full(1000, 3.0))
    assert 300 < (results["y"] != 0).sum() < 700
    np.testing.assert_allclose(results["da"], results["y"] / 3)


def test_a_model_with_a_gradient_in_it_can_be_trained() -> None:
    """The loss of a gradient penalty, whose own gradient is built through the node."""
    nodes = [
        helper.make_node("MatMul", ["X", "W"], ["P"]),
        helper.make_node("Exp", ["P"], ["T"]),
        gradient(["X"], ["dX"], ["X"], "T"),
        helper.make_node("Mul", ["dX", "dX"], ["S"]),
        helper.make_node("ReduceMean", ["S"], ["loss"], keepdims=0),
    ]
    model = model_of(nodes, [tensor("X", [4, 3]), tensor("W", [3, 2])], [tensor("loss", [])])
    builder = GradientGraphBuilder(model, {"loss"}, {"W"}, "loss")
    builder.build()
    feeds = {"X": RNG.standard_normal((4, 3)), "W": RNG.standard_normal((3, 2))}
    expected = differences(model, "loss", feeds, "W")
    np.testing.assert_allclose(run(builder.get_model(), **feeds)["W_grad"], expected, rtol=1e-6, atol=1e-10)


def test_what_a_gradient_names_has_to_be_there() -> None:
    inputs, outputs = [tensor("a", [1])], [tensor("da", [1])]
    neg = helper.make_node("Neg", ["a"], ["y"])
    with pytest.raises(ortrain.OrtrainError, match="no value named 'q'"):
        InferenceSession(model_of([neg, gradient(["a"], ["da"], ["a"], "q")], inputs, outputs))
    with pytest.raises(ortrain.OrtrainError, match="no value named 'b'"):
        InferenceSession(model_of([neg, gradient(["a"], ["da"], ["b"], "y")], inputs, outputs))
    with pytest.raises(ortrain.OrtrainError, match="expected 2 inputs"):
        InferenceSession(model_of([neg, gradient(["a"], ["da"], ["a"], "y", ["y"])], inputs, outputs))
    with pytest.raises(ortrain.OrtrainError, match="depends on its own result"):
        nodes = [helper.make_node("Neg", ["da"], ["y"]), gradient(["a"], ["da"], ["a"], "y")]
        InferenceSession(model_of(nodes, inputs, outputs))
    with pytest.raises(ortrain.OrtrainError, match=r"(?s)'y' cannot be differentiated.*Fancy|Fancy"):
        nodes = [helper.make_node("Fancy", ["a"], ["y"]), gradient(["a"], ["da"], ["a"], "y")]
        InferenceSession(model_of(nodes, inputs, outputs))
