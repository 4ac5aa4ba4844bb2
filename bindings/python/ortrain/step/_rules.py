"""The steps of the optimizers as formulas on values of a graph, one function for each that the library declares.

A function gets the numbers of a step, writes what is the same for all parameters, and returns the function that writes
the update of one parameter. The formulas are those of ``core/src/backend/cpu/optimizer/rules``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ortrain.step._nodes import Value

#: The smallest normal float.
_SMALLEST = 1.1754943508222875e-38
#: What a parameter's update gets, and changes: weight "w", gradient "g", and the states by their names.
Parameter = dict[str, Value]
Update = Callable[[Parameter], None]


@dataclass
class Step:
    """The numbers of a step of one group of parameters.

    Attributes
    ----------
    settings : mapping of str to float
        The settings of the optimizer.
    rate, count : Value
        The learning rate, and the number of this step from 1 on, as floats.
    scalars : dict of str to Value
        Numbers that the group keeps from step to step; a rule replaces them.
    """

    settings: Mapping[str, float]
    rate: Value
    count: Value
    scalars: dict[str, Value] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        return self.settings[name]

    @property
    def kept(self) -> Value | None:
        """What a decay that is a fraction of the learning rate leaves of a weight; None for all of it."""
        decay = self["weight_decay"]
        return None if decay == 0 else 1.0 - self.rate * decay

    def one_minus_power(self, base: float) -> Value:
        """1 - base^t without cancellation: with a = t ln(base) / 2, it is -2 exp(a) sinh(a)."""
        if base == 0:
            return self.count.number(1.0)
        half = self.count * (0.5 * math.log(base))
        return -2.0 * (half.call("Exp") * half.call("Sinh"))

    def root_scale(self, base: float) -> Value:
        """1 / sqrt(1 - base^t)."""
        return self.one_minus_power(base).call("Sqrt").call("Reciprocal")

    def decayed(self, p: Parameter) -> Value:
        """Return the gradient with the multiple of the weight that is added to it."""
        return p["g"] + p["w"] * self["weight_decay"] if self["weight_decay"] else p["g"]


def _mix(average: Value, x: Value, kept: float) -> Value:
    return average * kept + x * (1 - kept)


def _moments(p: Parameter, g: Value, beta1: float, beta2: float) -> tuple[Value, Value]:
    p["first_moment"] = _mix(p["first_moment"], g, beta1)
    p["second_moment"] = _mix(p["second_moment"], g * g, beta2)
    return p["first_moment"], p["second_moment"]


def _times(value: Value, kept: Value | None) -> Value:
    return value if kept is None else value * kept


def _adamw(s: Step) -> Update:
    """Of Hugging Face (``adam_mode`` 1: the weights decay last, epsilon is added before the correction), or of PyTorch (0)."""
    decays_last = s["adam_mode"] == 1
    step_size, root_scale = s.rate, None
    if s["correct_bias"]:
        step_size = s.rate / s.one_minus_power(s["alpha"])
        if decays_last:
            step_size = step_size * s.one_minus_power(s["beta"]).call("Sqrt")
        else:
            root_scale = s.root_scale(s["beta"])
    kept = s.kept

    def update(p: Parameter) -> None:
        first, second = _moments(p, p["g"], s["alpha"], s["beta"])
        change = (first / (_times(second.call("Sqrt"), root_scale) + s["epsilon"])) * step_size
        p["w"] = _times(p["w"] - change, kept) if decays_last else _times(p["w"], kept) - change

    return update


def _sgd(s: Step) -> Update:
    taken = None
    if s["dampening"]:
        taken = s.count.equals(1.0).choose(s.count.number(1.0), s.count.number(1 - s["dampening"]))

    def update(p: Parameter) -> None:
        g = s.decayed(p)
        if "momentum_buffer" not in p:
            p["w"] = p["w"] - g * s.rate
            return
        p["momentum_buffer"] = p["momentum_buffer"] * s["momentum"] + _times(g, taken)
        step = p["momentum_buffer"]
        if s["nesterov"]:
            step = step * s["momentum"] + g
        p["w"] = p["w"] - step * s.rate

    return update


def _adam(s: Step) -> Update:
    step_size = s.rate / s.one_minus_power(s["beta1"])
    root_scale = s.root_scale(s["beta2"])

    def update(p: Parameter) -> None:
        first, second = _moments(p, s.decayed(p), s["beta1"], s["beta2"])
        if "largest_second_moment" in p:
            second = p["largest_second_moment"] = p["largest_second_moment"].call("Max", second)
        p["w"] = p["w"] - (first * step_size) / (second.call("Sqrt") * root_scale + s["epsilon"])

    return update


def _adamax(s: Step) -> Update:
    step_size = s.rate / s.one_minus_power(s["beta1"])

    def update(p: Parameter) -> None:
        g = s.decayed(p)
        p["first_moment"] = _mix(p["first_moment"], g, s["beta1"])
        largest = (p["largest_gradient"] * s["beta2"]).call("Max", g.call("Abs") + s["epsilon"])
        p["largest_gradient"] = largest
        p["w"] = p["w"] - (p["first_moment"] * step_size) / largest

    return update


def _adadelta(s: Step) -> Update:
    def update(p: Parameter) -> None:
        g = s.decayed(p)
        squares = p["second_moment"] = _mix(p["second_moment"], g * g, s["rho"])
        root = (p["squared_change"] + s["epsilon"]).call("Sqrt")
        change = root / (squares + s["epsilon"]).call("Sqrt") * g
        p["squared_change"] = _mix(p["squared_change"], change * change, s["rho"])
        p["w"] = p["w"] - change * s.rate

    return update


def _adagrad(s: Step) -> Update:
    rate = s.rate if s["rate_decay"] == 0 else s.rate / (1.0 + (s.count - 1.0) * s["rate_decay"])
    added = None
    if s["initial_sum"]:
        added = s.count.equals(1.0).choose(s.count.number(s["initial_sum"]), s.count.number(0.0))

    def update(p: Parameter) -> None:
        g = s.decayed(p)
        before = p["sum_of_squares"] if added is None else p["sum_of_squares"] + added
        p["sum_of_squares"] = before + g * g
        p["w"] = p["w"] - (g * rate) / (p["sum_of_squares"].call("Sqrt") + s["epsilon"])

    return update


def _rmsprop(s: Step) -> Update:
    def update(p: Parameter) -> None:
        g = s.decayed(p)
        variance = p["second_moment"] = _mix(p["second_moment"], g * g, s["rho"])
        if "first_moment" in p:
            mean = p["first_moment"] = _mix(p["first_moment"], g, s["rho"])
            variance = (variance - mean * mean).call("Max", variance.number(0.0))
        step = g / (variance.call("Sqrt") + s["epsilon"])
        if "momentum_buffer" in p:
            step = p["momentum_buffer"] = p["momentum_buffer"] * s["momentum"] + step
        p["w"] = p["w"] - step * s.rate

    return update


def _lion(s: Step) -> Update:
    kept = s.kept

    def update(p: Parameter) -> None:
        direction = _mix(p["first_moment"], p["g"], s["beta1"]).call("Sign")
        p["w"] = _times(p["w"], kept) - direction * s.rate
        p["first_moment"] = _mix(p["first_moment"], p["g"], s["beta2"])

    return update


def _nadam(s: Step) -> Update:
    def momentum(step: Value) -> Value:
        decay = (step * (s["momentum_decay"] * math.log(0.96))).call("Exp")
        return s["beta1"] * (1.0 - 0.5 * decay)

    now, later = momentum(s.count), momentum(s.count + 1.0)
    product = s.scalars["momentum_product"] = s.scalars["momentum_product"] * now
    of_gradient = s.rate * (1.0 - now) / (1.0 - product)
    of_moment = s.rate * later / (1.0 - product * later)
    decoupled = bool(s["decoupled_weight_decay"])
    kept, root_scale = s.kept if decoupled else None, s.root_scale(s["beta2"])

    def update(p: Parameter) -> None:
        g = p["g"] if decoupled else s.decayed(p)
        first, second = _moments(p, g, s["beta1"], s["beta2"])
        step = first * of_moment + g * of_gradient
        p["w"] = _times(p["w"], kept) - step / (second.call("Sqrt") * root_scale + s["epsilon"])

    return update


def _radam(s: Step) -> Update:
    """While the variance of the second moment is unknown, for lengths up to 5, the step does not use it."""
    unseen = s.one_minus_power(s["beta2"])
    most = 2 / (1 - s["beta2"]) - 1
    length = most - 2.0 * s.count * (1.0 - unseen) / unseen
    step_size = s.rate / s.one_minus_power(s["beta1"])
    known = length.above(5.0)
    safe = length.call("Max", length.number(5.0))
    scale = most / ((most - 4) * (most - 2)) if most > 4 else 0.0
    ratio = (safe - 4.0) * (safe - 2.0) * scale / safe
    adaptive = known.choose(step_size * (unseen * ratio).call("Sqrt"), length.number(0.0))
    plain = known.choose(length.number(0.0), step_size)
    decoupled = bool(s["decoupled_weight_decay"])
    kept = s.kept if decoupled else None

    def update(p: Parameter) -> None:
        g = p["g"] if decoupled else s.decayed(p)
        first, second = _moments(p, g, s["beta1"], s["beta2"])
        root = second.call("Sqrt") + s["epsilon"]
        root = root.call("Max", root.number(_SMALLEST))  # no 0 / 0 where epsilon is 0
        p["w"] = _times(p["w"], kept) - first * (adaptive.as_type(root.type) / root + plain)

    return update


def _lamb(s: Step) -> Update:
    scale, root_scale = s.one_minus_power(s["beta1"]), s.root_scale(s["beta2"])

    def update(p: Parameter) -> None:
        first, second = _moments(p, p["g"], s["beta1"], s["beta2"])
        direction = first / scale / (second.call("Sqrt") * root_scale + s["epsilon"])
        if s["weight_decay"]:
            direction = direction + p["w"] * s["weight_decay"]
        norms = [x.call("ReduceSumSquare", keepdims=0).call("Sqrt") for x in (p["w"], direction)]
        usable = norms[0].call("Min", norms[1]).above(0.0)
        one = norms[0].number(1.0)
        trust = usable.choose(norms[0], one) / usable.choose(norms[1], one)
        p["w"] = p["w"] - direction * (trust * s.rate)

    return update


def _ademamix(s: Step) -> Update:
    """During the warmup, the weight of the slow average grows evenly, and its half-life too."""
    beta3: Value | float = s["beta3"]
    slow: Value | float = s["alpha"]
    if (warmup := s["warmup_steps"]) > 0:
        part = (s.count * (1 / warmup)).call("Min", s.count.number(1.0))
        slow = part * s["alpha"]
        first, last = math.log(s["beta1"]), math.log(s["beta3"])
        growing = (first * last / (last + part * (first - last))).call("Exp")
        beta3 = growing.call("Min", growing.number(s["beta3"]))
    scale, root_scale, kept = s.one_minus_power(s["beta1"]), s.root_scale(s["beta2"]), s.kept

    def update(p: Parameter) -> None:
        first, second = _moments(p, p["g"], s["beta1"], s["beta2"])
        old = p["slow_moment"]
        p["slow_moment"] = old * beta3 + p["g"] * (1.0 - beta3)
        step = p["slow_moment"] * slow + first / scale
        step = step / (second.call("Sqrt") * root_scale + s["epsilon"])
        p["w"] = _times(p["w"], kept) - step * s.rate

    return update


#: By the name of the optimizer.
RULES: dict[str, Callable[[Step], Update]] = {
    "adadelta": _adadelta,
    "adagrad": _adagrad,
    "adam": _adam,
    "adamax": _adamax,
    "adamw": _adamw,
    "ademamix": _ademamix,
    "amsgrad": _adam,
    "lamb": _lamb,
    "lion": _lion,
    "nadam": _nadam,
    "radam": _radam,
    "rmsprop": _rmsprop,
    "sgd": _sgd,
}
#: What an optimizer keeps for a group from step to step, and its first value.
SCALARS: dict[str, dict[str, float]] = {"nadam": {"momentum_product": 1.0}}
