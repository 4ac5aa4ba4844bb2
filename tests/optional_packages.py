"""Tests of a folder that need packages which are not among the requirements of the project."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest


class OptionalPackages:
    """The packages that the tests of a folder need. Without them the tests are left out, and a line says so.

    Parameters
    ----------
    conftest : str
        The ``conftest.py`` of the folder.
    framework : str
        What ``ORTRAIN_REQUIRE`` calls them: if it is named there, a missing package is an error.
    packages : tuple of str
        What is imported.
    target : str
        The target of ``make`` that runs the tests in an environment with the packages.
    """

    def __init__(self, conftest: str, framework: str, packages: tuple[str, ...], target: str) -> None:
        self._folder = Path(conftest).parent.name
        self._missing = ""
        try:
            for package in packages:
                importlib.import_module(package)
        except ImportError as error:
            if framework in os.environ.get("ORTRAIN_REQUIRE", "").split(","):
                raise
            self._missing = f"{error}; make {target} runs them"

    @property
    def ignored(self) -> list[str]:
        """The value of ``collect_ignore_glob``."""
        return ["test_*.py"] if self._missing else []

    def report(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say that tests are left out: ``pytest_terminal_summary``."""
        if self._missing:
            terminalreporter.write_line(f"SKIPPED tests/{self._folder}: {self._missing}")
