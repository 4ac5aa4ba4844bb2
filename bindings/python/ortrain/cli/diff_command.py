"""``ortrain diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from ortrain.cli import app, checkpoints


@app.command(
    "diff",
    """
    ortrain diff artifacts/checkpoint artifacts/best.ckpt
    ortrain diff a.ckpt b.ckpt --json
    """,
)
@click.argument("first", type=click.Path(path_type=Path), metavar="A")
@click.argument("second", type=click.Path(path_type=Path), metavar="B")
@app.as_json
def command(first: Path, second: Path, json_output: bool) -> int:
    """Compare the parameters of two checkpoints.

    The exit status is 0 if every bit is the same, and 3 otherwise.
    """
    ours, theirs = (checkpoints.parameters_of(checkpoints.open_checkpoint(path)) for path in (first, second))
    rows = []
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        a, b = ours.get(name), theirs.get(name)
        row: dict[str, Any] = {"name": name, "difference": None, "relative": None}
        if a is None or b is None:
            row["what"] = f"only in {first if b is None else second}"
        elif a.shape != b.shape or a.dtype != b.dtype:
            row["what"] = f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
        elif a.tobytes() == b.tobytes():
            row["what"] = "same"
        else:
            change = np.abs(a.astype(np.float64) - b.astype(np.float64))
            norm = float(np.linalg.norm(a.astype(np.float64).ravel()))
            row["what"] = "differs"
            row["difference"] = float(change.max())
            row["relative"] = float(np.linalg.norm(change.ravel())) / norm if norm else float("inf")
        rows.append(row)
    same = all(row["what"] == "same" for row in rows)
    if json_output:
        app.print_json({"same": same, "parameters": rows})
    else:
        lines = [("parameter", "", "largest difference", "relative to the norm")]
        for row in rows:
            numbers = (
                ("", "")
                if row["difference"] is None
                else (f"{row['difference']:.4g}", f"{row['relative']:.4g}")
            )
            lines.append((row["name"], row["what"], *numbers))
        click.echo(app.table(lines))
    return app.OK if same else app.NO
