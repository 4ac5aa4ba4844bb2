"""The option that records which exported models train on stock onnxruntime."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-step-models",
        action="store_true",
        help="write tests/models/step_record.yaml; run tests/models/test_exports_on_onnxruntime.py",
    )
