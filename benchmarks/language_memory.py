"""Memory and speed of training adapters of a language model with 4-bit weights: `python -m benchmarks.language_memory --help`.

The models have the shapes of GPT-2 small and Qwen2.5-0.5B, and random weights. benchmarks/language_shapes.py writes the models
node by node, with 4-bit weights. A step trains on one row of tokens, with LoRA of rank 8 on all linear layers but the last one.
Each contestant trains in a separate process, in turns. Memory is the peak memory of the whole process. A memory budget is the
session config entry `ortrain.memory_budget`. PyTorch trains the same shapes with peft: in float32, or with weights in bfloat16
and `torch.autocast`. With `--realtime`, processes run under `chrt -r 10`, so that other programs disturb them less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.language_shapes import SHAPES, Shape, Writer
from benchmarks.runner import ROOT
from benchmarks.worker import memory_mb

RANK = 8
_NONE = "none"


@dataclass(frozen=True)
class Contestant:
    """What trains.

    Attributes
    ----------
    program : "ortrain" or "PyTorch".
    model : a name of `SHAPES`.
    length : tokens of a row.
    precision : "fp32" or "bf16".
    embeddings : "float32" or "4-bit".
    budget : a memory budget, or "none".
    """

    program: str
    model: str
    length: int
    precision: str
    embeddings: str = ""
    budget: str = _NONE

    @property
    def folder(self) -> str:
        """The name of the artifacts, which do not depend on all settings."""
        return f"{self.model}-{self.length}-{self.embeddings}"

    def __str__(self) -> str:
        if self.program != "ortrain":
            return f"{self.program} with peft, {self.precision}"
        budget = "" if self.budget == _NONE else f", budget {self.budget}"
        return f"{self.embeddings} embeddings, {self.precision}{budget}"


def make(contestant: Contestant, folder: Path) -> None:
    """Write the artifacts of a model."""
    from ortrain.artifacts import LoRA
    from ortrain.trainer.creation import make_artifacts

    folder.mkdir(parents=True, exist_ok=True)
    path = folder.with_suffix(".onnx")
    Writer(SHAPES[contestant.model], contestant.embeddings == "4-bit", contestant.length).write(path)
    # Nor has the last layer an adapter with "all-linear" of peft.
    make_artifacts(path, "token_cross_entropy", "adamw", folder, None, None, adapter=LoRA(r=RANK))
    path.unlink()


def work(contestant: Contestant, folder: Path, steps: int, threads: int) -> dict[str, Any]:
    """Train with ortrain in this process, and return what it takes."""
    from ortrain import Trainer
    from ortrain.trainer import Callback

    class Times(Callback):
        """Notes the time of each step."""

        def __init__(self) -> None:
            self.began, self.seconds, self.losses = 0.0, list[float](), list[float]()

        def on_train_batch_begin(self, batch: int, logs: dict[str, Any]) -> None:
            self.began = perf_counter()

        def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
            self.seconds.append(perf_counter() - self.began)
            self.losses.append(logs["loss"])

    words = SHAPES[contestant.model].vocabulary
    ids = np.random.default_rng(1).integers(0, words, (steps + 1, contestant.length + 1))
    config = {"ortrain.optional_outputs": "0"}
    if contestant.budget != _NONE:
        config["ortrain.memory_budget"] = contestant.budget
    trainer = Trainer(
        folder,
        threads=threads,
        config=config,
        precision=contestant.precision,
        feature_cache=False,
        learning_rate=1e-4,
    )
    times = Times()
    trainer.fit((ids[:, :-1], ids[:, 1:]), 1, batch_size=1, verbose=False, callbacks=[times])
    return _found(times.seconds, times.losses)


def _torch_model(shape: Shape, length: int) -> Any:
    """Return the model of transformers with a shape."""
    import transformers  # type: ignore[import-not-found, unused-ignore]

    if shape.gated:
        config = transformers.Qwen2Config(
            vocab_size=shape.vocabulary,
            hidden_size=shape.width,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.groups,
            max_position_embeddings=length,
            tie_word_embeddings=True,
            use_cache=False,
        )
        return transformers.Qwen2ForCausalLM(config)
    config = transformers.GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=length,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        use_cache=False,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


def work_torch(contestant: Contestant, steps: int, threads: int) -> dict[str, Any]:
    """Train with PyTorch and peft in this process, and return what it takes."""
    import peft  # type: ignore[import-not-found, unused-ignore]
    import torch

    torch.set_num_threads(threads)
    shape, narrow = SHAPES[contestant.model], contestant.precision == "bf16"
    model = _torch_model(shape, contestant.length)
    if narrow:
        model = model.to(torch.bfloat16)
    lora = peft.LoraConfig(
        r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", fan_in_fan_out=not shape.gated
    )
    model = peft.get_peft_model(model, lora).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-4)
    ids = np.random.default_rng(1).integers(0, shape.vocabulary, (steps + 1, contestant.length + 1))
    seconds, losses = list[float](), list[float]()
    for row in torch.from_numpy(ids):
        began = perf_counter()
        with torch.autocast("cpu", torch.bfloat16) if narrow else nullcontext():
            scores = model(input_ids=row[None, :-1]).logits
            loss = torch.nn.functional.cross_entropy(scores[0], row[1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        seconds.append(perf_counter() - began)
    return _found(seconds, losses)


def _found(seconds: Sequence[float], losses: Sequence[float]) -> dict[str, Any]:
    """Return what was measured. The first step plans memory."""
    return {
        "seconds": statistics.median(seconds[1:]),
        "losses": list(losses),
        "peak": memory_mb("VmHWM"),
        "own": memory_mb("RssAnon"),
        "mapped": memory_mb("RssFile"),
    }


def contestants_of(options: argparse.Namespace) -> list[Contestant]:
    """Return what the options ask for."""
    found = []
    for model in options.models.split(","):
        for length in map(int, options.length.split(",")):
            for precision in options.precision.split(","):
                found += [
                    Contestant("ortrain", model, length, precision, embeddings, budget)
                    for embeddings in options.embeddings.split(",")
                    for budget in options.budgets.split(",")
                ]
                if options.torch:
                    found.append(Contestant("PyTorch", model, length, precision))
    return found


def measure(options: argparse.Namespace) -> dict[Contestant, list[dict[str, Any]]]:
    """Return what each contestant took in each round."""
    rows: dict[Contestant, list[dict[str, Any]]] = {}
    contestants = contestants_of(options)
    settings = ["--steps", str(options.steps), "--threads", str(options.threads)]
    with tempfile.TemporaryDirectory(prefix="ortrain-memory-", dir=options.folder) as temporary:
        for _ in range(options.rounds):
            for contestant in contestants:
                worker = ["--worker", json.dumps(asdict(contestant))]
                python = sys.executable if contestant.program == "ortrain" else options.torch
                folder = Path(temporary) / contestant.folder
                if contestant.program == "ortrain":
                    worker += ["--artifacts", str(folder)]
                    if not folder.exists():  # in a separate process, which gives its memory back
                        _run(python, [*worker, "--make"], options.realtime)
                printed = _run(python, [*settings, *worker], options.realtime)
                rows.setdefault(contestant, []).append(json.loads(printed.splitlines()[-1]))
                print(contestant.model, contestant.length, contestant, rows[contestant][-1], file=sys.stderr)
    return rows


def table(rows: dict[Contestant, list[dict[str, Any]]], threads: int) -> str:
    """Return the results as a table in Markdown."""
    lines = [
        "| model | tokens of a row | contestant | peak memory | not mapped | tokens per second |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for contestant, found in rows.items():
        rates = sorted(contestant.length / each["seconds"] for each in found)
        speed = f"{_median(contestant, found, 'rate'):,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})"
        peak, own = (_median(contestant, found, key) for key in ("peak", "own"))
        lines.append(
            f"| {contestant.model} | {contestant.length} | {contestant} | {peak:,.0f} MiB | {own:,.0f} MiB | {speed} |"
        )
    return "\n".join([*lines, "", f"load of the machine {os.getloadavg()[0]:.1f}, {threads} threads"])


def _median(contestant: Contestant, found: Sequence[dict[str, Any]], key: str) -> float:
    if key == "rate":
        return contestant.length / float(statistics.median(each["seconds"] for each in found))
    return float(statistics.median(each[key] for each in found))


def plot(rows: dict[Contestant, list[dict[str, Any]]], file: Path) -> None:
    """Draw memory and tokens per second over the length of a row, a line of panels for each model."""
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(contestant.model for contestant in rows))
    figure = Figure(figsize=(10, 0.6 + 3.4 * len(models)), layout="constrained")
    panels = figure.subplots(len(models), 2, squeeze=False)
    for model, (memory, speed) in zip(models, panels, strict=True):
        of_model = [contestant for contestant in rows if contestant.model == model]
        for what in dict.fromkeys(map(str, of_model)):
            points = sorted((each for each in of_model if str(each) == what), key=lambda each: each.length)
            lengths = [each.length for each in points]
            style = "s--" if points[0].program == "PyTorch" else "o-"
            for axes, key in ((memory, "peak"), (speed, "rate")):
                values = [_median(each, rows[each], key) for each in points]
                axes.plot(lengths, values, style, label=what)
        memory.set_ylabel("peak memory of the process, MiB")
        speed.set_ylabel("tokens per second")
        for axes in (memory, speed):
            axes.set_title(model, fontsize=10)
            axes.set_xlabel("tokens of a row")
            axes.set_xticks(sorted({each.length for each in of_model}))
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        memory.legend(fontsize=7)
    figure.savefig(file, dpi=110)


def _run(python: str, arguments: Sequence[str], realtime: bool) -> str:
    command = [python, "-m", "benchmarks.language_memory", *arguments]
    command = ["chrt", "-r", "10", *command] if realtime else command
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(SHAPES), help=f"models, of {', '.join(SHAPES)}")
    parser.add_argument(
        "--length",
        default="256",
        metavar="N,...",
        help="numbers of tokens of a row; several numbers give a curve",
    )
    parser.add_argument(
        "--precision", default="fp32", metavar="NAME,...", help="precisions, of fp32 and bf16"
    )
    parser.add_argument(
        "--embeddings", default="4-bit", metavar="NAME,...", help="types of embeddings, of float32 and 4-bit"
    )
    parser.add_argument(
        "--budgets",
        default=f"{_NONE},auto",
        metavar="BUDGET,...",
        help="memory budgets, such as auto and 170M",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="timed steps per round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--torch", help="a Python interpreter with torch, transformers and peft, to compare with"
    )
    parser.add_argument("--folder", help="folder for artifacts while the script runs")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="file for a plot of memory and speed over the length"
    )
    parser.add_argument("--realtime", action="store_true", help="run processes under chrt -r 10")
    for internal in ("--worker", "--artifacts"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.worker:
        rows = measure(options)
        print(table(rows, options.threads))
        if options.plot:
            plot(rows, options.plot)
        return
    contestant = Contestant(**json.loads(options.worker))
    if options.make:
        make(contestant, Path(options.artifacts))
    elif contestant.program == "ortrain":
        print(json.dumps(work(contestant, Path(options.artifacts), options.steps, options.threads)))
    else:
        print(json.dumps(work_torch(contestant, options.steps, options.threads)))


if __name__ == "__main__":
    main()
