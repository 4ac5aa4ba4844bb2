"""GridSample, against the reference evaluator and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, make_model, run, uniform
from onnx.reference import ReferenceEvaluator

SPECIAL_POINTS = {"not recorded": ["GridSample"]}


def sample(x: Array, grid: Array, mode: str, padding: str, align: int) -> Array:
    """The reference implementation, which stores coordinates in float."""
    op = Op(
        "GridSample",
        {"mode": mode, "padding_mode": padding, "align_corners": align},
        opset=20,
    )
    return ReferenceEvaluator(make_model(op, [x, grid])).run(None, {"x0": x, "x1": grid})[0]


GRIDS = {
    "1d": ((2, 2, 6), (2, 5, 1)),
    "2d": ((2, 3, 4, 5), (2, 3, 4, 2)),
    "2d-narrow": ((1, 1, 1, 3), (1, 2, 3, 2)),
    "3d": ((1, 2, 3, 4, 2), (1, 2, 2, 3, 3)),
}


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("name", GRIDS)
def test_grid_sample(name: str, mode: str, padding: str, align: int) -> None:
    if "narrow" in name and align and padding == "reflection":
        pytest.skip("a single pixel has no inside to be mirrored into")
    shape, places = GRIDS[name]
    x = uniform(*shape)
    for reach in (0.9, 2.7):
        grid = uniform(*places, low=-reach, high=reach, seed=int(10 * reach))
        op = Op("GridSample", {"mode": mode, "padding_mode": padding, "align_corners": align}, opset=20)
        expected = sample(x, grid, mode, padding, align)
        check_forward(op, [x, grid], [expected], rtol=2e-5)
        single = [x.astype(np.float32), grid.astype(np.float32)]
        check_forward(op, single, [expected.astype(np.float32)], rtol=2e-5)
        check_gradient(op, [x, grid], step=1e-6)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample_by_its_older_names(mode: str) -> None:
    inputs = [uniform(1, 2, 4, 5), uniform(1, 3, 3, 2)]
    newer = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}[mode]
    expected = run(Op("GridSample", {"mode": newer}, opset=20), inputs)
    check_forward(Op("GridSample", {"mode": mode}, opset=16), inputs, expected)
    check_gradient(Op("GridSample", {"mode": mode}, opset=16), inputs)


@pytest.mark.parametrize("wrt", [(0,), (1,)])
def test_gradient_of_some_inputs_of_grid_sample(wrt: tuple[int, ...]) -> None:
    check_gradient(Op("GridSample", opset=16), [uniform(1, 2, 4, 5), uniform(1, 3, 3, 2)], wrt=wrt)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_places_without_meaning_read_nothing_they_may_not(padding: str) -> None:
    grid = np.array([np.nan, 0, np.inf, 0, 1e300, 0, -1e300, -np.inf, 1e18, -1e18]).reshape(1, 1, 5, 2)
    for mode in ("nearest", "linear", "cubic"):
        for shape in ((1, 2, 3, 4), (1, 2, 1, 1)):
            op = Op("GridSample", {"mode": mode, "padding_mode": padding, "align_corners": 1}, opset=20)
            found = run(op, [np.ones(shape), grid])[0]
            assert np.isfinite(found).all()
            if padding == "zeros" and shape == (1, 2, 3, 4):
                assert not found.any()


def test_grid_sample_of_nothing() -> None:
    op = Op("GridSample", opset=20)
    assert run(op, [np.zeros((0, 2, 3, 3)), np.zeros((0, 4, 5, 2))])[0].shape == (0, 2, 4, 5)
    assert run(op, [np.zeros((1, 2, 3, 3)), np.zeros((1, 0, 5, 2))])[0].shape == (1, 2, 0, 5)
    check_gradient(op, [uniform(1, 2, 3, 3), np.zeros((1, 0, 5, 2))])


def test_grids_that_do_not_fit_are_rejected() -> None:
    x, grid = uniform(1, 2, 4, 5), uniform(1, 3, 3, 2)
    op = Op("GridSample", opset=20)
    check_rejected(op, [x, uniform(2, 3, 3, 2)], "first of size 1")
    check_rejected(op, [x, uniform(1, 3, 3, 3)], "last of size 2")
    check_rejected(op, [uniform(1, 2), grid], "must have shape")
    check_rejected(op, [np.zeros((1, 2, 0, 5)), grid], "no elements to sample")
    check_rejected(Op("GridSample", {"mode": "area"}, opset=20), [x, grid], "found 'area'")
    check_rejected(Op("GridSample", {"padding_mode": "wrap"}, opset=20), [x, grid], "found 'wrap'")
