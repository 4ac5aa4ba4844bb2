"""The page docs/reference/pytorch-networks.md, with a row for each network that trains as in PyTorch."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from comparison import STEPS, Comparison
from networks import CASES, Case

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/pytorch-networks.md"
OPTION = "--write-network-table"
COMMAND = "make torch-table"
_HEAD = f"""<!-- Written by `{COMMAND}`. Do not edit. -->
# Networks of PyTorch

ortrain trains the networks of this page as PyTorch does. `ortrain.torch.export` exports each network with fresh random
weights; then ortrain and PyTorch {{torch}} train it for {STEPS} steps. Networks named after a model of transformers
({{transformers}}) are small random configurations. Batch normalization is in training mode. The loss is the mean squared
error of the first output, and the optimizer is plain gradient descent. The learning rate is 0.05. It is smaller for networks
whose losses in PyTorch's float32 and float64 differ too much at that rate.

The gradients of the first step and the losses of {STEPS} steps are compared with those of a float64 copy of the network in
PyTorch. The columns show the largest difference, relative to the largest value; the number in brackets is the difference of
PyTorch in float32. The trained parameters have the names of `state_dict`; they are the parameters that have a gradient in
PyTorch. `make test-torch` tests all networks of this page: a difference may be at most four times that of PyTorch in float32,
or 1e-6 for losses and 1e-5 for gradients.

| network | exporter | trained parameters | tied | gradients | rate | losses of {STEPS} steps | loss, first and last |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def head() -> str:
    """Return the text above the rows."""
    return _HEAD.format(
        torch=torch.__version__.partition("+")[0],
        transformers=transformers.__version__,
    )


def rows(page: str) -> dict[str, str]:
    """Return the rows of a page by network; none if other versions of PyTorch or transformers wrote the page."""
    if not page.startswith(head()):
        return {}
    lines = page.removeprefix(head()).splitlines(keepends=True)
    return {line.split("|")[1].strip(): line for line in lines}


def write_row(name: str, case: Case, found: Comparison | None) -> None:
    """Write the row of a network into the page, or remove the row if there is no comparison."""
    known = rows(PAGE.read_text("utf-8"))
    known.pop(name, None)
    if found is not None:
        known[name] = _row(name, case, found)
    PAGE.write_text(head() + "".join(known[n] for n in CASES if n in known), "utf-8")


def _row(name: str, case: Case, found: Comparison) -> str:
    gradient = max(found.gradients.values())
    of_torch = max(found.gradients_of_torch.values())
    first, last = found.first_and_last
    count = f"{len(found.artifacts.trained)} of {len(found.trained_by_torch)}"
    return (
        f"| {name} | {found.report.exporter} | {count} | {len(found.report.aliases)} | {gradient:.0e} ({of_torch:.0e}) "
        f"| {case.rate:g} | {found.losses:.0e} ({found.losses_of_torch:.0e}) | {first:.4f}, {last:.4f} |\n"
    )
