"""Shared by the tests of the code generator."""

from __future__ import annotations

import pathlib
import shutil
import sys
from collections.abc import Callable

import pytest
from spec_copy import ROOT, SpecCopy

sys.path.insert(0, str(ROOT))


@pytest.fixture
def spec_copy(tmp_path: pathlib.Path) -> SpecCopy:
    shutil.copytree(ROOT / "spec", tmp_path / "spec")
    return SpecCopy(tmp_path / "spec")


@pytest.fixture
def refusal(spec_copy: SpecCopy) -> Callable[[], str]:
    """Loads the copy, which must be rejected; returns the message."""
    from codegen.spec.check import load
    from codegen.spec.source import SpecError

    def load_rejected() -> str:
        with pytest.raises(SpecError) as caught:
            load(spec_copy.folder)
        return str(caught.value)

    return load_rejected
