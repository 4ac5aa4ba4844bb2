"""Every optimizer of the library: against PyTorch and the authors' formulas, and resumed to the bit.

The recorded weights are in tests/data/optimizers, with the script that recorded them.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import ortrain
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from oracle_errors import check_against_oracle
from ortrain import artifacts
from ortrain.api import CheckpointState
from ortrain.onnxblock import optim
from ortrain.onnxblock.optim.declarations import declared
from training import Training

Array = NDArray[Any]
DATA = pathlib.Path(__file__).parents[1] / "data" / "optimizers"
RECORDED = np.load(DATA / "recorded.npz")
CASES = json.loads((DATA / "cases.json").read_text())
SHOWN = (1, 2, 7, 50)
NAMES = ("weight", "bias")


def settings_of(case: dict[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if isinstance(value, list) else value for key, value in case["settings"].items()
    }


def make(folder: pathlib.Path, optimizer: Any, dtype: Any = np.float32) -> pathlib.Path:
    """Write artifacts of a model whose parameters are those of the recorded runs."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["h"]),
        helper.make_node("Add", ["h", "bias"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("x", kind, ["n", 4])],
        [helper.make_tensor_value_info("y", kind, ["n", 3])],
        [numpy_helper.from_array(RECORDED[f"start/{name}"].astype(dtype), name) for name in NAMES],
    )
    artifacts.generate_artifacts(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        requires_grad=list(NAMES),
        loss=artifacts.LossType.MSELoss,
        optimizer=optimizer,
        artifact_directory=folder,
    )
    return folder


def steps(training: Training, numbers: range) -> dict[int, dict[str, Array]]:
    """Take optimizer steps with the recorded gradients; return the weights after each."""
    after = {}
    for step in numbers:
        for name, parameter in training.state.parameters:
            parameter.grad = RECORDED[f"gradients/{name}"][step].astype(parameter.data.dtype)
        training.optimizer.step()
        training.module.lazy_reset_grad()
        after[step + 1] = training.parameters()
    return after


@pytest.mark.parametrize(
    ("number", "case"),
    list(enumerate(CASES)),
    ids=[f"{i}-{case['optimizer']}" for i, case in enumerate(CASES)],
)
def test_steps_are_those_of_the_recorded_optimizer(
    tmp_path: pathlib.Path, number: int, case: dict[str, Any]
) -> None:
    block = optim.BLOCKS[case["optimizer"]]
    for dtype, error in ((np.float64, 1e-11), (np.float32, 2e-5)):
        training = Training(make(tmp_path, block(**settings_of(case)), dtype))
        training.optimizer.set_learning_rate(case["rate"])
        after = steps(training, range(50))
        for i, step in enumerate(SHOWN):
            for name in NAMES:
                check_against_oracle(
                    "optimizers",
                    case["optimizer"],
                    dtype,
                    after[step][name],
                    RECORDED[f"{number}/{name}"][i],
                    error,
                    f"{case}, {np.dtype(dtype)}, {name} after step {step}",
                )


def test_every_optimizer_has_a_recorded_case() -> None:
    # AdamW with the epsilon of Hugging Face is compared in test_fixtures and test_parameter_groups.
    assert {case["optimizer"] for case in CASES} == declared().keys() - {"adamw"}


@pytest.mark.parametrize("name", sorted(optim.BLOCKS))
def test_a_resumed_run_continues_to_the_bit(tmp_path: pathlib.Path, name: str) -> None:
    most: dict[str, dict[str, Any]] = {
        "sgd": {"momentum": 0.9, "nesterov": True},
        "rmsprop": {"momentum": 0.9, "centered": True},
        "ademamix": {"warmup_steps": 20},
        "schedule_free_adamw": {"warmup_steps": 8},
    }
    groups = [optim.ParamGroup("biases", ["bias"], lr_factor=0.5, weight_decay=0.2)]
    folder = make(tmp_path, optim.BLOCKS[name](param_groups=groups, **most.get(name, {})))
    whole = Training(folder)
    expected = steps(whole, range(12))[12]
    first = Training(folder)
    steps(first, range(5))
    CheckpointState.save_checkpoint(first.state, tmp_path / "halfway", include_optimizer_state=True)
    resumed = Training(folder, checkpoint="halfway")
    found = steps(resumed, range(5, 12))[12]
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)


@pytest.mark.parametrize("optimizer", ["lamb", "muon", "adafactor"])
def test_weights_of_16_bits_have_states_of_32(tmp_path: pathlib.Path, optimizer: str) -> None:
    number = next(i for i, case in enumerate(CASES) if case["optimizer"] == optimizer)
    block = optim.BLOCKS[optimizer](**settings_of(CASES[number]))
    training = Training(make(tmp_path, block, ml_dtypes.bfloat16))
    training.optimizer.set_learning_rate(CASES[number]["rate"])
    after = steps(training, range(7))
    for name in NAMES:
        value = after[7][name].astype(np.float32)
        np.testing.assert_allclose(value, RECORDED[f"{number}/{name}"][2], atol=0.05)
        assert np.any(value != RECORDED[f"start/{name}"].astype(ml_dtypes.bfloat16).astype(np.float32))


def test_the_model_names_the_optimizer_and_its_settings(tmp_path: pathlib.Path) -> None:
    make(tmp_path, optim.Lion(betas=(0.8, 0.95), clip_grad=optim.ClipGradNorm(1.0)))
    graph = onnx.load(tmp_path / "optimizer_model.onnx").graph
    clip, node = graph.node
    assert (clip.op_type, node.domain, node.op_type) == ("InplaceClipGradNorm", "ortrain", "Optimizer")
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert attributes.pop("type") == b"lion"
    assert attributes == pytest.approx({"beta1": 0.8, "beta2": 0.95, "weight_decay": 0.0}, rel=1e-6)
    assert [value.name for value in graph.input][2:] == ["params", "gradients", "first_moment"]


@pytest.mark.parametrize(
    ("optimizer", "nodes"),
    [
        (optim.SGD(), {"SGDOptimizerV2"}),
        (optim.SGD(param_groups=[optim.ParamGroup("b", ["bias"], lr_factor=2)]), {"SGDOptimizerV2"}),
        (optim.SGD(param_groups=[optim.ParamGroup("b", ["bias"], weight_decay=0.1)]), {"Optimizer"}),
        (optim.SGD(momentum=0.9), {"Optimizer"}),
        (optim.TorchAdamW(), {"AdamWOptimizer"}),
    ],
)
def test_what_onnxruntime_has_keeps_its_operators(
    tmp_path: pathlib.Path, optimizer: Any, nodes: set[str]
) -> None:
    make(tmp_path, optimizer)
    assert {n.op_type for n in onnx.load(tmp_path / "optimizer_model.onnx").graph.node} == nodes
    Training(tmp_path)


def test_settings_of_a_group_can_be_changed(tmp_path: pathlib.Path) -> None:
    training = Training(make(tmp_path, artifacts.OptimType.Lion))
    group = training.optimizer.param_groups["group0"]
    group.weight_decay = 0.25
    assert group.weight_decay == 0.25
    with pytest.raises(
        ortrain.InvalidArgumentError,
        match='of Lion has no attribute "alpha"; it has learning_rate, learning_rate_factor, beta1, beta2, weight',
    ):
        group.alpha = 0.5
    plain = Training(make(tmp_path / "sgd", optim.SGD()))
    plain.optimizer.param_groups["group0"].weight_decay = 0.1


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: pathlib.Path) -> None:
    lion = make(tmp_path / "lion", optim.Lion())
    training = Training(lion)
    steps(training, range(2))
    CheckpointState.save_checkpoint(training.state, lion / "later", include_optimizer_state=True)
    sgd = make(tmp_path / "sgd", optim.SGD(momentum=0.9))
    with pytest.raises(
        ortrain.InvalidArgumentError,
        match='consists of "first_moment", but the optimizer SGDOptimizerV2 keeps "momentum_buffer"',
    ):
        Training(sgd, checkpoint=lion / "later")
    # The moments of Adam and AdamW are the same.
    adamw = make(tmp_path / "adamw", optim.AdamW())
    training = Training(adamw)
    steps(training, range(2))
    CheckpointState.save_checkpoint(training.state, adamw / "later", include_optimizer_state=True)
    steps(Training(make(tmp_path / "adam", optim.Adam()), checkpoint=adamw / "later"), range(2))


def test_wrong_settings_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(TypeError, match="Lion has no momentum; it has beta1, beta2, weight_decay"):
        optim.Lion(momentum=0.9)
    with pytest.raises(ValueError, match=r"beta1 must be at least 0 and less than 1, found 1\.5"):
        optim.Adam(betas=(1.5, 0.9))
    with pytest.raises(ValueError, match="betas must be 2 values"):
        optim.Adam(betas=(0.9, 0.99, 0.999))
    with pytest.raises(ValueError, match="nesterov needs a momentum"):
        optim.SGD(nesterov=True)
    make(tmp_path, optim.Lion())
    model = onnx.load(tmp_path / "optimizer_model.onnx")
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "type":
            attribute.s = b"tiger"
    onnx.save(model, tmp_path / "optimizer_model.onnx")
    with pytest.raises(
        ortrain.OrtrainError, match="its type is 'tiger', expected one of adadelta, adafactor"
    ):
        Training(tmp_path)


def test_names_and_classes_follow_from_the_library() -> None:
    assert set(optim.BLOCKS) == set(declared())
    assert {member.name for member in artifacts.OptimType} == {d.title for d in declared().values()}
    for name, declaration in declared().items():
        assert optim.BLOCKS[name] is getattr(optim, declaration.title)
        assert declaration.title in optim.__all__
        assert declaration.formula
        assert declaration.source
