"""``ortrain.training``: samplers, settings and schedules under the names of ``onnxruntime.training``."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ortrain import training
from ortrain.training import optim
from ortrain.training.utils.data import LoadBalancingDistributedBatchSampler, LoadBalancingDistributedSampler
from ortrain.training.utils.data.sampler import _Generator, shard_wrapped_indices_for_worker

COSTS = [int(cost) for cost in np.random.default_rng(5).integers(0, 100, 101)]


def sampler(rank: int = 0, world_size: int = 2, **options: Any) -> LoadBalancingDistributedSampler:
    return LoadBalancingDistributedSampler(
        COSTS, lambda cost: cost, world_size=world_size, rank=rank, **options
    )


# ---- samplers ----


def test_the_generator_draws_what_pytorch_draws() -> None:
    # torch.randperm(10) and torch.randint(100, (10,)) after torch.manual_seed(0)
    assert _Generator(0).permutation(10) == [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]
    assert _Generator(0).integers(100, 10).tolist() == [44, 39, 33, 60, 63, 79, 27, 3, 97, 83]


def test_all_processes_get_samples_of_about_the_same_cost_at_a_time() -> None:
    of_rank = [list(sampler(rank)) for rank in range(2)]
    assert len(of_rank[0]) == len(of_rank[1]) == len(sampler()) == 51
    assert sorted({*of_rank[0], *of_rank[1]}) == list(range(101))
    in_order = sorted(COSTS)
    in_order.append(in_order[0])  # the last time has one sample left, and the cheapest again
    expected = sorted(zip(in_order[::2], in_order[1::2], strict=True))
    assert sorted((COSTS[i], COSTS[j]) for i, j in zip(*of_rank, strict=True)) == expected


def test_without_shuffling_costs_rise() -> None:
    costs = [COSTS[i] for i in sampler(shuffle=False)]
    assert costs[:-1] == sorted(costs[:-1])


def test_groups_are_sorted_on_their_own() -> None:
    found = [COSTS[i] for i in sampler(world_size=1, shuffle=False, group_size=8)]
    assert found == [cost for start in range(0, 101, 8) for cost in sorted(COSTS[start : start + 8])]


def test_groups_are_shuffled_as_a_whole_in_the_order_of_pytorch() -> None:
    found = [COSTS[i] for i in sampler(world_size=1, group_size=8)]
    order = _Generator(0).permutation(13)
    assert found == [cost for group in order for cost in sorted(COSTS[8 * group : 8 * group + 8])]


def test_an_epoch_has_its_own_order_and_keeps_it() -> None:
    made = sampler()
    first = list(made)
    made.set_epoch(1)
    second = list(made)
    assert first != second
    assert sorted(first) != []
    assert list(made) == second
    made.set_epoch(0)
    assert list(made) == first


def test_a_random_level_mixes_costs() -> None:
    exact = [COSTS[i] for i in sampler(world_size=1, shuffle=False)]
    mixed = [COSTS[i] for i in sampler(world_size=1, shuffle=False, random_level=0.5)]
    assert sorted(mixed) == exact != mixed


def test_the_last_samples_can_be_dropped() -> None:
    of_rank = [list(sampler(rank, drop_last=True)) for rank in range(2)]
    assert [len(indices) for indices in of_rank] == [50, 50]
    assert len({*of_rank[0], *of_rank[1]}) == 100


def test_invalid_arguments_of_samplers_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"Invalid rank 2: expected one in the interval \[0, 1\]"):
        sampler(rank=2)
    with pytest.raises(ValueError, match=r"Invalid random level 1.5"):
        sampler(random_level=1.5)
    with pytest.raises(ValueError, match="at least 1, found 0"):
        sampler(group_size=0)
    with pytest.raises(ValueError, match="drop_last of sampler should be False"):
        LoadBalancingDistributedBatchSampler(sampler(drop_last=True), lambda indices: [indices])
    with pytest.raises(ValueError, match="LoadBalancingDistributedSampler type, found list"):
        LoadBalancingDistributedBatchSampler([1], lambda indices: [indices])  # type: ignore[arg-type]


def by_cost(indices: list[int]) -> list[list[int]]:
    """Batches of at most 400 in cost."""
    batches: list[list[int]] = [[]]
    for index in indices:
        if batches[-1] and sum(COSTS[i] for i in batches[-1]) + COSTS[index] > 400:
            batches.append([])
        batches[-1].append(index)
    return batches


@pytest.mark.parametrize("drop_last", [False, True])
def test_every_process_gets_as_many_batches(drop_last: bool) -> None:
    made = [
        LoadBalancingDistributedBatchSampler(sampler(rank, shuffle=False), by_cost, drop_last)
        for rank in range(2)
    ]
    own = [by_cost(list(sampler(rank, shuffle=False))) for rank in range(2)]
    counts = [len(batches) for batches in own]
    expected = min(counts) if drop_last else max(counts)
    for batches, whole in zip(made, own, strict=True):
        assert len(batches) == len(list(batches)) == expected
        assert list(batches) == (whole * 2)[:expected]


def test_batches_follow_the_epoch() -> None:
    made = LoadBalancingDistributedBatchSampler(sampler(world_size=1), by_cost)
    first = list(made)
    made.set_epoch(3)
    assert list(made) != first
    assert sorted(i for batch in made for i in batch) == list(range(101))


def test_shards_wrap_around() -> None:
    assert shard_wrapped_indices_for_worker([10, 11, 12, 13, 14], 0, 2) == [10, 12, 14]
    assert shard_wrapped_indices_for_worker([10, 11, 12, 13, 14], 1, 2) == [11, 13, 10]


# ---- settings ----


def test_configurations_hold_the_hyperparameters() -> None:
    adam = optim.AdamConfig([{"params": ["w"], "lambda_coef": 0.1, "alpha": 0.5}], lr=0.01)
    assert (adam.name, adam.lr, adam.beta, adam.epsilon) == ("AdamOptimizer", 0.01, 0.999, 1e-8)
    assert adam.weight_decay_mode is optim.AdamConfig.DecayMode.BEFORE_WEIGHT_UPDATE
    (group,) = adam.params
    assert (group["params"], group["lambda"], group["alpha"], group["beta"]) == (["w"], 0.1, 0.5, 0.999)
    lamb = optim.LambConfig()
    assert (lamb.name, lamb.ratio_min, lamb.epsilon) == ("LambOptimizer", -math.inf, 1e-6)
    assert not lamb.do_bias_correction
    assert optim.SGDConfig(lr=0.5).defaults == {"lr": 0.5}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.AdamConfig(lr=-1), "'lr' must be a number that is not negative, found -1"),
        (lambda: optim.AdamConfig(max_norm_clip=0), "'max_norm_clip' must not be 0"),
        (lambda: optim.AdamConfig([{"params": ["w"], "lr": 1.0}]), "'lr' is not supported inside params"),
        (lambda: optim.AdamConfig([{"params": ["w"], "speed": 1.0}]), "found 'speed'"),
        (lambda: optim.AdamConfig([{"params": ["w"]}]), "at least one hyperparameter"),
        (lambda: optim.AdamConfig(do_bias_correction=1), "must be a bool, found 1"),  # type: ignore[arg-type]
        (lambda: optim.LambConfig(ratio_max=3), "'ratio_max' must be a float, found 3"),
        (lambda: optim.SGDConfig([{"params": ["w"], "lr": 1.0}]), "must be an empty list"),
        (lambda: optim._OptimizerConfig("Other", [], {"lr": 1.0}), "found 'Other'"),
        (lambda: optim.LinearWarmupLRScheduler(0), "total_steps must be a positive int, found 0"),
        (lambda: optim.LinearWarmupLRScheduler(10, 1.0), r"interval \[0, 1\), found 1.0"),
        (lambda: optim.CosineWarmupLRScheduler(10, 0.0), "cycles must be a positive float"),
        (lambda: optim.PolyWarmupLRScheduler(10, power=-1.0), "power must be a float"),
    ],
)
def test_invalid_settings_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        make()


def rates(schedule: Any, steps: int) -> list[float]:
    config = optim.SGDConfig(lr=2.0)
    found = []
    for step in range(steps):
        rate = schedule._step(SimpleNamespace(optimization_step=step, optimizer_config=config))
        assert schedule.get_last_lr() == rate
        found += rate
    return found


def test_schedules_follow_their_curves() -> None:
    """Against values worked out by hand: 8 steps, 4 of them warmup, learning rate 2."""
    warmup = [0.0, 0.5, 1.0, 1.5]
    assert optim.ConstantWarmupLRScheduler(8).get_last_lr() == []
    constant = rates(optim.ConstantWarmupLRScheduler(8, 0.5), 10)
    np.testing.assert_allclose(constant, [*warmup, *[2.0] * 6])
    linear = rates(optim.LinearWarmupLRScheduler(8, 0.5), 10)
    np.testing.assert_allclose(linear, [*warmup, 2.0, 1.5, 1.0, 0.5, 0.0, 0.0])
    cosine = rates(optim.CosineWarmupLRScheduler(8, 0.5, 0.5), 9)
    half = math.sqrt(0.5)
    np.testing.assert_allclose(cosine, [*warmup, 2.0, 1 + half, 1.0, 1 - half, 0.0], atol=1e-12)
    power = rates(optim.PolyWarmupLRScheduler(8, 1.0, 2.0, 0.5), 10)
    np.testing.assert_allclose(power, [*warmup, 2.0, 1.5625, 1.25, 1.0625, 1.0, 1.0])
    with pytest.raises(AssertionError, match="smaller than the learning rate"):
        rates(optim.PolyWarmupLRScheduler(8, 3.0), 1)


@pytest.mark.parametrize("make", [optim.FusedAdam, optim.FP16_Optimizer])
def test_optimizers_of_pytorch_name_what_to_use_instead(make: Any) -> None:
    with pytest.raises(
        NotImplementedError, match=r"PyTorch.*(ortrain\.onnxblock\.optim\.AdamW|mixed_precision)"
    ):
        make([])


# ---- the package ----


def test_the_package_has_the_layout_of_onnxruntime() -> None:
    import ortrain.api
    import ortrain.artifacts
    import ortrain.onnxblock

    assert training.api is ortrain.api
    assert training.artifacts is ortrain.artifacts
    assert training.onnxblock is ortrain.onnxblock
    assert training.TrainingParameters is ortrain.TrainingParameters
    assert training.is_ortmodule_available() is False
    for name in training.__all__:
        assert getattr(training, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'ortmodule'"):
        _ = training.ortmodule


def test_exporting_gradients_needs_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ImportError, match="PyTorch, which is not installed"):
        training.experimental.export_gradient_graph(None, None, None, None, "out.onnx")  # type: ignore[arg-type]
