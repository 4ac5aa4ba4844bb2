"""What PyTorch and ortrain compute for one network: the oracle of this folder, and the table in the documentation."""

from __future__ import annotations

import copy
import pathlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import ortrain.torch
import torch
from networks import Case
from ortrain import artifacts
from training import Training

STEPS = 20
TORCH_RUNS = 3
ADAMW_RATE = 1e-3
OPTIMIZERS = {"sgd": artifacts.OptimType.SGD, "adamw": artifacts.OptimType.AdamW}


@dataclass
class Comparison:
    """How far ortrain is from PyTorch. All differences are relative to the largest value of what is compared."""

    network: torch.nn.Module
    report: ortrain.torch.ExportReport
    artifacts: artifacts.ArtifactReport
    trained_by_torch: list[str]
    """The parameters with a gradient in PyTorch, each under its first name."""
    loss: float
    """The difference of the first loss from that of a float64 copy of the network."""
    gradients: dict[str, float]
    """The differences of the gradients from those of a float64 copy of the network."""
    gradients_of_torch: dict[str, float]
    """The same for PyTorch in float32."""
    losses: float
    """The largest difference of the losses of all steps from those of the float64 copy."""
    losses_of_torch: float
    """The same for PyTorch in float32: the largest of some runs whose first weights differ in their last bits.

    One run is not enough: training can amplify a difference in the last bit a thousandfold, or by chance cancel it.
    """
    first_and_last: tuple[float, float]


def prepared(case: Case, seed: int = 0) -> tuple[torch.nn.Module, dict[str, torch.Tensor], torch.Tensor]:
    """Return a freshly initialized network in training mode, its inputs, and a target for the mean squared error."""
    torch.manual_seed(seed)
    network = case.make()
    if not any(not module.training for module in network.modules()) or not network.training:
        network.train()
    inputs = case.inputs()
    with torch.no_grad():
        shape = output_of(case, copy.deepcopy(network)(**inputs)).shape
    return network, inputs, torch.randn(shape)


def rate_of(case: Case, optimizer: str) -> float:
    return case.rate if optimizer == "sgd" else ADAMW_RATE


def output_of(case: Case, result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result[case.output]


def relative(found: Any, expected: Any, floor: float = 0.0) -> float:
    """Return the largest difference, divided by the largest expected value."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    scale = max(float(np.abs(expected).max(initial=0.0)), floor)
    error = float(np.abs(found - expected).max(initial=0.0))
    return error / scale if scale else error


def gradients_of(case: Case, network: torch.nn.Module, inputs: Any, target: torch.Tensor) -> dict[str, Any]:
    network.zero_grad()
    torch.nn.functional.mse_loss(output_of(case, network(**inputs)), target).backward()
    found = {n: p.grad.numpy().copy() for n, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    return found


def in_double(network: torch.nn.Module, inputs: Any) -> tuple[torch.nn.Module, Any]:
    wide = copy.deepcopy(network).double()
    return wide, {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


def train_in_torch(case: Case, network: Any, inputs: Any, target: Any, optimizer: str) -> list[float]:
    parameters = [p for p in network.parameters() if p.requires_grad]
    if optimizer == "sgd":
        stepper: Any = torch.optim.SGD(parameters, rate_of(case, optimizer))
    else:
        stepper = torch.optim.AdamW(parameters, rate_of(case, optimizer), weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        if optimizer == "adamw":
            # Epsilon is added before the bias of the second moment is corrected, as in onnxruntime.
            stepper.param_groups[0]["eps"] = 1e-6 / (1 - 0.999 ** (step + 1)) ** 0.5
        stepper.zero_grad()
        loss = torch.nn.functional.mse_loss(output_of(case, network(**inputs)), target)
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    return losses


def nudged(network: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Return a copy whose weights are off by up to a unit in the last place; none if `seed` is 0."""
    network = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(seed)
    if seed:
        with torch.no_grad():
            for p in network.parameters():
                p.mul_(1 + (torch.rand(p.shape, generator=generator) - 0.5) * torch.finfo(p.dtype).eps)
    return network


def compare(case: Case, folder: pathlib.Path, optimizer: str = "sgd") -> Comparison:
    """Export a network, train it in both, and compare."""
    network, inputs, target = prepared(case)
    report = ortrain.torch.export(network, inputs, folder / "model.onnx")
    made = artifacts.generate_artifacts(
        folder / "model.onnx",
        loss=artifacts.LossType.MSELoss,
        optimizer=OPTIMIZERS[optimizer],
        artifact_directory=folder,
        loss_input_names=[case.output],
    )
    training = Training(folder)
    training.optimizer.set_learning_rate(rate_of(case, optimizer))
    feeds = [inputs[name].numpy() for name in report.inputs] + [target.numpy()]

    wide, wide_inputs = in_double(network, inputs)
    exact = gradients_of(case, copy.deepcopy(wide), wide_inputs, target.double())
    narrow = gradients_of(case, copy.deepcopy(network), inputs, target)
    expected = train_in_torch(case, wide, wide_inputs, target.double(), optimizer)
    of_torch = [
        train_in_torch(case, nudged(network, n), inputs, target, optimizer) for n in range(TORCH_RUNS)
    ]

    first = training.loss(*feeds)
    found = training.gradients()
    training = Training(folder)  # running statistics have changed
    training.optimizer.set_learning_rate(rate_of(case, optimizer))
    losses = [training.step(*feeds) for _ in range(STEPS)]
    scale = max(float(np.abs(g).max(initial=0.0)) for g in exact.values())
    return Comparison(
        network=network,
        report=report,
        artifacts=made,
        trained_by_torch=list(exact),
        loss=relative(first, expected[0]),
        gradients={n: relative(found[n], exact[n], 1e-2 * scale) for n in exact if n in found},
        gradients_of_torch={n: relative(narrow[n], exact[n], 1e-2 * scale) for n in exact},
        losses=relative(losses, expected),
        losses_of_torch=max(relative(run, expected) for run in of_torch),
        first_and_last=(expected[0], expected[-1]),
    )


def is_right(found: Comparison) -> list[str]:
    """Return what differs, more than the order of additions explains."""
    wrong = []
    names = set(found.network.state_dict())
    written = {*found.report.trained, *found.report.frozen, *found.report.buffers}
    stored = {name for name, _ in found.network.named_buffers()} | names
    if written - stored:
        wrong.append(f"names that state_dict does not have: {sorted(written - stored)}")
    if set(found.artifacts.trained) != set(found.trained_by_torch):
        wrong.append(f"trained: {sorted(set(found.artifacts.trained) ^ set(found.trained_by_torch))}")
    if not found.report.aliases.keys() <= stored:
        wrong.append(f"aliases: {found.report.aliases}")
    if found.loss > 1e-6:
        wrong.append(f"the first loss is off by {found.loss:.1e}")
    if found.losses > max(1e-6, 4 * found.losses_of_torch):
        wrong.append(
            f"the losses of {STEPS} steps are off by {found.losses:.1e}, in PyTorch by {found.losses_of_torch:.1e}"
        )
    wrong += [
        f"the gradient of {name} is off by {error:.1e}, in PyTorch by {found.gradients_of_torch[name]:.1e}"
        for name, error in found.gradients.items()
        if error > max(1e-5, 4 * found.gradients_of_torch[name])
    ]
    if abs(found.first_and_last[0] - found.first_and_last[1]) < 1e-3:
        wrong.append(f"the loss does not change: {found.first_and_last}")
    return wrong
