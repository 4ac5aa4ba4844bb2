"""The minimum time of a step on this machine, from its parts alone: `python -m benchmarks.limit --help`.

The products and convolutions of the model, as it is written, are taken from oneDNN's own record of a step. A separate
process runs them one after the other, each in the layouts that oneDNN prefers, and then moves the bytes that the
optimizer has to move. It takes turns with the contestants, so that it is slowed down like them. The rest of a step is
elementwise work, reductions, reordering and waiting; a step may save products whose result is not needed, and
multiplications of a convolution (Winograd's algorithm).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.cases import CASES, Case, make_batches, model_files, select
from benchmarks.contestants import ours
from benchmarks.runner import (
    PAUSE_S,
    ROOT,
    Settings,
    Unavailable,
    call,
    environment,
    export_model,
    last_line,
)

Problem = tuple[str, str, str]
"""Kind, direction and description, as `limit.cpp` reads them."""

STEPS = 2
"""Recorded steps."""
_BY_ONEDNN = {"ortrain.disable_pass.fuse_attention": "1", "ortrain.disable_pass.winograd": "1"}
AS_WRITTEN = ours("limit", _BY_ONEDNN, ["hoist_selection"])
"""The process that computes every product of the model, including those whose result is not needed."""
AS_DONE = ours("limit", _BY_ONEDNN, [])
"""The process that computes the products that ortrain computes, each separately."""
PARTS = ("convolutions", "products", "optimizer")


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


def problems_of(case: Case, cache: Path, threads: int, as_done: bool = False) -> list[Problem]:
    """Return the problems in a step of the model, in order; with `as_done`, those that ortrain runs.

    Raises
    ------
    Unavailable
        The step failed, or two steps solve different problems.
    """
    log = cache / f"{case.name}-limit.log"
    command = [sys.executable, "-m", "benchmarks.limit", "--steps-of", case.name, "--cache", str(cache)]
    command += ["--as-done"] if as_done else []
    env = environment(threads, cache) | {"ONEDNN_VERBOSE": "1"}
    call("recording a step", [*command, "--threads", str(threads)], log, env)
    found: list[Problem] = []
    for line in log.read_text().splitlines():
        fields = line.split(",")
        if not line.startswith("onednn_verbose") or "exec" not in fields:
            continue
        kind, direction, description = fields[3], fields[5], fields[-2]
        if kind == "matmul":
            found.append((kind, "-", description))
        elif kind == "convolution":
            found.append((kind, direction.removesuffix("_training").removesuffix("_inference"), description))
    step = found[len(found) // STEPS * (STEPS - 1) :]
    if Counter(step * STEPS) != Counter(found):
        raise Unavailable(f"the steps of {case.name} differ in their products or convolutions")
    return step


def parameter_bytes(case: Case, cache: Path) -> int:
    """Return the bytes of the trained parameters of a model."""
    files = model_files(cache, case)
    with np.load(files.weights) as weights:
        return sum(weights[name].nbytes for name in json.loads(files.trainable.read_text()))


def limits_of(case: Case, settings: Settings) -> dict[str, Limit]:
    """Return the limit of a case as its model is written and, if different, as ortrain runs it.

    Raises
    ------
    Unavailable
        Something that it needs is missing; the message says what.
    """
    export_model(case, settings)
    written, done = (
        problems_of(case, settings.cache, settings.threads, as_done) for as_done in (False, True)
    )
    limits = {"limit": Limit(case, settings, written)}
    if Counter(written) != Counter(done):
        try:
            limits["limit_as_done"] = Limit(case, settings, done)
        except Unavailable:
            limits["limit"].close()
            raise
    return limits


class Limit:
    """The process that only does the given parts of a case's step.

    Raises
    ------
    Unavailable
        Something that it needs is missing; the message says what.
    """

    def __init__(self, case: Case, settings: Settings, problems: list[Problem]) -> None:
        lines = [*problems, ("stream", "-", str(parameter_bytes(case, settings.cache)))]
        self.times: list[list[float]] = []
        self.log = settings.cache / "limit.log"
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                [build(settings.cache), str(settings.threads)],
                env=environment(settings.threads, settings.cache),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            self._send("".join(" ".join(line) + "\n" for line in lines) + "\n")
            self._answer()
        except Unavailable:
            self.close()
            raise

    def _send(self, text: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(text)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # no answer: report the status and the log

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Unavailable(f"the limit's process ended with {self.process.wait()}: {last_line(self.log)}")
        return line

    def take_turn(self, steps: int) -> None:
        """Run `steps` steps, after one that brings the data back into the caches."""
        self._send(f"{steps + 1}\n")
        times = [[float(part) for part in self._answer().split()] for _ in range(steps + 1)]
        self.times += times[1:]

    def medians(self) -> dict[str, float]:
        """Return the median milliseconds of each part and of their sum."""
        parts = {name: median(times[i] for times in self.times) for i, name in enumerate(PARTS)}
        return parts | {"total": median(map(sum, self.times))}

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def take_steps(case: Case, cache: Path, threads: int, as_done: bool) -> None:
    """Train `STEPS` steps in this process."""
    trainer = (AS_DONE if as_done else AS_WRITTEN).make_trainer()
    trainer.make_artifacts(case, cache)
    step = trainer.prepare(case, cache, threads)
    for images, labels in make_batches(case)[:STEPS]:
        step(images, labels)


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.limit", description=__doc__)
    parser.add_argument("--models", help="names, separated by commas (default: all)")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns (default: 5)")
    parser.add_argument(
        "--as-done",
        action="store_true",
        help="the products that ortrain does, without those whose result is not needed",
    )
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench", help=argparse.SUPPRESS)
    parser.add_argument("--steps-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps_of:
        take_steps(select([options.steps_of])[0], options.cache, options.threads, options.as_done)
        return 0
    settings = Settings(options.cache, ROOT / ".venv-peers", options.threads, 1, None)
    options.cache.mkdir(parents=True, exist_ok=True)
    print(f"{'model':<14} {'convolutions':>12} {'products':>9} {'optimizer':>9} {'limit ms':>9}")
    for case in select(options.models.split(",")) if options.models else CASES:
        export_model(case, settings)
        limit = Limit(case, settings, problems_of(case, options.cache, options.threads, options.as_done))
        for _ in range(options.rounds):
            time.sleep(PAUSE_S)
            limit.take_turn(case.steps)
        limit.close()
        print(
            f"{case.name:<14}"
            + " ".join(f"{ms:>{w}.3f}" for ms, w in zip(limit.medians().values(), (13, 9, 9, 9), strict=True))
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
