"""The users of docs/roles.md do not stumble, and the page shows what they type."""

from __future__ import annotations

import re

import pytest
import roles

TEXT = roles.PAGE.read_text("utf-8")


def test_the_page_shows_the_commands_and_programs():
    assert TEXT.split("\n## ", 1)[1] == roles.page().split("\n## ", 1)[1]


def test_the_table_has_all_users_and_no_stumbles():
    rows = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith("| ")][2:]
    expected = [(role.name, str(len(role.first)), str(len(role.second)), "0") for role in roles.ROLES]
    assert [(row[0], row[1], row[3], row[5]) for row in rows] == expected


def test_a_failure_a_warning_and_a_wrong_result_are_stumbles(tmp_path):
    for command, found in (
        ("ortrain train nowhere --data x.csv", "ended with 1"),
        ("python -c 'import warnings; warnings.warn(\"careful\")'", "UserWarning: careful"),
        ("echo 1", "the result is not as expected"),
    ):
        stumble = roles.run_step(roles.Step(command, lambda *_: False), tmp_path)
        assert stumble is not None
        assert re.search(found, stumble)
    assert roles.run_step(roles.Step("echo 1", roles.says("1")), tmp_path) is None


@pytest.mark.thorough
@pytest.mark.parametrize("role", roles.ROLES, ids=lambda role: role.name)
def test_a_user_does_not_stumble(role, tmp_path):
    if role.name == "text":
        pytest.importorskip("tokenizers")
    role.stumbles.clear()
    roles.play(role, tmp_path)
    assert role.stumbles == []
