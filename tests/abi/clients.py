"""The client in this folder, compiled with the layout of a release, and its output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import layout
import numpy as np
import pytest
from languages import ROOT, Missing, Program, compile_c_against, skip_or_fail

FIXTURE = ROOT / "tests/data/fixtures/mlp_adamw"


def compile_client(folder: Path, release: int, link: Sequence[str] | None = None) -> Program:
    """The client for a release, linked with libortrain or as given by `link`."""
    (folder / "layout.h").write_text(
        f"#define VERSION {release}\n" + layout.header(layout.LAST_SLOT[release])
    )
    try:
        source = Path(__file__).parent / "client.c"
        return compile_c_against([folder], [source], folder / f"client_{release}", link)
    except Missing as why:
        skip_or_fail("c", why)


def check_client(program: Program, folder: Path) -> None:
    """Run it, and compare what it prints with stock onnxruntime and with the recorded losses."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="it is the oracle of the forward run")
    with np.load(FIXTURE / "batches.npz") as batches:
        x, y = batches["x0"], batches["y0"]
    batch = folder / "batch"
    batch.write_bytes(x.tobytes() + y.astype(np.int64).tobytes())
    ran = program.run([FIXTURE, batch])
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout[-2000:] + ran.stderr
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert lines[0][1].startswith("1.32.0")
    outputs = [float(value) for kind, value in lines if kind == "output"]
    session = onnxruntime.InferenceSession(
        FIXTURE / "exported_after.onnx", providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(outputs, session.run(None, {"input": x})[0].ravel(), rtol=1e-4, atol=1e-5)
    losses = [float(value) for kind, value in lines if kind == "loss"]
    recorded = json.loads((FIXTURE / "expected.json").read_text())["train_losses"]
    assert losses[0] == pytest.approx(recorded[0], rel=1e-4)
    assert losses == sorted(losses, reverse=True)
