"""Privacy of a trainer: DP-SGD against a loop over single rows in NumPy, its noise and epsilon, and whatever else a run does."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import warnings

import numpy as np
import ortrain
import pytest
import small
from ortrain import Trainer, artifacts
from ortrain.onnxblock import loss
from ortrain.trainer import (
    Accountant,
    EarlyStopping,
    JSONLogger,
    LambdaCallback,
    MeZO,
    ModelCheckpoint,
    Privacy,
    Rehearsal,
    Schedule,
)
from ortrain.trainer.private import PrivateGradients, _Random
from test_elastic_weights import gradients, linear, rows, values

accounted = pytest.mark.skipif(
    not __import__("importlib.util", fromlist=["util"]).find_spec("dp_accounting"),
    reason="needs dp-accounting",
)


def pseudo_random(seed):
    """Bytes that are the same in each run."""
    return np.random.default_rng(seed).bytes


def parameters_of(trainer):
    return {name: parameter.data.copy() for name, parameter in trainer.state.parameters}


def private(optimizer="adamw", *, privacy, **settings):
    return Trainer(linear(), "cross_entropy", optimizer, privacy=privacy, **settings)


@pytest.mark.parametrize("taken", ["together", "one by one"])
def test_steps_are_those_of_a_loop_over_single_rows(taken, monkeypatch):
    if taken == "one by one":
        monkeypatch.setattr(PrivateGradients, "_many_rows", lambda *_: None)
    (x, y), rate, clip, batch = rows(count=20), 0.5, 0.8, 5
    privacy = Privacy(noise_multiplier=0, clip=clip, random_bytes=pseudo_random(5))
    trainer = private("sgd", learning_rate=rate, privacy=privacy, metrics=["accuracy"])
    history = trainer.fit(x, y, 2, batch_size=batch, verbose=False)
    w, b = values(linear())
    bits = np.random.default_rng(5)
    for epoch in range(2):
        losses, clipped, right = [], [], []
        for _ in range(4):
            chosen = (np.frombuffer(bits.bytes(8 * 20), np.uint64) / 2**64) < batch / 20
            scores = x[chosen] @ w + b
            losses += (
                np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), y[chosen]]
            ).tolist()
            right += (scores.argmax(axis=1) == y[chosen]).tolist()
            of_w, of_b = gradients(w, b, x[chosen], y[chosen])
            norms = np.sqrt(np.square(of_w).sum(axis=(1, 2)) + np.square(of_b).sum(axis=1))
            factors = np.minimum(1, clip / norms)
            w = w - rate * (of_w * factors[:, None, None]).sum(axis=0) / batch
            b = b - rate * (of_b * factors[:, None]).sum(axis=0) / batch
            clipped += (norms > clip).tolist()
        assert 0 < sum(clipped) < len(clipped)
        assert history["clipped"][epoch] == pytest.approx(np.mean(clipped))
        assert history["loss"][epoch] == pytest.approx(np.mean(losses), rel=1e-5)
        assert history["accuracy"][epoch] == pytest.approx(np.mean(right))
    assert trainer.step == 8
    assert history["epsilon"] == [math.inf, math.inf]
    for expected, name in ((w, "w"), (b, "b")):
        np.testing.assert_allclose(parameters_of(trainer)[name], expected, rtol=1e-5, atol=1e-6)


@accounted
def test_noise_has_the_deviation_that_is_asked_for():
    (x, y), moves = rows(), []
    for seed in range(60):
        settings = {"clip": 1e-6, "noise_multiplier": 5e5, "delta": 1e-3, "random_bytes": pseudo_random(seed)}
        trainer = private("sgd", learning_rate=1.0, privacy=Privacy(**settings))
        trainer.fit(x, y, batch_size=12, verbose=False)
        for start, name in zip(values(linear()), ("w", "b"), strict=True):
            moves += (parameters_of(trainer)[name] - start).ravel().tolist()
    # 5e5 * 1e-6 / 12, of 60 * 18 numbers whose deviation is known within 2.2 percent.
    assert np.std(moves) == pytest.approx(0.5 / 12, rel=0.1)
    assert abs(np.mean(moves)) < 4 * 0.5 / 12 / math.sqrt(len(moves))


def test_noise_is_normal():
    found = np.sort(_Random(pseudo_random(1)).normal(20_000))
    expected = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in found])
    distance = np.abs(expected - np.arange(1, len(found) + 1) / len(found)).max()
    assert distance < 1.63 / math.sqrt(len(found))  # Kolmogorov and Smirnov, 1 percent
    assert (_Random(lambda count: b"\xff" * count).normal(3) < 20).all()  # the longest is finite


@accounted
def test_epsilon_is_that_of_the_gaussian_mechanism():
    trainer = private(privacy=Privacy(noise_multiplier=4.0, delta=1e-5))
    (epsilon,) = trainer.fit(*rows(), batch_size=12, verbose=False)["epsilon"]
    # One step on all rows. The exact delta of an epsilon: Balle and Wang, 2018, theorem 8. Rényi's bound is a little larger.
    normal = lambda value: 0.5 * math.erfc(-value / math.sqrt(2))  # noqa: E731

    def delta(epsilon):
        return normal(1 / 8 - 4 * epsilon) - math.exp(epsilon) * normal(-1 / 8 - 4 * epsilon)

    assert trainer.step == 1
    assert delta(epsilon) < 1e-5 < delta(0.8 * epsilon)


@accounted
def test_a_target_epsilon_is_reached_at_the_end_over_all_runs():
    trainer = private(privacy=Privacy(epsilon=3, delta=1e-3))
    x, y = rows(count=200)
    first = trainer.fit(x, y, 4, batch_size=20, verbose=False)["epsilon"]
    assert 2.9 < first[-1] <= 3
    assert first == sorted(first)
    with pytest.raises(
        ValueError,
        match=r"with room for 6 more steps beyond the 2\.99.* that the steps so far have spent, found 3",
    ):
        trainer.fit(x, y, verbose=False)
    found = Accountant([*trainer.accountant.history])
    noise = found.noise_for(6, 0.1, 40, 1e-3)
    assert 5.9 < found.epsilon_after(noise, 0.1, 40, 1e-3) <= 6
    assert found.noise_for(50, 0.1, 40, 1e-3) < noise


RUN = """
import sys
from ortrain import Trainer
from ortrain.trainer import JSONLogger, Privacy
from test_mezo import digits
folder, settings = sys.argv[1], eval(sys.argv[2])
trainer = Trainer(folder, metrics=["accuracy"], privacy=Privacy(**settings), callbacks=[JSONLogger(folder + "/log.jsonl")])
trainer.fit(digits(), 4, batch_size=50, validation=0.25, resume=folder + "/2.ckpt", verbose=False)
trainer.save(folder + "/4.ckpt")
"""


@accounted
@pytest.mark.parametrize("settings", [{"noise_multiplier": 1.3}, {"epsilon": 4.0}], ids=["noise", "epsilon"])
def test_epsilon_goes_on_in_another_process(tmp_path, settings):
    from test_mezo import digits

    privacy = Privacy(**settings, delta=1e-4)
    model = ortrain.models.mlp(64, 10, (16,), seed=2)
    trainer = Trainer(
        model, "cross_entropy", metrics=["accuracy"], privacy=privacy, artifact_directory=tmp_path
    )
    save = ModelCheckpoint(tmp_path / "{epoch}.ckpt")
    log = JSONLogger(tmp_path / "log.jsonl")
    history = trainer.fit(digits(), 4, batch_size=50, validation=0.25, callbacks=[save, log], verbose=False)
    shares = 50 / 300
    assert trainer.accountant.history == [
        (
            pytest.approx(1.3) if "noise_multiplier" in settings else trainer.accountant.history[0][0],
            shares,
            24,
        )
    ]
    command = [sys.executable, "-c", RUN, tmp_path, repr({**settings, "delta": 1e-4})]
    folder = str(__file__).rpartition("/")[0]
    ran = subprocess.run(command, check=False, cwd=folder, timeout=120, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    resumed = Trainer(tmp_path, checkpoint=tmp_path / "4.ckpt", privacy=privacy)
    assert resumed.accountant.history == trainer.accountant.history
    assert resumed.saved_run["history"]["epsilon"] == history["epsilon"]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["epsilon"] for line in lines if line["event"] == "epoch"] == history["epsilon"]
    assert next(line for line in lines if line["event"] == "begin")["settings"]["privacy"] == str(privacy)


def test_a_resumed_run_with_the_same_draws_has_the_same_bits(tmp_path):
    """Without noise, and with random bytes that go on where the first part ended."""
    (x, y), found = rows(count=60), []
    for parts in (False, True):
        privacy = Privacy(noise_multiplier=0, clip=0.8, random_bytes=pseudo_random(2))
        settings = {"privacy": privacy, "metrics": ["accuracy"], "schedule": "cosine", "learning_rate": 0.05}
        trainer = private(**settings, artifact_directory=tmp_path / str(parts))
        stop = LambdaCallback(
            on_train_batch_end=lambda batch, logs, trainer=trainer: setattr(
                trainer, "stop_training", trainer.step == 14
            )
        )
        trainer.fit(x, y, 4, batch_size=10, callbacks=[stop] if parts else [], verbose=False)
        if parts:
            trainer.save(tmp_path / "middle.ckpt")
            trainer = Trainer(tmp_path / "True", **settings)
            trainer.fit(x, y, 4, batch_size=10, resume=tmp_path / "middle.ckpt", verbose=False)
        found.append((trainer.history, parameters_of(trainer)))
    assert found[0][0] == found[1][0]
    assert 0 < found[0][0]["clipped"][2] < 1  # that of the epoch in which the first part ended
    for name, value in found[0][1].items():
        assert value.tobytes() == found[1][1][name].tobytes(), name


@accounted
def test_a_run_that_ends_within_an_epoch_counts_its_steps(tmp_path):
    x, y = rows(count=40)
    settings = {"privacy": Privacy(noise_multiplier=2), "learning_rate": 0.1}
    trainer = private(**settings, artifact_directory=tmp_path)
    stop = LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(trainer, "stop_training", trainer.step == 6)
    )
    trainer.fit(x, y, 3, batch_size=10, callbacks=[stop], verbose=False)
    assert trainer.accountant.history == [(2, 0.25, 6)]
    trainer.save(tmp_path / "middle.ckpt")
    again = Trainer(tmp_path, **settings)
    history = again.fit(x, y, 3, batch_size=10, resume=tmp_path / "middle.ckpt", verbose=False)
    assert again.accountant.history == [(2, 0.25, 12)]
    assert history["epsilon"][-1] == again.accountant.epsilon(1e-5)
    assert (again.step, len(history["loss"])) == (12, 3)


@accounted
def test_a_run_stops_early_and_goes_on_training(tmp_path):
    x, y = rows(count=40)
    trainer = private(privacy=Privacy(), artifact_directory=tmp_path)
    stop = EarlyStopping(patience=2, min_delta=100)
    history = trainer.fit(x, y, 9, batch_size=10, validation=rows(3), callbacks=[stop], verbose=False)
    assert len(history["epsilon"]) == 3
    assert trainer.accountant.epsilon(1e-5) == history["epsilon"][-1]
    trainer.save(tmp_path / "first.ckpt")
    more = Trainer(tmp_path, checkpoint=tmp_path / "first.ckpt", privacy=Privacy(noise_multiplier=3))
    later = more.fit(x, y, 2, batch_size=20, validation=rows(3), verbose=False)
    assert more.accountant.history == [(1, 0.25, 12), (3, 0.5, 4)]
    assert history["epsilon"][-1] < later["epsilon"][0] < later["epsilon"][1]
    assert more.predict(x).shape == (40, 3)
    assert set(more.evaluate(x, y)) == {"loss"}


@accounted
def test_the_accounting_is_not_lost_by_a_trainer_without_privacy(tmp_path):
    x, y = rows(count=40)
    trainer = private(privacy=Privacy(), artifact_directory=tmp_path)
    trainer.fit(x, y, 2, batch_size=10, verbose=False)
    trainer.save(tmp_path / "private.ckpt")
    plain = Trainer(tmp_path, checkpoint=tmp_path / "private.ckpt")
    plain.evaluate(x, y)
    with pytest.raises(ValueError, match=r"expected a trainer with Trainer\(\.\.\., privacy=Privacy"):
        plain.fit(x, y, verbose=False)
    with pytest.raises(ValueError, match="privacy=Privacy"):
        Trainer(tmp_path).fit(x, y, 4, batch_size=10, resume=tmp_path / "private.ckpt", verbose=False)
    plain.save(tmp_path / "copy.ckpt")
    assert Trainer(tmp_path, checkpoint=tmp_path / "copy.ckpt").accountant == trainer.accountant
    ended = Trainer(tmp_path, checkpoint=tmp_path / "private.ckpt", privacy=False)
    assert "epsilon" not in ended.fit(x, y, verbose=False)
    ended.save(tmp_path / "ended.ckpt")
    after = Trainer(tmp_path, checkpoint=tmp_path / "ended.ckpt", privacy=Privacy())
    assert after.fit(x, y, batch_size=10, verbose=False)["epsilon"] == [math.inf]
    with pytest.raises(ValueError, match="expected parameters from steps with noise to reach epsilon 9"):
        Trainer(tmp_path, checkpoint=tmp_path / "ended.ckpt", privacy=Privacy(epsilon=9)).fit(
            x, y, batch_size=10, verbose=False
        )


def test_another_run_cannot_be_resumed(tmp_path):
    x, y = rows(count=40)
    none = Privacy(noise_multiplier=0)
    trainer = private(privacy=none, artifact_directory=tmp_path)
    trainer.fit(x, y, batch_size=10, verbose=False)
    trainer.save(tmp_path / "one.ckpt")
    other = Trainer(tmp_path, privacy=Privacy(noise_multiplier=0, clip=2))
    with pytest.raises(ValueError, match="resume: expected privacy noise multiplier 0, clip 1, delta 1e-05"):
        other.fit(x, y, 2, batch_size=10, resume=tmp_path / "one.ckpt", verbose=False)


def test_accounting_that_was_changed_is_rejected():
    for text in (
        "[[1, 0.1]]",
        '[["a", 0.1, 3]]',
        "[[1, 2, 3]]",
        "[[-1, 0.5, 3]]",
        "[[1, 0.5, 0]]",
        "[[NaN, 0.5, 1]]",
    ):
        with pytest.raises(ValueError, match=r"privacy: .*accounting"):
            Accountant.of_json(text)
    assert Accountant.of_json(Accountant([(1.0, 0.1, 3)]).to_json()).history == [(1.0, 0.1, 3)]


@accounted
def test_a_new_head_is_trained_on_kept_features(caplog):
    caplog.set_level("INFO", "ortrain.trainer")
    from test_mezo import digits

    (x, y), found = digits(300), []
    for cache in (True, False):
        trainer = Trainer(
            ortrain.models.mlp(64, 10, (32, 32), seed=2),
            head=artifacts.Head(10),
            metrics=["accuracy"],
            feature_cache=cache,
            seed=1,
            privacy=Privacy(delta=1e-4, random_bytes=pseudo_random(3)),
        )
        found.append(
            (trainer.fit(x, y, 5, batch_size=30, validation=0.2, verbose=False), parameters_of(trainer))
        )
    assert "features: stored for" in caplog.text
    assert found[0][0] == found[1][0]
    for name, value in found[0][1].items():
        assert value.tobytes() == found[1][1][name].tobytes()


def test_a_step_may_draw_no_row():
    zeros = iter([b"\xff", b"\x00"] * 3)
    privacy = Privacy(noise_multiplier=0, random_bytes=lambda count: next(zeros) * count)
    trainer = private(privacy=privacy, metrics=["accuracy"], callbacks=[LambdaCallback()])
    history = trainer.fit(
        *rows(count=9), 3, batch_size=5, verbose=False
    )  # two steps an epoch: no row, and all rows
    assert trainer.step == 6
    assert np.isfinite(history["loss"]).all()
    empty = private(
        privacy=Privacy(noise_multiplier=0, random_bytes=lambda count: b"\xff" * count), metrics=["accuracy"]
    )
    before = parameters_of(empty)
    assert np.isnan(empty.fit(*rows(), 1, batch_size=6, verbose=False)["loss"]).all()
    for name, value in before.items():
        np.testing.assert_array_equal(parameters_of(empty)[name], value)


def test_pictures_may_be_augmented_row_by_row():
    rng = np.random.default_rng(0)
    x, y = rng.random((24, 1, 12, 12)).astype(np.float32), rng.integers(0, 3, 24)
    trainer = Trainer(
        ortrain.models.cnn((1, 12, 12), 3),
        "cross_entropy",
        augment="flip,crop",
        privacy=Privacy(noise_multiplier=0),
    )
    assert np.isfinite(trainer.fit(x, y, 3, batch_size=2, verbose=False)["loss"]).all()


def test_values_that_a_row_changes_without_noise_are_rejected(tmp_path):
    trainer = Trainer(small.make_artifacts(tmp_path), privacy=Privacy(noise_multiplier=0))
    before = parameters_of(trainer)
    with pytest.raises(
        ValueError, match=r"found statistics that each row changes, without noise: mean, var\. Batch"
    ):
        trainer.fit(*small.rows(), verbose=False)
    for name, value in before.items():
        np.testing.assert_array_equal(parameters_of(trainer)[name], value)


def test_a_network_of_which_rows_cannot_be_taken_together_is_named():
    model = ortrain.models.gru(3, 2, 4)
    trainer = Trainer(
        model, "cross_entropy", privacy=Privacy(noise_multiplier=0, random_bytes=pseudo_random(1))
    )
    rng = np.random.default_rng(0)
    x, y = rng.random((30, 5, 3), np.float32), rng.integers(0, 2, 30)
    x[:, :, 0] += y[:, None]
    with pytest.warns(UserWarning, match=r"takes its rows one by one, which is slower: .*GRU"):
        history = trainer.fit(x, y, 20, batch_size=10, verbose=False)
    assert history["loss"][-1] < history["loss"][0]


def test_decisions_by_values_without_noise_are_named():
    pytest.importorskip("dp_accounting")
    trainer = private(privacy=Privacy(), schedule=Schedule("on_plateau"))
    x, y = rows(count=30)
    with pytest.warns(
        UserWarning, match="EarlyStopping follows 'loss', a value of the training rows without noise"
    ):
        trainer.fit(x, y, batch_size=10, callbacks=[EarlyStopping("loss")], verbose=False)
    with pytest.warns(UserWarning, match="the schedule on_plateau follows 'loss'"):
        trainer.fit(x, y, batch_size=10, verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.fit(x, y, batch_size=10, callbacks=[EarlyStopping()], validation=rows(3), verbose=False)


def test_a_large_delta_is_named():
    with pytest.warns(UserWarning, match="expected a delta well below 1 / 12, the number of rows, found 0.1"):
        private(privacy=Privacy(noise_multiplier=0, delta=0.1)).fit(*rows(), batch_size=6, verbose=False)


def test_without_the_package_nothing_is_trained(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    trainer = private(privacy=Privacy())
    before = parameters_of(trainer)
    with pytest.raises(ImportError, match=r"needs dp-accounting: pip install 'ortrain\[privacy\]'"):
        trainer.fit(*rows(), batch_size=6, verbose=False)
    for name, value in before.items():
        np.testing.assert_array_equal(parameters_of(trainer)[name], value)


def test_settings_out_of_range_are_errors():
    for settings, found in [
        ({"clip": 0}, "a norm above 0 as clip, found 0"),
        ({"noise_multiplier": -1}, "a noise_multiplier of 0 or more, found -1"),
        ({"delta": 1}, "a probability above 0 and below 1 as delta, found 1"),
        ({"epsilon": math.inf}, "an epsilon above 0, found inf"),
        ({"epsilon": 1, "noise_multiplier": 1}, "a noise_multiplier or an epsilon, found both"),
    ]:
        with pytest.raises(ValueError, match=f"privacy: expected {found}"):
            Privacy(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accumulate": 2}, "expected accumulate=1 with it"),
        ({"augment": "mixup"}, "expected no mixup or cutmix in augment"),
        (
            {"loss": "info_nce"},
            "expected a loss that is a mean of losses of single rows with it, found a loss that",
        ),
        (
            {"loss": artifacts.LossType.InfoNCELoss},
            "expected a loss that is a mean of losses of single rows with it, found a loss that",
        ),
        (
            {"loss": loss.SupConLoss()},
            "expected a loss that is a mean of losses of single rows with it, found a loss that",
        ),
        ({"optimizer": MeZO()}, "expected an optimizer with gradients with it, found mezo"),
        ({"qat": artifacts.Int8()}, "expected no qat with it"),
        ({"rehearsal": Rehearsal()}, "expected no rehearsal with it"),
        ({"sample_weight": True}, "expected no sample_weight with it"),
    ],
)
def test_what_cannot_be_private_is_an_error_that_names_both(settings, message):
    with pytest.raises(ValueError, match=f"privacy: {message}"):
        Trainer(linear(), **{"loss": "cross_entropy", **settings}, privacy=Privacy())


def test_artifacts_that_cannot_be_private_are_rejected(tmp_path):
    for name, settings in {
        "sample_weight": {"sample_weight": True},
        "qat": {"qat": artifacts.Int8()},
        "optimizer": {"optimizer": "mezo"},
    }.items():
        Trainer(linear(), "cross_entropy", **settings, artifact_directory=tmp_path / name)
        with pytest.raises(ValueError, match="privacy: expected "):
            Trainer(tmp_path / name, privacy=Privacy())


def test_data_that_cannot_be_drawn_are_rejected():
    trainer = private(privacy=Privacy(noise_multiplier=0))
    x, y = rows()
    with pytest.raises(
        ValueError, match=r"batch_size \(--batch\): expected at most the 12 rows of the data, found 32"
    ):
        trainer.fit(x, y, verbose=False)
    for options in ({"shuffle": False}, {"drop_last": True}):
        name = next(iter(options))
        with pytest.raises(ValueError, match=f"privacy: expected {name}=.* because each step draws its rows"):
            trainer.fit(x, y, batch_size=4, verbose=False, **options)
    with pytest.raises(ValueError, match=r"privacy: expected data with rows.*; found batches"):
        trainer.fit([(x, y)], verbose=False)
    with pytest.raises(ValueError, match="find_learning_rate: expected a trainer without privacy"):
        trainer.find_learning_rate(x, y)


@accounted
def test_a_run_that_becomes_longer_chooses_its_noise_again(tmp_path):
    x, y = rows(count=100)
    settings = {"privacy": Privacy(epsilon=4, delta=1e-4), "artifact_directory": tmp_path}
    trainer = private(**settings)
    stop = LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(trainer, "stop_training", epoch == 1))
    trainer.fit(x, y, 4, batch_size=10, callbacks=[stop], verbose=False)
    trainer.save(tmp_path / "two.ckpt")
    for epochs in (4, 6):
        again = Trainer(tmp_path, privacy=settings["privacy"])
        history = again.fit(x, y, epochs, batch_size=10, resume=tmp_path / "two.ckpt", verbose=False)
        assert 3.95 < history["epsilon"][-1] <= 4
        noises = [noise for noise, _, _ in again.accountant.history]
        assert len(noises) == (1 if epochs == 4 else 2)
        assert noises == sorted(noises)
