"""The log of a run as JSON lines, which ``ortrain dashboard`` shows."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
import weakref
from pathlib import Path
from typing import Any, TextIO

from ortrain import profiling
from ortrain._files.reading import open_file, parse_json
from ortrain._files.system import system
from ortrain._files.writing import appending, write_file
from ortrain._ortrain import __version__
from ortrain.preprocessing import text
from ortrain.trainer.callbacks import Callback, Logs
from ortrain.trainer.outcomes import Projection, Regression
from ortrain.trainer.summaries import Misread, Tokens, describe_layers, describe_model

FORMAT = 1  # version of the lines, which docs/dashboard.md describes

SET_ASIDE = "set-aside"
"""Folders of this name and a number have the files of epochs that a resumed run no longer has."""

_FIRST_PROFILED = 3  # optimizer steps before the profile; the first steps compile and warm up
_MOST_LAYERS = 100  # snapshots of the layers in a run; fewer than one per epoch in longer runs
_PROFILED_NODES = 50  # most expensive nodes that a profile lists beside the operators


class JSONLogger(Callback):
    """Writes the log of a run as JSON lines, which ``ortrain dashboard`` shows.

    Each line is an object; ``event`` says which kind of line it is, ``step`` and ``epoch`` where the run was. Numbers that
    JSON cannot represent are null. A resumed run appends to the file.

    Parameters
    ----------
    filename : str or os.PathLike
        The file.
    every : int, default 1
        Number of optimizer steps between lines with loss, learning rate and time.
    norms : int, default 10
        Number of optimizer steps between norms of all gradients; 0 for none.
    layers : "epoch" or int, default "epoch"
        When norms and histograms of each trained parameter and its gradient are taken: after the first step of an
        epoch, in at most 100 epochs of the run, and at the end; or after so many optimizer steps. 0 for never.
    profile : int, default 5
        Optimizer steps whose kernels are timed, near the beginning of the run; 0 for none. It replaces a recording
        that ``module.start_profiling`` began.
    samples : int, default 12
        Number of rows of each validation that are logged with their inputs: those that a classifier gets wrong, or
        those with the largest errors of a predicted number. In addition, 300 rows are logged as points of pictures. 0
        logs neither. If the folder of artifacts has a ``tokenizer.json``, tokens are written as text.
    name : str, optional
        Name of the run in the dashboard; by default, that of the file. A resumed run keeps its name.

    Raises
    ------
    ValueError
        When a number is out of range.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        every: int = 1,
        *,
        norms: int = 10,
        layers: str | int = "epoch",
        profile: int = 5,
        samples: int = 12,
        name: str | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every: expected 1 or more, found {every}")
        if layers != "epoch" and (not isinstance(layers, int) or layers < 0):
            raise ValueError(f"layers: expected 'epoch' or 0 or more, found {layers!r}")
        for option, value in (("norms", norms), ("profile", profile), ("samples", samples)):
            if value < 0:
                raise ValueError(f"{option}: expected 0 or more, found {value}")
        self.filename, self.every, self.norms, self.layers = Path(filename), every, norms, layers
        self.profile, self.samples, self.name = profile, samples, name
        self._file: TextIO | None = None
        self._began = self._last = self._flushed = self._measured = 0.0
        self._step = self._first_step = self._layers_step = -1
        self._layers_due = False
        self._profiled: weakref.ref[Any] | None = None  # the module whose profile is being recorded
        self._looking: tuple[Misread, Regression, Projection] | None = None
        self._tokens: Tokens | None = None
        self._handled: BaseException | None = None

    # ---- moments ----

    def on_train_begin(self, logs: Logs) -> None:
        """Write the beginning and the model; drop the lines after the point at which the run resumes."""
        trainer = self.trainer
        kept, elapsed = self._lines_before() if trainer.resumed else ([], 0.0)
        # A new file replaces the old one, so that a reader never sees lines of both in one file.
        self.filename.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.filename, "log", "".join(f"{line}\n" for line in kept))
        self._file = self.filename.open("a", encoding="utf-8")
        self._handled = sys.exc_info()[1]
        self._step = self._first_step = trainer.step
        self._layers_step, self._layers_due, self._profiled, self._measured = -1, False, None, 0.0
        self._tokens = _tokens_of(trainer.folder / text.FILE)
        model = describe_model(trainer)
        self._last = self._flushed = time.perf_counter()
        self._began = self._last - elapsed
        settings = trainer.settings
        if "optimizer" in model:
            settings["optimizer"] = model.pop("optimizer")
        beginning = {
            "format": FORMAT,
            "ortrain": __version__,
            "time": time.time(),
            "resumed": trainer.resumed,
            "parameters": trainer.module.get_parameters_size(True),
            "settings": settings,
        }
        if self.name is not None:
            beginning["name"] = self.name
        if trainer.classes is not None:
            beginning["classes"] = trainer.classes
        self._write("begin", beginning)
        self._write("model", model)
        self._flush()

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on under the name, unless there is a new one."""
        self.name = self.name or state.get("name")

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """Choose the epochs whose layers are described."""
        self._layers_due = self.layers == "epoch" and epoch % -(-self.trainer.epochs // _MOST_LAYERS) == 0

    def on_train_batch_begin(self, batch: int, logs: Logs) -> None:
        """Start the profile."""
        if self._profiling or not self.profile or self._file is None:
            return
        if self._profiled is not None:  # another module took over: profile that one
            self._first_step = self.trainer.step - _FIRST_PROFILED
        if self.trainer.step == self._first_step + _FIRST_PROFILED:
            self.trainer.module.start_profiling()
            # A strong reference would keep the session from being replaced.
            self._profiled = weakref.ref(self.trainer.module)

    @property
    def _profiling(self) -> bool:
        return self._profiled is not None and self._profiled() is self.trainer.module

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """Write the line of a step."""
        trainer, step = self.trainer, self.trainer.step
        if step == self._step:
            return  # the step only accumulated gradients
        self._step = step
        now = time.perf_counter()
        if step % self.every == 0:
            values = {**logs, "seconds": now - self._last}
            if self.norms and step % self.norms == 0:
                values["gradient_norm"] = trainer.module.get_gradient_norm()
            if now - self._measured > 0.5:
                self._measured = now
                memory = system.memory_in_use()
                if memory is not None:
                    values["memory"] = memory
            self._write("step", values)
        if self._profiling and step - self._first_step >= _FIRST_PROFILED + self.profile:
            self._end_profile()
        if self._layers_due or (isinstance(self.layers, int) and self.layers and step % self.layers == 0):
            self._layers_due = False
            self._write_layers()
        if now - self._flushed > 1:
            self._flush()
            self._flushed = now
        self._last = time.perf_counter()

    def on_test_begin(self, logs: Logs) -> None:
        """Begin to look at rows; eval steps are not part of the profile."""
        if self._file is None:
            return
        if self._profiling:
            self._end_profile()
        self._looking = (
            Misread(self.samples, self._tokens),
            Regression(self.samples, self._tokens),
            Projection(),
        )

    def on_test_batch_end(self, batch: int, logs: Logs) -> None:
        """Look at the rows of the batch."""
        if self._looking is None:
            return
        last, outputs = self.trainer.last_batch, self.trainer.last_outputs
        if self.trainer.classes is not None and self.trainer.inputs.forms[-1].class_count is not None:
            # the target is a probability for each class: take the class with the highest one
            last = (*last[:-1], last[-1].argmax(axis=1))
        for each in self._looking if self.samples else self._looking[:1]:
            each.look_at(last, outputs)

    def on_test_end(self, logs: Logs) -> None:
        """Write what the validation found: misread rows and confusion, or errors of numbers, and a map of the rows."""
        looking, self._looking = self._looking, None
        if looking is None:
            return
        misread, regression, projection = looking
        if misread.rows and len(misread.confusion):
            self._write(
                "confusion",
                {"rows": misread.rows, "wrong": misread.wrong, "counts": misread.confusion.tolist()},
            )
        if misread.rows and self.samples:
            self._write("samples", misread.describe(self.trainer.inputs.names))
        if regression.rows:
            self._write("regression", regression.describe())
        points = projection.describe()
        if points is not None:
            self._write("projection", points)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Write the line of an epoch."""
        self._write("epoch", {"epoch": epoch, **logs})
        self._flush()
        self._step = self.trainer.step  # the last optimizer step of an epoch may follow its last batch
        self._last = time.perf_counter()

    def on_train_end(self, logs: Logs) -> None:
        """Write the end and close the file."""
        if self._file is None:
            return
        trainer = self.trainer
        error = sys.exc_info()[1]
        failed = error is not None and error is not self._handled
        if self._profiling:
            self._end_profile()
        if (
            self.layers
            and trainer.step > self._first_step
            and self._layers_step != trainer.step
            and not failed
        ):
            self._write_layers()
        values: dict[str, Any] = {"time": time.time()}
        values["status"] = (
            "failed" if failed else "complete" if trainer.epoch >= trainer.epochs else "stopped"
        )
        if trainer.stop_reason is not None:
            values["reason"] = trainer.stop_reason
        if failed:
            values["error"] = f"{type(error).__name__}: {error}"
        self._write("end", values)
        file, self._file = self._file, None
        with appending(self.filename, "log"):
            file.close()

    def state(self) -> dict[str, Any]:
        """Write what is buffered: a run that resumes from the checkpoint needs the lines before it."""
        self._flush()
        return {} if self.name is None else {"name": self.name}

    # ---- lines ----

    def _lines_before(self) -> tuple[list[str], float]:
        """Return the lines of the file up to the point at which the run resumes, and the seconds until then."""
        kept: list[str] = []
        elapsed = 0.0
        if not self.filename.exists():
            return kept, elapsed
        with open_file(self.filename, "log") as file:
            lines = file.read().decode("utf-8", errors="replace").splitlines()
        for line in lines:
            try:
                entry = parse_json(line)
            except ValueError:
                continue  # a process was killed while it wrote the line
            if not isinstance(entry, dict) or entry.get("event") == "end":
                continue
            step, until = entry.get("step", 0), entry.get("elapsed", 0.0)
            if isinstance(step, int) and isinstance(until, (int, float)) and step <= self.trainer.step:
                kept.append(line)
                elapsed = max(elapsed, until)
        return kept, elapsed

    def _write_layers(self) -> None:
        self._layers_step = self.trainer.step
        self._write("layers", describe_layers(self.trainer.state))

    def _end_profile(self) -> None:
        self._profiled = None
        self._first_step = (
            -1 - _FIRST_PROFILED
        )  # no step of this run can equal this number, so there is only one profile
        trace = json.loads(self.trainer.module.end_profiling())
        steps = profiling.steps_in(trace)
        if not steps:
            return
        rows, total = profiling.summarize(trace)
        nodes, _ = profiling.summarize(trace, by_node=True)
        self._write(
            "profile",
            {
                "steps": len(steps),
                "milliseconds": total,
                "arena_bytes": max(step["arena_bytes"] for step in steps),
                "live_bytes": max(step["live_bytes"] for step in steps),
                "operators": [vars(row) for row in rows],
                "nodes": [vars(row) for row in nodes[:_PROFILED_NODES]],
            },
        )

    def _flush(self) -> None:
        if self._file is not None:
            with appending(self.filename, "log"):
                self._file.flush()

    def _write(self, event: str, values: dict[str, Any]) -> None:
        if self._file is None:
            return
        entry = {
            "event": event,
            "step": self.trainer.step,
            "epoch": self.trainer.epoch,
            "elapsed": round(time.perf_counter() - self._began, 6),
            **values,
        }
        try:
            line = json.dumps(entry, allow_nan=False)
        except ValueError:
            line = json.dumps(_finite(entry))
        with appending(self.filename, "log"):
            self._file.write(line + "\n")


def is_set_aside(folder: str) -> bool:
    """Whether a folder of this name has files that were set aside. The logs in it are not those of separate runs."""
    return re.fullmatch(rf"{SET_ASIDE}-[0-9]+", folder) is not None


def has_epochs_after(path: Path, step: int) -> bool:
    """Whether a log has complete epochs after an optimizer step."""
    if not path.exists():
        return False
    with open_file(path, "log") as file:
        for line in file:
            if b'"event": "epoch"' not in line:
                continue
            try:
                entry = parse_json(line.decode("utf-8", errors="replace"))
            except ValueError:
                continue  # a process was killed while it wrote the line
            found = entry.get("step") if isinstance(entry, dict) else None
            if isinstance(found, int) and found > step:
                return True
    return False


def _tokens_of(path: Path) -> Tokens | None:
    """Return a function that names the tokens of a tokenizer file; None without that file or without the package for it."""
    if not path.exists():
        return None
    try:
        return text.Tokenizer(path).names_of
    except (ImportError, ValueError):
        return None  # the log then has numbers instead of tokens


def _finite(value: Any) -> Any:
    """Return a value with null instead of the numbers that JSON cannot represent."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
