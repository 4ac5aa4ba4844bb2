"""Training with PyTorch, eager, eager with channels last, or compiled, from the weights of the exported ONNX model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # AdamW and torch.compile import it at first use; it is part of the baseline of memory
import torch._inductor.config
import torch.nn.functional as F

from benchmarks.cases import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY, Case, model_files
from benchmarks.contestants import Step
from benchmarks.models import build


class TorchTrainer:
    """Trains with PyTorch's fused AdamW.

    `way` is "eager", "channels-last" for weights and images in that order, or "compiled" for a forward and backward
    pass through `torch.compile`.
    """

    def __init__(self, way: str) -> None:
        self.version = f"torch {torch.__version__}"
        self.compiled = way == "compiled"
        self.order = torch.channels_last if way == "channels-last" else torch.contiguous_format

    def make_artifacts(self, case: Case, cache: Path) -> None:
        """Do nothing: PyTorch trains from Python code."""

    def prepare(self, case: Case, cache: Path, threads: int) -> Step:
        torch.set_num_threads(threads)
        model = build(case.model).train()
        with np.load(model_files(cache, case).weights) as weights:
            missing, unexpected = model.load_state_dict(
                {name: torch.from_numpy(weights[name]) for name in weights.files}, strict=False
            )
        missing = [name for name in missing if not name.endswith("num_batches_tracked")]
        if missing or unexpected:
            raise RuntimeError(f"weights of {case.model}: missing {missing}, unexpected {unexpected}")
        model = model.to(memory_format=self.order)
        optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad],
            LEARNING_RATE,
            BETAS,
            EPSILON,
            WEIGHT_DECAY,
            fused=True,
        )

        if self.compiled and any(isinstance(part, torch.nn.MaxPool2d) for part in model.modules()):
            # With its layout optimization, torch 2.13 compiles a wrong gradient of max pooling: all zeros.
            torch._inductor.config.layout_optimization = False

        def loss_of(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(model(x), labels)

        forward = torch.compile(loss_of) if self.compiled else loss_of

        (group,) = optimizer.param_groups
        steps = 0

        def step(x: Any, labels: Any) -> float:
            nonlocal steps
            steps += 1
            # The on-device optimizer (AdamWOptimizer, adam_mode 1) adds epsilon before it corrects the bias
            # of the second moment, PyTorch after; this epsilon makes the two formulas equal.
            group["eps"] = EPSILON / math.sqrt(1 - BETAS[1] ** steps)
            inputs = torch.from_numpy(x)
            if inputs.dim() == 4:
                inputs = inputs.contiguous(memory_format=self.order)
            loss = forward(inputs, torch.from_numpy(labels))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return float(loss.detach())

        return step
