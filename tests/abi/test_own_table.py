"""Calls of `OrtrainApi` are only appended: programs compiled for a recorded version keep working."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace

import own_table
import pytest
from languages import library_folder
from own_table import HEADER, RECORD, ROOT, Row

VERSION, FOUND = own_table.declared(HEADER.read_text())


def test_every_recorded_call_is_where_it_was_and_new_ones_are_recorded(
    request: pytest.FixtureRequest,
) -> None:
    if request.config.getoption("--record-own-table", default=False):
        record = own_table.read(RECORD.read_text()) if RECORD.exists() else []
        RECORD.write_text(own_table.write(own_table.extended(record, VERSION, FOUND)))
    wrong = own_table.faults(own_table.read(RECORD.read_text()), VERSION, FOUND)
    assert not wrong, "\n".join(wrong)


def earlier_records() -> list[tuple[str, list[Row]]]:
    """The record as of each commit of this branch that changed it."""
    path = RECORD.relative_to(ROOT).as_posix()

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True
        ).stdout

    try:
        commits = git("log", "--first-parent", "--format=%h", "--", path).split()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no history here to compare the record with")
    return [(commit, own_table.read(git("show", f"{commit}:{path}"))) for commit in commits]


def test_the_record_has_only_grown() -> None:
    rows = own_table.read(RECORD.read_text())
    for commit, earlier in earlier_records():
        assert rows[: len(earlier)] == earlier, f"recorded rows have been edited since {commit}"


def changed(row: Row, **what: str) -> list[Row]:
    return [replace(row, **what) if old is row else old for old in FOUND]


@pytest.mark.parametrize(
    ("found", "version", "message"),
    [
        (changed(FOUND[9], parameters="int other"), VERSION, r"slot 9 has changed since version 2"),
        (changed(FOUND[3], name="Renamed"), VERSION + 1, r"is  OrtStatus\* Renamed"),
        (FOUND[:-1], VERSION, r"is gone"),
        ([FOUND[1], FOUND[0], *FOUND[2:]], VERSION, r"slot 0 has changed"),
        ([*FOUND, replace(FOUND[0], slot=len(FOUND), name="Added")], VERSION, r"set extension_version in"),
    ],
)
def test_what_clients_would_trip_over_is_explained_and_cannot_be_recorded(
    found: list[Row], version: int, message: str
) -> None:
    record = own_table.read(RECORD.read_text())
    with pytest.raises(ValueError, match=message):
        own_table.extended(record, version, found)


def test_a_new_version_is_recorded_behind_the_others() -> None:
    record = own_table.read(RECORD.read_text())
    added = replace(FOUND[0], slot=len(FOUND), name="Added", since=VERSION + 1)
    assert "--record-own-table" in own_table.faults(record, VERSION + 1, [*FOUND, added])[0]
    grown = own_table.extended(record, VERSION + 1, [*FOUND, added])
    assert grown == [*record, added]
    assert own_table.read(own_table.write(grown)) == grown
    assert own_table.faults(grown, VERSION + 1, [*FOUND, added]) == []


def test_callbacks_are_recorded_with_their_parameters() -> None:
    text = HEADER.read_text()
    assert text.count("size_t first, size_t count)") == 1
    _, other = own_table.declared(text.replace("size_t first, size_t count)", "size_t first)"))
    assert [row.name for row, was in zip(other, FOUND, strict=True) if row != was] == [
        "RunOptionsSetGradientBuffer"
    ]


def test_versions_outside_the_record_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    library = ctypes.CDLL(library_folder() / "libortrain.so")
    library.OrtrainGetApi.restype = ctypes.c_void_p
    served = {row.since for row in own_table.read(RECORD.read_text())}
    for version in range(VERSION + 2):
        assert bool(library.OrtrainGetApi(version)) == (version in served)
    assert f"version 1 of OrtrainApi was requested, expected 2 to {VERSION}" in capfd.readouterr().err
