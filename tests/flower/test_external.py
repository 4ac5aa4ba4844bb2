"""Federations of clients that are programs in C and C#, alone and beside one in Python, in one process."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from languages import COMPILERS, ROOT, Missing, skip_or_fail
from ortrain import Trainer
from ortrain.api import CheckpointState

pytest.importorskip("flwr", reason="needs flwr: make test-integrations")
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.mod import fixedclipping_mod
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg, FedProx
from local_grid import QUIET, identity, serve  # noqa: F401
from ortrain.flower import Scaffold, client_app, external_client_app

sys.path.insert(0, str(ROOT / "examples/federated"))
from federated import task

SOURCES = {"c": "c/client.c", "csharp": "csharp/Client.cs"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Artifacts, and the digits in two parts that differ: shards 0 and 1, and shards 2 and 3."""
    where = tmp_path_factory.mktemp("external")
    task.prepare(where)
    for number in range(2):
        task.write_rows(where / f"{number}.rows", half(number))
    task.write_rows(where / "test.rows", task.digits()[1])
    return where


def half(number):
    parts = [task.shard(2 * number), task.shard(2 * number + 1)]
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def app_of(language, prepared, builds, **options):
    folder = prepared / "artifacts"
    if language == "python":
        return client_app(
            folder, lambda context: (half(context.node_config["partition-id"]), task.digits()[1]), **options
        )
    target = builds / f"client_{language}"
    try:
        program = COMPILERS[language][1]([ROOT / "examples/federated" / SOURCES[language]], target)
    except Missing as why:
        skip_or_fail(language, why)
    variables = [f"{name}={value}" for name, value in program.environment.items()]
    files = [folder, prepared / "{partition-id}.rows", prepared / "test.rows"]
    return external_client_app(folder, ["env", *variables, *program.command, *files], **options)


@pytest.mark.parametrize("as_buffer", [True, False], ids=["buffer", "by name"])
@pytest.mark.parametrize("languages", [("c", "csharp"), ("c", "python")], ids="-".join)
def test_two_clients_learn_what_central_training_learns(languages, as_buffer, prepared, tmp_path):
    apps = [app_of(language, prepared, tmp_path) for language in languages]
    options = {"rounds": 6, "local_epochs": 5, "learning_rate": task.LEARNING_RATE, "as_buffer": as_buffer}
    test = task.digits()[1]
    rounds, _ = serve(
        prepared / "artifacts", FedAvg(**QUIET), tmp_path, apps, test=test, metrics=["accuracy"], **options
    )
    assert [entry["failures"] for entry in rounds] == [[]] * 7
    central = Trainer(
        prepared / "artifacts", learning_rate=task.LEARNING_RATE, metrics=["accuracy"], threads=1
    )
    central.fit(task.digits()[0], 30, verbose=False)
    assert rounds[-1]["accuracy"] > central.evaluate(test)["accuracy"] - 0.01
    for node, reports in rounds[-1]["clients"].items():
        assert reports["train"]["num-examples"] == len(half(int(node) - 1)[1])
        # Both clients evaluate the same model on the same rows.
        assert reports["evaluate"]["loss"] == pytest.approx(rounds[-1]["loss"], rel=1e-4)
        assert reports["evaluate"]["num-examples"] == len(test[1])


def test_secure_aggregation_with_a_program_in_c(prepared, tmp_path):
    apps = [app_of(language, prepared, tmp_path, mods=[secaggplus_mod]) for language in ("c", "python")]
    workflow = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=1.0)
    rounds, _ = serve(
        prepared / "artifacts", FedAvg(**QUIET), tmp_path, apps, rounds=2, local_epochs=3,
        learning_rate=task.LEARNING_RATE, secure_aggregation=workflow, test=task.digits()[1], metrics=["accuracy"],
    )  # fmt: skip
    assert [entry["failures"] for entry in rounds] == [[]] * 3
    assert rounds[-1]["accuracy"] > 0.9


def test_the_updates_of_a_program_in_c_are_clipped(prepared, tmp_path):
    strategy = DifferentialPrivacyClientSideFixedClipping(FedAvg(**QUIET), 1e-3, 0.5, num_sampled_clients=1)
    app = app_of("c", prepared, tmp_path, mods=[fixedclipping_mod])
    rounds, _ = serve(prepared / "artifacts", strategy, tmp_path, [app], rounds=1, learning_rate=0.1)
    assert rounds[1]["failures"] == []
    start, now = (
        np.concatenate(
            [parameter.data.ravel() for _, parameter in CheckpointState.load_checkpoint(str(path)).parameters]
        )
        for path in (prepared / "artifacts/checkpoint", tmp_path / "round-1.ckpt")
    )
    assert np.linalg.norm(now - start) == pytest.approx(
        0.5, abs=0.05
    )  # noise of 5e-4 per element has a norm of 0.05


@pytest.mark.parametrize("strategy", [FedProx(proximal_mu=1.0, **QUIET), Scaffold(**QUIET)])
def test_strategies_that_the_program_cannot_follow_are_refused(strategy, prepared, tmp_path):
    app = external_client_app(prepared / "artifacts", ["never-started"])
    rounds, _ = serve(prepared / "artifacts", strategy, tmp_path, [app], rounds=1)
    assert any("an external program trains without" in failure for failure in rounds[1]["failures"])


HEADING = struct.Struct("<8sIIQQQQQd")
SIZE = 9930
GOOD = {
    "magic": b"ORTRFED1",
    "kind": 1,
    "type": 1,
    "elements": SIZE,
    "round": 1,
    "rows": 5,
    "a": 0,
    "b": 0,
    "loss": 1.0,
}


def reply(values=None, **changed):
    """The bytes of a reply."""
    values = np.zeros(SIZE, "<f4") if values is None else values
    return HEADING.pack(*(GOOD | changed).values()) + values.tobytes()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "expected a heading of 64 bytes, found 0"),
        (reply(magic=b"ORTRFED2"), "first bytes: expected b'ORTRFED1', found b'ORTRFED2'"),
        (reply(kind=2), "kind: expected 1, found 2"),
        (reply(type=2), "element type: expected 1, found 2"),
        (reply(elements=7), f"elements: expected {SIZE}, found 7"),
        (reply(round=2), "round: expected 1, found 2"),
        (reply()[:-4], f"bytes: expected {64 + 4 * SIZE}, found {60 + 4 * SIZE}"),
        (reply(rows=0), "expected 1 or more rows, found 0"),
        (reply(loss=float("inf")), "the loss or a parameter is not finite"),
        (reply(np.full(SIZE, np.nan, "<f4")), "the loss or a parameter is not finite"),
    ],
)
def test_a_wrong_reply_does_not_reach_the_model(answer, said, prepared, tmp_path):
    (tmp_path / "answer").write_bytes(answer)
    script = "import shutil, sys; shutil.copy(sys.argv[1], sys.argv[3])"
    command = [sys.executable, "-c", script, tmp_path / "answer"]
    app = external_client_app(prepared / "artifacts", command)
    rounds, _ = serve(prepared / "artifacts", FedAvg(**QUIET), tmp_path, [app], rounds=1)
    assert any(said in failure for failure in rounds[1]["failures"]), rounds[1]["failures"]
    assert rounds[1]["bytes_received"] == 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["no-such-program"], "no-such-program cannot be started"),
        (
            [sys.executable, "-c", "import sys; sys.exit('no space left')"],
            "ended with status 1: no space left",
        ),
        ([sys.executable, "-c", ""], "ended without a reply"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "did not reply within 0.5 s"),
    ],
)
def test_a_program_that_fails_is_named(command, said, prepared, tmp_path):
    app = external_client_app(prepared / "artifacts", command, timeout=0.5 if "60" in command[-1] else 600)
    rounds, _ = serve(prepared / "artifacts", FedAvg(**QUIET), tmp_path, [app], rounds=1)
    assert any(said in failure for failure in rounds[1]["failures"]), rounds[1]["failures"]
    assert Path(tmp_path / "global.onnx").exists()
