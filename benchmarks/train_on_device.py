"""Training with the on-device API, which is the same in onnxruntime.training and ortrain."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.cases import LEARNING_RATE, Case, model_files
from benchmarks.contestants import Step


class OnDeviceTrainer:
    """Trains with the package that has `api` and `artifacts` below it.

    Parameters
    ----------
    names : the contestant, the package with `SessionOptions`, the one with `api` and `artifacts`, configuration
        entries of the session, and passes that do not rewrite the model when the artifacts are made.
    """

    def __init__(self, names: tuple[str, str, str, dict[str, str], list[str]]) -> None:
        self.contestant, runtime, self.training, self.config, self.disabled_passes = names
        self.runtime = import_module(runtime)
        self.api = import_module(f"{self.training}.api")
        self.version = f"{self.training} {getattr(self.runtime, '__version__', 'of unknown version')}"

    def make_artifacts(self, case: Case, cache: Path) -> None:
        artifacts = import_module(f"{self.training}.artifacts")
        files = model_files(cache, case)
        folder = files.artifacts(self.contestant)
        folder.mkdir(exist_ok=True)
        artifacts.generate_artifacts(
            str(files.onnx),
            requires_grad=json.loads(files.trainable.read_text()),
            frozen_params=json.loads(files.frozen.read_text()),
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=str(folder),
            **({"disabled_passes": self.disabled_passes} if self.disabled_passes else {}),
        )

    def prepare(self, case: Case, cache: Path, threads: int) -> Step:
        folder = model_files(cache, case).artifacts(self.contestant)
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads = threads
        for key, value in self.config.items():
            options.add_session_config_entry(key, value)
        state = self.api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
        # No eval model: it is not needed, and onnxruntime 1.19.2 cannot load its own with BatchNormalization.
        module = self.api.Module(
            str(folder / "training_model.onnx"), state, device="cpu", session_options=options
        )
        optimizer = self.api.Optimizer(str(folder / "optimizer_model.onnx"), module)
        optimizer.set_learning_rate(LEARNING_RATE)
        module.train()

        def step(x: Any, labels: Any) -> float:
            loss = module(x, labels)
            optimizer.step()
            module.lazy_reset_grad()
            return float(loss)

        return step
