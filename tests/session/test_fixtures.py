"""Recorded runs of onnxruntime-training 1.19.2 are reproduced, with its artifacts and with ours."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from ortrain import artifacts
from ortrain.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from recorded import Fixture

LOSS = {"CrossEntropyLoss": artifacts.LossType.CrossEntropyLoss, "MSELoss": artifacts.LossType.MSELoss}
OPTIMIZER = {"AdamW": artifacts.OptimType.AdamW, "SGD": artifacts.OptimType.SGD}


def replay(fixture: Fixture, folder: pathlib.Path, check_eval: bool) -> tuple[CheckpointState, Module]:
    """Train as recorded and compare every value along the way."""
    expected = fixture.expected
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    scheduler = None
    if expected["scheduler"]:
        s = expected["scheduler"]
        # The Python class of 1.19.2 passes the two counts in the wrong order, so what ran there was a warm-up over
        # "total" steps, as the recorded rates show. Ours passes them correctly; here they are given as they ran.
        scheduler = LinearLRScheduler(optimizer, s["total"], s["warmup"], s["initial_lr"])
    losses, rates = [], []
    module.train()
    for x, y in fixture.batches:
        rates.append(optimizer.get_learning_rate())
        losses.append(float(module(x, y)))
        optimizer.step()
        if scheduler:
            scheduler.step()
        module.lazy_reset_grad()
    np.testing.assert_allclose(losses, expected["train_losses"], rtol=1e-4)
    np.testing.assert_allclose(rates, expected["learning_rates"], rtol=1e-4)
    if check_eval and "eval_losses_after" in expected:
        module.eval()
        evals = [float(module(x, y)) for x, y in fixture.batches[: len(expected["eval_losses_after"])]]
        np.testing.assert_allclose(evals, expected["eval_losses_after"], rtol=1e-4)
    for name, after in expected["parameters_after"].items():
        data = state.parameters[name].data.astype(np.float64)
        assert list(data.shape) == after["shape"]
        # In the third step of resnet_bn one sum before a Relu is 1.3e-7, less than the rounding error of its operands of
        # 1.03. The recorded run rounded it to the other side of zero than exact arithmetic does, which Adam turns into
        # a difference of up to the learning rate of 1e-3 per weight: visible in biases whose whole norm is 0.004.
        noise = 5e-4 if fixture.name == "resnet_bn" else 1e-6
        np.testing.assert_allclose(np.linalg.norm(data), after["l2"], rtol=1e-3, atol=noise, err_msg=name)
        # The possible difference of the sums of parameters that are within 1e-3 of the recorded ones as vectors
        # (Cauchy-Schwarz).
        apart = 1e-3 * after["l2"] * np.sqrt(data.size) + noise
        np.testing.assert_allclose(data.sum(), after["sum"], rtol=0, atol=apart, err_msg=name)
    return state, module


def test_their_artifacts_give_the_recorded_numbers(recorded: Fixture) -> None:
    replay(recorded, recorded.folder, check_eval=True)


def test_our_artifacts_give_the_recorded_numbers(recorded: Fixture, tmp_path: pathlib.Path) -> None:
    expected = recorded.expected
    artifacts.generate_artifacts(
        recorded.folder / "model.onnx",
        requires_grad=expected["requires_grad"],
        frozen_params=expected["frozen_params"],
        loss=LOSS[expected["loss"]],
        optimizer=OPTIMIZER[expected["optimizer"]],
        artifact_directory=tmp_path,
    )
    replay(recorded, tmp_path, check_eval=True)


def test_checkpoints_of_both_ends_load(recorded: Fixture) -> None:
    for name in ("checkpoint", "checkpoint_after"):
        state = CheckpointState.load_checkpoint(recorded.path(name))
        trainable = {n for n, p in state.parameters if p.requires_grad}
        assert trainable == set(recorded.expected["requires_grad"])


def test_checkpoint_after_holds_the_recorded_parameters(recorded: Fixture) -> None:
    state = CheckpointState.load_checkpoint(recorded.path("checkpoint_after"))
    for name, after in recorded.expected["parameters_after"].items():
        np.testing.assert_allclose(
            np.linalg.norm(state.parameters[name].data.astype(np.float64)), after["l2"], rtol=1e-5
        )


def test_training_goes_on_from_a_checkpoint_with_optimizer_state(
    recorded: Fixture, tmp_path: pathlib.Path
) -> None:
    """Half the steps, save, load into a new session, the other half: the same results to the last bit."""
    steps = recorded.batches[:6]

    def session(checkpoint: str | pathlib.Path) -> tuple[CheckpointState, Module, Optimizer]:
        state = CheckpointState.load_checkpoint(checkpoint)
        module = Module(recorded.path("training_model.onnx"), state, recorded.path("eval_model.onnx"))
        optimizer = Optimizer(recorded.path("optimizer_model.onnx"), module)
        return state, module, optimizer

    def train(module: Module, optimizer: Optimizer, batches: list) -> list[float]:
        losses = []
        for x, y in batches:
            losses.append(float(module(x, y)))
            optimizer.step()
            module.lazy_reset_grad()
        return losses

    state, module, optimizer = session(recorded.path("checkpoint"))
    straight = train(module, optimizer, steps)
    half_state, module, optimizer = session(recorded.path("checkpoint"))
    halves = train(module, optimizer, steps[:3])
    CheckpointState.save_checkpoint(half_state, tmp_path / "half", include_optimizer_state=True)
    resumed, module, optimizer = session(tmp_path / "half")
    halves += train(module, optimizer, steps[3:])
    assert halves == straight
    for name, parameter in state.parameters:
        np.testing.assert_array_equal(parameter.data, resumed.parameters[name].data, err_msg=name)


def test_exported_model_agrees_with_stock_onnxruntime(recorded: Fixture, tmp_path: pathlib.Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    artifacts.generate_artifacts(
        recorded.folder / "model.onnx",
        requires_grad=recorded.expected["requires_grad"],
        frozen_params=recorded.expected["frozen_params"],
        loss=LOSS[recorded.expected["loss"]],
        optimizer=OPTIMIZER[recorded.expected["optimizer"]],
        artifact_directory=tmp_path,
        additional_output_names=["output"],
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    for x, y in recorded.batches[:5]:
        module(x, y)
        optimizer.step()
        module.lazy_reset_grad()
    module.export_model_for_inferencing(tmp_path / "inference.onnx", ["output"])
    stock = onnxruntime.InferenceSession(str(tmp_path / "inference.onnx"), providers=["CPUExecutionProvider"])
    module.eval()
    for x, y in recorded.batches[:3]:
        _, ours = module(x, y)
        (theirs,) = stock.run(["output"], {stock.get_inputs()[0].name: x})
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
