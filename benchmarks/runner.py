"""Runs a case: starts the workers, checks that they compute the same losses, and lets them take turns."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, model_files
from benchmarks.contestants import OURS, Contestant

ROOT = Path(__file__).resolve().parent.parent
CHECKED_STEPS = 5
"""The number of first steps whose losses must agree among all contestants."""
REPLY_TIMEOUT_S = 900
PAUSE_S = 0.05
"""Pause between turns, in which the threads of the last contestant stop spinning."""


def count(text: str) -> int:
    """Return a number of threads, rounds or steps that an option gives."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


class Unavailable(Exception):
    """A contestant or a model cannot take part; the message says why."""


@dataclass(frozen=True)
class Settings:
    """The user's choices; `steps` is None if each case uses its own number."""

    cache: Path
    peers: Path
    threads: int
    rounds: int
    steps: int | None


def environment(threads: int, scratch: Path) -> dict[str, str]:
    """Return the environment of every worker: equal thread settings, nothing compiled in an earlier run."""
    theirs = ("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "TORCHINDUCTOR_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    return kept | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch),
    }


def interpreter(contestant: Contestant, peers: Path) -> Path:
    if contestant.venv is None:
        return Path(sys.executable)
    python = peers / contestant.venv / "bin" / "python"
    if not python.exists():
        raise Unavailable(f"no interpreter at {python}; make it with `make bench-peers`")
    return python


def last_line(log: Path) -> str:
    """Return the last line of a log and where the rest is."""
    lines = log.read_text(errors="replace").split("\n")
    return f"{next((line for line in reversed(lines) if line.strip()), '')}\n   all of it: {log}"


def call(doing: str, command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> None:
    """Run `command` to its end in the checkout; its output goes to `log`, and `doing` describes it in errors.

    Raises
    ------
    Unavailable
        It failed; the message has the last line of the log.
    """
    with log.open("w") as output:
        status = subprocess.run(command, cwd=ROOT, env=env, stdout=output, stderr=output).returncode
    if status:
        raise Unavailable(f"{doing} ended with status {status}: {last_line(log)}")


def export_model(case: Case, settings: Settings) -> None:
    """Export the model of `case` with PyTorch, unless the cache has an export of the same source.

    Raises
    ------
    Unavailable
        There is none and it could not be created.
    """
    files = model_files(settings.cache, case)
    source = b"".join(
        (ROOT / "benchmarks" / name).read_bytes() for name in ("models.py", "more_models.py", "cases.py")
    )
    digest = hashlib.sha256(source).hexdigest()
    if files.stamp.exists() and files.stamp.read_text() == digest:
        return
    python = settings.peers / "ort" / "bin" / "python"
    if not python.exists():
        raise Unavailable(f"no interpreter at {python} to export the models; make it with `make bench-peers`")
    files.folder.mkdir(parents=True, exist_ok=True)
    call(
        "the export to ONNX",
        [str(python), "-m", "benchmarks.models", str(settings.cache), case.model],
        files.folder / "export.log",
    )
    files.stamp.write_text(digest)


class Worker:
    """A contestant's process, see `benchmarks.worker`."""

    def __init__(self, contestant: Contestant, case: Case, settings: Settings, env: dict[str, str]) -> None:
        command = [str(interpreter(contestant, settings.peers)), "-m", "benchmarks.worker"]
        command += [contestant.name, case.name, "--cache", str(settings.cache)]
        command += ["--threads", str(settings.threads)]
        log = settings.cache / f"{case.name}-{contestant.name}.log"
        if contestant.artifacts:
            call("making its artifacts", [*command, "--make-artifacts"], log, env)
        self.name = contestant.name
        self.log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            self.ready = self._reply()
        except Unavailable:
            self.close()
            raise

    def _reply(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], REPLY_TIMEOUT_S)[0]:
            raise Unavailable(f"no answer within {REPLY_TIMEOUT_S} s: {last_line(self.log)}")
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            raise Unavailable(f"its worker ended with status {status}: {last_line(self.log)}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def train(self, steps: int) -> dict[str, Any]:
        """Train `steps` steps and return the worker's answer.

        Raises
        ------
        Unavailable
            The worker ended or does not answer.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"steps": steps}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # no answer: report the status and the log
        return self._reply()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def largest_difference(losses: dict[str, list[float]]) -> float:
    """Return the largest relative difference of two contestants' losses at a step; infinite with NaN."""
    worst = 0.0
    for at_step in zip(*losses.values(), strict=True):
        low, high = min(at_step), max(at_step)
        if any(loss != loss for loss in at_step):
            return float("inf")
        worst = max(worst, (high - low) / max(abs(low), abs(high), 1e-12))
    return worst


def _summary(values: dict[str, Any]) -> dict[str, float]:
    """Return what the times of all rounds, and the memory, amount to."""
    times = [ms for turn in values["rounds_ms"] for ms in turn]
    deciles = statistics.quantiles(times, n=10, method="inclusive") if len(times) > 1 else times * 9
    return {
        "median_ms": statistics.median(times),
        "p10_ms": deciles[0],
        "p90_ms": deciles[8],
        "above_baseline_mb": values["peak_mb"] - values["baseline_mb"],
    }


def run_case(
    case: Case,
    contestants: Sequence[Contestant],
    settings: Settings,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure one case and return its entry of the result file.

    Contestants that cannot take part are omitted, with the reason under `missing`. `say` reports the progress.

    Raises
    ------
    Unavailable
        The case's model could not be exported.
    """
    export_model(case, settings)
    steps = settings.steps or case.steps
    measured: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    workers: dict[str, Worker] = {}

    def leave_out(name: str, why: Exception) -> None:
        missing[name] = str(why)
        measured.pop(name, None)
        if worker := workers.pop(name, None):
            worker.close()

    scratch = Path(tempfile.mkdtemp(prefix="ortrain-bench-"))
    try:
        env = environment(settings.threads, scratch)
        for contestant in contestants:
            name = contestant.name
            say(f"{case.name}: {name} starts")
            try:
                workers[name] = worker = Worker(contestant, case, settings, env)
                first = worker.train(CHECKED_STEPS)
                worker.train(steps)
            except Unavailable as why:
                leave_out(name, why)
                continue
            measured[name] = {
                **worker.ready,
                "first_step_s": first["ms"][0] / 1e3,
                "start_s": worker.ready["prepare_s"] + first["ms"][0] / 1e3,
                "first_losses": first["losses"],
                "rounds_ms": [],
            }
        for number in range(settings.rounds):
            say(f"{case.name}: round {number + 1} of {settings.rounds}")
            for name, worker in list(workers.items()):
                time.sleep(PAUSE_S)
                try:
                    worker.train(1)  # brings its data back into the caches
                    reply = worker.train(steps)
                except Unavailable as why:
                    leave_out(name, why)
                    continue
                measured[name]["rounds_ms"].append(reply["ms"])
                measured[name]["peak_mb"] = reply["peak_mb"]
    finally:
        for worker in workers.values():
            worker.close()
        shutil.rmtree(scratch, ignore_errors=True)

    for values in measured.values():
        values |= _summary(values)
    differing = dict(case.differing)
    own = {c.name: c.tolerance for c in contestants if c.tolerance is not None and c.name in measured}
    losses = {name: values["first_losses"] for name, values in measured.items()}
    difference = largest_difference(
        {name: found for name, found in losses.items() if name not in own and name not in differing}
    )
    agree = difference <= case.tolerance
    for name, tolerance in own.items():
        apart = largest_difference({name: losses[name], OURS: losses.get(OURS, losses[name])})
        measured[name]["loss_difference"] = apart
        agree = agree and apart <= tolerance
    return {
        "case": case.name,
        "batch": case.batch,
        "steps_per_round": steps,
        "contestants": measured,
        "missing": missing,
        "loss_difference": difference,
        "loss_tolerance": case.tolerance,
        "losses_agree": agree,
        "differing": {name: what for name, what in differing.items() if name in measured},
    }
