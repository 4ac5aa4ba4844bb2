"""The description of a file or folder of data, and of the network that `ortrain train` makes for the data."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ortrain._files.reading import read_npz
from ortrain._support.counts import counted
from ortrain.cli import fitting, preparing
from ortrain.cli.datasets import ENDINGS, class_folders, images_in
from ortrain.cli.tables import read_table
from ortrain.preprocessing import tables
from ortrain.preprocessing.cells import is_missing, text_of

_SHOWN = 50


def is_data(path: Path) -> bool:
    """Whether a path has data rather than a model, artifacts or a checkpoint."""
    if path.is_dir():
        return not (path / "checkpoint").exists() and bool(class_folders(path))
    return path.suffix.lower() in ENDINGS


def describe_data(path: Path, target: str | None = None) -> dict[str, Any]:
    """Return what data have, as values for JSON.

    Raises
    ------
    ValueError
        When they are of no known kind.
    """
    is_file = path.is_file()
    arrays = read_npz(path, "--data") if is_file and path.suffix.lower() == ".npz" else {}
    table = read_table(path) if is_file else None
    arrays = arrays or ({} if table is None else fitting.arrays_in(table, path))
    try:
        found = fitting.look_at(path, target, None, None, None)
    except ValueError as error:
        if len(arrays) < 2 or (target is not None and target not in arrays):
            raise
        return {
            "data": str(path),
            "kind": "arrays",
            **_shapes(arrays),
            "network": None,
            "note": str(error).removeprefix("--data: "),
        }
    described: dict[str, Any] = {
        "data": str(path),
        "row": list(found.row),
        "outputs": found.outputs,
        "task": "classes" if found.classes else "numbers",
        "network": fitting.network_for(found),
        "loss": found.loss,
        "note": found.note,
    }
    if path.is_dir():
        counts = {folder.name: len(images_in(folder)) for folder in class_folders(path)}
        return {**described, "kind": "images", "rows": sum(counts.values()), "classes": counts}
    if table is None or arrays:
        return {**described, "kind": "arrays", **_shapes(arrays), "rows": found.rows}
    column = preparing.target_column(list(table.columns), target, None)
    cells = table.columns[column]
    features = {name: values for name, values in table.columns.items() if name != column}
    plan = tables.look_at(features, f"--data: {path}")
    described |= {
        "kind": "table",
        "rows": len(cells),
        "names": list(table.columns),
        "target": column,
        "columns": {
            each.name: each.shown().removeprefix(f"{each.name} ").strip("()") for each in plan.columns
        },
        "left_out": dict(plan.left_out),
        "without_target": sum(map(is_missing, cells)),
        "note": "; ".join(filter(None, (table.remark, found.note))),
    }
    if found.classes:
        counts = Counter(text_of(cell) for cell in cells if not is_missing(cell))
        described["classes"] = dict(sorted(counts.items())[:_SHOWN])
    return described


def _shapes(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the number of rows, and the type and the shape of each array."""
    return {
        "rows": max((len(array) for array in arrays.values() if array.ndim), default=0),
        "arrays": {
            name: {"dtype": str(array.dtype), "shape": list(array.shape)} for name, array in arrays.items()
        },
    }


def lines_of(found: dict[str, Any]) -> list[str]:
    """Return the description as lines of text."""
    rows = counted(found["rows"], "image" if found["kind"] == "images" else "row")
    where = {"table": "a table with ", "arrays": "arrays with "}.get(found["kind"], "")
    lines = [f"{found['data']}: {where}{rows}"]
    lines += [f"  {name}: {shown}" for name, shown in found.get("columns", {}).items()]
    lines += [f"  {name}: left out, {why}" for name, why in found.get("left_out", {}).items()]
    lines += [f"  {name}: {each['dtype']} {each['shape']}" for name, each in found.get("arrays", {}).items()]
    if "target" in found:
        missing = found["without_target"]
        lines.append(
            f"target {found['target']}{', missing in ' + counted(missing, 'row') if missing else ''}"
        )
    if "classes" in found:
        lines.append("classes " + ", ".join(f"{name} ({count})" for name, count in found["classes"].items()))
    if found["note"]:
        lines.append(f"note {found['note']}")
    if found["network"] is not None:
        lines.append(f"network {found['network']}, loss {found['loss']}")
    return lines
