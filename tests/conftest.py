"""What all Python tests share: whatever they export is checked."""

from __future__ import annotations

import pytest
from exported import check_exported
from ortrain.api import Module

_EXPORT = Module.export_model_for_inferencing
_checked = 0


@pytest.fixture(autouse=True)
def exported_models_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check every model that a test exports, right after it was written."""

    def export(module: Module, path: str, names: list[str]) -> None:
        global _checked
        _EXPORT(module, path, names)
        check_exported(path)
        _checked += 1

    monkeypatch.setattr(Module, "export_model_for_inferencing", export)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _checked:
        terminalreporter.write_line(f"{_checked} exported models passed onnx.checker")
