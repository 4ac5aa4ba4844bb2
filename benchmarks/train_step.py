"""Training with a step model on stock onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.cases import LEARNING_RATE, Case, model_files
from benchmarks.contestants import Step


class StepTrainer:
    """Trains with a step model of ortrain, and the onnxruntime of the running interpreter.

    The contestant is "step" for a step model with the case's number of rows, "step-any" for one that takes any number.
    """

    def __init__(self, contestant: str) -> None:
        import onnxruntime

        self.contestant = contestant
        self.version = f"onnxruntime {onnxruntime.__version__}"

    def _folder(self, case: Case, cache: Path) -> Path:
        return model_files(cache, case).artifacts(self.contestant)

    def make_artifacts(self, case: Case, cache: Path) -> None:
        from ortrain import artifacts

        files = model_files(cache, case)
        artifacts.generate_step(
            str(files.onnx),
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            path=self._folder(case, cache) / "step.onnx",
            rows=case.batch if self.contestant == "step" else None,
            requires_grad=json.loads(files.trainable.read_text()),
            frozen_params=json.loads(files.frozen.read_text()),
        )

    def prepare(self, case: Case, cache: Path, threads: int) -> Step:
        import onnxruntime
        from ortrain import step

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.set_denormal_as_zero", "1")  # the default of step.Session
        session = step.Session(
            self._folder(case, cache) / "step.onnx", learning_rate=LEARNING_RATE, session_options=options
        )

        def take(x: Any, labels: Any) -> float:
            return float(session(x, labels))

        return take
