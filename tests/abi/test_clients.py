"""Clients compiled with the layouts of released versions run forward and train."""

from __future__ import annotations

from pathlib import Path

import layout
import pytest
from clients import check_client, compile_client


@pytest.mark.parametrize("release", sorted(layout.LAST_SLOT))
def test_a_client_of_a_release_runs_forward_and_trains(release: int, tmp_path: Path) -> None:
    check_client(compile_client(tmp_path, release), tmp_path)
