"""The page docs/tutorial-jax.md does what it says."""

from __future__ import annotations

from languages import ROOT
from page import run_page


def test_the_tutorial_runs(tmp_path, monkeypatch):
    names = run_page(ROOT / "docs/tutorial-jax.md", "jax", tmp_path, monkeypatch)
    assert names["unmatched"] == ([], [])
    assert (tmp_path / "device/best.ckpt").exists()
