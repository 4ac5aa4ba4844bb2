"""Every slot of every table is called by its number, by a program that knows only the recorded layout."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import layout
import pytest
from languages import ROOT, Missing, compile_c_against, skip_or_fail

sys.path.insert(0, str(ROOT))

from codegen.languages.c import Language
from codegen.spec.check import load

FIXTURE = ROOT / "tests/data/fixtures/mlp_adamw"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """What each slot did, by table and name."""
    folder = tmp_path_factory.mktemp("slots")
    (folder / "layout.h").write_text(layout.header())
    (folder / "sweep.h").write_text(layout.sweep())
    try:
        program = compile_c_against([folder], [Path(__file__).parent / "slots.c"], folder / "slots")
    except Missing as why:
        skip_or_fail("c", why)
    ran = program.run([FIXTURE, folder])
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-200:]
    rows = [line.split() for line in ran.stdout.splitlines()]
    return {(table, name): answer for table, _, name, answer in rows}


def test_every_slot_of_every_table_was_called(answers: dict[tuple[str, str], str]) -> None:
    expected = {(table, slot.name) for table in layout.TABLES for slot in layout.slots(table)}
    assert set(answers) == expected


def test_what_the_spec_calls_implemented_is_called_with_real_arguments(
    answers: dict[tuple[str, str], str],
) -> None:
    called = {key for key, answer in answers.items() if answer == "called"}
    c = Language(load(ROOT / "spec"))
    calls = [call for call in c.spec.calls.values() if call.table != "extension"]
    assert called == {(c.table(call.table), c.function(call)) for call in calls}


def test_the_other_slots_refuse_or_do_nothing(answers: dict[tuple[str, str], str]) -> None:
    counts = {table: Counter(a for (of, _), a in answers.items() if of == table) for table in layout.TABLES}
    assert counts["OrtTrainingApi"] == {"called": 33}
    assert counts["OrtCompileApi"] == {"called": 19, "unimplemented": 1}
    assert counts["OrtModelEditorApi"] == {"called": 20}
    returning = {
        slot.name: slot.returns for slot in layout.slots("OrtApi") if answers["OrtApi", slot.name] != "called"
    }
    for name, returns in returning.items():
        kind = {"OrtStatus*": "unimplemented", "void": "nothing"}.get(returns, "zero")
        assert answers["OrtApi", name] == kind, name
