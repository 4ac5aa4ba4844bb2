"""Train the digits with four clients on this computer, as a simulation or as a deployment of processes.

    python examples/federated/run.py simulation
    python examples/federated/run.py deployment

The deployment starts a SuperLink and four SuperNodes on loopback; one of them is killed in round 2 and started again after it.
The program ends with status 1 if the held-out accuracy is more than a point below that of training in one place, or if a
process is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from federated import task  # noqa: E402

LIMIT = 600  # seconds for everything


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def with_descendants(pid: int) -> list[int]:
    """Return a process and all that it has started, itself first, so that it can be ended before it starts more."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [pid], [pid]
    while todo:
        todo = [child for parent in todo for child in children.get(parent, [])]
        found += todo
    return found


class Deployment:
    """The processes of a deployment on loopback."""

    def __init__(self, out: Path, home: Path) -> None:
        self.out, self.home = out, home
        self.bin = Path(sys.executable).parent
        self.port, *self.nodes = free_ports(1 + task.CLIENTS)
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(home),
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.ever: set[int] = set()

    def start(self, name: str, *command: str) -> None:
        """Start a process whose output goes into a file of its name."""
        with (self.out / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(self.bin / command[0]), *command[1:]],
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def start_link(self) -> None:
        """Start the SuperLink and say where it is."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.start(
            "superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port),
        )  # fmt: skip
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"the SuperLink does not listen; see {self.out / 'superlink.log'}")

    def start_node(self, number: int) -> None:
        """Start a SuperNode."""
        self.start(
            f"supernode{number}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}",
            "--port", str(self.nodes[number]), "--node-config", f"partition-id={number} num-partitions={task.CLIENTS}",
        )  # fmt: skip

    def kill(self, *names: str) -> None:
        """Kill processes and what they have started, all of them before any is waited for."""
        for name in names:
            for pid in with_descendants(self.running[name].pid):
                self.ever.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for name in names:
            self.running.pop(name).wait()

    def end(self) -> None:
        """Kill everything; Ctrl-C does not stop this."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.kill(*self.running)
        signal.signal(signal.SIGINT, before)

    def left(self) -> list[int]:
        """Return those that are still there."""
        time.sleep(0.5)
        stats = [(pid, Path(f"/proc/{pid}/stat")) for pid in self.ever]
        return [pid for pid, stat in stats if stat.exists() and ") Z " not in stat.read_text()]


def rounds_of(out: Path) -> list[dict[str, object]]:
    """Return the rounds so far."""
    path = out / "results/rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def deploy(out: Path) -> list[int]:
    """Run the deployment; return the processes that are left, of which there should be none."""
    with tempfile.TemporaryDirectory(prefix="flwr-") as home:
        deployment = Deployment(out, Path(home))
        ends = time.monotonic() + LIMIT
        try:
            deployment.start_link()
            for number in range(task.CLIENTS):
                deployment.start_node(number)
            deployment.start("run", "flwr", "run", str(HERE), "here", "--stream")
            killed = back = False
            while len(rounds_of(out)) <= task.ROUNDS:
                done = len(rounds_of(out)) - 1  # the first line is the model before round 1
                if done >= 1 and not killed:
                    print("round 2: killing SuperNode 3", flush=True)
                    deployment.kill("supernode3")
                    killed = True
                if done >= 2 and not back:
                    print("round 3: SuperNode 3 comes back", flush=True)
                    deployment.start_node(3)
                    back = True
                if time.monotonic() > ends:
                    raise RuntimeError(f"not done after {LIMIT} s; see the logs in {out}")
                time.sleep(0.1)
            exported = out / "results/global.onnx"
            while not exported.exists() and time.monotonic() < ends:
                time.sleep(0.1)
        finally:
            deployment.end()
    return deployment.left()


def simulate() -> None:
    """Run the same app in Flower's simulation."""
    from federated.client import app as client
    from federated.server import app as server
    from flwr.simulation import run_simulation

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=task.CLIENTS, backend_config=resources)


def main() -> int:
    """Run the example; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=["simulation", "deployment"])
    parser.add_argument("--out", type=Path, default=Path("build/federated"), help="folder of the results")
    options = parser.parse_args()
    out = options.out.resolve() / options.mode
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    os.environ["ORTRAIN_FEDERATED"] = str(out)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    task.prepare(out)
    left: list[int] = []
    if options.mode == "simulation":
        simulate()
    else:
        left = deploy(out)
    print("round  clients  bytes sent  bytes received  loss    accuracy")
    rounds = rounds_of(out)
    for entry in rounds:
        clients = entry["clients"]
        assert isinstance(clients, dict)
        print(
            f"{entry['round']:5}  {len(clients):7}  {entry['bytes_sent']:10}  {entry['bytes_received']:14}  "
            f"{entry['loss']:.4f}  {entry['accuracy']:.4f}"
        )
    central, federated = task.central(), float(str(rounds[-1]["accuracy"]))
    print(
        f"held-out accuracy: {federated:.2%} federated, {central:.2%} in one place; model: {out / 'results/global.onnx'}"
    )
    if left:
        print(f"processes left: {left}", file=sys.stderr)
    return 1 if left or federated < central - 0.01 or len(rounds) != task.ROUNDS + 1 else 0


if __name__ == "__main__":
    sys.exit(main())
