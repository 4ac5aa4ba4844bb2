"""The backend test cases that come with the ``onnx`` package: what passed once keeps passing."""

from __future__ import annotations

import pytest

from . import cases, compare, record, runtimes
from .cases import Case

RECORD = record.read()
KNOWN = RECORD.known
LOADED = {kind: cases.load(kind) for kind in cases.KINDS}
CASES = [case for found, _ in LOADED.values() for case in found]

PROMISED_NODE_CASES = 1800
"""Node cases that must pass in every version from now on."""

same_packages = pytest.mark.skipif(
    not RECORD.is_of_these_packages, reason="the record is of another version of the onnx package"
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case) -> None:
    try:
        compare.check(case, runtimes.prepare_ours(case.model))
    except Exception as error:
        if case.id not in KNOWN:
            raise
        pytest.xfail(compare.reason(error))
    if case.id in KNOWN:
        pytest.fail(
            "the case passes, though record.yaml lists it as failing: run `python -m tests.conformance --only ortrain`"
        )


@same_packages
def test_as_many_cases_are_run_as_are_recorded() -> None:
    found = {kind: (len(some), left_out) for kind, (some, left_out) in LOADED.items()}
    assert found == {kind: (n["cases"], n["left_out"]) for kind, n in RECORD.kinds.items()}
    assert set(KNOWN) <= {case.id for case in CASES}
    for kind, numbers in RECORD.kinds.items():
        failing = sum(case.startswith(f"{kind}/") for case in KNOWN)
        assert numbers["ortrain"] == numbers["cases"] - failing


def test_at_least_as_many_pass_as_the_project_promises() -> None:
    assert RECORD.kinds["node"]["ortrain"] >= PROMISED_NODE_CASES
