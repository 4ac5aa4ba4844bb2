"""TrainingSession: inputs, outputs, runs and state of the older Python API, as onnxruntime 1.16.3 had them."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from legacy_models import (
    WEIGHTS,
    Reference,
    adam,
    batch,
    clipped,
    feed,
    gradients,
    lamb,
    mlp,
    norm,
    parameters,
    path_only,
    rate,
    sgd,
    weights,
)
from ortrain.capi import _pybind_state as C


def session(optimizer: str = "AdamOptimizer", **members: Any) -> ortrain.TrainingSession:
    return ortrain.TrainingSession(mlp(), parameters(optimizer, **members))


def names(infos: list[Any]) -> list[str]:
    return [info.name for info in infos]


def assert_state(
    s: ortrain.TrainingSession, expected: dict[str, np.ndarray], tolerance: float = 2e-6
) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(s.get_state()[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


# ---- inputs and outputs ----


def test_without_an_optimizer_nothing_is_added() -> None:
    s = session("")
    assert names(s.get_inputs()) == ["x", "y"]
    assert names(s.get_outputs()) == ["loss", "pred"]
    loss, _ = s.run(None, batch())
    assert loss == pytest.approx(gradients(weights(), batch())[0], rel=1e-6)
    assert_state(s, weights(), 0)


def test_inputs_and_outputs_of_an_optimizer() -> None:
    s = session()
    assert names(s.get_inputs()) == ["x", "y", "Learning_Rate"]
    assert s.get_inputs()[2].shape == [1]
    assert s.get_inputs()[2].type == "tensor(float)"
    assert names(s.get_outputs()) == ["loss", "pred", "global_gradient_norm"]
    assert names(session(enable_grad_norm_clip=False).get_outputs()) == ["loss", "pred"]
    assert names(session(gradient_accumulation_steps=2).get_outputs()) == [
        "loss", "pred", "Group_Accumulated_Gradients", "global_gradient_norm",
    ]  # fmt: skip
    assert names(session(lr_params_feed_name="rate").get_inputs()) == ["x", "y", "rate"]


@pytest.mark.parametrize("steps", [0, -3])
def test_fewer_than_one_accumulation_step_is_one(steps: int) -> None:
    assert names(session(gradient_accumulation_steps=steps).get_outputs()) == [
        "loss",
        "pred",
        "global_gradient_norm",
    ]


def test_mixed_precision_adds_the_loss_scale_and_says_whether_gradients_are_finite() -> None:
    s = session(use_mixed_precision=True)
    assert names(s.get_inputs()) == ["x", "y", "loss_scale", "Learning_Rate"]
    assert names(s.get_outputs()) == ["loss", "pred", "global_gradient_norm", "all_gradients_finite"]
    assert s.loss_scale_input_name == "loss_scale"
    assert session().loss_scale_input_name is None


def test_gradients_are_outputs() -> None:
    s = session(set_gradients_as_graph_outputs=True)
    assert set(names(s.get_outputs())[2:6]) == {f"{w}_grad" for w in WEIGHTS}
    expected = gradients(weights(), batch())[1]
    for w, value in zip(WEIGHTS, s.run([f"{w}_grad" for w in WEIGHTS], feed(batch())), strict=True):
        np.testing.assert_allclose(value, expected[w], rtol=1e-4, atol=1e-6)
    found = session("", set_gradients_as_graph_outputs=True).run(None, batch())
    assert len(found) == 6


# ---- runs ----


def test_fetching_the_loss_trains_and_gives_that_before_the_update() -> None:
    s = session("SGDOptimizer")
    first, g = gradients(weights(), batch())
    assert s.run(["loss"], feed(batch(), 0.5))[0] == pytest.approx(first, rel=1e-6)
    assert_state(s, {w: weights()[w] - 0.5 * g[w] for w in WEIGHTS})
    for names_ in (None, []):
        before = s.get_state()["W1"]
        assert len(s.run(names_, feed(batch(), 0.5))) == 3
        assert not np.array_equal(before, s.get_state()["W1"])


@pytest.mark.parametrize("fetch", ["loss", "global_gradient_norm"])
def test_the_path_to_fetches_updates_nothing(fetch: str) -> None:
    s = session()
    before = s.get_state()
    found = s.run([fetch], feed(batch()), path_only())
    loss, g = gradients(weights(), batch())
    assert found[0] == pytest.approx(loss if fetch == "loss" else norm(g), rel=1e-5)
    for name, value in s.get_state().items():
        np.testing.assert_array_equal(value, before[name])


def test_training_mode_alone_does_not_stop_the_optimizer() -> None:
    s, options = session(), ortrain.RunOptions()
    options.training_mode = False
    s.run(["loss"], feed(batch()), options)
    assert not np.array_equal(s.get_state()["W1"], weights()["W1"])


def test_run_with_ort_values_trains_like_run() -> None:
    one, other = session(), session()
    for k in range(3):
        one.run(["loss"], feed(batch(k)))
        values = {name: ortrain.OrtValue.ortvalue_from_numpy(v) for name, v in feed(batch(k)).items()}
        other.run_with_ort_values(["loss"], values)
    for name, value in one.get_state().items():
        np.testing.assert_array_equal(value, other.get_state()[name])


@pytest.mark.parametrize("size", [1, 5, 64])
def test_batches_of_any_size(size: int) -> None:
    loss, _ = gradients(weights(), batch(size=size))
    assert session().run(["loss"], feed(batch(size=size)))[0] == pytest.approx(loss, rel=1e-5)


def test_refused_feeds() -> None:
    s = session()
    with pytest.raises(
        ValueError, match=r"Required inputs \(\['Learning_Rate'\]\) are missing from input feed"
    ):
        s.run(["loss"], batch(), path_only())
    with pytest.raises(ValueError, match="W1"):
        s.run(["loss"], {**feed(batch()), "W1": weights()["W1"]})
    with pytest.raises(
        ValueError, match=r"Learning_Rate.*shape|Learning_Rate.*rank|Learning_Rate.*expected float32\[1\]"
    ):
        s.run(["loss"], {**batch(), "Learning_Rate": np.array(0.1, np.float32)})
    with pytest.raises(ValueError, match=r"Learning_Rate.*expected float32, found float64"):
        s.run(["loss"], {**batch(), "Learning_Rate": np.array([0.1])})
    with pytest.raises(RuntimeError, match="Learning_Rate"):
        s.run(["loss"], {**batch(), "Learning_Rate": 0.1})
    with pytest.raises(ValueError, match="nope"):
        s.run(["nope"], feed(batch()))
    assert_state(s, weights(), 0)


# ---- optimizers ----

ADAMS = [
    {},
    {"alpha": 0.8, "beta": 0.95, "epsilon": 1e-3},
    {"decay": 0.1},
    {"decay": 0.1, "mode": 1},
    {"mode": 1, "correct": False, "decay": 0.05},
    {"correct": False},
]


def attributes(settings: dict[str, Any]) -> dict[str, Any]:
    floats = {
        theirs: float(settings[ours])
        for ours, theirs in (
            ("alpha", "alpha"), ("beta", "beta"), ("epsilon", "epsilon"), ("decay", "lambda"), ("low", "ratio_min"),
            ("high", "ratio_max"),
        )
        if ours in settings
    }  # fmt: skip
    ints = {
        theirs: int(settings[ours])
        for ours, theirs in (("mode", "weight_decay_mode"), ("correct", "do_bias_correction"))
        if ours in settings
    }
    return {"floats": floats, "ints": ints}


def train(s: ortrain.TrainingSession, ref: Reference, limit: float = np.inf, steps: int = 12) -> None:
    for k in range(steps):
        loss, g = gradients(ref.w, batch(k))
        found = s.run(["loss"], feed(batch(k), 0.02))[0]
        assert found == pytest.approx(loss, rel=1e-4)
        ref.update(clipped(g, limit), float(np.float32(0.02)))


@pytest.mark.parametrize("settings", ADAMS)
def test_adam(settings: dict[str, Any]) -> None:
    s = session(enable_grad_norm_clip=False, **attributes(settings))
    ref = Reference(weights(), adam(**settings))
    train(s, ref)
    assert_state(s, ref.w, 1e-5)
    assert_state(s, {f"Moment_1_{w}": ref.m[w] for w in WEIGHTS}, 1e-5)
    assert_state(s, {f"Moment_2_{w}": ref.v[w] for w in WEIGHTS}, 1e-5)
    assert_state(s, {f"Update_Count_{w}": np.array([13]) for w in WEIGHTS}, 0)


@pytest.mark.parametrize(
    "settings", [{}, {"correct": True}, {"decay": 0.1}, {"low": 0.5, "high": 1.5, "decay": 0.01}]
)
def test_lamb(settings: dict[str, Any]) -> None:
    s = session("LambOptimizer", enable_grad_norm_clip=False, **attributes(settings))
    ref = Reference(weights(), lamb(**settings))
    train(s, ref)
    assert_state(s, ref.w, 2e-5)
    assert_state(s, {f"Moment_2_{w}": ref.v[w] for w in WEIGHTS}, 1e-5)
    assert_state(s, {"Step": np.array([13])}, 0)


def test_sgd() -> None:
    s, ref = session("SGDOptimizer"), Reference(weights(), sgd)
    train(s, ref)
    assert_state(s, ref.w, 1e-6)
    assert set(s.get_state()) == set(WEIGHTS)
    assert s.get_optimizer_state() == {}


def test_attributes_belong_to_their_weights() -> None:
    """Different rates of decay, as parameter groups have."""
    p = parameters(enable_grad_norm_clip=False)
    decays = {"W1": 0.5, "b1": 0.0, "W2": 0.1, "b2": 0.0}
    p.optimizer_attributes_map = {
        w: {"lambda": d, "alpha": 0.8 if w == "W2" else 0.9} for w, d in decays.items()
    }
    p.optimizer_int_attributes_map = {w: {"weight_decay_mode": int(w == "W1")} for w in WEIGHTS}
    s = ortrain.TrainingSession(mlp(), p)
    refs = {
        w: Reference({w: weights()[w]}, adam(0.8 if w == "W2" else 0.9, decay=d, mode=int(w == "W1")))
        for w, d in decays.items()
    }
    for k in range(5):
        g = gradients({w: refs[w].w[w] for w in WEIGHTS}, batch(k))[1]
        s.run(["loss"], feed(batch(k), 0.02))
        for w in WEIGHTS:
            refs[w].update({w: g[w]}, float(np.float32(0.02)))
    assert_state(s, {w: refs[w].w[w] for w in WEIGHTS}, 1e-5)


@pytest.mark.parametrize(
    ("optimizer", "step"), [("AdamOptimizer", adam()), ("LambOptimizer", lamb()), ("SGDOptimizer", sgd)]
)
@pytest.mark.parametrize("limit", [0.05, 0.3])
def test_gradients_are_clipped(optimizer: str, step: Any, limit: float) -> None:
    s = session(optimizer, floats={"max_norm_clip": limit})
    ref = Reference(weights(), step)
    lengths = []
    for k in range(6):
        g = gradients(ref.w, batch(k))[1]
        lengths.append(norm(g))
        assert s.run(["global_gradient_norm"], feed(batch(k), 0.02))[0] == pytest.approx(norm(g), rel=1e-4)
        ref.update(clipped(g, limit), float(np.float32(0.02)))
    assert max(lengths) > limit
    assert_state(s, ref.w, 1e-5)


def test_the_norm_of_a_clipped_gradient_is_one_by_default_except_with_sgd() -> None:
    start = {w: 4 * v for w, v in weights().items()}
    s = session()
    s.load_state(start)
    g = gradients(start, batch())[1]
    assert norm(g) > 1
    s.run(["loss"], feed(batch()))
    assert_state(s, {f"Moment_1_{w}": 0.1 * v / norm(g) for w, v in g.items()}, 1e-5)
    plain = session("SGDOptimizer")
    plain.load_state(start)
    plain.run(["loss"], feed(batch()))
    assert_state(plain, {w: start[w] - np.float32(0.01) * g[w] for w in WEIGHTS}, 1e-5)


# ---- accumulation ----


@pytest.mark.parametrize(
    ("optimizer", "step"), [("AdamOptimizer", adam()), ("LambOptimizer", lamb()), ("SGDOptimizer", sgd)]
)
def test_accumulated_gradients_are_averaged(optimizer: str, step: Any) -> None:
    s = session(optimizer, gradient_accumulation_steps=3, floats={"max_norm_clip": 0.4})
    ref = Reference(weights(), step)
    for update in range(3):
        total = {w: np.zeros_like(v) for w, v in ref.w.items()}
        for part in range(3):
            data = batch(3 * update + part)
            g = gradients(ref.w, data)[1]
            total = {w: total[w] + g[w] / 3 for w in WEIGHTS}
            if part < 2:
                before = s.get_state()
                found = s.run(["loss", "Group_Accumulated_Gradients"], feed(data), path_only())
                assert found[1].dtype == bool
                assert found[1].all()
                for name, value in s.get_state().items():
                    np.testing.assert_array_equal(value, before[name])
            else:
                found = s.run(["global_gradient_norm"], feed(data, 0.02))
                assert found[0] == pytest.approx(norm(total), rel=1e-4)
        ref.update(clipped(total, 0.4), float(np.float32(0.02)))
    assert_state(s, ref.w, 1e-5)


def test_accumulation_buffers_are_no_state() -> None:
    assert set(session(gradient_accumulation_steps=2).get_state()) == set(session().get_state())


# ---- what is trained ----


def test_the_weights_are_found_from_the_loss() -> None:
    p = parameters()
    p.weights_to_train = set()
    assert set(ortrain.TrainingSession(mlp(), p).get_model_state()["full_precision"]) == set(WEIGHTS)
    p.weights_not_to_train = {"W1", "b1", "unknown"}
    s = ortrain.TrainingSession(mlp(), p)
    s.run(["loss"], feed(batch()))
    assert set(s.get_model_state()["full_precision"]) == {"W2", "b2"}


def test_unknown_weights_are_left_out_with_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    p = parameters(names=("W1", "b2"))
    p.weights_to_train = {"W1", "b2", "nope"}
    s = ortrain.TrainingSession(mlp(), p)
    assert "nope" in capfd.readouterr().err
    s.run(["loss"], feed(batch()))
    assert set(s.get_model_state()["full_precision"]) == {"W1", "b2"}


def test_small_equal_weights_stay_apart() -> None:
    """Onnxruntime 1.16 merged them and failed."""
    s = session()
    s.load_state({"b1": np.zeros(16, np.float32), "b2": np.zeros(3, np.float32)})
    s.run(["loss"], feed(batch()))
    assert np.abs(s.get_state()["b1"]).max() > 0


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"loss_output_name": "nope"}, 'no value "nope".*"loss", "pred"'),
        ({"loss_output_name": ""}, 'no value ""'),
        ({"loss_output_name": "pred"}, "scalar"),
        ({"weights_to_train": {"pred"}}, '"pred" is not an initializer'),
        ({"weights_to_train": {"W1"}, "weights_not_to_train": {"W1"}}, "nothing to train"),
        ({"training_optimizer_name": "Foo"}, 'AdamOptimizer.*found "Foo"'),
        ({"lr_params_feed_name": ""}, "lr_params_feed_name"),
        ({"lr_params_feed_name": "x"}, 'lr_params_feed_name.*"x"'),
        ({"optimizer_attributes_map": {"W1": {}}}, 'optimizer_attributes_map.*"b1"'),
        ({"optimizer_int_attributes_map": {"W1": {}}}, 'optimizer_int_attributes_map.*"b1"'),
        ({"ints": {"weight_decay_mode": 2}}, "weight_decay_mode 0 or 1.*found 2"),
        ({"world_rank": 3}, "world_rank"),
        ({"world_rank": -1}, "world_rank"),
        ({"world_size": 0}, "world_size"),
        ({"data_parallel_size": 2}, "data_parallel_size: 2, world_size: 1"),
        ({"horizontal_parallel_size": 2}, "horizontal_parallel_size: 2, world_size: 1"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size: 2, world_size: 1"),
        ({"number_recompute_layers": -1, "transformer_layer_recompute": True}, "number_recompute_layers"),
    ],
)
def test_refused_parameters(members: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        session(**members)
    assert re.search(message, str(raised.value))


@pytest.mark.parametrize(
    "members",
    [
        {"allreduce_post_accumulation": True},
        {"deepspeed_zero_stage": 1},
        {"enable_adasum": True},
        {"pipeline_cut_info_string": "h:pred"},
        {"num_pipeline_micro_batches": 4},
        {"sliced_tensor_names": ["x"], "sliced_axes": {"x": 0}, "sliced_schema": {"x": [2, 4]}},
        {"loss_scale": 128.0},
    ],
)
def test_members_without_effect_on_one_process(members: dict[str, Any]) -> None:
    one, other = session(), session(**members)
    for s in (one, other):
        s.run(["loss"], feed(batch()))
    for name, value in one.get_state().items():
        np.testing.assert_array_equal(value, other.get_state()[name])
    assert one.get_partition_info_map() == other.get_partition_info_map() == {}


def test_attributes_that_lamb_shares() -> None:
    p = parameters("LambOptimizer")
    p.optimizer_attributes_map = {w: {"ratio_min": 0.1 if w == "W1" else 0.2} for w in WEIGHTS}
    with pytest.raises(RuntimeError, match="ratio_min of LambOptimizer must be equal"):
        ortrain.TrainingSession(mlp(), p)
    p = parameters("LambOptimizer")
    p.optimizer_int_attributes_map = {w: {"do_bias_correction": int(w == "W1")} for w in WEIGHTS}
    with pytest.raises(RuntimeError, match="do_bias_correction of LambOptimizer must be equal"):
        ortrain.TrainingSession(mlp(), p)


def test_unknown_attributes_are_ignored() -> None:
    s = session(floats={"momentum": 0.5}, ints={"nesterov": 1})
    s.run(["loss"], feed(batch()))


# ---- state ----


def test_the_state_has_the_names_and_shapes_of_onnxruntime() -> None:
    state = session().get_state()
    assert list(state) == sorted(
        [*WEIGHTS, *(f"{kind}_{w}" for kind in ("Moment_1", "Moment_2", "Update_Count") for w in WEIGHTS)]
    )
    for w in WEIGHTS:
        np.testing.assert_array_equal(state[w], weights()[w])
        for kind in ("Moment_1", "Moment_2"):
            assert state[f"{kind}_{w}"].shape == state[w].shape
            assert state[f"{kind}_{w}"].dtype == np.float32
            assert not state[f"{kind}_{w}"].any()
        np.testing.assert_array_equal(state[f"Update_Count_{w}"], np.array([1]))
    assert set(session("LambOptimizer").get_state()) == {
        *WEIGHTS, "Step", *(f"Moment_{k}_{w}" for k in (1, 2) for w in WEIGHTS),
    }  # fmt: skip
    assert session(use_fp16_moments=True).get_state()["Moment_1_W1"].dtype == np.float16


def test_state_that_was_read_is_a_copy() -> None:
    s = session()
    s.get_state()["W1"][:] = 5
    s.get_model_state()["full_precision"]["W1"][:] = 5
    np.testing.assert_array_equal(s.get_state()["W1"], weights()["W1"])


def test_model_and_optimizer_state() -> None:
    s = session()
    assert set(s.get_model_state()) == {"full_precision"}
    assert s.get_model_state(include_mixed_precision_weights=True)["mixed_precision"] == {}
    assert set(s.get_model_state()["full_precision"]) == set(WEIGHTS)
    optimizer = s.get_optimizer_state()
    assert set(optimizer) == set(WEIGHTS)
    assert set(optimizer["W1"]) == {"Moment_1", "Moment_2", "Update_Count"}
    lamb_state = session("LambOptimizer").get_optimizer_state()
    assert set(lamb_state) == {*WEIGHTS, "shared_optimizer_state"}
    assert set(lamb_state["W1"]) == {"Moment_1", "Moment_2"}
    np.testing.assert_array_equal(lamb_state["shared_optimizer_state"]["Step"], np.array([1]))


def test_training_goes_on_from_a_saved_state() -> None:
    one = session()
    for k in range(3):
        one.run(["loss"], feed(batch(k)))
    other = session()
    assert other.load_state(one.get_state(), strict=True) is None
    third = ortrain.TrainingSession(mlp(), (p := parameters()))
    p.set_optimizer_initial_state(one.get_optimizer_state())
    third = ortrain.TrainingSession(mlp(), p)
    third.load_state(one.get_model_state()["full_precision"])
    for s in (one, other, third):
        s.run(["loss"], feed(batch(9)))
    for s in (other, third):
        for name, value in one.get_state().items():
            np.testing.assert_array_equal(value, s.get_state()[name])


def test_load_state() -> None:
    s = session()
    value = np.arange(64, dtype=np.float32)
    s.load_state({"W1": value.reshape(16, 4), "nope": value, "x": value})  # other names are ignored
    np.testing.assert_array_equal(s.get_state()["W1"], value.reshape(4, 16))
    s.load_state({"W1": weights()["W1"]}, strict=True)  # need not be complete
    s.load_state({"W1": np.asfortranarray(weights()["W1"])})
    for name in ("nope", "x"):
        with pytest.raises(RuntimeError, match=name):
            s.load_state({name: value}, strict=True)
    for strict in (False, True):
        with pytest.raises(RuntimeError, match=r"Tensor size mismatch.*W1"):
            s.load_state({"W2": np.zeros((16, 3), np.float32), "W1": value[:5]}, strict)
        with pytest.raises(RuntimeError, match=r"W1.*float32.*float64"):
            s.load_state({"W1": value.astype(np.float64)}, strict)
    assert_state(s, weights(), 0)


def test_initial_optimizer_state() -> None:
    p = parameters()
    start = np.full((4, 16), 0.25, np.float32)
    p.set_optimizer_initial_state({"W2": {"Moment_1": np.ones((16, 3), np.float32)}})
    p.set_optimizer_initial_state(
        {
            "W1": {"Moment_1": start, "Update_Count": np.array([7])},
            "nope": {"Moment_1": start},
            "b1": {"other": start},
        }
    )
    state = ortrain.TrainingSession(mlp(), p).get_state()
    np.testing.assert_array_equal(state["Moment_1_W1"], start)
    assert state["Update_Count_W1"] == 7
    assert not state["Moment_1_W2"].any()
    p = parameters("LambOptimizer")
    p.set_optimizer_initial_state({"shared_optimizer_state": {"Step": np.array([5])}})
    assert ortrain.TrainingSession(mlp(), p).get_state()["Step"] == 5
    for wrong, message in (
        (start[:, :15], r"\[4, 16\].*\[4, 15\]"),
        (start.astype(np.float64), "float32.*float64"),
    ):
        p = parameters()
        p.set_optimizer_initial_state({"W1": {"Moment_1": np.ascontiguousarray(wrong)}})
        with pytest.raises(RuntimeError, match=f'Moment_1 of "W1".*{message}'):
            ortrain.TrainingSession(mlp(), p)


def test_weights_are_there_without_an_optimizer() -> None:
    """Onnxruntime packed them away."""
    s = session("")
    assert_state(s, weights(), 0)
    s.load_state({"W1": np.zeros((4, 16), np.float32)})
    assert not np.any(s.get_model_state()["full_precision"]["W1"])
    changed = {**weights(), "W1": np.zeros((4, 16))}
    assert s.run(["loss"], batch())[0] == pytest.approx(gradients(changed, batch())[0], rel=1e-5)


def test_is_output_fp32_node() -> None:
    s = session(use_mixed_precision=True)
    assert s.is_output_fp32_node("loss")
    assert not s.is_output_fp32_node("pred")
    assert session().is_output_fp32_node("h1")
    with pytest.raises(RuntimeError, match="nope"):
        s.is_output_fp32_node("nope")


# ---- files ----


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        ({}, "AdamOptimizer"),
        ({"gradient_accumulation_steps": 2}, "ZeroGradient"),
        ({"use_mixed_precision": True}, "Cast"),
    ],
)
def test_the_three_files_are_valid_models(tmp_path: pathlib.Path, members: dict[str, Any], kind: str) -> None:
    paths = {
        "model_after_graph_transforms_path": tmp_path / "forward.onnx",
        "model_with_gradient_graph_path": tmp_path / "gradient.onnx",
        "model_with_training_graph_path": tmp_path / "training.onnx",
    }
    paths["model_with_training_graph_path"].write_bytes(b"something else")
    session(**members, **{name: str(path) for name, path in paths.items()})
    sizes = []
    for path in paths.values():
        onnx.checker.check_model(str(path))
        model = onnx.load(str(path))
        sizes.append(len(model.graph.node))
        assert {i.name for i in model.graph.initializer} >= {"W1"} or members.get("use_mixed_precision")
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[1] < sizes[2]
    assert kind in {node.op_type for node in model.graph.node}
    assert {"AdamOptimizer_W1"} <= {node.name for node in model.graph.node}


# ---- construction ----


def test_models_are_paths_or_bytes(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(mlp())
    s = ortrain.TrainingSession(str(path), parameters(), None, ["CPUExecutionProvider"], [{}])
    s.run(["loss"], feed(batch()))
    for wrong in (path, None, 3):
        with pytest.raises(TypeError, match="Unable to load from type"):
            ortrain.TrainingSession(wrong, parameters())  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        ortrain.TrainingSession(str(tmp_path / "none.onnx"), parameters())
    with pytest.raises(ValueError, match="ONNX"):
        ortrain.TrainingSession(b"nothing", parameters())
    with pytest.raises(TypeError, match="TrainingParameters"):
        ortrain.TrainingSession(mlp(), None)  # type: ignore[arg-type]


def test_the_inner_class(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(mlp())
    inner = C.TrainingSession(ortrain.SessionOptions())
    result = inner.load_model(str(path), parameters(use_mixed_precision=True), ["CPUExecutionProvider"], [{}])
    assert result.loss_scale_input_name == "loss_scale"
    with pytest.raises(AttributeError):
        result.loss_scale_input_name = "other"  # type: ignore[misc]
    with pytest.raises(RuntimeError, match="has a model already"):
        inner.load_model(str(path), parameters(), [], [])
    assert not inner.is_output_fp32_node("pred")
    inner = C.TrainingSession()
    with pytest.raises(RuntimeError, match="load_model or read_bytes"):
        inner.get_state()
    assert inner.read_bytes(mlp(), parameters(), [], []).loss_scale_input_name is None
    assert set(inner.get_model_state(False)) == {"full_precision"}
    assert set(inner.get_optimizer_state()) == set(WEIGHTS)
    assert inner.get_partition_info_map() == {}
    inner.load_state({"W1": np.zeros((4, 16), np.float32)}, True)
    assert not inner.get_state()["W1"].any()
    assert [entry.name for entry in inner.inputs_meta] == [*feed(batch())]
    assert inner.outputs_meta[0].name == "loss"
    assert inner.overridable_initializers == []
    assert inner.model_meta.graph_name == ortrain.InferenceSession(mlp()).get_modelmeta().graph_name
    assert inner.get_profiling_start_time_ns == 0
    assert inner.end_profiling() == ""
    [before] = inner.run(["loss"], feed(batch()))
    values = {n: ortrain.OrtValue.ortvalue_from_numpy(np.asarray(v)) for n, v in feed(batch()).items()}
    [after] = inner.run_with_ort_values(["loss"], values)
    assert after.numpy() < before
    assert inner.finalize() is None  # type: ignore[func-returns-value]
    assert rate().shape == (1,)
