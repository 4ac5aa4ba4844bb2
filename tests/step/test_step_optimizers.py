"""Every optimizer as part of a step model: on stock onnxruntime, its steps are those of a training session."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from moment_codes import levels_and_edges, stored
from onnx import helper, numpy_helper
from ortrain import artifacts, step
from ortrain.artifacts.step import generate_step
from ortrain.onnxblock import optim
from ortrain.step._eight_bits import decoded, encoded
from ortrain.step._nodes import Nodes
from ortrain.step._tensor_rules import TENSOR_RULES
from training import Training

Array = np.ndarray[Any, Any]
STEPS = 20
RNG = np.random.default_rng(5)
BATCHES = [
    (RNG.normal(size=(8, 6)).astype(np.float32), RNG.integers(0, 4, 8).astype(np.int64)) for _ in range(STEPS)
]
#: Settings, beside the defaults, that change what is computed.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "adafactor": [{"weight_decay": 0.1, "limit": 0.5, "epsilon": 1e-3}],
    "adagrad": [{"rate_decay": 0.1, "initial_sum": 0.2, "weight_decay": 0.1}],
    "ademamix": [{"warmup_steps": 12, "weight_decay": 0.1}, {"betas": (0.8, 0.9, 0.95)}],
    "adamw": [{"bias_correction": False, "weight_decay": 0.1}],
    "lamb": [{"weight_decay": 0.1}],
    "muon": [{"nesterov": False, "match_rms": False}, {"matrices": False}],
    "nadam": [{"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "radam": [{"weight_decay": 0.1, "decoupled_weight_decay": True}, {"betas": (0.9, 0.99)}],
    "rmsprop": [{"centered": True}, {"momentum": 0.9, "weight_decay": 0.1}],
    "schedule_free_adamw": [{"warmup_steps": 5, "step_power": 1, "weight_decay": 0.1}],
    "schedule_free_sgd": [{"warmup_steps": 5, "weight_decay": 0.1}],
    "sgd": [{"momentum": 0.9, "dampening": 0.1}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}],
}
CASES = [
    (name, settings)
    for name in sorted(optim.BLOCKS)
    for settings in [{}, *SETTINGS.get(name, [{"weight_decay": 0.1}] if name != "adamw_torch" else [])]
]


def network(kind: Any = np.float32, hidden: int = 8) -> onnx.ModelProto:
    rng = np.random.default_rng(2)
    weights = {
        "hidden": rng.normal(0, 0.4, (6, hidden)),
        "bias": rng.normal(0, 0.4, hidden),
        "out": rng.normal(0, 0.4, (hidden, 4)),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "hidden"], ["m"]),
        helper.make_node("Add", ["m", "bias"], ["a"]),
        helper.make_node("Tanh", ["a"], ["t"]),
        helper.make_node("MatMul", ["t", "out"], ["scores"]),
    ]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", element, ["n", 6])],
        [helper.make_tensor_value_info("scores", element, ["n", 4])],
        [numpy_helper.from_array(value.astype(kind), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def generate(folder: pathlib.Path, name: str, hidden: int = 8, **settings: Any) -> pathlib.Path:
    path = folder / "step.onnx"
    model = network(hidden=hidden)
    generate_step(model, artifacts.LossType.CrossEntropyLoss, optim.BLOCKS[name](**settings), path)
    return path


def start(
    folder: pathlib.Path, checkpoint: str | pathlib.Path = "checkpoint", rate: float = 0.01
) -> Training:
    training = Training(folder, checkpoint=checkpoint)
    training.optimizer.set_learning_rate(rate)
    return training


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: str(value))
def test_twenty_steps_are_those_of_a_training_session(
    name: str, settings: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    path = generate(tmp_path, name, **settings)
    assert {entry.domain for entry in onnx.load(path).opset_import} == {""}
    here, there = start(tmp_path), step.Session(path, learning_rate=0.01)
    expected = [here.step(*batch) for batch in BATCHES]
    np.testing.assert_allclose([float(there(*batch)) for batch in BATCHES], expected, 1e-5)
    for parameter, value in here.parameters().items():
        np.testing.assert_allclose(there.parameters[parameter], value, 1e-4, 1e-5, err_msg=parameter)


@pytest.mark.parametrize("name", ["adamw", "adamw_torch", "lamb", "nadam"])
def test_steps_of_large_parameters_are_those_of_a_training_session(name: str, tmp_path: pathlib.Path) -> None:
    """The division by the root of the second moment is written with fewer nodes, by the learning rate, which may be 0."""
    path = generate(tmp_path, name, hidden=2800)
    assert sum(node.op_type == "BatchNormalization" for node in onnx.load(path).graph.node) == 1
    here, there = start(tmp_path, rate=0), step.Session(path, learning_rate=0)
    before = there.parameters
    losses = [(here.step(*BATCHES[0]), float(there(*BATCHES[0])))]
    for parameter, value in there.parameters.items():
        np.testing.assert_array_equal(value, before[parameter], err_msg=parameter)
    here.optimizer.set_learning_rate(0.001)
    there.learning_rate = 0.001
    losses += [(here.step(*batch), float(there(*batch))) for batch in BATCHES[1:]]
    np.testing.assert_allclose(*np.transpose(losses), 1e-5)
    for parameter, value in here.parameters().items():
        np.testing.assert_allclose(there.parameters[parameter], value, 1e-4, 1e-5, err_msg=parameter)


def test_groups_have_their_own_settings_and_rates(tmp_path: pathlib.Path) -> None:
    groups = [optim.ParamGroup("biases", ["bias"], lr_factor=0.5, weight_decay=0.2)]
    for name, settings in (("nadam", {}), ("sgd", {"momentum": 0.9}), ("lion", {})):
        path = generate(tmp_path, name, param_groups=groups, clip_grad=optim.ClipGradNorm(0.3), **settings)
        here, there = start(tmp_path), step.Session(path, learning_rate=0.01)
        expected = [here.step(*batch) for batch in BATCHES]
        np.testing.assert_allclose([float(there(*batch)) for batch in BATCHES], expected, 1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("nadam", {}),
        ("sgd", {"momentum": 0.9}),
        ("ademamix", {}),
        ("amsgrad", {}),
        ("adafactor", {}),
        ("muon", {"ema": 0.9}),
        ("adamw_8bit", {"hidden": 768, "ema": 0.9}),  # 18 blocks of the matrix `hidden`
        ("adamw_8bit", {"hidden": 700}),  # the last of 17 blocks is not full
    ],
)
def test_a_run_moves_between_ortrain_and_onnxruntime(
    name: str, settings: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    """The states have other names, numbers, shapes and types than those of AdamW, and NAdam keeps a product of all momentums."""
    path = generate(tmp_path, name, **settings)
    # With codes of 8 bits, a rounding error can grow to the distance of two codes: small steps keep the losses close.
    rate = 1e-4 if name == "adamw_8bit" else 0.01
    stayed, here = start(tmp_path, rate=rate), start(tmp_path, rate=rate)
    expected = [stayed.step(*batch) for batch in BATCHES]
    losses = [here.step(*batch) for batch in BATCHES[:6]]
    here.state.save_checkpoint(here.state, tmp_path / "first", include_optimizer_state=True)
    there = step.Session(path, checkpoint=tmp_path / "first", learning_rate=rate)
    losses += [float(there(*batch)) for batch in BATCHES[6:13]]
    there.save_checkpoint(tmp_path / "second")
    back = start(tmp_path, tmp_path / "second", rate)
    losses += [back.step(*batch) for batch in BATCHES[13:]]
    np.testing.assert_allclose(losses, expected, 1e-5)


def test_the_state_of_another_optimizer_is_rejected(tmp_path: pathlib.Path) -> None:
    generate(tmp_path, "lion")
    here = start(tmp_path)
    here.step(*BATCHES[0])
    here.state.save_checkpoint(here.state, tmp_path / "lion.ckpt", include_optimizer_state=True)
    path = generate(tmp_path, "adam")
    with pytest.raises(
        ValueError, match=r"state consists of first_moment, but .* keeps first_moment, second_moment"
    ):
        step.Session(path, checkpoint=tmp_path / "lion.ckpt")


def test_an_optimizer_without_a_standard_form_is_named(tmp_path: pathlib.Path) -> None:
    generate(tmp_path, "adam")
    model = onnx.load(tmp_path / "optimizer_model.onnx")
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "type":
            attribute.s = b"newest"
    onnx.save(model, tmp_path / "optimizer_model.onnx")
    with pytest.raises(ValueError, match="its type is 'newest', expected one of adadelta"):
        artifacts.write_step(tmp_path, tmp_path / "step.onnx")


def test_an_optimizer_that_is_not_written_yet_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(TENSOR_RULES, "muon")
    with pytest.raises(ValueError, match="the optimizer muon has no standard form"):
        generate(tmp_path, "muon")


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("is_signed", [True, False])
def test_codes_of_8_bits_number_the_intervals_of_shares(is_signed: bool, opset: int) -> None:
    levels, edges = levels_and_edges(is_signed)
    rng = np.random.default_rng(3)
    # Beside the edges, by more than they are rounded.
    values = np.concatenate([edges * (1 - 1e-6), edges * (1 + 1e-6), levels]) / levels[-1]
    values = np.concatenate([values, 10 ** rng.uniform(-9, 0, 3000)])
    values = values * (rng.choice([-1, 1], len(values)) if is_signed else 1)
    blocks = -(-len(values) // 255)
    # Each block has a 1, which is its largest magnitude.
    values = np.pad(values, (0, blocks * 255 - len(values))).reshape(blocks, 255)
    values = np.concatenate([values, np.ones((blocks, 1))], 1)
    values = np.concatenate([values, np.zeros((1, 256)), np.full((1, 256), 1e-39)])
    values = values.astype(np.float32)
    codes, scales, restored = coded(values, is_signed, opset)
    expected, scale, numbers = stored(values[:-2].astype(np.float64), is_signed)
    np.testing.assert_array_equal(codes[:-2], expected)
    np.testing.assert_allclose(restored[:-2], numbers, 1e-6)
    np.testing.assert_allclose(scales[:-2], scale, 1e-6)
    for part in (codes, scales):
        assert not part[-2:].any()  # blocks without numbers that count
    values[0, 0] = np.nan
    coded(values, is_signed, opset)  # does not fail


def coded(values: Array, is_signed: bool, opset: int) -> list[Array]:
    """Return the codes and scales that standard operators compute for blocks of numbers, and the numbers restored from them."""
    graph = onnx.GraphProto(name="codes")
    writer = Nodes(graph, {"values", "codes", "scales", "restored"}, opset)
    codes, scales = encoded(writer.value("values"), is_signed, values.shape)
    restored = decoded(codes, scales, is_signed, onnx.TensorProto.FLOAT, values.shape)
    for value, name in ((codes, "codes"), (scales, "scales"), (restored, "restored")):
        writer.add("Identity", [value], output=name)
        graph.output.append(helper.make_tensor_value_info(name, value.type, None))
    graph.input.append(helper.make_tensor_value_info("values", onnx.TensorProto.FLOAT, values.shape))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {"values": values}))
