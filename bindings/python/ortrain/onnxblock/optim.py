"""Optimizers, as blocks that build the optimizer model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import onnx
from onnx import TensorProto

from ortrain.onnxblock._training import ForwardBlock
from ortrain.onnxblock.blocks import Block
from ortrain.onnxblock.model_accessor import current

__all__ = ["SGD", "AdamW", "AdamWOptimizer", "ClipGradNorm", "SGDOptimizer"]

_DOMAIN = "com.microsoft"

#: Trainable and frozen parameters, as returned by ``TrainingBlock.parameters()``.
Parameters = tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]]


class ClipGradNorm(Block):
    """Scales all gradients down together if their L2 norm is above a limit.

    The operator is com.microsoft.InplaceClipGradNorm; the method is from R. Pascanu et al., "On the
    difficulty of training recurrent neural networks", 2013.

    Parameters
    ----------
    max_norm : float
        The limit.

    Raises
    ------
    ValueError
        When it is not a positive number.
    """

    def __init__(self, max_norm: float) -> None:
        super().__init__()
        if not max_norm > 0:
            raise ValueError(f"max_norm must be a positive number, not {max_norm}")
        self._max_norm = float(max_norm)

    def build(self, gradients_name: str) -> str:
        """Add the node.

        Parameters
        ----------
        gradients_name : str
            Name of the sequence of gradients.

        Returns
        -------
        str
            Name of the sequence of scaled gradients.
        """
        clipped = self._add(
            "InplaceClipGradNorm",
            [gradients_name],
            "clip_grad_norm_output",
            domain=_DOMAIN,
            max_norm=self._max_norm,
        )
        info = onnx.helper.make_tensor_sequence_value_info(clipped, TensorProto.FLOAT, None)
        self.base.graph.value_info.append(info)
        return clipped


class SGDOptimizer(Block):
    """The node of stochastic gradient descent, ``w ← w - lr · g`` (com.microsoft.SGDOptimizerV2)."""

    def build(self, learning_rate_name: str, params_name: str, gradients_name: str) -> str:
        """Add the node.

        Parameters
        ----------
        learning_rate_name : str
            Name of the learning rate, float32 of shape [1].
        params_name, gradients_name : str
            Names of the sequences of parameters and of their gradients.

        Returns
        -------
        str
            Name of the flag that tells whether the parameters were updated.
        """
        inputs = [learning_rate_name, params_name, gradients_name]
        return self._add("SGDOptimizerV2", inputs, "update_completed", domain=_DOMAIN)


class AdamWOptimizer(Block):
    """The node of AdamW (com.microsoft.AdamWOptimizer).

    I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", 2019; ``adam_mode`` 1 is the form
    in which the weights decay after the update.

    Parameters
    ----------
    bias_correction : bool, default: True
        Whether to correct the moments for starting at zero.
    betas : tuple of float, default: (0.9, 0.999)
        Decay of the first and the second moment, in [0, 1).
    eps : float, default: 1e-6
        Added to the square root of the second moment.
    weight_decay : float, default: 0.0
        Decay of the weights per step, as a fraction of the learning rate.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    def __init__(
        self,
        bias_correction: bool | None = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float | None = 1e-6,
        weight_decay: float | None = 0.0,
    ) -> None:
        super().__init__()
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two values in [0, 1), found {betas}")
        self._attributes: dict[str, int | float] = {
            "alpha": float(betas[0]),
            "beta": float(betas[1]),
            "epsilon": 1e-6 if eps is None else float(eps),
            "weight_decay": float(weight_decay or 0.0),
            "correct_bias": int(bool(bias_correction)),
            "adam_mode": 1,
        }
        if not self._attributes["epsilon"] >= 0:
            raise ValueError(f"eps must not be negative, found {eps}")

    def build(
        self,
        learning_rate_name: str,
        step_name: str,
        parameter_sequence_name: str,
        gradient_sequence_name: str,
        first_order_moment_sequence_name: str,
        second_order_moment_sequence_name: str,
    ) -> str:
        """Add the node.

        Parameters
        ----------
        learning_rate_name : str
            Name of the learning rate, float32 of shape [1].
        step_name : str
            Name of the step count, int64 of shape [1].
        parameter_sequence_name, gradient_sequence_name : str
            Names of the sequences of parameters and of their gradients.
        first_order_moment_sequence_name, second_order_moment_sequence_name : str
            Names of the sequences of moments.

        Returns
        -------
        str
            Name of the flag that tells whether the parameters were updated.
        """
        inputs = [
            learning_rate_name,
            step_name,
            parameter_sequence_name,
            gradient_sequence_name,
            first_order_moment_sequence_name,
            second_order_moment_sequence_name,
        ]
        return self._add("AdamWOptimizer", inputs, "adamw.updated_flag", domain=_DOMAIN, **self._attributes)


class _Optimizer(ForwardBlock):
    """A complete optimizer model: inputs, clipping, the optimizer's node, output."""

    moments: tuple[str, ...] = ()

    def __init__(self, clip_grad: ClipGradNorm | None = None) -> None:
        super().__init__()
        self._clip_grad = clip_grad

    @abstractmethod
    def _update(self, learning_rate: str, step: str, params: str, gradients: str) -> str: ...

    def build(self, parameters: Parameters) -> str:
        """Build the model on an empty base.

        Parameters
        ----------
        parameters : tuple of two lists of onnx.TensorProto
            Trainable and frozen parameters, from :meth:`ortrain.onnxblock.TrainingBlock.parameters`.

        Returns
        -------
        str
            Name of the output, a bool of shape [1].

        Raises
        ------
        ValueError
            When no parameter is trainable.
        """
        trainable, _ = parameters
        if not trainable:
            raise ValueError("an optimizer needs at least one trainable parameter")
        dtype = trainable[0].data_type
        inputs = self.base.graph.input
        inputs.append(onnx.helper.make_tensor_value_info("learning_rate", TensorProto.FLOAT, [1]))
        inputs.append(onnx.helper.make_tensor_value_info("step", TensorProto.INT64, [1]))
        for name in ("params", "gradients", *self.moments):
            inputs.append(onnx.helper.make_tensor_sequence_value_info(name, dtype, None))

        gradients = "gradients"
        if self._clip_grad is not None:
            gradients = self._clip_grad(gradients)
        updated = self._update("learning_rate", "step", "params", gradients)
        info = onnx.helper.make_tensor_value_info(updated, TensorProto.BOOL, [1])
        current().model.graph.output.append(info)
        return updated


class AdamW(_Optimizer):
    """The optimizer model of AdamW.

    Inputs: learning_rate, step, params, gradients, first_order_moments, second_order_moments.

    Parameters
    ----------
    bias_correction, betas, eps, weight_decay
        As in :class:`AdamWOptimizer`.
    clip_grad : ClipGradNorm, optional
        Limits the norm of the gradients first.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    moments = ("first_order_moments", "second_order_moments")

    def __init__(
        self,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip_grad: ClipGradNorm | None = None,
    ) -> None:
        super().__init__(clip_grad)
        self._adamw = AdamWOptimizer(bias_correction, betas, eps, weight_decay)

    def _update(self, learning_rate: str, step: str, params: str, gradients: str) -> str:
        return str(self._adamw(learning_rate, step, params, gradients, *self.moments))


class SGD(_Optimizer):
    """The optimizer model of stochastic gradient descent.

    Inputs: learning_rate, step, params, gradients, first_order_moments; the last is unused, but programs pass
    it.

    Parameters
    ----------
    clip_grad : ClipGradNorm, optional
        Limits the norm of the gradients first.
    """

    moments = ("first_order_moments",)

    def __init__(self, clip_grad: ClipGradNorm | None = None) -> None:
        super().__init__(clip_grad)
        self._sgd = SGDOptimizer()

    def _update(self, learning_rate: str, step: str, params: str, gradients: str) -> str:
        return str(self._sgd(learning_rate, params, gradients))
