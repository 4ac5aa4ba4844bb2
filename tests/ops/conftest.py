"""Runs every case with and without the session's passes, and the table of gradients after the tests behind it."""

from __future__ import annotations

import pathlib

import gradient_coverage
import pytest
import runner
from gradient_coverage import COMPLETE

LAST = "test_gradient_table"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-gradient-table", action="store_true", help="write docs/reference/gradients.md from what tests/ops covers"
    )  # fmt: skip
    parser.addoption(
        "--passes",
        choices=["both", "on", "off"],
        default="both",
        help="run the cases of tests/ops with these passes",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if pathlib.Path(metafunc.module.__file__).stem == LAST:
        return
    chosen = metafunc.config.getoption("passes")
    metafunc.parametrize(
        "passes", ["on", "off"] if chosen == "both" else [chosen], indirect=True, scope="module"
    )


@pytest.fixture(scope="module", autouse=True)
def passes(request: pytest.FixtureRequest) -> None:
    """Run with and without the passes of sessions, so that a wrong pass and a wrong kernel cannot hide each other."""
    gradient_coverage.noting = getattr(request, "param", "on") == "on"
    runner.switch_passes(gradient_coverage.noting)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem == LAST)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Record whether every gradient test is selected: the table is meaningless after only some of them."""
    here = pathlib.Path(__file__).parent
    wanted = {path for path in here.rglob("test_*.py") if "check_gradient(" in path.read_text()}
    collected = {item.path for item in session.items if here in item.path.parents}
    options = session.config.option
    chosen = (
        options.keyword
        or options.markexpr
        or options.passes == "off"
        or any("::" in argument for argument in session.config.args)
    )
    session.config.stash[COMPLETE] = wanted <= collected and not chosen
