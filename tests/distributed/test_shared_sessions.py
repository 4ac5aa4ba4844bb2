"""TrainingSessions of several processes take the steps of one with the joined batch."""

from __future__ import annotations

import json
import pathlib
import pickle
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from launch import run
from legacy_models import WEIGHTS, Reference, adam, batch, gradients, sgd, weights
from sessions import Settings, session_of, train

pytestmark = pytest.mark.thorough

pytest.importorskip("mpi4py")
PROGRAM = pathlib.Path(__file__).parent / "train_session.py"
DATA = {"allreduce_post_accumulation": True}
ZERO = {**DATA, "deepspeed_zero_stage": 1}
Saved = dict[str, Any]


def train_on(ranks: int, out: pathlib.Path, settings: Settings) -> list[Saved]:
    run(ranks, PROGRAM, out, json.dumps(asdict(settings)))
    return [pickle.loads((out / f"rank{rank}.pickle").read_bytes()) for rank in range(ranks)]


def one_process(settings: Settings) -> tuple[dict[str, np.ndarray], Saved]:
    alone = Settings(**asdict(settings))
    kept = ("gradient_accumulation_steps", "enable_grad_norm_clip", "use_mixed_precision")
    alone.members = {name: value for name, value in alone.members.items() if name in kept}
    session = session_of(alone)
    record = train(session, alone)
    return session.get_state(), record


def whole(out: pathlib.Path) -> dict[str, np.ndarray]:
    return pickle.loads((out / "state.pickle").read_bytes())


def assert_follows(saved: list[Saved], expected: dict[str, np.ndarray], out: pathlib.Path) -> None:
    found = whole(out)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)
    for rank in saved[1:]:
        for name in WEIGHTS:
            if name in saved[0]["state"] and name in rank["state"]:
                np.testing.assert_array_equal(saved[0]["state"][name], rank["state"][name], err_msg=name)


CASES: dict[str, dict[str, Any]] = {
    "adam": {},
    "sgd": {"optimizer": "SGDOptimizer"},
    "accumulated": {"members": {"gradient_accumulation_steps": 3}},
    "clipped": {"members": {"enable_grad_norm_clip": True}, "floats": {"max_norm_clip": 0.3}},
    "mixed": {"members": {"use_mixed_precision": True}},
    "unequal": {"size": 7},
}


@pytest.mark.parametrize("zero", [False, True], ids=["whole", "zero"])
@pytest.mark.parametrize("case", CASES)
def test_the_steps_are_those_of_one_process(tmp_path: pathlib.Path, case: str, zero: bool) -> None:
    settings = Settings(**CASES[case])
    settings.members = {**settings.members, **(ZERO if zero else DATA)}
    expected, record = one_process(settings)
    if case == "mixed":  # a 16-bit sum over a batch of another size is rounded otherwise
        settings.steps = 3
        expected, record = one_process(settings)
        saved = train_on(2, tmp_path, settings)
        found = whole(tmp_path)
        for name in WEIGHTS:
            np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=2e-3)
            np.testing.assert_array_equal(found[f"{name}_fp16"], found[name].astype(np.float16))
        return
    saved = train_on(4 if case == "accumulated" else 2, tmp_path, settings)
    assert_follows(saved, expected, tmp_path)
    if case == "clipped":
        for rank in saved:
            np.testing.assert_allclose(
                rank["global_gradient_norm"], record["global_gradient_norm"], rtol=1e-5
            )


def test_lamb_follows_too(tmp_path: pathlib.Path) -> None:
    settings = Settings(optimizer="LambOptimizer", members=dict(DATA))
    expected, _ = one_process(settings)
    assert_follows(train_on(2, tmp_path, settings), expected, tmp_path)


def test_an_overflow_on_one_rank_skips_the_step_on_all(tmp_path: pathlib.Path) -> None:
    members = {**DATA, "use_mixed_precision": True}
    saved = train_on(2, tmp_path, Settings(steps=3, overflows=(1, 1), members=members))
    assert [rank["all_gradients_finite"] for rank in saved] == [[True, False, True]] * 2
    found = whole(tmp_path)
    assert found["Update_Count_W1"].tolist() == [3]  # it starts at 1
    assert all(np.isfinite(value).all() for value in found.values())


def test_what_a_caller_sees_is_what_one_process_sees(tmp_path: pathlib.Path) -> None:
    members = {"use_mixed_precision": True, "enable_grad_norm_clip": True, "gradient_accumulation_steps": 2}
    for more in (members, {}):
        alone = session_of(Settings(members=dict(more)))
        saved = train_on(2, tmp_path, Settings(steps=1, members={**more, **DATA}))
        for rank in saved:
            assert rank["inputs"] == [entry.name for entry in alone.get_inputs()]
            assert rank["outputs"] == [entry.name for entry in alone.get_outputs()]
            assert rank["state"].keys() == alone.get_state().keys()
            assert rank["partition"] == {}


# ---- ZeRO ----


def test_the_state_of_the_optimizer_is_divided(tmp_path: pathlib.Path) -> None:
    saved = train_on(2, tmp_path, Settings(steps=2, members=dict(ZERO)))
    # In the order of names: W1 64, W2 48, b1 16, b2 3 elements, 131 in all, so 96 and 35 for the ranks.
    assert saved[0]["optimizer"].keys() == {"W1", "W2"}
    assert saved[1]["optimizer"].keys() == {"W2", "b1", "b2"}
    assert saved[0]["state"]["Moment_1_W1"].shape == (4, 16)
    assert saved[0]["state"]["Moment_2_W2_view_0"].shape == (32,)
    assert saved[1]["state"]["Moment_2_W2_view_1"].shape == (16,)
    for rank in saved:
        found = {name: value.shape for name, value in rank["model"]["full_precision"].items()}
        assert found == {"W1": (4, 16), "W2": (32 if rank is saved[0] else 16,), "b1": (16,), "b2": (3,)}
        assert rank["partition"] == {"W2": {"original_dim": [16, 3], "megatron_row_partition": [-1]}}


@pytest.mark.parametrize("zero", [False, True], ids=["whole", "zero"])
def test_training_goes_on_with_another_number_of_ranks(tmp_path: pathlib.Path, zero: bool) -> None:
    members = ZERO if zero else DATA
    expected, _ = one_process(Settings(steps=12))
    train_on(4, tmp_path, Settings(steps=6, members=dict(members)))
    (tmp_path / "state.pickle").rename(tmp_path / "half.pickle")
    resumed = Settings(steps=6, first=6, load=str(tmp_path / "half.pickle"), members=dict(members))
    assert_follows(train_on(2, tmp_path, resumed), expected, tmp_path)


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "mixed"])
def test_zero_in_pipelines(tmp_path: pathlib.Path, mixed: bool) -> None:
    stages = {"pipeline_parallel_size": 2, "num_pipeline_micro_batches": 2, "pipeline_cut_info_string": "h"}
    members = {**ZERO, **stages, "enable_grad_norm_clip": True, "use_mixed_precision": mixed}
    settings = Settings(
        steps=3 if mixed else 12, floats={"max_norm_clip": 0.3, "epsilon": 1e-3}, members=members
    )
    expected, _ = one_process(settings)
    half = {**asdict(settings), "steps": settings.steps // 2}
    saved = train_on(4, tmp_path, Settings(**half))
    # Of the 80 elements of the first stage, 64 and 16 are on its ranks; of the 51 of the second, 32 and 19.
    assert [sorted(rank["optimizer"]) for rank in saved] == [["W1"], ["b1"], ["W2"], ["W2", "b2"]]
    assert saved[3]["state"]["Moment_1_W2_view_1"].shape == (16,)
    (tmp_path / "state.pickle").rename(tmp_path / "half.pickle")
    resumed = {"first": half["steps"], "load": str(tmp_path / "half.pickle")}
    saved = train_on(4, tmp_path, Settings(**{**half, **resumed, "steps": settings.steps - half["steps"]}))
    found = whole(tmp_path)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-3 if mixed else 1e-6, err_msg=name)
    if mixed:
        for name in WEIGHTS:
            np.testing.assert_array_equal(found[f"{name}_fp16"], found[name].astype(np.float16))


def test_the_memory_of_a_rank(tmp_path: pathlib.Path) -> None:
    program = PROGRAM.parent / "measure_memory.py"
    megabytes = {}
    for stage in (0, 1):
        run(2, program, str(stage), tmp_path)
        megabytes[stage] = min(float((tmp_path / f"{rank}.txt").read_text()) for rank in range(2))
    # 6 million weights have moments of 48 MB, of which ZeRO keeps half on each of two ranks.
    assert megabytes[1] < megabytes[0] - 0.7 * 24, megabytes


# ---- Adasum ----


def pairwise(updates: list[np.ndarray]) -> np.ndarray:
    """Combine updates as in S. Maleki et al., 2020, figure 2."""
    if len(updates) == 1:
        return updates[0]
    a, b = pairwise(updates[: len(updates) // 2]), pairwise(updates[len(updates) // 2 :])
    dot = (a * b).sum()
    return a * (1 - dot / (2 * (a * a).sum())) + b * (1 - dot / (2 * (b * b).sum()))


@pytest.mark.parametrize(
    ("ranks", "optimizer"), [(4, "SGDOptimizer"), (2, "AdamOptimizer"), (4, "AdamOptimizer")]
)
def test_adasum(tmp_path: pathlib.Path, ranks: int, optimizer: str) -> None:
    # With a small epsilon, Adam would turn the rounding of gradients near zero into updates of full size.
    is_sgd = optimizer == "SGDOptimizer"
    floats = {} if is_sgd else {"epsilon": 1e-3}
    settings = Settings(optimizer=optimizer, steps=5, floats=floats, members={"enable_adasum": True})
    saved = train_on(ranks, tmp_path, settings)
    step = sgd if is_sgd else adam(epsilon=1e-3)
    references = [Reference(weights(), step) for _ in range(ranks)]
    for number in range(settings.steps):
        data = batch(number, settings.size)
        before = {name: value.copy() for name, value in references[0].w.items()}
        for rank, reference in enumerate(references):
            part = slice(rank * settings.size // ranks, (rank + 1) * settings.size // ranks)
            own = {name: value[part] for name, value in data.items()}
            reference.update(gradients(reference.w, own)[1], 0.01)
        for name, value in before.items():
            combined = value + pairwise([reference.w[name] - value for reference in references])
            for reference in references:
                reference.w[name] = combined.copy()
    for rank in saved:
        for name in WEIGHTS:
            np.testing.assert_array_equal(rank["state"][name], saved[0]["state"][name])
            np.testing.assert_allclose(rank["state"][name], references[0].w[name], rtol=0, atol=2e-6)


def test_adasum_goes_on_from_the_states_of_all_ranks(tmp_path: pathlib.Path) -> None:
    settings = Settings(steps=6, floats={"epsilon": 1e-3}, members={"enable_adasum": True}, own_state=True)
    expected = train_on(2, tmp_path, settings)
    moments = [rank["state"]["Moment_1_W1"] for rank in expected]
    assert not np.array_equal(*moments)  # so that one state has no room for them
    train_on(2, tmp_path, Settings(**{**asdict(settings), "steps": 3}))
    resumed = {**asdict(settings), "steps": 3, "first": 3, "load": str(tmp_path / "own")}
    for rank, found in enumerate(train_on(2, tmp_path, Settings(**resumed))):
        for name, value in expected[rank]["state"].items():
            np.testing.assert_array_equal(found["state"][name], value, err_msg=name)


# ---- bindings ----


@pytest.mark.parametrize(
    "members",
    [
        {**DATA, "gradient_accumulation_steps": 2, "use_mixed_precision": True},
        {"pipeline_parallel_size": 2, "pipeline_cut_info_string": "h", "enable_grad_norm_clip": True},
    ],
    ids=["data", "pipeline"],
)
def test_bindings_train_as_runs_do(tmp_path: pathlib.Path, members: dict[str, Any]) -> None:
    settings = Settings(steps=3, members=members)
    expected = train_on(2, tmp_path, settings)
    settings.bound = True
    for rank, found in enumerate(train_on(2, tmp_path, settings)):
        assert found["loss"] == expected[rank]["loss"]
        for name, value in expected[rank]["state"].items():
            np.testing.assert_array_equal(found["state"][name], value, err_msg=name)


# ---- pipeline ----


@pytest.mark.parametrize(
    ("ranks", "members", "more"),
    [
        (2, {"pipeline_cut_info_string": "h"}, {}),
        (3, {"pipeline_cut_info_string": "h1,p0"}, {}),
        (2, {"pipeline_cut_info_string": "h-p0", "gradient_accumulation_steps": 2}, {}),
        (
            2,
            {"pipeline_cut_info_string": "h", "enable_grad_norm_clip": True},
            {"floats": {"max_norm_clip": 0.3}},
        ),
        (4, {"pipeline_cut_info_string": "h", "allreduce_post_accumulation": True}, {}),
    ],
    ids=["two", "three", "accumulated", "clipped", "two-times-two"],
)
def test_a_pipeline_trains_as_the_whole(
    tmp_path: pathlib.Path, ranks: int, members: dict[str, Any], more: dict[str, Any]
) -> None:
    cuts = members["pipeline_cut_info_string"].count(",") + 1
    stages = {"pipeline_parallel_size": cuts + 1, "num_pipeline_micro_batches": 4}
    settings = Settings(members={**members, **stages}, **more)
    expected, record = one_process(settings)
    saved = train_on(ranks, tmp_path, settings)
    found = whole(tmp_path)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)
    alone = session_of(
        Settings(members={"enable_grad_norm_clip": members.get("enable_grad_norm_clip", False)})
    )
    for rank in saved:
        assert {"x", "y", "Learning_Rate"} == set(rank["inputs"])
        if "gradient_accumulation_steps" not in members:
            assert set(rank["outputs"]) == {entry.name for entry in alone.get_outputs()}
        if ranks == cuts + 1:
            np.testing.assert_allclose(rank["loss"], record["loss"], rtol=1e-5)
        if "global_gradient_norm" in record:
            np.testing.assert_allclose(
                rank["global_gradient_norm"], record["global_gradient_norm"], rtol=1e-5
            )


def test_a_pipeline_in_mixed_precision(tmp_path: pathlib.Path) -> None:
    stages = {
        "pipeline_parallel_size": 3,
        "pipeline_cut_info_string": "h1,p0",
        "num_pipeline_micro_batches": 2,
    }
    settings = Settings(
        steps=3, members={**stages, "use_mixed_precision": True, "enable_grad_norm_clip": True}
    )
    expected, record = one_process(settings)
    saved = train_on(3, tmp_path, settings)
    for rank in saved:
        assert rank["inputs"] == ["x", "y", "loss_scale", "Learning_Rate"]
        assert rank["all_gradients_finite"] == [True] * 3
        norms = rank["global_gradient_norm"], record["global_gradient_norm"]
        np.testing.assert_allclose(*norms, rtol=1e-2)  # with the loss scale of 64 in it, once
        np.testing.assert_allclose(rank["loss"], record["loss"], rtol=1e-2)
    for name in WEIGHTS:  # a 16-bit sum over a smaller batch is rounded otherwise
        np.testing.assert_allclose(whole(tmp_path)[name], expected[name], rtol=0, atol=2e-3)
    overflow = Settings(**{**asdict(settings), "overflows": (1, -1)})
    saved = train_on(3, tmp_path, overflow)
    assert [rank["all_gradients_finite"] for rank in saved] == [[True, False, True]] * 3
    assert whole(tmp_path)["Update_Count_W1"].tolist() == [3]


def test_a_stage_drops_the_same_elements_in_both_passes(tmp_path: pathlib.Path) -> None:
    stages = {"pipeline_parallel_size": 2, "pipeline_cut_info_string": "dropped"}
    settings = Settings(steps=6, dropout=True, members=stages)
    expected, record = one_process(settings)
    saved = train_on(2, tmp_path, settings)
    np.testing.assert_allclose(saved[1]["loss"], record["loss"], rtol=1e-5)
    for name in WEIGHTS:
        np.testing.assert_allclose(whole(tmp_path)[name], expected[name], rtol=0, atol=1e-6)


def test_ranks_drop_different_elements_and_resume_them(tmp_path: pathlib.Path) -> None:
    settings = Settings(steps=6, dropout=True, size=16, members=dict(DATA))
    saved = train_on(2, tmp_path, settings)
    expected = whole(tmp_path)
    assert saved[0]["state"]["Random_State"][1] != saved[1]["state"]["Random_State"][1]
    train_on(2, tmp_path, Settings(**{**asdict(settings), "steps": 3}))
    (tmp_path / "state.pickle").rename(tmp_path / "half.pickle")
    resumed = {**asdict(settings), "steps": 3, "first": 3, "load": str(tmp_path / "half.pickle")}
    train_on(2, tmp_path, Settings(**resumed))
    for name, value in expected.items():
        np.testing.assert_array_equal(whole(tmp_path)[name], value, err_msg=name)
