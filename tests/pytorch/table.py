"""Write the page docs/reference/pytorch-networks.md, with a row for each network that ortrain trains like PyTorch."""

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

Each row is a network with random initial weights. `ortrain.torch.export` exports the network, and ortrain and PyTorch
{{torch}} train it. Networks named after a model of transformers ({{transformers}}) are small configurations of that model.
Batch normalization is in training mode. The loss is the mean squared error of the first output, and the optimizer is plain
gradient descent. The learning rate is 0.05; it is smaller for networks that PyTorch trains to different losses in float32 and
in float64 at 0.05.

A float64 copy of the network in PyTorch is the reference for the gradients of the first step and the losses of {STEPS} steps.
The columns `gradients` and `losses` show ortrain's largest deviation from the reference, divided by the largest value; the
number in parentheses is the deviation of PyTorch in float32. For losses, PyTorch trains several copies whose initial weights
differ in the last bits, and the number in parentheses is the largest deviation of these runs. ortrain trains the parameters
that have a gradient in PyTorch, under their names in `state_dict`: `41 of 41` means that ortrain trains 41 of the 41
parameters that PyTorch trains. The column `tied` counts the further names of shared weights. `make test-torch` fails if, for
any network of this page, ortrain's deviation is more than four times PyTorch's and above 1e-5 for a gradient or above 1e-6
for a loss.

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
