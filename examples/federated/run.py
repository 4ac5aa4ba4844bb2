"""Train the digits with four clients on this computer, as a simulation or as a deployment of processes.

    python examples/federated/run.py simulation
    python examples/federated/run.py deployment

The deployment starts a SuperLink and four SuperNodes on loopback; one of them is killed in round 2 and started again after it.
The program ends with status 1 if the held-out accuracy is more than a point below that of training in one place, if a round did
not have the clients that it should have had, or if a process is left.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from federated import task  # noqa: E402
from processes import Failure, Processes, free_ports, listens, signals_raise  # noqa: E402

LOST = task.CLIENTS - 1  # the node that is killed


def rounds_of(out: Path) -> list[dict[str, Any]]:
    """Return the rounds so far; the first is the model before round 1."""
    path = out / "results/rounds.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs."""
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
        "ORTRAIN_FEDERATED": os.environ["ORTRAIN_FEDERATED"],
    }


class Progress:
    """Prints a line per round."""

    def __init__(self, out: Path) -> None:
        self.out, self.seen = out, 1

    def rounds(self) -> int:
        """Return how many rounds are done."""
        done = rounds_of(self.out)
        for entry in done[self.seen :]:
            print(
                f"round {entry['round']}: {entry['seconds']:.0f} s, accuracy {entry['accuracy']:.4f}",
                flush=True,
            )
            self.seen += 1
        return len(done) - 1


def deploy(processes: Processes, home: Path, out: Path) -> None:
    """Run the deployment to its end."""
    port, *ports = free_ports(1 + task.CLIENTS)
    address = f"127.0.0.1:{port}"
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )

    def start_node(number: int) -> None:
        processes.start(
            f"supernode{number}", "flower-supernode", "--insecure", "--superlink", address, "--port", str(ports[number]),
            "--node-config", f"partition-id={number} num-partitions={task.CLIENTS}",
        )  # fmt: skip

    processes.start(
        "superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port),
        "--disable-runtime-dependency-installation",
    )  # fmt: skip
    processes.wait("the SuperLink to listen", lambda: listens(port))
    for number in range(task.CLIENTS):
        start_node(number)
    processes.wait(
        "the SuperNodes to register",
        lambda: processes.log("superlink").count("Activated node_id") == task.CLIENTS,
    )
    print(f"a SuperLink and {task.CLIENTS} SuperNodes are ready", flush=True)
    processes.start("run", "flwr", "run", str(HERE), "here", "--stream")
    progress = Progress(out)
    processes.wait("round 1", lambda: progress.rounds() >= 1)
    print(f"round 2: killing SuperNode {LOST}", flush=True)
    processes.kill(f"supernode{LOST}")
    # If the SuperLink has not heard of a node for a minute, it treats the node as gone, and the round
    # continues.
    processes.wait("round 2", lambda: progress.rounds() >= 2)
    print(f"SuperNode {LOST} comes back", flush=True)
    start_node(LOST)
    processes.wait(
        "the end", lambda: progress.rounds() >= task.ROUNDS and (out / "results/global.onnx").exists(), "run"
    )


def simulate(processes: Processes, out: Path) -> None:
    """Run the same app in Flower's simulation to its end."""
    processes.start("simulation", sys.executable, "-m", "federated.simulation")
    progress = Progress(out)
    processes.wait(
        "the end",
        lambda: progress.rounds() >= task.ROUNDS and processes.running["simulation"].poll() == 0,
        "simulation",
    )


def trained(entry: dict[str, Any]) -> int:
    """Return how many clients have trained in a round."""
    return sum("train" in reports for reports in entry["clients"].values())


def expected_clients(mode: str, rounds: list[dict[str, Any]]) -> str | None:
    """Return what is wrong with the numbers of clients, if anything is."""
    counts = [trained(entry) for entry in rounds[1:]]
    if mode == "simulation":
        return (
            None
            if set(counts) == {task.CLIENTS}
            else f"expected {task.CLIENTS} clients in each round, found {counts}"
        )
    if counts[1] != task.CLIENTS - 1:
        return f"expected {task.CLIENTS - 1} clients in round 2, found {counts[1]}"
    return None if counts[-1] == task.CLIENTS else f"the client that was killed did not come back: {counts}"


def main() -> int:
    """Run the example; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=["simulation", "deployment"])
    parser.add_argument("--out", type=Path, default=Path("build/federated"), help="folder of the results")
    parser.add_argument("--limit", type=float, default=1200, help="seconds after which it is given up")
    options = parser.parse_args()
    out = options.out.resolve() / options.mode
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    os.environ["ORTRAIN_FEDERATED"] = str(out)
    task.prepare(out)
    began = time.monotonic()
    try:
        with (
            signals_raise(),
            tempfile.TemporaryDirectory(prefix="flwr-", ignore_cleanup_errors=True) as home,
            Processes(out, environment(Path(home)), options.limit) as processes,
        ):
            if options.mode == "simulation":
                simulate(processes, out)
            else:
                deploy(processes, Path(home), out)
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    left = processes.alive()
    seconds = time.monotonic() - began
    rounds = rounds_of(out)
    print("\nround  clients  bytes sent  bytes received  seconds  loss    accuracy")
    for entry in rounds:
        print(
            f"{entry['round']:5}  {trained(entry):7}  {entry['bytes_sent']:10}  {entry['bytes_received']:14}  "
            f"{entry['seconds']:7.1f}  {entry['loss']:.4f}  {entry['accuracy']:.4f}"
        )
    central, federated = task.central(), float(rounds[-1]["accuracy"])
    print(
        f"held-out accuracy: {federated:.2%} federated, {central:.2%} in one place; {seconds:.0f} s; "
        f"model: {out / 'results/global.onnx'}"
    )
    wrong = [
        expected_clients(options.mode, rounds),
        "the accuracy is more than a point below that in one place" if federated < central - 0.01 else None,
        f"processes left: {left}" if left else None,
    ]
    for line in filter(None, wrong):
        print(line, file=sys.stderr)
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
