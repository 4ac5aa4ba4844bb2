"""Optimizer models: those of AdamW and SGD, and of every optimizer that the library declares."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, ClassVar

import onnx
from onnx import TensorProto

from ortrain._support.counts import counted
from ortrain.onnxblock._training import ForwardBlock
from ortrain.onnxblock.model_accessor import current
from ortrain.onnxblock.optim.declarations import Declaration, declared
from ortrain.onnxblock.optim.groups import ParamGroup, ParamGroups
from ortrain.onnxblock.optim.nodes import (
    AdamWOptimizer,
    ClipAdaptive,
    ClipGradNorm,
    ClipGradValue,
    ClipGroupNorm,
    OptimizerNode,
    SGDOptimizer,
    WeightAverage,
)

_Node = SGDOptimizer | AdamWOptimizer | OptimizerNode

#: The blocks that clip gradients.
Clip = ClipGradNorm | ClipGradValue | ClipGroupNorm | ClipAdaptive

#: Trainable and frozen parameters, as returned by ``TrainingBlock.parameters()``.
Parameters = tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]]


def _stated(groups: Sequence[ParamGroup] | ParamGroups) -> Sequence[ParamGroup]:
    return groups.stated() if isinstance(groups, ParamGroups) else groups


class OptimizerModel(ForwardBlock):
    """A complete optimizer model: inputs, clipping, the optimizer's node for each group of parameters, output."""

    moments: tuple[str, ...] = ()

    def __init__(
        self,
        clip_grad: Clip | Sequence[Clip] | None,
        param_groups: Sequence[ParamGroup] | ParamGroups,
        ema: float | WeightAverage | None = None,
    ) -> None:
        super().__init__()
        self._clips = (
            [] if clip_grad is None else list(clip_grad) if isinstance(clip_grad, Sequence) else [clip_grad]
        )
        self._average = WeightAverage(ema) if isinstance(ema, (int, float)) else ema
        self._param_groups = param_groups if isinstance(param_groups, ParamGroups) else tuple(param_groups)
        stated = _stated(param_groups)
        names = [group.name for group in stated]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"two parameter groups are named {twice[0]!r}")
        for group in stated:
            self._node(group)  # rejects settings that the optimizer does not have
        self._node(None)

    @abstractmethod
    def _node(self, group: ParamGroup | None) -> _Node: ...

    def _update(self, node: _Node, learning_rate: str, step: str, params: str, gradients: str) -> str:
        return str(node(learning_rate, step, params, gradients, *self.moments))

    def _nodes(self, trainable: Sequence[onnx.TensorProto]) -> list[_Node]:
        """Return the node of each group that has parameters."""
        left = list(trainable)
        nodes = []
        groups = self._param_groups
        for group in groups.of(trainable) if isinstance(groups, ParamGroups) else groups:
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
        averages = [] if self._average is None else ["weight_average"]
        for name in ("params", "gradients", *self.moments, *averages):
            inputs.append(onnx.helper.make_tensor_sequence_value_info(name, dtype, None))

        gradients = "gradients"
        for clip in self._clips:
            gradients = clip(gradients)
        updated = [
            self._update(node, "learning_rate", "step", "params", gradients)
            for node in self._nodes(trainable)
        ]
        done = updated[0]
        if self._average is not None:
            done = self._average("params", averages[0], done)
        current().model.graph.output.append(onnx.helper.make_tensor_value_info(done, TensorProto.BOOL, [1]))
        return done


class AdamW(OptimizerModel):
    """The optimizer model of AdamW.

    Inputs: learning_rate, step, params, gradients, first_order_moments, second_order_moments. With parameter groups
    it has one node for each; onnxruntime rejects such a model.

    Parameters
    ----------
    bias_correction, betas, eps, weight_decay, adam_mode
        As in :class:`AdamWOptimizer`.
    clip_grad : ClipGradNorm, ClipGradValue, ClipGroupNorm, ClipAdaptive or a sequence of them, optional
        Limits the gradients first.
    param_groups : sequence of ParamGroup or ParamGroups, optional
        Parameters with other settings, such as ``[no_decay()]``.
    ema : float or WeightAverage, optional
        The decay of an exponential moving average of the weights.

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
        clip_grad: Clip | Sequence[Clip] | None = None,
        param_groups: Sequence[ParamGroup] | ParamGroups = (),
        adam_mode: int = 1,
        ema: float | WeightAverage | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "adam_mode": adam_mode,
        }
        super().__init__(clip_grad, param_groups, ema)

    def _node(self, group: ParamGroup | None) -> AdamWOptimizer:
        return AdamWOptimizer(**self._settings | ({} if group is None else group.given()))


class TorchAdamW(AdamW):
    """The optimizer model of AdamW as PyTorch computes it, with its defaults: :class:`AdamW` with ``adam_mode`` 0.

    Parameters
    ----------
    betas, eps, weight_decay, clip_grad, param_groups, ema
        As in :class:`AdamW`.
    """

    def __init__(
        self,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        clip_grad: Clip | Sequence[Clip] | None = None,
        param_groups: Sequence[ParamGroup] | ParamGroups = (),
        ema: float | WeightAverage | None = None,
    ) -> None:
        super().__init__(True, betas, eps, weight_decay, clip_grad, param_groups, adam_mode=0, ema=ema)


class DeclaredOptimizer(OptimizerModel):
    """The optimizer model of an optimizer that the library declares.

    Inputs: learning_rate, step, params, gradients, and a sequence for each state. It has the operator Optimizer of the domain
    ortrain, which onnxruntime does not have.

    Parameters
    ----------
    clip_grad, param_groups, ema
        As in :class:`AdamW`.
    **settings
        Settings of the optimizer by name; ``betas`` for beta1 and those that follow, and ``eps`` for epsilon.

    Raises
    ------
    TypeError
        When the optimizer has no such setting.
    ValueError
        When a value is out of range.
    """

    declaration: ClassVar[Declaration]

    def __init__(
        self,
        *,
        clip_grad: Clip | Sequence[Clip] | None = None,
        param_groups: Sequence[ParamGroup] | ParamGroups = (),
        ema: float | WeightAverage | None = None,
        **settings: Any,
    ) -> None:
        self._settings = self._named(settings)
        stated = _stated(param_groups)
        groups = [self._settings, *(self._settings | self._named(group.given()) for group in stated)]
        used = [self.declaration.checked(group) for group in groups]
        self.moments = tuple(
            state.name
            for state in self.declaration.states
            if state.when is None or any(values[state.when] for values in used)
        )
        super().__init__(clip_grad, param_groups, ema)

    @classmethod
    def _betas(cls) -> list[str]:
        """Return the settings that follow from ``betas``."""
        return [setting.name for setting in cls.declaration.settings if re.fullmatch(r"beta\d", setting.name)]

    @classmethod
    def _named(cls, given: Mapping[str, Any]) -> dict[str, float]:
        """Return settings under the names of the declaration."""
        settings = dict(given)
        names = {setting.name for setting in cls.declaration.settings}
        if "eps" in settings and "epsilon" in names:
            settings["epsilon"] = settings.pop("eps")
        betas = cls._betas()
        if "betas" in settings and betas:
            values = settings.pop("betas")
            if len(values) != len(betas):
                raise ValueError(f"betas must be {counted(len(betas), 'value')}, found {values}")
            settings |= dict(zip(betas, values, strict=True))
        return settings

    def _node(self, group: ParamGroup | None) -> _Node:
        own = {} if group is None else self._named(group.given())
        return OptimizerNode(self.declaration, self.declaration.checked(self._settings | own))


class SGD(DeclaredOptimizer):
    """The optimizer model of stochastic gradient descent.

    Inputs: learning_rate, step, params, gradients, first_order_moments; the last is unused without momentum, but
    programs pass it. Without momentum and weight decay it has the operator SGDOptimizerV2, which onnxruntime has too.
    With parameter groups it has one node for each; onnxruntime rejects such a model.

    Parameters
    ----------
    clip_grad, param_groups, ema
        As in :class:`AdamW`.
    momentum, dampening : float, default: 0.0
        The fraction of the momentum that a step keeps, and the fraction of the gradient that a step leaves out.
    weight_decay : float, default: 0.0
        The multiple of the weights that is added to the gradients.
    nesterov : bool, default: False
        Whether the step uses Nesterov momentum.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    if "sgd" in declared():  # a library with few operators may lack this optimizer
        declaration = declared()["sgd"]

    def __init__(
        self,
        clip_grad: Clip | Sequence[Clip] | None = None,
        param_groups: Sequence[ParamGroup] | ParamGroups = (),
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        ema: float | WeightAverage | None = None,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("nesterov needs a momentum above 0 and no dampening")
        super().__init__(
            clip_grad=clip_grad,
            param_groups=param_groups,
            ema=ema,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )
        given = [self._settings, *(group.given() for group in _stated(param_groups))]
        self._is_plain = not any(value for settings in given for value in settings.values())
        if not self.moments:
            self.moments = ("first_order_moments",)

    def _node(self, group: ParamGroup | None) -> _Node:
        return super()._node(group) if not getattr(self, "_is_plain", False) else SGDOptimizer()

    def _update(self, node: _Node, learning_rate: str, step: str, params: str, gradients: str) -> str:
        if isinstance(node, SGDOptimizer):
            return str(node(learning_rate, params, gradients))
        return super()._update(node, learning_rate, step, params, gradients)


def _signature(declaration: Declaration, betas: Sequence[str]) -> Signature:
    """Return the arguments of an optimizer's class."""
    defaults: dict[str, Any] = {}
    for setting in declaration.settings:
        if setting.name in betas:
            defaults["betas"] = (*defaults.get("betas", ()), setting.default)
        else:
            name = "eps" if setting.name == "epsilon" else setting.name
            defaults[name] = bool(setting.default) if setting.flag else setting.default
    defaults |= {"clip_grad": None, "param_groups": (), "ema": None}
    return Signature(
        [Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in defaults.items()]
    )


def class_of(declaration: Declaration) -> type[DeclaredOptimizer]:
    """Return the class of an optimizer."""
    meanings = "\n".join(
        f"    {setting.name} : {setting.meaning}; {setting.default:g} by default"
        for setting in declaration.settings
    )
    made = type(
        declaration.title,
        (DeclaredOptimizer,),
        {
            "__module__": "ortrain.onnxblock.optim",
            "__doc__": f"""The optimizer model of {declaration.title}.

    {declaration.source}: ``{declaration.formula}``

    Settings; the arguments ``betas`` and ``eps`` set beta1, beta2 and so on, and epsilon:

{meanings}
    """,
            "declaration": declaration,
        },
    )
    made.__signature__ = _signature(declaration, made._betas())  # type: ignore[attr-defined]
    return made
