"""Clients and servers on Flower: the strategies learn what central training learns, and their formulas hold.

The messages go through Flower's own ClientApp, ServerApp and strategies; only the network between them is left out.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime
import pytest
from languages import ROOT
from ortrain import Trainer
from ortrain.api import CheckpointState, Module, Optimizer

pytest.importorskip("flwr", reason="needs flwr: make test-integrations")
from flwr.app import Context, RecordDict
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedProx,
)
from local_grid import QUIET, Local, identity, serve  # noqa: F401
from ortrain.flower import Scaffold, client_app, server_app
from ortrain.flower.records import CONTROL

sys.path.insert(0, str(ROOT / "examples/federated"))
from federated import task


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
    return serve(folder, strategy, out, [app] * clients, down, **options)


@pytest.mark.parametrize("strategy", [FedAvg, Scaffold])
def test_federated_equals_central_within_a_point(strategy, folder, shards, tmp_path):
    parts, test = shards
    round_count = 20  # enough for both to converge, so that the last bits of sums decide about fewer images
    whole = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
    central = Trainer(folder, learning_rate=task.LEARNING_RATE, metrics=["accuracy"], threads=1)
    central.fit(whole, round_count * task.LOCAL_EPOCHS, verbose=False)
    rounds, _ = federate(
        folder, shards, strategy(**QUIET), tmp_path, rounds=round_count, local_epochs=task.LOCAL_EPOCHS
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
    # Replies are averaged in the order in which they come. A second round would enlarge what that rounds differently.
    one, two = (parameters(tmp_path / kind / "round-1.ckpt") for kind in ("False", "True"))
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


class Loop:
    """Steps over batches in their order, with ortrain.api alone."""

    def __init__(self, folder) -> None:
        self.state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
        self.module = Module(str(folder / "training_model.onnx"), self.state, str(folder / "eval_model.onnx"))
        self.optimizer = Optimizer(str(folder / "optimizer_model.onnx"), self.module)
        self.optimizer.set_learning_rate(task.LEARNING_RATE)
        self.start = self.parameters()

    def parameters(self):
        return {name: parameter.data.astype(np.float64) for name, parameter in self.state.parameters}

    def run(self, batches, added=lambda name, now: 0.0):
        for batch in batches:
            self.module(*batch)
            for name, parameter in self.state.parameters:
                parameter.grad = (parameter.grad + added(name, parameter.data)).astype(np.float32)
            self.optimizer.step()
            self.module.lazy_reset_grad()
        return self.parameters()


def in_batches(rows, count):
    """The first rows as batches of 16, which a client takes in this order."""
    return [tuple(column[16 * i : 16 * i + 16] for column in rows) for i in range(count)]


def test_a_proximal_term_is_added_to_each_gradient(folder, shards, tmp_path):
    """mu (w - w0), as in the paper of FedProx."""
    batches = in_batches(shards[0][0], 5)
    federate(folder, ([batches], shards[1]), FedProx(proximal_mu=0.5, **QUIET), tmp_path, rounds=1, clients=1)
    loop = Loop(folder)
    expected = loop.run(batches, lambda name, now: 0.5 * (now - loop.start[name]))
    plain = Loop(folder).run(batches)
    assert any(np.abs(plain[name] - values).max() > 1e-3 for name, values in expected.items())
    for name, values in parameters(tmp_path / "round-1.ckpt").items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-4, atol=1e-6)


def test_adam_on_the_server_takes_the_mean_change_for_a_gradient(folder, shards, tmp_path):
    """Two rounds of the formulas that Flower documents for FedAdam, on clients that the plain loop trains."""
    batches = [in_batches(part, 2) for part in shards[0]]
    strategy = FedAdam(eta=0.02, beta_1=0.9, beta_2=0.99, tau=1e-3, **QUIET)
    federate(folder, (batches, shards[1]), strategy, tmp_path)
    now = Loop(folder).start
    m = {name: 0.0 for name in now}
    v = dict(m)
    for number in (1, 2):
        ends = []
        for part in batches:
            loop = Loop(folder)
            for name, values in now.items():
                loop.state.parameters[name] = values.astype(np.float32)
            ends.append(loop.run(part))
        rate = 0.02 * np.sqrt(1 - 0.99 ** (number + 1)) / (1 - 0.9 ** (number + 1))
        for name in now:
            change = np.mean([end[name] for end in ends], axis=0) - now[name]
            m[name] = 0.9 * m[name] + 0.1 * change
            v[name] = 0.99 * v[name] + 0.01 * change**2
            now[name] = now[name] + rate * m[name] / (np.sqrt(v[name]) + 1e-3)
        for name, values in parameters(tmp_path / f"round-{number}.ckpt").items():
            np.testing.assert_allclose(values, now[name], rtol=1e-3, atol=2e-5)


def test_control_variates_are_those_of_the_paper(folder, shards, tmp_path):
    """c_i = (x - y_i) / (K rate) in the first round, where all are zero before; then y_i takes c - c_i with it."""
    batches = [in_batches(part, 3) for part in shards[0][:2]]
    federate(folder, (batches, shards[1]), Scaffold(**QUIET), tmp_path, clients=2)
    start = Loop(folder).start
    ends = [Loop(folder).run(part) for part in batches]
    own = [{name: (start[name] - end[name]) / (3 * task.LEARNING_RATE) for name in start} for end in ends]
    mean = {name: np.mean([end[name] for end in ends], axis=0) for name in start}
    after = []
    for part, control in zip(batches, own, strict=True):
        loop = Loop(folder)
        for name, values in mean.items():
            loop.state.parameters[name] = values.astype(np.float32)
        towards = {name: np.mean([each[name] for each in own], axis=0) - control[name] for name in start}
        after.append(loop.run(part, lambda name, now, towards=towards: towards[name]))
    assert any(np.abs(after[0][name] - mean[name]).max() > 1e-2 for name in start)
    for name, values in parameters(tmp_path / "round-2.ckpt").items():
        np.testing.assert_allclose(
            values, np.mean([end[name] for end in after], axis=0), rtol=1e-3, atol=1e-5
        )


class Restarted(Local):
    """After two rounds the first client loses its state and comes back as another node, as if it had been killed."""

    def __init__(self, apps, down=None):
        super().__init__(apps, down)
        self.sent, self.kept = (
            [],
            [],
        )  # by round: the variate of the server, and those of the clients after it

    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages, timeout=timeout)
        if messages[0].metadata.message_type.startswith("train"):
            self.sent.append(messages[0].content["arrays"][CONTROL].numpy())
            self.kept.append([context.state[CONTROL][CONTROL].numpy() for context in self.contexts.values()])
            if len(self.sent) == 2:
                self.apps[11] = self.apps.pop(1)
                node_config = self.contexts.pop(1).node_config
                self.contexts[11] = Context(1, 11, node_config, RecordDict(), {})
        return replies


def test_a_client_that_loses_its_control_variate_leaves_nothing_behind(folder, shards, tmp_path):
    """The variate of the server is the mean of those of the clients, also after one of them was killed."""
    parts, test = shards
    app = client_app(folder, lambda context: (parts[context.node_config["partition-id"]], test))
    options = {"learning_rate": task.LEARNING_RATE, "rounds": 6, "local_epochs": 3}
    options |= {"test": test, "metrics": ["accuracy"]}
    found, grid = serve(
        folder, Scaffold(**QUIET), tmp_path / "restarted", [app] * 4, kind=Restarted, **options
    )
    means = [np.mean(kept, axis=0) for kept in grid.kept]
    means[1] = np.sum(grid.kept[1][1:], axis=0) / 4  # that of the first client is lost, and so zero
    assert not grid.sent[0].any()
    for sent, mean in zip(grid.sent[1:], means, strict=False):
        np.testing.assert_allclose(sent, mean, rtol=1e-5, atol=1e-7)
    whole, _ = serve(folder, Scaffold(**QUIET), tmp_path / "whole", [app] * 4, **options)
    assert found[-1]["accuracy"] > whole[-1]["accuracy"] - 0.01


PRIVATE = {
    "clipped by clients": lambda: (
        DifferentialPrivacyClientSideFixedClipping(FedAvg(**QUIET), 1e-3, 0.5, num_sampled_clients=4),
        [fixedclipping_mod],
    ),
    "clipped by the server": lambda: (
        DifferentialPrivacyServerSideFixedClipping(FedAvg(**QUIET), 1e-3, 0.5, num_sampled_clients=4),
        [],
    ),
    "clipped to a norm that adapts": lambda: (
        DifferentialPrivacyClientSideAdaptiveClipping(
            FedAvg(**QUIET), 1e-2, num_sampled_clients=4, initial_clipping_norm=0.5
        ),
        [adaptiveclipping_mod],
    ),
    "noise of each client": lambda: (FedAvg(**QUIET), [LocalDpMod(0.5, 1e-3, 10.0, 1e-5)]),
}


@pytest.mark.parametrize("kind", PRIVATE)
@pytest.mark.parametrize("as_buffer", [False, True], ids=["by name", "buffer"])
def test_updates_are_clipped_for_privacy(kind, as_buffer, folder, shards, tmp_path):
    strategy, mods = PRIVATE[kind]()
    rounds, _ = federate(folder, shards, strategy, tmp_path, rounds=1, mods=mods, as_buffer=as_buffer)
    assert rounds[1]["failures"] == []
    start, now = parameters(folder / "checkpoint"), parameters(tmp_path / "round-1.ckpt")
    changes = {name: now[name].astype(np.float64) - start[name] for name in start}
    norm = np.sqrt(sum(float(np.square(change).sum()) for change in changes.values()))
    assert 0.05 < norm < 0.6  # a mean of updates that were clipped to 0.5, and a little noise


def test_updates_are_larger_without_clipping(folder, shards, tmp_path):
    federate(folder, shards, FedAvg(**QUIET), tmp_path, rounds=1)
    start, now = parameters(folder / "checkpoint"), parameters(tmp_path / "round-1.ckpt")
    assert np.sqrt(sum(float(np.square(now[name] - start[name]).sum()) for name in start)) > 0.9


def test_a_client_may_leave_and_come_back(folder, shards, tmp_path):
    rounds, _ = federate(folder, shards, FedAvg(**QUIET), tmp_path, rounds=3, down={2: [3]})
    assert [len(entry["clients"]) for entry in rounds[1:]] == [4, 3, 4]
    assert rounds[2]["failures"] == ["node 3: gone", "node 3: gone"]


class WithSuperLink(Local):
    """Node 2 never answers, and for node 3 the SuperLink does, as it does for nodes that are gone."""

    def send_and_receive(self, messages, *, timeout=None):
        asked = list(messages)
        nodes = {message.metadata.dst_node_id: message.metadata for message in asked}
        replies = super().send_and_receive(asked, timeout=timeout)
        kept = [reply for reply in replies if reply.metadata.src_node_id not in (2, 3)]
        return [*kept, create_message_error_unavailable_res_message(nodes[3], "node_unavail")]


def test_nodes_that_are_gone_are_named(folder, shards, tmp_path):
    rounds, _ = federate(folder, shards, FedAvg(**QUIET), tmp_path, rounds=1, kind=WithSuperLink)
    assert sorted(rounds[1]["clients"]) == ["1", "4"]
    gone, silent = sorted(set(rounds[1]["failures"]), key=lambda line: "no reply" in line)
    assert gone.startswith("node 3: ")
    assert "Unavailable" in gone
    assert silent == "node 2: no reply in time"


def test_control_variates_stay_on_the_nodes_and_sum_up(folder, shards, tmp_path):
    strategy = Scaffold(**QUIET)
    _, grid = federate(folder, shards, strategy, tmp_path)
    kept = [context.state["ortrain.control"]["ortrain.control"].numpy() for context in grid.contexts.values()]
    np.testing.assert_allclose(
        [strategy._controls[node] for node in grid.contexts], kept, rtol=1e-3, atol=1e-6
    )
    assert np.abs(np.mean(kept, axis=0)).max() > 1e-4


def test_contradictions_are_named():
    with pytest.raises(ValueError, match="expected False with as_buffer"):
        server_app("artifacts", FedAvg(), as_buffer=True, frozen=True)
    with pytest.raises(ValueError, match="rounds: expected 1 or more"):
        server_app("artifacts", FedAvg(), rounds=0)
