"""The page docs/tutorial-keras.md does what it says."""

from __future__ import annotations

import keras
from languages import ROOT
from page import run_page


def test_the_tutorial_runs(tmp_path, monkeypatch):
    keras.utils.clear_session()  # a new process, in which layers are numbered from the start
    names = run_page(ROOT / "docs/tutorial-keras.md", "keras", tmp_path, monkeypatch)
    assert names["unmatched"] == ([], [])
    assert (tmp_path / "device/trained.ckpt").exists()
