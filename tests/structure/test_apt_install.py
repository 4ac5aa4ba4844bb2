"""scripts/apt_install.sh waits for the package database, as apt-get itself locks it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "apt_install.sh"
needs_apt = pytest.mark.skipif(
    shutil.which("apt-get") is None or os.getuid() != 0, reason="needs apt-get and root"
)


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    """Return the environment in which apt-get uses an empty package database in a temporary folder."""
    for folder in ("lists/partial", "cache/archives/partial", "dpkg"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "dpkg" / "status").touch()
    (tmp_path / "sources").touch()
    (tmp_path / "apt.conf").write_text(
        f'Dir::State "{tmp_path}"; Dir::State::lists "{tmp_path}/lists"; Dir::State::status "{tmp_path}/dpkg/status";\n'
        f'Dir::Cache "{tmp_path}/cache"; Dir::Etc::sourcelist "{tmp_path}/sources"; Dir::Etc::sourceparts "-";\n'
    )
    return {**os.environ, "APT_CONFIG": str(tmp_path / "apt.conf")}


def run_while_locked(lock: Path, environment: dict[str, str], release_after: str | None) -> list[str]:
    """Run the script while this process holds a lock; return the lines that it prints, the last one its status.

    The lock is released when a line contains ``release_after``.
    """
    with lock.open("w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        script = subprocess.Popen(
            [SCRIPT, "no-such-package"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        killer = threading.Timer(300, script.kill)
        killer.start()
        assert script.stdout is not None
        lines = []
        for line in script.stdout:
            lines.append(line.rstrip())
            if release_after is not None and release_after in line:
                fcntl.lockf(held, fcntl.LOCK_UN)
        killer.cancel()
        return [*lines, str(script.wait())]


@needs_apt
@pytest.mark.parametrize("lock", ["lists/lock", "dpkg/lock-frontend"])
def test_waits_for_the_program_that_holds_the_database(
    tmp_path: Path, state: dict[str, str], lock: str
) -> None:
    lines = run_while_locked(tmp_path / lock, state, release_after="waiting for another program")
    assert [line for line in lines if "waiting" in line] == lines[:1]
    assert str(tmp_path / lock) in lines[0]
    assert f"process {os.getpid()}" in lines[0]
    # The installation was attempted once the lock was free, and failed for another reason.
    assert "Unable to locate package no-such-package" in lines[1]
    assert lines[-1] != "0"


@needs_apt
def test_gives_up_after_the_limit_and_says_why(tmp_path: Path, state: dict[str, str]) -> None:
    lines = run_while_locked(tmp_path / "lists/lock", {**state, "APT_WAIT": "1"}, release_after=None)
    assert lines[-2].startswith("setup: gave up after 1 s: Could not get lock")
    assert lines[-1] == "1"
