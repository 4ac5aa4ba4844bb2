"""The page docs/reference/pytorch-networks.md, of which every network that trains as in PyTorch is a row."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from comparison import STEPS, Comparison
from networks import CASES, Case

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/pytorch-networks.md"
OPTION = "--write-network-table"
COMMAND = "make torch-table"
_HEAD = f"""<!-- Made by `{COMMAND}`. Do not edit. -->
# Networks of PyTorch

Freshly initialized networks, exported by `ortrain.torch.export`, trained here and by PyTorch {{torch}}. Those with a name of
transformers ({{transformers}}) are small random configurations. Batch normalization is in training mode. The loss is the mean
squared error of the first output. The optimizer is plain gradient descent. Its rate is smaller for networks that PyTorch in
float32 and PyTorch in float64 train to different losses at the common rate.

The gradients of the first step and the losses of {STEPS} steps are compared with a float64 copy of the network in PyTorch. The
columns have the largest difference, relative to the largest value, and in brackets that of PyTorch in float32. The parameters
that are trained have the names of `state_dict`, and are those that have a gradient in PyTorch. `make test-torch` requires
all networks of this page to be as close to the float64 copy as PyTorch in float32 is, within a factor of four.

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
    """Return the rows of a page by network; none if these versions did not write it."""
    if not page.startswith(head()):
        return {}
    lines = page.removeprefix(head()).splitlines(keepends=True)
    return {line.split("|")[1].strip(): line for line in lines}


def write_row(name: str, case: Case, found: Comparison | None) -> None:
    """Put the row of a network into the page, or remove it if there is none."""
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
