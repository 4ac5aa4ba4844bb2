"""Secure aggregation with Flower's own workflow and module: the mean is that of plain averaging, and no client's
parameters pass the network in the clear."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from languages import ROOT
from ortrain.api import CheckpointState

pytest.importorskip("flwr", reason="needs flwr: make test-integrations")
from flwr.client.mod import secaggplus_mod
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx
from local_grid import QUIET, identity, serve  # noqa: F401
from ortrain.flower import Scaffold, client_app

sys.path.insert(0, str(ROOT / "examples/federated"))
from federated import task


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("federated")
    task.prepare(where)
    return where / "artifacts"


def run(folder, out, strategy, secure, down=None, max_weight=1000.0, **options):
    mods = [secaggplus_mod] if secure else []
    app = client_app(
        folder, lambda context: (task.shard(context.node_config["partition-id"]), task.digits()[1]), mods=mods
    )
    workflow = None
    if secure:
        workflow = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=max_weight)
    options = {"rounds": 2, "learning_rate": task.LEARNING_RATE, "as_buffer": True, **options}
    options["secure_aggregation"] = workflow
    return serve(folder, strategy, out, [app] * task.CLIENTS, down, **options)


def parameters(path):
    state = CheckpointState.load_checkpoint(str(path))
    return np.concatenate([parameter.data.ravel() for _, parameter in state.parameters])


STRATEGIES = {
    "FedAvg": lambda: FedAvg(**QUIET),
    "FedProx": lambda: FedProx(proximal_mu=0.1, **QUIET),
    "FedAdam": lambda: FedAdam(eta=1.0, tau=0.1, **QUIET),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_mean_is_that_of_plain_averaging(name, folder, tmp_path):
    rounds, _ = run(folder, tmp_path / "secure", STRATEGIES[name](), True)
    plain, _ = run(folder, tmp_path / "plain", STRATEGIES[name](), False)
    start = parameters(folder / "checkpoint")
    for number in (1, 2):
        one, two = (parameters(tmp_path / kind / f"round-{number}.ckpt") for kind in ("secure", "plain"))
        # Parameters times a weight between 0 and 1 are sent as 22-bit numbers from -8 to 8, which is 4e-6 apart; the sum of
        # four is divided by the sum of the weights, 1.35. Training goes on from there, so later rounds differ more.
        np.testing.assert_allclose(one, two, atol=2e-5 if number == 1 else 2e-3)
        assert np.abs(one - start).max() > 0.05
        ours, theirs = rounds[number]["clients"], plain[number]["clients"]
        for node, reports in theirs.items():
            assert ours[node]["train"]["num-examples"] == reports["train"]["num-examples"]
        # Per client: the masked vector, 4 or 8 bytes per element, and keys; the evaluation reports no parameters.
        assert rounds[number]["bytes_received"] > plain[number]["bytes_received"]


def test_no_parameters_of_a_client_are_sent_in_the_clear(folder, tmp_path):
    _, grid = run(folder, tmp_path, FedAvg(**QUIET), True, rounds=1)
    replies = [
        reply for message, reply in grid.exchanged if message.metadata.message_type.startswith("train")
    ]
    assert len(replies) == 4 * 4  # four stages with four clients
    for reply in replies:
        assert sum(len(record) for record in reply.content.array_records.values()) == 0
    # The masked vectors look random: each differs from the true one by most of the range.
    masked = [
        np.concatenate([np.load(io.BytesIO(part)).ravel() for part in values])
        for reply in replies
        for record in reply.content.config_records.values()
        for name, values in record.items()
        if "masked" in name
    ]
    assert len(masked) == 4
    for vector in masked:
        spread = np.std(vector.astype(np.float64)) / 2**32
        assert 0.27 < spread < 0.31  # 1 / sqrt(12), that of equally likely numbers


class Failing(Exception):
    """Why a client leaves in the middle of the protocol."""


def leaving(nodes, stage):
    """A module of clients that leave in a stage of the protocol."""

    def mod(message, context, call_next):
        record = message.content.config_records["secaggplus_configs"]
        if message.metadata.dst_node_id in nodes and record["stage"] == stage:
            raise Failing("gone")
        return call_next(message, context)

    return mod


@pytest.mark.parametrize("stage", ["setup", "share_keys", "collect_masked_vectors", "unmask"])
@pytest.mark.parametrize("nodes", [[3], [1, 2, 3]], ids=["one", "all but one"])
def test_clients_may_leave_in_every_stage(nodes, stage, folder, tmp_path):
    app = client_app(
        folder,
        lambda context: (task.shard(context.node_config["partition-id"]), task.digits()[1]),
        mods=[leaving(nodes, stage), secaggplus_mod],
    )
    workflow = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.5)
    options = {"rounds": 1, "learning_rate": task.LEARNING_RATE}
    rounds, _ = serve(
        folder, FedAvg(**QUIET), tmp_path / "secure", [app] * 4, secure_aggregation=workflow, **options
    )
    start, now = parameters(folder / "checkpoint"), parameters(tmp_path / "secure/round-1.ckpt")
    if len(nodes) == 3:  # a mean of one client would be its parameters
        np.testing.assert_array_equal(now, start)
        assert (
            "secure aggregation: too few clients completed the protocol to compute a mean"
            in rounds[1]["failures"]
        )
        return
    assert rounds[1]["failures"] == ["node 3: gone"]
    # Who leaves before the last stage is not part of the mean; the last one is about the masks of those who are.
    down = {} if stage == "unmask" else {1: [3]}
    run(folder, tmp_path / "plain", FedAvg(**QUIET), False, down, rounds=1)
    np.testing.assert_allclose(now, parameters(tmp_path / "plain/round-1.ckpt"), atol=2e-5)


def test_a_strategy_that_sends_more_than_parameters_is_refused(folder, tmp_path):
    with pytest.raises(
        ValueError, match=r"secure aggregation sends one array .* this strategy sends .*control"
    ):
        run(folder, tmp_path, Scaffold(**QUIET), True)


def test_a_client_with_more_rows_than_the_protocol_can_weigh_is_left_out(folder, tmp_path):
    """The sum of the masked parameters would be wrong."""
    counts = [len(task.shard(number)[1]) for number in range(task.CLIENTS)]
    rows = max(counts)
    whole, _ = run(folder, tmp_path / "whole", FedAvg(**QUIET), True, rounds=1, max_weight=float(rows))
    assert whole[1]["left_out"] == {}
    rounds, _ = run(folder, tmp_path / "one", FedAvg(**QUIET), True, rounds=1, max_weight=float(rows - 1))
    assert set(rounds[1]["left_out"]) == {
        str(node) for node, count in enumerate(counts, start=1) if count == rows
    }
    [reason, *_] = rounds[1]["left_out"].values()
    assert (
        f"expected a whole number from 1 to {rows - 1}, found {rows}; the highest number is the max_weight"
        in reason
    )
