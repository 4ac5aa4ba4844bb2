"""Optimizers whose step takes a parameter as a whole, with operators of ONNX.

These optimizers are declared in C++ with ``of_tensor``: Adafactor and AdamW8bit keep states of other shapes and types than the
weights, and Muon multiplies matrices. The library has no formula by element for them, so this module writes them a second time;
tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from ortrain.step._eight_bits import LEAST_ELEMENTS, blocks_of, decoded, encoded
from ortrain.step._formula_group import FormulaGroup, Parameter, StateForm, Update, adamw_group
from ortrain.step._nodes import Value

Settings = Mapping[str, float]
Shape = tuple[int, ...]


class TensorGroup:
    """The step of such an optimizer for a group of parameters. The attributes are the same as of :class:`FormulaGroup`."""

    factor = 1.0

    def __init__(self, described: Mapping[str, Any]) -> None:
        self.name: str = described["name"]
        self.parameters: list[str] = list(described["parameters"])
        self.scalars: dict[str, float] = {}
        # The library computes with settings in float.
        self.settings = {name: float(np.float32(value)) for name, value in described["settings"].items()}
        self.rate_factor = float(np.float32(described["rate_factor"]))

    def form(self, state: str, type: int, shape: Shape) -> StateForm | None:
        """Return the type and the shape of a state of a parameter, None if the parameter does not need it."""
        raise NotImplementedError

    def prepare(self, rate: Value, count: Value, scalars: dict[str, Value]) -> Update:
        """Return the function that writes the update of one parameter, as :meth:`FormulaGroup.prepare` does."""
        raise NotImplementedError

    def _scaled(self, rate: Value) -> Value:
        return rate if self.rate_factor == 1 else rate * self.rate_factor

    def _decayed(self, weight: Value, rate: Value) -> Value:
        decay = self.settings["weight_decay"]
        return weight if decay == 0 else weight * (1.0 - rate * decay)

    def _adamw(self) -> FormulaGroup:
        names = {"alpha": "beta1", "beta": "beta2", "epsilon": "epsilon", "weight_decay": "weight_decay"}
        settings = {name: self.settings[own] for name, own in names.items()}
        return adamw_group({**settings, "learning_rate_factor": self.rate_factor})


class Adafactor(TensorGroup):
    """Second moments of the rows and columns of matrices; more dimensions are a batch of matrices."""

    def form(self, state: str, type: int, shape: Shape) -> StateForm | None:
        of = {"row_moment": shape[:-1], "column_moment": (*shape[:-2], *shape[-1:]), "second_moment": shape}
        is_needed = state not in of or (len(shape) > 1) == (state != "second_moment")
        return (type, of.get(state, shape)) if is_needed else None

    def prepare(self, rate: Value, count: Value, scalars: dict[str, Value]) -> Update:
        rate, settings = self._scaled(rate), self.settings
        taken = count.call("Pow", count.number(settings["beta2_decay"]))
        kept = 1.0 - taken
        least_rate = rate.call("Min", 1.0 / count.call("Sqrt"))

        def update(parameter: Parameter, factor: float, shape: Shape) -> None:
            weight, gradient = parameter["w"], parameter["g"]
            root_of_count = math.sqrt(max(math.prod(shape), 1))
            if len(shape) > 1:
                normalized = self._of_matrices(parameter, taken, kept, shape)
            else:
                moment = parameter["second_moment"] * kept + gradient * gradient * taken
                parameter["second_moment"] = moment
                least = moment.number(self._smallest(moment) ** 2)
                normalized = gradient / moment.call("Max", least).call("Sqrt")
            # Root mean squares of the weights and of the step.
            size = _norm(weight) * (1 / root_of_count)
            excess = _norm(normalized) * (1 / (root_of_count * settings["limit"]))
            size = size.call("Max", size.number(settings["least_rms"]))
            length = size * least_rate / excess.call("Max", excess.number(1.0))
            parameter["w"] = self._decayed(weight, rate) - normalized * length

        return update

    def _of_matrices(self, parameter: Parameter, taken: Value, kept: Value, shape: Shape) -> Value:
        """Write the moments of rows and columns; return the normalized gradient."""
        gradient, (rows, columns) = parameter["g"], shape[-2:]
        squares = gradient * gradient
        of_rows = parameter["row_moment"] * kept + squares.reduced("ReduceSum", -1) * (taken * (1 / columns))
        of_columns = parameter["column_moment"] * kept + squares.reduced("ReduceSum", -2) * (
            taken * (1 / rows)
        )
        parameter["row_moment"], parameter["column_moment"] = of_rows, of_columns
        smallest = self._smallest(gradient)
        mean = of_rows.reduced("ReduceSum", -1, keepdims=True) * (1 / rows)
        row = _inverse_root(of_rows / mean.call("Max", mean.number(smallest)))
        product = row.unsqueezed(-1) * _inverse_root(of_columns).unsqueezed(-2)
        return gradient * product.call("Min", product.number(1 / smallest))

    def _smallest(self, value: Value) -> float:
        """Return the least root of a second moment."""
        return self.settings["epsilon"] or float(np.finfo(value.dtype).eps)


class Muon(TensorGroup):
    """Matrices with singular values moved towards 1 by Newton-Schulz iterations; AdamW for other parameters."""

    #: Coefficients of the polynomial that an iteration applies to the singular values.
    POLYNOMIAL = (3.4445, -4.7750, 2.0315)

    def form(self, state: str, type: int, shape: Shape) -> StateForm | None:
        is_needed = state != "second_moment" or not self._is_orthogonalized(shape)
        return (type, shape) if is_needed else None

    def _is_orthogonalized(self, shape: Shape) -> bool:
        return len(shape) == 2 and self.settings["matrices"] != 0

    def prepare(self, rate: Value, count: Value, scalars: dict[str, Value]) -> Update:
        of_others: list[Update] = []
        scaled = self._scaled(rate)

        def update(parameter: Parameter, factor: float, shape: Shape) -> None:
            if self._is_orthogonalized(shape):
                self._of_matrix(parameter, scaled, shape)
                return
            if not of_others:
                of_others.append(self._adamw().prepare(rate, count, {}))
            own = parameter | {"first_moment": parameter["momentum_buffer"]}
            of_others[0](own, factor, shape)
            parameter |= {name: own[name] for name in ("w", "second_moment")}
            parameter["momentum_buffer"] = own["first_moment"]

        return update

    def _of_matrix(self, parameter: Parameter, rate: Value, shape: Shape) -> None:
        settings, gradient = self.settings, parameter["g"]
        momentum, (rows, columns) = settings["momentum"], shape
        taken = gradient * (1 - momentum)
        buffer = parameter["momentum_buffer"] * momentum + taken
        parameter["momentum_buffer"] = buffer
        direction = buffer * momentum + taken if settings["nesterov"] else buffer
        direction = self._orthogonal(direction, rows > columns)
        factor = math.sqrt(max(1.0, rows / columns))
        if settings["match_rms"]:
            factor = 0.2 * math.sqrt(max(rows, columns))
        parameter["w"] = self._decayed(parameter["w"], rate) - direction * (rate * factor)

    def _orthogonal(self, x: Value, is_tall: bool) -> Value:
        a, b, c = self.POLYNOMIAL
        norm = _norm(x)
        x = x * (1.0 / norm.call("Max", norm.number(1e-7)))
        for _ in range(int(self.settings["steps"])):
            # Of the two products of the matrix and its transpose, the smaller one. So a tall matrix need not be transposed.
            square = x.call("Gemm", x, transA=1) if is_tall else x.call("Gemm", x, transB=1)
            polynomial = square.call("Gemm", square, square, alpha=c, beta=b)
            factors = (x, polynomial) if is_tall else (polynomial, x)
            x = factors[0].call("Gemm", factors[1], x, beta=a)
        return x


class AdamW8bit(TensorGroup):
    """AdamW with moments of 8 bits and a scale for each block; small parameters have moments of full precision."""

    def form(self, state: str, type: int, shape: Shape) -> StateForm | None:
        count = math.prod(shape)
        is_coded, is_scale = count >= LEAST_ELEMENTS, state in ("first_scale", "second_scale")
        if is_scale:
            return (TensorProto.FLOAT, (blocks_of(count),)) if is_coded else None
        code = TensorProto.INT8 if state == "first_moment" else TensorProto.UINT8
        return (code if is_coded and state.endswith("_moment") else type, shape)

    def prepare(self, rate: Value, count: Value, scalars: dict[str, Value]) -> Update:
        adamw = self._adamw().prepare(rate, count, {})

        def update(parameter: Parameter, factor: float, shape: Shape) -> None:
            if math.prod(shape) < LEAST_ELEMENTS:
                adamw(parameter, factor, shape)
                return
            type = parameter["w"].type
            parameter["first_moment"] = decoded(
                parameter["first_moment"], parameter["first_scale"], True, type, shape
            )
            root = decoded(parameter["second_moment"], parameter["second_scale"], False, type, shape)
            parameter["second_moment"] = root * root
            adamw(parameter, factor, shape)
            parameter["first_moment"], parameter["first_scale"] = encoded(
                parameter["first_moment"], True, shape
            )
            root = parameter["second_moment"].call("Sqrt")
            parameter["second_moment"], parameter["second_scale"] = encoded(root, False, shape)

        return update


#: The class of each optimizer by its name.
TENSOR_RULES: Mapping[str, Callable[[Mapping[str, Any]], TensorGroup]] = {
    "adafactor": Adafactor,
    "adamw_8bit": AdamW8bit,
    "muon": Muon,
}


def _norm(value: Value) -> Value:
    return value.call("ReduceSumSquare", keepdims=0).call("Sqrt")


def _inverse_root(moment: Value) -> Value:
    # Finite even for a moment of 0, so that no product of 0 and infinity appears for rows and columns without gradients.
    least = moment.number(float(np.finfo(moment.dtype).tiny))
    return 1.0 / moment.call("Max", least).call("Sqrt")
