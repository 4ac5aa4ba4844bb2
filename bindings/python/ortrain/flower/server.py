"""The server: combines what its clients have learned, and keeps the model of each round."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy

from ortrain.flower.records import BUFFER, names_of, record_of, set_parameters
from ortrain.flower.secure import SecureGrid
from ortrain.trainer import Metric, Trainer

StrPath = str | os.PathLike[str]


class _Measured:
    """A grid that counts bytes and keeps what each client reports."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def begin(self) -> None:
        """Start a new round."""
        self.sent = self.received = 0
        self.began = time.monotonic()
        self.clients: dict[str, dict[str, Any]] = {}
        self.failures: list[str] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Do what the grid does."""
        messages = list(messages)
        for message in messages:
            self.sent += _bytes(message.content)
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        # The SuperLink answers in the place of a node that is gone, so the node is that of the message.
        sent = [message.metadata for message in messages if message.metadata.message_id]
        asked = {metadata.message_id: str(metadata.dst_node_id) for metadata in sent}
        for reply in replies:
            node = asked.pop(reply.metadata.reply_to_message_id, str(reply.metadata.src_node_id))
            if reply.has_error():
                self.failures.append(f"node {node}: {reply.error.reason}")
                continue
            self.received += _bytes(reply.content)
            kind = reply.metadata.message_type.split(".")[0]
            record = reply.content.metric_records.get("metrics")
            if record is not None:
                self.clients.setdefault(node, {})[kind] = dict(record)
        self.failures += [f"node {node}: no reply in time" for node in asked.values()]
        return replies


def _bytes(content: RecordDict) -> int:
    """Return the bytes of parameters, and those of keys and masked parameters in secure aggregation."""
    size = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    for record in content.config_records.values():
        for value in record.values():
            parts = value if isinstance(value, list) else [value]
            size += sum(len(part) for part in parts if isinstance(part, bytes))
    return size


def server_app(
    artifacts: StrPath,
    strategy: Strategy | Callable[[Context], Strategy],
    *,
    rounds: int = 3,
    out: StrPath = "federated",
    test: Any = None,
    metrics: Sequence[str | Metric] = (),
    local_epochs: int = 1,
    batch_size: int = 32,
    learning_rate: float | None = None,
    as_buffer: bool = False,
    frozen: bool = False,
    secure_aggregation: Any = None,
    seed: int = 0,
    timeout: float = 3600,
) -> ServerApp:
    """Return a server that trains artifacts with its clients.

    After each round it saves the global model as a checkpoint, ``round-<n>.ckpt``, and adds a line to ``rounds.jsonl``: the
    bytes of parameters that were sent and received, what each client reported, failures, and loss and metrics on ``test``.
    At the end it exports the global model as ``global.onnx``.

    Parameters
    ----------
    artifacts : str or os.PathLike
        The folder of training artifacts.
    strategy : flwr.serverapp.strategy.Strategy or callable
        How the clients' parameters are combined, such as ``FedAvg``, ``FedProx`` or ``FedAdam`` of Flower, or `Scaffold`;
        or a function of the context that returns it.
    rounds : int, default 3
        How many rounds there are.
    out : str or os.PathLike, default "federated"
        The folder of the results.
    test : object, optional
        Data on the server that the global model is evaluated on, as ``Trainer.evaluate`` takes them.
    metrics : list of str or Metric, default ()
        What is computed on them besides the loss.
    local_epochs : int, default 1
        Passes of a client over its data in a round.
    batch_size : int, default 32
        Rows of a step.
    learning_rate : float, optional
        The learning rate of the clients; the default of the optimizer model if it is left out.
    as_buffer : bool, default False
        Whether parameters are sent as one array instead of by name.
    frozen : bool, default False
        Whether frozen parameters are sent too, such as the running statistics of a batch normalization.
    secure_aggregation : flwr.server.workflow.SecAggPlusWorkflow, optional
        Flower's protocol by which the server learns the mean of the clients' parameters and none of them. Clients need
        ``mods=[secaggplus_mod]``; parameters are sent as one array. Their counts of rows and metrics are not secret.
    seed : int, default 0
        Seed of the order of the clients' rows.
    timeout : float, default 3600
        Seconds after which clients that have not replied are left out of a round.

    Returns
    -------
    flwr.serverapp.ServerApp
        The server.

    Raises
    ------
    ValueError
        When arguments contradict each other.
    """
    as_buffer = as_buffer or secure_aggregation is not None
    if as_buffer and frozen:
        raise ValueError(
            "frozen: expected False with as_buffer or secure_aggregation, whose array holds trained parameters only"
        )
    if rounds < 1:
        raise ValueError(f"rounds: expected 1 or more, found {rounds}")
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        trainer = Trainer(artifacts, metrics=metrics, seed=seed, threads=1)
        chosen = strategy if isinstance(strategy, Strategy) else strategy(context)
        measured = _Measured(grid)
        sender: Any = measured
        if secure_aggregation is not None:
            sender = SecureGrid(
                measured, secure_aggregation, context, lambda why: measured.failures.append(why)
            )
        lines = (folder / "rounds.jsonl").open("w", encoding="utf-8")

        def after(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            set_parameters(trainer, arrays)
            found = trainer.evaluate(test, batch_size=256) if test is not None else {}
            if number:
                trainer.save(folder / f"round-{number}.ckpt")
            entry = {
                "round": number,
                "bytes_sent": measured.sent,
                "bytes_received": measured.received,
                "seconds": time.monotonic() - measured.began,
                **found,
                "clients": measured.clients,
                "failures": measured.failures,
            }
            lines.write(json.dumps(entry) + "\n")
            lines.flush()
            measured.begin()
            numbers = {name: value for name, value in found.items() if isinstance(value, float)}
            return MetricRecord(numbers) if numbers else None

        config: dict[str, Any] = {
            "local-epochs": local_epochs,
            "batch-size": batch_size,
            "seed": seed,
            "trained-elements": trainer.module.get_parameters_size(True),
        }
        if learning_rate is not None:
            config["learning-rate"] = learning_rate
        with lines:
            result: Result = chosen.start(
                sender,
                record_of(trainer, [BUFFER] if as_buffer else names_of(trainer, frozen)),
                num_rounds=rounds,
                timeout=timeout,
                train_config=ConfigRecord(config),
                evaluate_config=ConfigRecord(config),
                evaluate_fn=after,
            )
        if result.arrays:
            set_parameters(trainer, result.arrays)
        trainer.export(folder / "global.onnx")

    return app
