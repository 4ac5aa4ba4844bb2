"""A client that sends what was not asked for is left out of the round and listed; the model of the others is saved."""

from __future__ import annotations

import json
import logging
import sys

import numpy as np
import pytest
from languages import ROOT
from ortrain.api import CheckpointState

pytest.importorskip("flwr", reason="needs flwr: make test-integrations")
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    FedProx,
)
from local_grid import QUIET, identity, serve  # noqa: F401
from ortrain.flower import Scaffold, client_app
from ortrain.flower.records import CONTROL
from ortrain.trainer import Trainer

sys.path.insert(0, str(ROOT / "examples/federated"))
from federated import task

BAD = 2  # the number of the node that is bad


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("federated")
    task.prepare(where)
    return where / "artifacts"


def parameters(path):
    state = CheckpointState.load_checkpoint(str(path))
    return {name: parameter.data for name, parameter in state.parameters}


def good_client(folder, mods=()):
    return client_app(
        folder,
        lambda context: (task.shard(context.node_config["partition-id"]), task.digits()[1]),
        metrics=["accuracy"],
        mods=list(mods),
    )


def bad_client(folder, spoil):
    """A client whose replies go through a function."""
    good = good_client(folder)

    def spoiled(message: Message, context: Context) -> Message:
        reply = good(message, context)
        return spoil(message, reply) or reply

    return spoiled


def federate(folder, out, apps, strategy=None, **options):
    options = {"rounds": 1, "learning_rate": task.LEARNING_RATE, **options}
    return serve(folder, strategy or FedAvg(**QUIET), out, apps, **options)


def edit(change):
    """Change the arrays and the metrics of a reply to train."""

    def spoil(message, reply):
        if message.metadata.message_type.startswith("train"):
            change(reply.content["arrays"], reply.content["metrics"])

    return spoil


def with_values(function):
    def change(arrays, metrics):
        name = next(name for name in arrays if name != CONTROL)
        arrays[name] = Array(np.ascontiguousarray(function(arrays[name].numpy())))

    return edit(change)


def broken_bytes(arrays, metrics):
    name = next(iter(arrays))
    whole = arrays[name]
    arrays[name] = Array(dtype=whole.dtype, shape=whole.shape, stype=whole.stype, data=whole.data[:50])


def without_records(message, reply):
    return Message(content=RecordDict({}), reply_to=message)


def two_records(message, reply):
    reply.content["more"] = ArrayRecord({"x": Array(np.zeros(3))})
    reply.content["numbers"] = MetricRecord({"num-examples": 3})


SPOILED = {
    "NaN": (with_values(lambda values: values * np.float32(np.nan)), "expected finite numbers, found"),
    "one infinity": (with_values(lambda values: np.where(values == values.flat[0], np.float32(np.inf), values)), "1 of"),
    "a shape": (with_values(lambda values: values[..., :-1]), "expected the shape"),
    "a type": (with_values(lambda values: values.astype(np.complex64)), "expected float32, found complex64"),
    "a missing name": (edit(lambda arrays, metrics: arrays.popitem()), "found no"),
    "another name": (edit(lambda arrays, metrics: arrays.update({"new": Array(np.zeros(3))})), "found also new"),
    "bytes": (edit(broken_bytes), "found bytes that are not an array"),
    "-20 rows": (edit(lambda arrays, metrics: metrics.update({"num-examples": -20})), "found -20"),
    "no rows": (edit(lambda arrays, metrics: metrics.update({"num-examples": 0})), "found 0"),
    "very many rows": (edit(lambda arrays, metrics: metrics.update({"num-examples": 10**9})), "to 100000, found 1000000000"),
    "rows without a number": (edit(lambda arrays, metrics: metrics.pop("num-examples")), "expected num-examples"),
    "a loss that is NaN": (edit(lambda arrays, metrics: metrics.update({"loss": float("nan")})), "loss: expected a finite"),
    "another metric": (edit(lambda arrays, metrics: metrics.update({"f1": 1.0})), "as from most clients"),
    "a list": (edit(lambda arrays, metrics: metrics.update({"loss": [1.0]})), "as from most clients"),
    "no records": (without_records, "expected one record of metrics, found none"),
    "two records": (two_records, "expected one record of metrics, found metrics, numbers"),
}  # fmt: skip

STRATEGIES = {
    "FedAvg": lambda: FedAvg(**QUIET),
    "FedAdam": lambda: FedAdam(eta=0.02, tau=1e-3, **QUIET),
    "FedProx": lambda: FedProx(proximal_mu=0.1, **QUIET),
    "FedMedian": lambda: FedMedian(**QUIET),
    "Scaffold": lambda: Scaffold(**QUIET),
    "private": lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(**QUIET), 1e-3, 0.5, num_sampled_clients=2),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_the_round_is_that_of_the_others(name, folder, tmp_path, caplog):
    spoil, reason = SPOILED[name]
    good = good_client(folder)
    apps = [good, bad_client(folder, spoil), good]
    with caplog.at_level(logging.WARNING):
        rounds, _ = federate(folder, tmp_path / "bad", apps, max_rows=100_000)
    assert list(rounds[1]["left_out"]) == [str(BAD)]
    assert reason in rounds[1]["left_out"][str(BAD)]
    assert any(
        line.startswith(f"node {BAD}: left out: ") and reason in line for line in rounds[1]["failures"]
    )
    assert "train" not in rounds[1]["clients"].get(str(BAD), {})
    assert any(f"node {BAD} is left out of the round" in record.message for record in caplog.records)
    federate(folder, tmp_path / "alone", apps, down={1: [BAD]})
    for key, values in parameters(tmp_path / "bad/round-1.ckpt").items():
        np.testing.assert_array_equal(values, parameters(tmp_path / "alone/round-1.ckpt")[key])
    assert (tmp_path / "bad/global.onnx").exists()
    json.dumps(rounds, allow_nan=False)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["NaN", "a shape", "a missing name", "-20 rows"])
def test_every_strategy_goes_on(strategy, name, folder, tmp_path):
    good = good_client(folder)
    apps = [good, bad_client(folder, SPOILED[name][0]), good]
    rounds, _ = federate(folder, tmp_path, apps, STRATEGIES[strategy](), rounds=2)
    start = parameters(folder / "checkpoint")
    for number in (1, 2):
        assert list(rounds[number]["left_out"]) == [str(BAD)]
        found = parameters(tmp_path / f"round-{number}.ckpt")
        assert all(np.isfinite(values).all() for values in found.values())
        moved = any((values != start[name]).any() for name, values in found.items())
        assert moved == (strategy != "private")  # Flower's private strategies skip a round with a failure


@pytest.mark.parametrize("strategy", ["FedAvg", "private"])
def test_the_order_of_arrays_is_that_of_the_server(strategy, folder, tmp_path):
    def reverse(message, reply):
        if message.metadata.message_type.startswith("train"):
            arrays = reply.content["arrays"]
            reply.content["arrays"] = ArrayRecord({name: arrays[name] for name in reversed(list(arrays))})

    def result(apps, out):
        rounds, _ = federate(folder, tmp_path / out, apps, STRATEGIES[strategy]())
        assert rounds[1]["left_out"] == {}
        return parameters(tmp_path / out / "round-1.ckpt")

    good = good_client(folder)
    one, two = result([good, bad_client(folder, reverse)], "reversed"), result([good] * 2, "plain")
    for name, values in one.items():
        np.testing.assert_allclose(values, two[name], atol=0.01)  # the noise of the private strategy


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_model_stays_where_all_clients_are_bad(strategy, folder, tmp_path):
    apps = [bad_client(folder, SPOILED["NaN"][0])] * 2
    rounds, _ = federate(folder, tmp_path, apps, STRATEGIES[strategy](), rounds=2)
    start = parameters(folder / "checkpoint")
    for number in (1, 2):
        assert set(rounds[number]["left_out"]) == {"1", "2"}
        for name, values in parameters(tmp_path / f"round-{number}.ckpt").items():
            np.testing.assert_array_equal(values, start[name])
    assert (tmp_path / "global.onnx").exists()


def test_a_control_variate_that_is_not_finite(folder, tmp_path):
    """Scaffold would keep it, and send it to all."""

    def change(arrays, metrics):
        arrays[CONTROL] = Array(arrays[CONTROL].numpy() * np.float32(np.nan))

    good = good_client(folder)
    strategy = Scaffold(**QUIET)
    rounds, _ = federate(folder, tmp_path, [good, bad_client(folder, edit(change)), good], strategy, rounds=2)
    assert [list(entry["left_out"]) for entry in rounds[1:]] == [[str(BAD)]] * 2
    assert set(strategy._controls) == {1, 3}


def test_bad_replies_to_evaluate(folder, tmp_path):
    def spoil(message, reply):
        if message.metadata.message_type.startswith("evaluate"):
            reply.content["metrics"]["loss"] = float("nan")

    good = good_client(folder)
    rounds, _ = federate(folder, tmp_path, [good, bad_client(folder, spoil)])
    assert "loss: expected a finite number" in rounds[1]["left_out"][str(BAD)]
    assert set(rounds[1]["clients"][str(BAD)]) == {"train"}


@pytest.mark.parametrize("where", ["in training", "afterwards"])
def test_a_client_does_not_send_what_is_not_finite(where, folder, tmp_path, monkeypatch):
    """Its own training diverged: the server gets the reason."""
    fit = Trainer.fit

    def diverging(trainer, *arguments, **options):
        history = fit(trainer, *arguments, **options)
        name = next(name for name, _ in trainer.state.parameters)
        trainer.state.parameters[name] = trainer.state.parameters[name].data * np.float32(np.nan)
        return history

    if where == "afterwards":
        monkeypatch.setattr(Trainer, "fit", diverging)
    rate = 1e30 if where == "in training" else task.LEARNING_RATE
    rounds, _ = federate(folder, tmp_path, [good_client(folder)] * 2, learning_rate=rate)
    said = {"in training": "not finite", "afterwards": "nothing is sent, try a lower learning rate"}[where]
    assert len([line for line in rounds[1]["failures"] if said in line]) == 2
    assert rounds[1]["left_out"] == {}
    start = parameters(folder / "checkpoint")
    for name, values in parameters(tmp_path / "round-1.ckpt").items():
        np.testing.assert_array_equal(values, start[name])


class Overflowing(FedAvg):
    """A strategy whose own result is not finite in round 1."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        if server_round == 1:
            name = next(iter(arrays))
            arrays[name] = Array(arrays[name].numpy() * np.float32(np.inf))
        return arrays, metrics


def test_a_strategy_that_overflows(folder, tmp_path):
    strategy = Overflowing(**QUIET)
    rounds, _ = federate(folder, tmp_path, [good_client(folder)] * 2, strategy, rounds=2)
    assert any("the result of the strategy: " in line for line in rounds[1]["failures"])
    start = parameters(folder / "checkpoint")
    one, two = (parameters(tmp_path / f"round-{number}.ckpt") for number in (1, 2))
    assert all((values == start[name]).all() for name, values in one.items())
    assert any((values != start[name]).any() for name, values in two.items())
    assert "aggregate_train" not in vars(strategy)


def test_the_number_of_clients_left_out_is_a_metric(folder, tmp_path):
    found = []

    class Watched(FedAvg):
        def start(self, *arguments, **options):
            result = super().start(*arguments, **options)
            found.append(result.evaluate_metrics_serverapp)
            return result

    federate(folder, tmp_path, [good_client(folder), bad_client(folder, SPOILED["NaN"][0])], Watched(**QUIET))
    assert found[0][1]["clients-left-out"] == 1


def protocol_client(folder, spoil):
    """A client of secure aggregation whose replies go through a function of the stage and the reply."""
    good = good_client(folder, [secaggplus_mod])

    def spoiled(message, context):
        stage = message.content.config_records.get("secaggplus_configs", {}).get("stage")
        reply = good(message, context)
        spoil(stage, reply)
        return reply

    return spoiled


def at(stage, change):
    def spoil(found, reply):
        if found == stage:
            change(reply.content, reply.content.config_records["secaggplus_configs"])

    return spoil


def fewer(content, entries):
    import io

    parts = []
    for part in entries["masked_params"]:
        file = io.BytesIO()
        np.save(file, np.load(io.BytesIO(part))[:-1])
        parts.append(file.getvalue())
    entries["masked_params"] = parts


PROTOCOL = {
    "no key": at("setup", lambda content, entries: entries.pop("pk1")),
    "lists of two lengths": at("share_keys", lambda content, entries: entries.update({"dsts": [1]})),
    "no vector": at("collect_masked_vectors", lambda content, entries: entries.pop("masked_params")),
    "a vector that is too short": at("collect_masked_vectors", fewer),
    "a vector of bytes": at("collect_masked_vectors", lambda content, entries: entries.update({"masked_params": [b"x", b"y"]})),
    "-20 rows": at("collect_masked_vectors", lambda content, entries: content["metrics"].update({"num-examples": -20})),
    "two numbers of rows": at("collect_masked_vectors", lambda content, entries: content["metrics"].update({"num-examples": 7})),
    "no shares": at("unmask", lambda content, entries: entries.pop("shares")),
}  # fmt: skip


@pytest.mark.parametrize("name", PROTOCOL)
def test_secure_aggregation_goes_on_without_them(name, folder, tmp_path):
    good = good_client(folder, [secaggplus_mod])
    workflow = SecAggPlusWorkflow(num_shares=4, reconstruction_threshold=2)
    apps = [good, protocol_client(folder, PROTOCOL[name]), good, good]
    rounds, _ = federate(folder, tmp_path, apps, rounds=2, secure_aggregation=workflow)
    start = parameters(folder / "checkpoint")
    for number in (1, 2):
        assert list(rounds[number]["left_out"]) == [str(BAD)], rounds[number]
        found = parameters(tmp_path / f"round-{number}.ckpt")
        assert all(np.isfinite(values).all() for values in found.values())
        assert any((values != start[name]).any() for name, values in found.items()), rounds[number]
    json.dumps(rounds, allow_nan=False)


def test_secure_aggregation_that_fails_leaves_the_model(folder, tmp_path):
    """Shares that are lists of bytes, and no shares: the sum cannot be unmasked."""

    def spoil(content, entries):
        entries["shares"] = [b"x" * 10 for _ in entries["shares"]]

    good = good_client(folder, [secaggplus_mod])
    apps = [good, *[protocol_client(folder, at("unmask", spoil))] * 3]
    workflow = SecAggPlusWorkflow(num_shares=4, reconstruction_threshold=2)
    rounds, _ = federate(folder, tmp_path, apps, secure_aggregation=workflow)
    assert any("secure aggregation" in line for line in rounds[1]["failures"]), rounds[1]
    start = parameters(folder / "checkpoint")
    for name, values in parameters(tmp_path / "round-1.ckpt").items():
        np.testing.assert_array_equal(values, start[name])


def test_a_highest_number_of_rows_is_checked():
    from ortrain.flower import server_app

    with pytest.raises(ValueError, match="max_rows: expected 1 to 2"):
        server_app("artifacts", FedAvg(), max_rows=0)
