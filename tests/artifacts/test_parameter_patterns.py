"""Patterns and paths of modules, in requires_grad and frozen_params."""

from __future__ import annotations

import pathlib

import onnx
import pytest
from ortrain import artifacts
from ortrain.api import CheckpointState, Module
from recorded import Fixture

TESTS = pathlib.Path(__file__).parents[1]
MSE = artifacts.LossType.MSELoss


def report_of(path: str | pathlib.Path, folder: pathlib.Path, **names: list[str]) -> artifacts.ArtifactReport:
    return artifacts.generate_artifacts(path, loss=MSE, artifact_directory=folder, **names)


def test_a_pattern_and_a_module_stand_for_parameters(tmp_path: pathlib.Path) -> None:
    path = Fixture("resnet_bn").path("model.onnx")
    report = report_of(path, tmp_path, requires_grad=["fc", "l2.b*"], frozen_params=["*.bias"])
    assert sorted(report.trained) == ["fc.weight", "l2.b1.weight", "l2.b2.weight"]
    # Running statistics are no parameters of a pattern, but every step updates them.
    assert {"l2.b1.bias", "fc.bias", "l2.b1.running_mean"} <= set(report.frozen)
    # A name beats a pattern.
    report = report_of(path, tmp_path, requires_grad=["fc.bias", "fc.*"], frozen_params=["*.bias"])
    assert sorted(report.trained) == ["fc.bias", "fc.weight"]


def test_a_module_has_the_weights_that_an_exporter_renamed(tmp_path: pathlib.Path) -> None:
    path = TESTS / "models" / "data" / "vit" / "torchscript_17.onnx"
    report = report_of(path, tmp_path, requires_grad=["blocks.1.mlp"])
    shapes = sorted(c.shape for c in report.initializers if c.fate is artifacts.Fate.TRAINED)
    assert shapes == [(24,), (24, 48), (48,), (48, 24)]
    assert "blocks.1.mlp.0.bias" in report.trained


def test_a_trained_export_has_the_modules_of_the_given_model(tmp_path: pathlib.Path) -> None:
    """Also where the exporter records modules in the metadata of nodes, which the training core drops."""
    path = TESTS / "models" / "data" / "llama" / "dynamo_18.onnx"
    report = report_of(path, tmp_path / "a")
    state = CheckpointState.load_checkpoint(report.checkpoint)
    module = Module(report.training_model, state, report.eval_model)
    module.export_model_for_inferencing(tmp_path / "trained.onnx", ["output"])
    given, trained = (
        report_of(p, tmp_path / "b", requires_grad=["blocks.1.q_proj"]).trained
        for p in (path, tmp_path / "trained.onnx")
    )
    assert trained == given
    assert len(trained) == 1
    adapters = artifacts.generate_artifacts(
        onnx.load(tmp_path / "trained.onnx"),
        adapter=artifacts.LoRA(targets=["q_proj"]),
        loss=MSE,
        artifact_directory=tmp_path / "b",
    ).adapters
    assert adapters is not None
    assert [layer.module for layer in adapters.layers] == ["blocks.0.q_proj", "blocks.1.q_proj"]
    quantized = artifacts.quantize_weights(tmp_path / "trained.onnx", block_size=16, skip=["down_proj"])
    assert "blocks.0.q_proj" in [layer.module for layer in quantized.layers]


def test_frozen_params_alone_take_patterns(tmp_path: pathlib.Path) -> None:
    report = report_of(Fixture("lenet_adamw").path("model.onnx"), tmp_path, frozen_params=["conv*"])
    assert sorted(report.frozen) == ["conv1.bias", "conv1.weight", "conv2.bias", "conv2.weight"]
    assert sorted(report.trained) == ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]


def test_what_fits_nothing_is_an_error_that_names_what_there_is(tmp_path: pathlib.Path) -> None:
    path = Fixture("resnet_bn").path("model.onnx")
    with pytest.raises(
        ValueError, match=r"requires_grad: 'head\.\*' fits no parameter of the model; it has \d+: "
    ):
        report_of(path, tmp_path, requires_grad=["head.*"])
    with pytest.raises(
        ValueError, match=r"only other initializers: l2.b1.running_mean \(running statistic\)"
    ):
        report_of(path, tmp_path, requires_grad=["l2.b1.running_m*"])
    with pytest.raises(ValueError, match=r"no initializer named 'fcc'"):
        report_of(path, tmp_path, requires_grad=["fcc"])
