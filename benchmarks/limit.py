"""The least time that a step can take on this machine, from its parts alone: `python -m benchmarks.limit --help`.

The products and convolutions of a step are taken from oneDNN's own record of it and timed one by one, each in the
layouts that oneDNN likes best; the optimizer counts with the bytes that it has to move at the speed at which the
machine moves them. What a step takes beyond that is elementwise work, reductions, reordering and waiting.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.cases import CASES, Case, make_batches, model_files, select
from benchmarks.contestants import OURS, by_name
from benchmarks.runner import ROOT, Settings, Unavailable, call, environment, export_model

Problem = tuple[str, str, str]
"""Kind, direction and description, as `limit.cpp` reads them."""

STEPS = 2
"""Recorded steps."""


@dataclass(frozen=True)
class Limit:
    """Least milliseconds of a step, by what they are spent on."""

    convolutions: float
    products: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.convolutions + self.products + self.optimizer


def build(cache: Path) -> Path:
    """Compile the tool that times the problems, unless it is there.

    Raises
    ------
    Unavailable
        There is no compiler or no oneDNN to compile it with.
    """
    source, tool = ROOT / "benchmarks" / "limit.cpp", cache / "limit"
    if tool.exists() and tool.stat().st_mtime > source.stat().st_mtime:
        return tool
    located = subprocess.run(
        [sys.executable, ROOT / "cmake" / "locate.py", "onednn"], capture_output=True, text=True
    )
    if located.returncode:
        raise Unavailable("oneDNN's headers are not installed; `make setup` installs them")
    include, library = located.stdout.strip().split(";")
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O3", "-march=native", "-fopenmp", "-ffast-math"]
    command += [
        f"-I{include}",
        str(source),
        f"{library}/libdnnl.so.3",
        f"-Wl,-rpath,{library}",
        "-o",
        str(tool),
    ]
    call("compiling limit.cpp", command, cache / "limit.log")
    return tool


def problems_of(case: Case, cache: Path, threads: int) -> Counter[Problem]:
    """Return how often a step solves each problem.

    Raises
    ------
    Unavailable
        The step failed.
    """
    log = cache / f"{case.name}-limit.log"
    command = [sys.executable, "-m", "benchmarks.limit", "--steps-of", case.name, "--cache", str(cache)]
    env = environment(threads, cache) | {"ONEDNN_VERBOSE": "1"}
    call("recording a step", [*command, "--threads", str(threads)], log, env)
    found: Counter[Problem] = Counter()
    for line in log.read_text().splitlines():
        fields = line.split(",")
        if not line.startswith("onednn_verbose") or "exec" not in fields:
            continue
        kind, direction, description = fields[3], fields[5], fields[-2]
        if kind == "matmul":
            found[kind, "-", description] += 1
        elif kind == "convolution":
            found[kind, direction.removesuffix("_training").removesuffix("_inference"), description] += 1
    uneven = [problem for problem, count in found.items() if count % STEPS]
    if uneven:
        raise Unavailable(f"the steps of {case.name} differ in {' '.join(uneven[0])}")
    return Counter({problem: count // STEPS for problem, count in found.items()})


def parameter_bytes(case: Case, cache: Path) -> int:
    """Return the bytes of the trained parameters of a model."""
    files = model_files(cache, case)
    with np.load(files.weights) as weights:
        return sum(weights[name].nbytes for name in json.loads(files.trainable.read_text()))


def measure(case: Case, settings: Settings) -> Limit:
    """Return the limit of a case.

    Raises
    ------
    Unavailable
        Something that it takes is missing; the message says what.
    """
    export_model(case, settings)
    tool = build(settings.cache)
    problems = problems_of(case, settings.cache, settings.threads)
    lines = [*problems, ("stream", "-", str(parameter_bytes(case, settings.cache)))]
    ran = subprocess.run(
        [tool, str(settings.threads)],
        input="\n".join(" ".join(line) for line in lines),
        capture_output=True,
        text=True,
        env=environment(settings.threads, settings.cache),
    )
    if ran.returncode:
        raise Unavailable(f"timing the problems of {case.name}: {ran.stderr.strip()}")
    *times, optimizer = map(float, ran.stdout.split())
    spent: dict[str, float] = {"convolution": 0.0, "matmul": 0.0}
    for (problem, count), time in zip(problems.items(), times, strict=True):
        spent[problem[0]] += count * time
    return Limit(spent["convolution"], spent["matmul"], optimizer)


def take_steps(case: Case, cache: Path, threads: int) -> None:
    """Train `STEPS` steps in this process."""
    trainer = by_name(OURS).make_trainer()
    trainer.make_artifacts(case, cache)
    step = trainer.prepare(case, cache, threads)
    for images, labels in make_batches(case)[:STEPS]:
        step(images, labels)


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.limit", description=__doc__)
    parser.add_argument("--models", help="names, separated by commas (default: all)")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench", help=argparse.SUPPRESS)
    parser.add_argument("--steps-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps_of:
        take_steps(select([options.steps_of])[0], options.cache, options.threads)
        return 0
    settings = Settings(options.cache, ROOT / ".venv-peers", options.threads, 1, None)
    options.cache.mkdir(parents=True, exist_ok=True)
    print(f"{'model':<14} {'convolutions':>12} {'products':>9} {'optimizer':>9} {'limit ms':>9}")
    for case in select(options.models.split(",")) if options.models else CASES:
        limit = measure(case, settings)
        print(
            f"{case.name:<14} {limit.convolutions:>12.3f} {limit.products:>9.3f} {limit.optimizer:>9.3f} "
            f"{limit.total:>9.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
