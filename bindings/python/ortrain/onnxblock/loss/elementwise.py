"""Losses that are a function of each element and its target."""

from __future__ import annotations

import math

import onnx

from ortrain import _graph
from ortrain.onnxblock.loss._loss import Loss, SeveralInputs
from ortrain.onnxblock.loss._values import Value


def _positive(name: str, value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a positive number, found {value}")
    return float(value)


class HuberLoss(Loss):
    """Huber's loss, ``d² / 2`` for a difference of at most ``delta`` and ``delta (|d| - delta / 2)`` beyond.

    P. J. Huber, "Robust estimation of a location parameter", 1964.

    Parameters
    ----------
    delta : float, default: 1.0
        Where the loss becomes linear.
    reduction, sample_weights
        As in :class:`Loss`.
    """

    def __init__(
        self, delta: float = 1.0, reduction: str = "mean", sample_weights: str | None = None
    ) -> None:
        super().__init__(reduction, sample_weights)
        self._delta = _positive("delta", delta)

    def losses(self, prediction: Value, target: Value) -> Value:
        """Return the losses of all elements."""
        distance = (prediction - target).apply("Abs")
        near = distance.minimum(self._delta)
        return near * near * 0.5 + (distance - near) * self._delta


class SmoothL1Loss(HuberLoss):
    """Smooth mean absolute error: Huber's loss with ``delta`` = ``beta``, divided by ``beta``.

    Parameters
    ----------
    beta : float, default: 1.0
        Where the loss becomes linear.
    reduction, sample_weights
        As in :class:`Loss`.
    """

    def __init__(self, beta: float = 1.0, reduction: str = "mean", sample_weights: str | None = None) -> None:
        super().__init__(_positive("beta", beta), reduction, sample_weights)

    def losses(self, prediction: Value, target: Value) -> Value:
        """Return the losses of all elements."""
        return super().losses(prediction, target) / self._delta


class LogCoshLoss(Loss):
    """The logarithm of the hyperbolic cosine of the difference, ``log cosh d = |d| + log(1 + exp(-2|d|)) - log 2``."""

    def losses(self, prediction: Value, target: Value) -> Value:
        """Return the losses of all elements."""
        distance = (prediction - target).apply("Abs")
        return distance + (distance * -2.0).apply("Softplus") - math.log(2)


class QuantileLoss(Loss):
    """The loss of a quantile, ``max(q (t - x), (q - 1)(t - x))``.

    R. Koenker and G. Bassett, "Regression quantiles", 1978.

    Parameters
    ----------
    quantile : float, default: 0.5
        q, between 0 and 1.
    reduction, sample_weights
        As in :class:`Loss`.
    """

    def __init__(
        self, quantile: float = 0.5, reduction: str = "mean", sample_weights: str | None = None
    ) -> None:
        super().__init__(reduction, sample_weights)
        if not 0 < quantile < 1:
            raise ValueError(f"quantile must be between 0 and 1, found {quantile}")
        self._quantile = quantile

    def losses(self, prediction: Value, target: Value) -> Value:
        """Return the losses of all elements."""
        error = target - prediction
        return (error * self._quantile).maximum(error * (self._quantile - 1))


class PoissonNLLLoss(Loss):
    """Negative logarithm of the likelihood of counts, without the terms that only depend on the target.

    Parameters
    ----------
    log_input : bool, default: True
        Whether the prediction is the logarithm of the rate: ``exp(x) - t x``, else ``x - t log(x + eps)``.
    eps : float, default: 1e-8
        Keeps the logarithm finite.
    reduction, sample_weights
        As in :class:`Loss`.
    """

    def __init__(
        self,
        log_input: bool = True,
        eps: float = 1e-8,
        reduction: str = "mean",
        sample_weights: str | None = None,
    ) -> None:
        super().__init__(reduction, sample_weights)
        self._log_input, self._eps = log_input, eps

    def losses(self, prediction: Value, target: Value) -> Value:
        """Return the losses of all elements."""
        if self._log_input:
            return prediction.apply("Exp") - target * prediction
        return prediction - target * (prediction + self._eps).apply("Log")


class HingeLoss(Loss):
    """The hinge loss of scores, ``max(0, 1 - t x)``, for targets of -1 and 1."""

    def losses(self, prediction: Value, target: Value) -> Value:
        """Return the losses of all elements."""
        return (1.0 - target * prediction).apply("Relu")


class FocalLoss(Loss):
    """The focal loss of logits, ``-a (1 - p)^gamma log p`` with the probability p of the right answer.

    T.-Y. Lin et al., "Focal loss for dense object detection", 2017; as torchvision's sigmoid_focal_loss. The target is 0 or 1 for
    each element, so that classes are independent.

    Parameters
    ----------
    alpha : float, default: 0.25
        a of positive elements; for negative elements a is ``1 - alpha``. A negative alpha means no such factor.
    gamma : float, default: 2.0
        How strongly the weight of easy elements is reduced.
    reduction, sample_weights
        As in :class:`Loss`.
    """

    def __init__(
        self,
        alpha: float = 0.25,
        gamma: float = 2.0,
        reduction: str = "mean",
        sample_weights: str | None = None,
    ) -> None:
        super().__init__(reduction, sample_weights)
        if alpha > 1 or gamma < 0:
            raise ValueError(
                f"alpha must be at most 1 and gamma at least 0, found alpha {alpha} and gamma {gamma}"
            )
        self._alpha, self._gamma = alpha, gamma

    def losses(self, prediction: Value, target: Value) -> Value:
        """Return the losses of all elements."""
        # With s = x for negative elements and -x for positive ones, 1 - p is the sigmoid of s.
        wrong = prediction * (1.0 - target * 2.0)
        losses = wrong.apply("Softplus") * wrong.apply("Sigmoid").apply("Pow", self._gamma)
        if self._alpha < 0:
            return losses
        return losses * (target * (2 * self._alpha - 1) + (1 - self._alpha))


class KLDivLoss(Loss):
    """The divergence ``t (log t - x)`` of a distribution t from one whose logarithms x are predicted.

    Parameters
    ----------
    log_target : bool, default: False
        Whether the target consists of logarithms too.
    reduction : {"mean", "sum", "none", "batchmean"}
        As in :class:`Loss`; "batchmean" is the sum divided by the number of samples, which is the divergence.
    sample_weights
        As in :class:`Loss`.
    """

    def __init__(
        self, log_target: bool = False, reduction: str = "mean", sample_weights: str | None = None
    ) -> None:
        self._per_sample = reduction == "batchmean"
        super().__init__("mean" if self._per_sample else reduction, sample_weights)
        self._log_target = log_target

    def losses(self, prediction: Value, target: Value) -> Value:
        """Return the losses of all elements, or of all samples."""
        if self._log_target:
            losses = target.apply("Exp") * (target - prediction)
        else:
            losses = target * (target.maximum(1e-30).apply("Log") - prediction)  # the loss is 0 where t is 0
        return losses.rows().sum([1]) if self._per_sample else losses


class DistillationLoss(Loss):
    """The divergence of the softmax of a teacher's logits from that of the model's, at a temperature.

    G. Hinton et al., "Distilling the knowledge in a neural network", 2015: ``T² KL(softmax(t / T) || softmax(x / T))`` over the
    last dimension. The target is the logits of the teacher.

    Parameters
    ----------
    temperature : float, default: 2.0
        T.
    reduction, sample_weights
        As in :class:`Loss`, of the divergences of all samples.
    """

    def __init__(
        self, temperature: float = 2.0, reduction: str = "mean", sample_weights: str | None = None
    ) -> None:
        super().__init__(reduction, sample_weights)
        self._temperature = _positive("temperature", temperature)

    def losses(self, prediction: Value, target: Value) -> Value:
        """Return the divergences."""
        student, teacher = (
            (value / self._temperature).apply("LogSoftmax", axis=-1) for value in (prediction, target)
        )
        divergence = (teacher.apply("Exp") * (teacher - student)).sum([-1])
        return divergence * self._temperature**2


class SoftCrossEntropyLoss(Loss):
    """Cross entropy of scores and probabilities, ``-Σ t log softmax(x)`` over the classes.

    Parameters
    ----------
    axis : int, default: 1
        The dimension of the classes.
    reduction, sample_weights
        As in :class:`Loss`, of the entropies of all samples.
    """

    def __init__(self, axis: int = 1, reduction: str = "mean", sample_weights: str | None = None) -> None:
        super().__init__(reduction, sample_weights)
        self._axis = axis

    def losses(self, prediction: Value, target: Value) -> Value:
        """Return the entropies."""
        return -(target * prediction.apply("LogSoftmax", axis=self._axis)).sum([self._axis])


class GaussianNLLLoss(SeveralInputs):
    """Negative logarithm of the likelihood of a normal distribution, ``(log v + (x - t)² / v) / 2``.

    It takes two outputs of a model, the mean x and the variance v, which is raised to ``eps``.

    Parameters
    ----------
    eps : float, default: 1e-6
        The smallest variance.
    reduction : {"mean", "sum", "none"}
        How the losses of all elements are reduced.
    """

    def __init__(self, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self._eps = _positive("eps", eps)

    def build(self, mean_name: str, variance_name: str, target_name: str = "target") -> str:
        """Add the loss.

        Parameters
        ----------
        mean_name, variance_name : str
            Names of mean and variance.
        target_name : str, default: "target"
            Name of the target; a new input of the type and shape of the mean if there is no such value.

        Returns
        -------
        str
            Name of the loss.
        """
        if not _graph.value_exists(self.base, target_name):
            info = _graph.find_value_info(self.base, mean_name)
            if info is None:
                raise LookupError(
                    f"cannot add the target of {mean_name!r}: the model does not declare its type"
                )
            _graph.add_input_like(
                self.base, onnx.ValueInfoProto.FromString(info.SerializeToString()), target_name
            )
        mean, variance, target = (
            Value(self, name, mean_name) for name in (mean_name, variance_name, target_name)
        )
        variance = variance.maximum(self._eps)
        error = mean - target
        losses = (variance.apply("Log") + error * error / variance) * 0.5
        return str(self._reduce(losses.name))
