"""A library of custom operators, compiled without our headers, runs here as in onnxruntime, and is trained."""

from __future__ import annotations

from pathlib import Path

import both
import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts, onnxblock
from ortrain.api import CheckpointState, Module, Optimizer

DOMAIN = "test.custom"


def save(
    folder: Path,
    name: str,
    nodes: list[onnx.NodeProto],
    element: int = TensorProto.FLOAT,
    initializers: list[onnx.TensorProto] | None = None,
) -> None:
    x, y = (helper.make_tensor_value_info(n, element, None) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], initializers or [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / f"{name}.onnx")


def scaled(inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node("Scaled", inputs, outputs, domain=DOMAIN, **attributes)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of operators."""
    folder = tmp_path_factory.mktemp("library")
    return both.compile_program(folder, "custom_library.c", "libcustom.so", ["-shared", "-fPIC"])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models that the client runs."""
    folder = tmp_path_factory.mktemp("models")
    offset = numpy_helper.from_array(np.array([0.5], np.float32), "offset")
    told = {
        "describe": 1,
        "integer": -7,
        "text": "a text",
        "numbers": [1.5, 2.5],
        "integers": [1, 2, 3],
        "texts": ["one", "two"],
        "tensor": numpy_helper.from_array(np.array([3, 4], np.float32)),
    }
    relu = helper.make_node("Relu", ["a"], ["b"])
    save(
        folder,
        "scaled",
        [
            scaled(["x", "offset"], ["a"], scale=2.0, name="first", **told),
            relu,
            scaled(["b"], ["y"], scale=0.5),
        ],
        initializers=[offset],
    )
    save(folder, "negative", [scaled(["x"], ["y"], scale=-1.0)])
    save(folder, "wrong_type", [scaled(["x"], ["y"], scale=1.0)], TensorProto.INT64)
    save(folder, "total", [helper.make_node("Total", ["x", "x", "x"], ["y"], domain=DOMAIN)])
    save(folder, "shout", [helper.make_node("Shout", ["x"], ["y"], domain=DOMAIN)], TensorProto.STRING)
    return folder


def test_the_client_finds_what_it_finds_in_onnxruntime(library: Path, models: Path, tmp_path: Path) -> None:
    client = both.compile_program(tmp_path, "custom_client.c", "client")
    printed = both.run_on_both(client, library, models)
    assert "run with 3: code 0 1.25 2.25 3.25" in printed
    assert "[a!] [!] [long enough to need memory of its own!] [d!] " in printed


@pytest.fixture
def gradient() -> None:
    """The gradient of Scaled: dx = scale * dy, by the operator ScaledGrad of the same library."""
    dy, dx = (helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("GO(0)", "GI(0)"))
    node = helper.make_node("ScaledGrad", ["GO(0)"], ["GI(0)"], domain=DOMAIN, scale=3.0)
    graph = helper.make_graph([node], "gradient", [dy], [dx])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    ortrain.register_gradient(DOMAIN, "Scaled", helper.make_model(graph, opset_imports=opsets))


def forward_model(custom: bool) -> onnx.ModelProto:
    """A linear layer, scaled by three by the custom operator or by Mul."""
    three = numpy_helper.from_array(np.array(3, np.float32), "three")
    w = numpy_helper.from_array(np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        scaled(["h"], ["y"], scale=3.0) if custom else helper.make_node("Mul", ["h", "three"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
    graph = helper.make_graph(nodes, "g", [x], [y], [w] if custom else [w, three])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.output_of_unknown_rank
@pytest.mark.usefixtures("gradient")
def test_a_model_with_a_custom_operator_trains_as_without(library: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
    target = np.zeros((8, 2), np.float32)
    losses: list[list[float]] = []
    for custom in (True, False):
        folder = tmp_path / str(custom)
        artifacts.generate_artifacts(
            forward_model(custom),
            requires_grad=["w"],
            loss=artifacts.LossType.MSELoss,
            optimizer=artifacts.OptimType.SGD,
            artifact_directory=folder,
            custom_op_library=library if custom else None,
        )
        options = ortrain.SessionOptions()
        if custom:
            options.register_custom_ops_library(str(library))
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(
            folder / "training_model.onnx", state, folder / "eval_model.onnx", session_options=options
        )
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        optimizer.set_learning_rate(0.01)
        losses.append([])
        for _ in range(4):
            module.train()
            losses[-1].append(float(module(x, target)))
            optimizer.step()
            module.lazy_reset_grad()
        module.eval()
        losses[-1].append(float(module(x, target)))
        if not custom:
            continue
        exported = folder / "exported.onnx"
        module.export_model_for_inferencing(exported, ["y"])
        assert DOMAIN in [node.domain for node in onnx.load(exported).graph.node]
        session = ortrain.InferenceSession(exported, options)
        assert session.run(["y"], {"x": x})[0].shape == (8, 2)
    assert losses[0][0] > losses[0][-1]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_training_without_the_gradient_or_the_library_is_refused_with_the_operator(tmp_path: Path) -> None:
    model = forward_model(True)
    for node in model.graph.node:
        if node.domain == DOMAIN:
            node.op_type = "Unheard"
    with pytest.raises(ValueError, match=r"test\.custom\.Unheard"):
        artifacts.generate_artifacts(
            model, requires_grad=["w"], loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path
        )
    with pytest.raises(NotImplementedError, match=r"test\.custom\.Scaled"):
        ortrain.InferenceSession(forward_model(True).SerializeToString())


@pytest.mark.usefixtures("gradient")
def test_blocks_build_the_training_model_of_a_custom_operator(library: Path) -> None:
    class Loss(onnxblock.TrainingBlock):
        def __init__(self) -> None:
            super().__init__()
            self.mse = onnxblock.loss.MSELoss()

        def build(self, prediction: str) -> str:
            return self.mse(prediction)

    block = Loss()
    block.requires_grad("w")
    with onnxblock.custom_op_library(library) as path, onnxblock.base(forward_model(True)):
        assert path == str(library)
        with (
            pytest.raises(RuntimeError, match="cannot be registered inside"),
            onnxblock.custom_op_library(path),
        ):
            pass
        block("y")
        training, _ = block.to_model_proto()
    assert DOMAIN in [node.domain for node in training.graph.node]
    assert "w_grad.accumulation.out" in [output.name for output in training.graph.output]
    with onnxblock.custom_op_library(library):  # the context before has ended
        pass


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [(["x"], ["GI(0)"], "expected I"), (["GO(0)"], ["dx"], "expected GI")],
)
def test_a_gradient_with_other_names_is_refused(inputs: list[str], outputs: list[str], message: str) -> None:
    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

    node = helper.make_node("Neg", inputs, outputs)
    graph = helper.make_graph([node], "g", [info(n) for n in inputs], [info(n) for n in outputs])
    with pytest.raises(ortrain.InvalidArgumentError, match=message):
        ortrain.register_gradient(DOMAIN, "Other", helper.make_model(graph, ir_version=8))
    with pytest.raises(ortrain.InvalidArgumentError, match="one of this library"):
        ortrain.register_gradient("", "Relu", None)
