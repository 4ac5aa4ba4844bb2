"""TrainingSessions of several processes that compute parts of the same layers take the steps of one process."""

from __future__ import annotations

import contextlib
import json
import pathlib
import pickle
import re
import subprocess
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from launch import mpiexec, run
from layers import Layers, described, session_of, train
from legacy_models import WEIGHTS, mlp, parameters, weights
from ortrain import SessionOptions, _ortrain

pytestmark = pytest.mark.thorough

pytest.importorskip("mpi4py")
PROGRAM = pathlib.Path(__file__).parent / "train_layers.py"
Array = np.ndarray[Any, Any]
Saved = dict[str, Any]


def train_on(ranks: int, out: pathlib.Path, settings: Layers) -> list[Saved]:
    run(ranks, PROGRAM, out, json.dumps(asdict(settings)))
    return [pickle.loads((out / f"rank{rank}.pickle").read_bytes()) for rank in range(ranks)]


def one_process(settings: Layers) -> tuple[dict[str, Array], Saved]:
    alone = Layers(**asdict(settings))
    kept = ("gradient_accumulation_steps", "enable_grad_norm_clip", "use_mixed_precision")
    alone.members = {name: value for name, value in alone.members.items() if name in kept}
    session = session_of(alone)
    record = train(session, alone)
    return session.get_state(), record


def whole(out: pathlib.Path) -> dict[str, Array]:
    return pickle.loads((out / "state.pickle").read_bytes())


def assert_follows(
    out: pathlib.Path, saved: list[Saved], expected: dict[str, Array], record: Saved, atol: float = 1e-6
) -> None:
    found = whole(out)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        np.testing.assert_allclose(found[name], value, rtol=0, atol=atol, err_msg=name)
    divided = saved[0]["partition"].keys()
    assert divided
    for rank in saved:
        assert rank["partition"] == saved[0]["partition"]
        if "global_gradient_norm" in record:
            norms = rank["global_gradient_norm"], record["global_gradient_norm"]
            np.testing.assert_allclose(*norms, rtol=1e-5)
        for name, value in saved[0]["model"]["full_precision"].items():
            if name not in divided:
                np.testing.assert_array_equal(rank["model"]["full_precision"][name], value, err_msg=name)


# With a small epsilon, Adam would turn the rounding of gradients near zero into updates of full size.
ROBUST = {"epsilon": 1e-3}
CLIPS = {"enable_grad_norm_clip": True}
CASES: dict[str, tuple[int, Layers]] = {
    "mlp": (2, Layers()),
    "transformer": (2, Layers("transformer", floats=ROBUST)),
    "four": (4, Layers("transformer", steps=6, floats=ROBUST, members={"horizontal_parallel_size": 4})),
    "encoder": (2, Layers("encoder", floats=ROBUST)),
    "gpt2": (3, Layers("gpt2", steps=6, floats=ROBUST, members={"horizontal_parallel_size": 3})),
    "llama": (2, Layers("llama", steps=6, floats=ROBUST)),
    "gpt_neox": (2, Layers("gpt_neox", steps=6, floats=ROBUST)),
    "sgd": (2, Layers("transformer", steps=6, optimizer="SGDOptimizer")),
    "lamb": (2, Layers("llama", steps=6, optimizer="LambOptimizer", floats=ROBUST, members=CLIPS)),
    "two groups with lamb": (
        4,
        Layers(steps=6, optimizer="LambOptimizer", members={**CLIPS, "allreduce_post_accumulation": True}),
    ),
    "two groups with zero": (
        4,
        Layers(
            "transformer",
            steps=6,
            floats=ROBUST,
            members={**CLIPS, "allreduce_post_accumulation": True, "deepspeed_zero_stage": 1},
        ),
    ),
    "clipped": (2, Layers(floats={"max_norm_clip": 0.3}, members=CLIPS)),
    "accumulated": (2, Layers(members={"gradient_accumulation_steps": 3})),
    "two groups": (
        4,
        Layers("transformer", steps=6, floats=ROBUST, members={**CLIPS, "allreduce_post_accumulation": True}),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_steps_are_those_of_one_process(tmp_path: pathlib.Path, case: str) -> None:
    ranks, settings = CASES[case]
    settings = Layers(**asdict(settings))
    settings.members = {"horizontal_parallel_size": 2, **settings.members}
    expected, record = one_process(settings)
    saved = train_on(ranks, tmp_path, settings)
    assert_follows(tmp_path, saved, expected, record)
    if ranks == settings.members["horizontal_parallel_size"]:  # otherwise a rank sees a part of the batch
        for rank in saved:
            np.testing.assert_allclose(rank["loss"], record["loss"], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(rank["evaluated"], record["evaluated"], rtol=1e-5, atol=1e-6)


HORIZONTAL = {"horizontal_parallel_size": 2}


def test_mixed_precision(tmp_path: pathlib.Path) -> None:
    settings = Layers(steps=3, members={**HORIZONTAL, "use_mixed_precision": True})
    expected, _ = one_process(settings)
    saved = train_on(2, tmp_path, settings)
    found = whole(tmp_path)
    assert found.keys() == expected.keys()
    assert [rank["all_gradients_finite"] for rank in saved] == [[True] * 3] * 2
    for name in WEIGHTS:  # a 16-bit sum is rounded otherwise in parts
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=2e-3)
        np.testing.assert_array_equal(found[f"{name}_fp16"], found[name].astype(np.float16))


def test_names_of_the_parts(tmp_path: pathlib.Path) -> None:
    saved = train_on(2, tmp_path, Layers(steps=1, members=dict(HORIZONTAL)))
    for number, rank in enumerate(saved):
        parts = [f"W1_column_rank_{number}", f"W2_row_rank_{number}", f"b1_column_rank_{number}", "b2"]
        moments = [f"{kind}_{name}" for kind in ("Moment_1", "Moment_2", "Update_Count") for name in parts]
        assert sorted(rank["state"]) == sorted([*parts, *moments])
        assert rank["state"][f"Moment_1_W1_column_rank_{number}"].shape == (4, 8)
        assert {name: value.shape for name, value in rank["model"]["full_precision"].items()} == {
            "W1": (4, 8),
            "W2": (8, 3),
            "b1": (8,),
            "b2": (3,),
        }
        assert rank["optimizer"].keys() == {"W1", "W2", "b1", "b2"}
        assert rank["optimizer"]["W2"]["Moment_2"].shape == (8, 3)
        assert rank["partition"] == {
            "W1": {"original_dim": [4, 16], "megatron_row_partition": [0]},
            "W2": {"original_dim": [16, 3], "megatron_row_partition": [1]},
            "b1": {"original_dim": [16], "megatron_row_partition": [0]},
        }


def test_training_goes_on_with_another_number_of_ranks(tmp_path: pathlib.Path) -> None:
    expected, record = one_process(Layers(steps=12))
    train_on(2, tmp_path, Layers(steps=4, members=dict(HORIZONTAL)))
    (tmp_path / "state.pickle").rename(tmp_path / "first.pickle")
    more = {"horizontal_parallel_size": 4}
    train_on(4, tmp_path, Layers(steps=4, first=4, load=str(tmp_path / "first.pickle"), members=more))
    last = Layers(steps=4, first=8)
    session = session_of(last)
    session.load_state(whole(tmp_path))
    np.testing.assert_allclose(train(session, last)["loss"], record["loss"][8:], rtol=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(session.get_state()[name], value, rtol=0, atol=1e-6, err_msg=name)


def test_zero_in_groups_goes_on_with_other_ranks(tmp_path: pathlib.Path) -> None:
    expected, record = one_process(Layers(steps=8))
    zero = {**HORIZONTAL, "allreduce_post_accumulation": True, "deepspeed_zero_stage": 1}
    saved = train_on(4, tmp_path, Layers(steps=3, members=dict(zero)))
    # Halves of W1, W2 and b1 are 64 elements, which the first rank of those with the same parts has.
    assert [sorted(rank["optimizer"]) for rank in saved[::2]] == [["W1", "W2", "b1"], ["b2"]]
    assert saved[1]["model"]["full_precision"]["W1"].shape == (4, 8)
    (tmp_path / "state.pickle").rename(tmp_path / "first.pickle")
    train_on(4, tmp_path, Layers(steps=3, first=3, load=str(tmp_path / "first.pickle"), members=dict(zero)))
    last = Layers(steps=2, first=6)
    session = session_of(last)
    session.load_state(whole(tmp_path), strict=True)
    np.testing.assert_allclose(train(session, last)["loss"], record["loss"][6:], rtol=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(session.get_state()[name], value, rtol=0, atol=1e-6, err_msg=name)


def test_weights_that_layers_share_stay_whole(tmp_path: pathlib.Path) -> None:
    settings = Layers("layers a a b", steps=6, floats=ROBUST, members=dict(HORIZONTAL))
    expected, record = one_process(settings)
    done = mpiexec(2, PROGRAM, tmp_path, json.dumps(asdict(settings)))
    assert done.returncode == 0, done.stderr
    for weight in ("a.in", "a.out"):
        assert f'every process has all of the weight "{weight}"' in done.stderr
    saved = [pickle.loads((tmp_path / f"rank{rank}.pickle").read_bytes()) for rank in range(2)]
    assert_follows(tmp_path, saved, expected, record)
    assert saved[0]["partition"].keys() == {"b.in", "b.out"}


def test_a_model_of_shared_layers_alone_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r'no part of the model.*all of the weight "a.in", because .* reads it'
    ):
        part_of("layers a a", 0, 2)


def test_ranks_that_add_up_in_another_order_are_told(tmp_path: pathlib.Path) -> None:
    settings = Layers("side by side", unlike=True, members=dict(HORIZONTAL))
    done = mpiexec(2, PROGRAM, tmp_path, json.dumps(asdict(settings)), seconds=40)
    assert done.returncode != 0
    assert re.search(
        r"expected the same values on all of them, found '\w+' \(.*rank 0, '\w+' .*rank 1", done.stderr
    )
    settings.unlike = False
    expected, record = one_process(settings)
    assert_follows(tmp_path, train_on(2, tmp_path, settings), expected, record)


def test_ranks_drop_the_same_elements_of_what_all_compute(tmp_path: pathlib.Path) -> None:
    settings = Layers("dropped before", steps=6, members=dict(HORIZONTAL))
    expected, record = one_process(settings)
    assert_follows(tmp_path, train_on(2, tmp_path, settings), expected, record)


def test_ranks_drop_elements_of_their_own_in_their_parts(tmp_path: pathlib.Path) -> None:
    settings = Layers("dropped inside", steps=6, evaluates=False, members=dict(HORIZONTAL))
    saved = train_on(2, tmp_path, settings)
    expected = whole(tmp_path)
    assert saved[0]["loss"] == saved[1]["loss"]
    train_on(2, tmp_path, Layers(**{**asdict(settings), "steps": 3}))
    (tmp_path / "state.pickle").rename(tmp_path / "half.pickle")
    resumed = {**asdict(settings), "steps": 3, "first": 3, "load": str(tmp_path / "half.pickle")}
    train_on(2, tmp_path, Layers(**resumed))
    for name, value in expected.items():
        np.testing.assert_array_equal(whole(tmp_path)[name], value, err_msg=name)


def test_different_batches_are_refused(tmp_path: pathlib.Path) -> None:
    settings = Layers(parts=True, members=dict(HORIZONTAL))
    done = mpiexec(2, PROGRAM, tmp_path, json.dumps(asdict(settings)), seconds=40)
    assert done.returncode != 0
    assert "ranks 0 to 1 share layers and were fed different values" in done.stdout + done.stderr


def test_a_rank_that_leaves_is_named(tmp_path: pathlib.Path) -> None:
    settings = Layers(lost=True, members=dict(HORIZONTAL))
    # After a lost rank, MPICH's launcher sometimes waits for the others without end. The report is what matters.
    with contextlib.suppress(subprocess.TimeoutExpired):
        mpiexec(2, PROGRAM, tmp_path, json.dumps(asdict(settings)), seconds=40)
    assert (
        (tmp_path / "report of 0")
        .read_text()
        .startswith("(1,) rank 0: sum over the ranks that share a layer: rank 1 has ended")
    )


# ---- what a process has, without others ----


def part_of(name: str, rank: int, ranks: int, **members: Any) -> _ortrain.SessionHandle:
    """Return the session of one of several processes, which is not run."""
    model, names, _ = described(name)
    settings = parameters(
        "AdamOptimizer", names, **members, world_rank=rank, world_size=ranks, horizontal_parallel_size=ranks
    )
    return _ortrain.create_training_graph_session_from_array(
        model, settings._handle(), SessionOptions()._handle
    )


def test_parts_of_heads_and_columns() -> None:
    rng = np.random.default_rng(0)
    moment = rng.normal(size=(4, 16)).astype(np.float32)
    for rank in range(2):
        settings = parameters("AdamOptimizer", world_rank=rank, world_size=2, **HORIZONTAL)
        settings.set_optimizer_initial_state({"W1": {"Moment_1": moment}})
        session = _ortrain.create_training_graph_session_from_array(
            mlp(), settings._handle(), SessionOptions()._handle
        )
        own = slice(8 * rank, 8 * rank + 8)
        for name, expected in {
            f"W1_column_rank_{rank}": weights()["W1"][:, own],
            f"W2_row_rank_{rank}": weights()["W2"][own],
            f"Moment_1_W1_column_rank_{rank}": moment[:, own],
        }.items():
            np.testing.assert_array_equal(_ortrain.session_get_state(session, name).numpy(), expected)


def test_dropouts_of_parts_have_streams_of_their_own() -> None:
    for rank in range(2):
        session = part_of("dropped inside", rank, 2)
        assert _ortrain.session_get_node_output_type(session, f"dropped_rank_{rank}")


def test_a_number_of_columns_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"horizontal_parallel_size is 3, but no part of the model can be divided"
    ):
        part_of("mlp", 0, 3)


def test_exports_of_real_architectures(tmp_path: pathlib.Path) -> None:
    """What is divided is up to the export, but never what comes out."""
    folders = sorted((pathlib.Path(__file__).parents[1] / "data" / "exports").glob("*/"))
    run(2, PROGRAM.parent / "divide_exports.py", tmp_path / "out.json", *folders, seconds=200)
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found) == len(folders)
    for name, (divided, difference) in found.items():
        assert divided >= 3, name
        assert difference < 2e-6, name
