"""The clients in C and C# of examples/federated: they answer requests as a loop in Python does, and refuse wrong files.

The requests are written here as docs/tutorial-federated.md describes them; Flower is not needed.
"""

from __future__ import annotations

import functools
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from languages import COMPILERS, ROOT, Missing, skip_or_fail
from ortrain.api import CheckpointState, Module, Optimizer

sys.path.insert(0, str(ROOT / "examples/federated"))
from federated import task

SOURCES = {"c": "c/client.c", "csharp": "csharp/Client.cs"}
TRAIN, EVALUATE = 1, 2
HEADING = struct.Struct("<8sIIQQQQQd")
SEED, ROUND, EPOCHS, BATCH, RATE = 7, 3, 2, 32, 0.05


@functools.cache
def build(language: str, folder: Path):
    return COMPILERS[language][1](
        [ROOT / "examples/federated" / SOURCES[language]], folder / f"client_{language}"
    )


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(params=SOURCES)
def program(request, builds):
    try:
        return build(request.param, builds)
    except Missing as why:
        skip_or_fail(request.param, why)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    where = tmp_path_factory.mktemp("external")
    task.prepare(where)
    task.write_rows(where / "train.rows", task.shard(1))
    task.write_rows(where / "test.rows", task.digits()[1])
    return where


@pytest.fixture(scope="module")
def start(prepared):
    """Parameters that are not those of the checkpoint."""
    state = CheckpointState.load_checkpoint(str(prepared / "artifacts/checkpoint"))
    size = sum(parameter.data.size for _, parameter in state.parameters)
    return np.random.default_rng(5).normal(0, 0.05, size).astype(np.float32)


def shuffled(count: int) -> list[np.ndarray]:
    """The order of each pass: Fisher-Yates with numbers of SplitMix64."""
    mask, orders, order = 2**64 - 1, [], np.arange(count)
    state = SEED << 32 | ROUND
    for _ in range(EPOCHS):
        for i in range(count - 1, 0, -1):
            state = (state + 0x9E3779B97F4A7C15) & mask
            z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
            j = (z ^ (z >> 31)) % (i + 1)
            order[i], order[j] = order[j], order[i]
        orders.append(order.copy())
    return orders


class Loop:
    """The same training and evaluation with ortrain.api."""

    def __init__(self, prepared, start) -> None:
        folder = prepared / "artifacts"
        self.state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
        self.module = Module(str(folder / "training_model.onnx"), self.state, str(folder / "eval_model.onnx"))
        self.optimizer = Optimizer(str(folder / "optimizer_model.onnx"), self.module)
        self.optimizer.set_learning_rate(RATE)
        first = 0
        for name, parameter in self.state.parameters:
            shape = parameter.data.shape
            size = int(np.prod(shape))
            self.state.parameters[name] = start[first : first + size].reshape(shape)
            first += size

    def parameters(self):
        return np.concatenate([parameter.data.ravel() for _, parameter in self.state.parameters])

    def epoch(self, rows, order, train: bool) -> float:
        self.module.train(train)
        loss = 0.0
        for first in range(0, len(order), BATCH):
            chosen = order[first : first + BATCH]
            outputs = self.module(*(column[chosen] for column in rows))
            loss += float(outputs[0]) * len(chosen) / len(order)
            if train:
                self.optimizer.step()
                self.module.lazy_reset_grad()
        return loss


def ask(program, prepared, where, asked, start, **changed):
    values = {
        "magic": b"ORTRFED1", "kind": asked, "type": 1, "elements": start.size, "round": ROUND, "seed": SEED,
        "epochs": EPOCHS, "batch": BATCH, "rate": RATE, **changed,
    }  # fmt: skip
    (where / "request").write_bytes(HEADING.pack(*values.values()) + start.astype("<f4").tobytes())
    files = [prepared / "artifacts", prepared / "train.rows", prepared / "test.rows"]
    return program.run([*files, where / "request", where / "reply"])


def test_training_is_that_of_a_loop(program, prepared, start, tmp_path):
    ran = ask(program, prepared, tmp_path, TRAIN, start)
    assert ran.returncode == 0, ran.stderr
    rows = task.shard(1)
    loop = Loop(prepared, start)
    losses = [loop.epoch(rows, order, True) for order in shuffled(len(rows[1]))]
    answer = (tmp_path / "reply").read_bytes()
    heading = HEADING.unpack_from(answer)
    assert heading[:8] == (b"ORTRFED1", TRAIN, 1, start.size, ROUND, len(rows[1]), 0, 0)
    assert heading[8] == pytest.approx(losses[-1], rel=1e-5)
    after = np.frombuffer(answer, "<f4", offset=HEADING.size)
    assert np.abs(after - start).max() > 0.01
    np.testing.assert_allclose(after, loop.parameters(), rtol=1e-4, atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reply", "request"]


def test_evaluation_is_that_of_a_loop(program, prepared, start, tmp_path):
    ran = ask(program, prepared, tmp_path, EVALUATE, start)
    assert ran.returncode == 0, ran.stderr
    rows = task.digits()[1]
    expected = Loop(prepared, start).epoch(rows, np.arange(len(rows[1])), False)
    answer = (tmp_path / "reply").read_bytes()
    assert len(answer) == HEADING.size
    *heading, loss = HEADING.unpack(answer)
    assert heading == [b"ORTRFED1", EVALUATE, 1, 0, ROUND, len(rows[1]), 0, 0]
    assert loss == pytest.approx(expected, rel=1e-5)


def test_both_programs_give_the_same_bits(builds, prepared, start, tmp_path):
    answers = []
    for language in SOURCES:
        (where := tmp_path / language).mkdir()
        try:
            ran = ask(build(language, builds), prepared, where, TRAIN, start)
        except Missing as why:
            skip_or_fail(language, why)
        assert ran.returncode == 0, ran.stderr
        answers.append((where / "reply").read_bytes())
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"magic": b"ORTRFED2"}, "expected a request to train or to evaluate float32"),
        ({"kind": 3}, "expected a request to train or to evaluate float32"),
        ({"type": 2}, "expected a request to train or to evaluate float32"),
        ({"batch": 0}, "expected a request to train or to evaluate float32"),
        ({"elements": 2**62}, "expected 4611686018427387904 elements, found"),
    ],
)
def test_a_wrong_request_is_refused(program, changed, said, prepared, start, tmp_path):
    ran = ask(program, prepared, tmp_path, TRAIN, start, **changed)
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: ")
    assert said in ran.stderr
    assert not (tmp_path / "reply").exists()


def test_parameters_of_another_model_are_refused(program, prepared, start, tmp_path):
    ran = ask(program, prepared, tmp_path, TRAIN, start[:-1])
    assert ran.returncode == 1
    assert f"expected {start.size} elements, those of the model, found {start.size - 1}" in ran.stderr
    assert not (tmp_path / "reply").exists()


def test_rows_that_are_cut_off_are_refused(program, prepared, start, tmp_path):
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "artifacts").symlink_to(prepared / "artifacts")
    (cut / "train.rows").write_bytes((prepared / "train.rows").read_bytes()[:-1])
    (where := tmp_path / "files").mkdir()
    ran = ask(program, cut, where, TRAIN, start)
    assert ran.returncode == 1
    assert "train.rows: expected the bytes of" in ran.stderr
