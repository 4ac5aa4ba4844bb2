"""Blocks: what they compute, run by stock onnxruntime and compared with formulas in NumPy, and what they reject."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import onnxblock
from ortrain.api import CheckpointState, Module
from ortrain.errors import OrtrainError

onnxruntime = pytest.importorskip("onnxruntime")

Array = npt.NDArray[Any]


def linear_model(opset: int = 17, dtype: type = np.float32, outputs: int = 3) -> onnx.ModelProto:
    """output = input · weight + bias, and a second weight that nothing reads."""
    random = np.random.default_rng(1)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weight = random.normal(size=(4, outputs)).astype(dtype)
    bias = random.normal(size=outputs).astype(dtype)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["input", "fc.weight"], ["product"], name="fc/MatMul"),
            helper.make_node("Add", ["product", "fc.bias"], ["output"], name="fc/Add"),
        ],
        "linear",
        [helper.make_tensor_value_info("input", element, ["batch", 4])],
        [helper.make_tensor_value_info("output", element, ["batch", outputs])],
        [
            numpy_helper.from_array(weight, "fc.weight"),
            numpy_helper.from_array(bias, "fc.bias"),
            numpy_helper.from_array(np.ones(3, dtype), "unused"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def identity_model(
    shape: list[int | str], opset: int = 17, element: int = TensorProto.FLOAT
) -> onnx.ModelProto:
    """A model that returns its input, to build blocks on."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "identity",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info("y", element, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


def forward(build: Callable[[str], Any], model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what `build` adds to its output."""

    class Built(onnxblock.ForwardBlock):
        def build(self, name: str) -> Any:
            return build(name)

    block = Built()
    with onnxblock.base(model):
        block(model.graph.output[0].name)
    return block.to_model_proto()


class LossBlock(onnxblock.TrainingBlock):
    def __init__(self, loss: onnxblock.Block, *others: str) -> None:
        super().__init__()
        self.loss = loss
        self.others = others

    def build(self, name: str) -> Any:
        return (self.loss(name), *self.others)


# Losses.

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
T = np.random.default_rng(1).uniform(size=(5, 3)).astype(np.float32)
REDUCE: dict[str, Callable[[Array], Array]] = {"mean": np.mean, "sum": np.sum, "none": np.asarray}


@pytest.mark.parametrize("opset", [12, 13, 17, 21])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_mse_is_the_reduced_squared_difference(reduction: str, opset: int) -> None:
    model = forward(onnxblock.loss.MSELoss(reduction), identity_model(["n", 3], opset))
    assert [value.name for value in model.graph.input] == ["x", "target"]
    np.testing.assert_allclose(run(model, {"x": X, "target": T}), REDUCE[reduction]((X - T) ** 2), rtol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_l1_is_the_reduced_absolute_difference(reduction: str) -> None:
    model = forward(onnxblock.loss.L1Loss(reduction), identity_model(["n", 3]))
    np.testing.assert_allclose(run(model, {"x": X, "target": T}), REDUCE[reduction](np.abs(X - T)), rtol=1e-5)


def binary_cross_entropy(x: Array, t: Array, weight: Any = 1.0, pos_weight: Any = 1.0) -> Array:
    x, t = x.astype(np.float64), t.astype(np.float64)
    loss = weight * (pos_weight * t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x))
    return np.asarray(loss)


@pytest.mark.parametrize("opset", [12, 13, 17])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_bce_with_logits(reduction: str, opset: int) -> None:
    model = forward(onnxblock.loss.BCEWithLogitsLoss(reduction=reduction), identity_model(["n", 3], opset))
    expected = REDUCE[reduction](binary_cross_entropy(X, T))
    np.testing.assert_allclose(run(model, {"x": X, "target": T}), expected, rtol=1e-5)


def test_bce_with_weights() -> None:
    weight = np.array([0.5, 1.0, 2.0])  # float64 arrays are accepted for float32 models too
    pos_weight = np.array([3.0, 1.0, 0.25], np.float32)
    model = forward(onnxblock.loss.BCEWithLogitsLoss(weight, "sum", pos_weight), identity_model(["n", 3]))
    expected = binary_cross_entropy(X, T, weight, pos_weight).sum()
    np.testing.assert_allclose(run(model, {"x": X, "target": T}), expected, rtol=1e-5)


def test_bce_is_finite_for_large_logits() -> None:
    x = np.array([[-1e4, 0.0, 1e4]], np.float32)
    t = np.array([[1.0, 0.5, 0.0]], np.float32)
    model = forward(onnxblock.loss.BCEWithLogitsLoss(reduction="none"), identity_model(["n", 3]))
    np.testing.assert_allclose(run(model, {"x": x, "target": t}), [[1e4, np.log(2), 1e4]], rtol=1e-6)


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore_index", [None, 1])
def test_cross_entropy(reduction: str, weighted: bool, ignore_index: int | None) -> None:
    labels = np.array([0, 1, 2, 1, 0])
    class_weight = np.array([0.2, 1.0, 3.0], np.float32)
    block = onnxblock.loss.CrossEntropyLoss(class_weight if weighted else None, reduction, ignore_index)
    model = forward(block, identity_model(["n", 3]))
    weights = class_weight[labels] if weighted else np.ones(5, np.float32)
    if ignore_index is not None:
        weights = np.where(labels == ignore_index, 0, weights)
    losses = -weights * log_softmax(X)[np.arange(5), labels]
    expected = {"mean": losses.sum() / weights.sum(), "sum": losses.sum(), "none": losses}[reduction]
    np.testing.assert_allclose(run(model, {"x": X, "labels": labels}), expected, rtol=1e-5)


def test_cross_entropy_of_images_takes_a_label_for_each_pixel() -> None:
    model = forward(onnxblock.loss.CrossEntropyLoss(), identity_model(["n", 3, 2, 4]))
    labels = next(value for value in model.graph.input if value.name == "labels")
    assert [d.dim_param or d.dim_value for d in labels.type.tensor_type.shape.dim] == ["n", 2, 4]
    assert labels.type.tensor_type.elem_type == TensorProto.INT64


def test_cross_entropy_of_tokens_with_the_classes_last() -> None:
    model = forward(onnxblock.loss.CrossEntropyLoss(axis=-1), identity_model(["n", 4, 3]))
    value = next(value for value in model.graph.input if value.name == "labels")
    assert [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim] == ["n", 4]
    scores = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    labels = np.array([[0, 1, 2, 1], [2, 2, 0, 1]])
    expected = -log_softmax(scores.reshape(8, 3))[np.arange(8), labels.ravel()].mean()
    np.testing.assert_allclose(run(model, {"x": scores, "labels": labels}), expected, rtol=1e-5)


def test_the_classes_are_second_or_last() -> None:
    with pytest.raises(ValueError, match="axis: expected 1 or -1, found 2"):
        onnxblock.loss.CrossEntropyLoss(axis=2)


def test_a_loss_uses_a_target_that_the_model_has() -> None:
    model = identity_model(["n", 3])
    model.graph.input.append(helper.make_tensor_value_info("target", TensorProto.FLOAT, ["n", 3]))
    built = forward(onnxblock.loss.MSELoss(), model)
    assert [value.name for value in built.graph.input] == ["x", "target"]


def test_losses_of_double_models_are_double() -> None:
    for loss in (onnxblock.loss.MSELoss(), onnxblock.loss.L1Loss(), onnxblock.loss.BCEWithLogitsLoss()):
        model = forward(loss, identity_model(["n", 3], element=TensorProto.DOUBLE))
        result = run(model, {"x": X.astype(np.float64), "target": T.astype(np.float64)})
        assert result.dtype == np.float64


@pytest.mark.parametrize(
    "make",
    [
        onnxblock.loss.MSELoss,
        onnxblock.loss.L1Loss,
        onnxblock.loss.BCEWithLogitsLoss,
        onnxblock.loss.CrossEntropyLoss,
    ],
)
def test_an_unknown_reduction_is_rejected_with_the_known_ones(make: Any) -> None:
    with pytest.raises(ValueError, match=r"mean, sum, none.*'median'"):
        make(reduction="median")


def test_class_weights_must_have_one_axis() -> None:
    with pytest.raises(ValueError, match=r"\[classes\].*\[2, 3\]"):
        onnxblock.loss.CrossEntropyLoss(np.ones((2, 3)))


# Arithmetic and the other blocks.


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (onnxblock.blocks.Add(), X + X),
        (onnxblock.blocks.Sub(), X - X),
        (onnxblock.blocks.Mul(), X * X),
        (onnxblock.blocks.Div(), X / X),
    ],
)
def test_arithmetic_of_two_values(block: onnxblock.Block, expected: Array) -> None:
    np.testing.assert_allclose(
        run(forward(lambda name: block(name, name), identity_model(["n", 3])), {"x": X}), expected
    )


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (onnxblock.blocks.Pow(3.0), X**3),
        (onnxblock.blocks.Sigmoid(), 1 / (1 + np.exp(-X))),
        (onnxblock.blocks.Neg(), -X),
        (onnxblock.blocks.Abs(), np.abs(X)),
        (onnxblock.blocks.Clip(-0.5, 0.25), np.clip(X, -0.5, 0.25)),
        (onnxblock.blocks.Clip(clip_max=0.25), np.minimum(X, 0.25)),
        (onnxblock.blocks.Clip(clip_min=0.25), np.maximum(X, 0.25)),
        (onnxblock.blocks.Clip(), X),
        (onnxblock.blocks.ReduceMean(), X.mean(keepdims=True)),
        (onnxblock.blocks.ReduceMean(keepdims=False), X.mean()),
        (onnxblock.blocks.ReduceSum(), X.sum(keepdims=True)),
        (onnxblock.blocks.ReduceSum(keepdims=False), X.sum()),
        (onnxblock.blocks.Cast(TensorProto.INT32), X.astype(np.int32)),
    ],
)
def test_blocks_of_one_value(block: onnxblock.Block, expected: Array) -> None:
    result = run(forward(block, identity_model(["n", 3])), {"x": X})
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_log_and_constant() -> None:
    log, add = onnxblock.blocks.Log(), onnxblock.blocks.Add()
    constant = onnxblock.blocks.Constant(2.5)
    model = forward(lambda name: add(log(name), constant()), identity_model(["n", 3]))
    np.testing.assert_allclose(run(model, {"x": T}), np.log(T) + 2.5, rtol=1e-5)


def test_linear_adds_a_layer_with_parameters() -> None:
    model = forward(onnxblock.blocks.Linear(3, 7), identity_model(["n", 3]))
    weight, bias = (numpy_helper.to_array(tensor) for tensor in model.graph.initializer)
    assert weight.shape == (3, 7)
    assert bias.shape == (7,)
    np.testing.assert_allclose(run(model, {"x": X}), X @ weight + bias, rtol=1e-5, atol=1e-6)
    without = forward(onnxblock.blocks.Linear(3, 7, bias=False), identity_model(["n", 3]))
    assert len(without.graph.initializer) == 1


def test_input_like_copies_type_and_shape() -> None:
    model = forward(
        lambda name: onnxblock.blocks.Mul()(name, onnxblock.blocks.InputLike(name)("mask")),
        identity_model(["n", 3]),
    )
    np.testing.assert_allclose(run(model, {"x": X, "mask": T}), X * T, rtol=1e-6)


def test_input_like_names_the_value_it_does_not_find() -> None:
    with onnxblock.base(identity_model(["n", 3])), pytest.raises(LookupError, match="'nothing'"):
        onnxblock.blocks.InputLike("nothing")()


def test_label_encoder_looks_up() -> None:
    block = onnxblock.blocks.LabelEncoder(keys_int64s=[1, 2], values_int64s=[10, 20], default_int64=-5)
    model = forward(block, identity_model(["n"], element=TensorProto.INT64))
    np.testing.assert_array_equal(run(model, {"x": np.array([2, 1, 7])}), [20, 10, -5])


def test_several_outputs_keep_their_order() -> None:
    neg, abs_ = onnxblock.blocks.Neg(), onnxblock.blocks.Abs()
    model = forward(lambda name: (neg(name), name, abs_(name)), identity_model(["n", 3]))
    assert [value.name for value in model.graph.output][1] == "y"
    assert len(model.graph.output) == 3


def test_the_base_model_is_not_changed() -> None:
    model = identity_model(["n", 3])
    before = model.SerializeToString()
    forward(onnxblock.loss.MSELoss(), model)
    assert model.SerializeToString() == before


def test_the_same_blocks_give_the_same_bytes() -> None:
    first, second = (forward(onnxblock.loss.BCEWithLogitsLoss(), identity_model(["n", 3])) for _ in range(2))
    assert first.SerializeToString() == second.SerializeToString()


def test_empty_base_starts_from_nothing() -> None:
    class Doubled(onnxblock.ForwardBlock):
        def build(self) -> str:
            self.base.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]))
            return str(onnxblock.blocks.Add()("x", "x"))

    block = Doubled()
    with onnxblock.empty_base(15) as accessor:
        block()
        assert accessor.model.graph.output[0].name == block.to_model_proto().graph.output[0].name
    model = block.to_model_proto()
    assert {o.domain: o.version for o in model.opset_import} == {"": 15, "com.microsoft": 1}
    np.testing.assert_allclose(run(model, {"x": X}), 2 * X)


# What is rejected.


def test_a_block_outside_of_a_base_is_rejected() -> None:
    with pytest.raises(RuntimeError, match=r"onnxblock.base"):
        onnxblock.loss.MSELoss()("output")


def test_a_base_inside_a_base_is_rejected_and_the_outer_one_goes_on() -> None:
    with onnxblock.base(identity_model([3])) as accessor:
        with pytest.raises(RuntimeError, match="already"), onnxblock.empty_base():
            pass
        onnxblock.blocks.Neg()("y")
        assert len(accessor.model.graph.node) == 2
    with onnxblock.base(identity_model([3])):
        pass


def test_a_base_must_be_a_model() -> None:
    with pytest.raises(TypeError, match=r"ModelProto.*str"), onnxblock.base("model.onnx"):  # type: ignore[arg-type]
        pass


def test_a_block_that_breaks_the_model_is_named() -> None:
    class Broken(onnxblock.Block):
        def build(self) -> str:
            self.base.graph.node.append(helper.make_node("Add", ["y", "no such value"], ["z"]))
            return "z"

    with onnxblock.base(identity_model([3])), pytest.raises(ValueError, match=r"Broken.*not valid ONNX"):
        Broken()()


def test_a_block_that_returns_no_name_is_named() -> None:
    class Silent(onnxblock.ForwardBlock):
        def build(self) -> Any:
            return None

    with onnxblock.base(identity_model([3])), pytest.raises(TypeError, match=r"Silent.build"):
        Silent()()


def test_an_output_that_nothing_makes_is_named() -> None:
    class Astray(onnxblock.ForwardBlock):
        def build(self) -> str:
            return "elsewhere"

    with onnxblock.base(identity_model([3])), pytest.raises(LookupError, match="'elsewhere'"):
        Astray()()


def test_models_are_there_only_after_the_call() -> None:
    block = LossBlock(onnxblock.loss.MSELoss())
    with pytest.raises(RuntimeError, match="LossBlock"):
        block.to_model_proto()
    with pytest.raises(RuntimeError, match="LossBlock"):
        block.parameters()
    with pytest.raises(RuntimeError, match="SGD"):
        onnxblock.optim.SGD().to_model_proto()


def test_a_library_of_custom_operators_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(OrtrainError, match=r"ops\.so"), onnxblock.custom_op_library("ops.so"):
        pass


# Training blocks.


def test_training_and_eval_model_keep_the_contract() -> None:
    block = LossBlock(onnxblock.loss.MSELoss(), "output")
    block.requires_grad("fc.bias")
    block.requires_grad("fc.weight")
    block.requires_grad("unused", False)
    with onnxblock.base(linear_model()):
        loss, _ = block("output")
    training, evaluation = block.to_model_proto()
    parameters = ["fc.weight", "fc.bias", "unused"]
    trained = ["fc.weight", "fc.bias"]
    assert [value.name for value in evaluation.graph.input] == ["input", "target", *parameters]
    assert [value.name for value in training.graph.input] == [
        "input",
        "target",
        *parameters,
        *(f"{name}_grad.accumulation.buffer" for name in trained),
        "lazy_reset_grad",
    ]
    assert [value.name for value in evaluation.graph.output] == [loss, "output"]
    assert [value.name for value in training.graph.output] == [
        loss,
        "output",
        *(f"{name}_grad.accumulation.out" for name in trained),
    ]
    assert [tensor.name for tensor in block.parameters()[0]] == trained
    assert [tensor.name for tensor in block.parameters()[1]] == ["unused"]
    accumulated = {
        n.input[0]: list(n.input) for n in training.graph.node if n.op_type == "InPlaceAccumulatorV2"
    }
    for name in trained:
        buffer = f"{name}_grad.accumulation.buffer"
        assert accumulated[buffer] == [buffer, f"{name}_grad", "lazy_reset_grad"]
    for model in (training, evaluation):
        assert model.ir_version == 8
        assert {o.domain: o.version for o in model.opset_import}[""] == 17


def test_a_parameter_of_which_nothing_is_said_stays_a_constant() -> None:
    block = LossBlock(onnxblock.loss.MSELoss())
    block.requires_grad("fc.weight")
    with onnxblock.base(linear_model()):
        block("output")
    for model in block.to_model_proto():
        assert "fc.bias" in [tensor.name for tensor in model.graph.initializer]
        assert "fc.bias" not in [value.name for value in model.graph.input]


def test_the_last_word_on_requires_grad_counts() -> None:
    block = LossBlock(onnxblock.loss.MSELoss())
    block.requires_grad("fc.weight")
    block.requires_grad("fc.weight", False)
    block.requires_grad("fc.bias", False)
    block.requires_grad("fc.bias")
    with onnxblock.base(linear_model()):
        block("output")
    assert [[t.name for t in group] for group in block.parameters()] == [["fc.bias"], ["fc.weight"]]


def test_training_models_are_the_same_each_time() -> None:
    models = []
    for _ in range(2):
        block = LossBlock(onnxblock.loss.BCEWithLogitsLoss())
        block.requires_grad("fc.weight")
        block.requires_grad("fc.bias")
        with onnxblock.base(linear_model()):
            block("output")
        models.append(block.to_model_proto()[0].SerializeToString())
    assert models[0] == models[1]


def test_a_custom_loss_of_blocks() -> None:
    class Mixed(onnxblock.TrainingBlock):
        def __init__(self) -> None:
            super().__init__()
            self.mse, self.l1 = onnxblock.loss.MSELoss(), onnxblock.loss.L1Loss()
            self.add, self.mul = onnxblock.blocks.Add(), onnxblock.blocks.Mul()
            self.half = onnxblock.blocks.Constant(0.5)

        def build(self, prediction: str) -> Any:
            return self.mul(self.add(self.mse(prediction), self.l1(prediction)), self.half())

    model = linear_model()
    block = Mixed()
    block.requires_grad("fc.weight")
    with onnxblock.base(model):
        block("output")
    _, evaluation = block.to_model_proto()
    weight, bias = (numpy_helper.to_array(tensor) for tensor in model.graph.initializer[:2])
    x = np.random.default_rng(2).normal(size=(5, 4)).astype(np.float32)
    difference = x @ weight + bias - T
    expected = 0.5 * (np.mean(difference**2) + np.mean(np.abs(difference)))
    feeds = {"input": x, "target": T, "fc.weight": weight}
    np.testing.assert_allclose(run(evaluation, feeds), [expected], rtol=1e-5)


def test_an_unknown_parameter_is_rejected_with_a_hint() -> None:
    block = LossBlock(onnxblock.loss.MSELoss())
    block.requires_grad("fc.weigth")
    with (
        onnxblock.base(linear_model()),
        pytest.raises(ValueError, match=r"'fc.weigth'.*did you mean 'fc.weight'"),
    ):
        block("output")


def test_with_nothing_to_train_the_models_compute_the_loss(tmp_path: Path) -> None:
    block = LossBlock(onnxblock.loss.MSELoss())
    block.requires_grad("fc.weight", False)
    with onnxblock.base(linear_model()):
        (loss,) = block("output")
    training, evaluation = block.to_model_proto()
    assert [value.name for value in training.graph.output] == [loss]
    assert not any("accumulation" in value.name for value in (*training.graph.input, *training.graph.output))
    assert [len(tensors) for tensors in block.parameters()] == [0, 1]

    onnx.save(training, tmp_path / "training_model.onnx")
    onnx.save(evaluation, tmp_path / "eval_model.onnx")
    onnxblock.save_checkpoint(block.parameters(), tmp_path / "checkpoint")
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    x, target = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones((2, 3), np.float32)
    prediction = run(linear_model(), {"input": x})
    np.testing.assert_allclose(module(x, target), ((prediction - target) ** 2).mean(), rtol=1e-5)
    module.eval()
    np.testing.assert_allclose(module(x, target), ((prediction - target) ** 2).mean(), rtol=1e-5)


# The eval model.


def network_with_batch_normalization(opset: int) -> onnx.ModelProto:
    """x → BatchNormalization in training mode → Dropout in training mode → y."""
    random = np.random.default_rng(3)
    tensors = {
        "bn.scale": random.uniform(0.5, 2, 3),
        "bn.bias": random.normal(size=3),
        "bn.mean": random.normal(size=3),
        "bn.var": random.uniform(0.5, 2, 3),
        "ratio": np.array(0.9),
    }
    nodes = [
        helper.make_node(
            "BatchNormalization",
            ["x", "bn.scale", "bn.bias", "bn.mean", "bn.var"],
            ["normal", "new_mean", "new_var"],
            name="bn",
            training_mode=1,
        ),
        helper.make_node("Dropout", ["normal", "ratio", "training"], ["y"], name="dropout"),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [
            *(numpy_helper.from_array(value.astype(np.float32), name) for name, value in tensors.items()),
            numpy_helper.from_array(np.array(True), "training"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("opset", [14, 17])
def test_the_eval_model_uses_running_statistics_and_drops_nothing(opset: int) -> None:
    model = network_with_batch_normalization(opset)
    block = LossBlock(onnxblock.loss.MSELoss(), "y")
    block.requires_grad("bn.scale")
    block.requires_grad("bn.bias")
    with onnxblock.base(model):
        block("y")
    training, evaluation = block.to_model_proto()
    assert {tensor.name for tensor in block.parameters()[1]} == {"bn.mean", "bn.var"}
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    scale, bias, mean, var = (values[name] for name in ("bn.scale", "bn.bias", "bn.mean", "bn.var"))
    expected = (X - mean) / np.sqrt(var + 1e-5) * scale + bias
    names = {value.name for value in evaluation.graph.input}
    feeds = {"x": X, "target": T, **{name: value for name, value in values.items() if name in names}}
    session = onnxruntime.InferenceSession(evaluation.SerializeToString(), providers=["CPUExecutionProvider"])
    loss, y = session.run(None, feeds)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, np.mean((expected - T) ** 2), rtol=1e-4)
    # The training model still trains with the statistics of the batch.
    assert any(node.op_type in ("BatchNormalization", "BatchNormInternal") for node in training.graph.node)
    assert "training" in {name for node in training.graph.node for name in node.input}


def test_running_statistics_cannot_be_trained() -> None:
    block = LossBlock(onnxblock.loss.MSELoss())
    block.requires_grad("bn.mean")
    with onnxblock.base(network_with_batch_normalization(17)), pytest.raises(ValueError, match=r"bn.mean"):
        block("y")


# Optimizers.


def built(optimizer: Any) -> onnx.ModelProto:
    block = LossBlock(onnxblock.loss.MSELoss())
    block.requires_grad("fc.weight")
    with onnxblock.base(linear_model()):
        block("output")
    with onnxblock.empty_base(17, 8):
        optimizer(block.parameters())
    model: onnx.ModelProto = optimizer.to_model_proto()
    onnx.checker.check_model(model)
    return model


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def test_adamw_model() -> None:
    model = built(
        onnxblock.optim.AdamW(bias_correction=False, betas=(0.8, 0.99), eps=1e-7, weight_decay=0.01)
    )
    inputs = ["learning_rate", "step", "params", "gradients", "first_order_moments", "second_order_moments"]
    assert [value.name for value in model.graph.input] == inputs
    (node,) = model.graph.node
    assert (node.domain, node.op_type, list(node.input)) == ("com.microsoft", "AdamWOptimizer", inputs)
    expected = {
        "alpha": 0.8,
        "beta": 0.99,
        "epsilon": 1e-7,
        "weight_decay": 0.01,
        "correct_bias": 0,
        "adam_mode": 1,
    }
    assert attributes(node) == pytest.approx(expected)
    assert [value.name for value in model.graph.output] == list(node.output)
    assert (model.ir_version, {o.domain: o.version for o in model.opset_import}[""]) == (8, 17)


def test_adamw_defaults() -> None:
    (node,) = built(onnxblock.optim.AdamW()).graph.node
    expected = {
        "alpha": 0.9,
        "beta": 0.999,
        "epsilon": 1e-6,
        "weight_decay": 0,
        "correct_bias": 1,
        "adam_mode": 1,
    }
    assert attributes(node) == pytest.approx(expected)


def test_sgd_model() -> None:
    model = built(onnxblock.optim.SGD())
    assert [value.name for value in model.graph.input] == [
        "learning_rate",
        "step",
        "params",
        "gradients",
        "first_order_moments",
    ]
    (node,) = model.graph.node
    assert (node.op_type, list(node.input)) == ("SGDOptimizerV2", ["learning_rate", "params", "gradients"])


@pytest.mark.parametrize("make", [onnxblock.optim.AdamW, onnxblock.optim.SGD])
def test_gradients_are_clipped_before_the_update(make: Any) -> None:
    clip, update = built(make(clip_grad=onnxblock.optim.ClipGradNorm(2.5))).graph.node
    assert (clip.domain, clip.op_type, list(clip.input)) == (
        "com.microsoft",
        "InplaceClipGradNorm",
        ["gradients"],
    )
    assert attributes(clip) == {"max_norm": 2.5}
    assert clip.output[0] in update.input
    assert "gradients" not in update.input


def test_optimizer_numbers_out_of_range_are_rejected() -> None:
    with pytest.raises(ValueError, match="betas"):
        onnxblock.optim.AdamW(betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="eps"):
        onnxblock.optim.AdamW(eps=-1.0)
    with pytest.raises(ValueError, match="max_norm"):
        onnxblock.optim.ClipGradNorm(0.0)
    with pytest.raises(ValueError, match="max_norm"):
        onnxblock.optim.ClipGradNorm(float("nan"))


def test_an_optimizer_without_trainable_parameters_is_rejected() -> None:
    with onnxblock.empty_base(17), pytest.raises(ValueError, match="trainable"):
        onnxblock.optim.SGD()(([], []))


# Checkpoints.


def test_parameters_come_back_from_a_checkpoint(tmp_path: Path) -> None:
    model = linear_model()
    block = LossBlock(onnxblock.loss.MSELoss())
    block.requires_grad("fc.weight")
    block.requires_grad("fc.bias", False)
    with onnxblock.base(model):
        block("output")
    onnxblock.save_checkpoint(block.parameters(), tmp_path / "checkpoint")

    zeroed = linear_model()
    for tensor in zeroed.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.zeros(tensor.dims, np.float32), tensor.name))
    onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", zeroed)
    x = np.random.default_rng(2).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(run(zeroed, {"input": x}), run(model, {"input": x}))

    evaluation = block.to_model_proto()[1]
    onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", evaluation)
    assert [value.name for value in evaluation.graph.input] == ["input", "target"]
    assert run(evaluation, {"input": x, "target": T}).shape == ()


def test_a_checkpoint_of_another_model_is_rejected(tmp_path: Path) -> None:
    block = LossBlock(onnxblock.loss.MSELoss())
    block.requires_grad("fc.weight")
    with onnxblock.base(linear_model()):
        block("output")
    onnxblock.save_checkpoint(block.parameters(), tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=r"fc\.weight.*\[4, 3\].*\[4, 2\]"):
        onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", linear_model(outputs=2))
    with pytest.raises(ValueError, match="none of the 1 parameter"):
        onnxblock.load_checkpoint_to_model(tmp_path / "checkpoint", identity_model([3]))
    with pytest.raises(TypeError, match="parameters"):
        onnxblock.save_checkpoint(None, tmp_path / "checkpoint")  # type: ignore[arg-type]
