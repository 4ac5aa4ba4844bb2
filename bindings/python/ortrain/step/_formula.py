"""Formulas of optimizers as lists of nodes, and the search for the form with the fewest passes over a parameter.

A node of a standard operator reads and writes every element, even if it only multiplies by a number. The node that computes a
gradient, such as Gemm, can often multiply by a number at no cost. With the right number, a formula needs one multiplication
fewer: AdamW computes (1-β) g² as the square of √(1-β) g. Around a division, multiplications by numbers of the step and a sum
can be one node: s m / (r √v + ε) is m / (r/s √v + ε/s).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np

#: An operator that ONNX does not have: a value times a number plus a number.
AFFINE = "Affine"
#: A node by its index, or a number in a list.
Operand = int | list[float]
#: The input that can be multiplied by a number at no cost.
_GRADIENT = "g"


@dataclass
class Formula:
    """The step of an optimizer for a parameter, as the library describes it.

    Attributes
    ----------
    nodes : list of dict
        Each has "input", the name of an input, or "op" and "inputs", an operator of ONNX or AFFINE, and its operands.
    shared : set of int
        The nodes that are the same for all parameters of a group.
    results : dict of str to operand
        The values of a parameter after the step, by name.
    scalars : dict of str to operand
        The numbers that a group keeps from step to step: their values after the step.
    """

    nodes: list[dict[str, Any]] = field(default_factory=list)
    shared: set[int] = field(default_factory=set)
    results: dict[str, Operand] = field(default_factory=dict)
    scalars: dict[str, Operand] = field(default_factory=dict)

    def add(self, node: dict[str, Any], is_shared: bool) -> int:
        """Add a node, unless an equal one is there; return its index."""
        if node not in self.nodes:
            self.nodes.append(node)
            self.shared |= {len(self.nodes) - 1} if is_shared else set()
        return self.nodes.index(node)

    def _needed(self) -> set[int]:
        """Return the nodes that are computed for each parameter."""
        needed: set[int] = set()
        waiting: list[Operand] = list(self.results.values())
        while waiting:
            operand = waiting.pop()
            if isinstance(operand, int) and operand not in needed | self.shared:
                needed.add(operand)
                waiting += self.nodes[operand].get("inputs", [])
        return needed

    def passes(self) -> int:
        """Return the number of nodes that are computed for each parameter."""
        return sum("op" in self.nodes[node] for node in self._needed())

    def with_affine(self) -> Formula:
        """Return the formula with one node for the multiplications and the sum around a division; it shares its nodes."""
        users = Counter(
            x for at in self._needed() for x in self.nodes[at].get("inputs", []) if isinstance(x, int)
        )
        users.update(x for x in self.results.values() if isinstance(x, int))
        made = Formula(self.nodes, self.shared, scalars=self.scalars)
        known: dict[int, int] = {}

        def rebuilt(operand: Operand) -> Operand:
            if isinstance(operand, list) or operand in self.shared or "input" in self.nodes[operand]:
                return operand
            if operand not in known:
                node = self.nodes[operand]
                inputs = self._affine_division(node, users) or node["inputs"]
                node = {"op": node["op"], "inputs": [rebuilt(x) for x in inputs]}
                known[operand] = self.add(node, is_shared=False)
            return known[operand]

        made.results = {name: rebuilt(operand) for name, operand in self.results.items()}
        return made

    def _affine_division(self, node: dict[str, Any], users: Counter[int]) -> list[Operand] | None:
        """Return the operands of a division with an affine denominator; None if this form saves nothing."""
        if node["op"] != "Div":
            return None
        value, number = self._split("Add", node["inputs"][1], users)
        root, scale = self._split("Mul", value, users)
        dividend, factor = self._split("Mul", node["inputs"][0], users)
        if number is None or (scale is None and factor is None):
            return None
        scale, offset = [1.0] if scale is None else scale, number
        if factor is not None:
            # If the factor, such as a learning rate, is 0, the result has to be 0, so the divisor becomes infinite.
            is_zero = self.add({"op": "Equal", "inputs": [factor, [0.0]]}, is_shared=True)
            divisor = self.add({"op": "Where", "inputs": [is_zero, [1.0], factor]}, is_shared=True)
            scale = self.add({"op": "Div", "inputs": [scale, divisor]}, is_shared=True)
            offset = self.add({"op": "Div", "inputs": [number, divisor]}, is_shared=True)
            offset = self.add({"op": "Where", "inputs": [is_zero, [math.inf], offset]}, is_shared=True)
        affine = self.add({"op": AFFINE, "inputs": [root, scale, offset]}, is_shared=False)
        return [dividend, affine]

    def _split(self, op: str, operand: Operand, users: Counter[int]) -> tuple[Operand, Operand | None]:
        """Return the value and the number of a sum or product with a single reader; otherwise the operand, and None."""
        if isinstance(operand, int) and self.nodes[operand].get("op") == op and users[operand] == 1:
            for value, number in permutations(self.nodes[operand]["inputs"]):
                is_number = isinstance(number, list) or number in self.shared
                if is_number and isinstance(value, int) and value not in self.shared:
                    return value, number
        return operand, None

    def for_multiple(self, factor: float, beside: Formula | None = None) -> Formula:
        """Return the formula for `factor` times the gradient in the place of the gradient.

        Multiplications by numbers are moved after products and quotients, and joined. The result shares nodes with `beside`,
        the formula for another factor.
        """
        made = Formula() if beside is None else Formula(beside.nodes, beside.shared)
        _Rewriting(self, factor, made)
        return made

    def best_factor(self) -> float:
        """Return the factor of the gradient with which the formula has the fewest passes; 1 if no factor saves a pass."""
        candidates = [1.0, *sorted(set(_factors_in(self)))]
        return min(candidates, key=lambda factor: self.for_multiple(factor).passes())


def _factors_in(formula: Formula) -> Iterable[float]:
    """Return the numbers by which the formula multiplies the gradient, and the roots of the factors of its square."""
    for node in formula.nodes:
        if node.get("op") != "Mul":
            continue
        numbers = [x[0] for x in node["inputs"] if isinstance(x, list)]
        values = [formula.nodes[x] for x in node["inputs"] if isinstance(x, int)]
        if len(numbers) != 1 or numbers[0] <= 0:
            continue
        if values[0].get("input") == _GRADIENT:
            yield numbers[0]
        elif values[0].get("op") == "Mul" and all(
            isinstance(x, int) and formula.nodes[x].get("input") == _GRADIENT for x in values[0]["inputs"]
        ):
            yield math.sqrt(numbers[0])


@dataclass(frozen=True)
class _Multiple:
    """A number times a node; only the number if there is no node."""

    number: float
    node: int | None = None


class _Rewriting:
    def __init__(self, formula: Formula, factor: float, made: Formula) -> None:
        self._formula, self._factor, self._made = formula, factor, made
        self._known: dict[int, _Multiple] = {}
        for at in range(len(formula.nodes)):
            self._known[at] = self._rewritten(at)
        for before, after in ((formula.results, made.results), (formula.scalars, made.scalars)):
            for name, operand in before.items():
                after[name] = self._operand(self._multiple(operand))

    def _multiple(self, operand: Operand) -> _Multiple:
        return _Multiple(operand[0]) if isinstance(operand, list) else self._known[operand]

    def _add(self, node: dict[str, Any]) -> int:
        read = [x for x in node["inputs"] if isinstance(x, int)]
        return self._made.add(node, all(x in self._made.shared for x in read))

    def _operand(self, value: _Multiple) -> Operand:
        """Return a value as an operand; add the multiplication by its number, if it has one."""
        if value.node is None:
            return [value.number]
        if np.float32(value.number) == 1:
            return value.node
        return self._add({"op": "Mul", "inputs": [value.node, [value.number]]})

    def _rewritten(self, at: int) -> _Multiple:
        node = self._formula.nodes[at]
        if "input" in node:
            number = 1 / self._factor if node["input"] == _GRADIENT else 1.0
            return _Multiple(number, self._made.add(dict(node), at in self._formula.shared))
        values = [self._multiple(x) for x in node["inputs"]]
        match node["op"], values:
            case "Mul", [a, b]:
                return self._product(a, b)
            case "Div", [a, _Multiple(number, None)]:
                return _Multiple(a.number / number, a.node)
            case "Div", [_Multiple(_, int()) as a, b]:
                return self._combined("Div", a, b, a.number / b.number)
            case "ReduceSum", [a]:
                return _Multiple(a.number, self._add({"op": "ReduceSum", "inputs": [a.node]}))
            case "ReduceSumSquare", [a]:
                return _Multiple(a.number**2, self._add({"op": "ReduceSumSquare", "inputs": [a.node]}))
        return _Multiple(
            1.0, self._add({"op": node["op"], "inputs": [self._operand(value) for value in values]})
        )

    def _product(self, a: _Multiple, b: _Multiple) -> _Multiple:
        number = a.number * b.number
        if a.node is None or b.node is None:
            return _Multiple(number, b.node if a.node is None else a.node)
        return self._combined("Mul", a, b, number)

    def _combined(self, op: str, a: _Multiple, b: _Multiple, number: float) -> _Multiple:
        """Return `number` times a product or quotient of nodes.

        If one of the nodes is shared, the number multiplies that node.
        """
        is_shared = [value.node in self._made.shared for value in (a, b)]
        operands: list[Operand | None] = [a.node, b.node]
        if is_shared == [True, False]:
            operands[0] = self._operand(_Multiple(number, a.node))
        elif is_shared == [False, True]:
            operands[1] = self._operand(_Multiple(number if op == "Mul" else 1 / number, b.node))
        else:
            return _Multiple(number, self._add({"op": op, "inputs": operands}))
        return _Multiple(1.0, self._add({"op": op, "inputs": operands}))


def read(described: Mapping[str, Any]) -> Formula:
    """Return the formula of a group as :func:`ortrain._ortrain.get_optimizer_formulas` describes it."""
    return Formula(
        list(described["nodes"]),
        set(range(described["shared"])),
        dict(described["results"]),
        dict(described["scalars_after"]),
    )
