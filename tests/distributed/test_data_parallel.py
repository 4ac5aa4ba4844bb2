"""A module in several processes takes the steps of one process with the joined batch."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from launch import mpiexec, run
from modules import Alone, write_artifacts

pytestmark = pytest.mark.thorough

pytest.importorskip("mpi4py")
PROGRAM = pathlib.Path(__file__).parent / "train_module.py"
Saved = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("plain")
    write_artifacts(folder)
    return folder


def train(ranks: int, artifacts: pathlib.Path, out: pathlib.Path, **options: Any) -> list[Saved]:
    run(ranks, PROGRAM, artifacts, out, *(f"{name}={value}" for name, value in options.items()))
    saved = []
    for rank in range(ranks):
        with np.load(out / f"rank{rank}.npz") as file:
            saved.append(dict(file))
    return saved


def parameters(saved: Saved) -> Saved:
    return {name[2:]: value for name, value in saved.items() if name.startswith("w:")}


def assert_same_bits(saved: list[Saved]) -> None:
    for other in saved[1:]:
        for name, value in parameters(saved[0]).items():
            np.testing.assert_array_equal(value, parameters(other)[name], err_msg=name)


def assert_close(saved: list[Saved], expected: Saved, bound: float = 1e-6) -> None:
    assert_same_bits(saved)
    for name, value in expected.items():
        np.testing.assert_allclose(parameters(saved[0])[name], value, rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, {}),
        (2, {"overlap": 0}),
        (4, {"chunk": 4096}),
        (2, {"accumulated": 2}),
        (2, {"accumulated": 2, "unequal": 1}),
        (4, {"unequal": 1}),
        (2, {"unlike": 1}),
    ],
    ids=lambda value: (
        "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
    ),
)
def test_the_steps_are_those_of_one_process(
    plain: pathlib.Path, tmp_path: pathlib.Path, ranks: int, options: dict[str, int]
) -> None:
    expected = Alone(plain).train(20, options.get("accumulated", 1), unequal=bool(options.get("unequal")))
    assert_close(train(ranks, plain, tmp_path, **options), expected)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("wire=bfloat16", "wire differs: float32 on rank 0, bfloat16 on rank 1"),
        ("chunk=4096", "chunk_bytes differs: 1048576 on rank 0, 4096 on rank 1"),
        ("accumulated=2", "accumulated differs: 1 on rank 0, 2 on rank 1"),
    ],
)
def test_what_has_to_be_equal_is_compared_at_the_start(
    plain: pathlib.Path, tmp_path: pathlib.Path, option: str, message: str
) -> None:
    """Ranks would wait for each other, or add up other elements."""
    done = mpiexec(2, PROGRAM, plain, tmp_path, f"other_{option}", "steps=2")
    assert done.returncode != 0
    assert (done.stdout + done.stderr).count(message) == 2, done.stdout + done.stderr


def test_the_norm_that_is_clipped_is_that_of_the_averaged_gradient(tmp_path: pathlib.Path) -> None:
    write_artifacts(tmp_path, clip=0.05)
    expected = Alone(tmp_path).train(20)
    assert_close(train(2, tmp_path, tmp_path), expected)


def test_gradients_of_16_bits_differ_by_their_rounding(plain: pathlib.Path, tmp_path: pathlib.Path) -> None:
    saved = train(4, plain, tmp_path, wire="bfloat16", steps=5, chunk=4096)
    expected = Alone(plain).train(5)
    assert_close(saved, expected, 2e-3)
    assert any(np.abs(parameters(saved[0])[k] - v).max() > 1e-6 for k, v in expected.items())


def test_ranks_drop_different_elements_and_draw_them_again(tmp_path: pathlib.Path) -> None:
    write_artifacts(tmp_path, dropout=0.5)
    first = train(2, tmp_path, tmp_path, steps=3, seed=5)
    again = train(2, tmp_path, tmp_path, steps=3, seed=5)
    other = train(2, tmp_path, tmp_path, steps=3, seed=6)
    assert_same_bits(first)
    assert_same_bits([first[0], again[0]])
    assert not np.array_equal(first[0]["losses"], first[1]["losses"])
    assert not np.array_equal(first[0]["w:fc.w"], other[0]["w:fc.w"])


def test_training_goes_on_with_another_number_of_ranks(plain: pathlib.Path, tmp_path: pathlib.Path) -> None:
    expected = Alone(plain).train(12)
    train(4, plain, tmp_path, steps=6, save=tmp_path / "half")
    saved = train(2, plain, tmp_path, steps=6, **{"from": tmp_path / "half"})
    assert_close(saved, expected)


def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_all(
    plain: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    saved = train(2, plain, tmp_path, steps=3, poison="1/1", overlap=0, skip=1)
    assert [int(each["skipped"]) for each in saved] == [1, 1]
    assert_same_bits(saved)
    assert all(np.isfinite(value).all() for value in parameters(saved[0]).values())
