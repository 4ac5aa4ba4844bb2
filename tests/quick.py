"""`pytest --quick`, for `make test`: fewer cases of each test, and what that leaves to `make test-all`.

Of each test function run the cases that show each value of each of its parameters once, instead of each combination: a
test over 5 shapes and 4 types has 5 cases then, not 20. Of those marked `first_case`, whose cases take seconds
and differ in data alone, run the first. Tests marked `thorough` check again, in more ways, what others check once; they do
not run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest

_left = {"combinations": 0, "thorough": 0}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="each value of each parameter of a test once, and no thorough tests",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("quick"):
        return
    thorough = {item for item in items if item.get_closest_marker("thorough")}
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item not in thorough:
            functions[item.nodeid.partition("[")[0]].append(item)
    chosen = {item for cases in functions.values() for item in chosen_cases(cases)}
    left = [item for item in items if item not in chosen]
    _left.update(combinations=len(left) - len(thorough), thorough=len(thorough))
    items[:] = [item for item in items if item in chosen]
    config.hook.pytest_deselected(items=left)


def chosen_cases(cases: Sequence[pytest.Item]) -> Sequence[pytest.Item]:
    """Cases of a test function that run."""
    return cases[:1] if cases[0].get_closest_marker("first_case") else each_value_once(cases)


def each_value_once(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Cases of a test function in which each value of each parameter occurs; first those with many new values."""
    values = {case: _values(case) for case in cases}
    most = max(map(len, values.values()))
    seen: set[tuple[object, ...]] = set()
    chosen = []
    for wanted in range(most, 0, -1):
        for case in cases:
            if len(values[case] - seen) >= wanted:
                seen |= values[case]
                chosen.append(case)
    return chosen if most else list(cases)


def _values(case: pytest.Item) -> set[tuple[object, ...]]:
    """The value of each parameter; parameters that are given together, in tuples, count as one."""
    if not hasattr(case, "callspec"):
        return set()
    params = case.callspec.params
    given = [mark.args[0] for mark in case.iter_markers("parametrize")]
    together = [names.replace(" ", "").split(",") if isinstance(names, str) else names for names in given]
    alone = [[name] for name in params if not any(name in names for names in together)]
    return {(name, *(id(params[n]) for n in names)) for names in together + alone for name in names[:1]}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if any(_left.values()):
        terminalreporter.write_line(
            f"QUICK: LEFT OUT {_left['combinations']} combinations of parameters and {_left['thorough']} thorough tests; "
            "make test-all runs them"
        )
