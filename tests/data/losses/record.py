"""Records values and gradients of losses as PyTorch computes them; formulas that it does not have are written with its operators.

Run it with an interpreter that has torch; it writes recorded.npz and cases.json beside itself, in double precision. Each case has
outputs of a model (`<case>/output<i>`), inputs of the loss by name, its value, and the gradients of the outputs.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

Array = NDArray[Any]
HERE = pathlib.Path(__file__).parent
random = np.random.default_rng(17)
arrays: dict[str, Array] = {}
cases: list[dict[str, Any]] = []


def record(
    loss: str,
    outputs: list[Array],
    inputs: dict[str, Array],
    function: Callable[..., torch.Tensor],
    **settings: Any,
) -> None:
    """Record `function(*outputs, **inputs)`; `settings` are those of the block of the loss."""
    case = str(len(cases))
    given = [torch.tensor(output, requires_grad=True) for output in outputs]
    value = function(*given, **{name: torch.tensor(array) for name, array in inputs.items()})
    value.backward()
    for i, output in enumerate(given):
        arrays[f"{case}/output{i}"] = output.detach().numpy()
        arrays[f"{case}/gradient{i}"] = output.grad.numpy()
    for name, array in inputs.items():
        arrays[f"{case}/input/{name}"] = array
    arrays[f"{case}/value"] = value.detach().numpy()
    cases.append({"loss": loss, "settings": settings, "outputs": len(outputs), "inputs": list(inputs)})


x = random.normal(size=(5, 4)) * 2
t = random.normal(size=(5, 4))
weights = random.uniform(0.1, 2, size=5)
binary = random.integers(0, 2, size=(5, 4)).astype(np.float64)
probabilities = random.dirichlet(np.ones(4), size=5)
images, regions = (
    random.normal(size=(3, 1, 4, 4)),
    random.integers(0, 2, size=(3, 1, 4, 4)).astype(np.float64),
)

for reduction in ("mean", "sum"):
    record("huber", [x], {"target": t}, lambda x, target, r=reduction: F.huber_loss(x, target, reduction=r, delta=0.7),
           reduction=reduction, delta=0.7)  # fmt: skip
record("smooth_l1", [x], {"target": t}, lambda x, target: F.smooth_l1_loss(x, target, beta=0.5), beta=0.5)
record("mse", [x], {"target": t}, F.mse_loss)
record("l1", [x], {"target": t}, F.l1_loss)
record("huber", [x], {"target": t, "weights": weights},
       lambda x, target, weights: (F.huber_loss(x, target, reduction="none") * weights[:, None]).mean(),
       sample_weights="weights")  # fmt: skip
record("log_cosh", [x], {"target": t}, lambda x, target: torch.log(torch.cosh(x - target)).mean())
record("quantile", [x], {"target": t},
       lambda x, target: torch.where(target > x, 0.8 * (target - x), 0.2 * (x - target)).mean(), quantile=0.8)  # fmt: skip
record("poisson_nll", [x], {"target": binary * 3}, F.poisson_nll_loss)
record("poisson_nll", [np.abs(x)], {"target": binary * 3},
       lambda x, target: F.poisson_nll_loss(x, target, log_input=False), log_input=False)  # fmt: skip
record(
    "gaussian_nll",
    [x, np.abs(t) + 0.1],
    {"target": t},
    lambda x, v, target: F.gaussian_nll_loss(x, target, v),
)
record("kl_div", [np.log(probabilities[::-1])], {"target": probabilities}, F.kl_div)
record("kl_div", [np.log(probabilities[::-1])], {"target": probabilities},
       lambda x, target: F.kl_div(x, target, reduction="batchmean"), reduction="batchmean")  # fmt: skip
record("kl_div", [np.log(probabilities[::-1])], {"target": np.log(probabilities)},
       lambda x, target: F.kl_div(x, target, log_target=True), log_target=True)  # fmt: skip
record("distillation", [x], {"target": t},
       lambda x, target: 9 * F.kl_div(F.log_softmax(x / 3, -1), F.softmax(target / 3, -1), reduction="batchmean"),
       temperature=3.0)  # fmt: skip
record("soft_cross_entropy", [x], {"target": probabilities}, F.cross_entropy)
record("bce_with_logits", [x], {"target": binary}, F.binary_cross_entropy_with_logits)
record("hinge", [x], {"target": 2 * binary - 1}, lambda x, target: torch.clamp(1 - target * x, min=0).mean())


def focal(x: torch.Tensor, target: torch.Tensor, alpha: float, gamma: float) -> torch.Tensor:
    # torchvision.ops.sigmoid_focal_loss
    p = torch.sigmoid(x)
    right = p * target + (1 - p) * (1 - target)
    loss = F.binary_cross_entropy_with_logits(x, target, reduction="none") * (1 - right) ** gamma
    return (loss * (alpha * target + (1 - alpha) * (1 - target)) if alpha >= 0 else loss).mean()


record("focal", [x], {"target": binary}, lambda x, target: focal(x, target, 0.25, 2))
record(
    "focal", [x * 30], {"target": binary}, lambda x, target: focal(x, target, -1, 1.5), alpha=-1, gamma=1.5
)


def tversky(x: torch.Tensor, target: torch.Tensor, alpha: float, beta: float, smooth: float) -> torch.Tensor:
    p, target = torch.sigmoid(x).flatten(1), target.flatten(1)
    true, false, missed = (p * target).sum(1), (p * (1 - target)).sum(1), ((1 - p) * target).sum(1)
    return (1 - (true + smooth) / (true + alpha * false + beta * missed + smooth)).mean()


def dice(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    p, target = torch.sigmoid(x).flatten(1), target.flatten(1)
    return (1 - (2 * (p * target).sum(1) + 1) / (p.sum(1) + target.sum(1) + 1)).mean()


record(
    "tversky",
    [images],
    {"target": regions},
    lambda x, target: tversky(x, target, 0.3, 0.7, 1),
    alpha=0.3,
    beta=0.7,
)
record("dice", [images], {"target": regions}, dice)
record("jaccard", [images], {"target": regions}, lambda x, target: tversky(x, target, 1, 1, 1))

signs, pairs = np.array([1.0, -1, -1, 1, -1]), np.array([1.0, 0, 0, 1, 0])
record("cosine_embedding", [x, t], {"target": signs},
       lambda a, b, target: F.cosine_embedding_loss(a, b, target, margin=-0.2), margin=-0.2)  # fmt: skip


def contrastive(a: torch.Tensor, b: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    d = F.pairwise_distance(a, b)
    return (target * d**2 + (1 - target) * torch.clamp(5 - d, min=0) ** 2).mean() / 2


record("contrastive", [x, t], {"target": pairs}, contrastive, margin=5.0)
record(
    "triplet", [x, t, x[::-1].copy()], {}, lambda a, p, n: F.triplet_margin_loss(a, p, n, margin=2), margin=2
)


def info_nce(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    scores = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T / 0.2
    return F.cross_entropy(scores, torch.arange(len(scores)))


record("info_nce", [x, t], {}, info_nce, temperature=0.2)


def supervised_contrastive(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    # Khosla et al., equation 2; a row without another one of its label has no loss.
    scores = F.normalize(x, dim=1) @ F.normalize(x, dim=1).T / 0.2
    eye = torch.eye(len(scores), dtype=torch.bool)
    log_p = scores - torch.logsumexp(scores.masked_fill(eye, -torch.inf), 1, keepdim=True)
    right = (labels[:, None] == labels) & ~eye
    return -(torch.where(right, log_p, 0).sum(1) / right.sum(1).clamp(min=1)).mean()


record("supcon", [x], {"labels": np.array([0, 1, 0, 0, 2])}, supervised_contrastive, temperature=0.2)
sequences = random.normal(size=(9, 5, 4)) * 2
# An empty target, one that repeats a label, one as long as its sequence allows; behind the ends of targets is any class.
spelled = np.array([[1, 2, 3], [2, 2, 0], [3, 0, 0], [1, 0, 3], [3, 1, 2]])
lengths = {"input_lengths": np.array([9, 7, 4, 9, 3]), "target_lengths": np.array([3, 2, 1, 0, 3])}


def ctc(reduction: str, blank: int = 0, **settings: bool) -> Callable[..., torch.Tensor]:
    return lambda x, target, input_lengths, target_lengths: F.ctc_loss(
        F.log_softmax(x, -1), target, input_lengths, target_lengths, blank, reduction, **settings
    )


for reduction in ("mean", "sum"):
    record("ctc", [sequences], {"target": spelled, **lengths}, ctc(reduction), reduction=reduction)
record("ctc", [sequences], {"target": spelled % 3, **lengths}, ctc("mean", 3), blank=3)
short = {"input_lengths": np.array([9, 7, 4, 9, 2]), "target_lengths": lengths["target_lengths"]}
record("ctc", [sequences], {"target": spelled, **short}, ctc("mean", zero_infinity=True), zero_infinity=True)
record("ctc", [sequences.transpose(1, 0, 2).copy()], {"target": spelled, **lengths},
       lambda x, **given: ctc("mean")(x.transpose(0, 1), **given), batch_first=True)  # fmt: skip
classes = np.array([0, 3, 2, 2, 1])
record("cross_entropy", [x], {"labels": classes}, lambda x, labels: F.cross_entropy(x, labels))
record("cross_entropy", [x], {"labels": classes},
       lambda x, labels: F.cross_entropy(x, labels, label_smoothing=0.1), label_smoothing=0.1)  # fmt: skip
record("cross_entropy", [x], {"labels": classes},
       lambda x, labels: F.cross_entropy(x, labels, torch.tensor([0.5, 1, 2, 3.0], dtype=torch.float64),
                                         ignore_index=2, label_smoothing=0.2),
       weight=[0.5, 1, 2, 3.0], ignore_index=2, label_smoothing=0.2)  # fmt: skip
record("cross_entropy", [np.moveaxis(images.reshape(3, 4, 4), 1, 1)], {"labels": random.integers(0, 4, (3, 4))},
       lambda x, labels: F.cross_entropy(x, labels, label_smoothing=0.1, reduction="sum"),
       label_smoothing=0.1, reduction="sum")  # fmt: skip
tokens = random.integers(0, 4, (3, 4))
tokens[0, 2:] = tokens[2, 0] = -100
record("token_cross_entropy", [images.reshape(3, 4, 4)], {"labels": tokens},
       lambda x, labels: F.cross_entropy(x.flatten(0, 1), labels.flatten(), ignore_index=-100))  # fmt: skip
record("token_cross_entropy", [images.reshape(3, 4, 4)], {"labels": tokens},
       lambda x, labels: F.cross_entropy(x.flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=0.1),
       label_smoothing=0.1)  # fmt: skip

(HERE / "cases.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
np.savez_compressed(HERE / "recorded.npz", **arrays)
print(f"{len(cases)} cases, PyTorch {torch.__version__}")
