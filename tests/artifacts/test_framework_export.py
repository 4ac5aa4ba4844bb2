"""What an export by ortrain records about a network decides what is trained; its weights are found in an exporter's file."""

from __future__ import annotations

import importlib.util

import numpy as np
import onnx
import ortrain
import pytest
from onnx import helper, numpy_helper
from ortrain import artifacts
from ortrain._frameworks.exported_weights import placeholders, write_weights
from ortrain._frameworks.record import KEY, FrameworkExport, export_of
from ortrain._frameworks.weights import copy_weights
from ortrain.trainer import Trainer

FLOAT = onnx.TensorProto.FLOAT


def model_of(nodes, initializers, outputs=("y",)):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["batch", 3])],
        [helper.make_tensor_value_info(name, FLOAT, ["batch", None]) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def two_layers():
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("MatMul", ["h", "b"], ["i"]),
        helper.make_node("Add", ["i", "c"], ["j"]),
        helper.make_node("Mul", ["j", "number"], ["y"]),
    ]
    weights = {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in (("a", (3, 3)), ("b", (3, 3)), ("c", (3,)))
    }
    return model_of(nodes, {**weights, "number": np.float32(2)})


def test_the_record_decides(tmp_path):
    model = two_layers()
    FrameworkExport("torch", "test", trained=("a",), frozen=("b",), buffers=("c",), aliases={"d": "a"}).write(
        model
    )
    assert export_of(model) == FrameworkExport("torch", "test", ("a",), ("b",), ("c",), {"d": "a"})
    report = artifacts.generate_artifacts(model, loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path)
    assert (report.trained, report.frozen, report.left_out) == (["a"], ["b"], ["c", "number"])
    reasons = {choice.name: choice.reason for choice in report.initializers}
    assert reasons == {
        "a": "trained by the network",
        "b": "not trained by the network",
        "c": "a buffer of the network",
        "number": "a constant of the network's code",
    }
    frozen = artifacts.generate_artifacts(
        model,
        frozen_params=["a"],
        requires_grad=["b"],
        loss=artifacts.LossType.MSELoss,
        artifact_directory=tmp_path,
    )
    assert (frozen.trained, frozen.frozen) == (["b"], ["a"])


@pytest.mark.parametrize("training_mode", [0, 1])
def test_running_statistics_are_in_the_checkpoint(training_mode, tmp_path):
    """Whether a step updates them or not: the checkpoint has the state of the whole network."""
    weights = {"scale": np.ones(3), "offset": np.zeros(3), "mean": np.arange(3), "variance": np.ones(3)}
    outputs = ["y", "new_mean", "new_variance"] if training_mode else ["y"]
    node = helper.make_node("BatchNormalization", ["x", *weights], outputs, training_mode=training_mode)
    model = model_of([node], {name: value.astype(np.float32) for name, value in weights.items()})
    FrameworkExport("keras", "test", ("scale", "offset"), buffers=("mean", "variance")).write(model)
    report = artifacts.generate_artifacts(model, loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path)
    assert (report.trained, report.frozen) == (["scale", "offset"], ["mean", "variance"])
    reason = next(choice.reason for choice in report.initializers if choice.name == "mean")
    assert reason == ("running statistic, updated" if training_mode else "running statistic, fixed")
    state = ortrain.api.CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert np.array_equal(state.parameters["mean"].data, weights["mean"])


def test_a_second_record_takes_the_place_of_the_first():
    model = two_layers()
    model.metadata_props.add(key="other", value="kept")
    FrameworkExport("torch", "one", ("a",)).write(model)
    FrameworkExport("keras", "two", ("b",)).write(model)
    assert [entry.key for entry in model.metadata_props] == ["other", KEY]
    assert export_of(model).trained == ("b",)


def test_a_model_without_a_record_has_none():
    assert export_of(two_layers()) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", "{", '{"trained": "a"}', "[" * 100000, '{"trained": [], "frozen": [1], "buffers": []}',
     '{"framework": "t", "exporter": "", "trained": [], "frozen": [], "buffers": [], "aliases": {"a": 1}}',
     '{"framework": "t", "exporter": "", "trained": [], "frozen": [], "buffers": [], "aliases": []}'],
)  # fmt: skip
def test_a_damaged_record_is_an_error(text, tmp_path):
    model = two_layers()
    model.metadata_props.add(key=KEY, value=text)
    with pytest.raises(ValueError, match=r"the model's metadata entry 'ortrain\.export' is damaged: "):
        artifacts.generate_artifacts(model, loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path)


def test_placeholders_differ_where_weights_are_equal():
    weights = {
        "zeros": np.zeros(4, np.float32),
        "more zeros": np.zeros(4, np.float32),
        "half": np.ones((), np.float16),
        "other half": np.ones((), np.float16),
        "mask": np.full(4, -np.inf, np.float32),
        "indices": np.arange(4),
        "none": np.zeros((0, 3), np.float32),
    }
    found = placeholders(weights)
    assert {n: (a.shape, a.dtype) for n, a in found.items()} == {
        n: (a.shape, a.dtype) for n, a in weights.items()
    }
    assert not np.array_equal(found["zeros"], found["more zeros"])
    assert found["half"] != found["other half"]
    assert np.array_equal(found["mask"], weights["mask"])
    assert np.array_equal(found["indices"], weights["indices"])
    many = placeholders({str(i): np.zeros((), np.float16) for i in range(100)})
    assert len({float(a) for a in many.values()}) == 100


def run(model, x):
    return ortrain.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


@pytest.mark.parametrize("as_constant", [False, True])
def test_weights_are_found_however_an_exporter_writes_them(as_constant):
    rng = np.random.default_rng(1)
    weights = {
        "first.weight": np.ones((4, 3), np.float32),
        "first.bias": np.zeros(4, np.float32),
        "second.bias": np.zeros(4, np.float32),
        "third": rng.normal(size=(2, 2)).astype(np.float32),
        "unused": np.ones(7, np.float32),
    }
    found = placeholders(weights)
    written = {
        "val_1": found["first.weight"].T.copy(),  # transposed
        "val_2": found["first.bias"],  # renamed
        "val_3": found["first.bias"].copy(),  # a copy
        "first.bias": found["second.bias"],  # under the name of another
        "flat": found["third"].T.reshape(1, 4).copy(),  # transposed and reshaped
        "constant": np.full(4, 0.5, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "val_1"], ["third"]),  # has the name of a weight
        helper.make_node("Add", ["third", "val_2"], ["a"]),
        helper.make_node("Mul", ["a", "val_3"], ["b"]),
        helper.make_node("Add", ["b", "first.bias"], ["c"]),
        helper.make_node("Add", ["c", "flat"], ["d"]),
        helper.make_node("Mul", ["d", "constant"], ["y"]),
    ]
    if as_constant:
        made = [
            helper.make_node("Constant", [], [n], value=numpy_helper.from_array(a))
            for n, a in written.items()
        ]
        model = model_of([*made, *nodes], {})
    else:
        model = model_of(nodes, written)
    assert write_weights(model, found, weights) == ["first.weight", "first.bias", "second.bias", "third"]
    onnx.checker.check_model(model, full_check=True)
    initializers = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert list(initializers)[:4] == ["first.weight", "first.bias", "second.bias", "third"]
    assert np.array_equal(initializers.pop("constant"), written["constant"])
    for name, array in initializers.items():
        assert np.array_equal(array, weights[name]), name
    x = rng.normal(size=(2, 3)).astype(np.float32)
    expected = ((x @ weights["first.weight"].T) * 0 + weights["third"].T.reshape(1, 4)) * 0.5
    assert np.allclose(run(model, x), expected, atol=1e-6)


def test_a_weight_that_runs_have_changed_is_known_by_its_name():
    weights = {"bn.mean": np.zeros(3, np.float32), "w": np.ones(3, np.float32)}
    found = placeholders(weights)
    written = {"bn.mean": found["bn.mean"] + 1, "w": found["w"] + 1}
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Sub", ["a", "bn.mean"], ["y"])],
        written,
    )
    assert write_weights(model, found, weights, changed_by_runs={"bn.mean"}) == ["bn.mean"]
    initializers = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert np.array_equal(initializers["bn.mean"], weights["bn.mean"])
    assert np.array_equal(initializers["w"], written["w"])


def test_weights_are_copied_all_or_none():
    target = {"a": np.zeros(2), "b": np.zeros(3)}
    shapes = {name: array.shape for name, array in target.items()}
    with pytest.raises(ValueError, match=r"the shapes of weights differ: b is \[2\], expected \[3\]"):
        copy_weights({"a": np.ones(2), "b": np.ones(2)}, shapes, target.__setitem__)
    assert not target["a"].any()
    assert copy_weights({"a": np.ones(2), "c": np.ones(2)}, shapes, target.__setitem__) == (["b"], ["c"])
    assert target["a"].all()
    assert copy_weights({"c": np.ones(2)}, shapes, target.__setitem__, optional=["a", "b", "c"]) == ([], [])
    with pytest.raises(ValueError, match=r"no weight has the same name on both sides, such as 'c' and 'a'"):
        copy_weights({"c": np.ones(2)}, shapes, target.__setitem__)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed here")
def test_without_pytorch_the_import_says_what_to_install():
    with pytest.raises(
        ImportError, match=r"ortrain.torch needs torch, onnx and onnxscript: pip install 'ortrain\[torch\]'"
    ):
        importlib.import_module("ortrain.torch")


def test_arguments_of_a_network_with_a_model_are_an_error():
    with pytest.raises(
        TypeError, match=r"args: expected a network with them, of PyTorch, Keras or JAX, not ModelProto"
    ):
        artifacts.generate_artifacts(two_layers(), args=np.zeros(3))


def test_arguments_of_a_network_with_a_folder_are_an_error(tmp_path):
    with pytest.raises(TypeError, match=r"args: expected a network with them, found a folder of artifacts"):
        Trainer(tmp_path, args=np.zeros(3))


@pytest.mark.parametrize(
    ("activation", "loss"), [("Softmax", "CrossEntropyLoss"), ("Sigmoid", "BCEWithLogitsLoss")]
)
def test_a_loss_of_probabilities_is_said(activation, loss, tmp_path, caplog):
    nodes = [
        helper.make_node("Gemm", ["x", "a", "b"], ["scores"]),
        helper.make_node(activation, ["scores"], ["probabilities"]),
        helper.make_node("Identity", ["probabilities"], ["y"]),
    ]
    model = model_of(nodes, {"a": np.ones((3, 3), np.float32), "b": np.zeros(3, np.float32)}, ["y"])
    made = {"loss": artifacts.LossType[loss], "artifact_directory": tmp_path}
    artifacts.generate_artifacts(model, **made)
    assert f"the result of a {activation}, and applies another {activation}" in caplog.text
    assert "The scores before it are 'scores'" in caplog.text
    caplog.clear()
    artifacts.generate_artifacts(model, **made, loss_input_names=["scores"])
    artifacts.generate_artifacts(model, **{**made, "loss": artifacts.LossType.MSELoss})
    assert "probabilities" not in caplog.text
