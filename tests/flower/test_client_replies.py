"""What a server accepts from a client; nothing here needs Flower."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path

import numpy as np
import ortrain
import pytest

# The package around the module needs Flower.
SPEC = importlib.util.spec_from_file_location(
    "client_replies", Path(ortrain.__file__).parent / "flower/client_replies.py"
)
client_replies = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = client_replies  # where dataclasses look for it
SPEC.loader.exec_module(client_replies)

ArraySpec, spec_of = client_replies.ArraySpec, client_replies.spec_of
array_problem, arrays_problem = client_replies.array_problem, client_replies.arrays_problem
entries_problem, metrics_problem = client_replies.entries_problem, client_replies.metrics_problem
odd_ones = client_replies.odd_ones

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)
EXPECTED = {"w": spec_of(WEIGHT), "b": ArraySpec((3,), np.dtype(np.float32))}


def readers(**arrays):
    return {name: lambda array=array: array for name, array in arrays.items()}


BIAS = np.ones(3, np.float32)


@pytest.mark.parametrize(
    "found",
    [
        readers(w=WEIGHT, b=BIAS),
        readers(b=BIAS, w=WEIGHT),
        readers(w=WEIGHT.astype(np.float64), b=BIAS),  # as some of Flower's modules send it
        readers(w=np.asfortranarray(WEIGHT), b=BIAS.astype(">f4")),
        readers(w=WEIGHT, b=np.full(3, np.finfo(np.float32).max)),
        readers(w=WEIGHT, b=np.ones(3, np.float16)),
    ],
)
def test_arrays_as_asked_for(found):
    assert arrays_problem(found, EXPECTED) == ""


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (readers(w=WEIGHT), "arrays: expected w, b, found no b"),
        (readers(), "arrays: expected w, b, found no w, b"),
        (readers(w=WEIGHT, b=BIAS, c=BIAS), "arrays: expected w, b, found also c"),
        (readers(w=WEIGHT, c=BIAS), "arrays: expected w, b, found no b and also c"),
        (readers(w=WEIGHT.T, b=BIAS), "w: expected the shape (2, 3), found (3, 2)"),
        (readers(w=WEIGHT.ravel(), b=BIAS), "w: expected the shape (2, 3), found (6,)"),
        (readers(w=WEIGHT, b=np.array(1.0, np.float32)), "b: expected the shape (3,), found ()"),
        (readers(w=WEIGHT, b=BIAS.astype(np.complex64)), "b: expected float32, found complex64"),
        (readers(w=WEIGHT, b=np.array(["a", "b", "c"])), "b: expected float32, found <U1"),
        (readers(w=WEIGHT, b=np.array([1, None, 2])), "b: expected float32, found object"),
        (readers(w=WEIGHT, b=BIAS * np.nan), "b: expected finite numbers, found 3 of 3 that are not"),
        (readers(w=WEIGHT, b=np.array([1, np.inf, 1], np.float32)), "b: expected finite numbers, found 1 of 3"),
        (readers(w=WEIGHT, b=np.array([1, 1e300, 1])), "b: expected finite numbers, found 1 of 3"),  # as float32
        (readers(w=WEIGHT, b=[1.0, 2.0, 3.0]), "b: expected an array, found list"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_arrays(found, problem):
    assert arrays_problem(found, EXPECTED).startswith(problem)


def saved(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [b"", b"x" * 100, saved(BIAS)[:-3], saved(np.array([1, {}, 2], object)), saved(BIAS).replace(b"(3,)", b"(9 << 60,)")],
    ids=["empty", "garbage", "cut", "pickled", "code"],
)  # fmt: skip
def test_bytes_that_are_no_array(data):
    """As Flower reads them: an error of NumPy is the client's."""
    found = {**readers(w=WEIGHT), "b": lambda: np.load(io.BytesIO(data), allow_pickle=False)}
    assert arrays_problem(found, EXPECTED).startswith(
        "b: expected an array, found bytes that are not an array: "
    )


def test_whole_numbers_are_not_looked_at_for_their_value():
    assert array_problem(np.array([1, 2]), ArraySpec((2,), np.dtype(np.int64))) == ""
    assert (
        array_problem(np.array([1.0]), ArraySpec((1,), np.dtype(np.int64))) == "expected int64, found float64"
    )


def test_long_lists_of_names_are_cut():
    names = {f"{number}" * 100: spec_of(BIAS) for number in range(50)}
    assert len(arrays_problem(readers(x=BIAS), names)) < 1000


@pytest.mark.parametrize(
    "found", [{"num-examples": 1}, {"num-examples": 20, "loss": 0.5}, {"num-examples": 1 << 53, "each": [1.0, 2]}]
)  # fmt: skip
def test_metrics_as_asked_for(found):
    assert metrics_problem(found) == ""


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({}, "metrics: expected num-examples, found none"),
        ({"loss": 1.0}, "metrics: expected num-examples, found loss"),
        (
            {"num-examples": -20},
            "num-examples: expected a whole number from 1 to 9007199254740992, found -20",
        ),
        ({"num-examples": 0}, "num-examples: expected a whole number from 1 to 9007199254740992, found 0"),
        ({"num-examples": 1 << 54}, "num-examples: expected a whole number"),
        ({"num-examples": 10**400}, "num-examples: expected a whole number"),
        ({"num-examples": 20.0}, "num-examples: expected a whole number"),
        ({"num-examples": float("nan")}, "num-examples: expected a whole number"),
        ({"num-examples": True}, "num-examples: expected a whole number"),
        ({"num-examples": [20]}, "num-examples: expected a whole number"),
        ({"num-examples": "20"}, "num-examples: expected a whole number"),
        ({"num-examples": 20, "loss": float("nan")}, "loss: expected a finite number, found nan"),
        ({"num-examples": 20, "loss": float("-inf")}, "loss: expected a finite number, found -inf"),
        (
            {"num-examples": 20, "loss": [1.0, float("inf")]},
            "loss: expected a finite number, found [1.0, inf]",
        ),
        ({"num-examples": 20, "loss": "low"}, "loss: expected numbers, found 'low'"),
        ({"num-examples": 20, "loss": 10**400}, "loss: expected numbers"),
        ({"num-examples": 20, "loss": None}, "loss: expected"),
    ],
)
def test_what_is_wrong_with_metrics(found, problem):
    assert metrics_problem(found).startswith(problem)


def test_a_highest_number_of_rows():
    assert metrics_problem({"num-examples": 100}, 100) == ""
    assert "from 1 to 100, found 101" in metrics_problem({"num-examples": 101}, 100)


def test_clients_whose_metrics_have_no_mean():
    usual = {"num-examples": 1, "loss": 0.5}
    assert odd_ones({}) == {}
    assert odd_ones({1: usual, 2: {"loss": 1, "num-examples": 3}}) == {}
    found = odd_ones({1: {"num-examples": 1}, 2: usual, 3: usual, 4: {**usual, "loss": [1.0]}})
    assert set(found) == {1, 4}
    assert found[1] == "metrics: expected loss, num-examples, as from most clients, found num-examples"


def test_entries_of_the_protocol():
    assert entries_problem({"a": b"x", "more": 1}, {"a": bytes}) == ""
    assert entries_problem({}, {"a": bytes}) == "a: expected bytes, found NoneType"
    assert entries_problem({"a": "x"}, {"a": bytes}) == "a: expected bytes, found str"
    kinds = {"to": int, "data": bytes}
    assert entries_problem({"to": [1, 2], "data": [b"", b""]}, kinds, paired=True) == ""
    assert entries_problem({"to": [], "data": []}, kinds, paired=True) == ""
    for found in ({"to": [1], "data": []}, {"to": 1, "data": b""}, {"to": [b""], "data": [b""]}, {"to": [1]}):
        assert entries_problem(found, kinds, paired=True)
