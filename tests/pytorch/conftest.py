"""The tests of this folder need PyTorch: ``make test-torch`` runs them in an environment that has it."""

from __future__ import annotations

import pytest
from optional_packages import OptionalPackages

_packages = OptionalPackages(__file__, "pytorch", ("onnxscript", "torch", "transformers"), "test-torch")
collect_ignore_glob = _packages.ignored
pytest_terminal_summary = _packages.report

if not collect_ignore_glob:
    import torch

    torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-network-table",
        action="store_true",
        help="write the networks that train as in PyTorch into docs/reference/pytorch-networks.md",
    )
