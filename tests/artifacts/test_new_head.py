"""A new head: the classifier is found, replaced and trained as logistic regression on the features of the given model."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from exported import check_exported
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from ortrain import artifacts
from ortrain.artifacts import Head
from ortrain.artifacts.graph.dynamic_products import join_dynamic_products
from ortrain.artifacts.graph.head import NewHead
from ortrain.trainer import Trainer
from recorded import Fixture
from training import Training

Array = np.ndarray[Any, Any]
TESTS = pathlib.Path(__file__).parents[1]
MODELS, HEADS = TESTS / "models" / "data", TESTS / "data" / "heads"

CASES = {
    "Gemm behind GlobalAveragePool": MODELS / "resnet" / "torchscript_20.onnx",
    "Gemm behind ReduceMean": MODELS / "resnet" / "dynamo_23.onnx",
    "Gemm behind ReduceMean and Dropout": MODELS / "mobilenet_v2_dropout" / "dynamo_plain_20.onnx",
    "Gemm on a token": MODELS / "vit" / "torchscript_17.onnx",
    "Conv, tf2onnx": HEADS / "convolution_tf2onnx.onnx",
    "Conv, ortrain.keras": HEADS / "convolution_keras.onnx",
    "MatMul, tf2onnx": HEADS / "sigmoid_tf2onnx.onnx",
    "MatMul, ortrain.keras": HEADS / "sigmoid_keras.onnx",
}


def in_inference(model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        if node.op_type == "Dropout":
            node.op_type = "Identity"
            del node.input[1:], node.output[1:], node.attribute[:]
        if node.op_type == "BatchNormalization":
            for attribute in node.attribute:
                if attribute.name == "training_mode":
                    attribute.i = 0
            del node.output[1:]
    return model


def features_of(path: pathlib.Path, x: Array) -> Array:
    """What the classifier of the given model reads, by stock onnxruntime."""
    model = in_inference(onnx.load(path))
    layers = ("Gemm", "Conv", "MatMul", "MatMulNBits", "DynamicQuantizeMatMul")
    node = next(n for n in reversed(model.graph.node) if n.op_type in layers)
    model.graph.output.append(onnx.ValueInfoProto(name=node.input[0]))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = session.run([node.input[0]], {session.get_inputs()[0].name: x})[0]
    return found.reshape(len(x), -1).astype(np.float64)


def batch_of(path: pathlib.Path, rows: int = 6) -> tuple[Array, Array]:
    rng = np.random.default_rng(3)
    shape = [d.dim_value or 16 for d in onnx.load(path).graph.input[0].type.tensor_type.shape.dim][1:]
    return rng.normal(size=(rows, *shape)).astype(np.float32), np.arange(rows) % 4


def regression(
    features: Array, labels: Array, weight: Array, bias: Array, steps: int, rate: float
) -> list[float]:
    """Losses of steps of gradient descent on a linear layer under cross entropy."""
    losses = []
    for _ in range(steps):
        scores = features @ weight + bias
        probabilities = np.exp(scores - scores.max(1, keepdims=True))
        probabilities /= probabilities.sum(1, keepdims=True)
        losses.append(float(-np.log(probabilities[np.arange(len(labels)), labels]).mean()))
        gradient = (probabilities - np.eye(weight.shape[1])[labels]) / len(labels)
        weight, bias = weight - rate * features.T @ gradient, bias - rate * gradient.sum(0)
    return losses


@pytest.mark.parametrize("case", CASES)
def test_training_a_new_head_is_logistic_regression_on_the_features(
    case: str, tmp_path: pathlib.Path
) -> None:
    check_regression(CASES[case], tmp_path)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("case", ["Gemm behind ReduceMean", "Gemm on a token"])
def test_the_head_of_a_quantized_model_is_float(case: str, bits: int, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "quantized.onnx"
    onnx.save(artifacts.quantize_weights(CASES[case], bits=bits, block_size=16).model, path)
    head = check_regression(path, tmp_path)
    assert head.operator == "MatMul"
    assert "its weights were quantized; the new weights are float" in head.notes


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
def test_a_model_with_dynamic_quantization_takes_a_new_head(kind: QuantType, tmp_path: pathlib.Path) -> None:
    """The body computes the features of the model with its layers as single operators, which onnxruntime confirms."""
    given, path = tmp_path / "given.onnx", tmp_path / "joined.onnx"
    # Seven bits: without VNNI, onnxruntime adds products of signed weights of eight bits in 16 bits, which overflow.
    quantize_dynamic(
        CASES["Gemm on a token"],
        given,
        weight_type=kind,
        op_types_to_quantize=["MatMul", "Gemm"],
        reduce_range=kind == QuantType.QInt8,
    )
    model = onnx.load(given)
    x, _ = batch_of(given)
    name = model.graph.input[0].name
    expected = onnxruntime.InferenceSession(given).run(None, {name: x})[0]
    join_dynamic_products(model)
    onnx.save(model, path)
    assert not any(node.op_type == "MatMulInteger" for node in model.graph.node)
    found = onnxruntime.InferenceSession(path).run(None, {name: x})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    head = check_regression(path, tmp_path, rtol=2e-3)  # roundings of halves may differ
    assert "its weights were quantized; the new weights are float" in head.notes
    report = artifacts.generate_artifacts(
        given, head=Head(classes=4), artifact_directory=tmp_path / "of_given"
    )
    assert report.trained == head.parameters
    assert Training(tmp_path / "of_given").evaluate(*batch_of(given)) == pytest.approx(
        Training(tmp_path).evaluate(*batch_of(given)), rel=1e-6
    )


def check_regression(path: pathlib.Path, tmp_path: pathlib.Path, rtol: float = 2e-5) -> NewHead:
    """Train a new head, and compare its losses with those of logistic regression on the features of the model."""
    report = artifacts.generate_artifacts(
        path, head=Head(classes=4), optimizer=artifacts.OptimType.SGD, artifact_directory=tmp_path
    )
    head = report.head
    assert head is not None
    assert report.trained == head.parameters
    x, y = batch_of(path)
    features = features_of(path, x)
    assert head.features == features.shape[1]
    assert head.classes == 4
    training = Training(tmp_path)
    if any(node.op_type == "Dropout" for node in onnx.load(report.training_model).graph.node):
        losses = [training.evaluate(x, y)]  # steps drop features of the head
    else:
        training.optimizer.set_learning_rate(0.1)
        losses = [training.step(x, y) for _ in range(5)]
    start = Training(tmp_path).parameters()
    weight = start[head.weight].squeeze().astype(np.float64)
    weight = weight if len(weight) == head.features else weight.T
    bias = start[head.bias] if head.bias else np.zeros(4)
    assert np.abs(np.concatenate([weight.ravel(), bias.ravel()])).max() <= 1 / np.sqrt(head.features)
    expected = regression(features, y, weight, bias.astype(np.float64).ravel(), len(losses), 0.1)
    np.testing.assert_allclose(losses, expected, rtol=rtol)
    return head


@pytest.mark.parametrize("case", ["Conv, ortrain.keras", "Conv, tf2onnx", "MatMul, ortrain.keras"])
def test_the_activation_at_the_end_stays_in_the_exported_model(case: str, tmp_path: pathlib.Path) -> None:
    path = CASES[case]
    report = artifacts.generate_artifacts(path, head=Head(classes=4), artifact_directory=tmp_path)
    name = onnx.load(path).graph.output[0].name
    x, _ = batch_of(path)
    training = Training(tmp_path)
    exported = tmp_path / "exported.onnx"
    assert report.head is not None
    training.module.export_model_for_inferencing(str(exported), [report.head.scores, name])
    check_exported(exported)
    session = onnxruntime.InferenceSession(str(exported))
    scores, probabilities = session.run(None, {session.get_inputs()[0].name: x})
    assert scores.shape == (6, 4)
    wanted = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)  # also where it was a Sigmoid
    np.testing.assert_allclose(probabilities, wanted, rtol=1e-5)
    assert any("scores before" in note for note in report.head.notes)


def model_with(
    nodes: list[onnx.NodeProto], classes: int, shape: list[Any], values: dict[str, Array]
) -> onnx.ModelProto:
    """A model of two layers with nodes behind them, which read ``h``."""
    rng = np.random.default_rng(5)
    values = values | {
        "body.weight": rng.normal(size=(6, 5)).astype(np.float32),
        "fc.weight": rng.normal(size=(5, classes)).astype(np.float32),
        "fc.bias": rng.normal(size=classes).astype(np.float32),
    }
    body = [helper.make_node("MatMul", ["x", "body.weight"], ["b"]), helper.make_node("Tanh", ["b"], ["t"])]
    layer = [helper.make_node("Gemm", ["t", "fc.weight", "fc.bias"], ["h"])]
    graph = helper.make_graph(
        [*body, *layer, *nodes],
        "model",
        [helper.make_tensor_value_info("x", 1, ["batch", 6])],
        [helper.make_tensor_value_info("y", 1, shape)],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("subtracts", [True, False], ids=["shifted", "plain"])
def test_a_softmax_of_several_nodes_is_one(subtracts: bool, tmp_path: pathlib.Path) -> None:
    """tf2onnx writes jax.nn.softmax like this, with the number of classes nowhere but in the weights."""
    nodes = [
        helper.make_node("ReduceMax", ["h"], ["max"], axes=[1], keepdims=0),
        helper.make_node("Max", ["low", "max"], ["bounded"]),
        helper.make_node("Reshape", ["bounded", "column"], ["maxima"]),
        helper.make_node("Sub", ["h", "maxima"], ["shifted"]),
        helper.make_node("Exp", ["shifted" if subtracts else "h"], ["e"]),
        helper.make_node("ReduceSum", ["e", "axis"], ["sum"], keepdims=0),
        helper.make_node("Reshape", ["sum", "column"], ["sums"]),
        helper.make_node("Div", ["e", "sums"], ["y"]),
    ]
    del nodes[: 0 if subtracts else 4]
    values = {"low": np.float32(-np.inf), "column": np.array([-1, 1]), "axis": np.array([1])}
    path = tmp_path / "given.onnx"
    onnx.save(model_with(nodes, 3, ["batch", 3], {k: np.asarray(v) for k, v in values.items()}), path)
    head = check_regression(path, tmp_path / "artifacts")
    assert head.scores == "h"
    assert any("scores before Softmax" in note for note in head.notes)
    training = Training(tmp_path / "artifacts")
    training.module.export_model_for_inferencing(str(tmp_path / "exported.onnx"), ["h", "y"])
    x, _ = batch_of(path)
    scores, probabilities = onnxruntime.InferenceSession(str(tmp_path / "exported.onnx")).run(None, {"x": x})
    wanted = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(probabilities, wanted, rtol=1e-5)


DROPPING = {
    "Squeeze behind Sigmoid": [
        helper.make_node("Sigmoid", ["h"], ["p"]), helper.make_node("Squeeze", ["p", "axis"], ["y"]),
    ],
    "Squeeze of the last dimension": [helper.make_node("Squeeze", ["h", "last"], ["y"])],
    "Squeeze of two dimensions": [
        helper.make_node("Unsqueeze", ["h", "axis"], ["u"]), helper.make_node("Squeeze", ["u", "both"], ["y"]),
    ],
    "Reshape": [helper.make_node("Reshape", ["h", "flat"], ["y"])],
}  # fmt: skip


@pytest.mark.parametrize("case", DROPPING)
def test_a_model_that_drops_the_dimension_of_its_only_score_keeps_that_of_the_classes(
    case: str, tmp_path: pathlib.Path
) -> None:
    values = {"axis": [1], "last": [-1], "both": [1, 2], "flat": [-1]}
    given = model_with(DROPPING[case], 1, ["batch"], {k: np.array(v) for k, v in values.items()})
    path = tmp_path / "given.onnx"
    onnx.save(given, path)
    head = check_regression(path, tmp_path / "artifacts")
    assert any("keeps the dimension of the 4 classes" in note for note in head.notes)
    training = Training(tmp_path / "artifacts")
    training.module.export_model_for_inferencing(str(tmp_path / "exported.onnx"), ["y"])
    session = onnxruntime.InferenceSession(str(tmp_path / "exported.onnx"))
    assert session.run(None, {"x": batch_of(path)[0]})[0].shape == (6, 4)


def test_a_frozen_body_keeps_its_running_statistics(tmp_path: pathlib.Path) -> None:
    fixture = Fixture("resnet_bn")  # exported in training mode
    for train, changes in (("head", False), ("all", True)):
        folder = tmp_path / train
        artifacts.generate_artifacts(
            fixture.path("model.onnx"), head=Head(classes=3, train=train), artifact_directory=folder
        )
        training = Training(folder)
        images, labels = fixture.batches[0]
        before = export(training, folder / "before.onnx")
        training.step(images, labels % 3)
        after = export(training, folder / "after.onnx")
        statistics = [name for name in after if name.endswith(("running_mean", "running_var"))]
        assert statistics or not changes
        assert any((before[name] != after[name]).any() for name in statistics) == changes
        assert any((before[name] != after[name]).any() for name in after)


def export(training: Training, path: pathlib.Path) -> dict[str, Array]:
    training.module.export_model_for_inferencing(str(path), ["output"])
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def trained(path: pathlib.Path | str, folder: pathlib.Path, train: Any) -> list[str]:
    return artifacts.generate_artifacts(path, head=Head(3, train=train), artifact_directory=folder).trained


def test_what_is_trained_with_a_head(tmp_path: pathlib.Path) -> None:
    path = Fixture("lenet_adamw").path("model.onnx")
    head, layer = ["fc2.weight", "fc2.bias"], ["fc1.weight", "fc1.bias"]
    assert trained(path, tmp_path, "head") == head
    assert trained(path, tmp_path, "last:2") == [*layer, *head]
    assert sorted(trained(path, tmp_path, ["fc1", "conv*.bias"])) == sorted(
        [*layer, *head, "conv1.bias", "conv2.bias"]
    )
    everything = artifacts.generate_artifacts(
        path, artifact_directory=tmp_path, loss=artifacts.LossType.MSELoss
    )
    assert sorted(trained(path, tmp_path, "all")) == sorted(everything.trained)
    report = artifacts.generate_artifacts(
        path, head=Head(3), frozen_params=["conv1"], artifact_directory=tmp_path
    )
    assert report.frozen == ["conv1.weight", "conv1.bias"]


def test_the_seed_decides_the_initial_head(tmp_path: pathlib.Path) -> None:
    path = Fixture("mlp_adamw").path("model.onnx")
    weights = []
    for seed in (0, 0, 1):
        artifacts.generate_artifacts(path, head=Head(3, seed=seed), artifact_directory=tmp_path)
        weights.append(Training(tmp_path).parameters()["fc2.weight"])
    assert (weights[0] == weights[1]).all()
    assert (weights[0] != weights[2]).any()


@pytest.mark.parametrize("name", ["hf_electra__dyn20", "hf_olmo2__tst17"])
def test_a_classifier_of_tokens_has_its_classes_last(name: str, tmp_path: pathlib.Path) -> None:
    path = TESTS / "data" / "exports" / name / "model.onnx"
    report = artifacts.generate_artifacts(path, head=Head(classes=4), artifact_directory=tmp_path)
    training = Training(tmp_path)
    ids = np.ones((2, 12), np.int64)
    labels = np.arange(24).reshape(2, 12) % 4
    losses = [training.step(ids, np.ones_like(ids), labels) for _ in range(3)]
    assert report.head is not None
    assert report.head.class_axis == -1
    assert losses[-1] < losses[0]
    # The weights that the old classifier alone was computed from are gone.
    names = {tensor.name for tensor in onnx.load(report.eval_model).graph.initializer}
    assert not any(node.output[0] == "val_200" for node in onnx.load(report.eval_model).graph.node)
    assert report.head.weight not in names


def test_the_output_of_the_classifier_may_be_named(tmp_path: pathlib.Path) -> None:
    model = onnx.load(Fixture("mlp_adamw").path("model.onnx"))
    model.graph.node.append(helper.make_node("Exp", ["/fc1/Gemm_output_0"], ["embedding"]))
    model.graph.output.insert(0, helper.make_tensor_value_info("embedding", 1, ["batch", 32]))
    before = model.SerializeToString()
    with pytest.raises(
        ValueError, match=r"'embedding' .* found node embedding \(Exp\); .* classifier: output \(Gemm fc2\)"
    ):
        artifacts.generate_artifacts(model, head=Head(4), artifact_directory=tmp_path)
    report = artifacts.generate_artifacts(
        model, head=Head(4), loss_input_names=["output"], artifact_directory=tmp_path
    )
    assert report.head is not None
    assert report.head.layer == "fc2"
    assert model.SerializeToString() == before


def test_what_is_no_classifier_is_named(tmp_path: pathlib.Path) -> None:
    path = MODELS / "autoencoder" / "torchscript_14.onnx"
    with pytest.raises(ValueError, match=r"found node /decoder/decoder.2/ConvTranspose \(ConvTranspose\)"):
        artifacts.generate_artifacts(path, head=Head(4), artifact_directory=tmp_path)
    path = MODELS / "distilbert" / "torchscript_17.onnx"
    with pytest.raises(ValueError, match=r"expected output 'output' to come from a classifier.* \(Concat\)"):
        artifacts.generate_artifacts(path, head=Head(4), artifact_directory=tmp_path)
    assert not list(tmp_path.iterdir())


def test_settings_that_are_no_head_are_rejected() -> None:
    with pytest.raises(ValueError, match="expected 2 or more classes, found 1"):
        Head(1)
    with pytest.raises(
        ValueError, match=r'expected train "head", "last:N", "all" or a list .*found \'last\''
    ):
        Head(3, train="last")
    with pytest.raises(TypeError, match="expected a number of classes, found '3'"):
        Head("3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected head, adapter or requires_grad"):
        artifacts.generate_artifacts(
            Fixture("mlp_adamw").path("model.onnx"), requires_grad=["fc1"], head=Head(3)
        )


def test_a_report_shortens_what_is_left_out_for_one_reason(tmp_path: pathlib.Path) -> None:
    path = MODELS / "mobilenet_v2" / "torchscript_17.onnx"
    report = artifacts.generate_artifacts(path, head=Head(4), artifact_directory=tmp_path)
    lines = str(report).splitlines()
    shown = [line for line in lines if "not trained, as train is head" in line]
    assert len(shown) == 4
    assert shown[-1] == f"... and {len(report.left_out) - 3} more left out: not trained, as train is head"
    assert sum("the new head" in line for line in lines) == len(report.trained)


def sequence_model(pooled: bool) -> onnx.ModelProto:
    """A model like a recognizer of text: scores at 6 positions of a row; or their mean."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "fc.weight"], ["product"], "fc"),
        helper.make_node("Add", ["product", "fc.bias"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["pooled"], axes=[1], keepdims=0),
    ]
    output = helper.make_tensor_value_info("pooled", 1, ["batch", 11]) if pooled else None
    graph = helper.make_graph(
        nodes[: 3 if pooled else 2],
        "graph",
        [helper.make_tensor_value_info("x", 1, ["batch", 6, 5])],
        [output or helper.make_tensor_value_info("y", 1, ["batch", 6, 11])],
        [
            numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
            for name, shape in (("fc.weight", (5, 11)), ("fc.bias", (11,)))
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_one_label_per_row_for_scores_at_positions_is_explained(tmp_path: pathlib.Path) -> None:
    x, y = np.random.default_rng(1).normal(size=(8, 6, 5)).astype(np.float32), np.arange(8) % 4
    report = artifacts.generate_artifacts(
        sequence_model(False), head=Head(4), artifact_directory=tmp_path / "a"
    )
    assert report.head is not None
    note = "the scores y have the shape [batch, 6, 4]: the labels are a class for each position of a row, not one per row"
    assert report.head.notes == (note,)
    trainer = Trainer(tmp_path / "a")
    with pytest.raises(
        ValueError, match=r"labels.*\[batch, 6\], found the shape \(8,\), one class per row: .*ReduceMean"
    ):
        trainer.fit((x, y), epochs=1)
    trainer.fit((x, np.repeat(y[:, None], 6, 1)), epochs=1)
    report = artifacts.generate_artifacts(
        sequence_model(True), head=Head(4), artifact_directory=tmp_path / "b"
    )
    assert report.head is not None
    assert report.head.notes == ()
    Trainer(tmp_path / "b").fit((x, y), epochs=1)
