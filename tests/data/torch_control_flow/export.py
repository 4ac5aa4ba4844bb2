"""Exports models with masks and control flow from PyTorch 2.13, with the losses and gradients that it computes.

Run in an environment that has torch, onnx and onnxscript; neither ortrain nor its tests need them::

    python tests/data/torch_control_flow/export.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

FOLDER = Path(__file__).parent


class Masked(nn.Module):
    """The error at the rows that a boolean mask chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        return ((self.b(torch.tanh(self.a(x)))[mask] - target[mask]) ** 2).mean()


class Chosen(nn.Module):
    """Rows chosen by index, then elements by value."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        rows = torch.nonzero(mask).squeeze(1)
        z = self.b(torch.relu(self.a(x)).index_select(0, rows)).reshape(-1)
        z = z[z > 0]
        return (z * z).sum() / (1 + rows.to(x.dtype).sum()) + (target * target).mean()


class Branches(nn.Module):
    """One of two layers, by the sum of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        z = torch.cond(x.sum() > 0, lambda h: self.b(h), lambda h: torch.sin(self.c(h)), (h,))
        return ((z - target) ** 2).mean()


class Recurrent(nn.Module):
    """A recurrent layer by the scan of higher order."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Parameter(torch.randn(6, 3) * 0.4), nn.Parameter(torch.randn(3, 3) * 0.4)

    def forward(self, x: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        def step(state: Tensor, x_t: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(x_t @ self.w + state @ self.u)
            return h, h * h

        last, squares = scan(step, torch.zeros(3), x)
        return ((squares - target) ** 2).mean() + last.sum()


@torch.jit.script
def refine(x: Tensor, w: Tensor, times: int) -> Tensor:
    for _ in range(times):
        if bool(x.sum() > 0):  # noqa: SIM108 - becomes an If
            x = torch.tanh(x @ w)
        else:
            x = torch.sin(x) + w.sum()
    return x


class Scripted(nn.Module):
    """A scripted loop with a condition inside."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(6, 6) * 0.4), nn.Linear(6, 3)

    def forward(self, x: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        return ((self.b(refine(x, self.w, 5)) - target) ** 2).mean()


def strip(node_or_graph: onnx.GraphProto) -> None:
    """Drop what the exporter writes of the source it came from."""
    node_or_graph.doc_string = ""
    del node_or_graph.metadata_props[:]
    for value in [*node_or_graph.input, *node_or_graph.output, *node_or_graph.value_info]:
        del value.metadata_props[:]
    for node in node_or_graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                strip(attribute.g)


def main() -> None:
    torch.manual_seed(0)
    batches = []
    for rows in (5, 7):
        mask = torch.rand(rows) > 0.4
        batches.append((torch.randn(rows, 6), mask, torch.randn(rows, 3)))
    batch = torch.export.Dim("batch")
    for name, module, dynamo in [
        ("masked", Masked(), True),
        ("masked_by_tracing", Masked(), False),
        ("chosen", Chosen(), False),
        ("branches", Branches(), True),
        ("recurrent", Recurrent(), True),
        ("scripted", Scripted(), False),
    ]:
        path = FOLDER / f"{name}.onnx"
        names = {"input_names": ["x", "mask", "target"], "output_names": ["loss"]}
        if dynamo:
            torch.onnx.export(
                module, batches[0], path, opset_version=18, dynamo=True, external_data=False, optimize=False,
                dynamic_shapes=({0: batch},) * 3, **names,
            )  # fmt: skip
        else:
            torch.onnx.export(
                module, batches[0], path, opset_version=17, dynamo=False, do_constant_folding=False,
                training=torch.onnx.TrainingMode.TRAINING, dynamic_axes={key: [0] for key in names["input_names"]},
                **names,
            )  # fmt: skip
        model = onnx.load(path)
        strip(model.graph)
        del model.metadata_props[:]
        onnx.save(model, path)
        recorded = {}
        for k, (x, mask, target) in enumerate(batches):
            module.zero_grad()
            loss = module(x, mask, target)
            loss.backward()
            recorded |= {f"x{k}": x, f"mask{k}": mask, f"target{k}": target, f"loss{k}": loss.detach()}
            for parameter, value in module.named_parameters():
                gradient = value.grad if value.grad is not None else torch.zeros_like(value)
                recorded[f"{parameter}_grad{k}"] = gradient.clone()
        np.savez_compressed(FOLDER / f"{name}.npz", **{key: value.numpy() for key, value in recorded.items()})


if __name__ == "__main__":
    main()
