"""Losses of sequences whose labels have no positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ortrain import _graph
from ortrain.onnxblock.loss._loss import SeveralInputs
from ortrain.onnxblock.loss._values import Value
from ortrain.onnxblock.model_accessor import current

#: Stands for the logarithm of probability 0; sums of several stay finite.
_NONE = -1e30


class CTCLoss(SeveralInputs):
    """The negative log-likelihood of labels, over all their alignments with the scores of a longer sequence.

    A. Graves et al., "Connectionist temporal classification", 2006, as in PyTorch: the mean is over the losses divided by the
    lengths of their targets. The likelihood is computed in the log domain, step by step, with operators of ONNX.

    Parameters
    ----------
    blank : int, default: 0
        The class of no label.
    reduction : {"mean", "sum", "none"}
        How the losses of all samples are reduced.
    zero_infinity : bool, default: False
        Whether samples without an alignment, whose sequence is too short, have no loss. Otherwise it is 1e30.
    batch_first : bool, default: False
        Whether the scores have the shape [batch, time, classes], not [time, batch, classes].

    Raises
    ------
    ValueError
        For another reduction or a negative blank.
    """

    outputs = 1

    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
        batch_first: bool = False,
    ) -> None:
        super().__init__(reduction)
        if blank < 0:
            raise ValueError(f"blank must be a class index, found {blank}")
        self._blank, self._is_mean = blank, reduction == "mean"
        self._zero_infinity, self._batch_first = zero_infinity, batch_first

    def build(
        self,
        scores_name: str,
        target_name: str = "target",
        input_lengths_name: str = "input_lengths",
        target_lengths_name: str = "target_lengths",
    ) -> str:
        """Add the loss.

        Parameters
        ----------
        scores_name : str
            Name of the scores, logits or logarithms of probabilities.
        target_name, input_lengths_name, target_lengths_name : str
            Names of the classes, of shape [batch, longest], with any class after the end of a target, and of the
            lengths, of shape [batch]: new int64 inputs if there are no such values.

        Returns
        -------
        str
            Name of the loss.
        """
        shapes = {target_name: [None, None], input_lengths_name: [None], target_lengths_name: [None]}
        for name, shape in shapes.items():
            if not _graph.value_exists(self.base, name):
                self.base.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, shape))
        scores = Value(self, scores_name, scores_name).apply("LogSoftmax", axis=-1)
        if self._batch_first:
            scores = scores.apply("Transpose", perm=[1, 0, 2])
        target, of_inputs, of_targets = (
            Value(self, name, scores_name) for name in (target_name, input_lengths_name, target_lengths_name)
        )
        states = self._states(target)
        last = self._aligned(scores, states, of_inputs)
        losses = -self._ends(last, of_targets)
        if self._zero_infinity:
            losses = losses.where(losses.apply("Less", -_NONE / 1e10), 0.0)
        if self._is_mean:
            losses /= of_targets.cast().maximum(1.0)
        return str(self._reduce(losses.name))

    def _integers(self, *numbers: int) -> Value:
        return Value(self, self._add_initializer("ctc", np.array(numbers, np.int64)), "")

    def _states(self, target: Value) -> Value:
        """Return the classes of the states, [batch, 2 longest + 1]: a blank before and after each label."""
        blanks = target - target + self._integers(self._blank)
        pairs = self._concatenated([blanks.unsqueeze([2]), target.unsqueeze([2])], 2)
        one = blanks.apply("Gather", self._integers(0), axis=1)
        return self._concatenated([pairs.apply("Flatten", axis=1), one], 1)

    def _concatenated(self, values: list[Value], axis: int) -> Value:
        first, *others = values
        return first.apply("Concat", *others, axis=axis)

    def _aligned(self, scores: Value, states: Value, lengths: Value) -> Value:
        """Return, for each sequence, the logarithms of the probabilities of the states after its last step.

        All values of a step have the shape [batch, states]. The gradient of Scan must know that these shapes are equal, so all
        values are computed from one value, `places`, of shape [time, batch, states].
        """
        blank, zero, one = self._integers(self._blank), self._integers(0), self._integers(1)
        shape = self._concatenated([self._size(scores, 0), states.apply("Shape")], 0)
        places = states.apply("Expand", shape)
        ones = places - places + one
        times, batches = self._counted(ones, 0), self._counted(ones, 1)
        emitted = scores.apply("GatherElements", places, axis=2)
        is_read = times.apply("Less", lengths.apply("Gather", batches))
        first = Value(self, self._scalar(0), scores.like)
        states, ones = places.apply("Gather", first), ones.apply("Gather", first)
        columns = self._counted(ones, 1)
        from_one, from_two = (
            (columns.apply("Gather", first) - self._integers(by)).maximum(zero) for by in (1, 2)
        )
        # A label may directly follow the label before, without a blank, if the two differ.
        stays = states.apply("Equal", states.apply("Gather", from_two, axis=1)).apply(
            "Or", states.apply("Equal", blank)
        )
        stays = stays.apply("Or", columns.apply("LessOrEqual", one))
        chosen = [scores.number(x) for x in (_NONE, 0.0)]
        one_ahead, start = (chosen[k].where(columns.apply("Equal", zero), chosen[1 - k]) for k in (0, 1))
        return self._scanned(
            start, [from_one, one_ahead, from_two, chosen[0].where(stays, chosen[1])], emitted, is_read
        )

    def _counted(self, ones: Value, axis: int) -> Value:
        """Return the index of each element along a dimension."""
        return ones.apply("CumSum", Value(self, self._scalar(axis), ones.like), exclusive=1)

    def _size(self, value: Value, axis: int) -> Value:
        return value.apply("Shape").apply("Gather", self._integers(axis))

    def _scalar(self, number: int) -> str:
        return self._add_initializer("ctc", np.array(number, np.int64))

    def _scanned(self, start: Value, moves: list[Value], emitted: Value, is_read: Value) -> Value:
        """Add the recursion: a state is reached from itself, or from one of the two states before it."""
        kind, name = _graph.element_type(self.base, start.like), current().new_name("ctc")
        nodes: list[onnx.NodeProto] = []

        def add(op_type: str, *inputs: str, **attributes: Any) -> str:
            output = f"{name}.{op_type}_{len(nodes)}"
            nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
            return output

        before, emission, read = f"{name}.before", f"{name}.emission", f"{name}.is_read"
        ways = [before]
        for places, allowed in (moves[:2], moves[2:]):
            ways.append(add("Add", add("Gather", before, places.name, axis=1), allowed.name))
        largest = add("Max", *ways)
        shares = [add("Exp", add("Sub", way, largest)) for way in ways]
        reached = add("Add", largest, add("Log", add("Add", add("Add", *shares[:2]), shares[2])))
        after = add("Where", read, add("Add", reached, emission), before)
        kinds = {before: kind, emission: kind, read: TensorProto.BOOL}
        body = helper.make_graph(
            nodes,
            name,
            [helper.make_tensor_value_info(value, of, [None, None]) for value, of in kinds.items()],
            [helper.make_tensor_value_info(after, kind, [None, None])],
        )
        inputs = [start.name, emitted.name, is_read.name]
        return Value(self, self._add("Scan", inputs, body=body, num_scan_inputs=2), start.like)

    def _ends(self, last: Value, lengths: Value) -> Value:
        """Return the logarithms of the likelihoods of sequences that end in the last label or in the blank after it."""
        places = lengths.unsqueeze([1]) * self._integers(2) + self._integers(0, -1)
        zero = self._integers(0)
        reached = last.apply("GatherElements", places.maximum(zero), axis=1)
        # Without labels, the only state is the blank.
        return reached.where(places.apply("GreaterOrEqual", zero), _NONE).log_sum_exp([1])
