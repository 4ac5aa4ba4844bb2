"""The pages about Keras do what they say."""

from __future__ import annotations

import keras
import pytest
from languages import ROOT
from page import run_page, run_session


def test_the_tutorial_runs(tmp_path, monkeypatch):
    keras.utils.clear_session()  # a new process, in which layers are numbered from the start
    names = run_page(ROOT / "docs/tutorial-keras.md", "keras", tmp_path, monkeypatch)
    assert names["unmatched"] == ([], [])
    assert (tmp_path / "device/best.ckpt").exists()


@pytest.mark.filterwarnings("ignore")
def test_the_session_prints_what_the_page_shows(tmp_path, monkeypatch):
    keras.utils.clear_session()
    run_session(ROOT / "docs/first-session-keras.md", tmp_path, monkeypatch)
