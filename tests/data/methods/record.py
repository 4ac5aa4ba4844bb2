"""Records what PyTorch computes for DP-SGD, elastic weight consolidation and MeZO on a small network.

``python tests/data/methods/record.py`` with torch and opacus installed. The stored files were made by PyTorch 2.13 and Opacus
1.6. It writes network.onnx, from ``x``, float32 ``[batch, 1, 6, 6]``, to ``scores``, float32 ``[batch, 4]``, and recorded.npz:

- ``x`` and ``y``, the data; ``start/NAME``, the parameters of the network,
- ``private/NAME``, the parameters after steps of Opacus' DP optimizer without noise; ``private/rows/STEP`` are the rows of a
  step, and ``private/clipped`` is the share of the gradients that were longer than the clip,
- ``fisher/NAME``, the mean of the squared gradients of single rows; ``elastic/NAME`` and ``elastic/losses``, of steps of SGD
  on other labels with the penalty of Kirkpatrick et al. (2017),
- ``mezo/NAME`` and ``mezo/losses``, of steps as the program of Malladi et al. (2023) takes them, with the
  noise ``noise/STEP/NAME``.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus import GradSampleModule  # type: ignore[import-not-found, unused-ignore]
from opacus.optimizers import DPOptimizer  # type: ignore[import-not-found, unused-ignore]
from torch.nn.functional import cross_entropy

HERE = Path(__file__).parent
ROWS, BATCH, STEPS = 24, 6, 8
CLIP, PRIVATE_RATE = 1.6, 0.4
STRENGTH, ELASTIC_RATE = 20.0, 0.05
EPSILON, MEZO_RATE, SEED = 1e-2, 0.05, 7


def network() -> torch.nn.Sequential:
    torch.manual_seed(4)
    layers = [
        torch.nn.Conv2d(1, 3, 3),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.Linear(48, 8),
        torch.nn.Tanh(),
        torch.nn.Linear(8, 4),
    ]
    return torch.nn.Sequential(*layers)


def values_of(model: torch.nn.Module, under: str) -> dict[str, Any]:
    return {f"{under}/{name}": value.detach().numpy().copy() for name, value in model.named_parameters()}


def record_private(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    """Steps whose rows are drawn with the bytes that the test gives to ortrain."""
    model, bits = network(), np.random.default_rng(5)
    sampled = GradSampleModule(model)
    inner = torch.optim.SGD(sampled.parameters(), PRIVATE_RATE)
    optimizer = DPOptimizer(inner, noise_multiplier=0.0, max_grad_norm=CLIP, expected_batch_size=BATCH)
    found: dict[str, Any] = {}
    longer: list[bool] = []
    for step in range(STEPS):
        rows = np.flatnonzero(np.frombuffer(bits.bytes(8 * ROWS), np.uint64) / 2**64 < BATCH / ROWS)
        found[f"private/rows/{step}"] = rows
        optimizer.zero_grad()
        cross_entropy(sampled(x[rows]), y[rows]).backward()
        norms = sum(p.grad_sample.flatten(1).square().sum(1) for p in sampled.parameters()) ** 0.5
        longer += (norms > CLIP).tolist()
        optimizer.step()
    return found | values_of(model, "private") | {"private/clipped": np.mean(longer)}


def record_elastic(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    model = network()
    parameters = dict(model.named_parameters())
    fisher = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for row in range(len(x)):
        model.zero_grad()
        cross_entropy(model(x[row : row + 1]), y[row : row + 1]).backward()
        for name, value in parameters.items():
            fisher[name] += value.grad.square() / len(x)
    start = {name: value.detach().clone() for name, value in parameters.items()}
    optimizer, losses = torch.optim.SGD(model.parameters(), ELASTIC_RATE), []
    for _ in range(STEPS):
        away = [(fisher[name] * (value - start[name]).square()).sum() for name, value in parameters.items()]
        loss = cross_entropy(model(x), (y + 1) % 4) + STRENGTH / 2 * torch.stack(away).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found = {f"fisher/{name}": value.numpy() for name, value in fisher.items()}
    return found | values_of(model, "elastic") | {"elastic/losses": np.array(losses)}


@torch.no_grad()
def record_mezo(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    model, losses, found = network(), [], dict[str, Any]()
    parameters = list(model.named_parameters())
    for step in range(STEPS):
        source = np.random.Generator(np.random.Philox(key=[SEED, step]))
        noise = {n: source.standard_normal(p.numel(), np.float32).reshape(p.shape) for n, p in parameters}
        found |= {f"noise/{step}/{name}": value for name, value in noise.items()}

        def perturb(scale: float, noise: dict[str, Any] = noise) -> None:
            for name, value in parameters:
                value.data = value.data + scale * torch.from_numpy(noise[name]) * EPSILON

        perturb(1)
        plus = cross_entropy(model(x), y).item()
        perturb(-2)
        minus = cross_entropy(model(x), y).item()
        projected = (plus - minus) / (2 * EPSILON)
        perturb(1)
        for name, value in parameters:
            value.data = value.data - MEZO_RATE * projected * torch.from_numpy(noise[name])
        losses.append((plus + minus) / 2)
    return found | values_of(model, "mezo") | {"mezo/losses": np.array(losses)}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.manual_seed(3)
    x, y = torch.randn(ROWS, 1, 6, 6), torch.randint(0, 4, (ROWS,))
    torch.onnx.export(
        network(), (x,), HERE / "network.onnx", dynamo=False, opset_version=17, input_names=["x"],
        output_names=["scores"], dynamic_axes={"x": {0: "batch"}, "scores": {0: "batch"}},
    )  # fmt: skip
    recorded = {"x": x.numpy(), "y": y.numpy(), **values_of(network(), "start")}
    for record in (record_private, record_elastic, record_mezo):
        recorded |= record(x, y)
    np.savez_compressed(HERE / "recorded.npz", **recorded)
