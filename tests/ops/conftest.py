"""Puts the table of gradients behind the tests that it is made of."""

from __future__ import annotations

import pathlib

import pytest
from gradient_coverage import COMPLETE

LAST = "test_gradient_table"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-gradient-table", action="store_true", help="write docs/reference/gradients.md from what tests/ops covers"
    )  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem == LAST)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note whether every gradient test is to run: the table says nothing after a part of them."""
    here = pathlib.Path(__file__).parent
    wanted = {path for path in here.rglob("test_*.py") if "check_gradient(" in path.read_text()}
    collected = {item.path for item in session.items if here in item.path.parents}
    options = session.config.option
    chosen = options.keyword or options.markexpr or any("::" in argument for argument in session.config.args)
    session.config.stash[COMPLETE] = wanted <= collected and not chosen
