"""Losses between embeddings."""

from __future__ import annotations

from abc import abstractmethod

import onnx

from ortrain import _graph
from ortrain.onnxblock.loss._loss import SeveralInputs, add_batch_input
from ortrain.onnxblock.loss._values import Value


def _dot(a: Value, b: Value) -> Value:
    return (a * b).sum([-1])


def _unit(a: Value) -> Value:
    return a / (_dot(a, a) + 1e-12).apply("Sqrt").unsqueeze([-1])


def _distance(a: Value, b: Value, eps: float) -> Value:
    difference = a - b + eps
    return _dot(difference, difference).apply("Sqrt")


class _OfPairs(SeveralInputs):
    """A loss between two embeddings and a target for each pair."""

    @abstractmethod
    def losses(self, a: Value, b: Value, target: Value) -> Value:
        """Add the losses of all pairs."""

    def build(self, first_name: str, second_name: str, target_name: str = "target") -> str:
        """Add the loss.

        Parameters
        ----------
        first_name, second_name : str
            Names of the embeddings, of shape [batch, features].
        target_name : str, default: "target"
            Name of the targets, a new input of shape [batch] if there is no such value.

        Returns
        -------
        str
            Name of the loss.
        """
        add_batch_input(self, target_name, _graph.element_type(self.base, first_name))
        a, b, target = (Value(self, name, first_name) for name in (first_name, second_name, target_name))
        return str(self._reduce(self.losses(a, b, target).name))


class CosineEmbeddingLoss(_OfPairs):
    """``1 - cos(a, b)`` for pairs with the target 1, and ``max(0, cos(a, b) - margin)`` for those with the target -1.

    Parameters
    ----------
    margin : float, default: 0.0
        Between -1 and 1.
    reduction : {"mean", "sum", "none"}
        How the losses of all pairs are reduced.
    """

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        if not -1 <= margin <= 1:
            raise ValueError(f"margin must be between -1 and 1, found {margin}")
        self._margin = margin

    def losses(self, a: Value, b: Value, target: Value) -> Value:
        """Return the losses of all pairs."""
        tiny = 1e-12 if _graph.element_type(self.base, a.name) != onnx.TensorProto.FLOAT16 else 1e-4
        cosine = _dot(a, b) / ((_dot(a, a) + tiny) * (_dot(b, b) + tiny)).apply("Sqrt")
        similar = (target + 1.0) * 0.5
        return similar * (1.0 - cosine) + (1.0 - similar) * (cosine - self._margin).apply("Relu")


class ContrastiveLoss(_OfPairs):
    """``d² / 2`` for pairs with the target 1, and ``max(0, margin - d)² / 2`` for those with the target 0.

    d is the Euclidean distance. R. Hadsell et al., "Dimensionality reduction by learning an invariant mapping", 2006, where the
    targets are 0 for similar pairs and 1 for others.

    Parameters
    ----------
    margin : float, default: 1.0
        The distance beyond which pairs with the target 0 do not count.
    reduction : {"mean", "sum", "none"}
        How the losses of all pairs are reduced.
    """

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        if not margin > 0:
            raise ValueError(f"margin must be a positive number, found {margin}")
        self._margin = margin

    def losses(self, a: Value, b: Value, target: Value) -> Value:
        """Return the losses of all pairs."""
        distance = _distance(a, b, 1e-6)
        apart = (self._margin - distance).apply("Relu")
        return (target * distance * distance + (1.0 - target) * apart * apart) * 0.5


class TripletMarginLoss(SeveralInputs):
    """``max(0, ‖a - p‖ - ‖a - n‖ + margin)`` of an anchor a, a similar embedding p and another one n.

    V. Balntas et al., "Learning local feature descriptors with triplets and shallow convolutional neural networks", 2016.

    Parameters
    ----------
    margin : float, default: 1.0
        By how much the other embedding should be farther away.
    reduction : {"mean", "sum", "none"}
        How the losses of all triplets are reduced.
    """

    outputs = 3
    has_target = False

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._margin = margin

    def build(self, anchor_name: str, positive_name: str, negative_name: str) -> str:
        """Add the loss.

        Parameters
        ----------
        anchor_name, positive_name, negative_name : str
            Names of the embeddings, of shape [batch, features].

        Returns
        -------
        str
            Name of the loss.
        """
        anchor, positive, negative = (
            Value(self, name, anchor_name) for name in (anchor_name, positive_name, negative_name)
        )
        apart = _distance(anchor, positive, 1e-6) - _distance(anchor, negative, 1e-6)
        return str(self._reduce((apart + self._margin).apply("Relu").name))


class _OfSimilarities(SeveralInputs):
    """A loss of the cosine similarities of embeddings, divided by a temperature."""

    def __init__(self, temperature: float = 0.1, reduction: str = "mean") -> None:
        super().__init__(reduction)
        if not temperature > 0:
            raise ValueError(f"temperature must be a positive number, found {temperature}")
        self._temperature = temperature

    def _similarities(self, a: Value, b: Value) -> Value:
        """Return the similarity of each row of a to each row of b; rows are unit vectors."""
        return a.apply("MatMul", b.apply("Transpose", perm=[1, 0])) / self._temperature

    def _exponentials(self, similarities: Value) -> Value:
        """Return the exponentials, divided by the exponential of the largest possible similarity, so that they are at most 1."""
        return (similarities - self._largest).apply("Exp")

    @property
    def _largest(self) -> float:
        return 1 / self._temperature


class InfoNCELoss(_OfSimilarities):
    """Cross entropy of the cosine similarities of each embedding to all of a second kind; the one in the same row is correct.

    A. van den Oord et al., "Representation learning with contrastive predictive coding", 2018.

    Parameters
    ----------
    temperature : float, default: 0.1
        By which similarities are divided.
    reduction : {"mean", "sum", "none"}
        How the losses of all rows are reduced.
    """

    has_target = False

    def build(self, first_name: str, second_name: str) -> str:
        """Add the loss.

        Parameters
        ----------
        first_name, second_name : str
            Names of the embeddings, of shape [batch, features].

        Returns
        -------
        str
            Name of the loss.
        """
        a, b = (Value(self, name, first_name) for name in (first_name, second_name))
        a, b = _unit(a), _unit(b)
        normalizer = self._exponentials(self._similarities(a, b)).sum([1]).apply("Log") + self._largest
        losses = normalizer - _dot(a, b) / self._temperature
        return str(self._reduce(losses.name))


class SupConLoss(_OfSimilarities):
    """Cross entropy of the cosine similarities of each embedding to all others; those with the same label are correct.

    P. Khosla et al., "Supervised contrastive learning", 2020, their loss L_out. An embedding with a label that occurs
    once has a loss of 0, which counts in the mean.

    Parameters
    ----------
    temperature : float, default: 0.1
        By which similarities are divided.
    reduction : {"mean", "sum", "none"}
        How the losses of all rows are reduced.
    """

    outputs = 1

    def build(self, embeddings_name: str, labels_name: str = "labels") -> str:
        """Add the loss.

        Parameters
        ----------
        embeddings_name : str
            Name of the embeddings, of shape [batch, features].
        labels_name : str, default: "labels"
            Name of the labels, a new int64 input of shape [batch] if there is no such value.

        Returns
        -------
        str
            Name of the loss.
        """
        add_batch_input(self, labels_name, onnx.TensorProto.INT64)
        a, labels = (Value(self, name, embeddings_name) for name in (embeddings_name, labels_name))
        a = _unit(a)
        scores = self._similarities(a, a)
        others = 1.0 - scores.apply("EyeLike")
        right = labels.unsqueeze([1]).apply("Equal", labels.unsqueeze([0])).cast() * others
        count = right.sum([1])
        exponentials = (self._exponentials(scores) * others).sum([1])
        normalizer = exponentials.maximum(1e-30).apply("Log") + self._largest
        losses = (normalizer * count - (right * scores).sum([1])) / count.maximum(1.0)
        return str(self._reduce(losses.name))
