"""Clients and servers on Flower: the strategies learn what central training learns, and their formulas hold.

The messages go through Flower's own ClientApp, ServerApp and strategies; only the network between them is left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from languages import ROOT
from ortrain import Trainer
from ortrain.api import CheckpointState

pytest.importorskip("flwr", reason="needs flwr")
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    FedAdam,
    FedAvg,
    FedProx,
)
from flwr.supercore.task_identity import TaskIdentity
from ortrain.flower import Scaffold, client_app, server_app

sys.path.insert(0, str(ROOT / "examples/federated"))
from federated import task

QUIET = {"min_available_nodes": 1, "min_train_nodes": 1, "min_evaluate_nodes": 1}


class Local(Grid):
    """Hands messages to clients in this process. A node in ``down[round]`` does not answer in that round."""

    def __init__(self, app, nodes: int, down: dict[int, list[int]] | None = None) -> None:
        self.app, self.down = app, down or {}
        self.contexts = {
            node: Context(1, node, {"partition-id": node - 1}, RecordDict(), {})
            for node in range(1, nodes + 1)
        }

    def set_run(self, run) -> None: ...

    @property
    def run(self): ...

    def create_message(self, *args, **kwargs): ...

    def push_messages(self, messages): ...

    def pull_messages(self, message_ids): ...

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node in self.down.get(int(message.content["config"]["server-round"]), []):
                replies.append(Message(error=Error(code=1, reason="gone"), reply_to=message))
            else:
                replies.append(self.app(message, self.contexts[node]))
        return replies


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Who makes messages in this process, which Flower says when it starts a server."""
    for name in ("task", "run", "node"):
        monkeypatch.setattr(TaskIdentity, f"_{name}_id", 1)


@pytest.fixture(scope="module")
def shards():
    """The shards of the example, which have more of some digits than of others, and the digits held out."""
    return [task.shard(number) for number in range(task.CLIENTS)], task.digits()[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The artifacts of the example, with SGD."""
    where = tmp_path_factory.mktemp("federated")
    task.prepare(where)
    return where / "artifacts"


def federate(folder, shards, strategy, out, down=None, mods=(), metrics=("accuracy",), clients=4, **options):
    parts, test = shards
    app = client_app(
        folder, lambda context: (parts[context.node_config["partition-id"]], test), metrics=metrics, mods=mods
    )
    options = {"learning_rate": task.LEARNING_RATE, "rounds": 2, "test": test, "metrics": metrics, **options}
    grid = Local(app, clients, down)
    server_app(folder, strategy, out=out, **options)(grid, Context(1, 0, {}, RecordDict(), {}))
    lines = (Path(out) / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], grid


@pytest.mark.parametrize("strategy", [FedAvg, Scaffold])
def test_federated_equals_central_within_a_point(strategy, folder, shards, tmp_path):
    parts, test = shards
    whole = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
    central = Trainer(folder, learning_rate=task.LEARNING_RATE, metrics=["accuracy"], threads=1)
    central.fit(whole, task.ROUNDS * task.LOCAL_EPOCHS, verbose=False)
    rounds, _ = federate(
        folder, shards, strategy(**QUIET), tmp_path, rounds=task.ROUNDS, local_epochs=task.LOCAL_EPOCHS
    )
    expected = central.evaluate(test)["accuracy"]
    assert rounds[0]["accuracy"] < 0.2
    assert rounds[-1]["accuracy"] > expected - 0.01, expected
    images, labels = test
    scores = onnxruntime.InferenceSession(tmp_path / "global.onnx").run(None, {"image": images})[0]
    assert (scores.argmax(axis=1) == labels).mean() == pytest.approx(rounds[-1]["accuracy"])
    size = Trainer(folder).module.get_parameters_size(True)
    for number, entry in enumerate(rounds[1:], start=1):
        assert len(entry["clients"]) == 4
        assert all(set(client) == {"train", "evaluate"} for client in entry["clients"].values())
        # Four bytes per element from each of four clients, and a heading of 128 bytes per array; SCAFFOLD's control variate
        # is one more array of that size, which is not sent to be evaluated.
        plain = 4 * (4 * size + 6 * 128)
        each = plain + (4 * (4 * size + 128) if strategy is Scaffold else 0)
        assert entry["bytes_received"] == each
        assert entry["bytes_sent"] == each + plain
        assert (tmp_path / f"round-{number}.ckpt").exists()


def parameters(path):
    return {name: parameter.data for name, parameter in CheckpointState.load_checkpoint(path).parameters}


def test_a_buffer_is_the_same_as_names(folder, shards, tmp_path):
    for kind in (False, True):
        federate(folder, shards, FedAvg(**QUIET), tmp_path / str(kind), as_buffer=kind)
    one, two = (parameters(tmp_path / kind / "round-2.ckpt") for kind in ("False", "True"))
    for name, values in one.items():
        np.testing.assert_allclose(values, two[name], rtol=1e-5, atol=1e-6)


def test_a_round_is_the_mean_by_rows(folder, shards, tmp_path):
    federate(folder, shards, FedAvg(**QUIET), tmp_path, rounds=1)
    expected: dict[str, np.ndarray] = {}
    total = sum(len(labels) for _, labels in shards[0])
    for part in shards[0]:
        trainer = Trainer(folder, learning_rate=task.LEARNING_RATE, seed=1, threads=1)
        trainer.fit(part, verbose=False)
        for name, parameter in trainer.state.parameters:
            expected[name] = expected.get(name, 0) + parameter.data.astype(np.float64) * len(part[1]) / total
    for name, values in parameters(tmp_path / "round-1.ckpt").items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-4, atol=1e-6)


def test_a_proximal_term_keeps_clients_near(folder, shards, tmp_path):
    start = parameters(folder / "checkpoint")

    def moved(mu):
        federate(
            folder, shards, FedProx(proximal_mu=mu, **QUIET), tmp_path / str(mu), rounds=1, local_epochs=3
        )
        now = parameters(tmp_path / str(mu) / "round-1.ckpt")
        return sum(float(np.square(now[name] - start[name]).sum()) for name in start)

    assert moved(10.0) < 0.5 * moved(0.001)


@pytest.mark.parametrize("kind", ["adam", "privacy"])
def test_other_strategies_run(kind, folder, shards, tmp_path):
    if kind == "adam":
        rounds, _ = federate(folder, shards, FedAdam(eta=0.01, **QUIET), tmp_path, rounds=4)
        assert rounds[-1]["accuracy"] > rounds[0]["accuracy"] + 0.1
    else:
        strategy = DifferentialPrivacyClientSideFixedClipping(
            FedAvg(**QUIET), noise_multiplier=1e-3, clipping_norm=0.5, num_sampled_clients=4
        )
        federate(folder, shards, strategy, tmp_path, rounds=1, mods=[fixedclipping_mod])
        start, now = parameters(folder / "checkpoint"), parameters(tmp_path / "round-1.ckpt")
        norm = np.sqrt(sum(float(np.square(now[name] - start[name]).sum()) for name in start))
        assert 0.05 < norm < 0.6  # a mean of updates that were clipped to 0.5, and a little noise


def test_a_client_may_leave_and_come_back(folder, shards, tmp_path):
    rounds, _ = federate(folder, shards, FedAvg(**QUIET), tmp_path, rounds=3, down={2: [3]})
    assert [len(entry["clients"]) for entry in rounds[1:]] == [4, 3, 4]
    assert rounds[2]["failures"] == ["node 3: gone", "node 3: gone"]


def test_control_variates_stay_on_the_nodes_and_sum_up(folder, shards, tmp_path):
    strategy = Scaffold(**QUIET)
    _, grid = federate(folder, shards, strategy, tmp_path)
    kept = [context.state["ortrain.control"]["ortrain.control"].numpy() for context in grid.contexts.values()]
    np.testing.assert_allclose(strategy._control, np.mean(kept, axis=0), rtol=1e-3, atol=1e-6)
    assert np.abs(strategy._control).max() > 1e-4


def test_contradictions_are_named():
    with pytest.raises(ValueError, match="expected False with as_buffer"):
        server_app("artifacts", FedAvg(), as_buffer=True, frozen=True)
    with pytest.raises(ValueError, match="rounds: expected 1 or more"):
        server_app("artifacts", FedAvg(), rounds=0)
