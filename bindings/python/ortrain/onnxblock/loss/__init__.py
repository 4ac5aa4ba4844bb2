"""Loss functions.

Each block adds the loss to the registered model, and an input for the target unless the model has a value with
that name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from ortrain import _graph
from ortrain.onnxblock.blocks import Abs, Block, InputLike, Neg, PassThrough, Pow, ReduceMean, ReduceSum, Sub
from ortrain.onnxblock.model_accessor import current

__all__ = ["BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss"]

_REDUCTIONS = ("mean", "sum", "none")


def _check_reduction(reduction: str) -> str:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(_REDUCTIONS)}, not {reduction!r}")
    return reduction


def _reduction_block(reduction: str) -> Block:
    if reduction == "mean":
        return ReduceMean(keepdims=False)
    return ReduceSum(keepdims=False) if reduction == "sum" else PassThrough()


class _Comparison(Block):
    """A loss between a prediction and a target of the same type and shape."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self._reduce = _reduction_block(_check_reduction(reduction))

    def _target(self, loss_input_name: str, target_name: str) -> str:
        if _graph.value_exists(self.base, target_name):
            return target_name
        return str(InputLike(loss_input_name)(target_name))

    def _compared(self, loss_input_name: str, target_name: str) -> tuple[str, str]:
        """Return prediction and target, which are rejected in a step if their shapes differ.

        The declared shape of the target does that, if it is known. Otherwise both go through a Concat, because the operators
        of the loss would broadcast shapes such as [batch] and [batch, 1] to [batch, batch].
        """
        target = self._target(loss_input_name, target_name)
        if self._has_known_shape(loss_input_name) and self._has_known_shape(target):
            return loss_input_name, target
        axis = self._add_initializer("first_axis", np.array([0], np.int64))
        both = []
        for value in (loss_input_name, target):
            if (_graph.opset_of(self.base) or 13) >= 13:
                both.append(self._add("Unsqueeze", [value, axis]))
            else:
                both.append(self._add("Unsqueeze", [value], axes=[0]))
        pair = self._add("Concat", both, "prediction_and_target", axis=0)
        numbers = [self._add_initializer("number", np.array(number, np.int64)) for number in (0, 1)]
        return self._add("Gather", [pair, numbers[0]], axis=0), self._add(
            "Gather", [pair, numbers[1]], axis=0
        )

    def _has_known_shape(self, name: str) -> bool:
        """Return whether the model states every dimension of a value."""
        info = _graph.find_value_info(self.base, name)
        if info is None or not info.type.tensor_type.HasField("shape"):
            return False
        return all(dim.HasField("value") for dim in info.type.tensor_type.shape.dim)


class _Difference(_Comparison):
    """A loss that is a function of the difference between prediction and target."""

    def __init__(self, reduction: str, of_difference: Block) -> None:
        super().__init__(reduction)
        self._sub, self._of_difference = Sub(), of_difference

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Add the loss.

        Parameters
        ----------
        loss_input_name : str
            Name of the prediction.
        target_name : str, default: "target"
            Name of the target; a new input of the prediction's type and shape if there is no such value.

        Returns
        -------
        str
            Name of the loss.
        """
        prediction, target = self._compared(loss_input_name, target_name)
        return str(self._reduce(self._of_difference(self._sub(prediction, target))))


class MSELoss(_Difference):
    """Mean squared error, ``reduce((input - target)²)``.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        How the losses of all elements are reduced. Training needs a scalar: "none" is for losses composed of
        several blocks.

    Raises
    ------
    ValueError
        For another reduction.
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction, Pow(2.0))


class L1Loss(_Difference):
    """Mean absolute error, ``reduce(|input - target|)``.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        How the losses of all elements are reduced.

    Raises
    ------
    ValueError
        For another reduction.
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction, Abs())


class BCEWithLogitsLoss(_Comparison):
    """Binary cross entropy of logits, ``reduce(-w · (p · t · log sigmoid(x) + (1 - t) · log sigmoid(-x)))``.

    The two logarithms are the log-softmax of the pair (x/2, -x/2), which is finite for every finite x and
    has the right derivative everywhere, whereas the logarithm of a sigmoid overflows for |x| of about 90.

    Parameters
    ----------
    weight : numpy.ndarray, optional
        w, a factor that broadcasts to the shape of the prediction.
    reduction : {"mean", "sum", "none"}
        How the losses of all elements are reduced.
    pos_weight : numpy.ndarray, optional
        p, a factor for the positive class that broadcasts to the shape of the prediction.

    Raises
    ------
    ValueError
        For another reduction.
    """

    def __init__(
        self,
        weight: npt.NDArray[Any] | None = None,
        reduction: str = "mean",
        pos_weight: npt.NDArray[Any] | None = None,
    ) -> None:
        super().__init__(reduction)
        self._weight = weight
        self._pos_weight = pos_weight
        self._neg = Neg()

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Add the loss.

        Parameters
        ----------
        loss_input_name : str
            Name of the logits, x.
        target_name : str, default: "target"
            Name of the target, t, between 0 and 1; a new input of the type and shape of the logits if
            there is no such value.

        Returns
        -------
        str
            Name of the loss.
        """
        prediction, target = self._compared(loss_input_name, target_name)
        axes_as_input = (_graph.opset_of(self.base) or 13) >= 13
        last_axis = self._add_initializer("bceloss.axis", np.array([-1], np.int64))

        def stretched(value: str) -> str:
            if axes_as_input:
                return self._add("Unsqueeze", [value, last_axis])
            return self._add("Unsqueeze", [value], axes=[-1])

        def pair(first: str, second: str) -> str:
            return self._add("Concat", [stretched(first), stretched(second)], axis=-1)

        half = self._add_number("bceloss.half", 0.5, loss_input_name)
        scaled = self._add("Mul", [prediction, half])
        log_sigmoids = self._add("LogSoftmax", [pair(scaled, self._neg(scaled))], axis=-1)

        positive = target
        if self._pos_weight is not None:
            positive = self._add(
                "Mul", [target, self._constant("bceloss.pos_weight", self._pos_weight, loss_input_name)]
            )
        one = self._add_number("bceloss.one", 1.0, target)
        weights = pair(positive, self._add("Sub", [one, target]))
        terms = self._add("Mul", [weights, log_sigmoids])
        if axes_as_input:
            likelihood = self._add("ReduceSum", [terms, last_axis], keepdims=0)
        else:
            likelihood = self._add("ReduceSum", [terms], axes=[-1], keepdims=0)
        loss = str(self._neg(likelihood))
        if self._weight is not None:
            loss = self._add("Mul", [loss, self._constant("bceloss.weight", self._weight, loss_input_name)])
        return str(self._reduce(loss))

    def _constant(self, token: str, value: npt.NDArray[Any], like: str) -> str:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(_graph.element_type(self.base, like))
        return self._add_initializer(token, np.asarray(value).astype(dtype))


class CrossEntropyLoss(Block):
    """Cross entropy of scores and class indices (operator SoftmaxCrossEntropyLoss).

    Parameters
    ----------
    weight : numpy.ndarray, optional
        A factor for each class, of shape [classes].
    reduction : {"mean", "sum", "none"}
        How the losses of all elements are reduced. The mean is weighted.
    ignore_index : int, optional
        A class index whose elements contribute neither to the loss nor to the gradient.
    axis : {1, -1}, default: 1
        The dimension of the scores that has the classes: the second one, as in PyTorch, or the last one, as in Keras and in
        language models, whose scores have the shape [batch, tokens, classes].

    Raises
    ------
    ValueError
        For another reduction or axis, or a weight that is not of rank 1.
    """

    def __init__(
        self,
        weight: npt.NDArray[Any] | None = None,
        reduction: str = "mean",
        ignore_index: int | None = None,
        axis: int = 1,
    ) -> None:
        super().__init__()
        self._reduction = _check_reduction(reduction)
        if axis not in (1, -1):
            raise ValueError(f"axis: expected 1 or -1, found {axis!r}")
        self._axis = axis
        if weight is not None and np.ndim(weight) != 1:
            raise ValueError(
                f"weight must have one value per class, shape [classes], not {list(np.shape(weight))}"
            )
        self._weight = weight
        self._ignore_index = ignore_index

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Add the loss.

        Parameters
        ----------
        scores_input_name : str
            Name of the scores (logits), of shape [batch, classes, ...], or [batch, ..., classes] if the axis is -1.
        labels_name : str, default: "labels"
            Name of the class indices; a new int64 input of shape [batch, ...] if there is no such value.

        Returns
        -------
        str
            Name of the loss.

        Raises
        ------
        LookupError
            When type and shape of the scores are unknown.
        """
        accessor = current()
        if not _graph.value_exists(self.base, labels_name):
            self._add_labels(scores_input_name, labels_name)
        inputs = [self._with_classes_second(scores_input_name), labels_name]
        if self._weight is not None:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(_graph.element_type(self.base, scores_input_name))
            inputs.append(self._add_initializer("celoss.weight", np.asarray(self._weight).astype(dtype)))
        loss, log_prob = accessor.new_name("loss"), accessor.new_name("log_prob")
        attributes: dict[str, Any] = {"reduction": self._reduction}
        if self._ignore_index is not None:
            attributes["ignore_index"] = self._ignore_index
        name = accessor.new_name("SoftmaxCrossEntropyLoss")
        # The gradient is computed from the second output.
        node = onnx.helper.make_node(
            "SoftmaxCrossEntropyLoss", inputs, [loss, log_prob], name=name, **attributes
        )
        self.base.graph.node.append(node)
        return loss

    def _with_classes_second(self, scores: str) -> str:
        """Return scores with the classes in the second dimension, where the operator expects them."""
        if self._axis == 1:
            return scores
        shape = self._info_of(scores).type.tensor_type
        rank = len(shape.shape.dim)
        if not shape.HasField("shape"):
            raise LookupError(f"axis -1 of {scores!r}: the model does not declare the shape of this value")
        return (
            scores if rank < 3 else self._add("Transpose", [scores], perm=[0, rank - 1, *range(1, rank - 1)])
        )

    def _info_of(self, scores: str) -> onnx.ValueInfoProto:
        info = _graph.find_value_info(self.base, scores)
        if info is None:
            raise LookupError(
                f"cannot add the labels of {scores!r}: "
                "the model does not declare the type and shape of such a value"
            )
        return info

    def _add_labels(self, scores: str, labels: str) -> None:
        info = self._info_of(scores)
        shape = info.type.tensor_type.shape
        if info.type.tensor_type.HasField("shape") and len(shape.dim) < 2:
            raise ValueError(
                f"cross entropy needs scores of shape [batch, classes, ...], "
                f"but {scores!r} has rank {len(shape.dim)}"
            )
        tensor = _graph.add_input_like(self.base, info, labels).type.tensor_type
        tensor.elem_type = TensorProto.INT64
        if tensor.shape.dim:
            del tensor.shape.dim[self._axis]
