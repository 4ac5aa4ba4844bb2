"""The output of the benchmark: facts about the machine, ratios, the table and the plot."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.contestants import OURS, by_name
from benchmarks.runner import ROOT

Entry = dict[str, Any]


def _field(path: str, name: str) -> str:
    """Return the value of the first line `name : value` of a file in /proc, or "unknown"."""
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def machine() -> Entry:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],
        "commit": commit or "unknown",
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def ratios(entry: Entry) -> Entry:
    """Return, by peer, our value divided by the peer's, for the step time and the memory above the baseline.

    `best` is the ratio to the fastest peer or the one with the least memory; contestants that run our own code in
    another precision are not peers. Below 1 we are better. Empty if we or all others are missing.
    """
    contestants = entry["contestants"]
    others = [name for name in contestants if name != OURS]
    if OURS not in contestants or not others:
        return {}
    result: Entry = {}
    for key, field in (("time", "median_ms"), ("memory", "above_baseline_mb"), ("peak", "peak_mb")):
        by_peer = {name: contestants[OURS][field] / max(contestants[name][field], 1e-9) for name in others}
        peers = [ratio for name, ratio in by_peer.items() if by_name(name).venv is not None]
        result[key] = by_peer | ({"best": max(peers)} if peers else {})
    return result


Cell = Callable[[str, Entry, Entry], str]
"""Text of a table cell from the contestant's name, its values and the case's ratios."""


def _ratio(key: str) -> Cell:
    return lambda name, _, ours: f"{ours[key][name]:.2f}" if ours and name != OURS else ""


def _number(field: str, digits: int) -> Cell:
    return lambda _, values, __: f"{values[field]:,.{digits}f}"


COLUMNS: tuple[tuple[str, Cell], ...] = (
    ("median ms", _number("median_ms", 2)),
    ("p10", _number("p10_ms", 2)),
    ("p90", _number("p90_ms", 2)),
    ("start s", _number("start_s", 2)),
    ("peak MiB", _number("peak_mb", 0)),
    ("above base", _number("above_baseline_mb", 0)),
    ("ours/its time", _ratio("time")),
    ("ours/its mem", _ratio("memory")),
)


def table(entry: Entry) -> str:
    """Return the table of one case, fastest first, the conclusion, and any problems, as text."""
    ours = entry["ratios"]
    rows = [["", *(title for title, _ in COLUMNS)]]
    for name, values in sorted(entry["contestants"].items(), key=lambda item: item[1]["median_ms"]):
        rows.append([name, *(cell(name, values, ours) for _, cell in COLUMNS)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{entry['case']} (batch {entry['batch']})"]
    for name, *cells in rows:
        lines.append(
            "  ".join([name.ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells, widths[1:], strict=True))])
        )
    if ours and "best" in ours["time"]:
        lines.append(
            f"ours to the best peer: time {ours['time']['best']:.2f}, memory {ours['memory']['best']:.2f}"
        )
    lines += [f"{name} {what}; its losses are not compared" for name, what in entry["differing"].items()]
    lines += [f"!! MISSING {name}: {why}" for name, why in entry["missing"].items()]
    if not entry["losses_agree"]:
        lines.append(
            f"!! LOSSES DIFFER by {entry['loss_difference']:.2g}, more than {entry['loss_tolerance']:g}: "
            "not everyone computes the same"
        )
        for name, values in entry["contestants"].items():
            if "loss_difference" in values:
                lines.append(
                    f"   {name}: {values['loss_difference']:.2g}, accepted {by_name(name).tolerance:g}"
                )
        for name, values in entry["contestants"].items():
            lines.append(f"   {name.ljust(widths[0])} {' '.join(f'{x:.6f}' for x in values['first_losses'])}")
    return "\n".join(lines)


def plot(results: list[Entry], path: Path) -> bool:
    """Draw step time and memory as bars, one column of panels per case; return whether matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(2.6 * len(results) + 0.8, 6), layout="constrained")
    grid = figure.subplots(2, len(results), squeeze=False)
    panels = (
        ("step, median ms", "median_ms", "{:.3g}"),
        ("memory above imports, MiB", "above_baseline_mb", "{:.0f}"),
    )
    for column, entry in enumerate(results):
        names = list(entry["contestants"])
        for row, (label, field, number) in enumerate(panels):
            axes = grid[row][column]
            bars = axes.bar(
                names,
                [entry["contestants"][n][field] for n in names],
                color=[by_name(n).colour for n in names],
            )
            axes.bar_label(bars, fmt=number, fontsize=8)
            axes.margins(y=0.12)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params("x", rotation=30, labelsize=8)
            axes.tick_params("y", labelsize=8)
            if column == 0:
                axes.set_ylabel(label)
            if row == 0:
                axes.set_title(f"{entry['case']}, batch {entry['batch']}", fontsize=10)
    figure.suptitle("One training step: less is better")
    figure.savefig(path, dpi=130)
    return True
