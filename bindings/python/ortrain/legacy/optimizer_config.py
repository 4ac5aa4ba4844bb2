"""Hyperparameters of optimizers, checked when they are set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

_NAMES = ("AdamOptimizer", "LambOptimizer", "SGDOptimizer")

Group = Mapping[str, Any]


def _require(condition: bool, expected: str, found: object) -> None:
    """Raise the error of onnxruntime's classes, with the value that was found, unless a condition holds."""
    if not condition:
        raise AssertionError(f"{expected}, found {found!r}")


def _require_number(name: str, value: object) -> None:
    valid = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
    _require(valid, f"{name!r} must be a number that is not negative", value)


class _OptimizerConfig:
    """An optimizer's hyperparameters, and groups of parameters with other values.

    Parameters
    ----------
    name : str
        ``"AdamOptimizer"``, ``"LambOptimizer"`` or ``"SGDOptimizer"``.
    params : list of dict
        Groups: ``"params"`` is a list of names of parameters; the other entries replace defaults for these.
    defaults : dict
        The hyperparameters, ``"lr"`` among them.

    Attributes
    ----------
    name, lr, defaults
        As given.
    params : list of dict
        The groups, each with all hyperparameters.

    Raises
    ------
    AssertionError
        When a value is not valid.
    """

    def __init__(self, name: str, params: Sequence[Group], defaults: Mapping[str, Any]) -> None:
        _require(name in _NAMES, f"'name' must be one of {', '.join(_NAMES)}", name)
        _require(
            isinstance(defaults, dict) and "lr" in defaults, "'defaults' must be a dict with 'lr'", defaults
        )
        _require_number("lr", defaults["lr"])
        _require(isinstance(params, list), "'params' must be a list", params)
        for group in params:
            _require(
                isinstance(group, dict) and len(group) > 1 and "params" in group,
                "each group must have 'params', a list of names, and at least one hyperparameter",
                group,
            )
            for key in group:
                _require(
                    key == "params" or key.replace("_coef", "") in defaults or key in defaults,
                    f"a group may only set hyperparameters of {name}",
                    key,
                )
        self.name = name
        self.lr = float(defaults["lr"])
        self.defaults = dict(defaults)
        self.params = [self._complete(group) for group in params]

    def _complete(self, group: Group) -> dict[str, Any]:
        renamed = {"lambda" if key == "lambda_coef" else key: value for key, value in group.items()}
        return {**self.defaults, **renamed}


class SGDConfig(_OptimizerConfig):
    """Stochastic gradient descent.

    Parameters
    ----------
    params : list, optional
        Must be empty: there are no groups.
    lr : float, default: 0.001
        The learning rate.
    """

    def __init__(self, params: Sequence[Group] = (), lr: float = 0.001) -> None:
        _require(len(params) == 0, "'params' must be an empty list for SGDOptimizer", params)
        super().__init__("SGDOptimizer", [], {"lr": lr})


class _AdaptiveConfig(_OptimizerConfig):
    """The common part of Adam and Lamb."""

    def __init__(self, name: str, params: Sequence[Group], values: dict[str, Any]) -> None:
        for key in ("lr", "alpha", "beta", "lambda_coef", "epsilon"):
            _require_number(key, values[key])
        _require(values["max_norm_clip"] != 0, "'max_norm_clip' must not be 0", values["max_norm_clip"])
        corrects = values["do_bias_correction"]
        _require(isinstance(corrects, bool), "'do_bias_correction' must be a bool", corrects)
        for group in params:
            _require("lr" not in group, "'lr' is not supported inside params", group)
        defaults = {"lambda" if key == "lambda_coef" else key: value for key, value in values.items()}
        super().__init__(name, list(params), defaults)
        self.alpha: float = values["alpha"]
        self.beta: float = values["beta"]
        self.lambda_coef: float = values["lambda_coef"]
        self.epsilon: float = values["epsilon"]
        self.max_norm_clip: float = values["max_norm_clip"]
        self.do_bias_correction: bool = corrects


class AdamConfig(_AdaptiveConfig):
    """Adam.

    Parameters
    ----------
    params : list of dict, optional
        Groups of parameters, without ``"lr"``.
    lr : float, default: 0.001
        The learning rate.
    alpha, beta : float, default: 0.9 and 0.999
        Decay of the first and the second moment.
    lambda_coef : float, default: 0
        Weight decay.
    epsilon : float, default: 1e-8
        Added to the square root of the second moment.
    max_norm_clip : float, default: 1.0
        Limit of the norm of the gradients; not 0.
    do_bias_correction : bool, default: True
        Whether to correct the moments for starting at zero.
    weight_decay_mode : AdamConfig.DecayMode, default: BEFORE_WEIGHT_UPDATE
        When the weights decay.
    """

    class DecayMode(IntEnum):
        """When the weights decay in a step."""

        BEFORE_WEIGHT_UPDATE = 0
        AFTER_WEIGHT_UPDATE = 1

    def __init__(
        self,
        params: Sequence[Group] = (),
        lr: float = 0.001,
        alpha: float = 0.9,
        beta: float = 0.999,
        lambda_coef: float = 0.0,
        epsilon: float = 1e-8,
        max_norm_clip: float = 1.0,
        do_bias_correction: bool = True,
        weight_decay_mode: DecayMode = DecayMode.BEFORE_WEIGHT_UPDATE,
    ) -> None:
        mode_is_valid = isinstance(weight_decay_mode, AdamConfig.DecayMode)
        _require(mode_is_valid, "'weight_decay_mode' must be an AdamConfig.DecayMode", weight_decay_mode)
        values = {
            "lr": lr,
            "alpha": alpha,
            "beta": beta,
            "lambda_coef": lambda_coef,
            "epsilon": epsilon,
            "max_norm_clip": max_norm_clip,
            "do_bias_correction": do_bias_correction,
            "weight_decay_mode": weight_decay_mode,
        }
        super().__init__("AdamOptimizer", params, values)
        self.weight_decay_mode = weight_decay_mode


class LambConfig(_AdaptiveConfig):
    """Lamb: Adam with a step per parameter that is proportional to the norm of its weights.

    Parameters
    ----------
    params, lr, alpha, beta, lambda_coef, max_norm_clip
        As for :class:`AdamConfig`.
    ratio_min, ratio_max : float, default: -inf and inf
        Limits of the ratio of the norms of weights and update.
    epsilon : float, default: 1e-6
        Added to the square root of the second moment.
    do_bias_correction : bool, default: False
        Whether to correct the moments for starting at zero.
    """

    def __init__(
        self,
        params: Sequence[Group] = (),
        lr: float = 0.001,
        alpha: float = 0.9,
        beta: float = 0.999,
        lambda_coef: float = 0.0,
        ratio_min: float = -math.inf,
        ratio_max: float = math.inf,
        epsilon: float = 1e-6,
        max_norm_clip: float = 1.0,
        do_bias_correction: bool = False,
    ) -> None:
        for name, limit in (("ratio_min", ratio_min), ("ratio_max", ratio_max)):
            _require(isinstance(limit, float), f"{name!r} must be a float", limit)
        values = {
            "lr": lr,
            "alpha": alpha,
            "beta": beta,
            "lambda_coef": lambda_coef,
            "ratio_min": ratio_min,
            "ratio_max": ratio_max,
            "epsilon": epsilon,
            "max_norm_clip": max_norm_clip,
            "do_bias_correction": do_bias_correction,
        }
        super().__init__("LambOptimizer", params, values)
        self.ratio_min = ratio_min
        self.ratio_max = ratio_max
