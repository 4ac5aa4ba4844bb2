"""Optimizers, as blocks that build the optimizer model."""

from __future__ import annotations

import fnmatch
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from ortrain.onnxblock._training import ForwardBlock
from ortrain.onnxblock.blocks import Block
from ortrain.onnxblock.model_accessor import current

__all__ = ["SGD", "AdamW", "AdamWOptimizer", "ClipGradNorm", "ParamGroup", "SGDOptimizer", "no_decay"]

_DOMAIN = "com.microsoft"

#: The name of the group of the parameters that no other group has.
_REST = "group0"

#: An attribute of a node.
_Attribute = int | float | str | list[str]

#: Trainable and frozen parameters, as returned by ``TrainingBlock.parameters()``.
Parameters = tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]]


@dataclass(frozen=True)
class ParamGroup:
    """Parameters that the optimizer updates with other settings.

    Settings that are None are those of the optimizer. The session can change them later:
    :attr:`ortrain.Optimizer.param_groups`.

    Parameters
    ----------
    name : str
        The name of the group. ``group0`` is the group of the parameters that no other group has.
    params : sequence of str or callable
        Names of trainable parameters, or patterns such as ``"*.bias"``; or a function that takes the name and the
        shape of a parameter and returns whether it belongs to the group. A parameter belongs to the first group that
        matches it.
    lr_factor : float, default 1.0
        What the learning rate is multiplied by. It stays a factor when a schedule changes the rate.
    weight_decay, betas, eps : optional
        As in :class:`AdamW`, which alone has them.
    """

    name: str
    params: Sequence[str] | Callable[[str, tuple[int, ...]], bool]
    lr_factor: float = 1.0
    weight_decay: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if not self.name or self.name == _REST:
            raise ValueError(f"a parameter group needs a name other than {_REST!r}, found {self.name!r}")
        if isinstance(self.params, str):
            raise TypeError(f"params must be a list of names or a function, not the string {self.params!r}")
        if not math.isfinite(self.lr_factor):
            raise ValueError(f"lr_factor must be a finite number, found {self.lr_factor}")

    def choose(self, params: Sequence[onnx.TensorProto]) -> list[str]:
        """Return the names of the parameters that belong to the group.

        Parameters
        ----------
        params : sequence of onnx.TensorProto
            The parameters to choose from.

        Raises
        ------
        ValueError
            When a name or a pattern matches none of them.
        """
        if callable(self.params):
            return [tensor.name for tensor in params if self.params(tensor.name, tuple(tensor.dims))]
        names = [tensor.name for tensor in params]
        for pattern in self.params:
            if not any(_matches(name, pattern) for name in names):
                raise ValueError(
                    f"parameter group {self.name!r}: no trainable parameter matches {pattern!r}; "
                    f"there are {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
                )
        return [name for name in names if any(_matches(name, pattern) for pattern in self.params)]


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def no_decay(name: str = "no_decay") -> ParamGroup:
    """Return the group of parameters that usually do not decay: biases and the gains of normalizations.

    These are the parameters with fewer than two dimensions. If there are none, the model gets no such group.

    Parameters
    ----------
    name : str, default "no_decay"
        The name of the group.
    """
    return ParamGroup(name, lambda _, shape: len(shape) < 2, weight_decay=0.0)


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

    def __init__(self) -> None:
        super().__init__()
        self._attributes: dict[str, _Attribute] = {}

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
        return self._add("SGDOptimizerV2", inputs, "update_completed", domain=_DOMAIN, **self._attributes)


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
        self._attributes: dict[str, _Attribute] = {
            "alpha": float(betas[0]),
            "beta": float(betas[1]),
            "epsilon": 1e-6 if eps is None else float(eps),
            "weight_decay": float(weight_decay or 0.0),
            "correct_bias": int(bool(bias_correction)),
            "adam_mode": 1,
        }
        if eps is not None and not eps >= 0:
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
    """A complete optimizer model: inputs, clipping, the optimizer's node for each group of parameters, output."""

    moments: tuple[str, ...] = ()

    def __init__(self, clip_grad: ClipGradNorm | None, param_groups: Sequence[ParamGroup]) -> None:
        super().__init__()
        self._clip_grad = clip_grad
        self._param_groups = tuple(param_groups)
        names = [group.name for group in self._param_groups]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"two parameter groups are named {twice[0]!r}")
        for group in self._param_groups:
            self._node(group)  # rejects settings that the optimizer does not have

    @abstractmethod
    def _node(self, group: ParamGroup | None) -> SGDOptimizer | AdamWOptimizer: ...

    @abstractmethod
    def _update(
        self,
        node: SGDOptimizer | AdamWOptimizer,
        learning_rate: str,
        step: str,
        params: str,
        gradients: str,
    ) -> str: ...

    def _nodes(self, trainable: Sequence[onnx.TensorProto]) -> list[SGDOptimizer | AdamWOptimizer]:
        """Return the node of each group that has parameters."""
        left = list(trainable)
        nodes = []
        for group in self._param_groups:
            chosen = group.choose(trainable)
            mine = [tensor.name for tensor in left if tensor.name in chosen]
            if not mine:
                continue
            node = self._node(group)
            node._attributes |= {"group": group.name, "parameters": mine}
            if group.lr_factor != 1:
                node._attributes["learning_rate_factor"] = float(group.lr_factor)
            nodes.append(node)
            left = [tensor for tensor in left if tensor.name not in mine]
        return [self._node(None), *nodes] if left else nodes

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
            When no parameter is trainable, or a group names one that is not.
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
        updated = [
            self._update(node, "learning_rate", "step", "params", gradients)
            for node in self._nodes(trainable)
        ]
        info = onnx.helper.make_tensor_value_info(updated[0], TensorProto.BOOL, [1])
        current().model.graph.output.append(info)
        return updated[0]


class AdamW(_Optimizer):
    """The optimizer model of AdamW.

    Inputs: learning_rate, step, params, gradients, first_order_moments, second_order_moments. With parameter groups
    it has one node for each; onnxruntime rejects such a model.

    Parameters
    ----------
    bias_correction, betas, eps, weight_decay
        As in :class:`AdamWOptimizer`.
    clip_grad : ClipGradNorm, optional
        Limits the norm of the gradients first, of all groups together.
    param_groups : sequence of ParamGroup, optional
        Parameters with other settings, such as ``[no_decay()]``.

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
        param_groups: Sequence[ParamGroup] = (),
    ) -> None:
        self._settings = {
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(clip_grad, param_groups)
        self._node(None)

    def _node(self, group: ParamGroup | None) -> AdamWOptimizer:
        own = {name: getattr(group, name, None) for name in ("betas", "eps", "weight_decay")}
        settings = self._settings | {name: value for name, value in own.items() if value is not None}
        return AdamWOptimizer(**settings)  # type: ignore[arg-type]

    def _update(
        self,
        node: SGDOptimizer | AdamWOptimizer,
        learning_rate: str,
        step: str,
        params: str,
        gradients: str,
    ) -> str:
        return str(node(learning_rate, step, params, gradients, *self.moments))


class SGD(_Optimizer):
    """The optimizer model of stochastic gradient descent.

    Inputs: learning_rate, step, params, gradients, first_order_moments; the last is unused, but programs pass
    it. With parameter groups it has one node for each; onnxruntime rejects such a model.

    Parameters
    ----------
    clip_grad : ClipGradNorm, optional
        Limits the norm of the gradients first, of all groups together.
    param_groups : sequence of ParamGroup, optional
        Parameters with another learning rate.

    Raises
    ------
    ValueError
        When a group has a setting that only AdamW has.
    """

    moments = ("first_order_moments",)

    def __init__(
        self, clip_grad: ClipGradNorm | None = None, param_groups: Sequence[ParamGroup] = ()
    ) -> None:
        super().__init__(clip_grad, param_groups)

    def _node(self, group: ParamGroup | None) -> SGDOptimizer:
        for name in ("weight_decay", "betas", "eps"):
            if getattr(group, name, None):
                raise ValueError(f"parameter group {group.name!r}: SGD has no {name}")  # type: ignore[union-attr]
        return SGDOptimizer()

    def _update(
        self,
        node: SGDOptimizer | AdamWOptimizer,
        learning_rate: str,
        step: str,
        params: str,
        gradients: str,
    ) -> str:
        return str(node(learning_rate, params, gradients))
