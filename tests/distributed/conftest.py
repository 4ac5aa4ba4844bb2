"""The older Python API's models are those of its own tests."""

from __future__ import annotations

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1] / "legacy"))
