"""Threads that wait for each other spin for a short while only, unless the user says otherwise."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GCC's OpenMP library on Linux")


def spin_count(**settings: str) -> tuple[str, str]:
    """How often threads spin in a process that loads the library, and how it changes the environment."""
    theirs = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    env = {name: value for name, value in os.environ.items() if name not in theirs}
    ran = subprocess.run(
        [sys.executable, "-c", "import os, ortrain; print(os.environ.get('GOMP_SPINCOUNT'))"],
        env={**env, **settings, "OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        check=True,
    )
    counts = re.findall(r"GOMP_SPINCOUNT = '(\w+)'", ran.stderr)
    assert counts, "the OpenMP library did not show its settings"
    return counts[-1], ran.stdout.strip()


def test_spinning_is_short_and_the_environment_stays_as_it_was():
    assert spin_count() == ("10000", "None")


def test_what_the_user_set_stays():
    assert spin_count(GOMP_SPINCOUNT="77") == ("77", "77")
    assert spin_count(OMP_WAIT_POLICY="ACTIVE")[0] not in ("10000", "77")
