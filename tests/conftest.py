"""Shared by all Python tests: exported models are checked, and the recorded runs of onnxruntime-training 1.19.2."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

import onnx
import pytest
from exported import check_exported
from ortrain.api import Module
from recorded import CASES, Fixture

pytest_plugins = ["quick", "oracle_errors"]

try:
    import onnxruntime
except ImportError:  # tests that need it skip or fail
    pass
else:
    _SESSION = onnxruntime.InferenceSession.__init__

    @functools.wraps(_SESSION)
    def _with_one_thread(session, path_or_bytes, sess_options=None, *arguments, **named):  # type: ignore[no-untyped-def]
        """Give sessions of stock onnxruntime one thread unless a test chooses how many: several wait by spinning."""
        sess_options = sess_options or onnxruntime.SessionOptions()
        sess_options.intra_op_num_threads = sess_options.intra_op_num_threads or 1
        _SESSION(session, path_or_bytes, sess_options, *arguments, **named)

    onnxruntime.InferenceSession.__init__ = _with_one_thread

_EXPORT = Module.export_model_for_inferencing
_checked = 0


@pytest.fixture(autouse=True)
def exported_models_are_valid(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check every model that a test exports, right after it is written."""
    no_rank = request.node.get_closest_marker("output_of_unknown_rank") is not None

    @functools.wraps(_EXPORT)
    def export(module: Module, path: str, names: list[str]) -> None:
        global _checked
        _EXPORT(module, path, names)
        if no_rank:  # ONNX requires a shape for every output, and has none of unknown rank
            with pytest.raises(onnx.checker.ValidationError, match="Field 'shape' of 'type' is required"):
                check_exported(path)
            return
        check_exported(path)
        _checked += 1

    monkeypatch.setattr(Module, "export_model_for_inferencing", export)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _checked:
        terminalreporter.write_line(f"{_checked} exported models passed onnx.checker")


@pytest.fixture(params=CASES)
def recorded(request: pytest.FixtureRequest) -> Fixture:
    """Each recorded run in turn."""
    return Fixture(request.param)


@pytest.fixture
def mlp() -> Fixture:
    """The smallest recorded run."""
    return Fixture("mlp_adamw")


@pytest.fixture(scope="session")
def ort_training_python() -> str:
    """An interpreter that has onnxruntime-training 1.19.2; skips, with a message, if there is none."""
    given = os.environ.get("ORTRAIN_ORT_PYTHON", ".venv-peers/ort/bin/python")
    python = shutil.which(given)
    if python is None:
        pytest.skip(
            f"SKIPPED LOUDLY: no interpreter with onnxruntime-training 1.19.2 at {given!r}; `make bench-peers` makes one"
        )
    found = subprocess.run(
        [python, "-c", "import onnxruntime, onnxruntime.training.api; print(onnxruntime.__version__)"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.stdout.strip() != "1.19.2":
        pytest.skip(
            f"SKIPPED LOUDLY: {given!r} has no onnxruntime-training 1.19.2: {found.stdout}{found.stderr[-300:]}"
        )
    return python
