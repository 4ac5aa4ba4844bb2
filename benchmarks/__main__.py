"""The command line: `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.cases import ALL, CASES, MORE, select
from benchmarks.contestants import CONTESTANTS, by_name
from benchmarks.report import machine, plot, ratios, table
from benchmarks.runner import CHECKED_STEPS, ROOT, Settings, Unavailable, count, run_case

DESCRIPTION = """\
Train the same models from the same weights on the same data with ortrain and its peers, in turns in one run,
and compare step time and memory.
A step is: train step, optimizer step (AdamW, all parameters), reset of gradients."""

EPILOG = f"""\
models:       {", ".join(case.name for case in CASES if not case.more)}
{MORE}:         {", ".join(case.name for case in CASES if case.more)}
contestants:  {", ".join(contestant.name for contestant in CONTESTANTS)}

The peers live in virtual environments that `make bench-peers` makes; who is missing is reported and left out.
Exit status: 0; 1 when contestants disagree about the first {CHECKED_STEPS} losses of a model;
2 when nothing was measured.

examples:
  python -m benchmarks
  python -m benchmarks --models mlp,lenet --contestants ortrain,ort --rounds 5"""


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "--models",
        type=names,
        metavar="A,B",
        help=f"models to measure, {MORE} or {ALL} (default: the first line)",
    )
    parser.add_argument("--contestants", type=names, metavar="A,B", help="contestants to run (default: all)")
    parser.add_argument(
        "--rounds", type=count, default=10, metavar="N", help="turns of each contestant (default: 10)"
    )
    parser.add_argument(
        "--steps",
        type=count,
        metavar="N",
        help="timed steps in a turn (default: a number for each model)",
    )
    parser.add_argument("--threads", type=count, default=2, metavar="N", help="threads of each (default: 2)")
    parser.add_argument(
        "--peers",
        type=Path,
        default=ROOT / ".venv-peers",
        metavar="FOLDER",
        help="virtual environments of the peers (default: .venv-peers)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=ROOT / "build" / "bench" / "result.json",
        metavar="FILE",
        help="file of the results; the plot is written next to it as PNG, if\nmatplotlib is installed "
        "(default: build/bench/result.json)",
    )
    parsed = parser.parse_args(arguments)
    try:
        parsed.cases = select(parsed.models or [])
        parsed.competing = (
            [by_name(name) for name in parsed.contestants] if parsed.contestants else list(CONTESTANTS)
        )
    except ValueError as error:
        parser.error(str(error))
    return parsed


def progress(line: str) -> None:
    """Replace the previous line by `line`, if the output is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def main() -> int:
    options = parse()
    cache = ROOT / "build" / "bench"
    cache.mkdir(parents=True, exist_ok=True)
    # The peers' interpreters are links into their environments, so make paths absolute, but do not resolve links.
    settings = Settings(cache, options.peers.absolute(), options.threads, options.rounds, options.steps)
    facts = machine()
    print(f"{facts['cpu']}, {facts['cores']} cores, {settings.threads} threads, {settings.rounds} rounds")
    if facts["load_before"] > 0.5:
        print(
            f"!! other programs use the processor (load {facts['load_before']:.1f}): times are not reliable"
        )

    results: list[dict[str, Any]] = []
    for case in options.cases:
        try:
            entry = run_case(case, options.competing, settings, progress)
        except Unavailable as why:
            progress("")
            print(f"\n!! {case.name} IS SKIPPED: {why}", flush=True)
            continue
        entry["ratios"] = ratios(entry)
        progress("")
        print(f"\n{table(entry)}", flush=True)
        if entry["contestants"]:
            results.append(entry)
    if not results:
        print("nothing was measured", file=sys.stderr)
        return 2

    options.json.parent.mkdir(parents=True, exist_ok=True)
    chosen = {"threads": settings.threads, "rounds": settings.rounds}
    options.json.write_text(
        json.dumps({"machine": facts, "settings": chosen, "results": results}, indent=1) + "\n"
    )
    print(f"\nresults: {options.json}")
    picture = options.json.with_suffix(".png")
    print(f"plot: {picture}" if plot(results, picture) else "no plot: matplotlib is not installed")
    return 0 if all(entry["losses_agree"] for entry in results) else 1


if __name__ == "__main__":
    sys.exit(main())
