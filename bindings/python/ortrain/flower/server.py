"""The server: combines the results of its clients, and keeps the model of each round."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy

from ortrain._files.writing import write_file
from ortrain.flower.client_replies import MOST_ROWS, ArraySpec, arrays_problem, metrics_problem, odd_ones
from ortrain.flower.records import BUFFER, names_of, readers_of, record_of, set_parameters, specs_of
from ortrain.flower.secure import SecureGrid
from ortrain.trainer import Metric, Trainer

StrPath = str | os.PathLike[str]

_log = logging.getLogger(__name__)


class _Measured:
    """A grid that counts bytes, keeps what each client reports, and rejects invalid replies.

    A strategy gets an error instead of an invalid reply, as for a client that has failed.
    """

    def __init__(self, grid: Grid, max_rows: int) -> None:
        self._grid, self._max_rows = grid, max_rows
        self.begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def begin(self) -> None:
        """Start a new round."""
        self.sent = self.received = 0
        self.began = time.monotonic()
        self.clients: dict[str, dict[str, Any]] = {}
        self.failures: list[str] = []
        self.left_out: dict[str, str] = {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages over the grid; return its replies, with errors in place of rejected replies."""
        messages = list(messages)
        for message in messages:
            self.sent += _bytes(message.content)
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        # The SuperLink answers for a node that is gone, so the node ID is taken from the message.
        asked = {message.metadata.message_id: message for message in messages if message.metadata.message_id}
        kept: list[Message] = []
        answered: dict[int, tuple[Message, Message]] = {}  # by the index among the replies that are kept
        for reply in replies:
            message = asked.pop(reply.metadata.reply_to_message_id, None)
            node = _node_of(message) if message is not None else str(reply.metadata.src_node_id)
            if reply.has_error():
                self.failures.append(f"node {node}: {reply.error.reason}")
            elif message is None:
                self.failures.append(f"node {node}: a reply to a message that was not sent")
                continue
            else:
                self.received += _bytes(reply.content)
                answered[len(kept)] = message, reply
            kept.append(reply)
        self.failures += [f"node {_node_of(message)}: no reply in time" for message in asked.values()]
        for place, problem in self._problems(answered).items():
            kept[place] = self.leave_out(answered.pop(place)[0], problem)
        for message, reply in answered.values():
            record = reply.content.metric_records.get("metrics")
            if record is not None:
                self.clients.setdefault(_node_of(message), {})[_kind_of(message)] = dict(record)
        return kept

    def _problems(self, answered: Mapping[int, tuple[Message, Message]]) -> dict[int, str]:
        """Return the faults of replies by their index. Replies of secure aggregation are not checked here."""
        plain = {place: pair for place, pair in answered.items() if "arrays" in pair[0].content.array_records}
        problems = {
            place: problem
            for place, (message, reply) in plain.items()
            if (problem := self._problem(message, reply))
        }
        reports = {
            place: dict(reply.content["metrics"])
            for place, (_, reply) in plain.items()
            if place not in problems
        }
        return problems | odd_ones(reports)

    def _problem(self, message: Message, reply: Message) -> str:
        content = reply.content
        if list(content.metric_records) != ["metrics"]:
            return f"expected one record of metrics, found {', '.join(content.metric_records) or 'none'}"
        if _kind_of(message) == "train":
            if list(content.array_records) != ["arrays"]:
                return f"expected one record of arrays, found {', '.join(content.array_records) or 'none'}"
            expected = specs_of(message.content["arrays"])
            problem = arrays_problem(readers_of(content["arrays"]), expected)
            if problem:
                return problem
            # Some strategies match arrays by their order.
            content["arrays"] = ArrayRecord({name: content["arrays"][name] for name in expected})
        return metrics_problem(content["metrics"], self._max_rows)

    def leave_out(self, message: Message, problem: str) -> Message:
        """Note that the reply to a message is not used; return the error that replaces it."""
        node = _node_of(message)
        _log.warning("node %s is left out of the round: %s", node, problem)
        self.left_out[node] = problem
        self.failures.append(f"node {node}: left out: {problem}")
        self.clients.get(node, {}).pop(_kind_of(message), None)
        if not self.clients.get(node, True):
            del self.clients[node]
        return Message(error=Error(ErrorCode.UNKNOWN, problem), reply_to=message)


def _node_of(message: Message) -> str:
    """Return the node that a message goes to."""
    return str(message.metadata.dst_node_id)


def _kind_of(message: Message) -> str:
    """Return "train" or "evaluate"."""
    kind: str = message.metadata.message_type.split(".")[0]
    return kind


@contextmanager
def _checked(strategy: Strategy, expected: Mapping[str, ArraySpec], measured: _Measured) -> Iterator[None]:
    """Replace an invalid result of a strategy by the model of the round before."""
    aggregate = strategy.aggregate_train

    def aggregated(
        server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = aggregate(server_round, replies)
        problem = "" if arrays is None else arrays_problem(readers_of(arrays), expected)
        if not problem:
            return arrays, metrics
        _log.warning("the result of the strategy is not used: %s", problem)
        measured.failures.append(
            f"the result of the strategy: {problem}; the model of the previous round is kept"
        )
        return None, metrics

    strategy.aggregate_train = aggregated
    try:
        yield
    finally:
        del strategy.aggregate_train


def _bytes(content: RecordDict) -> int:
    """Return the number of bytes of parameters, and in secure aggregation of keys and masked parameters."""
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
    max_rows: int = MOST_ROWS,
) -> ServerApp:
    """Return a server that trains artifacts with its clients.

    After each round it saves the global model as a checkpoint, ``round-<n>.ckpt``, and adds a line to ``rounds.jsonl``: the
    bytes of parameters that were sent and received, what each client reported, failures, clients that were left out, and
    loss and metrics on ``test``. At the end it exports the global model as ``global.onnx``.

    A client is left out of a round if its reply is not valid: other names, shapes or types of parameters, numbers that
    are not finite, a number of rows that is missing or out of range, other metrics than most clients. The log has a warning
    with the reason, and the metrics of the round the number of these clients, ``clients-left-out``. If no client remains, or
    the strategy returns parameters that are not finite, the model of the previous round is kept and saved again under the
    number of this round.

    Parameters
    ----------
    artifacts : str or os.PathLike
        The folder of training artifacts.
    strategy : flwr.serverapp.strategy.Strategy or callable
        How the clients' parameters are combined, such as ``FedAvg``, ``FedProx`` or ``FedAdam`` of Flower, or `Scaffold`;
        or a function of the context that returns it.
    rounds : int, default 3
        The number of rounds.
    out : str or os.PathLike, default "federated"
        The folder of the results.
    test : object, optional
        Data on the server that the global model is evaluated on, as ``Trainer.evaluate`` takes them.
    metrics : list of str or Metric, default ()
        Values to compute on these data besides the loss.
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
    max_rows : int, default 2**53
        The highest number of rows that a client may report, which is its weight in the mean.

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
    if not 1 <= max_rows <= MOST_ROWS:
        raise ValueError(f"max_rows: expected 1 to 2**53, found {max_rows}")
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        trainer = Trainer(artifacts, metrics=metrics, seed=seed, threads=1)
        chosen = strategy if isinstance(strategy, Strategy) else strategy(context)
        measured = _Measured(grid, max_rows)
        sender: Any = measured
        if secure_aggregation is not None:
            sender = SecureGrid(measured, secure_aggregation, context)
        write_file(folder / "rounds.jsonl", "log", "")
        lines = (folder / "rounds.jsonl").open("a", encoding="utf-8")

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
                "left_out": measured.left_out,
            }
            lines.write(json.dumps(entry) + "\n")
            lines.flush()
            numbers = {name: value for name, value in found.items() if isinstance(value, float)}
            numbers["clients-left-out"] = len(measured.left_out)
            measured.begin()
            return MetricRecord(numbers)

        config: dict[str, Any] = {
            "local-epochs": local_epochs,
            "batch-size": batch_size,
            "seed": seed,
            "trained-elements": trainer.module.get_parameters_size(True),
        }
        if learning_rate is not None:
            config["learning-rate"] = learning_rate
        start = record_of(trainer, [BUFFER] if as_buffer else names_of(trainer, frozen))
        with lines, _checked(chosen, specs_of(start), measured):
            result: Result = chosen.start(
                sender,
                start,
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
