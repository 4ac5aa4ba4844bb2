"""The kinds of data that a trainer takes, and the order in which it takes them."""

from __future__ import annotations

import threading
import time
from itertools import chain

import numpy as np
import pytest
from ortrain.trainer.data import Inputs, prefetched, source_of, split

INPUTS = Inputs(["x", "y"], [np.dtype(np.float32), np.dtype(np.int64)])
X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10)


def values(data, epoch=0, first=0, **options):
    settings = {"batch_size": 4, "shuffle": False, "seed": 3, **options}
    return [y.tolist() for _, y in source_of(data, INPUTS, **settings).batches(epoch, first)]


def pairs():
    return [(X[i : i + 5], Y[i : i + 5]) for i in (0, 5)]


class Table:
    """The part of a Hugging Face dataset that is used."""

    def with_format(self, kind):
        assert kind == "numpy"
        return self

    def __len__(self):
        return 10

    def __getitem__(self, rows):
        assert isinstance(rows, list)
        return {"id": [str(row) for row in rows], "y": Y[rows], "x": X[rows]}


@pytest.mark.parametrize("data", [(X, Y), {"y": Y, "x": X}, Table()])
def test_rows_become_batches(data):
    assert values(data) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert values(data, drop_last=True) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert values(data, steps=1) == [[0, 1, 2, 3]]


@pytest.mark.parametrize("data", [((X, X + 1), Y), ({"a": X, "b": X + 1}, Y), {"a": X, "b": X + 1, "y": Y}])
@pytest.mark.parametrize("batched", [False, True])
def test_a_pair_may_hold_several_inputs_and_the_target(data, batched):
    inputs = Inputs(["a", "b", "y"], [np.dtype(np.float32), np.dtype(np.float32), np.dtype(np.int64)])
    (found,) = source_of([data] if batched else data, inputs, 10, False, 0).batches(0, 0)
    for array, expected in zip(found, (X, X + 1, Y), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_a_pair_of_a_dictionary_with_its_target_and_more_is_rejected():
    with pytest.raises(TypeError, match=r"expected a NumPy array.* found dict"):
        values(({"x": X, "y": Y}, Y))


@pytest.mark.parametrize("data", [(X, Y), Table()])
def test_the_order_depends_on_seed_and_epoch_only(data):
    first, second = (values(data, epoch, shuffle=True) for epoch in (0, 1))
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(10))
    assert values(data, 1, shuffle=True) == second
    assert values(data, 1, first=1, shuffle=True) == second[1:]
    assert values(data, 1, shuffle=True, seed=4) != second


@pytest.mark.parametrize(
    "data",
    [
        pairs(),
        [{"x": x, "y": y, "other": 1} for x, y in pairs()],
        lambda epoch: iter(pairs()),
        [(x.tolist(), y.tolist()) for x, y in pairs()],
    ],
)
def test_iterables_of_batches_are_taken_as_they_are(data):
    assert values(data) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert values(data, epoch=1, first=1) == [[5, 6, 7, 8, 9]]


def test_the_epoch_reaches_what_wants_to_know_it():
    seen = []
    source = source_of(lambda epoch: seen.append(epoch) or pairs(), INPUTS, 4, True, 0)
    list(source.batches(5, 0))
    assert seen == [5]

    class Sampler(list):
        def set_epoch(self, epoch):
            seen.append(epoch)

    list(source_of(Sampler(pairs()), INPUTS, 4, True, 0).batches(6, 0))
    assert seen == [5, 6]


def test_a_generator_goes_on_in_the_next_epoch():
    data = ((X[i : i + 1], Y[i : i + 1]) for i in range(10))
    source = source_of(data, INPUTS, 1, False, 0, steps=3)
    found = [[y.item() for _, y in source.batches(epoch, 0)] for epoch in range(4)]
    assert found == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    resumed = source_of(((X[i : i + 1], Y[i : i + 1]) for i in range(10)), INPUTS, 1, False, 0, steps=3)
    assert [y.item() for _, y in resumed.batches(1, 2)] == [5]


def test_a_generator_cannot_start_again_unasked():
    source = source_of(iter(pairs()), INPUTS, 1, False, 0)
    assert len(list(source.batches(0, 0))) == 2
    with pytest.raises(ValueError, match="found an iterator for epoch 2"):
        list(source.batches(1, 0))


def test_numbers_are_converted_if_none_is_lost():
    x, y = next(source_of((X.astype(np.float64), Y.astype(np.uint8)), INPUTS, 4, False, 0).batches(0, 0))
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    narrow = Inputs(["y"], [np.dtype(np.int8)])
    with pytest.raises(ValueError, match="values that int8 can represent, found int64 from 0 to 300"):
        narrow.take((np.array([0, 300]),))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X,), r"expected 2 values \(x, y\), found 1"),
        ({"x": X}, "found no y among x"),
        ((X, Y[:3]), r"same number of rows, found x \(10, 2\), y \(3,\)"),
        ((X, Y + 0.5), "input 'y': expected int64, the numbers of classes, found float64 with 0.5 in row 0"),
        ((X[:0], Y[:0]), "at least one row"),
    ],
)
def test_data_that_do_not_match_are_rejected(data, message):
    with pytest.raises(ValueError, match=message):
        source_of(data, INPUTS, 4, False, 0)


def test_other_things_are_no_data():
    with pytest.raises(TypeError, match="found int"):
        source_of(3, INPUTS, 4, False, 0)


def test_a_share_is_held_out():
    train, held_out = split((X, Y), 0.3, INPUTS, seed=1)
    assert len(held_out) == 3
    assert sorted([*train, *held_out]) == list(range(10))
    rows = [y.tolist() for _, y in source_of((X, Y), INPUTS, 4, False, 0, rows=held_out).batches(0, 0)]
    assert rows == [held_out.tolist()]
    with pytest.raises(ValueError, match="leaves no row"):
        split((X, Y), 0.01, INPUTS, seed=1)
    with pytest.raises(ValueError, match="rows to take a share of"):
        split(pairs(), 0.3, INPUTS, seed=1)


def test_a_thread_prepares_batches_while_a_step_runs():
    made = []

    def batches():
        for i in range(6):
            made.append((i, threading.current_thread().name))
            yield (np.full(1, i),)

    ahead = prefetched(batches(), 2)
    assert next(ahead)[0] == 0
    deadline = time.monotonic() + 10
    while len(made) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(made) >= 3, "the thread does not run ahead"
    time.sleep(0.05)
    assert len(made) <= 4, "the thread runs further ahead than asked"
    assert {name for _, name in made} == {"ortrain-prefetch"}
    ahead.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "ortrain-prefetch"]


def test_an_error_in_the_thread_reaches_the_caller():
    def batches():
        yield (X,)
        raise OSError("the disk is gone")

    found = prefetched(batches(), 2)
    next(found)
    with pytest.raises(OSError, match="the disk is gone"):
        next(found)
