"""The overhead of a train step in each language, compared with the core: `python -m benchmarks.overhead --help`."""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.__main__ import names, progress
from benchmarks.report import machine
from benchmarks.runner import ROOT, count

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/scenarios")]

from languages import COMPILERS, Missing, Program, built  # noqa: E402
from scenario_data import prepare_fixture  # noqa: E402

DESCRIPTION = """\
Measure a train step of a very small model (64-32-10, batch 1) in every language, by its cheapest documented way, and
what it takes above the same step in the core itself, called without any interface.

The programs are the runners of tests/scenarios with their command `measure`. Each round restarts all of
them, in turns; a round's time is the median of its steps."""

EPILOG = """\
A language that is not built is named and left out. Exit status: 0; 2 when nothing was measured.

needed before:
  make install        the package, for all of them
  cmake --build build/cpp --target core_step    after make cpp, for the core
  make csharp, make objc, make swift            for these three"""

RUNNERS = {
    "c": ["runner.c"],
    "cpp": ["runner.cpp"],
    "python": ["runner.py"],
    "csharp": ["Runner.cs", "generated/csharp/Commands.cs"],
    "objc": ["runner.m"],
    "swift": ["runner.swift", "generated/swift/Commands.swift"],
}
CASE = "mlp_adamw"
WARM_UP_STEPS = 1000
SCRIPT = """\
load state data:checkpoint
session s state data:training_model.onnx data:eval_model.onnx data:optimizer_model.onnx
tensor x data:x_one
tensor y data:y_one
log off
measure {warm_up} s x y
log on
measure {steps} s x y
"""

Measure = Callable[[], float]
"""Runs one round and returns its time in microseconds."""


def time_of(program: Program, arguments: list[str | Path]) -> float:
    ran = program.run(arguments)
    if ran.returncode:
        raise SystemExit(f"{program.command[-1]} ended with status {ran.returncode}: {ran.stderr.strip()}")
    word, nanoseconds = ran.stdout.split()
    assert word == "nanoseconds"
    return int(nanoseconds) / 1e3


def measure_core(folder: Path, steps: int) -> Measure:
    program = built("build/cpp/tests/core_step", "cpp && cmake --build build/cpp --target core_step")
    return functools.partial(time_of, Program([str(program)]), [folder / "data", str(steps)])


def measure_language(language: str, folder: Path) -> Measure:
    sources = [ROOT / "tests/scenarios" / name for name in RUNNERS[language]]
    if language == "python":
        program = Program([sys.executable, str(sources[0])])
    else:
        program = COMPILERS[language][1](sources, folder / f"runner_{language}")
    return functools.partial(time_of, program, [folder / "script.txt", folder / "data", folder])


def table(rounds: dict[str, list[float]]) -> str:
    """Return the medians, the spread of the rounds, and the medians of the rounds' differences."""
    rows = [["", "median µs", "rounds from", "to", "over the core", "over C"]]
    for name, times in rounds.items():
        row = [name, *(f"{x:.2f}" for x in (statistics.median(times), min(times), max(times)))]
        for base in ("core", "c"):
            if base in rounds and name not in ("core", base):
                differences = [x - y for x, y in zip(times, rounds[base], strict=True)]
                row.append(f"{statistics.median(differences):+.2f}")
            else:
                row.append("")
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([name.ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells, widths[1:], strict=True))])
        for name, *cells in rows
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.overhead",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "--languages",
        type=names,
        default=list(RUNNERS),
        metavar="A,B",
        help=f"languages, of {','.join(RUNNERS)} (default: all)",
    )
    parser.add_argument("--rounds", type=count, default=15, metavar="N", help="turns of each (default: 15)")
    parser.add_argument(
        "--steps", type=count, default=5000, metavar="N", help="steps in a turn (default: 5000)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=ROOT / "build/bench/overhead.json",
        metavar="FILE",
        help="file of the times (default: build/bench/overhead.json)",
    )
    options = parser.parse_args()
    if unknown := [name for name in options.languages if name not in RUNNERS]:
        parser.error(f"there is no language {unknown[0]}, expected some of {', '.join(RUNNERS)}")
    return options


def main() -> int:
    options = parse()
    facts = machine()
    print(f"{facts['cpu']}, {facts['cores']} cores, {options.rounds} rounds of {options.steps} steps")
    if facts["load_before"] > 0.5:
        print(
            f"!! other programs use the processor (load {facts['load_before']:.1f}): times are not reliable"
        )

    with tempfile.TemporaryDirectory(prefix="ortrain-overhead-") as name:
        folder = Path(name)
        prepare_fixture(CASE, folder / "data")
        (folder / "script.txt").write_text(SCRIPT.format(warm_up=WARM_UP_STEPS, steps=options.steps))
        contestants: dict[str, Measure] = {}
        for language in ["core", *options.languages]:
            progress(f"{language} is built")
            try:
                contestants[language] = (
                    measure_core(folder, options.steps)
                    if language == "core"
                    else measure_language(language, folder)
                )
            except Missing as why:
                progress("")
                print(f"!! MISSING {language}: {why}")
        rounds: dict[str, list[float]] = {name: [] for name in contestants}
        for number in range(options.rounds):
            for name, measure in contestants.items():
                progress(f"round {number + 1} of {options.rounds}: {name}")
                rounds[name].append(measure())
    progress("")
    if not rounds:
        print("nothing was measured", file=sys.stderr)
        return 2
    print(f"\n{table(rounds)}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"machine": facts, "microseconds": rounds}, indent=1) + "\n")
    print(f"\nresults: {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
