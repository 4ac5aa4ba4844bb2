"""Compares optimizers, schedules and losses with their oracles, and records the largest errors for the tables of the docs.

`make oracle-errors` runs the tests with `--write-oracle-errors`, which writes docs/oracle_errors.json: for each of "losses",
"optimizers" and "schedules" and each name, the largest error by precision. An error is relative to an expected value of
magnitude above 1, and absolute below.
"""

from __future__ import annotations

import json
import pathlib
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

FILE = pathlib.Path(__file__).parents[1] / "docs" / "oracle_errors.json"
OPTION = "--write-oracle-errors"
_largest: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))


def error_of(found: Any, expected: Any) -> float:
    """Return the largest difference, relative to expected values of magnitude above 1."""
    want = np.asarray(expected, np.float64)
    return float(
        np.max(np.abs(np.asarray(found, np.float64) - want) / np.maximum(1, np.abs(want)), initial=0)
    )


def check_against_oracle(
    kind: str, name: str, dtype: Any, found: Any, expected: Any, limit: float, context: str
) -> None:
    """Require an error of at most `limit`, and record it."""
    assert np.shape(found) == np.shape(expected), context
    error = error_of(found, expected)
    assert error <= limit, f"{context}: expected an error of at most {limit:g}, found {error:g}"
    errors, precision = _largest[kind][name], np.dtype(dtype).name
    errors[precision] = max(errors.get(precision, 0.0), error)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help=f"write docs/{FILE.name}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if session.config.getoption(OPTION) and exitstatus == 0:
        written = {
            kind: {
                name: {precision: float(f"{error:.0e}") for precision, error in sorted(errors.items())}
                for name, errors in sorted(names.items())
            }
            for kind, names in sorted(_largest.items())
        }
        FILE.write_text(json.dumps(written, indent=2) + "\n", "utf-8")
