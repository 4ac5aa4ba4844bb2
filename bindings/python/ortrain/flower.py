"""Federated learning on Flower: clients that train artifacts, and the server that combines what they have learned.

Needs flwr 1.41: ``pip install 'ortrain[flower]'``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain.trainer import Metric, Trainer

try:
    from flwr.app import Array as FlowerArray
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg, Result, Strategy
except ImportError as error:
    raise ImportError("ortrain.flower needs flwr: pip install 'ortrain[flower]'") from error

__all__ = ["Scaffold", "client_app", "server_app"]

Array = npt.NDArray[Any]
StrPath = str | os.PathLike[str]
Data = Callable[[Context], tuple[Any, Any]]

_BUFFER = "parameters"  # the name of the one array, if parameters are sent as a buffer
_CONTROL = "ortrain.control"  # the control variate of SCAFFOLD, or its change in a reply


# ---- parameters as records ----


def _names(trainer: Trainer, frozen: bool) -> list[str]:
    """Return the parameters that are sent: those that are trained, and if wanted the frozen ones that can be averaged."""
    return [
        name
        for name, parameter in trainer.state.parameters
        if parameter.requires_grad or (frozen and parameter.data.dtype.kind == "f")
    ]


def _flat(trainer: Trainer) -> Array:
    return np.asarray(trainer.module.get_contiguous_parameters(True).numpy())


def _record(trainer: Trainer, names: Sequence[str]) -> ArrayRecord:
    """Return parameters by name, or all trained ones as one array."""
    if list(names) == [_BUFFER]:
        return ArrayRecord({_BUFFER: _array(_flat(trainer))})
    return ArrayRecord({name: _array(trainer.state.parameters[name].data) for name in names})


def _array(values: Array) -> FlowerArray:
    return FlowerArray(np.ascontiguousarray(values))


def _set(trainer: Trainer, record: ArrayRecord) -> list[str]:
    """Give the trainer the parameters of a record; return their names."""
    names = [name for name in record if name != _CONTROL]
    known = {name for name, _ in trainer.state.parameters}
    if names == [_BUFFER] and _BUFFER not in known:
        buffer = record[_BUFFER].numpy()
        trainer.module.copy_buffer_to_parameters(buffer.astype(_flat(trainer).dtype), True)
    else:
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"the artifacts in {trainer.folder} have no parameter {', '.join(unknown)}")
        for name in names:
            before = trainer.state.parameters[name].data.dtype  # some strategies compute in double
            trainer.state.parameters[name] = record[name].numpy().astype(before)
    trainer.parameters_changed()
    return names


# ---- the client ----


class _CorrectedOptimizer:
    """An optimizer that adds something to the gradients before each step."""

    def __init__(self, trainer: Trainer, proximal: float, control: Array | None) -> None:
        self._optimizer, self._module = trainer.optimizer, trainer.module
        self._start, self._proximal, self._control = _flat(trainer), proximal, control
        self._gradient = np.empty_like(self._start)
        self.gradient_sum = np.zeros(self._start.shape, np.float64)
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def step(self) -> None:
        """Correct the gradients and take a step."""
        self._module.copy_gradients_to_buffer(self._gradient)
        if self._control is not None:
            self.gradient_sum += self._gradient
            self.steps += 1
            self._gradient += self._control
        if self._proximal:
            now = np.asarray(self._module.get_contiguous_parameters(True).numpy())
            self._gradient += self._proximal * (now - self._start)
        self._module.copy_buffer_to_gradients(self._gradient)
        self._optimizer.step()


def client_app(
    artifacts: StrPath,
    data: Data,
    *,
    metrics: Sequence[str | Metric] = (),
    mods: Sequence[Any] = (),
    threads: int = 1,
) -> ClientApp:
    """Return a client that trains artifacts on its own data.

    It understands the configuration that `server_app` sends, the proximal term of FedProx and the control variates of
    `Scaffold`.

    Parameters
    ----------
    artifacts : str or os.PathLike
        The folder of training artifacts, the same on every client and the server.
    data : callable
        Called with Flower's context of the node; returns what it trains on and what it evaluates on, each as
        ``Trainer.fit`` takes data.
    metrics : list of str or Metric, default ()
        What is computed besides the loss; only numbers are sent.
    mods : list of callable, default ()
        Flower's modules, such as those of ``flwr.clientapp.mod`` for differential privacy.
    threads : int, default 1
        Threads of a step.

    Returns
    -------
    flwr.clientapp.ClientApp
        The client.
    """
    app = ClientApp(mods=list(mods))

    def opened(message: Message) -> tuple[Trainer, list[str], Any]:
        config = message.content.config_records.get("config", {})
        rate = config.get("learning-rate")
        seed = int(config.get("seed", 0)) + int(config.get("server-round", 0))
        trainer = Trainer(artifacts, learning_rate=rate, metrics=metrics, seed=seed, threads=threads)
        return trainer, _set(trainer, message.content["arrays"]), config

    def reply(message: Message, values: dict[str, Any], count: int, arrays: ArrayRecord | None) -> Message:
        numbers = {name: float(value) for name, value in values.items() if isinstance(value, float)}
        content = RecordDict({"metrics": MetricRecord({**numbers, "num-examples": count})})
        if arrays is not None:
            content["arrays"] = arrays
        return Message(content=content, reply_to=message)

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        trainer, names, config = opened(message)
        received = message.content["arrays"]
        control = own = None
        if _CONTROL in received:
            control = received[_CONTROL].numpy()
            kept = context.state.array_records.get(_CONTROL)
            own = np.zeros_like(control) if kept is None else kept[_CONTROL].numpy()
        proximal = float(config.get("proximal-mu", 0.0))
        corrected = None
        if proximal or control is not None:
            correction = None if control is None else control - own
            corrected = _CorrectedOptimizer(trainer, proximal, correction)
            trainer.optimizer = corrected  # type: ignore[assignment]
        history = trainer.fit(
            data(context)[0],
            int(config.get("local-epochs", 1)),
            batch_size=int(config.get("batch-size", 32)),
            verbose=False,
        )
        arrays = _record(trainer, names)
        if corrected is not None and control is not None and own is not None:
            # With SGD, the mean gradient is the second choice of the SCAFFOLD paper, (start - end) / (steps * rate) plus
            # what the steps added. It does not depend on the optimizer.
            renewed = (corrected.gradient_sum / corrected.steps).astype(own.dtype)
            context.state[_CONTROL] = ArrayRecord({_CONTROL: _array(renewed)})
            arrays[_CONTROL] = _array(renewed - own)
        values = {name: entries[-1] for name, entries in history.items() if name != "learning_rate"}
        return reply(message, values, trainer._row_count, arrays)

    @app.evaluate()  # type: ignore[untyped-decorator]
    def evaluate(message: Message, context: Context) -> Message:
        trainer, _, config = opened(message)
        test = data(context)[1]
        values = trainer.evaluate(test, batch_size=int(config.get("batch-size", 32)))
        return reply(message, values, _count(test), None)

    return app


def _count(data: Any) -> int:
    """Return the number of rows of data that have rows, otherwise 1."""
    if isinstance(data, dict):
        data = tuple(data.values())
    if isinstance(data, tuple):
        return len(data[0])
    return len(data) if hasattr(data, "__len__") else 1


# ---- the server ----


class Scaffold(FedAvg):  # type: ignore[misc]
    """SCAFFOLD: clients correct their gradients by how they differ from those of all clients.

    Each client keeps its control variate in its state on the node. A client that has lost it starts again from zero.

    Parameters
    ----------
    **options
        As for ``flwr.serverapp.strategy.FedAvg``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._control: Array | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the control variate with the parameters."""
        if self._control is None:
            size = int(config["trained-elements"])
            self._control = np.zeros(size, next(iter(arrays.values())).numpy().dtype)
        self._nodes = len(list(grid.get_node_ids()))
        both = ArrayRecord({**arrays, _CONTROL: _array(self._control)})
        sent: Iterable[Message] = super().configure_train(server_round, both, config, grid)
        return sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the parameters by rows, and add the mean change of the control variates."""
        replies = list(replies)
        changes = []
        for reply in replies:
            if reply.has_content() and _CONTROL in reply.content["arrays"]:
                changes.append(reply.content["arrays"].pop(_CONTROL).numpy())
        arrays, metrics = super().aggregate_train(server_round, replies)
        if changes and self._control is not None:
            self._control = self._control + np.sum(changes, axis=0) / max(self._nodes, len(changes))
            self._control = self._control.astype(changes[0].dtype)
        return arrays, metrics


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
        self.clients: dict[str, dict[str, Any]] = {}
        self.failures: list[str] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Do what the grid does."""
        messages = list(messages)
        for message in messages:
            self.sent += _bytes(message.content)
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        for reply in replies:
            node = str(reply.metadata.src_node_id)
            if reply.has_error():
                self.failures.append(f"node {node}: {reply.error.reason}")
                continue
            self.received += _bytes(reply.content)
            kind = reply.metadata.message_type.split(".")[0]
            for record in reply.content.metric_records.values():
                self.clients.setdefault(node, {})[kind] = dict(record)
        return replies


def _bytes(content: RecordDict) -> int:
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


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
    if as_buffer and frozen:
        raise ValueError("frozen: expected False with as_buffer, whose array holds trained parameters only")
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
        lines = (folder / "rounds.jsonl").open("w", encoding="utf-8")

        def after(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            _set(trainer, arrays)
            found = trainer.evaluate(test, batch_size=256) if test is not None else {}
            if number:
                trainer.save(folder / f"round-{number}.ckpt")
            entry = {
                "round": number,
                "bytes_sent": measured.sent,
                "bytes_received": measured.received,
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
                measured,
                _record(trainer, [_BUFFER] if as_buffer else _names(trainer, frozen)),
                num_rounds=rounds,
                timeout=timeout,
                train_config=ConfigRecord(config),
                evaluate_config=ConfigRecord(config),
                evaluate_fn=after,
            )
        if result.arrays:
            _set(trainer, result.arrays)
        trainer.export(folder / "global.onnx")

    return app
