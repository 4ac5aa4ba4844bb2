"""These tests use the models of the tests of the older Python API."""

from __future__ import annotations

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1] / "legacy"))
