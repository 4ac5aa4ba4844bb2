"""The nodes of optimizer models."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto

from ortrain import _graph
from ortrain.onnxblock.blocks import Block
from ortrain.onnxblock.optim.declarations import Declaration

_DOMAIN = "com.microsoft"
_OWN_DOMAIN = "ortrain"

#: An attribute of a node.
Attribute = int | float | str | list[str]


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


class _ClipGradients(Block):
    """A node that clips gradients: ClipGradients of the domain ortrain."""

    def __init__(self, kind: str, limit: float, **settings: float) -> None:
        super().__init__()
        for name, value in {"limit": limit, **settings}.items():
            if not value > 0:
                raise ValueError(f"{name} must be a positive number, not {value}")
        self._attributes: dict[str, Attribute] = {"type": kind, "limit": float(limit), **settings}

    def build(self, gradients_name: str) -> str:
        """Add the node.

        Parameters
        ----------
        gradients_name : str
            Name of the sequence of gradients.

        Returns
        -------
        str
            Name of the sequence of clipped gradients.
        """
        _graph.import_domain(self.base, _OWN_DOMAIN, 1)
        clipped = self._add(
            "ClipGradients", [gradients_name], "clipped_gradients", domain=_OWN_DOMAIN, **self._attributes
        )
        self.base.graph.value_info.append(
            onnx.helper.make_tensor_sequence_value_info(clipped, TensorProto.FLOAT, None)
        )
        return clipped


class ClipGradValue(_ClipGradients):
    """Clips each element of the gradients to ``[-limit, limit]``.

    Parameters
    ----------
    limit : float
        The limit.

    Raises
    ------
    ValueError
        When it is not a positive number.
    """

    def __init__(self, limit: float) -> None:
        super().__init__("value", limit)


class ClipGroupNorm(_ClipGradients):
    """Scales the gradients of each parameter group down if their L2 norm is above a limit.

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
        super().__init__("group_norm", max_norm)


class ClipAdaptive(_ClipGradients):
    """Scales the gradient of each parameter down if its norm is more than a share of the parameter's norm.

    A. Brock et al., "High-performance large-scale image recognition without normalization", 2021; with one norm for a
    parameter, where the authors have one for each of its units.

    Parameters
    ----------
    share : float, default: 0.01
        The largest norm of a gradient, as a share of the parameter's norm.
    eps : float, default: 1e-3
        Lower bound of the parameter's norm, so that parameters of zero are trained.

    Raises
    ------
    ValueError
        When a value is not a positive number.
    """

    def __init__(self, share: float = 0.01, eps: float = 1e-3) -> None:
        super().__init__("adaptive", share, epsilon=eps)


class WeightAverage(Block):
    """Keeps an exponential moving average of the weights, which eval steps and exports use.

    B. Polyak and A. Juditsky, "Acceleration of stochastic approximation by averaging", 1992. The average begins with the
    weights after the first step.

    Parameters
    ----------
    decay : float, default: 0.999
        The fraction of the average that each step keeps, in [0, 1).
    warmup : bool, default: False
        Whether the first steps keep less, (1 + n) / (10 + n) after n steps, so that the average follows fast at first.

    Raises
    ------
    ValueError
        When the decay is out of range.
    """

    def __init__(self, decay: float = 0.999, warmup: bool = False) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and less than 1, found {decay}")
        self._attributes: dict[str, Attribute] = {"decay": float(decay), "warmup": int(warmup)}

    def build(self, params_name: str, averages_name: str, updated_name: str) -> str:
        """Add the node.

        Parameters
        ----------
        params_name, averages_name, updated_name : str
            Names of the sequences of parameters and of their averages, and of the flag that tells whether the parameters were
            updated.

        Returns
        -------
        str
            Name of the flag that tells whether the average was updated.
        """
        _graph.import_domain(self.base, _OWN_DOMAIN, 1)
        inputs = [params_name, averages_name, updated_name]
        return self._add("WeightAverage", inputs, "averaged_flag", domain=_OWN_DOMAIN, **self._attributes)


class SGDOptimizer(Block):
    """The node of stochastic gradient descent, ``w ← w - lr · g`` (com.microsoft.SGDOptimizerV2)."""

    def __init__(self) -> None:
        super().__init__()
        self._attributes: dict[str, Attribute] = {}

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

    I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", 2019.

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
    adam_mode : {1, 0}, default: 1
        1: the weights decay after the update, and epsilon is added to the root of the uncorrected moment, as in Hugging Face's
        AdamW. 0: they decay before it, and epsilon is added to the root of the corrected moment, as in PyTorch's.

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
        adam_mode: int = 1,
    ) -> None:
        super().__init__()
        if adam_mode not in (0, 1):
            raise ValueError(f"adam_mode must be 0 or 1, found {adam_mode}")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two values in [0, 1), found {betas}")
        self._attributes: dict[str, Attribute] = {
            "alpha": float(betas[0]),
            "beta": float(betas[1]),
            "epsilon": 1e-6 if eps is None else float(eps),
            "weight_decay": float(weight_decay or 0.0),
            "correct_bias": int(bool(bias_correction)),
            "adam_mode": adam_mode,
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


class OptimizerNode(Block):
    """The node of an optimizer that onnxruntime does not have: Optimizer of the domain ortrain.

    Parameters
    ----------
    declaration : Declaration
        The optimizer.
    settings : mapping of str to float
        Values of all its settings.
    """

    def __init__(self, declaration: Declaration, settings: Mapping[str, float]) -> None:
        super().__init__()
        flags = {setting.name for setting in declaration.settings if setting.flag}
        self._attributes: dict[str, Attribute] = {"type": declaration.name}
        self._attributes |= {
            name: int(value) if name in flags else float(value) for name, value in settings.items()
        }

    def build(
        self,
        learning_rate_name: str,
        step_name: str,
        params_name: str,
        gradients_name: str,
        *state_names: str,
    ) -> str:
        """Add the node.

        Parameters
        ----------
        learning_rate_name, step_name : str
            Names of the learning rate, float32 of shape [1], and the step count, int64 of shape [1].
        params_name, gradients_name, *state_names : str
            Names of the sequences of parameters, of their gradients, and of each state.

        Returns
        -------
        str
            Name of the flag that tells whether the parameters were updated.
        """
        _graph.import_domain(self.base, _OWN_DOMAIN, 1)
        inputs = [learning_rate_name, step_name, params_name, gradients_name, *state_names]
        return self._add("Optimizer", inputs, "updated_flag", domain=_OWN_DOMAIN, **self._attributes)
