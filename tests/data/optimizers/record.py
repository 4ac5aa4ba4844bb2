"""Records what PyTorch's optimizers compute in 50 steps, and what the authors' formulas give for those that it does not have.

Run it with an interpreter that has torch; it writes recorded.npz and cases.json beside itself. Gradients are the same in all
cases: `gradients/weight` and `gradients/bias`, one for each step. Everything is in double precision, with settings that are
rounded to float, as optimizer models have them.
"""

from __future__ import annotations

import inspect
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
HERE = pathlib.Path(__file__).parent
STEPS, SHOWN = 50, (1, 2, 7, 50)
SHAPES = {"weight": (4, 3), "bias": (3,)}
torch.set_default_dtype(torch.float64)  # that of NAdam's product of momentums
random = np.random.default_rng(31)
START = {name: random.normal(size=shape) for name, shape in SHAPES.items()}
GRADIENTS = {
    name: random.normal(size=(STEPS, *shape)) * np.exp(random.normal(size=(STEPS,) + (1,) * len(shape)))
    for name, shape in SHAPES.items()
}
GRADIENTS["weight"][:, 0, 0] = 0  # a weight that no gradient reaches
GRADIENTS["bias"][20:] *= 1e-3

arrays: dict[str, Array] = {f"start/{name}": value for name, value in START.items()}
arrays |= {f"gradients/{name}": value for name, value in GRADIENTS.items()}
cases: list[dict[str, Any]] = []


def rounded(value: Any) -> Any:
    """Return a setting as a float of 32 bits has it."""
    if isinstance(value, tuple):
        return tuple(rounded(part) for part in value)
    return float(np.float32(value)) if isinstance(value, float) else value


def add(optimizer: str, rate: float, settings: dict[str, Any], shown: dict[str, list[Array]]) -> None:
    for name, values in shown.items():
        arrays[f"{len(cases)}/{name}"] = np.stack(values)
    cases.append({"optimizer": optimizer, "rate": rate, "settings": settings})


def record(
    optimizer: str, make: Callable[..., Any], rate: float, settings: dict[str, Any], **torch_settings: Any
) -> None:
    """Record an optimizer of PyTorch; `settings` are ours, where they have other names."""
    parameters = {name: torch.tensor(value, requires_grad=True) for name, value in START.items()}
    defaults = make(list(parameters.values()), lr=rate, **torch_settings).defaults
    known = inspect.signature(make).parameters
    exact = {key: rounded(value) for key, value in defaults.items() if key in known}
    stepper = make(list(parameters.values()), **exact)
    shown: dict[str, list[Array]] = {name: [] for name in SHAPES}
    for step in range(STEPS):
        for name, parameter in parameters.items():
            parameter.grad = torch.tensor(GRADIENTS[name][step])
        stepper.step()
        if step + 1 in SHOWN:
            for name, parameter in parameters.items():
                shown[name].append(parameter.detach().numpy().copy())
    add(optimizer, rate, settings, shown)


def compute(
    optimizer: str,
    step_of: Callable[[Array, Array, dict[str, Array], int, float], Array],
    rate: float,
    settings: dict[str, Any],
) -> None:
    """Record a formula: `step_of(weights, gradient, state, t, rate)` returns the new weights."""
    shown: dict[str, list[Array]] = {}
    for name, start in START.items():
        weights, state, values = start.copy(), {}, []
        for t in range(1, STEPS + 1):
            weights = step_of(weights, GRADIENTS[name][t - 1], state, t, rounded(rate))
            if t in SHOWN:
                values.append(weights.copy())
        shown[name] = values
    add(optimizer, rate, settings, shown)


def average(state: dict[str, Array], name: str, value: Array, kept: float) -> Array:
    state[name] = kept * state.get(name, np.zeros_like(value)) + (1 - kept) * value
    return state[name]


optim = torch.optim
same: list[tuple[str, Any, float, dict[str, Any]]] = [
    ("sgd", optim.SGD, 0.1, {}),
    ("sgd", optim.SGD, 0.1, {"weight_decay": 0.1}),
    ("sgd", optim.SGD, 0.1, {"momentum": 0.9}),
    ("sgd", optim.SGD, 0.1, {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.05}),
    ("sgd", optim.SGD, 0.1, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05}),
    ("adamw_torch", optim.AdamW, 0.01, {}),
    ("adamw_torch", optim.AdamW, 0.01, {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    ("adam", optim.Adam, 0.01, {}),
    ("adam", optim.Adam, 0.01, {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    ("nadam", optim.NAdam, 0.01, {}),
    ("nadam", optim.NAdam, 0.01, {"weight_decay": 0.1, "momentum_decay": 0.1}),
    ("nadam", optim.NAdam, 0.01, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("radam", optim.RAdam, 0.01, {"betas": (0.9, 0.95)}),
    ("radam", optim.RAdam, 0.01, {"weight_decay": 0.1}),
    ("radam", optim.RAdam, 0.01, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("adamax", optim.Adamax, 0.01, {}),
    ("adamax", optim.Adamax, 0.01, {"betas": (0.8, 0.95), "weight_decay": 0.1}),
    ("adadelta", optim.Adadelta, 1.0, {}),
    ("adadelta", optim.Adadelta, 0.5, {"rho": 0.8, "weight_decay": 0.1}),
]
for name, make, rate, settings in same:
    record(name, make, rate, settings, **settings)
record("amsgrad", optim.Adam, 0.01, {"betas": (0.8, 0.9)}, amsgrad=True, betas=(0.8, 0.9))
record("amsgrad", optim.Adam, 0.01, {"weight_decay": 0.1}, amsgrad=True, weight_decay=0.1)
record("adagrad", optim.Adagrad, 0.1, {})
record(
    "adagrad", optim.Adagrad, 0.1, {"rate_decay": 0.1, "initial_sum": 0.5, "weight_decay": 0.1, "eps": 1e-3},
    lr_decay=0.1, initial_accumulator_value=0.5, weight_decay=0.1, eps=1e-3,
)  # fmt: skip
record("rmsprop", optim.RMSprop, 0.01, {})
record("rmsprop", optim.RMSprop, 0.01, {"rho": 0.9, "momentum": 0.8, "weight_decay": 0.1},
       alpha=0.9, momentum=0.8, weight_decay=0.1)  # fmt: skip
record("rmsprop", optim.RMSprop, 0.01, {"centered": True, "eps": 1e-4}, centered=True, eps=1e-4)
record("rmsprop", optim.RMSprop, 0.01, {"centered": True, "momentum": 0.9}, centered=True, momentum=0.9)


class MuonAndAdamW:
    """PyTorch's Muon for matrices, in double precision throughout, and its AdamW for the rest, as Jordan's package has them."""

    def __init__(
        self,
        parameters: list[torch.Tensor],
        lr: float,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        matrices: bool = True,
    ) -> None:
        given = dict(locals())
        self.defaults = {
            name: given[name] for name in inspect.signature(MuonAndAdamW).parameters if name != "parameters"
        }
        torch.Tensor.bfloat16 = torch.Tensor.clone  # type: ignore[method-assign]
        of_muon = [p for p in parameters if p.ndim == 2 and matrices]
        rest = [p for p in parameters if p.ndim != 2 or not matrices]
        self._steppers: list[Any] = [torch.optim.AdamW(rest, lr, betas, eps, weight_decay)]
        if of_muon:
            self._steppers.append(
                torch.optim.Muon(
                    of_muon,
                    lr,
                    weight_decay,
                    momentum,
                    nesterov,
                    ns_steps=ns_steps,
                    adjust_lr_fn=adjust_lr_fn,
                )
            )

    def step(self) -> None:
        for stepper in self._steppers:
            stepper.step()


record("muon", MuonAndAdamW, 0.01, {})
record("muon", MuonAndAdamW, 0.01, {"momentum": 0.8, "nesterov": False, "steps": 3, "match_rms": False, "weight_decay": 0.0},
       momentum=0.8, nesterov=False, ns_steps=3, adjust_lr_fn="original", weight_decay=0.0)  # fmt: skip
record(
    "muon",
    MuonAndAdamW,
    0.01,
    {"matrices": False, "betas": (0.8, 0.9), "eps": 1e-4},
    matrices=False,
    betas=(0.8, 0.9),
    eps=1e-4,
)
record("adafactor", optim.Adafactor, 0.05, {})
record("adafactor", optim.Adafactor, 0.05,
       {"beta2_decay": -0.5, "epsilon": 1e-3, "least_rms": 1e-2, "limit": 1.25, "weight_decay": 0.1},
       beta2_decay=-0.5, eps=(1e-3, 1e-2), d=1.25, weight_decay=0.1)  # fmt: skip
# Parameters of fewer than 4096 elements have moments of full precision.
record(
    "adamw_8bit",
    optim.AdamW,
    0.01,
    {"betas": (0.8, 0.95), "weight_decay": 0.1},
    betas=(0.8, 0.95),
    weight_decay=0.1,
)


B1, B2, B2_OF_LION, B3, DECAY = (rounded(value) for value in (0.9, 0.999, 0.99, 0.9999, 0.1))


def lion(w: Array, g: Array, state: dict[str, Array], t: int, rate: float) -> Array:
    # Chen et al., algorithm 2.
    m = state.get("m", np.zeros_like(w))
    update = np.sign(B1 * m + (1 - B1) * g)
    state["m"] = B2_OF_LION * m + (1 - B2_OF_LION) * g
    return w - rate * (update + DECAY * w)


def lamb(w: Array, g: Array, state: dict[str, Array], t: int, rate: float) -> Array:
    # You et al., algorithm 2, with phi the identity.
    m = average(state, "m", g, B1) / (1 - B1**t)
    v = average(state, "v", g * g, B2) / (1 - B2**t)
    r = m / (np.sqrt(v) + rounded(1e-6)) + DECAY * w
    return w - rate * np.linalg.norm(w) / np.linalg.norm(r) * r


def ademamix(w: Array, g: Array, state: dict[str, Array], t: int, rate: float) -> Array:
    # Pagliardini et al., algorithm 1, with alpha 5 and a warmup of 20 steps.
    alpha, kept, part = 5.0, B3, t / 20
    if part < 1:
        alpha *= part
        logs = math.log(B1), math.log(B3)
        kept = min(math.exp(logs[0] * logs[1] / ((1 - part) * logs[1] + part * logs[0])), B3)
    m = average(state, "m", g, B1) / (1 - B1**t)
    v = average(state, "v", g * g, B2) / (1 - B2**t)
    slow = average(state, "slow", g, kept)
    return w - rate * ((m + alpha * slow) / (np.sqrt(v) + rounded(1e-8)) + DECAY * w)


def schedule_free(adaptive: bool, warmup: int, power_of_step: float) -> Callable[..., Array]:
    # AdamWScheduleFree and SGDScheduleFree of the authors' package, whose weights in training are y.
    def step_of(y: Array, g: Array, state: dict[str, Array], t: int, rate: float) -> Array:
        z = state.get("z", y)
        lr = rate * (t / warmup if t < warmup else 1.0)
        largest = state["largest"] = np.maximum(state.get("largest", np.zeros(())), lr)
        weight = t**power_of_step * largest**2
        state["sum"] = state.get("sum", np.zeros(())) + weight
        share = weight / state["sum"]
        if adaptive:
            g = g / (np.sqrt(average(state, "v", g * g, B2) / (1 - B2**t)) + rounded(1e-8))
        g = g + DECAY * y
        state["z"] = z - lr * g
        return (1 - share) * y + share * z + lr * (B1 * (1 - share) - 1) * g

    return step_of


compute("schedule_free_adamw", schedule_free(True, 0, 0), 1e-2, {"weight_decay": 0.1})
compute(
    "schedule_free_adamw",
    schedule_free(True, 10, 1),
    1e-2,
    {"weight_decay": 0.1, "warmup_steps": 10, "step_power": 1},
)
compute("schedule_free_sgd", schedule_free(False, 0, 0), 1e-1, {"weight_decay": 0.1})
compute(
    "schedule_free_sgd",
    schedule_free(False, 10, 1),
    1e-1,
    {"weight_decay": 0.1, "warmup_steps": 10, "step_power": 1},
)
compute("lion", lion, 1e-2, {"weight_decay": 0.1})
compute("lamb", lamb, 1e-2, {"weight_decay": 0.1})
compute("ademamix", ademamix, 1e-2, {"weight_decay": 0.1, "warmup_steps": 20})

(HERE / "cases.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
np.savez_compressed(HERE / "recorded.npz", **arrays)  # type: ignore[arg-type]
print(f"{len(cases)} cases, PyTorch {torch.__version__}")
