"""Secure aggregation with Flower's SecAgg+: the server learns the mean of the parameters, but not the parameters of any client.

Flower's modules for it, ``SecAggPlusWorkflow`` and ``secaggplus_mod``, exchange keys and masked vectors in messages, but wrap
parameters in the records of Flower's older API and ask a strategy of that API. This file translates between the two APIs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Parameters,
    Status,
    bytes_to_ndarray,
    parameters_to_ndarrays,
)
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Stage
from flwr.common.secure_aggregation.secaggplus_constants import Key as SecAggKey
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid

from ortrain.flower.client_replies import COUNT, ArraySpec, arrays_problem, entries_problem, metrics_problem
from ortrain.flower.records import BUFFER, array

_NUMPY = "numpy.ndarray"
_LISTS = {
    Stage.SHARE_KEYS: (SecAggKey.DESTINATION_LIST, SecAggKey.CIPHERTEXT_LIST),
    Stage.UNMASK: (SecAggKey.NODE_ID_LIST, SecAggKey.SHARE_LIST),
}
_log = logging.getLogger(__name__)


# ---- on the client ----


def is_masked(message: Message) -> bool:
    """Return whether a message is one of secure aggregation."""
    return "fitins.parameters" in message.content.array_records


def instructions(message: Message) -> tuple[ArrayRecord, Mapping[str, Any]]:
    """Return the parameters and the configuration of a message."""
    content = message.content
    if is_masked(message):
        [values] = content.array_records["fitins.parameters"].values()
        return ArrayRecord({BUFFER: values}), content.config_records["fitins.config"]
    return content["arrays"], content.config_records.get("config", {})


def to_be_masked(arrays: ArrayRecord, metrics: MetricRecord, count: int) -> RecordDict:
    """Return a reply whose parameters ``secaggplus_mod`` masks."""
    parameters = Parameters([arrays[BUFFER].data], _NUMPY)
    content: RecordDict = compat.fitres_to_recorddict(
        FitRes(Status(Code.OK, ""), parameters, count, {}), False
    )
    content["metrics"] = metrics
    return content


# ---- on the server ----


class SecureGrid:
    """A grid that sends instructions to train through a workflow of secure aggregation.

    In the place of each client's parameters it returns their mean by rows, so that strategies which average by rows average
    equal values. The grid lists failures and has ``leave_out``, for replies that the protocol cannot use.
    """

    def __init__(self, grid: Any, workflow: Any, context: Context) -> None:
        self._grid, self._workflow, self._context = grid, workflow, context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages; those of training go through the protocol."""
        asked = list(messages)
        if not asked or asked[0].metadata.message_type.split(".")[0] != "train":
            return list(self._grid.send_and_receive(asked, timeout=timeout))
        replies: list[Message] = []
        while asked:
            strategy = _OneRound(asked, self._workflow.max_weight)
            try:
                self._run(strategy, timeout)
            except _LeftEarly as left:
                asked = [message for message in asked if message.metadata.dst_node_id not in left.nodes]
                continue
            except Exception as error:  # Flower's code handles messages of clients without checking them
                _log.warning("secure aggregation ended without a mean", exc_info=True)
                self._grid.failures.append(f"secure aggregation: {type(error).__name__}: {error}")
                return []
            replies = strategy.replies()
            break
        if not replies:
            self._grid.failures.append(
                "secure aggregation: too few clients completed the protocol to compute a mean"
            )
        return replies

    def _run(self, strategy: _OneRound, timeout: float | None) -> None:
        context = Context(
            self._context.run_id,
            self._context.node_id,
            self._context.node_config,
            RecordDict(),
            self._context.run_config,
        )
        legacy = LegacyContext(context, strategy=strategy, client_manager=strategy)
        legacy.state[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: strategy.round})
        legacy.state[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(Parameters([], _NUMPY), True)
        self._workflow.timeout = timeout
        self._workflow(_Replies(self._grid, strategy), legacy)


class _LeftEarly(Exception):
    """Clients have left before they sent shares of their keys to the other clients.

    The workflow would continue, let the other clients train, and fail when it requests those shares. So the round begins again
    without the clients that left.
    """

    def __init__(self, nodes: set[int]) -> None:
        super().__init__(nodes)
        self.nodes = nodes


class _Replies:
    """The grid of one round. It keeps the values that clients report beside the masked vector."""

    def __init__(self, grid: Grid, strategy: _OneRound) -> None:
        self._grid, self._strategy = grid, strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def _problem(self, stage: str, reply: Message) -> str:
        """Return why the protocol cannot use a reply; an empty text if it can."""
        entries = reply.content.config_records.get(RECORD_KEY_CONFIGS, {})
        if stage == Stage.COLLECT_MASKED_VECTORS:
            return self._strategy.masked_problem(reply.content, entries)
        if stage == Stage.SETUP:
            return entries_problem(entries, {SecAggKey.PUBLIC_KEY_1: bytes, SecAggKey.PUBLIC_KEY_2: bytes})
        numbers, shares = _LISTS[stage]
        return entries_problem(entries, {numbers: int, shares: bytes}, paired=True)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        sent = list(messages)
        stages = {message.content[RECORD_KEY_CONFIGS][SecAggKey.STAGE] for message in sent}
        found = list(self._grid.send_and_receive(sent, timeout=timeout))
        asked = {message.metadata.dst_node_id: message for message in sent}
        for place, reply in enumerate(found):
            message = asked.get(reply.metadata.src_node_id)
            if reply.has_content() and message is not None:
                problem = self._problem(message.content[RECORD_KEY_CONFIGS][SecAggKey.STAGE], reply)
                if problem:
                    found[place] = self._grid.leave_out(message, problem)
        if stages <= {Stage.SETUP, Stage.SHARE_KEYS}:
            there = {reply.metadata.src_node_id for reply in found if reply.has_content()}
            left = {message.metadata.dst_node_id for message in sent} - there
            if left:
                raise _LeftEarly(left)
        for reply in found:
            if reply.has_content() and "metrics" in reply.content.metric_records:
                self._strategy.metrics[reply.metadata.src_node_id] = reply.content.metric_records["metrics"]
        return found


class _OneRound:
    """The strategy and the manager of clients for the workflow: it has the messages of one round and keeps their result."""

    def __init__(self, messages: list[Message], max_weight: float) -> None:
        self._max_weight = max_weight
        self._asked = {message.metadata.dst_node_id: message for message in messages}
        self.round = int(messages[0].content["config"]["server-round"])
        self.metrics: dict[int, MetricRecord] = {}
        self._mean: FlowerArray | None = None
        self._nodes: list[int] = []
        for message in messages:
            names = list(message.content["arrays"])
            if names != [BUFFER]:
                raise ValueError(
                    "secure aggregation sends one array of parameters, which fits strategies that only average "
                    f"parameters; this strategy sends {', '.join(names)}"
                )

    def masked_problem(self, content: RecordDict, entries: Mapping[str, Any]) -> str:
        """Return the fault of a masked vector or of the values beside it; an empty text if there is none.

        A masked vector does not show whether the parameters are finite, so each client checks its own.
        """
        [message, *_] = self._asked.values()
        size = message.content["arrays"][BUFFER].numpy().size
        parts = entries.get(SecAggKey.MASKED_PARAMETERS)
        if not isinstance(parts, list) or not all(isinstance(part, bytes) for part in parts):
            return "expected a masked vector, found none"
        # The vector of Flower's module has the weight first, and then each array.
        readers = {f"part {number}": partial(bytes_to_ndarray, part) for number, part in enumerate(parts)}
        whole = np.dtype(np.int64)
        expected = {"part 0": ArraySpec((1,), whole), "part 1": ArraySpec((size,), whole)}
        problem = arrays_problem(readers, expected, "the masked vector")
        if problem:
            return problem
        if "metrics" not in content.metric_records:
            return "expected a record of metrics, found none"
        report = content.metric_records["metrics"]
        problem = metrics_problem(report, self._max_weight)
        if problem:
            return f"{problem}; the highest number is the max_weight of SecAggPlusWorkflow"
        try:
            result = compat.recorddict_to_fitres(content, True)
        except Exception as error:
            # invalid records are the fault of this client and must not stop the server
            return f"expected the records that secaggplus_mod sends beside the vector: {type(error).__name__}: {error}"[
                :300
            ]
        if result.num_examples != report[COUNT]:
            return f"{COUNT}: found {result.num_examples} as the weight and {report[COUNT]} in the metrics"
        return ""

    def num_available(self) -> int:
        """Return how many clients there are."""
        return len(self._asked)

    def configure_fit(self, *_: Any) -> list[tuple[Any, FitIns]]:
        """Return the instruction for each client."""
        return [
            (
                SimpleNamespace(node_id=node),
                FitIns(
                    Parameters([message.content["arrays"][BUFFER].data], _NUMPY),
                    dict(message.content["config"]),
                ),
            )
            for node, message in self._asked.items()
        ]

    def aggregate_fit(
        self, server_round: int, results: list[tuple[Any, FitRes]], failures: Any
    ) -> tuple[None, Any]:
        """Keep the mean of the parameters. The workflow has put the mean in place of each client's parameters."""
        [values] = parameters_to_ndarrays(results[0][1].parameters)
        self._mean = array(values)
        self._nodes = [proxy.node_id for proxy, _ in results]
        return None, {}

    def replies(self) -> list[Message]:
        """Return a reply of each client whose parameters are part of the mean."""
        return [
            Message(
                content=RecordDict(
                    {"arrays": ArrayRecord({BUFFER: self._mean}), "metrics": self.metrics[node]}
                ),
                reply_to=self._asked[node],
            )
            for node in self._nodes
        ]
