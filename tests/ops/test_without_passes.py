"""Which tests run without passes too: those with a graph that a pass changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from helpers import model_of, run_model
from runner import passes

HEAD = '<ir_version: 8, opset_import: ["" : 17]> g (float[3] x) => (float[3] y)'
X = np.array([-1, 0, 2], np.float32)


@contextmanager
def watched() -> Iterator[None]:
    """Watch as the run of a test does, whatever this run was told about passes."""
    passes.watch(True)
    yield
    passes.watch(False)


def test_a_graph_that_a_pass_changes_is_noticed() -> None:
    with watched():
        run_model(model_of(f"{HEAD} {{ z = Identity(x) y = Relu(z) }}"), {"x": X})
        assert passes.changed


def test_one_that_no_pass_changes_is_not() -> None:
    with watched():
        run_model(model_of(f"{HEAD} {{ y = Relu(x) }}"), {"x": X})
        assert not passes.changed


def test_a_model_that_is_rejected_counts_as_changed() -> None:
    with watched():
        with pytest.raises(RuntimeError):
            run_model(model_of(f"{HEAD} {{ y = Absent(x) }}"), {"x": X})
        assert passes.changed
