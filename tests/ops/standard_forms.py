"""Which gradients can be written with operators of ONNX alone: the record of the last whole run of the tests, and its table."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

RECORD = Path(__file__).with_name("standard_forms.yaml")
_COMMENT = "# Written by `pytest tests/ops --record-standard-forms`.\n"


@dataclass
class Form:
    """What is known about the gradient of one operator.

    Attributes
    ----------
    ops : the operators that its cases are written with, the operator itself included.
    refused : why some of its cases have no standard form.
    """

    ops: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)

    @property
    def answer(self) -> str:
        """Whether it has a standard form: ``yes``, ``in part`` or ``no``."""
        if not self.refused:
            return "yes"
        return "in part" if self.ops else "no"


def read() -> dict[str, Form]:
    """Return the record by operator."""
    data: dict[str, Any] = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    return {name: Form(set(form["ops"]), set(form.get("refused", []))) for name, form in data.items()}


def write(forms: dict[str, Form]) -> None:
    """Replace the record."""
    data = {
        name: {"ops": sorted(form.ops)} | ({"refused": sorted(form.refused)} if form.refused else {})
        for name, form in sorted(forms.items())
    }
    RECORD.write_text(_COMMENT + yaml.safe_dump(data, width=118, sort_keys=True), encoding="utf-8")


def split(forms: dict[str, Form]) -> tuple[dict[str, Form], dict[str, Form]]:
    """Return the forms of the operators of ONNX, and those of com.microsoft under their names without the domain."""
    domain = "com.microsoft."
    return (
        {name: form for name, form in forms.items() if not name.startswith(domain)},
        {name.removeprefix(domain): form for name, form in forms.items() if name.startswith(domain)},
    )


def table(forms: dict[str, Form]) -> str:
    """Return the table of the documentation."""
    rows = ["| operator | standard form | operators used, or why there is none |", "| --- | --- | --- |"]
    for name, form in sorted(forms.items()):
        ops = ", ".join(f"`{op}`" for op in sorted(form.ops))
        text = "; ".join([ops] * bool(ops) + [f"not where {reason}" for reason in sorted(form.refused)])
        if form.answer == "no":
            text = "; ".join(sorted(form.refused))
        rows.append(f"| `{name}` | {form.answer} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)
