"""The losses that onnxruntime's artifacts have too."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from ortrain import _graph
from ortrain.onnxblock.blocks import Block
from ortrain.onnxblock.loss._comparison import Comparison, check_reduction
from ortrain.onnxblock.loss._loss import Loss
from ortrain.onnxblock.loss._values import Value
from ortrain.onnxblock.model_accessor import current


class MSELoss(Loss):
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
        super().__init__(reduction)

    def losses(self, prediction: Value, target: Value) -> Value:
        """Return the losses of all elements."""
        return (prediction - target).apply("Pow", 2.0)


class L1Loss(Loss):
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
        super().__init__(reduction)

    def losses(self, prediction: Value, target: Value) -> Value:
        """Return the losses of all elements."""
        return (prediction - target).apply("Abs")


class BCEWithLogitsLoss(Comparison):
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
        names = self._compared(loss_input_name, target_name)
        prediction, target = (Value(self, name, loss_input_name) for name in names)

        def pair(first: Value, second: Value) -> Value:
            return first.unsqueeze([-1]).apply("Concat", second.unsqueeze([-1]), axis=-1)

        scaled = prediction * 0.5
        log_sigmoids = pair(scaled, -scaled).apply("LogSoftmax", axis=-1)
        positive = target
        if self._pos_weight is not None:
            positive = target * self._factor("bceloss.pos_weight", self._pos_weight, loss_input_name)
        loss = -(pair(positive, 1.0 - target) * log_sigmoids).sum([-1])
        if self._weight is not None:
            loss = loss * self._factor("bceloss.weight", self._weight, loss_input_name)
        return str(self._reduce(loss.name))

    def _factor(self, token: str, value: npt.NDArray[Any], like: str) -> Value:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(_graph.element_type(self.base, like))
        return Value(self, self._add_initializer(token, np.asarray(value).astype(dtype)), like)


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
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing must be between 0 and 1, found {label_smoothing}")
        self._smoothing = float(label_smoothing)
        self._reduction = check_reduction(reduction)
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
        return self._smoothed(loss, inputs) if self._smoothing > 0 else loss

    def _smoothed(self, loss: str, inputs: list[str]) -> str:
        """Return a loss in which a part of each label's weight is spread over all classes."""
        scores, labels = inputs[:2]
        logarithms = Value(self, scores, scores).apply("LogSoftmax", axis=1)
        if self._weight is not None:
            shape = [1, -1, *[1] * (len(self._info_of(scores).type.tensor_type.shape.dim) - 2)]
            places = self._add_initializer("celoss.shape", np.array(shape, np.int64))
            logarithms *= Value(self, self._add("Reshape", [inputs[2], places]), scores)
        spread = -logarithms.mean([1])
        kind = _graph.element_type(self.base, scores)
        counted = None
        if self._ignore_index is not None:
            integer = onnx.helper.tensor_dtype_to_np_dtype(self._info_of(labels).type.tensor_type.elem_type)
            ignored = self._add_initializer("celoss.ignored", np.array(self._ignore_index, integer))
            is_counted = self._add("Not", [self._add("Equal", [labels, ignored])])
            counted = Value(self, self._add("Cast", [is_counted], to=kind), scores)
            spread *= counted
            zero = self._add_initializer("celoss.zero", np.array(0, integer))
            labels = self._add("Where", [is_counted, labels, zero])
        if self._reduction == "sum" or (self._reduction == "mean" and (counted or self._weight is not None)):
            spread = spread.total()
        elif self._reduction == "mean":
            spread = spread.apply("ReduceMean", keepdims=0)
        if self._reduction == "mean" and (counted or self._weight is not None):
            shares = counted
            if self._weight is not None:
                gathered = Value(self, self._add("Gather", [inputs[2], labels]), scores)
                shares = gathered if counted is None else gathered * counted
            assert shares is not None
            spread /= shares.total()
        return (Value(self, loss, scores) * (1 - self._smoothing) + spread * self._smoothing).name

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


class TokenCrossEntropyLoss(CrossEntropyLoss):
    """Cross entropy of a language model: the mean over the tokens whose label is not -100.

    The label of a token is the number of the token that follows; :mod:`ortrain.text` makes labels of text.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        How the losses of all tokens are reduced.
    label_smoothing : float, default 0.0
        The part of each label that is spread over the vocabulary.
    """

    def __init__(self, reduction: str = "mean", label_smoothing: float = 0.0) -> None:
        super().__init__(reduction=reduction, ignore_index=-100, axis=-1, label_smoothing=label_smoothing)
