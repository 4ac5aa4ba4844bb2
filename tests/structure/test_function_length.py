"""No function of the core is longer than a reader can hold in mind."""

from __future__ import annotations

import pathlib

import lizard

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = ROOT / "core" / "src"
MOST_LINES = 80
# Functions that are better whole, each with the reason.
EXCEPTIONS: dict[tuple[str, str], str] = {}


def lengths() -> dict[tuple[str, str], int]:
    """Return the lines of every function, by source and name; lambdas count for the function around them."""
    found: dict[tuple[str, str], int] = {}
    for source in sorted(SOURCES.rglob("*")):
        if source.suffix not in {".cpp", ".h"} or "generated" in source.parts:
            continue
        for function in lizard.analyze_file(str(source)).function_list:
            key = (source.relative_to(SOURCES).as_posix(), function.name.removeprefix("ortrain::"))
            found[key] = max(found.get(key, 0), function.end_line - function.start_line + 1)
    return found


def test_functions_are_not_too_long() -> None:
    found = lengths()
    # A sample of what the parser has to see: a template among vector code, a method, a kernel maker.
    for known in [
        ("backend/cpu/attention/attention_kernel.cpp", "HWY_NAMESPACE::Backward"),
        ("program/executor.cpp", "Executor::Impl::compile"),
        ("ops/recurrent/lstm.cpp", "backward"),
    ]:
        assert found[known] > 5, known
    too_long = {key: lines for key, lines in found.items() if lines > MOST_LINES and key not in EXCEPTIONS}
    assert not too_long, (
        f"more than {MOST_LINES} lines; cut at the phases that their comments name: {too_long}"
    )
    outdated = [key for key in EXCEPTIONS if found.get(key, 0) <= MOST_LINES]
    assert not outdated, f"no longer exceptions: {outdated}"
