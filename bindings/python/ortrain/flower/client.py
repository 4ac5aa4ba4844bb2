"""The client: trains artifacts on its own data when the server asks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ortrain.flower.client_replies import arrays_problem
from ortrain.flower.records import (
    CONTROL,
    Array,
    array,
    flat,
    readers_of,
    record_of,
    set_parameters,
    specs_of,
)
from ortrain.flower.secure import instructions, is_masked, to_be_masked
from ortrain.trainer import Metric, Trainer

StrPath = str | os.PathLike[str]
Data = Callable[[Context], tuple[Any, Any]]


class _CorrectedOptimizer:
    """An optimizer that adds something to the gradients before each step."""

    def __init__(self, trainer: Trainer, proximal: float, control: Array | None) -> None:
        self._optimizer, self._module = trainer.optimizer, trainer.module
        self._start, self._proximal, self._control = flat(trainer), proximal, control
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
        Values to compute besides the loss; only numbers are sent.
    mods : list of callable, default ()
        Flower's modules, which training goes through: those of ``flwr.clientapp.mod`` for differential privacy, and
        ``flwr.client.mod.secaggplus_mod`` for secure aggregation.
    threads : int, default 1
        Threads of a step.

    Returns
    -------
    flwr.clientapp.ClientApp
        The client.
    """
    app = ClientApp()

    def opened(message: Message) -> tuple[Trainer, list[str], Any]:
        arrays, config = instructions(message)
        rate = config.get("learning-rate")
        seed = int(config.get("seed", 0)) + int(config.get("server-round", 0))
        trainer = Trainer(artifacts, learning_rate=rate, metrics=metrics, seed=seed, threads=threads)
        return trainer, set_parameters(trainer, arrays), config

    def reply(message: Message, values: dict[str, Any], count: int, arrays: ArrayRecord | None) -> Message:
        numbers = {name: float(value) for name, value in values.items() if isinstance(value, float)}
        record = MetricRecord({**numbers, "num-examples": count})
        content = RecordDict({"metrics": record})
        if arrays is not None and is_masked(message):
            content = to_be_masked(arrays, record, count)
        elif arrays is not None:
            content["arrays"] = arrays
        return Message(content=content, reply_to=message)

    @app.train(mods=list(mods))  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        trainer, names, config = opened(message)
        received, _ = instructions(message)
        control = correction = None
        if CONTROL in received:
            control = correction = received[CONTROL].numpy()
            kept = context.state.array_records.get(CONTROL)
            if kept is not None:
                correction = control - kept[CONTROL].numpy()
        proximal = float(config.get("proximal-mu", 0.0))
        corrected = None
        if proximal or control is not None:
            corrected = _CorrectedOptimizer(trainer, proximal, correction)
            trainer.optimizer = corrected  # type: ignore[assignment]
        history = trainer.fit(
            data(context)[0],
            int(config.get("local-epochs", 1)),
            batch_size=int(config.get("batch-size", 32)),
            verbose=False,
        )
        arrays = record_of(trainer, names)
        if corrected is not None and control is not None:
            # With SGD, the mean gradient is option II of the SCAFFOLD paper, (start - end) / (steps * rate), plus the
            # corrections that the steps added. The mean gradient does not depend on the optimizer.
            renewed = (corrected.gradient_sum / corrected.steps).astype(control.dtype)
            context.state[CONTROL] = ArrayRecord({CONTROL: array(renewed)})
            arrays[CONTROL] = array(renewed)
        problem = arrays_problem(readers_of(arrays), specs_of(received))
        if problem:
            raise ValueError(f"training: {problem}; nothing is sent, try a lower learning rate")
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
    """Return the number of rows of data; 1 if the data have no rows."""
    if isinstance(data, dict):
        data = tuple(data.values())
    if isinstance(data, tuple):
        return len(data[0])
    return len(data) if hasattr(data, "__len__") else 1
