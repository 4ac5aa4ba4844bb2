"""What is recorded of training exported models on stock onnxruntime, for the tests and for the documentation's table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

RECORD = Path(__file__).with_name("step_record.yaml")
_COMMENT = "# Written by `pytest tests/models/test_exports_on_onnxruntime.py --record-step-models`.\n"


@dataclass(frozen=True)
class Entry:
    """What is recorded of one export.

    Attributes
    ----------
    made_by : the exporter.
    opset : that of the step model.
    optimizer : what trains it.
    trained : the number of its trained parameters.
    nodes : the number of nodes of the model.
    step_nodes : that of the step model.
    difference : the largest relative difference of a loss of 20 steps from that of the other runtime, rounded up.
    refused : why it has no standard form; empty if it has one.
    """

    made_by: str
    opset: int = 0
    optimizer: str = ""
    trained: int = 0
    nodes: int = 0
    step_nodes: int = 0
    difference: float = 0.0
    refused: str = ""


def read() -> dict[str, Entry]:
    """Return the record by the name of the export."""
    data = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    return {name: Entry(**entry) for name, entry in data.items()}


def write(entries: dict[str, Entry]) -> None:
    """Replace the record."""
    empty = asdict(Entry(""))
    data = {
        name: {key: value for key, value in asdict(entry).items() if value != empty[key]}
        for name, entry in sorted(entries.items())
    }
    RECORD.write_text(_COMMENT + yaml.safe_dump(data, sort_keys=False), encoding="utf-8")


def table(entries: dict[str, Entry]) -> str:
    """Return the table of the documentation."""
    rows = [
        "| export | made by | opset | optimizer | trained parameters | nodes | nodes of the step | largest difference |",
        "| --- " * 8 + "|",
    ]
    for name, e in sorted(entries.items()):
        if e.refused:
            rows.append(f"| `{name}` | {e.made_by} | | | | | | rejected: {e.refused} |")
        else:
            rows.append(
                f"| `{name}` | {e.made_by} | {e.opset} | {e.optimizer} | {e.trained} | {e.nodes} | {e.step_nodes} | "
                f"{e.difference:.0e} |".replace(" 0e+00 ", " 0 ")
            )
    return "\n".join(rows)
