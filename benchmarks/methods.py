"""The memory and time of each method of training: `python -m benchmarks.methods --help`.

Each method creates artifacts of one model and trains them with `Trainer`, in a separate process with one thread. The benchmark
measures the peak resident memory, minus the memory before the process loads the model, and the processor time of a train step
with its optimizer step. Other programs change processor time less than wall time, but do change it, through shared caches. The
methods take turns, and a table gives the medians over the rounds. Weights and data are random: the table shows the cost of a
method, not the quality of the model.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cases import CASES, example_input, model_files
from benchmarks.runner import ROOT
from benchmarks.worker import memory_mb

TOKENS, LENGTH = 16384, 128
ROWS = 16
"""Rows of an image model that a run goes through, so that there are features to keep."""


@dataclass(frozen=True)
class Model:
    """A model that is trained in several ways.

    Attributes
    ----------
    shown : what the table calls it.
    batch : rows of a step.
    write : writes the ONNX file; its argument is where `make bench` keeps models.
    rows : the data of a run, by the order of the model's inputs.
    methods : functions that write artifacts of the ONNX file into a folder, by what the table calls them.
    """

    shown: str
    batch: int
    write: Callable[[Path, Path], None]
    rows: Callable[[], tuple[NDArray[Any], ...]]
    methods: dict[str, Callable[[Path, Path], None]]


def _made(loss: str, **settings: Any) -> Callable[[Path, Path], None]:
    """Return a function that makes artifacts with a loss and other settings of `make_artifacts`.

    Weights that are not trained are in a file that the models map.
    """

    def make(model: Path, folder: Path) -> None:
        from ortrain import artifacts
        from ortrain.trainer.creation import make_artifacts

        given = {name: getattr(artifacts, kind)(**values) for name, (kind, values) in settings.items()}
        make_artifacts(model, loss, "adamw", folder, None, None, external_data=True, **given)

    return make


def _quantized(model: Path, folder: Path) -> None:
    """Make artifacts of adapters beside weights of 4 bits."""
    from ortrain.artifacts import quantize_weights

    small = folder.with_suffix(".onnx")
    quantize_weights(model, small, bits=4)
    _made("token_cross_entropy", adapter=("LoRA", {"r": 8}))(small, folder)
    small.unlink()


def _write_mobilenet(path: Path, cache: Path) -> None:
    case = next(case for case in CASES if case.name == "mobilenet-v2")
    source = model_files(cache, case).onnx
    if not source.exists():
        sys.exit(f"{source} does not exist; `make bench` exports it")
    path.write_bytes(source.read_bytes())


def _images() -> tuple[NDArray[Any], ...]:
    case = next(case for case in CASES if case.name == "mobilenet-v2")
    rng = np.random.default_rng(1)
    return example_input(case, ROWS, rng), rng.integers(0, case.classes, ROWS)


def _write_gpt(path: Path, cache: Path) -> None:
    import onnx
    from ortrain import models

    onnx.save(models.gpt(TOKENS, LENGTH, 512, 8, 8), path)


def _text() -> tuple[NDArray[Any], ...]:
    ids = np.random.default_rng(1).integers(0, TOKENS, (4, LENGTH + 1))
    return ids[:, :-1], np.ones_like(ids[:, :-1]), ids[:, 1:]


CACHED = "new head, features kept"
MODELS = {
    "mobilenet-v2": Model(
        "MobileNetV2, 224x224, batch 4",
        4,
        _write_mobilenet,
        _images,
        {
            "all weights": _made("cross_entropy"),
            "int8 QAT of all weights": _made("cross_entropy", qat=("Int8", {})),
            "LoRA, r = 8, on the convolutions": _made(
                "cross_entropy", adapter=("LoRA", {"r": 8, "targets": "Conv"})
            ),
            "DoRA, r = 8, on the convolutions": _made(
                "cross_entropy", adapter=("LoRA", {"r": 8, "targets": "Conv", "use_dora": True})
            ),
            "new head and the last two layers": _made(
                "cross_entropy", head=("Head", {"classes": 10, "train": "last:2"})
            ),
            "new head": _made("cross_entropy", head=("Head", {"classes": 10})),
            CACHED: _made("cross_entropy", head=("Head", {"classes": 10})),
        },
    ),
    "gpt": Model(
        f"language model, 8 layers, width 512, vocabulary {TOKENS:,}, a row of {LENGTH} tokens",
        1,
        _write_gpt,
        _text,
        {
            "all weights": _made("token_cross_entropy"),
            "LoRA, r = 8, on all linear layers": _made("token_cross_entropy", adapter=("LoRA", {"r": 8})),
            "DoRA, r = 8, on all linear layers": _made(
                "token_cross_entropy", adapter=("LoRA", {"r": 8, "use_dora": True})
            ),
            "LoRA, r = 8, beside weights of 4 bits (QLoRA)": _quantized,
        },
    ),
}


def work(model: Model, folder: Path, method: str, steps: int) -> dict[str, float]:
    """Train artifacts in this process, and return what it takes."""
    from ortrain.trainer import Callback, Trainer

    class Times(Callback):
        """Notes the time of each step."""

        def __init__(self) -> None:
            self.began, self.seconds = 0.0, list[float]()

        def on_train_batch_begin(self, batch: int, logs: dict[str, Any]) -> None:
            self.began = process_time()

        def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
            self.seconds.append(process_time() - self.began)

    rows = model.rows()
    gc.collect()
    baseline = memory_mb("VmRSS")
    config = {"ortrain.optional_outputs": "0"}
    trainer = Trainer(folder, threads=1, config=config, feature_cache=method == CACHED)
    times = Times()
    per_epoch = -(-len(rows[0]) // model.batch)
    epochs = max(2, -(-(steps + 1) // per_epoch))
    trainer.fit(rows, None, epochs, batch_size=model.batch, verbose=False, callbacks=[times])
    # The first step plans memory. With kept features, the first epoch computes them.
    timed = times.seconds[per_epoch if method == CACHED else 1 :]
    return {
        "ms": 1e3 * statistics.median(timed),
        "mb": memory_mb("VmHWM") - baseline,
        "trained": trainer.module.get_parameters_size(True),
        "checkpoint_mb": (folder / "checkpoint").stat().st_size / 2**20,
    }


def measure(names: list[str], cache: Path, rounds: int, steps: int) -> list[dict[str, Any]]:
    """Return what each method takes: a row for each model, method and round."""
    found = []
    for name in names:
        model = MODELS[name]
        with tempfile.TemporaryDirectory(prefix="ortrain-methods-") as temporary:
            path = Path(temporary) / "model.onnx"
            model.write(path, cache)
            for number, make in enumerate(model.methods.values()):
                make(path, Path(temporary) / str(number))
            for round_number in range(rounds):
                for number, method in enumerate(model.methods):
                    command = [sys.executable, "-m", "benchmarks.methods", "--steps", str(steps)]
                    command += ["--worker", name, str(number), temporary]
                    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
                    row = {"model": name, "method": method, "round": round_number, **json.loads(done.stdout)}
                    found.append({**row, "load": os.getloadavg()[0]})
                    print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Return tables, one for each model, with the medians over the rounds."""
    lines = []
    for name, model in MODELS.items():
        of_model = [row for row in rows if row["model"] == name]
        if not of_model:
            continue
        lines += [
            "",
            f"| {model.shown} | trained numbers | checkpoint | peak memory | processor time of a step |",
        ]
        lines.append("| --- | --- | --- | --- | --- |")
        for method in model.methods:
            mine = [row for row in of_model if row["method"] == method]
            memory, time = (statistics.median(row[key] for row in mine) for key in ("mb", "ms"))
            spread = f"{min(row['ms'] for row in mine):,.4g} to {max(row['ms'] for row in mine):,.4g}"
            lines.append(
                f"| {method} | {mine[0]['trained']:,.0f} | {mine[0]['checkpoint_mb']:,.3g} MiB | {memory:,.0f} MiB | "
                f"{time:,.4g} ms ({spread}) |"
            )
    loads = [row["load"] for row in rows]
    lines += ["", f"load of the machine {min(loads):.1f} to {max(loads):.1f}"]
    return "\n".join(lines[1:])


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help=f"models, of {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="minimum number of timed steps in a round")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "build" / "bench", help="folder with the models of `make bench`"
    )
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, number, folder = options.worker
        method = list(MODELS[name].methods)[int(number)]
        found = work(MODELS[name], Path(folder) / number, method, options.steps)
        print(json.dumps(found))
        return
    names = options.models.split(",")
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        parser.error(f"--models: expected some of {', '.join(MODELS)}, found {', '.join(unknown)}")
    print(table(measure(names, options.cache.absolute(), options.rounds, options.steps)))


if __name__ == "__main__":
    main()
