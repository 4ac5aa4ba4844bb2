"""Learning rate schedules of the core: against PyTorch's, and resumed."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from oracle_errors import check_against_oracle
from ortrain import artifacts
from ortrain.api import CheckpointState, LRScheduler
from ortrain.errors import InvalidArgumentError
from ortrain.trainer import Schedule, schedules
from training import Training

RECORDED = json.loads((pathlib.Path(__file__).parents[1] / "data/schedules/recorded.json").read_text())
RATE = RECORDED["rate"]
CASES = RECORDED["cases"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("schedules")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.eye(2, dtype=np.float32), "w")],
    )
    artifacts.generate_artifacts(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        requires_grad=["w"],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )
    return folder


def rates(
    training: Training, scheduler: LRScheduler, values: list[float] | None, steps: range
) -> list[float]:
    """Return the rates of optimizer steps."""
    found = []
    x = np.zeros((1, 2), np.float32)
    for step in steps:
        found.append(training.optimizer.get_learning_rate())
        training.step(x, x)
        scheduler.step()
        if values is not None:
            scheduler.report(values[step])
    return found


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case['schedule']}" for i, case in enumerate(CASES)])
def test_rates_are_those_of_pytorch_also_after_a_resume(
    folder: pathlib.Path, tmp_path: pathlib.Path, case: dict[str, Any]
) -> None:
    training = Training(folder)
    scheduler = LRScheduler(training.optimizer, case["schedule"], case["settings"], RATE)
    found = rates(training, scheduler, case["values"], range(23))
    CheckpointState.save_checkpoint(training.state, tmp_path / "halfway", include_optimizer_state=True)
    resumed = Training(folder, checkpoint=tmp_path / "halfway")
    next_rate = training.optimizer.get_learning_rate()
    assert resumed.optimizer.get_learning_rate() == next_rate  # without another call
    scheduler = LRScheduler(resumed.optimizer, case["schedule"], case["settings"], RATE)
    assert resumed.optimizer.get_learning_rate() == next_rate  # a program that registers it again
    found += rates(resumed, scheduler, case["values"], range(23, 40))
    np.testing.assert_allclose(found, case["rates"], rtol=3e-7, atol=1e-9, err_msg=str(case["settings"]))
    factors = np.divide((found, case["rates"]), RATE)  # which the table of the docs has
    check_against_oracle("schedules", case["schedule"], np.float32, *factors, 3e-7, str(case["settings"]))


def test_every_schedule_has_a_recorded_case() -> None:
    assert {case["schedule"] for case in CASES} == schedules.declared().keys()


def test_a_schedule_by_epochs_begins_where_a_run_begins(folder: pathlib.Path) -> None:
    training = Training(folder)
    settings = "step_size=2,gamma=0.5,interval=3,first_step=4"
    scheduler = LRScheduler(training.optimizer, "step", settings, 1.0)
    found = rates(training, scheduler, None, range(18))
    assert found == [1.0] * 10 + [0.5] * 6 + [0.25] * 2


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("cosin", "", 'no learning-rate schedule "cosin"; expected one of "constant", "cosine"'),
        ("cosine", "", "expected total_steps greater than warmup_steps, found total_steps 0"),
        ("step", "", "step_size .* should be a whole number of at least 1, it was not given"),
        ("step", "step_size=2.5", 'step_size should be a whole number of at least 1, found "2.5"'),
        ("step", "stepsize=2", 'no setting "stepsize"; expected one of "step_size", "gamma"'),
        ("multi_step", "milestones=3:2", 'milestones should be rising numbers .*, found "3:2"'),
        ("exponential", "gamma=nan", 'gamma should be a finite number of at least 0, found "nan"'),
        ("exponential", "gamma", 'expected settings such as total_steps=1000, .* found "gamma"'),
    ],
)
def test_wrong_settings_are_rejected_with_what_there_is(
    folder: pathlib.Path, name: str, settings: str, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        LRScheduler(Training(folder).optimizer, name, settings, RATE)


def test_a_trainer_names_the_settings_of_a_schedule() -> None:
    with pytest.raises(
        TypeError, match=r"schedule step: expected settings among step_size, gamma, .*found gama"
    ):
        Schedule("step", step_size=2, gama=0.5)
    with pytest.raises(ValueError, match="schedule multi_step: expected milestones, which has no default"):
        Schedule("multi_step")
