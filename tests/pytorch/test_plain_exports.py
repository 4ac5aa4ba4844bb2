"""What PyTorch's own exporters fold is named in a warning, and what the warning advises trains the parameters themselves."""

from __future__ import annotations

from typing import Any

import ortrain.torch
import pytest
import torch
from networks import TimeMix, UNet
from ortrain import artifacts
from torch import nn


def plain_export(network: nn.Module, x: torch.Tensor, path: Any, newer: bool) -> None:
    """Export as the tutorials of PyTorch do."""
    torch.onnx.export(network.eval(), (x,), path, dynamo=newer, external_data=False)
    network.train()


def warning_of(caplog: pytest.LogCaptureFixture) -> str:
    """Return the only warning about folded weights."""
    (text,) = [r.getMessage() for r in caplog.records if "ortrain.torch.export" in r.getMessage()]
    return text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "x", "newer", "named"),
    [
        (UNet, torch.randn(2, 3, 16, 16), True, "down.0.weight (from down.1.weight, down.1.bias)"),
        (UNet, torch.randn(2, 3, 16, 16), False, "most likely a batch normalization was folded into it"),
        (
            TimeMix,
            torch.randint(0, 50, (2, 6)),
            True,
            "sub (from mix_k), sub_1 (from mix_v), sub_2 (from mix_r)",
        ),
    ],
    ids=["batch normalization", "batch normalization, older exporter", "1 - mix"],
)
def test_the_advice_about_folded_parameters_works(make, x, newer, named, tmp_path, caplog) -> None:
    torch.manual_seed(0)
    network = make()
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):  # no two are equal
            parameter.add_(0.01 * torch.randn_like(parameter) + 1e-3 * number)
    options: dict[str, Any] = {
        "loss": artifacts.LossType.MSELoss,
        "optimizer": artifacts.OptimType.SGD,
        "artifact_directory": tmp_path,
    }
    plain_export(network, x, tmp_path / "plain.onnx", newer)
    report = artifacts.generate_artifacts(tmp_path / "plain.onnx", **options)
    assert report.folded
    assert named in warning_of(caplog)
    parameters = [name for name, _ in network.named_parameters()]
    assert sorted(report.trained) != sorted(parameters)

    caplog.clear()
    ortrain.torch.export(network, x, tmp_path / "model.onnx")
    report = artifacts.generate_artifacts(tmp_path / "model.onnx", **options)
    assert sorted(report.trained) == sorted(parameters)
    assert report.folded == ()
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
