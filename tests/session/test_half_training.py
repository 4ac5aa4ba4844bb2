"""Models whose parameters are float16 or bfloat16: trained like the same model in float32, within their accuracy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from ortrain import OrtrainError, SessionOptions, artifacts
from ortrain.api import CheckpointState, Module, Optimizer
from recorded import Fixture

Array = NDArray[Any]
STEPS = 60
HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def make_model(dtype: Any, network: str = "mlp") -> onnx.ModelProto:
    """A classifier of 8 values in 4 classes, with the same weights in every type except for rounding."""
    rng = np.random.default_rng(0)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    shapes = {"w1": (8, 32), "b1": (32,), "w2": (32, 4), "b2": (4,)}
    tensors = {name: rng.normal(0, 0.3, shape) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Gelu", ["h"], ["g"]),
        helper.make_node("Gemm", ["g", "w2", "b2"], ["y"]),
    ]
    if network == "normalized":
        tensors |= {"scale": np.ones(32), "shift": np.zeros(32), "axes": np.array([1])}
        nodes[1:2] = [
            helper.make_node("LayerNormalization", ["h", "scale", "shift"], ["n"]),
            helper.make_node("Split", ["n"], ["left", "right"], axis=1, num_outputs=2),
            helper.make_node("Sigmoid", ["left"], ["gate"]),
            helper.make_node("Concat", ["gate", "right"], ["joined"], axis=1),
            helper.make_node("Relu", ["joined"], ["g"]),
        ]
    if network == "batch":
        tensors |= {"scale": np.ones(32), "shift": np.zeros(32), "mean": np.zeros(32), "var": np.ones(32)}
        nodes[1:2] = [
            helper.make_node(
                "BatchNormalization",
                ["h", "scale", "shift", "mean", "var"],
                ["n", "new_mean", "new_var"],
                training_mode=1,
            ),
            helper.make_node("Relu", ["n"], ["g"]),
        ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", kind, ["n", 8])],
        [helper.make_tensor_value_info("y", kind, ["n", 4])],
        [
            numpy_helper.from_array(v if v.dtype == np.int64 else v.astype(dtype), name)
            for name, v in tensors.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def train(
    folder: Path, dtype: Any, optimizer: str, network: str = "mlp", rate: float = 1e-2, clip: bool = False
) -> tuple[list[float], CheckpointState, Module]:
    model = make_model(dtype, network)
    trainable = [t.name for t in model.graph.initializer if t.name not in {"axes", "mean", "var"}]
    frozen = [t.name for t in model.graph.initializer if t.name in {"mean", "var"}]
    settings: dict[str, Any] = {"optimizer": artifacts.OptimType[optimizer]}
    if clip:
        from ortrain import onnxblock

        settings["optimizer"] = onnxblock.optim.AdamW(clip_grad=onnxblock.optim.ClipGradNorm(0.5))
    artifacts.generate_artifacts(
        model,
        requires_grad=trainable,
        frozen_params=frozen,
        loss=artifacts.LossType.CrossEntropyLoss,
        artifact_directory=folder,
        **settings,
    )
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    updates = Optimizer(folder / "optimizer_model.onnx", module)
    updates.set_learning_rate(rate)
    rng = np.random.default_rng(1)
    truth = rng.normal(size=(8, 4))
    losses = []
    module.train()
    for _ in range(STEPS):
        x = rng.normal(size=(32, 8))
        labels = np.argmax(x @ truth, axis=1)
        losses.append(float(np.asarray(module(x.astype(dtype), labels))))
        updates.step()
        module.lazy_reset_grad()
    return losses, state, module


@pytest.mark.parametrize("network", ["mlp", "normalized", "batch"])
@pytest.mark.parametrize("half", HALVES)
def test_adamw_learns_as_in_float32(half: str, network: str, tmp_path: Path) -> None:
    reference, exact, _ = train(tmp_path / "float", np.float32, "AdamW", network)
    losses, state, _ = train(tmp_path / "half", HALVES[half], "AdamW", network)
    assert losses[-1] < 0.6 * losses[0]
    step = 2e-2 if half == "float16" else 1e-1
    np.testing.assert_allclose(losses, reference, atol=step)
    for name, parameter in state.parameters:
        found, wanted = parameter.data.astype(np.float32), exact.parameters[name].data
        assert parameter.data.dtype == np.dtype(HALVES[half])
        assert np.abs(found - wanted).mean() < step * max(np.abs(wanted).mean(), 0.1)


@pytest.mark.parametrize("half", HALVES)
def test_sgd_learns_as_in_float32(half: str, tmp_path: Path) -> None:
    reference, _, _ = train(tmp_path / "float", np.float32, "SGD", rate=0.2)
    losses, _, _ = train(tmp_path / "half", HALVES[half], "SGD", rate=0.2)
    assert losses[-1] < 0.7 * losses[0]
    np.testing.assert_allclose(losses, reference, atol=2e-2 if half == "float16" else 1e-1)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("trainable_only", [False, True])
def test_all_parameters_are_one_buffer_of_their_type(half: str, trainable_only: bool, tmp_path: Path) -> None:
    dtype = HALVES[half]
    artifacts.generate_artifacts(
        make_model(dtype, "batch"),
        requires_grad=["w1", "b1", "w2", "b2", "scale", "shift"],
        frozen_params=["mean", "var"],
        loss=artifacts.LossType.CrossEntropyLoss,
        artifact_directory=tmp_path,
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    buffer = module.get_contiguous_parameters(trainable_only)
    values = np.asarray(buffer.numpy())
    assert values.dtype == np.dtype(dtype)
    weights = {t.name: numpy_helper.to_array(t) for t in make_model(dtype, "batch").graph.initializer}
    inputs = onnx.load(tmp_path / "training_model.onnx").graph.input
    order = [
        v.name for v in inputs if v.name in weights and not (trainable_only and v.name in {"mean", "var"})
    ]
    assert len(order) == (6 if trainable_only else 8)
    np.testing.assert_array_equal(values, np.concatenate([weights[name].ravel() for name in order]))

    module.copy_buffer_to_parameters(-values, trainable_only)
    for name in order:
        np.testing.assert_array_equal(state.parameters[name].data, -weights[name])
    with pytest.raises(OrtrainError, match=rf"{half}.*found \d+ of type float32"):
        module.copy_buffer_to_parameters(values.astype(np.float32), trainable_only)


@pytest.mark.parametrize("half", HALVES)
def test_the_norm_of_gradients_is_limited(half: str, tmp_path: Path) -> None:
    reference, _, _ = train(tmp_path / "float", np.float32, "AdamW", clip=True)
    losses, _, _ = train(tmp_path / "half", HALVES[half], "AdamW", clip=True)
    np.testing.assert_allclose(losses, reference, atol=2e-2 if half == "float16" else 1e-1)


@pytest.mark.parametrize("half", HALVES)
def test_gradients_are_those_of_float32(half: str, tmp_path: Path) -> None:
    """One step from the same weights and inputs, two train steps without a reset, which adds their gradients."""
    dtype = HALVES[half]
    weights = {t.name: numpy_helper.to_array(t) for t in make_model(dtype).graph.initializer}
    gradients = []
    for kind in (np.float32, dtype):
        folder = tmp_path / np.dtype(kind).name
        model = make_model(kind)
        if kind is np.float32:
            for tensor in model.graph.initializer:
                tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name].astype(np.float32), tensor.name))
        artifacts.generate_artifacts(
            model,
            requires_grad=list(weights),
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=folder,
        )
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", state)
        rng = np.random.default_rng(2)
        module.train()
        for _ in range(2):
            x, labels = rng.normal(size=(16, 8)).astype(dtype), rng.integers(0, 4, 16)
            module(x.astype(kind), labels)
        gradients.append({n: np.asarray(p.grad, np.float32) for n, p in state.parameters})
    for name, wanted in gradients[0].items():
        limit = np.abs(wanted).max() * (2e-3 if half == "float16" else 2e-2)
        np.testing.assert_allclose(gradients[1][name], wanted, atol=limit)


@pytest.mark.parametrize("half", HALVES)
def test_a_checkpoint_of_half_the_steps_goes_on_to_the_same_end(half: str, tmp_path: Path) -> None:
    dtype = HALVES[half]
    _, state, _ = train(tmp_path, dtype, "AdamW")
    CheckpointState.save_checkpoint(state, tmp_path / "saved", include_optimizer_state=True)
    ends = []
    for _ in range(2):
        resumed = CheckpointState.load_checkpoint(tmp_path / "saved")
        module = Module(tmp_path / "training_model.onnx", resumed)
        updates = Optimizer(tmp_path / "optimizer_model.onnx", module)
        module.train()
        module(np.ones((3, 8), dtype), np.array([0, 1, 2]))
        updates.step()
        ends.append({name: np.array(p.data) for name, p in resumed.parameters})
    assert all(np.array_equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.parametrize("half", HALVES)
def test_the_exported_model_is_of_the_type_and_gives_what_eval_gives(half: str, tmp_path: Path) -> None:
    _, _, module = train(tmp_path, HALVES[half], "AdamW")
    module.export_model_for_inferencing(tmp_path / "exported.onnx", ["y"])
    exported = onnx.load(tmp_path / "exported.onnx")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(HALVES[half]))
    assert {t.data_type for t in exported.graph.initializer} == {kind}
    onnx.checker.check_model(exported, full_check=True)


def in_half(model: onnx.ModelProto, dtype: Any) -> onnx.ModelProto:
    """The model with another type in place of float32."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    next(o for o in made.opset_import if o.domain == "").version = 22  # the first with bfloat16 everywhere
    made.ir_version = 10
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for value in [*made.graph.input, *made.graph.output, *made.graph.value_info]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = kind
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    return made


@pytest.fixture(scope="module")
def resnet() -> Fixture:
    return Fixture("resnet_bn")


@pytest.mark.parametrize("half", [*HALVES, "float32"])
def test_a_residual_network_learns(half: str, resnet: Fixture, tmp_path: Path) -> None:
    """Convolutions, pooling and BatchNormalization, whose statistics are state of the model; in little memory too."""
    dtype = HALVES.get(half, np.float32)
    artifacts.generate_artifacts(
        in_half(onnx.load(resnet.path("model.onnx")), dtype),
        requires_grad=resnet.expected["requires_grad"],
        frozen_params=resnet.expected["frozen_params"],
        loss=artifacts.LossType[resnet.expected["loss"]],
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )

    def losses(budget: str | None) -> tuple[list[float], dict[str, Array]]:
        options = SessionOptions()
        if budget is not None:
            options.add_session_config_entry("ortrain.memory_budget", budget)
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        module = Module(tmp_path / "training_model.onnx", state, session_options=options)
        updates = Optimizer(tmp_path / "optimizer_model.onnx", module)
        updates.set_learning_rate(3e-3)
        rng = np.random.default_rng(0)
        x = rng.standard_normal((16, 3, 12, 12)).astype(dtype)
        labels = rng.integers(0, 3, 16)
        found = []
        module.train()
        for _ in range(30):
            found.append(float(np.asarray(module(x, labels)).ravel()[0]))
            updates.step()
            module.lazy_reset_grad()
        return found, {name: np.array(p.data) for name, p in state.parameters}

    whole, parameters = losses(None)
    assert whole[-1] < 0.5 * whole[0]
    before = {
        t.name: numpy_helper.to_array(t) for t in onnx.load(resnet.path("model.onnx")).graph.initializer
    }
    statistics = [name for name in parameters if name.endswith(("running_mean", "running_var"))]
    assert statistics
    for name in statistics:
        assert parameters[name].dtype == np.dtype(dtype)
        assert np.abs(parameters[name].astype(np.float32) - before[name]).max() > 1e-3
    with pytest.raises(OrtrainError, match="too few") as refused:
        losses("1")
    least, most = map(int, re.findall(r"(?:least|recomputation,) (\d+)", str(refused.value))[:2])
    assert least < most
    assert losses(f"{(least + most) // 2048}K")[0] == whole
