"""Runs tests without passes too where a pass changes a graph, and what looks at all tests after them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import gradient_coverage
import pytest
import runner
from gradient_coverage import COMPLETE
from runner import WHOLE

LAST = ("test_gradient_coverage", "test_every_operator", "test_standard_form")
_HERE = pathlib.Path(__file__).parent
_twice = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--passes",
        choices=["both", "on", "off"],
        default="both",
        help="run the tests of tests/ops with passes, without them, or, by default, with and then without them "
        "if a pass changes the graph of a session of the test; with --quick, with them",
    )
    parser.addoption(
        "--record-standard-forms",
        action="store_true",
        help="write tests/ops/standard_forms.yaml; run all tests of tests/ops",
    )


@pytest.hookimpl(wrapper=True, trylast=True)  # inside of what captures the output
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run a test with the passes of sessions, and without, so that a wrong pass and a wrong kernel cannot hide each other."""
    global _twice
    chosen = item.config.getoption("passes", default="both")
    _switch(chosen != "off")
    runner.passes.watch(chosen == "both" and not item.config.getoption("quick"))
    yield
    if not runner.passes.changed or item.path.stem in LAST:
        return
    _twice += 1
    print("Without passes:")  # shown if the test fails
    _switch(False)
    item.runtest()


def _switch(on: bool) -> None:
    runner.passes.switch(on)
    gradient_coverage.noting = on


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _twice:
        terminalreporter.write_line(f"{_twice} tests ran without passes too: a pass changes their graphs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem in LAST)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Record what the run includes: what is known after only some of the tests is meaningless."""
    collected = {item.path for item in session.items if _HERE in item.path.parents}
    options = session.config.option
    chosen = options.keyword or options.markexpr or any("::" in argument for argument in session.config.args)
    tests = set(_HERE.rglob("test_*.py"))
    session.config.stash[WHOLE] = tests <= collected and not chosen
    of_gradients = {path for path in tests if "check_gradient(" in path.read_text()}
    some = chosen or options.quick or options.passes == "off"
    session.config.stash[COMPLETE] = of_gradients <= collected and not some
