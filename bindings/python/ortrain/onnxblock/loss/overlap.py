"""Losses of segmentations: how little the predicted and the true region overlap."""

from __future__ import annotations

from ortrain.onnxblock.loss._loss import Loss
from ortrain.onnxblock.loss._values import Value


class TverskyLoss(Loss):
    """One minus the index of Tversky, ``(TP + s) / (TP + alpha FP + beta FN + s)``, of each sample.

    S. Salehi et al., "Tversky loss function for image segmentation using 3D fully convolutional deep networks", 2017. The
    prediction is logits, and the target 0 or 1 for each element.

    Parameters
    ----------
    alpha, beta : float, default: 0.5
        How much false positives and false negatives count.
    smooth : float, default: 1.0
        s, which makes empty regions differentiable.
    reduction, sample_weights
        As in :class:`Loss`, of the losses of all samples.
    """

    def __init__(
        self,
        alpha: float = 0.5,
        beta: float = 0.5,
        smooth: float = 1.0,
        reduction: str = "mean",
        sample_weights: str | None = None,
    ) -> None:
        super().__init__(reduction, sample_weights)
        if min(alpha, beta, smooth) < 0:
            raise ValueError(
                f"alpha, beta and smooth must not be negative, found {alpha}, {beta} and {smooth}"
            )
        self._alpha, self._beta, self._smooth = alpha, beta, smooth

    def losses(self, prediction: Value, target: Value) -> Value:
        """Return the losses of all samples."""
        p, t = prediction.rows().apply("Sigmoid"), target.rows()
        both, predicted, true = ((value).sum([1]) for value in (p * t, p, t))
        false = (predicted - both) * self._alpha + (true - both) * self._beta
        return 1.0 - (both + self._smooth) / (both + false + self._smooth)


class DiceLoss(TverskyLoss):
    """One minus the index of Dice, ``(2 Σpt + s) / (Σp + Σt + s)``, of each sample.

    F. Milletari et al., "V-Net: fully convolutional neural networks for volumetric medical image segmentation", 2016. The
    prediction is logits, and the target 0 or 1 for each element.

    Parameters
    ----------
    smooth : float, default: 1.0
        s, which makes empty regions differentiable.
    reduction, sample_weights
        As in :class:`Loss`, of the losses of all samples.
    """

    def __init__(
        self, smooth: float = 1.0, reduction: str = "mean", sample_weights: str | None = None
    ) -> None:
        super().__init__(0.5, 0.5, smooth / 2, reduction, sample_weights)


class JaccardLoss(TverskyLoss):
    """One minus the index of Jaccard, ``(Σpt + s) / (Σp + Σt - Σpt + s)``, of each sample.

    The prediction is logits, and the target 0 or 1 for each element.

    Parameters
    ----------
    smooth : float, default: 1.0
        s, which makes empty regions differentiable.
    reduction, sample_weights
        As in :class:`Loss`, of the losses of all samples.
    """

    def __init__(
        self, smooth: float = 1.0, reduction: str = "mean", sample_weights: str | None = None
    ) -> None:
        super().__init__(1.0, 1.0, smooth, reduction, sample_weights)
