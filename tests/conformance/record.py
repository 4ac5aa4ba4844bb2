"""The results of the last run of the cases, and the page that shows them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

RECORD = Path(__file__).with_name("record.yaml")
PACKAGES = ("onnx", "onnxruntime")

_COMMENT = "# Written by `python -m tests.conformance`: what passes, and why the rest does not.\n"


@dataclass
class Failure:
    """Cases that fail for the same reason."""

    reason: str
    cases: list[str]
    operators: list[str]


@dataclass
class Record:
    """The outcome of a run."""

    versions: dict[str, str]
    kinds: dict[str, dict[str, int]]
    """For each kind: cases, omitted cases, and those that pass in each library."""
    failures: list[Failure] = field(default_factory=list)
    stock_failures: dict[str, int] = field(default_factory=dict)
    drawing: int = 0
    """Cases with random numbers."""

    @property
    def known(self) -> dict[str, str]:
        """The reason of each case that fails in our library."""
        return {case: failure.reason for failure in self.failures for case in failure.cases}

    @property
    def is_of_these_packages(self) -> bool:
        """Whether the installed packages are those of the run."""
        return self.versions["onnx"] == version("onnx")

    def total(self, key: str) -> int:
        """Return a count over all kinds."""
        return sum(kind[key] for kind in self.kinds.values())


def read() -> Record:
    """Return the record of the last run."""
    data: dict[str, Any] = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    data["failures"] = [Failure(**failure) for failure in data["failures"]]
    return Record(**data)


def write(record: Record) -> None:
    """Write the record."""
    data = {
        "versions": record.versions,
        "drawing": record.drawing,
        "kinds": record.kinds,
        "failures": [vars(failure) for failure in record.failures],
        "stock_failures": record.stock_failures,
    }
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)
    RECORD.write_text(_COMMENT + text, encoding="utf-8")


def grouped(reasons: dict[str, tuple[str, list[str]]]) -> list[Failure]:
    """Return failures by reason, the most frequent first; given are reason and operators by case."""
    found: dict[str, Failure] = {}
    for case, (reason, operators) in sorted(reasons.items()):
        failure = found.setdefault(reason, Failure(reason, [], []))
        failure.cases.append(case)
        failure.operators = sorted({*failure.operators, *operators})
    return sorted(found.values(), key=lambda f: (-len(f.cases), f.reason))


def counted(reasons: dict[str, tuple[str, list[str]]]) -> dict[str, int]:
    """Return how many cases fail for each reason, the most frequent first."""
    counts = Counter(reason.partition(" by up to ")[0] for reason, _ in reasons.values())
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("{", "&#123;")


def render(record: Record) -> str:
    """Return the page that shows a record."""
    versions = record.versions
    lines = [
        "# Conformance",
        "",
        "The `onnx` package comes with test cases for backends: models, inputs and expected outputs. All of",
        f"those of `onnx` {versions['onnx']} with only numeric values were run by `InferenceSession` and, in",
        f"the same run, by stock onnxruntime {versions['onnxruntime']} on the CPU. A case passes if all outputs have the",
        "expected types and shapes, and values within the tolerance of the case.",
        "",
        "| kind | cases | ortrain | onnxruntime | left out |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind, numbers in record.kinds.items():
        row = (kind, numbers["cases"], numbers["ortrain"], numbers["onnxruntime"], numbers["left_out"])
        lines.append("| " + " | ".join(map(str, row)) + " |")
    sums = (record.total(key) for key in ("cases", "ortrain", "onnxruntime", "left_out"))
    lines.append("| **all** | " + " | ".join(map(str, sums)) + " |")
    lines += [
        "",
        "Left out are cases with strings, maps or sparse tensors. Those of kind sequence are the node cases with",
        "sequences and optional values. Models of kind light are well-known networks whose weights all have the same value.",
        f"{record.drawing} cases draw random numbers, which differ between libraries: over 400 runs, types, shapes,",
        "possible values and means are compared with those of the reference in the `onnx` package.",
        "",
        "## What fails here",
        "",
    ]
    if record.failures:
        lines += ["| cases | reason | operators |", "| --- | --- | --- |"]
        for failure in record.failures:
            shown = ", ".join(f"`{o}`" for o in failure.operators[:8])
            more = len(failure.operators) - 8
            lines.append(
                f"| {len(failure.cases)} | {_cell(failure.reason)} | {shown}{f' and {more} more' if more > 0 else ''} |"
            )
        lines += ["", "`tests/conformance/record.yaml` names the cases."]
    else:
        lines.append("Nothing.")
    lines += ["", "## What fails in onnxruntime", "", "| cases | reason |", "| --- | --- |"]
    shown_reasons = [(reason, count) for reason, count in record.stock_failures.items() if count > 1]
    lines += [f"| {count} | {_cell(reason)} |" for reason, count in shown_reasons]
    rest = len(record.stock_failures) - len(shown_reasons)
    if rest:
        lines.append(f"| {rest} | one each of other reasons |")
    lines += [
        "",
        "## Run it",
        "",
        "`make conformance` runs all cases in both libraries and writes the record that this page shows. `make test-all` runs",
        "them in ortrain, and fails when a case fails that is not listed, or when a listed one passes.",
    ]
    return "\n".join(lines) + "\n"
