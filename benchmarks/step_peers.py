"""Step models on stock onnxruntime compared with onnxruntime-training and ortrain: `python -m benchmarks.step_peers --help`.

All contestants train the same models from the same weights, in separate processes that take turns. The table shows the shortest
step of each, because other programs disturb the shortest step least.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.__main__ import names
from benchmarks.cases import CASES, select
from benchmarks.contestants import by_name
from benchmarks.runner import ROOT, Settings, Unavailable, count, run_case

CONTESTANTS = {
    "step-any": "step model",
    "step": "with fixed rows",
    "ort": "onnxruntime-training",
    "ortrain": "ortrain",
}
RATIOS = [("step-any", "ort"), ("step", "ort"), ("step-any", "ortrain")]


def row(entry: dict[str, Any]) -> str:
    """Return the row of a case; a contestant that could not take part is absent."""
    shortest = {
        name: min(ms for turn in values["rounds_ms"] for ms in turn)
        for name, values in entry["contestants"].items()
    }
    cells = [f"{shortest[name]:.3g} ms" if name in shortest else "" for name in CONTESTANTS]
    cells += [
        f"{shortest[ours] / shortest[peer]:.2f}" if {ours, peer} <= shortest.keys() else ""
        for ours, peer in RATIOS
    ]
    return f"| `{entry['case']}` | {entry['batch']} | {' | '.join(cells)} | {entry['loss_difference']:.0e} |"


def main() -> int:
    """Measure and print a row for each case, as soon as it is known."""
    parser = argparse.ArgumentParser("python -m benchmarks.step_peers", description=__doc__)
    parser.add_argument(
        "--models",
        type=names,
        default=[],
        metavar="A,B",
        help=f"models to measure, of {', '.join(c.name for c in CASES)} (default: those of the README)",
    )
    parser.add_argument("--rounds", type=count, default=10, help="turns of each contestant (default: 10)")
    parser.add_argument(
        "--steps", type=count, help="timed steps in a turn (default: a number for each model)"
    )
    parser.add_argument("--threads", type=count, default=1, help="threads of each (default: 1)")
    parser.add_argument(
        "--peers",
        type=Path,
        default=ROOT / ".venv-peers",
        help="virtual environments of the peers, which `make bench-peers` makes (default: .venv-peers)",
    )
    arguments = parser.parse_args()
    cache = ROOT / "build" / "bench"
    settings = Settings(cache, arguments.peers, arguments.threads, arguments.rounds, arguments.steps)
    heads = [*CONTESTANTS.values(), *(f"{CONTESTANTS[a]} / {CONTESTANTS[b]}" for a, b in RATIOS)]
    print(f"| model | batch | {' | '.join(heads)} | largest difference of losses |")
    print("| --- " * (len(heads) + 3) + "|", flush=True)
    failed = False
    for case in select(arguments.models or []):
        try:
            entry = run_case(case, [by_name(name) for name in CONTESTANTS], settings, lambda text: None)
        except Unavailable as why:
            print(f"{case.name}: {why}", file=sys.stderr)
            failed = True
            continue
        print(row(entry), flush=True)
        for name, why_not in entry["missing"].items():
            print(f"{case.name}: {name} is skipped: {why_not}", file=sys.stderr)
        failed |= bool(entry["missing"]) or not entry["losses_agree"]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
