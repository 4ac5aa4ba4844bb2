"""Records the learning rates of PyTorch's schedulers, and those of Hugging Face for what PyTorch does not have.

Run it with an interpreter that has torch and transformers; it writes recorded.json beside itself. A case has a schedule, its
settings as the library names them, the rate before the first step and after each, and the values that are reported between steps.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch.optim import lr_scheduler as schedulers

STEPS, RATE = 40, 0.5
cases: list[dict[str, Any]] = []


def record(
    schedule: str, settings: str, make: Callable[[Any], Any], values: list[float] | None = None
) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=RATE)
    scheduler = make(optimizer)
    rates = []
    for step in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step(*([] if values is None else [values[step]]))
    cases.append({"schedule": schedule, "settings": settings, "rates": rates, "values": values})


def warmed(after: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return PyTorch's own chain of a warmup of 5 steps and another schedule."""

    def make(optimizer: Any) -> Any:
        warmup = schedulers.LinearLR(optimizer, start_factor=0.2, end_factor=1, total_iters=5)
        return schedulers.SequentialLR(optimizer, [warmup, after(optimizer)], milestones=[5])

    return make


record("constant", "", lambda o: schedulers.ConstantLR(o, factor=1))
record("linear", "total_steps=30,end_factor=0.25", lambda o: schedulers.LinearLR(o, 1, 0.25, 30))
record(
    "linear",
    "total_steps=30,warmup_steps=6",
    lambda o: transformers.get_linear_schedule_with_warmup(o, 6, 30),
)
record("cosine", "total_steps=40,min_factor=0.1", lambda o: schedulers.CosineAnnealingLR(o, 40, eta_min=0.05))
record(
    "cosine",
    "total_steps=40,warmup_steps=5,warmup_factor=0.2",
    warmed(lambda o: schedulers.CosineAnnealingLR(o, 35)),
)
record("cosine_restarts", "cycle_steps=7", lambda o: schedulers.CosineAnnealingWarmRestarts(o, 7))
record(
    "cosine_restarts",
    "cycle_steps=5,cycle_growth=2,min_factor=0.02",
    lambda o: schedulers.CosineAnnealingWarmRestarts(o, 5, T_mult=2, eta_min=0.01),
)
record("polynomial", "total_steps=30,power=2", lambda o: schedulers.PolynomialLR(o, 30, power=2))
record("step", "step_size=7,gamma=0.5", lambda o: schedulers.StepLR(o, 7, gamma=0.5))
record(
    "step",
    "step_size=4,warmup_steps=5,warmup_factor=0.2",
    warmed(lambda o: schedulers.StepLR(o, 4)),
)
record("multi_step", "milestones=3:11:12,gamma=0.3", lambda o: schedulers.MultiStepLR(o, [3, 11, 12], 0.3))
record("exponential", "gamma=0.93", lambda o: schedulers.ExponentialLR(o, 0.93))
record("one_cycle", "total_steps=40", lambda o: schedulers.OneCycleLR(o, RATE, 40, cycle_momentum=False))
record(
    "one_cycle",
    "total_steps=40,rise=0.4,start_divisor=10,end_divisor=100",
    lambda o: schedulers.OneCycleLR(
        o, RATE, 40, pct_start=0.4, div_factor=10, final_div_factor=100, cycle_momentum=False
    ),
)
record(
    "inverse_sqrt", "warmup_steps=6", lambda o: transformers.get_inverse_sqrt_schedule(o, num_warmup_steps=6)
)
random = torch.Generator().manual_seed(31)
losses = [float(x) for x in (1 / (1 + torch.arange(STEPS)) + 0.3 * torch.rand(STEPS, generator=random))]
losses = [float(torch.tensor(loss)) for loss in losses]
record(
    "on_plateau",
    "gamma=0.5,patience=2,cooldown=1,min_factor=0.1",
    lambda o: schedulers.ReduceLROnPlateau(o, factor=0.5, patience=2, cooldown=1, min_lr=0.05),
    losses,
)
record(
    "on_plateau",
    "gamma=0.7,patience=1,threshold=0.05,absolute=1,maximize=1",
    lambda o: schedulers.ReduceLROnPlateau(
        o, mode="max", factor=0.7, patience=1, threshold=0.05, threshold_mode="abs"
    ),
    losses,
)

pathlib.Path(__file__).with_name("recorded.json").write_text(
    json.dumps({"rate": RATE, "cases": cases}, indent=1) + "\n"
)
