"""The option that records a new version of our own table."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-own-table", action="store_true", help="append new calls of OrtrainApi to tests/data/OrtrainApi.csv"
    )  # fmt: skip
