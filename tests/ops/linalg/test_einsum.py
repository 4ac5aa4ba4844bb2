"""Einsum against numpy.einsum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, uniform

CASES: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
    ("ij->ji", ((2, 3),)),
    ("ij->ij", ((2, 3),)),
    ("ij->", ((2, 3),)),
    ("ij", ((2, 3),)),
    ("ba", ((2, 3),)),
    ("->", ((),)),
    ("ijk->j", ((2, 3, 4),)),
    ("ii", ((3, 3),)),
    ("ii->i", ((3, 3),)),
    ("iij->j", ((3, 3, 2),)),
    ("iii->i", ((2, 2, 2),)),
    ("ijij->ji", ((2, 3, 2, 3),)),
    ("ijj,jk->ik", ((2, 3, 3), (3, 4))),
    ("ij,jk->ik", ((2, 3), (3, 4))),
    ("ij,jk", ((2, 3), (3, 4))),
    ("ij,kj->ki", ((2, 3), (4, 3))),
    ("ji,jk->ik", ((3, 2), (3, 4))),
    ("i,i", ((3,), (3,))),
    ("i,j->ij", ((3,), (4,))),
    ("i,j->ji", ((3,), (4,))),
    ("ij,ij->ij", ((2, 3), (2, 3))),
    ("ij,i->ij", ((2, 3), (2,))),
    ("ij,kl->", ((2, 3), (4, 2))),
    ("ij,kl->ki", ((2, 3), (4, 2))),
    (",i->i", ((), (3,))),
    ("bij,bjk->bik", ((2, 3, 4), (2, 4, 2))),
    ("bhqd,bhkd->bhqk", ((2, 2, 3, 4), (2, 2, 5, 4))),
    ("bqhd,bkhd->bhqk", ((2, 3, 2, 4), (2, 5, 2, 4))),
    ("bhqk,bkhd->bqhd", ((2, 2, 3, 5), (2, 5, 2, 4))),
    ("aBc,cA->AaB", ((2, 3, 4), (4, 2))),
    ("...ij,...jk->...ik", ((2, 3, 4), (2, 4, 2))),
    ("...ij,...jk->...ik", ((2, 1, 3, 4), (3, 4, 2))),
    ("...ij,jk", ((2, 3, 4), (4, 2))),
    ("...ii->...i", ((2, 3, 3),)),
    ("i...->...", ((3, 2, 4),)),
    ("...,...", ((2, 3), (2, 3))),
    ("i...,...j->...ij", ((2, 3), (3, 4))),
    (" i j , j k -> i k ", ((2, 3), (3, 4))),
    ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 2))),
    ("ij,jk,kl,lm->mi", ((2, 3), (3, 4), (4, 2), (2, 3))),
    ("i,i,i->i", ((3,), (3,), (3,))),
    ("ab,bc,ca", ((2, 3), (3, 4), (4, 2))),
    ("bn,anm,bm->ba", ((2, 3), (2, 3, 4), (2, 4))),
    ("ij,jk->ik", ((1, 3), (3, 1))),
    ("ij,jk->ik", ((2, 1), (1, 2))),
    ("ij,jk->ik", ((2, 0), (0, 2))),
    ("ij,jk->ik", ((0, 3), (3, 2))),
    ("ij->i", ((2, 0),)),
]


def case(
    equation: str, shapes: tuple[tuple[int, ...], ...], dtype: Any = np.float64
) -> tuple[Op, list[Array]]:
    inputs = [uniform(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
    return Op("Einsum", {"equation": equation}), inputs


def expected(equation: str, inputs: list[Array]) -> Array:
    # NumPy has no empty term.
    return np.asarray(inputs[0] if equation == "->" else np.einsum(equation.replace(" ", ""), *inputs))


@pytest.mark.parametrize(("equation", "shapes"), CASES)
def test_values(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    for dtype in (np.float32, np.float64):
        op, inputs = case(equation, shapes, dtype)
        check_forward(op, inputs, [expected(equation, inputs)])


@pytest.mark.parametrize(("equation", "shapes"), CASES)
def test_gradients(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    op, inputs = case(equation, shapes)
    check_gradient(op, inputs)


def test_the_gradient_of_an_operand_that_is_used_twice() -> None:
    op, inputs = case("ij,kj->ik", ((2, 3), (2, 3)))
    check_gradient(op, inputs)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij,jk->", "ij,ij->ij", "ij,jk->ki"])
def test_integers(dtype: Any, equation: str) -> None:
    generator = np.random.default_rng(0)
    inputs = [generator.integers(0, 50, (3, 3)).astype(dtype) for _ in range(2)]
    check_forward(Op("Einsum", {"equation": equation}), inputs, [np.einsum(equation, *inputs).astype(dtype)])


def test_large_products_are_shared_among_threads() -> None:
    for equation, shapes in (
        ("bqhd,bkhd->bhqk", ((2, 64, 4, 32), (2, 64, 4, 32))),
        ("ij,jk->ki", ((300, 200), (200, 100))),
        ("ijk->k", ((50, 60, 70),)),
    ):
        op, inputs = case(equation, shapes, np.float32)
        check_forward(op, inputs, [expected(equation, inputs)], rtol=2e-5)


@pytest.mark.parametrize("opset", [12, 17, 28])
def test_versions(opset: int) -> None:
    op = Op("Einsum", {"equation": "ij,jk->ik"}, opset=opset)
    inputs = [uniform(2, 3), uniform(3, 4)]
    check_forward(op, inputs, [inputs[0] @ inputs[1]])
    check_gradient(op, inputs)


@pytest.mark.parametrize(
    ("equation", "shapes", "match"),
    [
        ("ij,jk->ik", ((2, 3), (4, 5)), "dimensions 3 and 4 of 'j' differ"),
        ("ij,jk->ik", ((2, 3),), "2 terms for 1 operand"),
        ("ijk->i", ((2, 3),), "names 3 axes, but its operand has 2"),
        ("ij->k", ((2, 3),), "'k' that no operand has"),
        ("ij->ii", ((2, 3),), "names the same axis twice"),
        ("i1->i", ((2, 3),), "where a letter should be"),
        ("...ijk->i", ((2, 3),), "names 3 axes"),
        ("...i,...i->...", ((2, 3), (4, 3)), "ellipsis differ"),
    ],
)
def test_bad_equations_are_rejected(equation: str, shapes: tuple[tuple[int, ...], ...], match: str) -> None:
    op, inputs = case(equation, shapes)
    check_rejected(op, inputs, match)
